//! Frames of one trial handed to AF_XDP sockets.

use fathom_sys::{
    Result,
    bpf::{
        Assembler, Helper, Program, ProgramType,
        Register::{R1, R2, R3, R9},
        SocketMap, XdpAction,
    },
};

use super::{Expected, sink::find_mark};

/// Where `struct xdp_md` has the number of the queue that a frame came in by.
const RX_QUEUE: i16 = 16;

/// Hands the frames of one trial to the socket of their queue; everything else passes, and they too where there is no socket.
pub(crate) fn redirector(expected: &Expected, sockets: &SocketMap) -> Result<Program> {
    let mut a = Assembler::new();
    let (is_ours, pass) = (a.label(), a.label());
    a.mov(R9, R1);
    find_mark(&mut a, expected, (is_ours, pass));
    a.bind(is_ours).load(R2, R9.word(RX_QUEUE)).load_map(R1, sockets).mov(R3, i32::from(XdpAction::Pass));
    a.call(Helper::RedirectMap).exit();
    a.bind(pass).give(XdpAction::Pass);
    Program::load(ProgramType::Xdp, "fathom_redirect", &a.assemble())
}

//! Redirects the frames of one trial to AF_XDP sockets.

use fathom_model::units::Nanos;
use fathom_sys::{
    Result,
    bpf::{
        Assembler, Helper, Label, Program, ProgramType,
        Register::{R0, R1, R2, R3, R6, R9},
        SocketMap, XdpAction,
    },
};

use super::{
    ExpectedFrames,
    sink::{MarkLabels, find_mark},
};

// Offsets in `struct xdp_md`: the first byte of the frame, the start of the metadata in front of it, and the receive queue.
const DATA: i16 = 0;
const META: i16 = 8;
const RX_QUEUE: i16 = 16;

/// The length of the metadata in front of a frame: the trial's tag, so that other metadata is not mistaken for it, and the time.
const STAMP: i16 = 16;

/// Returns the arrival time of a frame from its metadata; `None` if the driver has no room for metadata.
pub(crate) fn arrival_time(ahead: &[u8], expected: &ExpectedFrames) -> Option<Nanos> {
    let stamp: &[u8; 16] = ahead.last_chunk()?;
    let (words, _) = stamp.as_chunks::<8>();
    let [tag, time] = [words[0], words[1]].map(u64::from_ne_bytes);
    (tag == word_of(expected)).then_some(Nanos(time))
}

/// The tag twice, so that it does not look like a length or an address.
fn word_of(expected: &ExpectedFrames) -> u64 {
    u64::from(expected.tag) << 32 | u64::from(expected.tag)
}

/// Stores the time in front of the frame, if the driver has room there.
fn stamp(a: &mut Assembler, expected: &ExpectedFrames) {
    let no_room: Label = a.label();
    a.call(Helper::MonotonicNanos).mov(R6, R0);
    a.mov(R1, R9).mov(R2, -i32::from(STAMP)).call(Helper::AdjustMeta).jump_if(R0.differs(0), no_room);
    a.load(R1, R9.word(META)).load(R2, R9.word(DATA)).mov(R3, R1).add(R3, i32::from(STAMP));
    a.jump_if(R3.above(R2), no_room);
    a.load_constant(R3, word_of(expected)).store(R1.double(0), R3).store(R1.double(8), R6).bind(no_room);
}

/// Loads a program that redirects the frames of one trial to the socket of their queue, with the time in front of them.
///
/// Everything else passes, and so do frames of a queue without a socket.
pub(crate) fn load_xsk_redirect(expected: &ExpectedFrames, sockets: &SocketMap) -> Result<Program> {
    let mut a = Assembler::new();
    let (is_ours, pass) = (a.label(), a.label());
    a.mov(R9, R1);
    find_mark(&mut a, expected, &MarkLabels { ours: is_ours, pktgen_header: is_ours, foreign: pass });
    a.bind(is_ours);
    stamp(&mut a, expected);
    a.load(R2, R9.word(RX_QUEUE)).load_map(R1, sockets).mov(R3, i32::from(XdpAction::Pass));
    a.call(Helper::RedirectMap).exit();
    a.bind(pass).give(XdpAction::Pass);
    Program::load(ProgramType::Xdp, "fathom_redirect", &a.assemble())
}

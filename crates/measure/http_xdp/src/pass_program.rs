//! A program that passes every frame to the network stack.
//!
//! A veth hands over what the program of its other end sends back only if it has a program itself (`veth_xdp_flush` in
//! `drivers/net/veth.c`); without one the frames lie in its ring.

use fathom_sys::{
    Result,
    bpf::{Assembler, Program, ProgramType, XdpAction, XdpLink, XdpMode},
};

/// The program on a device, which changes nothing else there. It goes when this is dropped, or with the process.
#[derive(Debug)]
pub struct PassProgram {
    _link: XdpLink,
}

impl PassProgram {
    /// Attaches it to a device of this network namespace.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN`; `EBUSY` if the device has a program already, `EOPNOTSUPP` without native XDP.
    pub fn attach(ifindex: u32) -> Result<Self> {
        let mut a = Assembler::new();
        a.give(XdpAction::Pass);
        let program = Program::load(ProgramType::XdpLongFrames, "fathom_pass", &a.assemble())?;
        Ok(Self { _link: XdpLink::attach(&program, ifindex, XdpMode::Native)? })
    }
}

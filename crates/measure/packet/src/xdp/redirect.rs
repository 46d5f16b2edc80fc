//! Redirects frames from one wire to another without the network stack: the upper limit of a device.

use fathom_model::MacAddress;
use fathom_sys::{
    Result,
    bpf::{
        Assembler, Helper, Program, ProgramType,
        Register::{R1, R2, R7},
        XdpAction, XdpLink, XdpMode,
    },
};

use super::FrameMatch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedirectTarget {
    /// The index of the output device.
    pub device: u32,
    /// The destination MAC address.
    pub destination: MacAddress,
    /// The source MAC address: that of the output device.
    pub source: MacAddress,
}

/// Redirects every IPv4 and IPv6 frame to another device, with new MAC addresses. Everything else passes to the stack.
///
/// It is not a router: it does not decrement the TTL.
#[derive(Debug)]
pub struct Redirect {
    program: Program,
}

impl RedirectTarget {
    /// Redirects the frame at `R7` to the device, and ends the program. The Ethernet header must have been checked.
    pub(super) fn assemble(self, a: &mut Assembler) {
        for (at, MacAddress(mac)) in [(0, self.destination), (6, self.source)] {
            for (pair, at) in mac.chunks_exact(2).zip((at..).step_by(2)) {
                a.store(R7.half(at), i32::from(u16::from_ne_bytes([pair[0], pair[1]])));
            }
        }
        a.load_constant(R1, self.device.into()).mov(R2, 0).call(Helper::Redirect).exit();
    }
}

impl Redirect {
    /// Loads the program. It works once it is attached.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn load(onward: RedirectTarget) -> Result<Self> {
        let mut a = Assembler::new();
        let leave = a.label();
        FrameMatch::AnyIp.assemble(&mut a, leave);
        onward.assemble(&mut a);
        a.bind(leave).give(XdpAction::Pass);
        Ok(Self { program: Program::load(ProgramType::Xdp, "fathom_redirect", &a.assemble())? })
    }

    /// Returns the program that runs for each frame.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Attaches the program to a device of this network namespace, for as long as the link lives.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver has no native mode, `EBUSY` if the device already has a program.
    pub fn attach(&self, ifindex: u32, mode: XdpMode) -> Result<XdpLink> {
        XdpLink::attach(&self.program, ifindex, mode)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_frames::*, *};

    #[test]
    fn a_frame_goes_on_with_new_addresses_and_is_the_same_otherwise() {
        let (destination, source) = (MacAddress([2, 1, 2, 3, 4, 5]), MacAddress([2, 9, 8, 7, 6, 5]));
        let Some(redirect) = or_skip(Redirect::load(RedirectTarget { device: 1, destination, source })) else { return };
        let before = frame(64, 7);
        let run = redirect.program().test_run(&before, 1).unwrap();
        assert_eq!(run.value, XdpAction::Redirect as u32);
        assert_eq!((&run.frame[..6], &run.frame[6..12]), (&destination.0[..], &source.0[..]));
        assert_eq!(run.frame[12..], before[12..]);
    }

    #[test]
    fn what_is_no_ip_passes_as_it_is() {
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let Some(redirect) = or_skip(Redirect::load(RedirectTarget { device: 1, destination: mac, source: mac }))
        else {
            return;
        };
        let arp = with_type(&frame(64, 0), 0x0806);
        let run = redirect.program().test_run(&arp, 1).unwrap();
        assert_eq!((run.value, run.frame), (XdpAction::Pass as u32, arp));
    }
}

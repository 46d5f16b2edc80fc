//! The programs of the devices of a lab: XDP programs of crate `packet`, and this program itself as a process. The lab knows no programs.

use std::process::Command;

use fathom_lab::device::{self, Policer, Program, ProgramGuard, ProgramLoader};
use fathom_model::units::PerSec;
use fathom_packet::xdp::{PolicerLimit, Redirect, RedirectTarget, policed_redirect};
use fathom_sys::{
    bpf::{XdpLink, XdpMode},
    process::own_program,
};

/// Attaches programs of crate `packet` to interfaces in native mode: in the slower generic mode it would be a different device.
pub struct PacketPrograms;

/// An attached program. Dropping this detaches it.
#[derive(Debug)]
struct AttachedProgram(#[expect(dead_code, reason = "held, not read")] XdpLink);

impl ProgramGuard for AttachedProgram {}

/// Converts a redirect to the type of crate `packet`.
fn packet_onward(onward: device::DeviceRedirect) -> RedirectTarget {
    let device::DeviceRedirect { to, destination, source } = onward;
    RedirectTarget { device: to, destination, source }
}

impl ProgramLoader for PacketPrograms {
    fn attach(&self, program: &Program, interface: u32) -> fathom_sys::Result<Box<dyn ProgramGuard>> {
        let link = match program {
            Program::Redirect(onward) => Redirect::load(packet_onward(*onward))?.attach(interface, XdpMode::Native)?,
            Program::Policer(Policer { rate_per_sec, burst }, onward) => {
                let rate = PerSec::new(f64::from(*rate_per_sec)).expect("a whole number is a rate");
                let limit = PolicerLimit { rate, burst: *burst };
                policed_redirect(packet_onward(*onward), limit)?.attach(interface, XdpMode::Native)?
            }
        };
        Ok(Box::new(AttachedProgram(link)))
    }

    fn process(&self, words: &[String]) -> std::io::Result<Command> {
        let mut command = Command::new(own_program::path());
        command.args(words);
        Ok(command)
    }
}

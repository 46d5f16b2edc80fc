//! The programs of the packet layer on the devices of a lab, which knows no programs.

use fathom_lab::device::{self, Attached, Policer, Program, Programs};
use fathom_model::units::PerSec;
use fathom_packet::{
    wire::MacAddress,
    xdp::{Onward, PolicerLimit, Redirect, policed_redirect},
};
use fathom_sys::bpf::{XdpLink, XdpMode};

/// Puts programs of crate `packet` on interfaces, in the driver: a slower way would be another device.
pub(crate) struct PacketPrograms;

/// A program, taken off when this is dropped.
#[derive(Debug)]
struct OnInterface(#[expect(dead_code, reason = "held, not read")] XdpLink);

impl Attached for OnInterface {}

/// Where frames go on, in the words of crate `packet`.
fn of_packet(onward: device::Onward) -> Onward {
    let device::Onward { to, destination, source } = onward;
    Onward { device: to, destination: MacAddress(destination), source: MacAddress(source) }
}

impl Programs for PacketPrograms {
    fn attach(&self, program: &Program, interface: u32) -> fathom_sys::Result<Box<dyn Attached>> {
        let link = match program {
            Program::Redirect(onward) => Redirect::load(of_packet(*onward))?.attach(interface, XdpMode::Native)?,
            Program::Policer(Policer { rate_per_sec, burst }, onward) => {
                let rate = PerSec::new(f64::from(*rate_per_sec)).expect("a whole number is a rate");
                let limit = PolicerLimit { rate, burst: *burst };
                policed_redirect(of_packet(*onward), limit)?.attach(interface, XdpMode::Native)?
            }
        };
        Ok(Box::new(OnInterface(link)))
    }
}

//! The programs of the packet layer on the devices of a lab, which knows no programs.

use fathom_lab::device::{Attached, Policer, Program, Programs};
use fathom_model::units::PerSec;
use fathom_packet::{
    wire::MacAddress,
    xdp::{Matching, Onward, PolicerLimit, Redirect, policer},
};
use fathom_sys::bpf::{XdpLink, XdpMode};

/// Puts programs of crate `packet` on interfaces, in the driver: a slower way would be another device.
pub(crate) struct PacketPrograms;

/// A program, taken off when this is dropped.
#[derive(Debug)]
struct OnInterface(#[expect(dead_code, reason = "held, not read")] XdpLink);

impl Attached for OnInterface {}

impl Programs for PacketPrograms {
    fn attach(&self, program: &Program, interface: u32) -> fathom_sys::Result<Box<dyn Attached>> {
        let link = match program {
            Program::Redirect { to, destination, source } => {
                let onward = Onward { device: *to, destination: MacAddress(*destination), source: MacAddress(*source) };
                Redirect::load(&onward)?.attach(interface, XdpMode::Native)?
            }
            Program::Policer(Policer { rate_per_sec, burst }) => {
                let rate = PerSec::new(f64::from(*rate_per_sec)).expect("a whole number is a rate");
                policer(Matching::AnyIp, PolicerLimit { rate, burst: *burst })?.attach(interface, XdpMode::Native)?
            }
        };
        Ok(Box::new(OnInterface(link)))
    }
}

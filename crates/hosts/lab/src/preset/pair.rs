//! Two hosts connected by one wire or by a device, and maybe by a second wire beside it.

use super::{Preset, Shape};
use crate::{
    Host, Options, Result,
    family::Family,
    wire::{End, join, quiet_host},
};
use std::net::Ipv4Addr;

pub(super) const PRESET: Preset = Preset {
    name: "pair",
    about: "two hosts a and b, joined by one wire, or by the device of --device",
    hosts: &["a", "b"],
    device: None,
    shape: Shape::Line,
    family: Family::Ipv4,
};

pub(super) const PRESET_6: Preset =
    Preset { name: "pair6", about: "the same, and a and b reach each other by IPv6", family: Family::Ipv6, ..PRESET };

/// The interface of the direct wire, on both hosts.
pub const DIRECT: &str = "eth1";
/// The interface of the way through the device, on both hosts.
pub const THROUGH: &str = "eth0";

/// Lays a second wire of another network between the first and the last host, beside whatever joins them.
pub(super) fn lay_direct_wire(hosts: &mut [Host], family: Family, options: &Options) -> Result<()> {
    let [a, .., b] = hosts else { unreachable!("a line has two ends") };
    let (near, far) = (Ipv4Addr::new(198, 18, 2, 1), Ipv4Addr::new(198, 18, 2, 2));
    join(End::new(a, DIRECT, near), End::new(b, DIRECT, far), family, options)
}

pub(super) fn build(family: Family, options: &Options) -> Result<Vec<Host>> {
    let (mut a, mut b) = (quiet_host("a", family)?, quiet_host("b", family)?);
    join(
        End::new(&mut a, "eth0", Ipv4Addr::new(198, 18, 0, 1)),
        End::new(&mut b, "eth0", Ipv4Addr::new(198, 18, 0, 2)),
        family,
        options,
    )?;
    Ok(vec![a, b])
}

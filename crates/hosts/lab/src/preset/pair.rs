//! Two hosts connected by one wire or by a device.

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

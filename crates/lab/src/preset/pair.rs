//! Two hosts and one wire, or a device between them.

use super::{Options, Preset};
use crate::{
    Host, Result,
    wire::{End, join, quiet_host},
};
use std::net::Ipv4Addr;

pub(super) const PRESET: Preset = Preset {
    name: "pair",
    about: "two hosts a and b, joined by one wire, or by the device of --device",
    hosts: &["a", "b"],
    device: None,
    build,
};

fn build(options: &Options) -> Result<Vec<Host>> {
    let (mut a, mut b) = (quiet_host("a")?, quiet_host("b")?);
    join(
        End::new(&mut a, "eth0", Ipv4Addr::new(198, 18, 0, 1)),
        End::new(&mut b, "eth0", Ipv4Addr::new(198, 18, 0, 2)),
        24,
        options,
    )?;
    Ok(vec![a, b])
}

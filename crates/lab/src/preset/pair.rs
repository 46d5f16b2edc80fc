//! Two hosts and one wire.

use super::{Options, Preset};
use crate::{
    Host, Result,
    wire::{End, join, quiet_host},
};
use std::net::Ipv4Addr;

pub(super) const PRESET: Preset =
    Preset { name: "pair", about: "two hosts a and b, joined by one wire", hosts: &["a", "b"], build };

fn build(options: &Options) -> Result<Vec<Host>> {
    let (mut a, mut b) = (quiet_host("a")?, quiet_host("b")?);
    join(
        End { host: &mut a, device: "eth0", address: Ipv4Addr::new(198, 18, 0, 1) },
        End { host: &mut b, device: "eth0", address: Ipv4Addr::new(198, 18, 0, 2) },
        24,
        options,
    )?;
    Ok(vec![a, b])
}

//! Two hosts on two wires, with the kernel's own router between them.

use super::{Options, Preset};
use crate::{
    Error, Host, Result,
    wire::{End, enable_forwarding, join, open, quiet_host},
};
use fathom_sys::netlink::Route;
use std::net::Ipv4Addr;

pub(super) const PRESET: Preset = Preset {
    name: "router",
    about: "hosts a and b with the kernel's router r between them",
    hosts: &["a", "r", "b"],
    build,
};

const A: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const TOWARDS_A: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 254);
const TOWARDS_B: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 254);
const B: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
/// A wire has the addresses that share the first three bytes.
const PREFIX_LEN: u8 = 24;

fn build(options: &Options) -> Result<Vec<Host>> {
    let (mut a, mut r, mut b) = (quiet_host("a")?, quiet_host("r")?, quiet_host("b")?);
    enable_forwarding(&r)?;
    join(
        End { host: &mut a, device: "eth0", address: A },
        End { host: &mut r, device: "eth0", address: TOWARDS_A },
        PREFIX_LEN,
        options,
    )?;
    join(
        End { host: &mut r, device: "eth1", address: TOWARDS_B },
        End { host: &mut b, device: "eth0", address: B },
        PREFIX_LEN,
        options,
    )?;
    send_everything_by(&a, TOWARDS_A)?;
    send_everything_by(&b, TOWARDS_B)?;
    Ok(vec![a, r, b])
}

fn send_everything_by(host: &Host, gateway: Ipv4Addr) -> Result<()> {
    let default =
        Route { destination: Ipv4Addr::UNSPECIFIED.into(), prefix_len: 0, gateway: Some(gateway.into()), device: None };
    open(host)?.add_route(&default).map_err(Error::kernel(format!("route host {} by {gateway}", host.name)))
}

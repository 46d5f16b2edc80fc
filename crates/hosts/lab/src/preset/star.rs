//! One tested host and its companions, all on one switch.

use std::net::Ipv4Addr;

use fathom_sys::netlink::BridgeIndex;

use super::{Preset, Shape};
use crate::{
    Error, Host, Options, Result,
    family::Family,
    wire::{End, introduce, lay, mac_for, open, quiet_host},
};

/// The tested host, the system under test of RFC 2544.
pub const TESTED: &str = "sut";
/// The host of the bridge that joins all others. No test runs on it.
pub const SWITCH: &str = "switch";
/// One tested host and eight companions, as the guides of cloud providers have it.
pub(super) const N_HOSTS_DEFAULT: u32 = 9;
/// All addresses fit into one /24 below that of the bridge, and a machine holds as many namespaces.
pub(super) const N_HOSTS: std::ops::RangeInclusive<u32> = 2..=64;

pub(super) const PRESET: Preset = Preset {
    name: "star",
    about: "a tested host sut and its companions c1, c2, … on one switch; star:N has N hosts, 9 by default",
    hosts: &["sut", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "switch"],
    device: None,
    shape: Shape::Star,
    family: Family::Ipv4,
};

pub(super) const PRESET_6: Preset =
    Preset { name: "star6", about: "the same, and the hosts reach each other by IPv6", family: Family::Ipv6, ..PRESET };

/// The names of the hosts with tests: the tested one, then its companions.
pub(super) fn host_names(n_hosts: u32) -> Vec<String> {
    let companions = (1..n_hosts).map(|n| format!("c{n}"));
    std::iter::once(TESTED.to_owned()).chain(companions).collect()
}

/// The address of a host, by its place in the list of hosts.
fn address(place: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, 0, u8::try_from(place + 1).expect("a star has at most 64 hosts"))
}

pub(super) fn build(n_hosts: u32, family: Family, options: &Options) -> Result<Vec<Host>> {
    let names = host_names(n_hosts);
    let mut hosts = names.iter().map(|name| quiet_host(name, family)).collect::<Result<Vec<_>>>()?;
    let mut switch = quiet_host(SWITCH, family)?;
    let failed = || Error::kernel("make the bridge of host switch");
    open(&switch)?.add_bridge("br0", mac_for(Ipv4Addr::new(198, 18, 0, 254))).map_err(failed())?;
    for (place, host) in hosts.iter_mut().enumerate() {
        let name = format!("p{place}");
        // The ports have no address; their Ethernet addresses are derived from these.
        let port = Ipv4Addr::new(198, 18, 255, address(place).octets()[3]);
        let port = End { is_port: true, ..End::new(&mut switch, &name, port) };
        lay(End::new(host, "eth0", address(place)), port, family, options)?;
    }
    let mut netlink = open(&switch)?;
    let bridge = netlink.link("br0").map_err(failed())?.index;
    for place in 0..hosts.len() {
        let port = netlink.link(&format!("p{place}")).map_err(failed())?.index;
        netlink.add_port(BridgeIndex(bridge), port).map_err(failed())?;
    }
    netlink.set_up(bridge).map_err(failed())?;
    for (place, host) in hosts.iter().enumerate() {
        let others = (0..hosts.len()).filter(|other| *other != place);
        others.map(address).try_for_each(|other| introduce(host, other, family))?;
    }
    hosts.push(switch);
    Ok(hosts)
}

//! One tested host and its companions, all on one switch.

use std::net::Ipv4Addr;

use fathom_sys::netlink::BridgeIndex;

use super::{Preset, SWITCH, Shape};
use crate::{
    Error, Host, Options, Result,
    family::Family,
    wire::{End, Network, introduce, lay, mac_for, open, quiet_host},
};

/// The tested host, the system under test of RFC 2544.
pub const TESTED: &str = "sut";
/// One tested host and eight companions, as the guides of cloud providers have it.
pub(super) const N_HOSTS_DEFAULT: u32 = 9;
/// A bridge of Linux has 1023 ports at most (`BR_MAX_PORTS`), and half of them are built in a few seconds.
pub(super) const N_HOSTS: std::ops::RangeInclusive<u32> = 2..=512;
/// Up to so many hosts all know each other; in a larger star all know the tested host, and ask for the others by ARP when they send.
const ALL_INTRODUCED_MAX: usize = 64;
/// The hosts of one third octet: 0 and 255 are left out, such that no address looks like that of a network or a broadcast.
const HOSTS_PER_OCTET: usize = 254;

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
    let [third, fourth] = octets(place);
    Ipv4Addr::new(198, 18, third, fourth)
}

/// The address from which the Ethernet address of a port is derived. The port itself has none.
fn port_address(place: usize) -> Ipv4Addr {
    let [third, fourth] = octets(place);
    Ipv4Addr::new(198, 19, third, fourth)
}

fn octets(place: usize) -> [u8; 2] {
    [place / HOSTS_PER_OCTET, place % HOSTS_PER_OCTET + 1]
        .map(|octet| u8::try_from(octet).expect("a star has at most 512 hosts"))
}

pub(super) fn build(n_hosts: u32, family: Family, options: &Options) -> Result<Vec<Host>> {
    let names = host_names(n_hosts);
    let mut hosts = names.iter().map(|name| quiet_host(name, family)).collect::<Result<Vec<_>>>()?;
    let mut switch = quiet_host(SWITCH, family)?;
    let failed = || Error::kernel("make the bridge of host switch");
    open(&switch)?.add_bridge("br0", mac_for(Ipv4Addr::new(198, 19, 255, 254))).map_err(failed())?;
    for (place, host) in hosts.iter_mut().enumerate() {
        let name = format!("p{place}");
        let port = End { is_port: true, network: Network::Star, ..End::new(&mut switch, &name, port_address(place)) };
        let end = End { network: Network::Star, ..End::new(host, "eth0", address(place)) };
        lay(end, port, family, options)?;
    }
    let mut netlink = open(&switch)?;
    let bridge = netlink.link("br0").map_err(failed())?.index;
    for place in 0..hosts.len() {
        let port = netlink.link(&format!("p{place}")).map_err(failed())?.index;
        netlink.add_port(BridgeIndex(bridge), port).map_err(failed())?;
    }
    netlink.set_up(bridge).map_err(failed())?;
    for (place, host) in hosts.iter().enumerate() {
        let knows_all = place == 0 || hosts.len() <= ALL_INTRODUCED_MAX;
        let others = (0..hosts.len()).filter(|other| *other != place && (knows_all || *other == 0));
        others.map(address).try_for_each(|other| introduce(host, other, family))?;
    }
    hosts.push(switch);
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_host_and_every_port_of_the_largest_star_has_an_address_of_its_own() {
        let n = usize::try_from(*N_HOSTS.end()).unwrap();
        let all: BTreeSet<Ipv4Addr> = (0..n).flat_map(|place| [address(place), port_address(place)]).collect();
        assert_eq!(all.len(), 2 * n);
        assert!(all.iter().all(|address| !matches!(address.octets()[3], 0 | 255)));
        assert_eq!((address(0), address(254)), ([198, 18, 0, 1].into(), [198, 18, 1, 1].into()));
    }
}

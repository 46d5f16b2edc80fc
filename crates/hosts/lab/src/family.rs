//! The IP version between the hosts of a lab, and their addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The IP version between the hosts of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// IPv4 only, so the wires carry no neighbor discovery and no multicast listener reports.
    Ipv4,
    /// IPv6, with IPv4 addresses as well.
    Ipv6,
}

impl Family {
    /// Returns all addresses of a host on a wire; tests use the first one.
    pub(crate) fn addresses(self, address: Ipv4Addr) -> Vec<IpAddr> {
        match self {
            Self::Ipv4 => vec![address.into()],
            Self::Ipv6 => vec![v6_for(address).into(), address.into()],
        }
    }

    /// Returns the default route of each IP version through a gateway: destination and gateway.
    pub(crate) fn routes_by(self, gateway: Ipv4Addr) -> Vec<(IpAddr, IpAddr)> {
        let everywhere = |gateway: IpAddr| match gateway {
            IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), gateway),
            IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), gateway),
        };
        self.addresses(gateway).into_iter().map(everywhere).collect()
    }
}

/// Returns an IPv6 address with the last two bytes of an IPv4 address, from the block that RFC 5180 reserves for benchmarking.
fn v6_for(address: Ipv4Addr) -> Ipv6Addr {
    let [_, _, network, host] = address.octets();
    Ipv6Addr::new(0x2001, 2, 0, network.into(), 0, 0, 0, host.into())
}

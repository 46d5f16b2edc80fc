//! The version of IP by which the hosts of a lab reach each other, and their addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// By which version of IP the hosts of a lab reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// They have no other, and so no frame of neighbour discovery or of multicast listeners is on their wires.
    Ipv4,
    /// They have addresses of IPv4 too.
    Ipv6,
}

impl Family {
    /// All addresses of a host on a wire; the first is the one that tests reach it at.
    pub(crate) fn addresses(self, address: Ipv4Addr) -> Vec<IpAddr> {
        match self {
            Self::Ipv4 => vec![address.into()],
            Self::Ipv6 => vec![v6_for(address).into(), address.into()],
        }
    }

    /// Where packets to hosts of no own wire go: all addresses of each version.
    pub(crate) fn routes_by(self, gateway: Ipv4Addr) -> Vec<(IpAddr, IpAddr)> {
        let everywhere = |gateway: IpAddr| match gateway {
            IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), gateway),
            IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), gateway),
        };
        self.addresses(gateway).into_iter().map(everywhere).collect()
    }
}

/// The address of IPv6 that shows the last two bytes of one of IPv4, from the block that RFC 5180 sets aside for measuring.
fn v6_for(address: Ipv4Addr) -> Ipv6Addr {
    let [_, _, network, host] = address.octets();
    Ipv6Addr::new(0x2001, 2, 0, network.into(), 0, 0, 0, host.into())
}

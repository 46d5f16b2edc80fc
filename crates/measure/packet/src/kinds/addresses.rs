//! The addresses of a host on the device under test: tests reach it at one of them, and frames may need the other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fathom_model::Role;
use fathom_sys::netlink::Netlink;

/// One of each version of IP.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostAddresses {
    /// The one of the role if the device has it, or the first of the device.
    pub(super) v4: Option<Ipv4Addr>,
    /// The same of IPv6; the one of the link where it has no other.
    pub(super) v6: Option<Ipv6Addr>,
}

impl HostAddresses {
    /// Those of the device with this index: a role may choose among them, and name no other.
    pub(super) fn of(role: &Role, netlink: &mut Netlink, device: u32) -> fathom_sys::Result<Self> {
        let of_device = netlink.addresses()?.into_iter().filter(|(index, _)| *index == device);
        let mut all: Vec<IpAddr> = of_device.map(|(_, address)| address).collect();
        all.sort_by_key(|address| role.address != Some(*address));
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in all {
            match address {
                IpAddr::V4(address) => v4.push(address),
                IpAddr::V6(address) => v6.push(address),
            }
        }
        Ok(Self { v4: v4.first().copied(), v6: v6.into_iter().min_by_key(Ipv6Addr::is_unicast_link_local) })
    }
}

//! The addresses of a host on the device under test. Tests reach it at one of them, and frames may need the other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fathom_model::Role;
use fathom_sys::netlink::Netlink;

/// One address of each IP version.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostAddresses {
    /// The role's address if the device has it, otherwise the first one of the device.
    pub(super) v4: Option<Ipv4Addr>,
    /// The IPv6 address, chosen in the same way; the link-local one if the device has no other.
    pub(super) v6: Option<Ipv6Addr>,
}

impl HostAddresses {
    /// Reads the addresses of the device with this index. A role can select one of them and cannot introduce others.
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

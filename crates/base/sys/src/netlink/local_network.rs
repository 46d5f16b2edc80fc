//! A network all of whose addresses belong to this host, for as long as a value lives.

use std::net::IpAddr;

use netlink_packet_route::{
    RouteNetlinkMessage as Message,
    route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
};

use super::{Netlink, family};
use crate::Result;

/// `RT_TABLE_LOCAL` of rtnetlink(7), which is looked at before all others.
const TABLE_LOCAL: u8 = 255;

/// A local route to a network (`ip route add local NETWORK dev lo`); dropping it removes the route.
///
/// A process that is killed leaves the route behind, unless its network namespace ends with it.
#[derive(Debug)]
pub struct LocalNetwork {
    netlink: Netlink,
    /// Absent once the route is to stay.
    message: Option<RouteMessage>,
}

impl LocalNetwork {
    /// Makes all addresses of a network local. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// `EEXIST` if there is such a route already; `EPERM` without the privilege.
    pub fn add(address: IpAddr, prefix_len: u8) -> Result<Self> {
        let mut netlink = Netlink::open()?;
        let loopback = netlink.link("lo")?.index;
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = prefix_len;
        message.header.table = TABLE_LOCAL;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Local;
        message.header.scope = RouteScope::Host;
        message.attributes = vec![RouteAttribute::Destination(address.into()), RouteAttribute::Oif(loopback)];
        netlink.add_route_message(&format!("RTM_NEWROUTE(local {address}/{prefix_len})"), message.clone())?;
        Ok(Self { netlink, message: Some(message) })
    }

    /// Leaves the route until the network namespace ends.
    pub fn keep(mut self) {
        self.message = None;
    }
}

impl Drop for LocalNetwork {
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            // A route that somebody else has removed meanwhile is gone, too.
            let _ = self.netlink.change("RTM_DELROUTE(local)", Message::DelRoute(message), 0);
        }
    }
}

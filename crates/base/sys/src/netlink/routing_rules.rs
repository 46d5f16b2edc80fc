//! Policy routing: rules that send packets with a mark to a routing table of their own, and the routes in it.
//!
//! All that is made here carries an origin of its own (`RTPROT_FATHOM`), so that what a killed program left is found and removed, and
//! nothing else is. See ip-rule(8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage as Message,
    route::{RouteAttribute, RouteMessage, RouteProtocol},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};

use super::{Netlink, RouteEntry, family, route_message};
use crate::Result;

/// The origin of our routes and rules (`RTPROT_…`): one that nobody has registered in `rt_protos`.
const RTPROT_FATHOM: u8 = 0xfa;

/// The packets with a mark of a family, and where the table of these has its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkedRoute {
    /// The mark of the packets (`fwmark`), not zero.
    pub mark: u32,
    /// The number of the table, and of the rule among all rules (its priority): above 255 and below that of the main table, 32766.
    pub table: u32,
    /// Where the packets go; the IP version is that of the gateway.
    pub gateway: IpAddr,
}

impl Netlink {
    /// Sends packets with a mark to a gateway: a rule, and a table with one default route.
    ///
    /// # Errors
    /// `EEXIST` if the rule or the route is there, `ENETUNREACH` if the gateway is on no link. Then nothing was changed.
    pub fn add_marked_route(&mut self, marked: &MarkedRoute) -> Result<()> {
        let MarkedRoute { mark, table, gateway } = *marked;
        let new = NLM_F_CREATE | NLM_F_EXCL;
        let call = format!("RTM_NEWROUTE(default by {gateway}, table {table})");
        self.change(&call, Message::NewRoute(default_route(marked)), new)?;
        let added =
            self.change(&format!("RTM_NEWRULE(mark {mark}, table {table})"), Message::NewRule(rule(marked)), new);
        if added.is_err() {
            self.remove_route_of(marked)?;
        }
        added
    }

    /// Removes what [`Self::add_marked_route`] made.
    ///
    /// # Errors
    /// `ENOENT` or `ESRCH` if it is not there.
    pub fn remove_marked_route(&mut self, marked: &MarkedRoute) -> Result<()> {
        let MarkedRoute { mark, table, .. } = *marked;
        let rule = self.change(&format!("RTM_DELRULE(mark {mark}, table {table})"), Message::DelRule(rule(marked)), 0);
        self.remove_route_of(marked).and(rule)
    }

    fn remove_route_of(&mut self, marked: &MarkedRoute) -> Result<()> {
        let call = format!("RTM_DELROUTE(table {})", marked.table);
        self.change(&call, Message::DelRoute(default_route(marked)), 0)
    }

    /// Returns the marked routes that a program of this kind made and has not removed, of both IP versions.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn marked_routes(&mut self) -> Result<Vec<MarkedRoute>> {
        let mut found = Vec::new();
        for version in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut asked = RuleMessage::default();
            asked.header.family = version;
            let rules = self.request("RTM_GETRULE", Message::GetRule(asked), NLM_F_REQUEST | NLM_F_DUMP)?;
            let mut asked = RouteMessage::default();
            asked.header.address_family = version;
            let routes = self.request("RTM_GETROUTE", Message::GetRoute(asked), NLM_F_REQUEST | NLM_F_DUMP)?;
            let gateways: Vec<(u32, IpAddr)> = routes.into_iter().filter_map(gateway_of).collect();
            found.extend(rules.into_iter().filter_map(mark_and_table).map(|(mark, table)| {
                let gateway = gateways.iter().find(|(of, _)| *of == table).map(|(_, gateway)| *gateway);
                MarkedRoute { mark, table, gateway: gateway.unwrap_or(nowhere(version)) }
            }));
        }
        Ok(found)
    }
}

/// The gateway of a rule whose table is empty; its family says which rule it is.
fn nowhere(version: AddressFamily) -> IpAddr {
    if version == AddressFamily::Inet { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn default_route(marked: &MarkedRoute) -> RouteMessage {
    let destination = match marked.gateway {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let route = RouteEntry { destination, prefix_len: 0, gateway: Some(marked.gateway), device: None };
    let mut message = route_message(&route);
    message.header.protocol = RouteProtocol::Other(RTPROT_FATHOM);
    // A number above 255 has no room in the header.
    message.attributes.push(RouteAttribute::Table(marked.table));
    message
}

fn rule(marked: &MarkedRoute) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(marked.gateway);
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(marked.table),
        RuleAttribute::FwMark(marked.mark),
        RuleAttribute::Table(marked.table),
        RuleAttribute::Protocol(RouteProtocol::Other(RTPROT_FATHOM)),
    ];
    message
}

/// Returns the mark and the table of a rule of ours.
fn mark_and_table(answer: Message) -> Option<(u32, u32)> {
    let Message::NewRule(rule) = answer else { return None };
    rule.attributes.contains(&RuleAttribute::Protocol(RouteProtocol::Other(RTPROT_FATHOM))).then_some(())?;
    let (mut mark, mut table) = (None, None);
    for attribute in rule.attributes {
        match attribute {
            RuleAttribute::FwMark(value) => mark = Some(value),
            RuleAttribute::Table(value) => table = Some(value),
            _ => {}
        }
    }
    Some((mark?, table?))
}

/// Returns the table and the gateway of a route of ours.
fn gateway_of(answer: Message) -> Option<(u32, IpAddr)> {
    let Message::NewRoute(route) = answer else { return None };
    (route.header.protocol == RouteProtocol::Other(RTPROT_FATHOM)).then_some(())?;
    let table = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    Some((table?, super::next_hop_of(Message::NewRoute(route))?.gateway?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Error,
        netlink::{Veth, VethEnd, namespace::NetNs},
    };
    use fathom_testkit::or_skip;

    #[test]
    fn a_marked_route_is_found_by_its_origin_and_removed_whole() {
        let Some(namespace) = or_skip(NetNs::new(), Error::is_permission) else { return };
        namespace.enter_with(look).unwrap();
    }

    fn look() {
        let mut netlink = Netlink::open().unwrap();
        let end = |name| VethEnd { name, mac: None };
        let veth = Veth { near: end("eth0"), far: end("eth1"), far_namespace: None, mtu_bytes: 1500, n_queues: 1 };
        netlink.add_veth(&veth).unwrap();
        for (name, address, length) in [("eth0", "198.18.7.1", 24), ("eth1", "2001:2:0:7::1", 64)] {
            let index = netlink.link(name).unwrap().index;
            netlink.set_up(index).unwrap();
            netlink.add_address(index, address.parse().unwrap(), length).unwrap();
        }
        let route = |mark, gateway: &str| MarkedRoute { mark, table: 1000 + mark, gateway: gateway.parse().unwrap() };
        let made = [route(1, "198.18.7.2"), route(2, "2001:2:0:7::2")];
        for marked in &made {
            netlink.add_marked_route(marked).unwrap();
            assert_eq!(netlink.add_marked_route(marked).unwrap_err().errno(), Some(libc::EEXIST));
        }
        assert_eq!(netlink.marked_routes().unwrap(), made);
        let off_link = netlink.add_marked_route(&route(3, "203.0.113.1")).unwrap_err();
        assert_eq!(off_link.errno(), Some(libc::ENETUNREACH));
        for marked in &made {
            netlink.remove_marked_route(marked).unwrap();
        }
        assert_eq!(netlink.marked_routes().unwrap(), []);
        assert!(netlink.remove_marked_route(&made[0]).is_err());
    }
}

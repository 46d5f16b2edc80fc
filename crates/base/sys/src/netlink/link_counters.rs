//! Counters of the links of a network namespace, for a reader that asks every second: of the kernel's answer only these are parsed.
//!
//! [`Netlink::links`](super::Netlink::links) has everything that is known of a link.

use std::{io, ops::ControlFlow};

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::{
    Error, Result,
    netlink::message::{DUMP, MessageBody, NetlinkRequest, NetlinkSocket, attribute, attributes},
};

/// `RTM_GETLINK`, and the length of `struct ifinfomsg`, behind which the attributes begin (rtnetlink(7)).
const GET_LINK: u16 = 18;
const HEADER: usize = 16;
/// `IFLA_IFNAME`, `IFLA_STATS64`, `IFLA_CARRIER_CHANGES` and `IFLA_XDP` with its `IFLA_XDP_ATTACHED` (`linux/if_link.h`).
const NAME: u16 = 3;
const STATISTICS: u16 = 23;
const CARRIER_CHANGES: u16 = 35;
const XDP: u16 = 43;
const XDP_ATTACHED: u16 = 2;
/// The place of `rx_missed_errors` in `struct rtnl_link_stats64`, whose fields have eight bytes each.
const RX_MISSED: usize = 15 * 8;

/// The counters of a link that `/proc/net/dev` does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkCounters {
    /// The interface.
    pub name: String,
    /// Frames that the card dropped because its ring was full.
    pub rx_missed: u64,
    /// How often the carrier came or went; absent before Linux 3.15.
    pub carrier_changes: Option<u32>,
    /// Whether an XDP program is attached.
    pub has_xdp: bool,
}

/// Reads the counters of all links of a network namespace.
#[derive(Debug)]
pub struct LinkReader {
    socket: NetlinkSocket,
    datagram: Vec<u8>,
}

impl LinkReader {
    /// Opens a reader of the network namespace of the calling thread.
    ///
    /// # Errors
    /// Any error of `socket` and `bind`.
    pub fn open() -> Result<Self> {
        let socket = NetlinkSocket::open(NETLINK_ROUTE);
        let socket = socket.map_err(|error| Error::new("socket(NETLINK_ROUTE)", error))?;
        Ok(Self { socket, datagram: Vec::new() })
    }

    /// Returns the counters of all links, in the kernel's order.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn counters(&mut self) -> Result<Vec<LinkCounters>> {
        let mut links = Vec::new();
        let question = NetlinkRequest(GET_LINK, DUMP, MessageBody::of_header(&[0; HEADER]));
        let asked: io::Result<()> = self.socket.dump(question, &mut self.datagram, |body| {
            links.extend(body.get(HEADER..).and_then(counters_of));
            ControlFlow::Continue(())
        });
        asked.map_err(|error| Error::new("RTM_GETLINK", error))?;
        Ok(links)
    }
}

/// Returns the counters of one link; `None` without its name.
fn counters_of(bytes: &[u8]) -> Option<LinkCounters> {
    let (mut name, mut counters) = (None, (0, None, false));
    for (kind, value) in attributes(bytes) {
        match kind {
            NAME => name = Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()),
            STATISTICS => counters.0 = value.get(RX_MISSED..)?.first_chunk().copied().map_or(0, u64::from_ne_bytes),
            CARRIER_CHANGES => counters.1 = value.first_chunk().copied().map(u32::from_ne_bytes),
            XDP => counters.2 = attribute(value, XDP_ATTACHED).is_some_and(|attached| attached != [0]),
            _ => {}
        }
    }
    let (rx_missed, carrier_changes, has_xdp) = counters;
    Some(LinkCounters { name: name?, rx_missed, carrier_changes, has_xdp })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Netlink;

    #[test]
    fn the_counters_of_a_link_are_read_and_a_program_is_seen() {
        let mut statistics = [0; 24 * 8];
        statistics[RX_MISSED..][..8].copy_from_slice(&7_u64.to_ne_bytes());
        let with = |attached: u8| {
            let xdp = MessageBody::default().put(XDP_ATTACHED, &[attached]);
            let body = MessageBody::default().text(NAME, "eth0").put(STATISTICS, &statistics);
            counters_of(body.put(CARRIER_CHANGES, &3_u32.to_ne_bytes()).nest(XDP, &xdp).bytes())
        };
        let expected =
            |has_xdp| LinkCounters { name: "eth0".to_owned(), rx_missed: 7, carrier_changes: Some(3), has_xdp };
        assert_eq!((with(0), with(1)), (Some(expected(false)), Some(expected(true))));
        assert_eq!(counters_of(&[]), None);
    }

    #[test]
    fn the_links_are_those_of_the_other_reader() {
        let links = Netlink::open().unwrap().links().unwrap();
        let all =
            links.iter().map(|link| (&link.name, link.stats.rx_missed_errors, link.carrier_changes, link.has_xdp));
        let mut counted = LinkReader::open().unwrap().counters().unwrap();
        counted.sort_by_key(|link| links.iter().position(|known| known.name == link.name));
        let counted = counted.iter().map(|link| (&link.name, link.rx_missed, link.carrier_changes, link.has_xdp));
        assert_eq!(counted.collect::<Vec<_>>(), all.collect::<Vec<_>>());
    }
}

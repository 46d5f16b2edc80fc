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
/// The places of some counters in `struct rtnl_link_stats64`, whose fields have eight bytes each.
const RX_CRC_ERRORS: usize = 12 * 8;
const RX_FRAME_ERRORS: usize = 13 * 8;
const RX_MISSED: usize = 15 * 8;
const RX_OTHER_HOST: usize = 24 * 8;

/// The counters of a link that `/proc/net/dev` does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkCounters {
    /// The interface.
    pub name: String,
    /// Frames that the card dropped because its ring was full.
    pub rx_missed: u64,
    /// Frames that the card dropped because they were damaged: with a wrong checksum or alignment.
    pub rx_damaged: u64,
    /// Frames that IP dropped because they are for another Ethernet address; absent before Linux 5.19.
    pub rx_other_host: Option<u64>,
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
    let mut link = LinkCounters {
        name: String::new(),
        rx_missed: 0,
        rx_damaged: 0,
        rx_other_host: None,
        carrier_changes: None,
        has_xdp: false,
    };
    for (kind, value) in attributes(bytes) {
        match kind {
            NAME => String::from_utf8_lossy(value).trim_end_matches('\0').clone_into(&mut link.name),
            STATISTICS => {
                let number = |at: usize| Some(u64::from_ne_bytes(*value.get(at..)?.first_chunk()?));
                link.rx_missed = number(RX_MISSED).unwrap_or(0);
                link.rx_damaged =
                    [RX_CRC_ERRORS, RX_FRAME_ERRORS].into_iter().filter_map(number).fold(0, u64::saturating_add);
                link.rx_other_host = number(RX_OTHER_HOST);
            }
            CARRIER_CHANGES => link.carrier_changes = value.first_chunk().copied().map(u32::from_ne_bytes),
            XDP => link.has_xdp = attribute(value, XDP_ATTACHED).is_some_and(|attached| attached != [0]),
            _ => {}
        }
    }
    Some(link).filter(|link| !link.name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_a_link_are_read_and_a_program_is_seen() {
        let mut statistics = [0; 25 * 8];
        statistics[RX_MISSED..][..8].copy_from_slice(&7_u64.to_ne_bytes());
        statistics[RX_OTHER_HOST..][..8].copy_from_slice(&5_u64.to_ne_bytes());
        statistics[RX_CRC_ERRORS..][..8].copy_from_slice(&2_u64.to_ne_bytes());
        statistics[RX_FRAME_ERRORS..][..8].copy_from_slice(&1_u64.to_ne_bytes());
        let with = |attached: u8, statistics: &[u8]| {
            let xdp = MessageBody::default().put(XDP_ATTACHED, &[attached]);
            let body = MessageBody::default().text(NAME, "eth0").put(STATISTICS, statistics);
            counters_of(body.put(CARRIER_CHANGES, &3_u32.to_ne_bytes()).nest(XDP, &xdp).bytes())
        };
        let expected = |has_xdp, rx_other_host| {
            let name = "eth0".to_owned();
            Some(LinkCounters { name, rx_missed: 7, rx_damaged: 3, rx_other_host, carrier_changes: Some(3), has_xdp })
        };
        assert_eq!(with(0, &statistics), expected(false, Some(5)));
        assert_eq!(with(1, &statistics[..RX_OTHER_HOST]), expected(true, None), "Linux 5.18");
        assert_eq!(counters_of(&[]), None);
    }

    #[test]
    fn changes_of_the_carrier_are_those_of_sysfs() {
        let of_sysfs = |name: &str| -> Option<u32> {
            let file = format!("/sys/class/net/{name}/carrier_changes");
            std::fs::read_to_string(file).ok()?.trim().parse().ok()
        };
        // A link that another test makes, removes or takes down meanwhile has no value that stays.
        let before: Vec<_> = ["lo", "eth0"].into_iter().filter_map(|name| Some((name, of_sysfs(name)?))).collect();
        let counted = LinkReader::open().unwrap().counters().unwrap();
        for (name, n) in before.into_iter().filter(|(name, n)| of_sysfs(name) == Some(*n)) {
            let link = counted.iter().find(|link| link.name == name).unwrap();
            assert_eq!(link.carrier_changes, Some(n), "{name}");
        }
        assert!(counted.iter().any(|link| link.name == "lo"));
    }
}

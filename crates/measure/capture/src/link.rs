//! Link types, and the IP packet in a frame of each (the tcpdump group's list of link-layer header types).

use std::fmt;

use fathom_wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TAG_LENGTH, TAGS};

/// The link type of a capture, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkType(pub i32);

/// The link type of Ethernet.
pub const ETHERNET: LinkType = LinkType(1);

/// The link type of packets that begin with their IP header.
pub const RAW_IP: LinkType = LinkType(101);

/// Where frames of a link type have their IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payload {
    /// Behind this many bytes; the packet says its own version.
    At(usize),
    /// Behind a header of `length` bytes, which has the `EtherType` at `ethertype`; VLAN tags may follow.
    Behind { length: usize, ethertype: usize },
    /// Nowhere that is known here.
    Unknown,
}

/// Common link types, by number.
const LINK_TYPES: &[(i32, &str, Payload)] = &[
    // The address family in the byte order of the host.
    (0, "BSD loopback", Payload::At(4)),
    (1, "Ethernet", Payload::Behind { length: 14, ethertype: 12 }),
    (12, "raw IP", Payload::At(0)),
    (14, "raw IP", Payload::At(0)),
    (101, "raw IP", Payload::At(0)),
    (105, "IEEE 802.11", Payload::Unknown),
    // The address family in the byte order of networks.
    (108, "OpenBSD loopback", Payload::At(4)),
    (113, "Linux cooked (all devices at once)", Payload::Behind { length: 16, ethertype: 14 }),
    (127, "IEEE 802.11 with radiotap", Payload::Unknown),
    (228, "raw IPv4", Payload::At(0)),
    (229, "raw IPv6", Payload::At(0)),
    (249, "USB", Payload::Unknown),
    (276, "Linux cooked v2 (all devices at once)", Payload::Behind { length: 20, ethertype: 0 }),
];

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match LINK_TYPES.iter().find(|(number, ..)| *number == self.0) {
            Some((number, name, _)) => write!(f, "{name}, link type {number}"),
            None => write!(f, "link type {}", self.0),
        }
    }
}

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkPacket<'a> {
    /// An IP packet, from its header on, with what the link adds behind it.
    Ip(&'a [u8]),
    /// Something else, such as ARP.
    Other,
    /// The captured bytes end within the header of the link.
    Cut,
    /// The header of this link is unknown here.
    UnknownLink,
}

impl LinkType {
    /// Finds the IP packet in a frame of this link type, behind any VLAN tags.
    #[must_use]
    pub fn packet(self, frame: &[u8]) -> NetworkPacket<'_> {
        let known = LINK_TYPES.iter().find(|(number, ..)| *number == self.0);
        match known.map_or(Payload::Unknown, |(.., payload)| *payload) {
            Payload::Unknown => NetworkPacket::UnknownLink,
            Payload::At(begin) => match frame.get(begin).map(|byte| byte >> 4) {
                Some(4 | 6) => NetworkPacket::Ip(&frame[begin..]),
                Some(_) => NetworkPacket::Other,
                None => NetworkPacket::Cut,
            },
            Payload::Behind { length, ethertype } => {
                behind_tags(frame, length, ethertype).unwrap_or(NetworkPacket::Cut)
            }
        }
    }
}

/// Follows the `EtherType` at `at` through VLAN tags to the packet. `None` if the frame ends before it.
fn behind_tags(frame: &[u8], length: usize, at: usize) -> Option<NetworkPacket<'_>> {
    let (mut at, mut begin) = (at, length);
    loop {
        match u16::from_be_bytes(*frame.get(at..)?.first_chunk()?) {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return frame.get(begin..).map(NetworkPacket::Ip),
            tag if TAGS.contains(&tag) => {
                at = begin + TAG_LENGTH - 2;
                begin += TAG_LENGTH;
            }
            _ => return Some(NetworkPacket::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packet_is_found_on_every_link() {
        let ethernet = [&[0; 12][..], &[0x08, 0x00]].concat();
        let tagged = [&[0; 12][..], &[0x88, 0xa8, 0, 5, 0x81, 0x00, 0, 6, 0x86, 0xdd]].concat();
        let cooked = [&[0; 14][..], &[0x08, 0x00]].concat();
        let tagged_cooked = [&[0; 14][..], &[0x81, 0x00, 0, 5, 0x08, 0x00]].concat();
        let cooked_2 = [&[0x08, 0x00][..], &[0; 18]].concat();
        let cases = [
            (0, vec![2, 0, 0, 0]),
            (108, vec![0, 0, 0, 2]),
            (1, ethernet),
            (1, tagged),
            (101, vec![]),
            (113, cooked),
            (113, tagged_cooked),
            (276, cooked_2),
        ];
        for (link, header) in cases {
            let frame = [&header[..], &[0x45, 1, 2]].concat();
            assert_eq!(LinkType(link).packet(&frame), NetworkPacket::Ip(&[0x45, 1, 2]), "{link} {header:?}");
            let cut = LinkType(link).packet(&header[..header.len().saturating_sub(1)]);
            assert_eq!(cut, NetworkPacket::Cut, "{link} {header:?}");
        }
    }

    #[test]
    fn other_contents_and_links_are_told_apart() {
        let arp = [&[0; 12][..], &[0x08, 0x06], &[0; 28]].concat();
        assert_eq!(ETHERNET.packet(&arp), NetworkPacket::Other);
        assert_eq!(LinkType(0).packet(&[28, 0, 0, 0, 0x20]), NetworkPacket::Other);
        assert_eq!(LinkType(105).packet(&arp), NetworkPacket::UnknownLink);
        assert_eq!(LinkType(9999).packet(&arp), NetworkPacket::UnknownLink);
    }
}

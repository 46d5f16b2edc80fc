//! Decides whether frames may be sent outside labs: only from this host, and only to the host under test.
//!
//! It checks the bytes that would leave, not their description, so it treats captures and lines alike.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use super::{FrameEndpoints, FrameSet, FrameTemplate};
use fathom_model::MacAddress;
use fathom_wire::Udp;

/// Why frames may be sent only in labs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameRefusal {
    /// The destination is a group of hosts.
    #[error("frames to {0}, a group of hosts, are sent only in labs")]
    Group(AddressRange),
    /// The source is not this host. Answers would go to a stranger, or another host would be blamed.
    #[error("frames from {0}, which is not this host, are sent only in labs")]
    Source(AddressRange),
    /// The destination is not the host under test.
    #[error("frames to {0}, which is not the host under test, are sent only in labs")]
    Destination(AddressRange),
    /// The packet carries a source route.
    #[error("packets that name their route are sent only in labs")]
    Route,
    /// The message changes how other hosts send.
    #[error("{0} are sent only in labs, because other hosts obey them")]
    ControlMessage(&'static str),
    /// The tunnel endpoint would forward a packet that was not checked here.
    #[error("packets within {0} are sent only in labs")]
    Tunnel(Tunnel),
    /// The headers change or cannot be parsed.
    #[error("frames whose headers cannot be parsed are sent only in labs")]
    Unreadable,
}

impl FrameRefusal {
    /// Returns where such frames can be sent.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        "try it in a lab: --lab pair"
    }
}

/// A header that may carry packets that are not parsed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunnel {
    /// By its `EtherType`.
    EtherType(u16),
    /// By its IP protocol number.
    Protocol(u8),
    /// By its UDP port.
    Port(u16),
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EtherType(ethertype) => write!(f, "EtherType 0x{ethertype:04x}"),
            Self::Protocol(protocol) => write!(f, "IP protocol {protocol}"),
            Self::Port(port) => write!(f, "datagrams to port {port}"),
        }
    }
}

/// An address of a frame, or the first and the last address of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    kind: AddressKind,
    low: u128,
    high: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressKind {
    Mac,
    Ipv4,
    Ipv6,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    From,
    To,
}

/// Checks that all frames go from the one end to the other.
///
/// # Errors
/// The first violation.
pub fn check_policy(blueprint: &FrameSet, ends: &FrameEndpoints) -> Result<(), FrameRefusal> {
    blueprint.templates.iter().try_for_each(|shape| {
        let mut frame = CheckedFrame { template: shape, addresses: Vec::new() };
        frame.ethernet()?;
        frame.addresses.iter().try_for_each(|(direction, address)| address.check(*direction, ends))
    })
}

impl AddressRange {
    fn check(self, direction: Direction, ends: &FrameEndpoints) -> Result<(), FrameRefusal> {
        let end = if direction == Direction::From { &ends.source } else { &ends.target };
        let own = match self.kind {
            AddressKind::Mac => Some(end.mac.0.iter().fold(0, |all, byte| all << 8 | u128::from(*byte))),
            AddressKind::Ipv4 => end.ipv4.map(|address| address.to_bits().into()),
            AddressKind::Ipv6 => end.ipv6.map(Ipv6Addr::to_bits),
        };
        match direction {
            Direction::To if self.is_group() => Err(FrameRefusal::Group(self)),
            _ if own == Some(self.low) && own == Some(self.high) => Ok(()),
            Direction::From => Err(FrameRefusal::Source(self)),
            Direction::To => Err(FrameRefusal::Destination(self)),
        }
    }

    /// Whether the last address is a group address.
    fn is_group(self) -> bool {
        match self.kind {
            AddressKind::Mac => self.mac().is_group(),
            AddressKind::Ipv4 => ipv4(self.high).is_multicast() || ipv4(self.high).is_broadcast(),
            AddressKind::Ipv6 => Ipv6Addr::from_bits(self.high).is_multicast(),
        }
    }

    fn mac(self) -> MacAddress {
        let [_, _, _, _, _, _, _, _, _, _, mac @ ..] = self.high.to_be_bytes();
        MacAddress(mac)
    }
}

fn ipv4(bits: u128) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX))
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |f: &mut fmt::Formatter<'_>, bits| match self.kind {
            AddressKind::Mac => Self { high: bits, ..*self }.mac().fmt(f),
            AddressKind::Ipv4 => fmt::Display::fmt(&ipv4(bits), f),
            AddressKind::Ipv6 => fmt::Display::fmt(&Ipv6Addr::from_bits(bits), f),
        };
        show(f, self.low)?;
        if self.high > self.low {
            f.write_str("-")?;
            show(f, self.high)?;
        }
        Ok(())
    }
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
/// `EtherTypes` of VLAN tags: IEEE 802.1Q, 802.1ad, and its predecessor.
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// `EtherTypes` of MPLS, unicast and multicast (RFC 3032 section 5).
const LABELS: [u16; 2] = [0x8847, 0x8848];
/// The bits of the fragment offset.
const FRAGMENT_OFFSET: u16 = 0x1fff;
const FRAGMENT_OFFSET_V6: u16 = 0xfff8;
/// Loose and strict source route (RFC 791 section 3.1).
const ROUTES: [u8; 2] = [131, 137];

const ICMP: u8 = 1;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Protocols that never carry a packet for another host: TCP, no next header, SCTP, UDP-Lite, and two for experiments (RFC 3692).
const ENDS: [u8; 6] = [6, 59, 132, 136, 253, 254];
/// Redirects and router advertisements (RFC 792, RFC 1256).
const ICMP_ORDERS: [u8; 2] = [5, 9];
/// Neighbor discovery with its redirects and advertisements, and renumbering (RFC 4861, RFC 2894, RFC 3122).
const ICMPV6_ORDERS: RangeInclusive<u8> = 133..=142;
/// UDP ports of L2TP, GTP, Teredo, GRE, VXLAN (two ports, and one with other protocols), FOU, GUE, GENEVE and MPLS.
const TUNNELS: [u16; 11] = [1701, 2152, 3544, 4754, 4789, 4790, 5555, 6080, 6081, 6635, 8472];

/// A frame whose addresses are collected.
struct CheckedFrame<'a> {
    template: &'a FrameTemplate,
    addresses: Vec<(Direction, AddressRange)>,
}

impl CheckedFrame<'_> {
    /// Returns bytes that identify the next header. They must exist and must not change.
    fn fixed_bytes(&self, at: usize, length: usize) -> Result<&[u8], FrameRefusal> {
        let is_edited = self.template.changes.iter().any(|edit| edit.at < at + length && at < edit.at + edit.width);
        let bytes = self.template.bytes.get(at..at + length);
        bytes.filter(|_| !is_edited).ok_or(FrameRefusal::Unreadable)
    }

    fn byte(&self, at: usize) -> Result<u8, FrameRefusal> {
        self.fixed_bytes(at, 1).map(|bytes| bytes[0])
    }

    fn word(&self, at: usize) -> Result<u16, FrameRefusal> {
        self.fixed_bytes(at, 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Records the address in these bytes, with the range of its changes.
    fn address(&mut self, direction: Direction, kind: AddressKind, at: usize) -> Result<(), FrameRefusal> {
        let length = match kind {
            AddressKind::Mac => 6,
            AddressKind::Ipv4 => 4,
            AddressKind::Ipv6 => 16,
        };
        let bytes = self.template.bytes.get(at..at + length).ok_or(FrameRefusal::Unreadable)?;
        let value = bytes.iter().fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
        let (mut low, mut high) = (value, value);
        for edit in self.template.changes.iter().filter(|edit| edit.at < at + length && at < edit.at + edit.width) {
            // A change within an address must end where the address ends.
            if edit.at + edit.width != at + length || edit.width > length || edit.shift != 0 {
                return Err(FrameRefusal::Unreadable);
            }
            let kept = if edit.width == length { 0 } else { value >> (edit.width * 8) << (edit.width * 8) };
            let (first, last) = edit.values.bounds();
            (low, high) = (kept | u128::from(first), kept | u128::from(last));
        }
        self.addresses.push((direction, AddressRange { kind, low, high }));
        Ok(())
    }

    fn ethernet(&mut self) -> Result<(), FrameRefusal> {
        self.address(Direction::To, AddressKind::Mac, 0)?;
        self.address(Direction::From, AddressKind::Mac, 6)?;
        let mut at = 12;
        while TAGS.contains(&self.word(at)?) {
            at += 4;
        }
        let ethertype = self.word(at)?;
        at += 2;
        match ethertype {
            IPV4 => self.ipv4(at),
            IPV6 => self.ipv6(at),
            ARP => {
                for (direction, at) in [(Direction::From, at + 8), (Direction::To, at + 18)] {
                    let is_asked = direction == Direction::To && self.template.bytes.get(at..at + 6) == Some(&[0; 6]);
                    if !is_asked {
                        self.address(direction, AddressKind::Mac, at)?;
                    }
                    self.address(direction, AddressKind::Ipv4, at + 6)?;
                }
                Ok(())
            }
            _ if LABELS.contains(&ethertype) => {
                while self.byte(at + 2)? & 1 == 0 {
                    at += 4;
                }
                match self.byte(at + 4)? >> 4 {
                    4 => self.ipv4(at + 4),
                    6 => self.ipv6(at + 4),
                    _ => Err(FrameRefusal::Unreadable),
                }
            }
            _ => Err(FrameRefusal::Tunnel(Tunnel::EtherType(ethertype))),
        }
    }

    fn ipv4(&mut self, at: usize) -> Result<(), FrameRefusal> {
        let first = self.byte(at)?;
        let length = usize::from(first & 0xf) * 4;
        if first >> 4 != 4 || length < 20 {
            return Err(FrameRefusal::Unreadable);
        }
        self.address(Direction::From, AddressKind::Ipv4, at + 12)?;
        self.address(Direction::To, AddressKind::Ipv4, at + 16)?;
        let mut options = self.fixed_bytes(at + 20, length - 20)?;
        while let [kind, rest @ ..] = options {
            if ROUTES.contains(kind) {
                return Err(FrameRefusal::Route);
            }
            // End of option list; no operation; all other options, which have a length.
            options = match (kind, rest.first()) {
                (0, _) | (_, None) => &[],
                (1, _) => rest,
                (_, Some(length)) => options.get(usize::from(*length).max(2)..).unwrap_or(&[]),
            };
        }
        let is_first = self.word(at + 6)? & FRAGMENT_OFFSET == 0;
        self.inner(self.byte(at + 9)?, is_first, at + length)
    }

    fn ipv6(&mut self, at: usize) -> Result<(), FrameRefusal> {
        if self.byte(at)? >> 4 != 6 {
            return Err(FrameRefusal::Unreadable);
        }
        self.address(Direction::From, AddressKind::Ipv6, at + 8)?;
        self.address(Direction::To, AddressKind::Ipv6, at + 24)?;
        let (mut next, mut at, mut is_first) = (self.byte(at + 6)?, at + 40, true);
        loop {
            let length = match next {
                43 => return Err(FrameRefusal::Route),
                0 | 60 => usize::from(self.byte(at + 1)?) * 8 + 8,
                44 => {
                    is_first &= self.word(at + 2)? & FRAGMENT_OFFSET_V6 == 0;
                    8
                }
                _ => return self.inner(next, is_first, at),
            };
            next = self.byte(at)?;
            at += length;
        }
    }

    /// Checks the payload of IP. A packet within a packet is checked as well, because the host that unpacks it forwards it.
    fn inner(&mut self, protocol: u8, is_first: bool, at: usize) -> Result<(), FrameRefusal> {
        match protocol {
            4 => self.ipv4(at),
            41 => self.ipv6(at),
            // Fragments other than the first continue its payload.
            ICMP | UDP | ICMPV6 if !is_first => Ok(()),
            ICMP if ICMP_ORDERS.contains(&self.byte(at)?) => {
                Err(FrameRefusal::ControlMessage("redirects and advertisements"))
            }
            ICMPV6 if ICMPV6_ORDERS.contains(&self.byte(at)?) => {
                Err(FrameRefusal::ControlMessage("messages of neighbour discovery"))
            }
            UDP => self.udp(at),
            ICMP | ICMPV6 => Ok(()),
            _ if ENDS.contains(&protocol) => Ok(()),
            _ => Err(FrameRefusal::Tunnel(Tunnel::Protocol(protocol))),
        }
    }

    /// A port that changes may be that of a tunnel. The mark is then in the place of the inner header.
    fn udp(&self, at: usize) -> Result<(), FrameRefusal> {
        let is_marked = self.template.mark_at == Some(at + Udp::LENGTH);
        match self.word(at + 2) {
            Ok(port) if TUNNELS.contains(&port) => Err(FrameRefusal::Tunnel(Tunnel::Port(port))),
            Err(unclear) if !is_marked => Err(unclear),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::craft::{FrameContext, FrameEndpoint, FrameSpec, SizeMix};

    fn ends() -> FrameEndpoints {
        let end = |last: u8| FrameEndpoint {
            mac: MacAddress([2, 0, 0, 0, 0, last]),
            ipv4: Some(Ipv4Addr::new(198, 18, 0, last)),
            ipv6: Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())),
            port: 9,
        };
        FrameEndpoints { source: end(1), target: end(2) }
    }

    fn judged(line: &str) -> Result<(), String> {
        let setup = FrameContext { ends: ends(), mtu_bytes: 1500, seed: 1 };
        let blueprint =
            FrameSet::from_spec(&FrameSpec::read(line).unwrap(), SizeMix::of_size(None), None, &setup).unwrap();
        check_policy(&blueprint, &ends()).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn frames_from_this_host_to_the_one_under_test_may_leave() {
        for line in [
            "",
            "udp ? > ?",
            "ip6 / tcp > 1-100 flags S",
            "svlan 1-4000 / vlan 3 / mpls 5 / mpls 6 / ip / icmp",
            "ip options 94040000 / udp",
            "ip6 / hop / dest / frag / udp",
            "arp",
            "arp reply",
            "ip / ip / udp",
            "udp > 1-49150?",
            "ip offset 8 / udp > 4789",
        ] {
            assert_eq!(judged(line), Ok(()), "{line}");
        }
    }

    #[test]
    fn strangers_and_groups_are_named() {
        for (line, refusal) in [
            ("eth > ff:ff:ff:ff:ff:ff", "frames to ff:ff:ff:ff:ff:ff, a group of hosts, are sent only in labs"),
            ("eth > 01:00:5e:00:00:01", "frames to 01:00:5e:00:00:01, a group"),
            ("eth ?", "frames from 02:00:00:00:00:00-02:00:ff:ff:ff:ff, which is not this host"),
            ("eth > 02:00:00:00:00:03", "frames to 02:00:00:00:00:03, which is not the host under test"),
            ("ip 198.18.0.1-198.18.0.9", "frames from 198.18.0.1-198.18.0.9, which is not this host"),
            ("ip > 198.18.0.2-198.18.0.3", "frames to 198.18.0.2-198.18.0.3, which is not the host under test"),
            ("ip > 224.0.0.1", "frames to 224.0.0.1, a group of hosts"),
            ("ip > 255.255.255.255", "frames to 255.255.255.255, a group of hosts"),
            ("ip6 fd00::1-fd00::ff?", "frames from fd00::1-fd00::ff, which is not this host"),
            ("ip6 > ff02::1", "frames to ff02::1, a group of hosts"),
            ("vlan 5 / mpls 3 / ip 10.0.0.1", "frames from 10.0.0.1, which is not this host"),
            ("ip / ip 10.0.0.1", "frames from 10.0.0.1, which is not this host"),
            ("ip6 / hop / ip6 > fd00::9", "frames to fd00::9, which is not the host under test"),
            ("arp 10.0.0.1", "frames from 10.0.0.1, which is not this host"),
            ("arp sha 02:00:00:00:00:07", "frames from 02:00:00:00:00:07, which is not this host"),
            ("ip options 0183070408080808", "packets that name their route"),
            ("ip6 / route data 000000000000", "packets that name their route"),
            ("eth type 0x0800-0x0801 each / ip", "frames whose headers cannot be parsed"),
            ("ip version 5", "frames whose headers cannot be parsed"),
            ("udp > 1-49150? / hex 0800 unmarked", "frames whose headers cannot be parsed"),
            ("eth type 0x88b5 / \"hello\"", "packets within EtherType 0x88b5 are sent only in labs"),
            ("eth type 0x8864 / hex 1100", "packets within EtherType 0x8864"),
            ("ip proto 51 / hex 0404", "packets within IP protocol 51"),
            ("ip proto 47 / hex 0000", "packets within IP protocol 47"),
            ("ip proto 137 / hex 0000", "packets within IP protocol 137"),
            ("ip6 next 51 / hex 2b04", "packets within IP protocol 51"),
            ("ip6 next 135 / hex 2b00", "packets within IP protocol 135"),
            ("udp > 4789 / hex 0800", "packets within datagrams to port 4789"),
            ("icmp type 5", "redirects and advertisements are sent only in labs"),
            (
                "ip6 / icmp6 type 134",
                "messages of neighbour discovery are sent only in labs, because other hosts obey them",
            ),
            ("ip6 / icmp6 type 136", "messages of neighbour discovery"),
        ] {
            let judged = judged(line).unwrap_err();
            assert!(judged.starts_with(refusal), "{line}: {judged}");
        }
    }

    #[test]
    fn captures_are_judged_by_their_bytes() {
        let setup = FrameContext { ends: ends(), mtu_bytes: 1500, seed: 1 };
        let blueprint =
            FrameSet::from_spec(&FrameSpec::read("").unwrap(), SizeMix::of_size(None), None, &setup).unwrap();
        let captured =
            |bytes: Vec<u8>| FrameSet { templates: vec![FrameTemplate::fixed(bytes)], order: vec![0], n_flows: 1 };
        let bytes = blueprint.templates[0].bytes.clone();
        assert_eq!(check_policy(&captured(bytes.clone()), &ends()), Ok(()));
        for at in (0..12).chain(26..34) {
            let mut other = bytes.clone();
            other[at] ^= 0x40;
            assert!(check_policy(&captured(other), &ends()).is_err(), "byte {at}");
        }
        for end in [0, 5, 12, 13, 14, 20, 33] {
            assert!(check_policy(&captured(bytes[..end].to_vec()), &ends()).is_err(), "{end} bytes");
        }
    }
}

//! Writes a UDP datagram as IP packets: whole, in fragments, or behind extension headers.
//!
//! It knows no socket and no clock. RFC 791 section 3.2 and RFC 8200 section 4.5 are the formats of fragments.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
};

use fathom_statistics::splitmix;
use fathom_wire::{ChecksumSum, PROTOCOL_UDP, Udp};

use super::order::{HeaderLength, Order};

/// Numbers of IPv6 headers (RFC 8200 section 4).
const HOP_BY_HOP: u8 = 0;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
const V4_LENGTH: usize = 20;
const V6_LENGTH: usize = 40;
const FRAGMENT_LENGTH: usize = 8;
/// The unit of offsets, which is also the overlap of overlapping fragments.
const UNIT: usize = 8;
/// The flag of IPv4 that more fragments follow, and the one that forbids to cut.
const MORE_V4: u16 = 0x2000;
const DO_NOT_FRAGMENT: u16 = 0x4000;
/// The flag of IPv6 that more fragments follow.
const MORE_V6: u16 = 1;

/// A datagram of one flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) payload: &'a [u8],
    /// The DSCP and ECN byte.
    pub(crate) traffic_class: u8,
}

/// How a datagram is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// The longest packet in bytes.
    pub(crate) mtu: usize,
    /// IPv4 has the lower half of it.
    pub(crate) identification: u32,
    /// Decides a random order.
    pub(crate) seed: u64,
}

/// The time to live, as that of Linux.
const HOPS: u8 = 64;

impl Datagram<'_> {
    /// Returns the packets of the datagram in the order of sending.
    pub(crate) fn packets(&self, order: Order, cut: Cut) -> Vec<Vec<u8>> {
        let headers: Vec<_> = order.hop_by_hop().map(|length| (HOP_BY_HOP, options(length))).into_iter().collect();
        let udp = self.udp();
        let (first, body) = match order.destination_options() {
            // They belong to what is cut, because only the destination reads them.
            Some(length) => {
                let mut options = options(length);
                options[0] = PROTOCOL_UDP;
                (DESTINATION, [options, udp].concat())
            }
            None => (PROTOCOL_UDP, udp),
        };
        if !order.is_cut() {
            let atomic = (order == Order::Atomic).then(|| fragment_header(cut.identification, 0));
            let headers: Vec<_> = headers.into_iter().chain(atomic).collect();
            return vec![self.packet(&headers, first, &body, None)];
        }
        let before = self.header_length() + headers.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let overlap = if order == Order::Overlapping { UNIT } else { 0 };
        let pieces = pieces(body.len(), cut.mtu.saturating_sub(before), overlap);
        let fragment = |piece: &Range<usize>| {
            let position = Position { start: piece.start, is_last: piece.end == body.len(), id: cut.identification };
            self.packet(&headers, first, &body[piece.clone()], Some(position))
        };
        arrangement(order, pieces.len(), cut.seed).into_iter().map(|nth| fragment(&pieces[nth])).collect()
    }

    /// The bytes before the part of the first fragment that is cut.
    fn header_length(&self) -> usize {
        if self.destination.is_ipv4() { V4_LENGTH } else { V6_LENGTH + FRAGMENT_LENGTH }
    }

    /// The UDP header with a checksum (RFC 768, RFC 8200 section 8.1) and the payload.
    fn udp(&self) -> Vec<u8> {
        let length = u16::try_from(Udp::LENGTH + self.payload.len()).expect("a datagram has at most 65,535 bytes");
        let ports = (self.source.port(), self.destination.port());
        let header = Udp { source: ports.0, destination: ports.1, length, checksum: 0 };
        let sum = ChecksumSum::default().add_bytes(&octets(self.source.ip())).add_bytes(&octets(self.destination.ip()));
        let sum = sum.add_word(length).add_word(PROTOCOL_UDP.into());
        let checksum = match sum.add_bytes(&header.bytes()).add_bytes(self.payload).checksum() {
            // Zero would say that there is none.
            0 => u16::MAX,
            checksum => checksum,
        };
        [&Udp { checksum, ..header }.bytes()[..], self.payload].concat()
    }

    /// Returns a packet with these extension headers. `last` is the protocol of the body.
    fn packet(&self, headers: &[(u8, Vec<u8>)], last: u8, body: &[u8], position: Option<Position>) -> Vec<u8> {
        if self.destination.is_ipv4() {
            return self.packet_v4(body, position);
        }
        let fragment = position.map(|position| fragment_header(position.id, position.field_v6()));
        let headers: Vec<_> = headers.iter().cloned().chain(fragment).collect();
        let payload = body.len() + headers.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let payload = u16::try_from(payload).expect("a packet has at most 65,535 bytes");
        let next_of = |nth: usize| headers.get(nth).map_or(last, |(number, _)| *number);
        let mut packet = vec![0x60 | self.traffic_class >> 4, self.traffic_class << 4, 0, 0];
        packet.extend(payload.to_be_bytes());
        packet.extend([next_of(0), HOPS]);
        packet.extend(octets(self.source.ip()));
        packet.extend(octets(self.destination.ip()));
        for (nth, (_, bytes)) in headers.iter().enumerate() {
            packet.push(next_of(nth + 1));
            packet.extend_from_slice(&bytes[1..]);
        }
        packet.extend_from_slice(body);
        packet
    }

    fn packet_v4(&self, body: &[u8], position: Option<Position>) -> Vec<u8> {
        let length = u16::try_from(V4_LENGTH + body.len()).expect("a packet has at most 65,535 bytes");
        let field = position.map_or(DO_NOT_FRAGMENT, Position::field_v4);
        let id = position.map_or(0, |position| low_half(position.id));
        let mut packet = vec![0x45, self.traffic_class];
        packet.extend([length, id, field].into_iter().flat_map(u16::to_be_bytes));
        packet.extend([HOPS, PROTOCOL_UDP, 0, 0]);
        packet.extend(octets(self.source.ip()));
        packet.extend(octets(self.destination.ip()));
        let checksum = ChecksumSum::default().add_bytes(&packet).checksum();
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend_from_slice(body);
        packet
    }
}

/// The place of a fragment in its datagram.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// In bytes, a multiple of eight.
    start: usize,
    is_last: bool,
    id: u32,
}

impl Position {
    fn field_v4(self) -> u16 {
        let offset = u16::try_from(self.start / UNIT).expect("an offset has 13 bits");
        offset | if self.is_last { 0 } else { MORE_V4 }
    }

    fn field_v6(self) -> u16 {
        let offset = u16::try_from(self.start).expect("an offset in bytes has 16 bits");
        offset | if self.is_last { 0 } else { MORE_V6 }
    }
}

/// The fragment header with its number; the first byte is that of the next header.
fn fragment_header(id: u32, field: u16) -> (u8, Vec<u8>) {
    (FRAGMENT, [&[0, 0][..], &field.to_be_bytes(), &id.to_be_bytes()].concat())
}

/// Returns a header of options that every node skips; the first byte is that of the next header.
///
/// Up to seven bytes are padding (`PadN`). Hosts drop longer padding (RFC 4942 section 2.1.9.5), so longer headers have options for experiments
/// (RFC 4727 section 4.3), which nodes skip if they do not know them.
fn options(length: HeaderLength) -> Vec<u8> {
    const PAD_N: u8 = 1;
    const EXPERIMENT: u8 = 0x1e;
    /// A type and a length come before the data of an option.
    const BEFORE: usize = 2;
    let length = length.bytes();
    let byte = |n: usize| u8::try_from(n).expect("a header of this test and its options have at most 255 units");
    let mut header = vec![0; length];
    header[1] = byte(length / UNIT - 1);
    let mut at = BEFORE;
    while at < length {
        let room = length - at - BEFORE;
        let data = room.min(255);
        // A single byte would be no option.
        let data = if room - data == 1 { data - 1 } else { data };
        header[at] = if length > UNIT { EXPERIMENT } else { PAD_N };
        header[at + 1] = byte(data);
        at += BEFORE + data;
    }
    header
}

/// Cuts a length into pieces of at most `room` bytes. All but the last end at a multiple of eight, all but the first begin `overlap`
/// bytes early.
fn pieces(length: usize, room: usize, overlap: usize) -> Vec<Range<usize>> {
    let step = (room.saturating_sub(overlap) / UNIT * UNIT).max(UNIT);
    let starts = (0..length).step_by(step);
    starts.map(|start| start.saturating_sub(overlap)..(start + step).min(length)).collect()
}

/// Returns the places of the fragments in the order of sending.
fn arrangement(order: Order, n: usize, seed: u64) -> Vec<usize> {
    let mut places: Vec<usize> = (0..n).collect();
    match order {
        Order::Reversed => places.reverse(),
        Order::Random => {
            for at in (1..n).rev() {
                let other = splitmix(seed, at as u64) % (at as u64 + 1);
                places.swap(at, usize::try_from(other).unwrap_or(0));
            }
        }
        Order::Duplicate => {
            let last = n.saturating_sub(1);
            places = places.into_iter().flat_map(|at| std::iter::repeat_n(at, if at < last { 2 } else { 1 })).collect();
        }
        Order::LastMissing => {
            places.pop();
        }
        Order::FirstMissing => {
            places.remove(0);
        }
        _ => {}
    }
    places
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn low_half(number: u32) -> u16 {
    u16::try_from(number & 0xffff).expect("16 bits are left")
}

/// Whether a packet is a fragment, an atomic one included.
pub(crate) fn is_fragment(packet: &[u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => packet.get(6..8).is_some_and(|field| (field[0] & 0x3f, field[1]) != (0, 0)),
        // Of the headers in front of a fragment header, only that of hop-by-hop options is ours.
        Some(6) => match packet.get(6) {
            Some(&HOP_BY_HOP) => packet.get(V6_LENGTH) == Some(&FRAGMENT),
            next => next == Some(&FRAGMENT),
        },
        _ => false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use etherparse::{IpSlice, LaxIpSlice};

    use super::*;

    const PAYLOAD: usize = 3_972;

    fn ends(is_ipv4: bool) -> (SocketAddr, SocketAddr) {
        let of = |v4: &str, v6: &str| if is_ipv4 { v4 } else { v6 }.parse().unwrap();
        (of("192.0.2.1:40001", "[2001:db8::1]:40001"), of("192.0.2.9:7701", "[2001:db8::9]:7701"))
    }

    fn packets(order: Order, is_ipv4: bool) -> Vec<Vec<u8>> {
        let payload: Vec<u8> = (0..PAYLOAD).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let (source, destination) = ends(is_ipv4);
        let datagram = Datagram { source, destination, payload: &payload, traffic_class: 0x2e };
        datagram.packets(order, Cut { mtu: 1500, identification: 0x0001_0203, seed: 5 })
    }

    /// Puts fragments together like a host; `None` while bytes are missing or if two fragments overlap. Also used by the simulated device.
    pub(in super::super) fn reassembled(packets: &[Vec<u8>]) -> Option<Vec<u8>> {
        let mut parts: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        let mut end = None;
        for packet in packets {
            let (start, more, body) = place(packet)?;
            if parts.insert(start, body.clone()).is_some_and(|other| other != body) {
                return None;
            }
            end = end.or((!more).then_some(start + body.len()));
        }
        let mut whole = Vec::new();
        for (start, body) in parts {
            if start != whole.len() {
                return None;
            }
            whole.extend(body);
        }
        Some(whole).filter(|whole| Some(whole.len()) == end)
    }

    /// The offset of a fragment, whether more follow, and its part of what was cut.
    pub(in super::super) fn place(packet: &[u8]) -> Option<(usize, bool, Vec<u8>)> {
        let field = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
        if packet[0] >> 4 == 4 {
            let field = field(6)?;
            return Some((usize::from(field & 0x1fff) * 8, field & MORE_V4 > 0, packet[20..].to_vec()));
        }
        let mut at = V6_LENGTH;
        if packet[6] == HOP_BY_HOP {
            at += (usize::from(packet[at + 1]) + 1) * 8;
        }
        let field = field(at + 2)?;
        Some((usize::from(field & !7), field & MORE_V6 > 0, packet[at + 8..].to_vec()))
    }

    #[test]
    fn every_complete_order_carries_the_datagram_in_packets_of_at_most_the_mtu() {
        for is_ipv4 in [true, false] {
            for order in Order::all().filter(|order| order.is_of(is_ipv4) && order.is_cut()) {
                let packets = packets(order, is_ipv4);
                assert!(packets.iter().all(|packet| packet.len() <= 1500 && is_fragment(packet)), "{order:?}");
                assert!(packets.iter().all(|packet| IpSlice::from_slice(packet).is_ok()), "{order:?}");
                let whole = reassembled(&packets);
                assert_eq!(whole.is_some(), !order.is_incomplete(), "{order:?} {is_ipv4}");
                let options = order.destination_options().map_or(0, HeaderLength::bytes);
                assert!(whole.is_none_or(|whole| whole.len() == PAYLOAD + 8 + options), "{order:?}");
            }
        }
    }

    #[test]
    fn each_order_is_what_its_name_says() {
        let starts =
            |order| -> Vec<usize> { packets(order, true).iter().map(|packet| place(packet).unwrap().0).collect() };
        assert_eq!(starts(Order::Forward), [0, 1480, 2960]);
        assert_eq!(starts(Order::Reversed), [2960, 1480, 0]);
        assert_eq!(starts(Order::Duplicate), [0, 0, 1480, 1480, 2960]);
        assert_eq!(starts(Order::Overlapping), [0, 1464, 2936]);
        assert_eq!((starts(Order::LastMissing), starts(Order::FirstMissing)), (vec![0, 1480], vec![1480, 2960]));
        let mut random = starts(Order::Random);
        random.sort_unstable();
        assert_eq!(random, [0, 1480, 2960]);
        let all: std::collections::BTreeSet<_> = (0..100).map(|seed| arrangement(Order::Random, 3, seed)).collect();
        assert_eq!(all.len(), 6, "every order of three comes up");
    }

    #[test]
    fn whole_packets_of_ipv6_have_their_extension_headers_and_a_right_checksum() {
        let lengths = (8..=HeaderLength::MAX).step_by(8);
        let headers = lengths.map(|length| Order::of_word(&format!("v6-dst{length}")).unwrap());
        for order in Order::all().filter(|order| !order.is_cut()).chain(headers) {
            let packet = packets(order, false).concat();
            let ip = IpSlice::from_slice(&packet).unwrap();
            let extensions = packet.len() - V6_LENGTH - 8 - PAYLOAD;
            let expected = order.hop_by_hop().or(order.destination_options()).map_or(0, HeaderLength::bytes);
            assert_eq!(extensions, if order == Order::Atomic { 8 } else { expected }, "{order:?}");
            let udp = ip.payload().payload;
            assert_eq!((ip.payload_ip_number().0, udp.len()), (PROTOCOL_UDP, PAYLOAD + 8), "{order:?}");
            let sum = [ip.source_addr(), ip.destination_addr()].map(octets).concat();
            let sum = ChecksumSum::default().add_bytes(&sum).add_word(3_980).add_word(17).add_bytes(udp);
            assert_eq!(sum.checksum(), 0, "{order:?}");
            assert_eq!(is_fragment(&packet), order == Order::Atomic, "{order:?}");
        }
    }

    #[test]
    fn a_whole_packet_of_ipv4_must_not_be_cut_and_its_fragments_say_where_they_belong() {
        let whole = packets(Order::Whole, true).concat();
        let (ip, _) = LaxIpSlice::from_slice(&whole).unwrap();
        let header = ip.ipv4().unwrap().header();
        assert!(header.dont_fragment() && header.to_header().calc_header_checksum() == header.header_checksum());
        for packet in packets(Order::Forward, true) {
            let header = LaxIpSlice::from_slice(&packet).unwrap().0.ipv4().unwrap().header().to_header();
            assert_eq!((header.identification, header.dont_fragment), (0x0203, false));
            assert_eq!(header.calc_header_checksum(), header.header_checksum);
        }
    }
}

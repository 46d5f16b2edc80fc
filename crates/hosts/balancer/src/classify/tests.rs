//! Packets of both versions, whole, in fragments, in ICMP errors, and damaged.

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, PacketBuilder};

use super::*;

const CLIENT: [u8; 4] = [198, 18, 0, 1];
const VIP: [u8; 4] = [198, 18, 8, 1];

fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, last)
}

/// A UDP packet of IPv6 with these extension headers: each its number and its bytes, whose first one is set here.
fn udp6(extensions: &[(u8, Vec<u8>)], payload: usize) -> Vec<u8> {
    let mut headers: Vec<u8> = Vec::new();
    for (idx, (_, bytes)) in extensions.iter().enumerate() {
        let next = extensions.get(idx + 1).map_or(protocol::UDP, |(kind, _)| *kind);
        headers.push(next);
        headers.extend(&bytes[1..]);
    }
    let length = u16::try_from(headers.len() + 8 + payload).unwrap();
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([extensions.first().map_or(protocol::UDP, |(kind, _)| *kind), 64]);
    packet.extend(v6(1).octets());
    packet.extend(v6(8).octets());
    packet.extend(headers);
    packet.extend([0x04, 0xd2, 0x00, 0x35]);
    packet.extend(vec![7; 4 + payload]);
    packet
}

fn key6() -> FlowKey {
    let ports = Ports::Pair { source: 1234, destination: 53 };
    FlowKey { source: v6(1).into(), destination: v6(8).into(), protocol: protocol::UDP, ports }
}

fn fragment_header(offset: u16, is_last: bool) -> Vec<u8> {
    let header =
        Ipv6FragmentHeader::new(IpNumber::UDP, IpFragOffset::try_from(offset / 8).unwrap(), !is_last, 0xdead_beef);
    header.to_bytes().to_vec()
}

fn of_length(bytes: usize, length_field: u8) -> Vec<u8> {
    let mut header = vec![0; bytes];
    header[1] = length_field;
    header
}

fn udp4() -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4(CLIENT, VIP, 64).udp(1234, 53).write(&mut packet, &[9; 40]).unwrap();
    packet
}

fn key4() -> FlowKey {
    let ports = Ports::Pair { source: 1234, destination: 53 };
    FlowKey { source: CLIENT.into(), destination: VIP.into(), protocol: protocol::UDP, ports }
}

#[test]
fn a_packet_of_either_version_shows_its_flow() {
    assert_eq!(classify(&udp4()).unwrap().key, key4());
    let mut tcp = Vec::new();
    PacketBuilder::ipv6(v6(1).octets(), v6(8).octets(), 64).tcp(1234, 80, 0, 9).write(&mut tcp, &[]).unwrap();
    let packet = classify(&tcp).unwrap();
    assert_eq!(packet.key.ports, Ports::Pair { source: 1234, destination: 80 });
    assert_eq!((packet.key.protocol, packet.fragment, packet.transport.len()), (protocol::TCP, None, 20));
}

#[test]
fn options_of_ipv4_move_the_ports() {
    let plain = udp4();
    let mut packet = vec![0x4f];
    packet.extend(&plain[1..20]);
    packet.extend([1; 40]);
    packet.extend(&plain[20..]);
    let length = u16::try_from(packet.len()).unwrap();
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    assert_eq!(classify(&packet).unwrap().key, key4());
}

#[test]
fn every_extension_header_is_passed_by_its_own_length() {
    let eight = |kind| vec![(kind, of_length(8, 0))];
    let cases = [
        vec![],
        eight(extension::HOP_BY_HOP),
        eight(extension::DESTINATION_OPTIONS),
        eight(extension::ROUTING),
        eight(extension::MOBILITY),
        eight(extension::HIP),
        eight(extension::SHIM6),
        vec![(extension::DESTINATION_OPTIONS, of_length(16, 1))],
        vec![(extension::AUTHENTICATION, of_length(24, 4))],
        vec![(extension::HOP_BY_HOP, of_length(8, 0)), (extension::AUTHENTICATION, of_length(12, 1))],
        vec![(extension::ROUTING, of_length(24, 2)), (extension::DESTINATION_OPTIONS, of_length(264, 32))],
        // A fragment that is the whole datagram.
        vec![(extension::FRAGMENT, fragment_header(0, true))],
    ];
    for case in cases {
        let packet = udp6(&case, 4);
        let classified = classify(&packet).unwrap();
        assert_eq!((classified.key, classified.fragment), (key6(), None), "{case:?}");
        assert_eq!(classified.transport.len(), 12);
    }
}

#[test]
fn a_first_fragment_of_ipv6_shows_the_ports_behind_its_fragment_header() {
    let extensions = [
        (extension::HOP_BY_HOP, of_length(8, 0)),
        (extension::FRAGMENT, fragment_header(0, false)),
        (extension::DESTINATION_OPTIONS, of_length(8, 0)),
    ];
    let packet = udp6(&extensions, 16);
    let first = classify(&packet).unwrap();
    assert_eq!(first.key, key6());
    let datagram = DatagramKey { source: v6(1).into(), destination: v6(8).into(), id: 0xdead_beef, protocol: 0 };
    assert_eq!(first.fragment, Some(Fragment { datagram, offset: 0, length: 32, is_last: false }));
}

#[test]
fn later_fragments_have_no_ports_and_the_datagram_of_the_first() {
    let packet = udp6(&[(extension::FRAGMENT, fragment_header(1448, true))], 16);
    let later = classify(&packet).unwrap();
    let fragment = later.fragment.unwrap();
    assert_eq!((fragment.offset, fragment.length, fragment.is_last), (1448, 24, true));
    assert_eq!((later.key.ports, later.transport), (Ports::Absent, &[][..]));

    let mut header = Ipv4Header::new(24, 64, IpNumber::UDP, CLIENT, VIP).unwrap();
    header.identification = 77;
    header.fragment_offset = IpFragOffset::try_from(185).unwrap();
    header.more_fragments = true;
    let packet = [header.to_bytes().to_vec(), vec![1; 24]].concat();
    let later = classify(&packet).unwrap();
    let datagram = DatagramKey { source: CLIENT.into(), destination: VIP.into(), id: 77, protocol: protocol::UDP };
    assert_eq!(later.fragment, Some(Fragment { datagram, offset: 1480, length: 24, is_last: false }));
    assert_eq!(later.key.ports, Ports::Absent);
}

/// An ICMP message of this type, with these bytes behind its header of 8 bytes.
fn icmp(kind: u8, inside: &[u8]) -> Vec<u8> {
    let body = [&[kind, 4, 0, 0, 0x12, 0x34, 0, 0][..], inside].concat();
    let header = Ipv4Header::new(u16::try_from(body.len()).unwrap(), 64, IpNumber::ICMP, [10, 0, 0, 1], VIP).unwrap();
    [header.to_bytes().to_vec(), body].concat()
}

#[test]
fn an_icmp_error_belongs_to_the_flow_of_the_packet_inside() {
    // What the target sent, cut as RFC 792 allows: from the virtual address to the client.
    let mut sent = Vec::new();
    PacketBuilder::ipv4(VIP, CLIENT, 64).udp(53, 1234).write(&mut sent, &[9; 40]).unwrap();
    for kind in [3, 4, 5, 11, 12] {
        let error = icmp(kind, &sent[..28]);
        let packet = classify(&error).unwrap();
        assert_eq!((packet.key, packet.is_icmp_error), (key4(), true), "type {kind}");
    }
    assert_eq!(classify(&icmp(3, &sent[..23])), Err(ClassifyError::Truncated("ports")));
    assert_eq!(classify(&icmp(3, &[])), Err(ClassifyError::NotIp));
    let wrong = ClassifyError::Corrupt("version of the packet in an ICMP error");
    assert_eq!(classify(&icmp(3, &udp6(&[], 0))), Err(wrong));
}

#[test]
fn an_icmp_error_of_ipv6_may_hold_a_packet_with_extension_headers() {
    let mut inside = udp6(&[(extension::DESTINATION_OPTIONS, of_length(8, 0))], 4);
    for at in 0..16 {
        inside.swap(8 + at, 24 + at);
    }
    let mut error = Vec::new();
    PacketBuilder::ipv6(v6(9).octets(), v6(8).octets(), 64)
        .icmpv6_raw(2, 0, [0, 0, 5, 0])
        .write(&mut error, &inside)
        .unwrap();
    let packet = classify(&error).unwrap();
    let ports = Ports::Pair { source: 53, destination: 1234 };
    assert_eq!((packet.key, packet.is_icmp_error), (FlowKey { ports, ..key6() }, true));
}

#[test]
fn echo_has_its_identifier_and_an_error_about_an_error_has_no_ports() {
    for kind in [0, 8] {
        assert_eq!(classify(&icmp(kind, &[])).unwrap().key.ports, Ports::Echo(0x1234));
    }
    let inner = icmp(3, &udp4());
    let packet = icmp(11, &inner);
    let outer = classify(&packet).unwrap();
    assert_eq!((outer.key.ports, outer.is_icmp_error), (Ports::Absent, true));
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    let with = |at: usize, byte: u8| {
        let mut packet = udp4();
        packet[at] = byte;
        classify(&packet).map(|packet| packet.key)
    };
    assert_eq!(with(0, 0x44), Err(ClassifyError::Corrupt("length of the IPv4 header")));
    assert_eq!(with(3, 19), Err(ClassifyError::Corrupt("length of the IPv4 packet")));
    assert_eq!(with(3, 22), Err(ClassifyError::Truncated("ports")));
    assert_eq!(with(0, 0x55), Err(ClassifyError::NotIp));
    // The offset of the last 8 bytes of 64 KiB, with more than 8 bytes.
    let mut packet = udp4();
    packet[6..8].copy_from_slice(&[0x1f, 0xff]);
    assert_eq!(classify(&packet), Err(ClassifyError::Corrupt("end of the fragment")));
    let twice = [(extension::FRAGMENT, fragment_header(0, false)), (extension::FRAGMENT, fragment_header(0, false))];
    assert_eq!(classify(&udp6(&twice, 8)), Err(ClassifyError::Corrupt("second fragment header")));
    let long = udp6(&[(extension::DESTINATION_OPTIONS, of_length(8, 200))], 0);
    assert_eq!(classify(&long), Err(ClassifyError::Corrupt("length of an IPv6 extension header")));
}

#[test]
fn bytes_that_end_anywhere_are_an_error_or_the_same_flow() {
    let extensions = [(extension::HOP_BY_HOP, of_length(16, 1)), (extension::FRAGMENT, fragment_header(0, false))];
    for whole in [udp4(), udp6(&extensions, 8), icmp(3, &udp4())] {
        let expected = classify(&whole).unwrap();
        for end in 0..whole.len() {
            match classify(&whole[..end]) {
                Ok(packet) => {
                    assert_eq!((packet.key, packet.fragment), (expected.key, expected.fragment), "{end}");
                    assert!(packet.is_cut && !expected.is_cut);
                }
                Err(error) => assert!(!matches!(error, ClassifyError::Corrupt(_)), "{end}: {error}"),
            }
        }
    }
}

#[test]
fn a_packet_of_more_than_64_kib_that_linux_cuts_later_shows_its_flow() {
    let mut packet = udp4();
    packet[2..4].fill(0);
    assert_eq!(classify(&packet).unwrap().key, key4());
    let mut packet = udp6(&[], 8);
    packet[4..6].fill(0);
    assert_eq!(classify(&packet).unwrap().key, key6());
}

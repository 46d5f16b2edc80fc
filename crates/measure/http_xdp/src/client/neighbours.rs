//! ARP and neighbor discovery for addresses that only a load has (RFC 826, RFC 4861, RFC 5227).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fathom_model::MacAddress;
use fathom_wire::{Arp, ChecksumSum, ETHERTYPE_IPV6, Ethernet};

const ETHERTYPE_ARP: u16 = 0x0806;
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
/// Hardware type Ethernet, protocol IPv4, addresses of six and four bytes.
const ARP_HEADER: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// The bytes of an ARP packet.
const ARP_LENGTH: usize = 28;
const PROTOCOL_ICMP6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The hop limit of neighbor discovery, by which a router's forgery is known (RFC 4861 section 7.1.1).
const HOPS: u8 = 255;
/// The bytes of an IPv6 header, and of a message of neighbor discovery without options.
const IP6_HEADER: usize = 40;
const MESSAGE: usize = 24;
/// The option with the Ethernet address of the target.
const TARGET_OPTION: u8 = 2;
/// Flags of an advertisement: it answers a solicitation, and replaces what is known.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What a frame of another host says about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// Somebody asks who has it.
    Asked {
        target: IpAddr,
        /// Who asks; the unspecified address for a host that checks whether it may have the address itself.
        by: IpAddr,
        mac: MacAddress,
    },
    /// Somebody has it.
    Owned { address: IpAddr, mac: MacAddress },
}

/// Reads a frame of ARP or neighbor discovery.
pub(super) fn parse(frame: &[u8]) -> Option<Said> {
    let (ethernet, packet) = Ethernet::parse(frame)?;
    match ethernet.ethertype {
        ETHERTYPE_ARP => parse_arp(packet),
        ETHERTYPE_IPV6 => parse_discovery(packet, ethernet.source),
        _ => None,
    }
}

fn parse_arp(packet: &[u8]) -> Option<Said> {
    let packet: &[u8; ARP_LENGTH] = packet.first_chunk()?;
    let mac = MacAddress(*packet[8..].first_chunk()?);
    let address = |at: usize| Some(Ipv4Addr::from(*packet[at..].first_chunk::<4>()?));
    let (sender, target) = (address(14)?, address(24)?);
    if packet[..6] != ARP_HEADER {
        return None;
    }
    match u16::from_be_bytes([packet[6], packet[7]]) {
        // An announcement is a request for the sender's own address.
        ARP_REQUEST if sender == target => Some(Said::Owned { address: sender.into(), mac }),
        ARP_REQUEST => Some(Said::Asked { target: target.into(), by: sender.into(), mac }),
        ARP_REPLY => Some(Said::Owned { address: sender.into(), mac }),
        _ => None,
    }
}

fn parse_discovery(packet: &[u8], mac: MacAddress) -> Option<Said> {
    let (header, message) = packet.split_at_checked(IP6_HEADER)?;
    let message: &[u8; MESSAGE] = message.first_chunk()?;
    if header[6] != PROTOCOL_ICMP6 || header[7] != HOPS || message[1] != 0 {
        return None;
    }
    let target = IpAddr::from(*message[8..].first_chunk::<16>()?);
    match message[0] {
        SOLICITATION => Some(Said::Asked { target, by: IpAddr::from(*header[8..].first_chunk::<16>()?), mac }),
        ADVERTISEMENT => Some(Said::Owned { address: target, mac }),
        _ => None,
    }
}

/// The question who has an address. It names no sender, so that nobody learns anything from it (RFC 5227 section 2.1.1, RFC 4862 section
/// 5.4.2).
pub(super) fn probe(mac: MacAddress, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => {
            arp(MacAddress::BROADCAST, ARP_REQUEST, (mac, Ipv4Addr::UNSPECIFIED), (MacAddress::default(), address))
        }
        IpAddr::V6(address) => {
            let [.., x, y, z] = address.octets();
            let group = Ipv6Addr::from_bits(
                0xff02_0000_0000_0000_0000_0001_ff00_0000 | u128::from(u32::from_be_bytes([0, x, y, z])),
            );
            discovery(
                (mac, Ipv6Addr::UNSPECIFIED),
                (MacAddress([0x33, 0x33, 0xff, x, y, z]), group),
                (SOLICITATION, 0),
                address,
                None,
            )
        }
    }
}

/// Tells everybody on the link who has an address.
pub(super) fn announcement(mac: MacAddress, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => Arp::announcement(mac, address).to_vec(),
        IpAddr::V6(address) => {
            let all = (MacAddress([0x33, 0x33, 0, 0, 0, 1]), ALL_NODES);
            discovery((mac, address), all, (ADVERTISEMENT, OVERRIDE), address, Some(TARGET_OPTION))
        }
    }
}

/// The answer to a question.
pub(super) fn answer(mac: MacAddress, target: IpAddr, (by, by_mac): (IpAddr, MacAddress)) -> Option<Vec<u8>> {
    match (target, by) {
        (IpAddr::V4(target), IpAddr::V4(by)) => Some(arp(by_mac, ARP_REPLY, (mac, target), (by_mac, by))),
        (IpAddr::V6(target), IpAddr::V6(by)) if by.is_unspecified() => Some(announcement(mac, target.into())),
        (IpAddr::V6(target), IpAddr::V6(by)) => {
            let flags = (ADVERTISEMENT, SOLICITED | OVERRIDE);
            Some(discovery((mac, target), (by_mac, by), flags, target, Some(TARGET_OPTION)))
        }
        _ => None,
    }
}

fn arp(to: MacAddress, operation: u16, sender: (MacAddress, Ipv4Addr), target: (MacAddress, Ipv4Addr)) -> Vec<u8> {
    let ethernet = Ethernet { destination: to, source: sender.0, ethertype: ETHERTYPE_ARP };
    let mut frame = [&ethernet.bytes()[..], &ARP_HEADER, &operation.to_be_bytes()].concat();
    for (mac, address) in [sender, target] {
        frame.extend(mac.0.into_iter().chain(address.octets()));
    }
    frame.resize(Arp::LENGTH, 0);
    frame
}

fn discovery(
    (mac, source): (MacAddress, Ipv6Addr),
    (to_mac, to): (MacAddress, Ipv6Addr),
    (kind, flags): (u8, u8),
    target: Ipv6Addr,
    option: Option<u8>,
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    if let Some(option) = option {
        message.extend([option, 1].into_iter().chain(mac.0));
    }
    let length = u16::try_from(message.len()).expect("a message is short");
    let sum = ChecksumSum::default().add_bytes(&source.octets()).add_bytes(&to.octets());
    let sum = sum.add_word(PROTOCOL_ICMP6.into()).add_word(length).add_bytes(&message);
    message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    let ethernet = Ethernet { destination: to_mac, source: mac, ethertype: ETHERTYPE_IPV6 };
    let header = [&[0x60, 0, 0, 0], &length.to_be_bytes()[..], &[PROTOCOL_ICMP6, HOPS]].concat();
    [&ethernet.bytes()[..], &header, &source.octets(), &to.octets(), &message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const THEIRS: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    #[test]
    fn what_we_say_is_what_others_understand() {
        for (ours, theirs, nobody) in [("198.18.1.7", "198.18.0.2", "0.0.0.0"), ("fd00::7:8", "fe80::2", "::")] {
            let [ours, theirs, nobody] = [ours, theirs, nobody].map(|text| text.parse::<IpAddr>().unwrap());
            assert_eq!(parse(&probe(OURS, ours)), Some(Said::Asked { target: ours, by: nobody, mac: OURS }));
            let owned = Some(Said::Owned { address: ours, mac: OURS });
            assert_eq!(parse(&announcement(OURS, ours)), owned);
            assert_eq!(parse(&answer(OURS, ours, (theirs, THEIRS)).unwrap()), owned);
            assert_eq!(parse(&answer(OURS, ours, (nobody, THEIRS)).unwrap()), owned);
        }
    }

    #[test]
    fn a_solicitation_goes_to_the_group_of_its_address_with_a_sound_checksum() {
        let frame = probe(OURS, "fd00::1:2:3".parse().unwrap());
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 2, 0, 3]);
        let (source, target) = (&frame[22..38], &frame[38..54]);
        let sum = ChecksumSum::default().add_bytes(source).add_bytes(target).add_word(58).add_word(24);
        assert_eq!(sum.add_bytes(&frame[54..]).checksum(), 0);
    }

    #[test]
    fn other_frames_and_cut_ones_say_nothing() {
        for frame in [probe(OURS, "198.18.1.7".parse().unwrap()), probe(OURS, "fd00::7".parse().unwrap())] {
            assert!((0..42).all(|length| parse(&frame[..length]).is_none()));
            let mut other = frame.clone();
            other[12] ^= 1;
            assert_eq!(parse(&other), None);
        }
    }
}

//! pktgen's own header after UDP: it identifies pktgen's packets, and has their number and creation time.

use fathom_model::units::Nanos;

use fathom_wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, IS_FRAGMENT, PROTOCOL_UDP, Udp};

/// pktgen's own header (`struct pktgen_hdr` in `net/core/pktgen.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PktgenHeader {
    /// The number of the packet in its pktgen device, from 1. Copies by `clone_skb` and `burst` have the same number.
    pub sequence: u32,
    /// The creation time on the wall clock, to the microsecond; `None` with `flag NO_TIMESTAMP`.
    pub made: Option<Nanos>,
}

/// A frame of pktgen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PktgenPacket {
    pub header: PktgenHeader,
    pub source_port: u16,
    pub destination_port: u16,
}

/// Identifies the packets of one trial, and translates their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PktgenOrigin {
    /// The source ports of the packets.
    pub ports: DevicePorts,
    /// The number of sending pktgen devices.
    pub n_devices: u32,
    /// The offset of pktgen's header from the start of the frame.
    pub at: usize,
    /// The offset of the wall clock from the monotonic clock.
    pub ahead: Nanos,
}

/// Source ports that identify pktgen devices: each device has `each` consecutive ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePorts {
    /// The first port of the first device.
    pub first: u16,
    /// The number of ports per device, at least one.
    pub each: u32,
}

/// The first bytes of the header.
pub const MAGIC: u32 = 0xbe9b_e955;
const ETHERTYPES_TAG: [u16; 2] = [0x8100, 0x88a8];
const ETHERTYPES_MPLS: [u16; 2] = [0x8847, 0x8848];
/// The MPLS bottom-of-stack bit.
const BOTTOM_OF_STACK: u8 = 1;
const IPV6_LENGTH: usize = 40;

impl DevicePorts {
    /// Returns the device that sends from a port, counted from 0.
    #[must_use]
    pub fn device(self, port: u16) -> Option<u32> {
        u32::from(port.checked_sub(self.first)?).checked_div(self.each)
    }
}

impl PktgenOrigin {
    /// Returns the device that sent a packet, if it is one of these.
    #[must_use]
    pub fn device(&self, packet: &PktgenPacket) -> Option<u32> {
        self.ports.device(packet.source_port).filter(|device| *device < self.n_devices)
    }

    /// The offset of the source port from the start of the frame.
    #[must_use]
    pub const fn source_port(&self) -> usize {
        self.at - Udp::LENGTH
    }
}

impl PktgenHeader {
    pub const LENGTH: usize = 16;

    /// The bytes of the header.
    ///
    /// # Panics
    /// Never: values that do not fit are truncated.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LENGTH] {
        let made = self.made.unwrap_or(Nanos::ZERO);
        let part = |number: u64| u32::try_from(number & u64::from(u32::MAX)).expect("32 bits are left");
        let words = [MAGIC, self.sequence, part(made.0 / 1_000_000_000), part(made.0 % 1_000_000_000 / 1_000)];
        let mut bytes = [0; Self::LENGTH];
        for (at, word) in words.into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Parses the header at the start of a payload, if there is one.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*payload.get(at..)?.first_chunk()?));
        let (sequence, secs, micros) = (word(4)?, word(8)?, word(12)?);
        let made = Nanos::from_secs(secs.into()) + Nanos::from_micros(micros.into());
        (word(0)? == MAGIC).then_some(Self { sequence, made: (made > Nanos::ZERO).then_some(made) })
    }
}

impl PktgenPacket {
    /// Finds pktgen's packet in a frame, after tags, labels and either version of IP. The beginning of the frame is sufficient.
    #[must_use]
    pub fn find(frame: &[u8]) -> Option<Self> {
        let (ethernet, rest) = Ethernet::parse(frame)?;
        let (kind, packet) = behind_tags(ethernet.ethertype, rest)?;
        let datagram = match kind {
            ETHERTYPE_IPV4 => behind_ipv4(packet),
            ETHERTYPE_IPV6 => (*packet.get(6)? == PROTOCOL_UDP).then(|| packet.get(IPV6_LENGTH..)).flatten(),
            _ => None,
        }?;
        let port = |at: usize| Some(u16::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
        let header = PktgenHeader::parse(datagram.get(Udp::LENGTH..)?)?;
        Some(Self { header, source_port: port(0)?, destination_port: port(2)? })
    }
}

/// Skips tags and labels; returns the `EtherType` of the rest, and the rest.
fn behind_tags(mut kind: u16, mut rest: &[u8]) -> Option<(u16, &[u8])> {
    loop {
        if ETHERTYPES_TAG.contains(&kind) {
            kind = u16::from_be_bytes(*rest.get(2..)?.first_chunk()?);
            rest = rest.get(4..)?;
        } else if ETHERTYPES_MPLS.contains(&kind) {
            let (label, behind) = rest.split_first_chunk::<4>()?;
            rest = behind;
            if label[2] & BOTTOM_OF_STACK == 1 {
                // No label identifies its payload. The first bits of IP are its version (RFC 4928).
                kind = match rest.first()? >> 4 {
                    4 => ETHERTYPE_IPV4,
                    6 => ETHERTYPE_IPV6,
                    _ => return None,
                };
            }
        } else {
            return Some((kind, rest));
        }
    }
}

fn behind_ipv4(packet: &[u8]) -> Option<&[u8]> {
    let fragment = u16::from_be_bytes(*packet.get(6..)?.first_chunk()?);
    let length = 4 * usize::from(packet.first()? & 0x0f);
    (fragment & IS_FRAGMENT == 0 && *packet.get(9)? == PROTOCOL_UDP).then(|| packet.get(length..)).flatten()
}

/// A frame of 60 bytes as pktgen builds it, with other headers in front of the packet. For tests of parsers.
#[must_use]
pub fn sample_frame(header: PktgenHeader, source_port: u16, tags: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 46, 0, 0, 0, 0, 32, PROTOCOL_UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend_from_slice(&source_port.to_be_bytes());
    packet.extend_from_slice(&[0, 9, 0, 26, 0, 0]);
    packet.extend_from_slice(&header.bytes());
    let kind: &[u8] = if tags.is_empty() { &[0x08, 0x00] } else { tags };
    let mut frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], kind, &packet].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: PktgenHeader = PktgenHeader { sequence: 7, made: Some(Nanos(1_763_000_000_123_456_000)) };

    #[test]
    fn a_packet_is_found_behind_tags_and_labels() {
        let vlan = [0x81, 0x00, 0, 5, 0x08, 0x00];
        let both = [0x88, 0xa8, 0, 7, 0x81, 0x00, 0, 5, 0x08, 0x00];
        let labels = [0x88, 0x47, 0, 1, 0, 0xa, 0, 2, 1, 0xa];
        for tags in [&[][..], &vlan, &both, &labels] {
            let packet = PktgenPacket::find(&sample_frame(HEADER, 9, tags)).unwrap();
            assert_eq!(packet, PktgenPacket { header: HEADER, source_port: 9, destination_port: 9 }, "{tags:?}");
        }
    }

    #[test]
    fn version_6_and_options_of_version_4_are_stepped_over() {
        let mut six = sample_frame(HEADER, 9, &[0x86, 0xdd]);
        let header: Vec<u8> = [&[0x60, 0, 0, 0, 0, 26, PROTOCOL_UDP, 64][..], &[0; 32]].concat();
        six.splice(14..34, header);
        assert_eq!(PktgenPacket::find(&six).map(|packet| packet.header), Some(HEADER));
        let mut options = sample_frame(HEADER, 9, &[]);
        options[14] = 0x46;
        options.splice(34..34, [1, 1, 1, 0]);
        assert_eq!(PktgenPacket::find(&options).map(|packet| packet.header), Some(HEADER));
    }

    #[test]
    fn frames_of_others_and_what_is_cut_off_are_not_taken_for_pktgens() {
        let good = sample_frame(HEADER, 9, &[]);
        for place in [12, 23, 42, 45] {
            let mut other = good.clone();
            other[place] ^= 0xff;
            assert_eq!(PktgenPacket::find(&other), None, "byte {place}");
        }
        for length in 0..58 {
            assert_eq!(PktgenPacket::find(&good[..length]), None, "{length} bytes");
        }
        let mut fragment = good;
        fragment[20] = 0x20;
        assert_eq!(PktgenPacket::find(&fragment), None);
    }

    #[test]
    fn a_packet_without_a_time_has_none() {
        let header = PktgenHeader { sequence: 1, made: None };
        assert_eq!(PktgenHeader::parse(&header.bytes()), Some(header));
    }
}

//! IPv4 without options (RFC 791).

use std::net::Ipv4Addr;

use super::ChecksumSum;

/// The IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// The header of an unfragmented packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4 {
    /// The length of the packet in bytes, this header included.
    pub total_length: u16,
    pub time_to_live: u8,
    /// The protocol of the payload, such as [`PROTOCOL_UDP`].
    pub protocol: u8,
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
}

/// Version 4 and a header of five words.
const VERSION_AND_LENGTH: u8 = 0x45;
const DO_NOT_FRAGMENT: u16 = 0x4000;
/// The bits that are set in fragments: more fragments follow, or an offset above zero.
pub const IS_FRAGMENT: u16 = 0x3fff;

impl Ipv4 {
    pub const LENGTH: usize = 20;

    /// The bytes of the header, including its checksum.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0] = VERSION_AND_LENGTH;
        bytes[2..4].copy_from_slice(&self.total_length.to_be_bytes());
        bytes[6..8].copy_from_slice(&DO_NOT_FRAGMENT.to_be_bytes());
        bytes[8] = self.time_to_live;
        bytes[9] = self.protocol;
        bytes[12..16].copy_from_slice(&self.source.octets());
        bytes[16..20].copy_from_slice(&self.destination.octets());
        let checksum = ChecksumSum::default().add_bytes(&bytes).checksum();
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// Parses the header, and returns it with the payload, without padding.
    ///
    /// Returns `None` if the packet is cut off, is a fragment, has options, or has a wrong checksum.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (header, _) = packet.split_first_chunk::<{ Self::LENGTH }>()?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
        let is_whole = word(6) & IS_FRAGMENT == 0;
        if header[0] != VERSION_AND_LENGTH || !is_whole || ChecksumSum::default().add_bytes(header).checksum() != 0 {
            return None;
        }
        let payload = packet.get(Self::LENGTH..usize::from(word(2)))?;
        let parsed = Self {
            total_length: word(2),
            time_to_live: header[8],
            protocol: header[9],
            source: address(12),
            destination: address(16),
        };
        Some((parsed, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Ipv4 {
        Ipv4 {
            total_length: 22,
            time_to_live: 64,
            protocol: PROTOCOL_UDP,
            source: Ipv4Addr::new(198, 18, 0, 1),
            destination: Ipv4Addr::new(198, 18, 0, 2),
        }
    }

    #[test]
    fn a_header_is_parsed_from_its_bytes_and_padding_is_left_out() {
        let mut packet = header().bytes().to_vec();
        packet.extend([1, 2, 0, 0, 0]);
        assert_eq!(Ipv4::parse(&packet), Some((header(), &[1, 2][..])));
    }

    #[test]
    fn what_is_damaged_is_not_parsed() {
        let mut good = header().bytes().to_vec();
        good.extend([1, 2]);
        assert_eq!(Ipv4::parse(&good[..21]), None, "cut off");
        for position in 0..Ipv4::LENGTH {
            let mut packet = good.clone();
            packet[position] ^= 0x10;
            assert_eq!(Ipv4::parse(&packet), None, "a bit of byte {position} was turned");
        }
    }
}

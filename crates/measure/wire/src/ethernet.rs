//! Ethernet II: its header and `EtherType` (IEEE 802.3).

use fathom_model::MacAddress;

/// The `EtherType` of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// The `EtherType` of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// The `EtherTypes` of VLAN tags that Linux strips from a frame: IEEE 802.1Q and 802.1ad.
pub const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// The length of a VLAN tag in bytes.
pub const TAG_LENGTH: usize = 4;

/// An Ethernet header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ethernet {
    pub destination: MacAddress,
    pub source: MacAddress,
    /// The type of the payload, such as [`ETHERTYPE_IPV4`].
    pub ethertype: u16,
}

impl Ethernet {
    pub const LENGTH: usize = 14;

    /// The bytes of the header.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0..6].copy_from_slice(&self.destination.0);
        bytes[6..12].copy_from_slice(&self.source.0);
        bytes[12..14].copy_from_slice(&self.ethertype.to_be_bytes());
        bytes
    }

    /// Parses the header, and returns it with the payload; `None` if the frame is too short.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = frame.split_first_chunk::<{ Self::LENGTH }>()?;
        let (destination, rest) = header.split_first_chunk::<6>()?;
        let (source, rest) = rest.split_first_chunk::<6>()?;
        let ethertype = u16::from_be_bytes(*rest.first_chunk()?);
        Some((Self { destination: MacAddress(*destination), source: MacAddress(*source), ethertype }, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_parsed_from_its_bytes() {
        let header = Ethernet {
            destination: MacAddress([1, 2, 3, 4, 5, 6]),
            source: MacAddress([7, 8, 9, 10, 11, 12]),
            ethertype: ETHERTYPE_IPV4,
        };
        let mut frame = header.bytes().to_vec();
        frame.push(99);
        assert_eq!(Ethernet::parse(&frame), Some((header, &[99][..])));
        assert_eq!(Ethernet::parse(&frame[..13]), None);
    }
}

//! Ethernet II: addresses and ethertype (IEEE 802.3).

use std::{fmt, str::FromStr};

/// The ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// The ethertype of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// The ethertypes of VLAN tags that Linux strips from a frame: IEEE 802.1Q and 802.1ad.
pub const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// The length of a VLAN tag in bytes.
pub const TAG_LENGTH: usize = 4;

/// The MAC address of a network device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MacAddress(pub [u8; 6]);

/// A text that is not six hexadecimal bytes with colons between them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address such as 02:00:00:00:00:01")]
pub struct MacError(String);

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

impl MacAddress {
    /// Whether it is a group address, so that frames to it reach several devices.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.map(|byte| format!("{byte:02x}")).join(":"))
    }
}

impl FromStr for MacAddress {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let byte = |part: &str| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten();
        let bytes: Option<Vec<u8>> = text.trim().split(':').map(byte).collect();
        let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        bytes.map(Self).ok_or_else(|| MacError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_printed() {
        let address = MacAddress([0x02, 0, 0xab, 0, 0, 0x0f]);
        assert_eq!(address.to_string(), "02:00:ab:00:00:0f");
        assert_eq!("02:00:ab:00:00:0f\n".parse(), Ok(address));
        for text in
            ["", "02:00:ab:00:00", "02:00:ab:00:00:0f:00", "2:0:ab:0:0:f", "02-00-ab-00-00-0f", "+2:00:00:00:00:000"]
        {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }

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

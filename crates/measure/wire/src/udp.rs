//! UDP over IPv4 (RFC 768).

/// A UDP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udp {
    pub source: u16,
    pub destination: u16,
    /// The length of the datagram in bytes, this header included.
    pub length: u16,
    /// Zero for no checksum.
    pub checksum: u16,
}

impl Udp {
    pub const LENGTH: usize = 8;

    /// The bytes of the header.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        for (at, word) in [self.source, self.destination, self.length, self.checksum].into_iter().enumerate() {
            bytes[2 * at..2 * at + 2].copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Parses the header, and returns it with the payload; `None` if the datagram is cut off.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (header, _) = datagram.split_first_chunk::<{ Self::LENGTH }>()?;
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let parsed = Self { source: word(0), destination: word(2), length: word(4), checksum: word(6) };
        Some((parsed, datagram.get(Self::LENGTH..usize::from(parsed.length))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_parsed_from_its_bytes() {
        let header = Udp { source: 40_000, destination: 7, length: 10, checksum: 0x1234 };
        let mut datagram = header.bytes().to_vec();
        datagram.extend([1, 2, 0]);
        assert_eq!(Udp::parse(&datagram), Some((header, &[1, 2][..])));
        assert_eq!(Udp::parse(&datagram[..9]), None);
        datagram[5] = 7;
        assert_eq!(Udp::parse(&datagram), None, "a datagram is not shorter than its header");
    }
}

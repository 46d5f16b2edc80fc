//! The header that our datagrams begin with.
//!
//! Token, number and time of sending, big-endian: 18 bytes, which is what the smallest Ethernet frame has room for above UDP and
//! IPv4. The token keeps strangers' datagrams out of the counts; it is no protection against someone who listens.

use fathom_model::units::Nanos;

/// The length of the header, and so the smallest datagram.
pub(crate) const LENGTH: usize = 18;

/// What a datagram says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Its number, from 0.
    pub(crate) number: u64,
    /// When it was sent, on the sender's monotonic clock; none in an end mark, behind which only further marks come.
    pub(crate) sent: Option<Nanos>,
}

/// The time of sending that stands for an end mark; a monotonic clock reaches it after 584 years.
const END: Nanos = Nanos::MAX;

/// What keeps the datagrams of one flow of one trial from those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token([u8; 2]);

impl Token {
    /// The same on both sides, which have the same seed.
    #[must_use]
    pub(crate) fn new(seed: u64, flow: u16) -> Self {
        let [low, high, ..] = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).to_le_bytes();
        Self((u16::from_le_bytes([low, high]) ^ flow).to_be_bytes())
    }

    /// Writes the header to the beginning of a datagram.
    ///
    /// # Panics
    /// When the datagram is shorter than [`LENGTH`].
    pub(crate) fn write(self, header: Header, datagram: &mut [u8]) {
        datagram[..2].copy_from_slice(&self.0);
        datagram[2..10].copy_from_slice(&header.number.to_be_bytes());
        datagram[10..LENGTH].copy_from_slice(&header.sent.unwrap_or(END).0.to_be_bytes());
    }

    /// Reads the header; nothing when the datagram is not of this flow.
    #[must_use]
    pub(crate) fn read(self, datagram: &[u8]) -> Option<Header> {
        let (token, rest) = datagram.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (number, sent) = (u64::from_be_bytes(*number), Nanos(u64::from_be_bytes(*rest.first_chunk()?)));
        (*token == self.0).then_some(())?;
        Some(Header { number, sent: Some(sent).filter(|sent| *sent != END) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_by_the_same_flow_only() {
        let token = Token::new(42, 3);
        for header in [Header { number: 1 << 40, sent: Some(Nanos(77)) }, Header { number: 9, sent: None }] {
            let mut datagram = [0xee; 20];
            token.write(header, &mut datagram);
            assert_eq!(token.read(&datagram), Some(header));
            assert_eq!(token.read(&datagram[..LENGTH]), Some(header));
            assert_eq!(token.read(&datagram[..LENGTH - 1]), None);
            assert_eq!(Token::new(42, 4).read(&datagram), None);
            assert_eq!(Token::new(43, 3).read(&datagram), None);
            assert_eq!(datagram[LENGTH..], [0xee; 2]);
        }
    }
}

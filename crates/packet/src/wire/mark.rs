//! What fathom's frames carry behind their headers: whose they are, and which.

use super::{Ethernet, Ipv4, Udp};

/// Tells a frame of fathom's from all others, and from fathom's other frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The trial it belongs to, so that a late frame of an earlier one is not counted.
    pub trial: u32,
    /// Its number within its flow, from 0.
    pub sequence: u64,
    /// The flow, from 0.
    pub flow: u16,
}

/// Where things are in a frame that carries a mark, from the first byte of the frame.
#[derive(Debug)]
pub struct MarkPlace;

impl MarkPlace {
    /// The first byte of the mark: eight bytes that are the same in every frame of a trial.
    pub const START: usize = Ethernet::LENGTH + Ipv4::LENGTH + Udp::LENGTH;
    /// The number, eight bytes in network order.
    pub const SEQUENCE: usize = Self::START + 8;
    /// The flow, two bytes in network order.
    pub const FLOW: usize = Self::START + 16;
    /// The byte behind the mark: exactly the smallest frame that Ethernet knows, 64 bytes with checksum.
    pub const END: usize = Self::START + Mark::LENGTH;
}

/// The first bytes of every mark.
const MAGIC: [u8; 4] = *b"fthm";

impl Mark {
    /// Its length in bytes.
    pub const LENGTH: usize = 18;

    /// The eight bytes that all frames of a trial begin their mark with.
    #[must_use]
    pub fn tag(trial: u32) -> [u8; 8] {
        let mut tag = [0; 8];
        tag[..4].copy_from_slice(&MAGIC);
        tag[4..].copy_from_slice(&trial.to_be_bytes());
        tag
    }

    /// The bytes of the mark.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&Self::tag(self.trial));
        bytes[8..16].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[16..].copy_from_slice(&self.flow.to_be_bytes());
        bytes
    }

    /// The mark that a payload begins with, if it does.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (magic, rest) = payload.split_first_chunk::<4>()?;
        let (trial, rest) = rest.split_first_chunk::<4>()?;
        let (sequence, rest) = rest.split_first_chunk::<8>()?;
        let flow = rest.first_chunk::<2>()?;
        (*magic == MAGIC).then(|| Self {
            trial: u32::from_be_bytes(*trial),
            sequence: u64::from_be_bytes(*sequence),
            flow: u16::from_be_bytes(*flow),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_parsed_from_its_bytes() {
        let mark = Mark { trial: 0xdead_beef, sequence: 1 << 40, flow: 513 };
        assert_eq!(Mark::parse(&mark.bytes()), Some(mark));
        assert_eq!(Mark::parse(&mark.bytes()[..17]), None);
        assert_eq!(Mark::parse(&[0; 18]), None);
    }

    #[test]
    fn a_mark_fits_into_the_smallest_frame() {
        assert_eq!(MarkPlace::END, 60);
    }
}

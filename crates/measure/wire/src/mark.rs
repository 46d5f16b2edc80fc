//! The mark that fathom's frames carry after their headers: trial, flow, sequence number and departure time.

use super::{Ethernet, Ipv4, Udp};

/// Identifies a frame of fathom among all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The tag of its trial, so that a late frame of an earlier one is not counted: [`Mark::tag_of`].
    pub tag: u32,
    /// The flow, from 0.
    pub flow: u32,
    /// Its number in its flow, from 0; the upper 16 bits are lost.
    pub sequence: u64,
    /// The low 32 bits of the sender's clock in nanoseconds; zero if the receiver has another clock.
    pub sent: u32,
}

/// Offsets in a plain UDP over IPv4 frame with a mark, from the start of the frame.
#[derive(Debug)]
pub struct MarkOffsets;

impl MarkOffsets {
    /// The first byte of the mark.
    pub const START: usize = Ethernet::LENGTH + Ipv4::LENGTH + Udp::LENGTH;
    /// The byte after the mark: exactly the smallest Ethernet frame, 64 bytes with FCS.
    pub const END: usize = Self::START + Mark::LENGTH;
}

/// Combined with the trial number, so that zeros are not a mark.
const MAGIC: u32 = u32::from_be_bytes(*b"fthm");

impl Mark {
    /// The length in bytes: as much as fits into the smallest frame of UDP over IPv4.
    pub const LENGTH: usize = 18;
    // Offsets in the mark; all numbers are big-endian.
    /// Four bytes that are the same in all frames of a trial.
    pub const TAG: usize = 0;
    /// Four bytes.
    pub const FLOW: usize = 4;
    /// Six bytes.
    pub const SEQUENCE: usize = 8;
    /// Four bytes.
    pub const SENT: usize = 14;
    /// A bit of the flow that is set after a rate change. There are never that many flows.
    pub const AFTER_STEP: u32 = 1 << 31;

    /// The tag of all frames of a trial.
    #[must_use]
    pub const fn tag_of(trial: u32) -> u32 {
        MAGIC ^ trial
    }

    /// The bytes of the mark.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> [u8; Self::LENGTH] {
        let [t0, t1, t2, t3] = self.tag.to_be_bytes();
        let [f0, f1, f2, f3] = self.flow.to_be_bytes();
        let [_, _, n0, n1, n2, n3, n4, n5] = self.sequence.to_be_bytes();
        let [s0, s1, s2, s3] = self.sent.to_be_bytes();
        [t0, t1, t2, t3, f0, f1, f2, f3, n0, n1, n2, n3, n4, n5, s0, s1, s2, s3]
    }

    /// Parses the mark at the start of these bytes, from any sender.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mark = bytes.first_chunk::<{ Self::LENGTH }>()?;
        let word = |at: usize| u32::from_be_bytes([mark[at], mark[at + 1], mark[at + 2], mark[at + 3]]);
        let n = Self::SEQUENCE;
        let sequence =
            u64::from_be_bytes([0, 0, mark[n], mark[n + 1], mark[n + 2], mark[n + 3], mark[n + 4], mark[n + 5]]);
        Some(Self { tag: word(Self::TAG), flow: word(Self::FLOW), sequence, sent: word(Self::SENT) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_parsed_from_its_bytes() {
        let mark = Mark { tag: 0xdead_beef, flow: 1 << 20, sequence: 0xabcd_1234_5678, sent: 7 };
        assert_eq!(Mark::parse(&mark.bytes()), Some(mark));
        assert_eq!(Mark::parse(&mark.bytes()[..17]), None);
        let more = Mark { sequence: mark.sequence | 0xffff << 48, ..mark };
        assert_eq!(more.bytes(), mark.bytes(), "six bytes of the number are kept");
    }

    #[test]
    fn zeros_have_no_tag_of_an_early_trial() {
        assert!((0..1000).all(|trial| Mark::tag_of(trial) != 0));
    }

    #[test]
    fn a_mark_fits_into_the_smallest_frame() {
        assert_eq!(MarkOffsets::END, 60);
    }
}

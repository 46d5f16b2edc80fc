//! Frames ready to be sent: their bytes, the fields that change from frame to frame, and how they change.
//!
//! All changes depend on two numbers, the flow and the sequence number in it. Every writer of frames (a program in the kernel, a
//! ring, a socket) therefore writes the same bytes. This module knows nothing about headers.

use std::num::NonZeroU64;

use fathom_statistics::splitmix;
use fathom_wire::{ChecksumSum, Mark, TAGS};

/// The frames of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameSet {
    /// The distinct frames.
    pub templates: Vec<FrameTemplate>,
    /// Template indices in the order in which each flow sends them, repeated in a cycle; never empty.
    pub order: Vec<u16>,
    /// The number of flows, at least one. Each is sent by one worker.
    pub n_flows: u32,
}

/// A frame of which copies are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameTemplate {
    /// The first frame of flow 0, without the FCS. Its mark is zero.
    pub bytes: Vec<u8>,
    /// The offset of the mark, always even. Frames without a mark are sent unchanged.
    pub mark_at: Option<usize>,
    /// The checksums that cover the mark.
    pub mark_cover: ChecksumCover,
    /// The fields that change apart from the mark; no two overlap.
    pub changes: Vec<FieldChange>,
    /// The checksums that depend on the changes: at most [`FrameTemplate::CHECKSUMS_MAX`].
    pub checksums: Vec<ChecksumField>,
}

/// A big-endian number that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldChange {
    /// The offset of its first byte.
    pub at: usize,
    /// The number of bytes, 1 to 8.
    pub width: usize,
    /// The constant bits around those that change, such as the priority beside a VLAN ID.
    pub fixed: u64,
    /// The left shift of the bits that change.
    pub shift: u8,
    pub values: FieldValues,
    /// Whether the value depends on the frame or the flow.
    pub per: ChangePer,
    /// The checksums that cover it.
    pub cover: ChecksumCover,
}

/// The values of a field that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValues {
    /// `first`, `first + by` and so on: `n` values, then again from the first.
    Step {
        first: u64,
        /// The step between two values.
        by: u64,
        /// The number of values, at most 2³².
        n: NonZeroU64,
    },
    /// `first + (mix(seed, number) >> 32) × n >> 32`: one of `n` values from the first.
    Random {
        /// The lowest value.
        first: u64,
        /// The number of values, at most 2³².
        n: NonZeroU64,
        /// The seed, which differs between fields and between runs.
        seed: u64,
    },
}

/// How long a field keeps a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangePer {
    /// For one frame: it depends on [`FrameIndex::number`].
    Frame,
    /// For all frames of a flow: it depends on [`FrameIndex::flow`].
    Flow,
}

/// An Internet checksum in a frame (RFC 1071) that covers something that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChecksumField {
    /// The offset of its first byte.
    pub at: usize,
    /// The sum of the constant part that it covers: changing fields and the mark count as zero.
    pub base: ChecksumSum,
    pub zero: ZeroChecksum,
}

/// How a checksum of zero is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroChecksum {
    /// Unchanged.
    AsIs,
    /// As all ones, because zero means that there is no checksum (RFC 768).
    AsOnes,
}

/// The checksums of a template that cover something: bit n is for the n-th.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChecksumCover(pub u8);

/// The identity of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameIndex {
    /// The flow, from 0.
    pub flow: u32,
    /// The number among the frames of all flows: sequence × flows + flow.
    pub number: u64,
    /// The mark, written if the frame has room for one.
    pub mark: [u8; Mark::LENGTH],
}

impl FrameSet {
    /// Returns the template of a frame by its flow and its sequence number in the flow.
    ///
    /// Each flow starts the order one place later than the flow before it, so that each gets all templates in proportion.
    ///
    /// # Panics
    /// If the order is empty or contains an invalid index.
    #[inline]
    #[must_use]
    pub fn template(&self, flow: u32, sequence: u64) -> &FrameTemplate {
        let place = sequence.wrapping_add(flow.into()) % self.order.len() as u64;
        let place = usize::try_from(place).expect("a place in a list fits");
        &self.templates[usize::from(self.order[place])]
    }

    /// Returns the index of a frame by its flow and sequence number.
    #[inline]
    #[must_use]
    pub fn frame_index(&self, flow: u32, sequence: u64, mark: [u8; Mark::LENGTH]) -> FrameIndex {
        let number = sequence.wrapping_mul(self.n_flows.into()).wrapping_add(flow.into());
        FrameIndex { flow, number, mark }
    }

    /// Returns the offset of the mark, if all templates have one at the same offset.
    #[must_use]
    pub fn mark_at(&self) -> Option<usize> {
        let first = self.templates.first()?.mark_at;
        first.filter(|_| self.templates.iter().all(|shape| shape.mark_at == first))
    }

    /// The length of the longest frame, without the FCS.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.templates.iter().map(|shape| shape.bytes.len()).max().unwrap_or(0)
    }

    /// The mean length in sending order, without the FCS.
    #[must_use]
    pub fn mean_length(&self) -> f64 {
        let sum: usize = self.order.iter().map(|shape| self.templates[usize::from(*shape)].bytes.len()).sum();
        let approximate = |count: usize| fathom_model::units::approximate(count as u64);
        approximate(sum) / approximate(self.order.len())
    }
}

impl FrameTemplate {
    /// Enough for two IP headers and one transport header, and one to spare.
    pub const CHECKSUMS_MAX: usize = 4;

    /// A frame that is sent unchanged.
    #[must_use]
    pub fn fixed(bytes: Vec<u8>) -> Self {
        Self { bytes, mark_at: None, mark_cover: ChecksumCover::default(), changes: Vec::new(), checksums: Vec::new() }
    }

    /// Whether it carries a VLAN tag.
    #[must_use]
    pub fn is_tagged(&self) -> bool {
        let types = self.bytes.get(12..14).and_then(|bytes| bytes.first_chunk().copied());
        types.is_some_and(|bytes| TAGS.contains(&u16::from_be_bytes(bytes)))
    }

    /// Turns a copy of this template, written for any index before, into the frame of this index.
    ///
    /// # Panics
    /// If the frame is shorter than the template.
    #[inline]
    pub fn write(&self, frame: &mut [u8], turn: &FrameIndex) {
        let mut sums = [0_u64; Self::CHECKSUMS_MAX];
        for (sum, checksum) in sums.iter_mut().zip(&self.checksums) {
            *sum = checksum.base.value().into();
        }
        for edit in &self.changes {
            let value = edit.value(turn);
            let bytes = value.to_be_bytes();
            frame[edit.at..edit.at + edit.width].copy_from_slice(&bytes[bytes.len() - edit.width..]);
            edit.cover.add(edit.checksum_part(value), &mut sums);
        }
        if let Some(at) = self.mark_at {
            frame[at..at + Mark::LENGTH].copy_from_slice(&turn.mark);
            self.mark_cover.add(ChecksumSum::default().add_bytes(&turn.mark).value(), &mut sums);
        }
        for (sum, checksum) in sums.iter().zip(&self.checksums) {
            frame[checksum.at..checksum.at + 2].copy_from_slice(&checksum.zero.checksum_of(*sum).to_be_bytes());
        }
    }
}

impl FieldChange {
    /// Returns the value for this frame, including the bits around it.
    #[inline]
    #[must_use]
    pub fn value(&self, turn: &FrameIndex) -> u64 {
        let number = match self.per {
            ChangePer::Frame => turn.number,
            ChangePer::Flow => turn.flow.into(),
        };
        self.fixed | self.values.at(number) << self.shift
    }

    /// Returns the contribution of a value to a checksum that covers it.
    ///
    /// Sums start at even offsets, so the bytes of a field that ends at an odd offset are swapped in their words.
    #[inline]
    #[must_use]
    pub const fn checksum_part(&self, value: u64) -> u16 {
        let sum = fold_carries(value);
        if (self.at + self.width) & 1 == 1 { sum.rotate_left(8) } else { sum }
    }
}

impl FieldValues {
    /// The value for this number.
    #[inline]
    #[must_use]
    pub const fn at(&self, number: u64) -> u64 {
        match *self {
            Self::Step { first, by, n } => first.wrapping_add(by.wrapping_mul(number % n.get())),
            Self::Random { first, n, seed } => {
                first.wrapping_add((splitmix(seed, number) >> 32).wrapping_mul(n.get()) >> 32)
            }
        }
    }

    /// The lowest and the highest value.
    #[must_use]
    pub const fn bounds(&self) -> (u64, u64) {
        let (first, by, n) = match *self {
            Self::Step { first, by, n } => (first, by, n),
            Self::Random { first, n, .. } => (first, 1, n),
        };
        (first, first.saturating_add(by.saturating_mul(n.get() - 1)))
    }
}

impl ChecksumCover {
    /// Whether the n-th checksum is included.
    #[inline]
    #[must_use]
    pub const fn contains(self, n: usize) -> bool {
        self.0 >> n & 1 == 1
    }

    fn add(self, part: u16, sums: &mut [u64; FrameTemplate::CHECKSUMS_MAX]) {
        for (n, sum) in sums.iter_mut().enumerate() {
            if self.contains(n) {
                *sum += u64::from(part);
            }
        }
    }
}

impl ZeroChecksum {
    /// Returns the checksum to write for a sum that may still have carries.
    #[inline]
    #[must_use]
    pub const fn checksum_of(self, sum: u64) -> u16 {
        match (self, !fold_carries(sum)) {
            (Self::AsOnes, 0) => 0xffff,
            (_, checksum) => checksum,
        }
    }
}

/// Folds the carries into the sum.
#[inline]
const fn fold_carries(sum: u64) -> u16 {
    // The steps leave at most 33, 18 and 17 bits; after the last there is no carry.
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let [.., high, low] = sum.to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(n: u64) -> NonZeroU64 {
        NonZeroU64::new(n).unwrap()
    }

    /// 24 bytes, of which a checksum at 6 covers 4 to 24: three changes and no mark.
    fn shape() -> FrameTemplate {
        let cover = ChecksumCover(1);
        let odd = FieldChange {
            at: 9,
            width: 3,
            fixed: 0xf0_0001,
            shift: 4,
            values: FieldValues::Step { first: 0x1_0000 - 2, by: 1, n: n(5) },
            per: ChangePer::Frame,
            cover,
        };
        let even = FieldChange {
            at: 12,
            width: 6,
            fixed: 0,
            shift: 0,
            values: FieldValues::Random { first: 0xffff_ffff, n: n(1 << 32), seed: 9 },
            per: ChangePer::Flow,
            cover,
        };
        let outside = FieldChange { at: 0, width: 4, cover: ChecksumCover::default(), ..even };
        let mut bytes: Vec<u8> = (0..24).collect();
        bytes[6..8].fill(0);
        bytes[9..18].fill(0);
        let base = ChecksumSum::default().add_bytes(&bytes[4..]);
        let checksums = vec![ChecksumField { at: 6, base, zero: ZeroChecksum::AsOnes }];
        let mut shape = FrameTemplate { changes: vec![odd, even, outside], checksums, ..FrameTemplate::fixed(bytes) };
        let mut first = shape.bytes.clone();
        shape.write(&mut first, &FrameIndex { flow: 0, number: 0, mark: [0; Mark::LENGTH] });
        shape.bytes = first;
        shape
    }

    #[test]
    fn the_mixing_function_is_splitmix64() {
        assert_eq!(splitmix(0, 1), 0xe220_a839_7b1d_cdaf);
        let outputs = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([1, 2, 3].map(|number| splitmix(1_234_567, number)), outputs);
    }

    #[test]
    fn steps_come_again_after_the_last_and_random_values_keep_within_their_range() {
        let step = FieldValues::Step { first: 10, by: 5, n: n(3) };
        assert_eq!([0, 1, 2, 3, 4].map(|number| step.at(number)), [10, 15, 20, 10, 15]);
        assert_eq!(step.bounds(), (10, 20));
        let random = FieldValues::Random { first: 1024, n: n(64_512), seed: 3 };
        let values: Vec<u64> = (0..10_000).map(|number| random.at(number)).collect();
        assert!(values.iter().all(|value| (1024..=65_535).contains(value)));
        let mean = values.iter().sum::<u64>() / 10_000;
        assert!((32_500..34_000).contains(&mean), "{mean} is far from the middle of the range");
        assert_eq!(random.bounds(), (1024, 65_535));
    }

    #[test]
    fn the_checksum_of_a_written_frame_is_that_of_its_bytes() {
        let shape = shape();
        let mut frame = shape.bytes.clone();
        for number in 0..1000 {
            let turn = FrameIndex { flow: u32::try_from(number * 7).unwrap(), number, mark: [0; Mark::LENGTH] };
            shape.write(&mut frame, &turn);
            let sum = ChecksumSum::default().add_bytes(&frame[4..]).checksum();
            assert_eq!(sum, 0, "number {number}: {frame:x?}");
            assert_eq!(frame[11] & 0x0f, 1, "the bits beside the field stay");
        }
    }

    #[test]
    fn a_mark_is_written_and_covered() {
        let bytes: Vec<u8> = vec![0; 24];
        let checksums =
            vec![ChecksumField { at: 2, base: ChecksumSum::default().add_bytes(&[0, 1]), zero: ZeroChecksum::AsOnes }];
        let shape =
            FrameTemplate { mark_at: Some(6), mark_cover: ChecksumCover(1), checksums, ..FrameTemplate::fixed(bytes) };
        let mut frame = shape.bytes.clone();
        shape.write(&mut frame, &FrameIndex { flow: 0, number: 0, mark: *b"eighteen bytes  ok" });
        assert_eq!(&frame[6..], b"eighteen bytes  ok");
        assert_eq!(ChecksumSum::default().add_bytes(&frame).add_word(1).checksum(), 0);
    }

    #[test]
    fn each_flow_sends_all_shapes_in_their_proportions() {
        let shapes = (0..3).map(|length| FrameTemplate::fixed(vec![0; length])).collect();
        let blueprint = FrameSet { templates: shapes, order: vec![0, 1, 0, 2], n_flows: 4 };
        for flow in 0..4 {
            let lengths: usize = (0..4).map(|sequence| blueprint.template(flow, sequence).bytes.len()).sum();
            assert_eq!(lengths, 3);
        }
        let frames: usize = (0..4).map(|flow| blueprint.template(flow, 7).bytes.len()).sum();
        assert_eq!(frames, 3, "the flows are not all at the same place");
        assert_eq!((blueprint.longest(), blueprint.mean_length(), blueprint.mark_at()), (2, 0.75, None));
        assert_eq!(blueprint.frame_index(3, 2, [0; Mark::LENGTH]).number, 11);
    }

    #[test]
    fn carries_are_added_until_none_is_left() {
        for (sum, word) in [(0, 0), (0xffff, 0xffff), (0x1_0000, 1), (u64::MAX, 0xffff), (0xffff_0001_0000, 1)] {
            assert_eq!(fold_carries(sum), word, "{sum:x}");
        }
    }
}

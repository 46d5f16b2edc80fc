//! Frames ready to be sent: their bytes, the places that change from one to the next, and how.
//!
//! Everything that changes follows from two numbers, the flow and the place in it, so that whoever writes the frames (a program in
//! the kernel, a ring, a socket) writes the same ones. It knows nothing of headers.

use std::num::NonZeroU64;

use fathom_statistics::splitmix;
use fathom_wire::{ChecksumSum, Mark, TAGS};

/// What a trial sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameSet {
    /// The different frames.
    pub templates: Vec<FrameTemplate>,
    /// The shapes in the order in which each flow sends them, again and again; never empty.
    pub order: Vec<u16>,
    /// How many flows there are, at least one; each is sent by one worker.
    pub n_flows: u32,
}

/// A frame of which copies are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameTemplate {
    /// The first frame of flow 0, without the four bytes of the checksum on the wire; its mark is zero.
    pub bytes: Vec<u8>,
    /// Where the mark lies, always at an even place; without one frames are sent as they are.
    pub mark_at: Option<usize>,
    /// The checksums that cover the mark.
    pub mark_cover: ChecksumCover,
    /// What changes beside the mark, no two at the same place.
    pub changes: Vec<FieldChange>,
    /// What has to follow from the changes: at most [`FrameTemplate::CHECKSUMS_MAX`].
    pub checksums: Vec<ChecksumField>,
}

/// A number in network order that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldChange {
    /// Its first byte.
    pub at: usize,
    /// How many bytes it has, 1 to 8.
    pub width: usize,
    /// What stands around the bits that change, such as the priority beside a VLAN's number.
    pub fixed: u64,
    /// How far left the bits that change are.
    pub shift: u8,
    /// The values it takes.
    pub values: FieldValues,
    /// What they follow from.
    pub per: ChangePer,
    /// The checksums that cover it.
    pub cover: ChecksumCover,
}

/// The values of a field that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValues {
    /// `first`, `first + by` and so on: `n` values, then again from the first.
    Step {
        /// The first value.
        first: u64,
        /// The distance to the next.
        by: u64,
        /// How many values there are, at most 2³².
        n: NonZeroU64,
    },
    /// `first + (mix(seed, number) >> 32) × n >> 32`: one of `n` values from the first.
    Random {
        /// The lowest value.
        first: u64,
        /// How many values there are, at most 2³².
        n: NonZeroU64,
        /// What tells this field from the others, and this run from the next.
        seed: u64,
    },
}

/// How long a field keeps a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangePer {
    /// For one frame: it follows from [`FrameIndex::number`].
    Frame,
    /// For all frames of a flow: it follows from [`FrameIndex::flow`].
    Flow,
}

/// An Internet checksum within a frame (RFC 1071) that changes with what it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChecksumField {
    /// Its first byte.
    pub at: usize,
    /// The sum of what it covers and nothing changes: with the edits and the mark it covers taken for zero.
    pub base: ChecksumSum,
    /// How a checksum of zero is written.
    pub zero: ZeroChecksum,
}

/// How a checksum of zero is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroChecksum {
    /// As it is.
    AsIs,
    /// As all ones, because zero means that there is none (RFC 768).
    AsOnes,
}

/// Which of a shape's checksums cover something: bit n for the n-th.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChecksumCover(pub u8);

/// Which frame is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameIndex {
    /// The flow, from 0.
    pub flow: u32,
    /// The number among the frames of all flows: sequence × flows + flow.
    pub number: u64,
    /// The mark to write where there is room for one.
    pub mark: [u8; Mark::LENGTH],
}

impl FrameSet {
    /// The shape of a frame, by its flow and its number within it.
    ///
    /// Each flow begins the order one place further on, so that each gets all shapes in their proportions.
    ///
    /// # Panics
    /// Without an order, or with one that names no shape.
    #[inline]
    #[must_use]
    pub fn template(&self, flow: u32, sequence: u64) -> &FrameTemplate {
        let place = sequence.wrapping_add(flow.into()) % self.order.len() as u64;
        let place = usize::try_from(place).expect("a place in a list fits");
        &self.templates[usize::from(self.order[place])]
    }

    /// Which frame a number within a flow is.
    #[inline]
    #[must_use]
    pub fn frame_index(&self, flow: u32, sequence: u64, mark: [u8; Mark::LENGTH]) -> FrameIndex {
        let number = sequence.wrapping_mul(self.n_flows.into()).wrapping_add(flow.into());
        FrameIndex { flow, number, mark }
    }

    /// The place of the mark, if all shapes have one and at the same place.
    #[must_use]
    pub fn mark_at(&self) -> Option<usize> {
        let first = self.templates.first()?.mark_at;
        first.filter(|_| self.templates.iter().all(|shape| shape.mark_at == first))
    }

    /// The length of the longest frame, without the checksum on the wire.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.templates.iter().map(|shape| shape.bytes.len()).max().unwrap_or(0)
    }

    /// The mean length in the order they are sent in, without the checksum on the wire.
    #[must_use]
    pub fn mean_length(&self) -> f64 {
        let sum: usize = self.order.iter().map(|shape| self.templates[usize::from(*shape)].bytes.len()).sum();
        let approximate = |count: usize| fathom_model::units::approximate(count as u64);
        approximate(sum) / approximate(self.order.len())
    }
}

impl FrameTemplate {
    /// As many as two headers of IP with one of a transport have, and one to spare.
    pub const CHECKSUMS_MAX: usize = 4;

    /// A frame that is sent as it is.
    #[must_use]
    pub fn fixed(bytes: Vec<u8>) -> Self {
        Self { bytes, mark_at: None, mark_cover: ChecksumCover::default(), changes: Vec::new(), checksums: Vec::new() }
    }

    /// Whether it bears a tag of a VLAN.
    #[must_use]
    pub fn is_tagged(&self) -> bool {
        let types = self.bytes.get(12..14).and_then(|bytes| bytes.first_chunk().copied());
        types.is_some_and(|bytes| TAGS.contains(&u16::from_be_bytes(bytes)))
    }

    /// Makes a copy of this frame, whatever turn it was written for before, the frame of this turn.
    ///
    /// # Panics
    /// When the frame is shorter than the shape.
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
    /// What stands there at this turn, the bits around it included.
    #[inline]
    #[must_use]
    pub fn value(&self, turn: &FrameIndex) -> u64 {
        let number = match self.per {
            ChangePer::Frame => turn.number,
            ChangePer::Flow => turn.flow.into(),
        };
        self.fixed | self.values.at(number) << self.shift
    }

    /// What such a value adds to the sum of a checksum that covers it.
    ///
    /// Sums begin at even places, so a field that ends at an odd one stands in the upper halves of their words.
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
    /// Whether the n-th checksum is among them.
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
    /// The checksum to write for a sum that may still have carries.
    #[inline]
    #[must_use]
    pub const fn checksum_of(self, sum: u64) -> u16 {
        match (self, !fold_carries(sum)) {
            (Self::AsOnes, 0) => 0xffff,
            (_, checksum) => checksum,
        }
    }
}

/// A sum with its carries added to it.
#[inline]
const fn fold_carries(sum: u64) -> u16 {
    // Each step leaves at most 33, 18 and 17 bits; after the last no carry is left.
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

    /// 24 bytes, of which a checksum at 6 covers 4 to 24: three edits and no mark.
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

//! Frame sizes: a single size, or several sizes in the order of a mix.

use fathom_model::{
    mix::{CYCLE_MAX, EvenRotation, MixError, parse_mix, reduced},
    units::Bytes,
};

use fathom_wire::{FrameSize, SizeError};

/// The sizes of frames, and their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeMix {
    /// The distinct sizes; `None` is the shortest possible frame.
    pub sizes: Vec<Option<FrameSize>>,
    /// Indices into `sizes`, repeated in a cycle.
    pub order: Vec<u16>,
}

/// Why a text is not a valid size mix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeMixError {
    /// It is neither a genome nor sizes with weights.
    #[error(transparent)]
    Mix(#[from] MixError),
    /// A letter is not in RFC 6985.
    #[error("`{0}` is not a size of an IMIX genome")]
    Letter(char),
    /// The genome has more letters than a mix may have parts.
    #[error("a genome has at most {CYCLE_MAX} letters")]
    Length,
    /// No frame has this size.
    #[error(transparent)]
    Size(#[from] SizeError),
}

/// The mix called IMIX.
const IMIX: &str = "64:7,570:4,1518:1";
/// The sizes of genome letters (RFC 6985).
const GENOME: &[(char, u64)] = &[
    ('a', 64),
    ('b', 128),
    ('c', 256),
    ('d', 512),
    ('e', 1024),
    ('f', 1280),
    ('g', 1518),
    ('h', 2112),
    ('i', 9000),
    ('j', 16_000),
];
/// The Ethernet bytes around a packet: a header of 14 bytes and an FCS of 4.
const AROUND: u64 = 18;

impl SizeMix {
    /// All frames have one size.
    #[must_use]
    pub fn of_size(size: Option<FrameSize>) -> Self {
        Self { sizes: vec![size], order: vec![0] }
    }

    /// Parses `imix`, `SIZE:WEIGHT,…` or a genome such as `aaaaaaaddddg`. The letter `z` is the longest frame of the device.
    ///
    /// Weighted sizes are interleaved, so that as few frames of one size as possible follow each other. A genome keeps its order.
    ///
    /// # Errors
    /// Names the part that cannot be parsed.
    pub fn read(text: &str, mtu_bytes: u32) -> Result<Self, SizeMixError> {
        let text = if text == "imix" { IMIX } else { text };
        let is_genome = !text.is_empty() && text.chars().all(char::is_alphabetic);
        if is_genome { Self::genome(text, mtu_bytes) } else { Self::weights(text) }
    }

    fn weights(text: &str) -> Result<Self, SizeMixError> {
        let (least, most) = (FrameSize::MIN.with_checksum().0, FrameSize::MAX.with_checksum().0);
        let parts = parse_mix(text, least..=most)?;
        let mut mix = Self { sizes: Vec::new(), order: Vec::new() };
        let mut weights = Vec::new();
        for part in &parts {
            weights.push((mix.place(part.size)?, part.weight));
        }
        mix.order = interleaved(&weights);
        Ok(mix)
    }

    fn genome(text: &str, mtu_bytes: u32) -> Result<Self, SizeMixError> {
        if text.len() as u64 > CYCLE_MAX {
            return Err(SizeMixError::Length);
        }
        let mut mix = Self { sizes: Vec::new(), order: Vec::new() };
        for letter in text.chars() {
            let named = GENOME.iter().find(|(name, _)| *name == letter).map(|(_, size)| *size);
            let size = named.or_else(|| (letter == 'z').then(|| u64::from(mtu_bytes) + AROUND));
            let place = mix.place(Bytes(size.ok_or(SizeMixError::Letter(letter))?))?;
            mix.order.push(place);
        }
        Ok(mix)
    }

    /// Returns the index of a size in the list, and adds the size if it is missing.
    fn place(&mut self, size: Bytes) -> Result<u16, SizeError> {
        let size = Some(FrameSize::new(size)?);
        let place = self.sizes.iter().position(|other| *other == size).unwrap_or_else(|| {
            self.sizes.push(size);
            self.sizes.len() - 1
        });
        // A mix has at most ten thousand parts.
        Ok(u16::try_from(place).unwrap_or(u16::MAX))
    }
}

/// Repeats each index as often as its weight says, spread as evenly as possible: the next is the one furthest behind its share.
pub(crate) fn interleaved(weights: &[(u16, u64)]) -> Vec<u16> {
    let parts = reduced(&weights.iter().map(|(_, weight)| *weight).collect::<Vec<_>>());
    let mut rotation = EvenRotation::new(parts.iter().map(|part| i64::try_from(*part).unwrap_or(i64::MAX)));
    (0..parts.iter().sum()).map(|_| weights[rotation.next_index()].0).collect()
}

impl SizeMixError {
    /// Returns what to write instead.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Letter(_) => "letters are a=64 b=128 c=256 d=512 e=1024 f=1280 g=1518 h=2112 i=9000 j=16000 z=MTU",
            Self::Mix(_) | Self::Length | Self::Size(_) => {
                "write imix, sizes with weights such as 64:7,570:4,1518:1, or a genome such as aaaaaaaddddg"
            }
        }
        .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> Vec<u64> {
        let mix = SizeMix::read(text, 1500).unwrap();
        mix.order.iter().map(|place| mix.sizes[usize::from(*place)].unwrap().with_checksum().0).collect()
    }

    #[test]
    fn imix_is_interleaved_and_not_sent_in_bursts_of_one_size() {
        let order = sizes("imix");
        assert_eq!(order, [64, 570, 64, 64, 570, 64, 1518, 64, 570, 64, 570, 64]);
        assert_eq!(sizes("128:50,64:50"), [128, 64]);
    }

    #[test]
    fn every_size_comes_as_often_as_its_weight_says() {
        let order = sizes("64:5,570:3,1518:1,64:2");
        let count = |size| order.iter().filter(|other| **other == size).count();
        assert_eq!((order.len(), count(64), count(570), count(1518)), (11, 7, 3, 1));
    }

    #[test]
    fn a_genome_is_kept_letter_by_letter() {
        assert_eq!(sizes("aaghz"), [64, 64, 1518, 2112, 1518]);
        assert_eq!(sizes("bcdefij"), [128, 256, 512, 1024, 1280, 9000, 16_000]);
        assert_eq!(SizeMix::read("aza", 9000).unwrap().sizes[1].unwrap().with_checksum(), Bytes(9018));
    }

    #[test]
    fn what_is_wrong_with_a_mix_is_named() {
        assert_eq!(SizeMix::read("abk", 1500), Err(SizeMixError::Letter('k')));
        assert_eq!(SizeMix::read(&"a".repeat(10_001), 1500), Err(SizeMixError::Length));
        assert!(matches!(SizeMix::read("60:1", 1500), Err(SizeMixError::Mix(MixError::Size { .. }))));
        assert!(matches!(SizeMix::read("z", 65_535), Err(SizeMixError::Size(_))));
        for text in ["", "64", "64:1,", "a1"] {
            assert!(matches!(SizeMix::read(text, 1500), Err(SizeMixError::Mix(MixError::Part(_)))), "{text}");
        }
    }
}

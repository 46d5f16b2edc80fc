//! The lengths of messages: all equal, or several lengths in fixed proportions.

use fathom_model::{
    mix::{MixError, MixPart, parse_mix},
    units::approximate,
};

use super::TrafficError;

/// The mix known as IMIX: payloads that fill frames of 64, 570 and 1518 bytes over IPv4, 7 : 4 : 1.
const IMIX: &str = "18:7,524:4,1472:1";

/// The lengths of messages by their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatagramSizes {
    cycle: Box<[usize]>,
}

impl DatagramSizes {
    /// The same length for every message.
    #[must_use]
    pub fn fixed(size: usize) -> Self {
        Self { cycle: [size].into() }
    }

    /// Reads `imix` or `SIZE:WEIGHT,…`; the seed determines the order within a cycle.
    ///
    /// # Errors
    /// The text is not a mix, or its weights have an invalid sum; the error names the valid form.
    pub fn mix(text: &str, seed: u64) -> Result<Self, TrafficError> {
        let text = if text == "imix" { IMIX } else { text };
        let parts = parse_mix(text, 18..=65_507).map_err(|error| match error {
            MixError::Weights => TrafficError::Weights,
            MixError::Part(_) | MixError::Size { .. } => TrafficError::Mix,
        })?;
        let length = |part: &MixPart| usize::try_from(part.size.0).unwrap_or(usize::MAX);
        let all = parts.iter().flat_map(|part| (0..part.weight).map(|_| length(part)));
        let mut cycle: Box<[usize]> = all.collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut cycle);
        Ok(Self { cycle })
    }

    /// The length of message number `n`.
    #[inline]
    #[must_use]
    pub fn of(&self, n: u64) -> usize {
        let cycle = u64::try_from(self.cycle.len()).unwrap_or(u64::MAX);
        self.cycle[usize::try_from(n % cycle).unwrap_or(0)]
    }

    /// The common length of all messages; `None` for a mix.
    #[must_use]
    pub fn fixed_size(&self) -> Option<usize> {
        (self.longest() == self.cycle.iter().copied().min().unwrap_or(0)).then(|| self.longest())
    }

    /// The greatest length.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.cycle.iter().copied().max().unwrap_or(0)
    }

    /// The mean length in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let sum: usize = self.cycle.iter().sum();
        let n = |count: usize| approximate(u64::try_from(count).unwrap_or(u64::MAX));
        n(sum) / n(self.cycle.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_keeps_its_proportions_in_every_cycle_and_its_order_for_a_seed() {
        let mix = DatagramSizes::mix("64:3, 1KiB:1", 7).unwrap();
        for cycle in 0..5 {
            let n_long = (cycle * 4..cycle * 4 + 4).filter(|n| mix.of(*n) == 1024).count();
            assert_eq!(n_long, 1);
        }
        assert_eq!((mix.fixed_size(), mix.longest(), mix.mean()), (None, 1024, (3.0 * 64.0 + 1024.0) / 4.0));
        assert_eq!(DatagramSizes::mix("64:30,100:30", 1), DatagramSizes::mix("64:30,100:30", 1));
        assert_ne!(DatagramSizes::mix("64:30,100:30", 1), DatagramSizes::mix("64:30,100:30", 2));
    }

    #[test]
    fn the_simple_imix_has_twelve_datagrams_of_three_lengths() {
        let imix = DatagramSizes::mix("imix", 0).unwrap();
        let mut lengths: Vec<usize> = (0..12).map(|n| imix.of(n)).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [18, 18, 18, 18, 18, 18, 18, 524, 524, 524, 524, 1472]);
    }

    #[test]
    fn a_fixed_size_is_a_mix_of_one() {
        let fixed = DatagramSizes::fixed(1400);
        assert_eq!((fixed.of(0), fixed.of(u64::MAX), fixed.fixed_size()), (1400, 1400, Some(1400)));
        assert_eq!(DatagramSizes::mix("64:2,64:3", 1).unwrap().fixed_size(), Some(64));
    }

    #[test]
    fn what_is_wrong_with_a_mix_is_named() {
        for text in ["", "64", "64:x", "17:1", "65508:1", "64:1,", "x:1"] {
            assert_eq!(DatagramSizes::mix(text, 1), Err(TrafficError::Mix), "{text}");
        }
        assert_eq!(DatagramSizes::mix("64:0", 1), Err(TrafficError::Weights));
        assert_eq!(DatagramSizes::mix("64:9999,70:2", 1), Err(TrafficError::Weights));
    }
}

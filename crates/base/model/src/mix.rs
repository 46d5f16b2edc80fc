//! Things in fixed proportions: sizes such as `64:7,570:4,1518:1`, and an order that keeps the proportions at every time.

use std::ops::RangeInclusive;

use crate::units::Bytes;

/// A size and its number of occurrences in a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixPart {
    /// The size.
    pub size: Bytes,
    /// The number of occurrences; at least one.
    pub weight: u64,
}

/// Why a text is not a valid mix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MixError {
    /// A part is not a size with a weight.
    #[error("`{0}` is not a size with a weight, such as 512:7")]
    Part(String),
    /// A size outside the allowed range.
    #[error("{size} B is not a size from {least} to {most} B")]
    Size {
        /// The requested size.
        size: u64,
        /// The smallest allowed size.
        least: u64,
        /// The largest allowed size.
        most: u64,
    },
    /// The weights add up to zero, or to too much.
    #[error("weights add up to 1 to {CYCLE_MAX}")]
    Weights,
}

/// The maximum number of messages in a cycle: a list of this many stays in the L2 cache.
pub const CYCLE_MAX: u64 = 10_000;

/// Parses `SIZE:WEIGHT,…`; parts with weight 0 are dropped.
///
/// # Errors
/// Names the part that cannot be parsed, or the allowed sizes and weights.
pub fn parse_mix(text: &str, sizes: RangeInclusive<u64>) -> Result<Vec<MixPart>, MixError> {
    let part = |part: &str| {
        let wrong = || MixError::Part(part.trim().to_owned());
        let (size, weight) = part.trim().split_once(':').ok_or_else(wrong)?;
        let size: Bytes = size.parse().map_err(|_| wrong())?;
        let weight = weight.parse::<u64>().map_err(|_| wrong())?;
        let (least, most) = (*sizes.start(), *sizes.end());
        let is_there = sizes.contains(&size.0);
        is_there.then_some(MixPart { size, weight }).ok_or(MixError::Size { size: size.0, least, most })
    };
    let parts = text.split(',').map(part).collect::<Result<Vec<_>, _>>()?;
    let sum = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.weight));
    if !(1..=CYCLE_MAX).contains(&sum) {
        return Err(MixError::Weights);
    }
    Ok(parts.into_iter().filter(|part| part.weight > 0).collect())
}

/// Divides weights by their greatest common divisor. Zeros stay, and so do weights of nothing but zeros.
#[must_use]
pub fn reduced(weights: &[u64]) -> Vec<u64> {
    let divisor = weights.iter().copied().fold(0, greatest_common_divisor).max(1);
    weights.iter().map(|weight| weight / divisor).collect()
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Smooth weighted round robin: the next index is the one that is furthest behind its share, and the first of several.
///
/// After as many turns as the weights add up to, each index has occurred as often as its weight says.
#[derive(Debug, Clone)]
pub struct EvenRotation {
    weights: Vec<i64>,
    behind: Vec<i64>,
}

impl EvenRotation {
    /// A rotation at its start. Weights add up to less than 2⁶³.
    #[must_use]
    pub fn new(weights: impl IntoIterator<Item = i64>) -> Self {
        let weights: Vec<i64> = weights.into_iter().collect();
        Self { behind: vec![0; weights.len()], weights }
    }

    /// Returns the next index; 0 without any weight.
    pub fn next_index(&mut self) -> usize {
        let mut total = 0;
        for (behind, weight) in self.behind.iter_mut().zip(&self.weights) {
            *behind += weight;
            total += weight;
        }
        let furthest = self.behind.iter().enumerate().rev().max_by_key(|(_, behind)| **behind);
        let next = furthest.map_or(0, |(idx, _)| idx);
        if let Some(behind) = self.behind.get_mut(next) {
            *behind -= total;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_weights() {
        let parts = parse_mix("64:7, 1KiB:1,70:0", 64..=9018).unwrap();
        let all: Vec<_> = parts.iter().map(|part| (part.size.0, part.weight)).collect();
        assert_eq!(all, [(64, 7), (1024, 1)]);
    }

    #[test]
    fn what_is_wrong_with_a_mix_is_named() {
        for text in ["", "64", "64:x", "64:1,", "x:1", "64:-1"] {
            assert!(matches!(parse_mix(text, 64..=9018), Err(MixError::Part(_))), "{text}");
        }
        assert_eq!(parse_mix("63:1", 64..=9018), Err(MixError::Size { size: 63, least: 64, most: 9018 }));
        for text in ["64:0", "64:9999,70:2", "64:18446744073709551615,70:1"] {
            assert_eq!(parse_mix(text, 64..=9018), Err(MixError::Weights), "{text}");
        }
    }
}

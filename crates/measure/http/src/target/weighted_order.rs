//! Whose turn it is, by weight.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use super::TargetConfigError;

/// A longer pattern would leave the cache of a core; it also bounds the time to make it.
const PERIOD_MAX: u64 = 100_000;

/// A pattern in which each place occurs as often as its weight says, as evenly as it can.
///
/// Every whole pattern is exact, and no place is ever a whole turn away from its share. A turn costs one load; clones share the
/// pattern, which is made once.
#[derive(Debug, Clone)]
pub struct WeightedOrder {
    order: Arc<[u32]>,
    next: usize,
}

impl WeightedOrder {
    /// The pattern of these weights, which are at least 1.
    ///
    /// # Errors
    /// [`TargetConfigError::Weights`], when the pattern would be too long.
    ///
    /// # Panics
    /// When there is no weight, or one is 0.
    pub fn new(weights: &[u64]) -> Result<Self, TargetConfigError> {
        assert!(!weights.is_empty() && !weights.contains(&0), "weights of a rota are positive: {weights:?}");
        let common = weights.iter().copied().fold(0, greatest_common_divisor);
        let period = weights.iter().map(|weight| weight / common).fold(0, u64::saturating_add);
        if period > PERIOD_MAX {
            return Err(TargetConfigError::Weights { period, max: PERIOD_MAX });
        }
        let weights: Vec<u64> = weights.iter().map(|weight| weight / common).collect();
        Ok(Self { order: weighted_pattern(&weights, period).into(), next: 0 })
    }

    /// The same pattern begun at another point, so that several workers together keep to it early.
    #[must_use]
    pub fn for_worker(&self, idx: usize, n_parts: usize) -> Self {
        Self { order: Arc::clone(&self.order), next: self.order.len() * (idx % n_parts.max(1)) / n_parts.max(1) }
    }

    /// Whether it is always the same place's turn.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.order.len() == 1
    }

    /// The place whose turn it is.
    #[inline]
    pub fn next_index(&mut self) -> usize {
        let place = self.order[self.next];
        self.next = if self.next + 1 == self.order.len() { 0 } else { self.next + 1 };
        place as usize
    }
}

/// Puts turns in order as a processor is shared in proportion (Baruah et al., "Proportionate progress", 1996): the *n*-th turn
/// of a place may not come before *n* parts of the pattern, of as many as its weight, and must come before *n* + 1. Of those
/// that may come, the one that must come first does.
fn weighted_pattern(weights: &[u64], period: u64) -> Vec<u32> {
    let mut waiting: BinaryHeap<Reverse<(u64, usize, u64)>> =
        (0..weights.len()).map(|place| Reverse((0, place, 0))).collect();
    let mut due: BinaryHeap<Reverse<(u64, usize, u64)>> = BinaryHeap::new();
    let turns = (0..period).map(|now| {
        while let Some(Reverse((_, place, n))) = waiting.peek().copied().filter(|Reverse((from, ..))| *from <= now) {
            waiting.pop();
            due.push(Reverse((((n + 1) * period).div_ceil(weights[place]), place, n)));
        }
        let Reverse((_, place, n)) = due.pop().expect("the turns of all places fill the pattern");
        if n + 1 < weights[place] {
            waiting.push(Reverse(((n + 1) * period / weights[place], place, n + 1)));
        }
        u32::try_from(place).expect("there are fewer places than turns")
    });
    turns.collect()
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(weights: &[u64], n: usize) -> Vec<usize> {
        let mut rota = WeightedOrder::new(weights).unwrap();
        (0..n).map(|_| rota.next_index()).collect()
    }

    #[test]
    fn every_whole_pattern_is_exact() {
        for weights in [&[1][..], &[1, 1], &[5, 1, 1], &[70, 20, 10], &[3, 7, 11, 13], &[99_999, 1]] {
            let common = weights.iter().copied().fold(0, greatest_common_divisor);
            let period = usize::try_from(weights.iter().sum::<u64>() / common).unwrap();
            let turns = first(weights, 2 * period);
            for half in turns.chunks(period) {
                for (place, weight) in weights.iter().enumerate() {
                    let n = half.iter().filter(|&&turn| turn == place).count() as u64;
                    assert_eq!(n, weight / common, "{weights:?}");
                }
            }
        }
    }

    #[test]
    fn no_place_is_ever_far_from_its_share() {
        let weights = [50, 30, 15, 5];
        let mut n = [0u64; 4];
        for (so_far, place) in (1u64..).zip(first(&weights, 200)) {
            n[place] += 1;
            for (n, weight) in n.iter().zip(weights) {
                // In hundredths of a turn.
                assert!((n * 100).abs_diff(so_far * weight) < 100, "{so_far}: {n} of weight {weight}");
            }
        }
    }

    #[test]
    fn heavy_places_do_not_come_in_a_row() {
        assert_eq!(first(&[2, 2], 4), [0, 1, 0, 1]);
        // Light places do not come in a row either, though each may come anywhere.
        let light: Vec<u64> = [100].into_iter().chain([1; 50]).collect();
        let turns = first(&light, 150);
        assert!(turns.windows(3).all(|three| three.iter().filter(|&&place| place > 0).count() == 1), "{turns:?}");
    }

    #[test]
    fn a_pattern_that_is_too_long_is_refused() {
        assert!(matches!(WeightedOrder::new(&[100_000, 1]), Err(TargetConfigError::Weights { period: 100_001, .. })));
        assert!(WeightedOrder::new(&[1_000_000, 1_000_000]).unwrap().order.len() == 2);
    }

    #[test]
    fn parts_begin_at_different_points_of_one_pattern() {
        let rota = WeightedOrder::new(&[1, 1, 1, 1]).unwrap();
        let starts: Vec<_> = (0..4).map(|idx| rota.for_worker(idx, 4).next_index()).collect();
        assert_eq!(starts, [0, 1, 2, 3]);
    }
}

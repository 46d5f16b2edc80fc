//! Weighted rotation.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use fathom_model::mix::reduced;

use super::TargetConfigError;

/// A longer pattern would not fit in the cache of a core; this also limits the time to build it.
const PERIOD_MAX: u64 = 100_000;

/// A pattern in which each index occurs as often as its weight says, as evenly as possible.
///
/// Every whole pattern is exact, and no index is ever a whole turn away from its share. A turn costs one load. Clones share the
/// pattern, which is built once.
#[derive(Debug, Clone)]
pub struct WeightedOrder {
    order: Arc<[u32]>,
    next: usize,
}

impl WeightedOrder {
    /// Builds the pattern of these weights, which must be at least 1.
    ///
    /// # Errors
    /// [`TargetConfigError::Weights`], if the pattern would be too long.
    ///
    /// # Panics
    /// If there is no weight, or one is 0.
    pub fn new(weights: &[u64]) -> Result<Self, TargetConfigError> {
        assert!(!weights.is_empty() && !weights.contains(&0), "weights are positive: {weights:?}");
        let weights = reduced(weights);
        let period = weights.iter().copied().fold(0, u64::saturating_add);
        if period > PERIOD_MAX {
            return Err(TargetConfigError::Weights { period, max: PERIOD_MAX });
        }
        Ok(Self { order: weighted_pattern(&weights, period).into(), next: 0 })
    }

    /// The same pattern started at another point, so that the workers together match the weights early.
    #[must_use]
    pub fn for_worker(&self, idx: usize, n_parts: usize) -> Self {
        Self { order: Arc::clone(&self.order), next: self.order.len() * (idx % n_parts.max(1)) / n_parts.max(1) }
    }

    /// Whether the pattern has a single entry.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.order.len() == 1
    }

    #[inline]
    pub fn next_index(&mut self) -> usize {
        let place = self.order[self.next];
        self.next = if self.next + 1 == self.order.len() { 0 } else { self.next + 1 };
        place as usize
    }
}

/// Orders the turns as a proportionate-progress schedule (Baruah et al., "Proportionate progress", 1996). The pattern of length
/// *p* is divided into as many equal parts as the weight of an index: its turn *n*, from 0, may not come before *n* parts have
/// passed and must come before *n* + 1 parts have. Among the eligible turns the one with the earliest deadline is next.
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
            let period = usize::try_from(reduced(weights).iter().sum::<u64>()).unwrap();
            let turns = first(weights, 2 * period);
            for half in turns.chunks(period) {
                for (place, weight) in reduced(weights).into_iter().enumerate() {
                    let n = half.iter().filter(|&&turn| turn == place).count() as u64;
                    assert_eq!(n, weight, "{weights:?}");
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
        // Light indices do not cluster either, though each may come anywhere.
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

//! The mean of differences between two things that are measured in turn, in both orders.

use fathom_model::{Confidence, units::approximate};

use crate::moments::{mean, mean_interval, student_t};

/// Differences of pairs, apart by the order in which the two were measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PairedDifferences {
    /// Those of pairs that began with the reference.
    pub reference_first: Vec<f64>,
    /// Those of pairs that ended with it.
    pub reference_last: Vec<f64>,
}

impl PairedDifferences {
    /// Returns the number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reference_first.len() + self.reference_last.len()
    }

    /// Returns true if there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the mean difference; `None` without a pair.
    ///
    /// Each order has the same weight. What the second one of a pair gains or loses by its place, such as by a drift, has the opposite sign
    /// in the other order and cancels out (Hills and Armitage, "The two-period cross-over clinical trial", 1979).
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        match (mean(&self.reference_first), mean(&self.reference_last)) {
            (Some(first), Some(last)) => Some(f64::midpoint(first, last)),
            (one, other) => one.or(other),
        }
    }

    /// Returns Student's t interval around the mean, with the variance within each order.
    ///
    /// Returns `None` for fewer than three pairs. If all pairs have the same order, it is the interval of their mean.
    #[must_use]
    pub fn interval(&self, level: f64) -> Option<Confidence> {
        let orders = [&self.reference_first, &self.reference_last];
        if self.len() < 3 {
            return None;
        }
        if orders.iter().any(|order| order.is_empty()) {
            return orders.iter().find_map(|order| mean_interval(order, level));
        }
        let degrees = self.len() - orders.len();
        let squares: f64 = orders.iter().map(|order| squares(order)).sum();
        let variance = squares / n_of(degrees);
        let of_mean: f64 = orders.iter().map(|order| variance / n_of(order.len())).sum::<f64>() / 4.0;
        let (mean, half) = (self.mean()?, student_t(level, degrees)? * of_mean.sqrt());
        Some(Confidence { low: mean - half, high: mean + half, level, n_trials: self.len() })
    }
}

/// The sum of the squared distances from the mean.
fn squares(values: &[f64]) -> f64 {
    let centre = mean(values).unwrap_or_default();
    values.iter().map(|value| (value - centre).powi(2)).sum()
}

fn n_of(n: usize) -> f64 {
    approximate(u64::try_from(n).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LEVEL, noise::Noise};

    fn of(first: &[f64], last: &[f64]) -> PairedDifferences {
        PairedDifferences { reference_first: first.to_vec(), reference_last: last.to_vec() }
    }

    #[test]
    fn a_drift_cancels_out_and_is_no_variance() {
        // A difference of 5, and a drift of 1 from one trial to the next.
        let drifted = of(&[6.0, 6.0, 6.0], &[4.0, 4.0]);
        assert_eq!(drifted.mean(), Some(5.0));
        let interval = drifted.interval(LEVEL).unwrap();
        assert_eq!((interval.low, interval.high, interval.n_trials), (5.0, 5.0, 5));
    }

    #[test]
    fn the_interval_is_that_of_the_textbook() {
        // Within the orders: squares of 2 and 2 with 2 degrees of freedom, so a variance of 2, and 2/4 · (1/2 + 1/2) of the mean.
        let pairs = of(&[1.0, 3.0], &[5.0, 7.0]);
        let interval = pairs.interval(LEVEL).unwrap();
        let half = student_t(LEVEL, 2).unwrap() * 0.5_f64.sqrt();
        assert!((interval.high - 4.0 - half).abs() < 1e-9, "{interval:?}");
    }

    #[test]
    fn pairs_of_one_order_are_averaged_and_two_pairs_have_no_interval() {
        assert_eq!(of(&[1.0, 2.0, 3.0], &[]).interval(LEVEL), mean_interval(&[1.0, 2.0, 3.0], LEVEL));
        assert_eq!(of(&[1.0], &[2.0]).interval(LEVEL), None);
        assert_eq!((of(&[1.0], &[2.0]).mean(), of(&[], &[]).mean()), (Some(1.5), None));
    }

    #[test]
    fn nineteen_of_twenty_intervals_contain_the_true_difference_in_spite_of_a_drift() {
        let covered = (0..1000_u64).filter(|seed| {
            let mut noise = Noise::seeded(seed + 1);
            let mut pairs = PairedDifferences::default();
            for pair in 0..6 {
                let drift = if pair % 2 == 0 { 3.0 } else { -3.0 };
                let into = if pair % 2 == 0 { &mut pairs.reference_first } else { &mut pairs.reference_last };
                into.push(10.0 + drift + noise.normal());
            }
            let interval = pairs.interval(LEVEL).unwrap();
            (interval.low..=interval.high).contains(&10.0)
        });
        let n_covered = covered.count();
        assert!((930..=970).contains(&n_covered), "{n_covered} of 1000");
    }
}

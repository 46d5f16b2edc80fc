//! Whether a series went on changing while it was measured; it does not know what it is a series of.

use crate::moments::{mean, n_of, stdev, student_t};

/// Neighbouring intervals depend on each other, so what is compared are the means of this many batches per half.
const BATCHES_PER_HALF: usize = 4;

/// By which share of itself the second half of a series differs from the first, if that exceeds its own noise.
///
/// Welch's comparison of batch means at the level 0.99 (batch means: Law, Simulation Modeling and Analysis, section 9.5.3).
/// Nothing when the halves agree, when there are fewer than two intervals per batch, or when the first half is zero.
#[must_use]
pub fn drift(rates: &[f64]) -> Option<f64> {
    let batch = rates.len() / (2 * BATCHES_PER_HALF);
    if batch < 2 {
        return None;
    }
    // What does not fill a batch is left out at the beginning, which is nearest to the warm-up.
    let rest = rates.len() - batch * 2 * BATCHES_PER_HALF;
    let batches: Vec<f64> = rates[rest..].chunks_exact(batch).filter_map(mean).collect();
    let (first, second) = batches.split_at(BATCHES_PER_HALF);
    let (before, after) = (mean(first)?, mean(second)?);
    let error = ((stdev(first)?.powi(2) + stdev(second)?.powi(2)) / n_of(first)).sqrt();
    let change = after - before;
    let significant = change.abs() > student_t(0.99, 2 * (BATCHES_PER_HALF - 1))? * error;
    (before > 0.0 && significant).then(|| change / before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use fathom_model::units::approximate;

    #[test]
    fn a_stationary_series_rarely_seems_to_drift() {
        let n_false = (1..=500).filter(|seed| drift(&Noise::seeded(*seed).around(0.15, 40)).is_some()).count();
        assert!(n_false <= 15, "{n_false} of 500");
    }

    #[test]
    fn a_rate_that_falls_by_a_third_is_noticed_with_its_size() {
        let mut noise = Noise::seeded(7);
        let falling: Vec<f64> =
            (0..40).map(|i| (1000.0 - 10.0 * approximate(i)) * (1.0 + 0.02 * noise.normal())).collect();
        let change = drift(&falling).unwrap();
        assert!((-0.3..-0.15).contains(&change), "{change}");
    }

    #[test]
    fn a_constant_and_a_short_series_do_not_drift() {
        assert_eq!(drift(&[5.0; 40]), None);
        assert_eq!(drift(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), None);
        assert_eq!(drift(&[0.0; 40]), None);
    }
}

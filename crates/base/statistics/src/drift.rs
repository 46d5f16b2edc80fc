//! Detects whether a series kept changing while it was measured; independent of the meaning of the series.

use crate::moments::{mean, n_of, stdev, student_t};

/// Adjacent intervals are correlated, so the comparison uses the means of this many batches per half.
const BATCHES_PER_HALF: usize = 4;

/// Returns the relative change from the first half of a series to the second, if it exceeds the noise of the series.
///
/// Uses Welch's comparison of batch means at the level 0.99 (batch means: Law, Simulation Modeling and Analysis, section 9.5.3). Returns
/// `None` if the halves agree, if there are fewer than two intervals per batch, or if the first half is zero.
#[must_use]
pub fn drift(rates: &[f64]) -> Option<f64> {
    let batch = rates.len() / (2 * BATCHES_PER_HALF);
    if batch < 2 {
        return None;
    }
    // Values that do not fill a batch are dropped at the beginning, which is closest to the warm-up.
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

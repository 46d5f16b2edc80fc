//! Quantiles of histograms with their uncertainty; independent of the recorded values.

use fathom_model::{
    Confidence, Histogram,
    units::{approximate, rounded},
};
use statrs::distribution::{Binomial, DiscreteCDF};

use crate::moments::{LEVEL, ratio_interval};

/// With fewer samples than this beyond a quantile, its value is uncertain.
const BEYOND_MIN: f64 = 10.0;

#[derive(Debug, Clone, PartialEq)]
pub struct Quantile {
    /// The quantile of all samples together.
    pub value: f64,
    /// The interval around it; absent with fewer than two trials and for the minimum and the maximum.
    pub confidence: Option<Confidence>,
    /// The number of samples.
    pub n_samples: u64,
    /// The number of samples above the value.
    pub n_above: u64,
}

/// The number of samples that a quantile needs: 10 / (1 − q), or 10 / q below the median.
///
/// The extremes are exact, so one sample is enough for q = 0 and q = 1.
#[must_use]
pub fn samples_needed(q: f64) -> u64 {
    let rarer = q.min(1.0 - q);
    if rarer > 0.0 { rounded(BEYOND_MIN / rarer) } else { 1 }
}

/// The distribution-free interval of a quantile, between two order statistics (David and Nagaraja, section 7.1).
///
/// It holds for independent samples. Samples of one trial are correlated, so it is a lower bound on the uncertainty. Returns `None` if
/// there are too few samples for one of its ends.
#[must_use]
pub fn quantile_interval(histogram: &Histogram, q: f64) -> Option<Confidence> {
    let (low, high) = quantile_ranks(histogram.count(), q)?;
    let (low, high) = (histogram.value_at_rank(low)?, histogram.value_at_rank(high)?);
    Some(Confidence { low: approximate(low), high: approximate(high), level: LEVEL, n_trials: 1 })
}

/// The ranks of the two of `n` samples between which a quantile lies, from 1; those outside of 1 to `n` do not exist.
///
/// Returns `None` without samples and for the minimum and the maximum.
#[must_use]
pub fn quantile_ranks(n: u64, q: f64) -> Option<(u64, u64)> {
    if q <= 0.0 || q >= 1.0 || n == 0 {
        return None;
    }
    let below = Binomial::new(q, n).ok()?;
    let tail = (1.0 - LEVEL) / 2.0;
    Some((below.inverse_cdf(tail), below.inverse_cdf(1.0 - tail) + 1))
}

/// The quantile of merged counts, with an interval that covers the variation between trials and within them.
///
/// `trials` holds the quantile of each trial. Returns `None` if nothing was recorded.
#[must_use]
pub fn quantile_summary(merged: &Histogram, trials: &[f64], q: f64) -> Option<Quantile> {
    let exact = merged.quantile(q)?;
    let value = approximate(exact);
    let between = (q > 0.0 && q < 1.0).then(|| ratio_interval(trials, value)).flatten();
    let confidence = between.map(|between| match quantile_interval(merged, q) {
        Some(within) => Confidence { low: between.low.min(within.low), high: between.high.max(within.high), ..between },
        None => between,
    });
    Some(Quantile { value, confidence, n_samples: merged.count(), n_above: merged.count_above(exact) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;

    fn histogram_of(values: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::new();
        for value in values {
            histogram.record(value);
        }
        histogram
    }

    #[test]
    fn the_median_of_a_hundred_lies_between_the_ranks_that_textbooks_give() {
        let interval = quantile_interval(&histogram_of(1..=100), 0.5).unwrap();
        assert_eq!((interval.low, interval.high), (40.0, 61.0));
    }

    #[test]
    fn a_quantile_beyond_the_samples_has_no_interval() {
        assert_eq!(quantile_interval(&histogram_of(1..=100), 0.999), None);
        assert_eq!(quantile_interval(&Histogram::new(), 0.5), None);
        assert_eq!(quantile_interval(&histogram_of(1..=100), 1.0), None);
    }

    #[test]
    fn ten_million_samples_have_an_interval_too() {
        let mut histogram = Histogram::new();
        for value in 1..=1000 {
            histogram.record_n(value * 1000, 10_000);
        }
        let interval = quantile_interval(&histogram, 0.99).unwrap();
        assert!((985_000.0..=995_000.0).contains(&interval.low) && interval.high < 996_000.0, "{interval:?}");
    }

    #[test]
    fn the_interval_covers_the_true_median_at_its_level() {
        let covered = (0..500).filter(|seed| {
            let values = Noise::seeded(seed + 1).around(0.1, 400);
            let interval = quantile_interval(&histogram_of(values.into_iter().map(rounded)), 0.5).unwrap();
            interval.low <= 1000.0 && interval.high >= 1000.0
        });
        let n_covered = covered.count();
        assert!(n_covered >= 465, "{n_covered} of 500");
    }

    #[test]
    fn the_interval_of_merged_counts_is_as_wide_as_the_trials_differ() {
        let merged = histogram_of(10_000..20_000);
        let summary = quantile_summary(&merged, &[14_000.0, 15_000.0, 16_000.0], 0.5).unwrap();
        let interval = summary.confidence.unwrap();
        assert!(interval.low < 13_000.0 && interval.high > 17_000.0, "{interval:?}");
        assert!(interval.low > 10_000.0 && interval.high < 20_000.0, "{interval:?}");
        assert!(interval.low <= summary.value && summary.value <= interval.high);
        assert_eq!(interval.n_trials, 3);
        let alike = quantile_summary(&merged, &[15_000.0, 15_000.0], 0.5).unwrap().confidence.unwrap();
        assert!(alike.high > alike.low, "equal trials still have the samples' own uncertainty");
    }

    #[test]
    fn two_trials_that_differ_a_thousandfold_have_an_interval_that_can_be_written() {
        let merged = histogram_of((0..100).map(|n| if n < 50 { 84_000 } else { 84_000_000 }));
        let summary = quantile_summary(&merged, &[84_000.0, 84_000_000.0], 0.99).unwrap();
        let interval = summary.confidence.unwrap();
        assert!(interval.low >= 0.0 && interval.high.is_finite(), "{interval:?}");
        assert!(interval.high > 10.0 * summary.value, "too few trials to know the order of magnitude: {interval:?}");
    }

    #[test]
    fn one_trial_has_a_value_but_no_interval() {
        let summary = quantile_summary(&histogram_of(1..=1000), &[990.0], 0.99).unwrap();
        assert_eq!((summary.confidence, summary.n_samples), (None, 1000));
        assert!(summary.n_above.abs_diff(10) <= 3, "{}", summary.n_above);
    }

    #[test]
    fn a_p999_needs_ten_thousand_samples() {
        assert_eq!([0.5, 0.9, 0.99, 0.999, 1.0].map(samples_needed), [20, 100, 1_000, 10_000, 1]);
    }
}

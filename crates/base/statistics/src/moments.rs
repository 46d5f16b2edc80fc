//! Means and the intervals around them; independent of the meaning of the values.

use fathom_model::{Confidence, units::approximate};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// The probability with which the intervals of a result contain the true value.
pub const LEVEL: f64 = 0.95;

/// The number of values as a divisor.
pub(crate) fn n_of<T>(values: &[T]) -> f64 {
    approximate(u64::try_from(values.len()).unwrap_or(u64::MAX))
}

/// The arithmetic mean; `None` if there are no values.
#[must_use]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / n_of(values))
}

/// The sample standard deviation (n − 1); `None` for fewer than two values.
#[must_use]
pub fn stdev(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() >= 2).then(|| (squares / (n_of(values) - 1.0)).sqrt())
}

/// The two-sided quantile of Student's t distribution: 4.30 at level 0.95 with 2 degrees of freedom.
///
/// Returns `None` without a degree of freedom, or for a level outside 0 to 1.
#[must_use]
pub fn student_t(level: f64, degrees: usize) -> Option<f64> {
    let degrees = approximate(u64::try_from(degrees).ok()?);
    if degrees < 1.0 || level <= 0.0 || level >= 1.0 {
        return None;
    }
    let distribution = StudentsT::new(0.0, 1.0, degrees).ok()?;
    Some(distribution.inverse_cdf(f64::midpoint(1.0, level)))
}

/// Student's t interval around the mean of independent trials.
///
/// Returns `None` for fewer than two trials: one trial says nothing about the variation between trials.
#[must_use]
pub fn mean_interval(trials: &[f64], level: f64) -> Option<Confidence> {
    let mean = mean(trials)?;
    let half = student_t(level, trials.len().checked_sub(1)?)? * stdev(trials)? / n_of(trials).sqrt();
    Some(Confidence { low: mean - half, high: mean + half, level, n_trials: trials.len() })
}

/// An interval as wide as the trials' t interval, around a value computed from all of them together.
pub(crate) fn centred_interval(trials: &[f64], centre: f64) -> Option<Confidence> {
    let interval = mean_interval(trials, LEVEL)?;
    let half = (interval.high - interval.low) / 2.0;
    Some(Confidence { low: centre - half, high: centre + half, ..interval })
}

/// Like `centred_interval`, for values that vary by factors, as latencies do: Student's t on their logarithms.
///
/// Neither end is below zero. Zero has no finite logarithm, so if a value is zero, the plain interval is used.
pub(crate) fn ratio_interval(trials: &[f64], centre: f64) -> Option<Confidence> {
    if centre <= 0.0 || trials.iter().any(|value| *value <= 0.0) {
        let plain = centred_interval(trials, centre)?;
        return Some(Confidence { low: plain.low.max(0.0), ..plain });
    }
    let logs: Vec<f64> = trials.iter().map(|value| value.ln()).collect();
    let interval = centred_interval(&logs, centre.ln())?;
    Some(Confidence { low: interval.low.exp(), high: interval.high.exp(), ..interval })
}

/// The interval of a pooled share: the trials' t interval, limited to 0 to 1.
///
/// If no event was seen among `n_samples`, the upper end is at least 3 / n (the rule of three), because an unseen event may still have a
/// share above zero. The same applies if every sample was an event.
#[must_use]
pub fn share_interval(trials: &[f64], share: f64, n_samples: u64) -> Option<Confidence> {
    let around = centred_interval(trials, share)?;
    let unseen = if n_samples > 0 { (3.0 / approximate(n_samples)).min(1.0) } else { 1.0 };
    let low = if share >= 1.0 { 1.0 - unseen } else { 0.0_f64.max(around.low) };
    let high = if share <= 0.0 { unseen } else { 1.0_f64.min(around.high) };
    Some(Confidence { low: low.min(share), high: high.max(share), ..around })
}

/// The interval of a proportion of independent units, by Wilson's score (1927); also valid for a part of zero or of all units.
///
/// Returns `None` if there is no unit, or for a level outside 0 to 1.
#[must_use]
pub fn proportion_interval((part, whole): (u64, u64), n_trials: usize, level: f64) -> Option<Confidence> {
    if whole == 0 || part > whole || !(0.0..1.0).contains(&level) {
        return None;
    }
    let z = Normal::standard().inverse_cdf(f64::midpoint(1.0, level));
    let (n, p) = (approximate(whole), approximate(part) / approximate(whole));
    let spread = z * z / n;
    let centre = (p + spread / 2.0) / (1.0 + spread);
    let half = z / (1.0 + spread) * (p * (1.0 - p) / n + spread / (4.0 * n)).sqrt();
    // Rounding must not move the interval away from 0 or 1 here.
    let low = if part == 0 { 0.0 } else { (centre - half).max(0.0) };
    let high = if part == whole { 1.0 } else { (centre + half).min(1.0) };
    Some(Confidence { low, high, level, n_trials })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;

    #[test]
    fn the_t_quantiles_are_those_of_the_printed_tables() {
        for (level, degrees, t) in [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 4, 2.776), (0.99, 9, 3.250)] {
            let ours = student_t(level, degrees).unwrap();
            assert!((ours - t).abs() < 1e-3, "{ours} is not {t}");
        }
        assert_eq!((student_t(0.95, 0), student_t(1.0, 3)), (None, None));
    }

    #[test]
    fn an_interval_of_three_trials_is_computed_as_by_hand() {
        let interval = mean_interval(&[9.0, 10.0, 11.0], 0.95).unwrap();
        assert!((interval.high - (10.0 + 4.3027 / 3.0_f64.sqrt())).abs() < 1e-3, "{interval:?}");
        assert_eq!(interval.n_trials, 3);
    }

    #[test]
    fn one_trial_has_no_interval_and_none_has_no_mean() {
        assert_eq!(mean_interval(&[9.0], 0.95), None);
        assert_eq!((mean(&[]), stdev(&[1.0])), (None, None));
    }

    #[test]
    fn the_interval_of_a_proportion_is_wilson_s() {
        // Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
        let cases =
            [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)];
        for (part, whole, low, high) in cases {
            let interval = proportion_interval((part, whole), 1, LEVEL).unwrap();
            assert!(
                (interval.low - low).abs() < 6e-5 && (interval.high - high).abs() < 6e-5,
                "{part}/{whole} {interval:?}"
            );
        }
        assert_eq!(proportion_interval((10, 10), 1, LEVEL).map(|interval| interval.high), Some(1.0));
        assert_eq!(proportion_interval((0, 0), 1, LEVEL), None);
    }

    #[test]
    fn nineteen_of_twenty_intervals_contain_the_true_mean() {
        let covered = (0..1000).filter(|seed| {
            let trials = Noise::seeded(seed + 1).around(0.05, 3);
            let interval = mean_interval(&trials, 0.95).unwrap();
            (interval.low..=interval.high).contains(&1000.0)
        });
        let n_covered = covered.count();
        assert!((930..=970).contains(&n_covered), "{n_covered} of 1000");
    }

    #[test]
    fn latencies_that_differ_by_factors_have_an_interval_above_zero() {
        let interval = ratio_interval(&[100.0, 200.0, 400.0], 210.0).unwrap();
        assert!(interval.low > 0.0 && interval.low < 100.0 && interval.high > 400.0, "{interval:?}");
        assert!((interval.low * interval.high - 210.0 * 210.0).abs() < 1e-6, "as far below as above, by factor");
        assert!(ratio_interval(&[0.0, 2.0], 1.0).unwrap().low >= 0.0);
    }

    #[test]
    fn a_loss_of_which_nothing_was_seen_may_still_be_three_in_n() {
        let none = share_interval(&[0.0, 0.0, 0.0], 0.0, 1000).unwrap();
        assert_eq!((none.low, none.high), (0.0, 0.003));
        let some = share_interval(&[0.001, 0.002, 0.003], 0.002, 1000).unwrap();
        assert!(some.low >= 0.0 && some.high < 0.01, "{some:?}");
    }
}

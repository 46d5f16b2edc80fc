//! Whether counts follow expected shares.

use fathom_model::units::approximate;
use statrs::distribution::{ChiSquared, ContinuousCDF as _};

use crate::moments::n_of;

/// How far counts are from their expected shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChiSquare {
    /// Pearson's statistic: the sum of the squared deviations, each divided by its expected count.
    pub statistic: f64,
    /// The degrees of freedom: the number of counts minus one.
    pub degrees: u64,
    /// The probability of a statistic at least as large, if each event falls by the expected shares and independently.
    pub p: f64,
}

/// Compares counts with weights of any scale (Pearson's test of goodness of fit).
///
/// Returns `None` for fewer than two counts, for a weight that is not positive and finite, or if nothing was counted.
#[must_use]
pub fn chi_square(counts: &[u64], weights: &[f64]) -> Option<ChiSquare> {
    let all: f64 = weights.iter().sum();
    let n: f64 = counts.iter().copied().map(approximate).sum();
    let is_weight = |weight: &f64| weight.is_finite() && *weight > 0.0;
    if counts.len() < 2 || counts.len() != weights.len() || !weights.iter().all(is_weight) || n <= 0.0 {
        return None;
    }
    let deviation = |(count, weight): (&u64, &f64)| {
        let expected = n * weight / all;
        (approximate(*count) - expected).powi(2) / expected
    };
    let statistic: f64 = counts.iter().zip(weights).map(deviation).sum();
    let degrees = u64::try_from(counts.len()).ok()? - 1;
    let p = ChiSquared::new(approximate(degrees)).ok()?.sf(statistic);
    Some(ChiSquare { statistic, degrees, p })
}

/// Returns the coefficient of variation: the standard deviation of the values themselves divided by their mean.
///
/// Returns `None` for fewer than two values, or if their mean is 0.
#[must_use]
pub fn variation(values: &[f64]) -> Option<f64> {
    let mean = crate::mean(values).filter(|mean| *mean != 0.0 && values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / n_of(values)).sqrt() / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_textbooks_has_its_p() {
        // 5, 8, 9, 8, 10, 20 of a die: 13.4 on 5 degrees.
        let die = chi_square(&[5, 8, 9, 8, 10, 20], &[1.0; 6]).unwrap();
        assert!((die.statistic - 13.4).abs() < 1e-9 && die.degrees == 5, "{die:?}");
        assert!((die.p - 0.0199).abs() < 5e-4, "{die:?}");
    }

    #[test]
    fn shares_are_those_of_the_weights() {
        let fits = chi_square(&[200, 100], &[2.0, 1.0]).unwrap();
        assert!(fits.statistic.abs() < 1e-12 && (fits.p - 1.0).abs() < 1e-9, "{fits:?}");
        let equal = chi_square(&[200, 100], &[1.0, 1.0]).unwrap();
        assert!(equal.p < 1e-8, "{equal:?}");
    }

    #[test]
    fn what_cannot_be_compared_has_no_statistic() {
        assert_eq!(chi_square(&[1], &[1.0]), None);
        assert_eq!(chi_square(&[0, 0], &[1.0, 1.0]), None);
        assert_eq!(chi_square(&[1, 2], &[1.0, 0.0]), None);
        assert_eq!(chi_square(&[1, 2], &[1.0]), None);
        assert_eq!((variation(&[1.0]), variation(&[0.0, 0.0])), (None, None));
    }

    #[test]
    fn the_variation_is_the_deviation_over_the_mean() {
        assert!((variation(&[9.0, 11.0]).unwrap() - 0.1).abs() < 1e-12);
    }
}

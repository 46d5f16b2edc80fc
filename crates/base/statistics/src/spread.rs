//! How evenly several parties share a whole.

use fathom_model::Spread;

use crate::{mean, moments::n_of};

/// Returns the spread of shares that are finite and not negative; `None` for fewer than two.
///
/// The index is that of Jain, Chiu and Hawe (DEC-TR-301, 1984): the square of the sum over n times the sum of the squares. Shares that are
/// all 0 are equal.
#[must_use]
pub fn spread(shares: &[f64]) -> Option<Spread> {
    let mut sorted = shares.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    if sorted.len() < 2 || !min.is_finite() || !max.is_finite() || min < 0.0 {
        return None;
    }
    let squares: f64 = sorted.iter().map(|share| share * share).sum();
    let sum: f64 = sorted.iter().sum();
    let jain = if squares > 0.0 { sum * sum / (n_of(&sorted) * squares) } else { 1.0 };
    let n = u64::try_from(sorted.len()).unwrap_or(u64::MAX);
    Some(Spread { n, min, median: median(shares)?, max, jain })
}

/// Returns the middle value, or the mean of the two in the middle; `None` if there are no values.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted.get(middle).copied() } else { mean(sorted.get(middle.checked_sub(1)?..=middle)?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_have_index_one_and_one_that_has_all_has_one_over_n() {
        let even = spread(&[5.0; 8]).unwrap();
        assert!((even.jain - 1.0).abs() < 1e-12 && (even.median - 5.0).abs() < 1e-12, "{even:?}");
        let mut one = [0.0; 8];
        one[3] = 100.0;
        let greedy = spread(&one).unwrap();
        assert!((greedy.jain - 0.125).abs() < 1e-12, "{greedy:?}");
        // The example of the report: 1 and 3 of 4.
        assert!((spread(&[1.0, 3.0]).unwrap().jain - 0.8).abs() < 1e-12);
    }

    #[test]
    fn the_middle_of_an_even_number_lies_between_two() {
        assert_eq!(
            (median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0]), median(&[])),
            (Some(2.0), Some(2.5), None)
        );
        let spread = spread(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((spread.n, spread.min, spread.max), (4, 1.0, 4.0));
    }

    #[test]
    fn what_cannot_be_shared_has_no_spread() {
        assert_eq!(
            (spread(&[]), spread(&[1.0]), spread(&[1.0, f64::NAN]), spread(&[-1.0, 1.0])),
            (None, None, None, None)
        );
        assert_eq!(spread(&[0.0, 0.0]).map(|spread| spread.jain), Some(1.0));
    }
}

//! Fractions of a whole, written as `95%`.

use std::str::FromStr;

use fathom_model::units::rounded;

use super::InvalidText;

/// One hundred percent.
pub(super) const WHOLE: u32 = 1_000_000;
/// Allows three thirds to be written as 33.3 % each.
const TOLERANCE: u32 = WHOLE / 1000;

/// A fraction in millionths, so that equal texts are equal values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fraction(pub(super) u32);

impl FromStr for Fraction {
    type Err = InvalidText;

    /// Reads `95%`, `0.1%`, `95`.
    fn from_str(text: &str) -> Result<Self, InvalidText> {
        let percent: f64 = text.trim().trim_end_matches('%').trim_end().parse().map_err(|_| InvalidText)?;
        let millionths = rounded(percent * f64::from(WHOLE / 100));
        let share = u32::try_from(millionths).ok().filter(|share| (1..=WHOLE).contains(share));
        share.map(Self).ok_or(InvalidText)
    }
}

/// Whether shares add up to a whole, within the rounding tolerance.
pub(super) fn sum_to_whole(shares: impl Iterator<Item = Fraction>) -> bool {
    let sum: u64 = shares.map(|share| u64::from(share.0)).sum();
    sum.abs_diff(WHOLE.into()) <= TOLERANCE.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages_that_make_a_whole() {
        let read = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Fraction>>();
        assert_eq!(read(&["95%", "4.9 %", "0.1"]), [Fraction(950_000), Fraction(49_000), Fraction(1_000)]);
        assert!(sum_to_whole(read(&["33.3%"; 3]).into_iter()));
        assert!(!sum_to_whole(read(&["90%", "9%"]).into_iter()));
        assert!(!sum_to_whole(read(&["90%", "11%"]).into_iter()));
        for text in ["0%", "-1%", "101%", "", "x", "NaN", "inf"] {
            assert_eq!(text.parse::<Fraction>(), Err(InvalidText), "{text}");
        }
    }
}

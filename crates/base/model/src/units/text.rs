//! Parsing and formatting of numbers with units.

use std::fmt::{self, Write as _};

use super::rounded;

/// Why a text is not a valid quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The text does not begin with a number.
    #[error("`{0}` does not begin with a number")]
    NoNumber(String),
    /// The number is negative, infinite or beyond the range of the unit.
    #[error("`{0}` is out of range")]
    OutOfRange(String),
    /// The unit after the number is unknown.
    #[error("`{text}` has an unknown unit: write {expected}")]
    UnknownUnit {
        /// The given text.
        text: String,
        /// Examples of valid input.
        expected: &'static str,
    },
    /// The value must be a whole number.
    #[error("`{0}` is not a whole number of its smallest unit")]
    NotWhole(String),
}

/// Splits `1.5 Mpps` into 1.5 and `Mpps`.
pub(super) fn number_and_unit(text: &str) -> Result<(f64, &str), UnitError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let number: f64 = digits.replace('_', "").parse().map_err(|_| UnitError::NoNumber(text.to_owned()))?;
    if number.is_finite() { Ok((number, unit.trim())) } else { Err(UnitError::OutOfRange(text.to_owned())) }
}

/// Parses a count such as `20000`, `20k` or `1.5M`, exactly.
///
/// # Errors
/// If the text is not a number, has another unit, or is not whole.
pub fn whole(text: &str) -> Result<u64, UnitError> {
    let (_, prefix) = number_and_unit(text)?;
    let factor = prefix_factor(prefix)
        .ok_or_else(|| UnitError::UnknownUnit { text: text.to_owned(), expected: "a number alone, 20k, 1.5M" })?;
    let digits: String = text.trim().strip_suffix(prefix).unwrap_or(text).trim().replace('_', "");
    let (units, parts) = digits.split_once('.').unwrap_or((&digits, ""));
    let parts = parts.trim_end_matches('0');
    let range = || UnitError::OutOfRange(text.to_owned());
    let size = 10_u128.checked_pow(u32::try_from(parts.len()).map_err(|_| range())?).ok_or_else(range)?;
    let number: u128 = format!("0{units}{parts}").parse().map_err(|_| range())?;
    let scaled = number.checked_mul(rounded(factor).into()).ok_or_else(range)?;
    if !scaled.is_multiple_of(size) {
        return Err(UnitError::NotWhole(text.to_owned()));
    }
    u64::try_from(scaled / size).map_err(|_| range())
}

/// The factor of an SI prefix (`k`, `M`, `G`, `T`; `K` also means `k`) or of an IEC prefix (`Ki`, `Mi`, `Gi`, `Ti`).
pub(super) fn prefix_factor(prefix: &str) -> Option<f64> {
    Some(match prefix {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" | "m" => 1e6,
        "G" | "g" => 1e9,
        "T" | "t" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        _ => return None,
    })
}

/// Formats with three significant digits, without an exponent; trailing zeros are kept because they were measured.
#[must_use]
pub fn significant(number: f64) -> String {
    let size = number.abs();
    let decimals = match size {
        s if s >= 99.95 || s == 0.0 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        s if s >= 0.09995 => 3,
        _ => 4,
    };
    format!("{number:.decimals$}")
}

/// Formats a share between 0 and 1 as a percentage, with as many digits as are useful to a reader.
#[must_use]
pub fn percent(share: f64) -> String {
    let p = share * 100.0;
    match p.abs() {
        // What is not all is not shown as all.
        s if (99.5..100.0).contains(&s) => format!("{:.1} %", (p * 10.0).trunc() / 10.0),
        s if s >= 9.95 => format!("{p:.0} %"),
        s if s >= 0.995 => format!("{p:.1} %"),
        s if s >= 0.005 => format!("{p:.2} %"),
        0.0 => "0 %".to_owned(),
        s if s >= 0.000_05 => format!("{p:.4} %"),
        // Nobody reads an exponent; of so little, it is enough to know that it is not zero.
        _ => "< 0.0001 %".to_owned(),
    }
}

/// Parses a share written as a percentage, such as `2.5%`; `None` for other text.
#[must_use]
pub fn share_of_percent(text: &str) -> Option<f64> {
    let percent: f64 = text.trim().strip_suffix('%')?.trim().parse().ok()?;
    percent.is_finite().then_some(percent / 100.0)
}

/// Formats a count with a comma after every three digits, as in `1,488,095`.
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun, which gets an `s` unless the count is one: `2 pairs`.
#[must_use]
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// Writes a number with the SI prefix that leaves one to three digits before the decimal point.
pub(super) fn write_si(f: &mut fmt::Formatter<'_>, number: f64, unit: &str) -> fmt::Result {
    let (scaled, prefix) = match number.abs() {
        s if s >= 999.5e9 => (number / 1e12, "T"),
        s if s >= 999.5e6 => (number / 1e9, "G"),
        s if s >= 999.5e3 => (number / 1e6, "M"),
        s if s >= 999.5 => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let mut text = String::with_capacity(24);
    write!(text, "{} {prefix}{unit}", significant(scaled))?;
    f.pad(text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_significant_digits_are_kept_at_every_size() {
        let cases =
            [(0.0, "0"), (0.0512, "0.0512"), (0.512, "0.512"), (5.124, "5.12"), (51.26, "51.3"), (512.4, "512")];
        for (number, text) in cases {
            assert_eq!(significant(number), text);
        }
    }

    #[test]
    fn a_count_is_read_exactly_with_the_prefixes_of_a_rate() {
        let good = [
            ("0", 0),
            ("007", 7),
            ("20k", 20_000),
            ("1.5M", 1_500_000),
            ("1.001k", 1_001),
            (".5k", 500),
            (" 10 k ", 10_000),
            ("1_000", 1_000),
            ("4Ki", 4_096),
            ("2.0", 2),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, count) in good {
            assert_eq!(whole(text), Ok(count), "{text}");
        }
        assert_eq!(whole("1.5"), Err(UnitError::NotWhole("1.5".to_owned())));
        assert_eq!(whole("1.0001k"), Err(UnitError::NotWhole("1.0001k".to_owned())));
        for text in ["18446744073709551616", "20000000000T", "1.00000000000000000000000000000000000000001"] {
            assert_eq!(whole(text), Err(UnitError::OutOfRange(text.to_owned())), "{text}");
        }
        for text in ["", "k", "-1", "many", ".", "1.2.3"] {
            assert!(matches!(whole(text), Err(UnitError::NoNumber(_))), "{text}");
        }
        for text in ["10x", "1e6", "10/s", "10 kk"] {
            assert!(matches!(whole(text), Err(UnitError::UnknownUnit { .. })), "{text}");
        }
    }

    #[test]
    fn percentages_do_not_round_a_small_loss_to_nothing() {
        let cases = [
            (1.0, "100 %"),
            (0.9999, "99.9 %"),
            (0.9961, "99.6 %"),
            (0.9949, "99 %"),
            (0.124, "12 %"),
            (0.0312, "3.1 %"),
            (0.0031, "0.31 %"),
            (0.000_001, "0.0001 %"),
            (2.7e-9, "< 0.0001 %"),
            (0.0, "0 %"),
        ];
        for (share, text) in cases {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn counts_are_grouped_by_three_digits() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (1_488_095, "1,488,095")];
        for (count, text) in cases {
            assert_eq!(grouped(count), text);
        }
    }
}

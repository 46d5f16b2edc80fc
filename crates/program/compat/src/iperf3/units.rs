//! Numbers as iperf3 reads and writes them: powers of 1000 for bits, powers of 1024 for bytes.

use fathom_model::units::{Nanos, approximate};

/// The format of rates (`-f`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RateFormat {
    /// Bits with the prefix that fits.
    #[default]
    Adaptive,
    /// Bits with this prefix, as an index into [`BITS`].
    Bits(usize),
    /// Bytes with this prefix.
    Bytes(usize),
}

const BITS: [&str; 5] = ["bit", "Kbit", "Mbit", "Gbit", "Tbit"];
const BYTES: [&str; 5] = ["Byte", "KByte", "MByte", "GByte", "TByte"];

impl RateFormat {
    /// Returns the format for the letter of `-f`.
    pub(super) fn of(letter: &str) -> Option<Self> {
        let place = |letters: &str| letters.find(letter.chars().next()?).map(|place| place + 1);
        place("kmgt").map(Self::Bits).or_else(|| place("KMGT").map(Self::Bytes))
    }
}

fn four_places(number: f64, unit: &str) -> String {
    match number {
        ..9.995 => format!("{number:4.2} {unit}"),
        ..99.95 => format!("{number:4.1} {unit}"),
        _ => format!("{number:4.0} {unit}"),
    }
}

/// Divides by `step` until the number is small enough, at most four times.
fn scaled(mut number: f64, step: f64) -> (f64, usize) {
    let mut place = 0;
    while number >= step && place < 4 {
        number /= step;
        place += 1;
    }
    (number, place)
}

fn power(step: f64, place: usize) -> f64 {
    (0..place).fold(1.0, |product, _| product * step)
}

/// Formats a volume: `1.71 GByte`. The caller appends an s.
pub(super) fn volume(bytes: u64) -> String {
    let (number, place) = scaled(approximate(bytes), 1024.0);
    four_places(number, BYTES[place])
}

/// Formats a rate without its `s/sec`.
pub(super) fn rate(bytes: u64, span: Nanos, format: RateFormat) -> String {
    let per_sec = if span == Nanos::ZERO { 0.0 } else { approximate(bytes) / span.as_secs_f64() };
    let (number, unit) = match format {
        RateFormat::Adaptive => {
            let (number, place) = scaled(per_sec * 8.0, 1000.0);
            (number, BITS[place])
        }
        RateFormat::Bits(place) => (per_sec * 8.0 / power(1000.0, place), BITS[place]),
        RateFormat::Bytes(place) => (per_sec / power(1024.0, place), BYTES[place]),
    };
    four_places(number, unit)
}

/// Formats a number with two significant digits, like C's `%.2g`.
pub(crate) fn two_digits(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    let shown = format!("{number:.1e}");
    let (mantissa, exponent) = shown.split_once('e').unwrap_or((&shown, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
    };
    if (-4..2).contains(&exponent) {
        let places = usize::try_from(1 - exponent).unwrap_or(0);
        return trimmed(&format!("{number:.places$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.unsigned_abs())
}

/// Reads the decimal number at the start of a text, like C's `%lf`, and the letter after it.
pub(crate) fn number_and_suffix(text: &str) -> Option<(f64, Option<char>)> {
    let text = text.trim_start();
    let digits = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let sign = |from: usize| usize::from(text[from..].starts_with(['+', '-']));
    let end = text.find(|c: char| !c.is_ascii_digit() && !".+-".contains(c)).unwrap_or(text.len());
    // An `e` without a number behind it is no exponent.
    let exponent = end + usize::from(text[end..].starts_with(['e', 'E']));
    let exponent = if exponent > end { exponent + sign(exponent) } else { end };
    let end = if exponent > end && digits(exponent) > 0 { exponent + digits(exponent) } else { end };
    Some((text[..end].parse().ok()?, text[end..].chars().next()))
}

fn with_prefix(text: &str, step: f64) -> Option<f64> {
    let (number, suffix) = number_and_suffix(text)?;
    let place = suffix.and_then(|suffix| "kmgt".find(suffix.to_ascii_lowercase())).map_or(0, |place| place + 1);
    Some(number * power(step, place))
}

/// Reads a volume such as `128K`. Prefixes are powers of 1024, and fractions are allowed.
pub(super) fn read_volume(text: &str) -> Option<u64> {
    with_prefix(text, 1024.0).filter(|number| *number >= 0.0).map(fathom_model::units::rounded)
}

/// Reads a rate such as `1.5G`. Prefixes are powers of 1000.
pub(super) fn read_rate(text: &str) -> Option<u64> {
    with_prefix(text, 1000.0).filter(|number| *number >= 0.0).map(fathom_model::units::rounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_have_an_exponent_as_in_c() {
        assert_eq!(["1e6", "1.5E+3", "2e3K", "4096"].map(read_volume), [1_000_000, 1_500, 2_048_000, 4_096].map(Some));
        assert_eq!(["1e9", "5e-1k", "1e", "7ex"].map(read_rate), [1_000_000_000, 500, 1, 7].map(Some));
        assert_eq!(read_rate("e3"), None);
    }

    #[test]
    fn volumes_and_rates_are_shown_as_iperf3_shows_them() {
        // Rows of iperf 3.12, with the values of its JSON.
        assert_eq!(volume(10 << 20), "10.0 MByte");
        assert_eq!(volume(1_277_952), "1.22 MByte");
        assert_eq!(volume(0), "0.00 Byte");
        assert_eq!(volume(1004 << 20), "1004 MByte");
        assert_eq!(rate(1_277_952, Nanos::from_secs_f64(1.000_114), RateFormat::Adaptive), "10.2 Mbit");
        assert_eq!(rate(125_000_000, Nanos::from_secs(1), RateFormat::Bits(3)), "1.00 Gbit");
        assert_eq!(rate(125_000_000, Nanos::from_secs(1), RateFormat::Bytes(1)), "122070 KByte");
        assert_eq!(rate(5, Nanos::ZERO, RateFormat::Adaptive), "0.00 bit");
        assert_eq!(RateFormat::of("m"), Some(RateFormat::Bits(2)));
        assert_eq!(RateFormat::of("T"), Some(RateFormat::Bytes(4)));
        assert_eq!(RateFormat::of("x"), None);
    }

    #[test]
    fn shares_have_two_digits_as_printf_writes_them() {
        let cases = [
            (0.0, "0"),
            (0.123, "0.12"),
            (5.0, "5"),
            (12.34, "12"),
            (99.96, "1e+02"),
            (100.0, "1e+02"),
            (2e-5, "2e-05"),
        ];
        for (number, text) in cases {
            assert_eq!(two_digits(number), text, "{number}");
        }
    }

    #[test]
    fn prefixes_of_volumes_are_binary_and_those_of_rates_decimal() {
        assert_eq!(read_volume("128K"), Some(131_072));
        assert_eq!(read_volume("1.5m"), Some(1_572_864));
        assert_eq!(read_rate("1.5G"), Some(1_500_000_000));
        assert_eq!(read_rate("10"), Some(10));
        assert_eq!(read_rate("x"), None);
        assert_eq!(read_rate("-1"), None);
    }
}

//! Numbers as iperf reads and writes them: a lower-case suffix is a power of 1000, an upper-case one of 1024.

use fathom_model::units::{Nanos, approximate, rounded};

/// The format of rates and volumes (`-f`), by its letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberFormat(pub(super) char);

impl Default for NumberFormat {
    /// Adaptive, in bits.
    fn default() -> Self {
        Self('a')
    }
}

const BITS: [&str; 6] = ["bit", "Kbit", "Mbit", "Gbit", "Tbit", "Pbit"];
const BYTES: [&str; 6] = ["Byte", "KByte", "MByte", "GByte", "TByte", "PByte"];

/// Formats a number of bytes with a letter: upper case in bytes, lower case in bits (`byte_snprintf`).
fn formatted(bytes: f64, letter: char) -> String {
    let is_bytes = letter.is_ascii_uppercase();
    let (mut number, step, units) = if is_bytes { (bytes, 1024.0, BYTES) } else { (bytes * 8.0, 1000.0, BITS) };
    let fixed = "BKMGTP".find(letter.to_ascii_uppercase());
    let mut place = 0;
    while fixed.map_or(number >= step && place < 5, |fixed| place < fixed) {
        number /= step;
        place += 1;
    }
    let digits = match number {
        ..0.9995 => 3,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{number:4.digits$} {}", units[place])
}

impl NumberFormat {
    /// Formats a volume, always in bytes: `1.25 MByte`. The caller appends an s.
    pub(super) fn volume(self, bytes: u64) -> String {
        formatted(approximate(bytes), self.0.to_ascii_uppercase())
    }

    /// Formats a rate without its `s/sec`.
    pub(super) fn rate(self, bytes: u64, span: Nanos) -> String {
        // Below half a millisecond iperf shows no rate (`SMALLEST_INTERVAL_SEC`).
        let per_sec = if span < Nanos::from_micros(500) { 0.0 } else { approximate(bytes) / span.as_secs_f64() };
        formatted(per_sec, self.0)
    }
}

/// Formats a volume of a buffer, adaptive in bytes.
pub(super) fn buffer(bytes: u64) -> String {
    formatted(approximate(bytes), 'A')
}

/// Formats a length in bytes without a prefix.
pub(super) fn plain_bytes(bytes: u64) -> String {
    formatted(approximate(bytes), 'B')
}

/// Formats a number with two significant digits, like C's `%.2g`.
pub(super) fn two_digits(number: f64) -> String {
    crate::iperf3::two_digits(number)
}

/// Reads a number with a suffix: `k`, `m`, `g` are powers of 1000, `K`, `M`, `G` of 1024 (`byte_atoi`).
pub(super) fn read_number(text: &str) -> Option<f64> {
    let (number, suffix) = crate::iperf3::number_and_suffix(text)?;
    let factor = match suffix {
        Some('k') => 1e3,
        Some('m') => 1e6,
        Some('g') => 1e9,
        Some('K') => 1024.0,
        Some('M') => 1_048_576.0,
        Some('G') => 1_073_741_824.0,
        _ => 1.0,
    };
    Some(number * factor)
}

/// Reads a whole number with a suffix that is not below zero.
pub(super) fn read_whole(text: &str) -> Option<u64> {
    read_number(text).filter(|number| *number >= 0.0).map(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_and_rates_are_shown_as_iperf_shows_them() {
        let (adaptive, second) = (NumberFormat::default(), Nanos::from_secs(1));
        assert_eq!(adaptive.volume(1_312_710), "1.25 MByte");
        assert_eq!(adaptive.volume(0), "0.000 Byte");
        assert_eq!(adaptive.volume(9), "9.00 Byte");
        assert_eq!(adaptive.rate(131_072, second), "1.05 Mbit");
        assert_eq!(adaptive.rate(4_837_500_000, second), "38.7 Gbit");
        assert_eq!(adaptive.rate(5, Nanos::ZERO), "0.000 bit");
        assert_eq!(NumberFormat('m').rate(125_000_000, second), "1000 Mbit");
        assert_eq!(NumberFormat('M').rate(1_048_576, second), "1.00 MByte");
        assert_eq!((buffer(131_072), plain_bytes(131_072)), (" 128 KByte".to_owned(), "131072 Byte".to_owned()));
    }

    #[test]
    fn small_suffixes_are_decimal_and_large_ones_binary() {
        let cases = [("128K", 131_072), ("1m", 1_000_000), ("1.5M", 1_572_864), ("10", 10), ("2g", 2_000_000_000)];
        for (text, number) in cases {
            assert_eq!(read_whole(text), Some(number), "{text}");
        }
        assert_eq!(read_whole("x"), None);
        assert_eq!(read_whole("-1"), None);
    }
}

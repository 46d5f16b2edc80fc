//! Numbers with units, as wrk writes and reads them.
//!
//! A value switches to the next unit at 85 % of it, as long as one more unit follows: 850 µs are `0.85ms`, 51 s are `0.85m`,
//! and a time is never shown in hours.

/// A series of units. Each is `scale` times the previous one.
pub(super) struct UnitScale {
    scale: f64,
    base: &'static str,
    /// The higher units. The last one can be read but is never written.
    above: &'static [&'static str],
}

const MICROS: UnitScale = UnitScale { scale: 1000.0, base: "us", above: &["ms", "s"] };
const SECONDS: UnitScale = UnitScale { scale: 60.0, base: "s", above: &["m", "h"] };
const BINARY: UnitScale = UnitScale { scale: 1024.0, base: "", above: &["K", "M", "G", "T", "P"] };
const METRIC: UnitScale = UnitScale { scale: 1000.0, base: "", above: &["k", "M", "G", "T", "P"] };

/// From this time on, in microseconds, a time is shown in seconds.
const SECOND_US: f64 = 1_000_000.0;

impl UnitScale {
    fn show(&self, value: f64, decimals: usize) -> String {
        let (mut value, mut unit) = (value, self.base);
        for next in &self.above[..self.above.len() - 1] {
            if value < self.scale * 0.85 {
                break;
            }
            value /= self.scale;
            unit = next;
        }
        format!("{value:.decimals$}{unit}")
    }

    /// Reads a whole number with an optional unit.
    fn read(&self, text: &str) -> Option<u64> {
        let text = text.trim_start();
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..end].parse().ok()?;
        let unit = text[end..].trim_start();
        if unit.is_empty() || unit.eq_ignore_ascii_case(self.base) {
            return Some(number);
        }
        let power = self.above.iter().position(|known| known.eq_ignore_ascii_case(unit))? + 1;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the scales are 60, 1000 and 1024")]
        let scale = self.scale as u64;
        number.checked_mul(scale.checked_pow(u32::try_from(power).ok()?)?)
    }
}

/// Formats a time in microseconds: `122.00us`, `1.27ms`, `2.01s`.
pub(super) fn time_us(us: f64) -> String {
    if us >= SECOND_US { SECONDS.show(us / SECOND_US, 2) } else { MICROS.show(us, 2) }
}

/// Formats a time in whole seconds: `10s`, and `1m` for 55.
pub(super) fn time_s(seconds: u64) -> String {
    SECONDS.show(fathom_model::units::approximate(seconds), 0)
}

/// Formats a number of bytes without the `B`: `64.02M`.
pub(super) fn binary(bytes: f64) -> String {
    BINARY.show(bytes, 2)
}

/// Formats a count: `19.75k`.
pub(super) fn metric(number: f64) -> String {
    METRIC.show(number, 2)
}

/// Reads `100`, `1k`, `2M`.
pub(super) fn read_metric(text: &str) -> Option<u64> {
    METRIC.read(text)
}

/// Reads `10`, `30s`, `2m`, `1h` into seconds.
pub(super) fn read_time(text: &str) -> Option<u64> {
    SECONDS.read(text)
}

/// Right-aligns a text, with space for a unit of two letters after the number.
pub(super) fn column(text: &str, width: usize) -> String {
    let n_letters = text.chars().rev().take(2).filter(char::is_ascii_alphabetic).count();
    let pad = 2 - n_letters;
    format!("{text:>width$}{:pad$}", "", width = width - pad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_moves_on_at_85_percent_of_the_next_unit_while_another_follows() {
        let cases = [
            (849.0, "849.00us"),
            (850.0, "0.85ms"),
            (999_999.0, "1000.00ms"),
            (1_000_000.0, "1.00s"),
            (50_990_000.0, "50.99s"),
            (51_000_000.0, "0.85m"),
            (7_200_000_000.0, "120.00m"),
        ];
        for (us, text) in cases {
            assert_eq!(time_us(us), text);
        }
        assert_eq!((time_s(50), time_s(55), time_s(3600)), ("50s".to_owned(), "1m".to_owned(), "60m".to_owned()));
        assert_eq!((metric(849.0), metric(850.0), metric(1e16)), ("849.00".into(), "0.85k".into(), "10000.00T".into()));
        assert_eq!((binary(870.0), binary(871.0), binary(0.0)), ("870.00".into(), "0.85K".into(), "0.00".into()));
    }

    #[test]
    fn numbers_are_read_with_their_units() {
        let metrics = [("100", Some(100)), ("1k", Some(1_000)), ("1 K", Some(1_000)), ("2G", Some(2_000_000_000))];
        for (text, number) in metrics.into_iter().chain([("abc", None), ("0.1k", None), ("1x", None), ("", None)]) {
            assert_eq!(read_metric(text), number, "{text}");
        }
        for (text, seconds) in
            [("10", Some(10)), ("30s", Some(30)), ("2M", Some(120)), ("1h", Some(3600)), ("5ms", None)]
        {
            assert_eq!(read_time(text), seconds, "{text}");
        }
    }

    #[test]
    fn a_column_leaves_room_for_two_letters() {
        assert_eq!([column("0.00", 8), column("27.06k", 8), column("1.00ms", 8)], ["  0.00  ", " 27.06k ", "  1.00ms"]);
    }
}

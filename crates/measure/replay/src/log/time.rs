//! The times and durations of a log, in the ways in which servers write them.

use fathom_model::units::Nanos;
use jiff::{
    Timestamp,
    civil::{Date, DateTime, Time},
    tz::Offset,
};

/// A time as a log has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoggedTime {
    /// Since 1970.
    pub(super) at: Nanos,
    /// The step of its last digit: the time was between `at` and a step later.
    pub(super) resolution: Nanos,
}

const SECOND: Nanos = Nanos::from_secs(1);
/// `26/Nov/2026:09:51:48 +0000`.
const COMMON_LENGTH: usize = 26;

impl LoggedTime {
    /// Reads the time of the common log format, of ISO 8601 (UTC unless it has an offset), or since 1970 in seconds with or without
    /// a fraction, in milliseconds, microseconds or nanoseconds.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        match text.as_bytes() {
            bytes if bytes.len() == COMMON_LENGTH && bytes[2] == b'/' => Self::common(text),
            bytes if bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.') => Self::since_1970(text),
            _ => Self::iso(text),
        }
    }

    fn common(text: &str) -> Option<Self> {
        const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
        let number = |from: usize, n: usize| text.get(from..from + n)?.parse::<i16>().ok();
        let month = MONTHS.find(text.get(3..6)?).filter(|place| place % 3 == 0)? / 3 + 1;
        let small = |from| i8::try_from(number(from, 2)?).ok();
        let date = Date::new(number(7, 4)?, i8::try_from(month).ok()?, small(0)?).ok()?;
        let time = date.to_datetime(Time::new(small(12)?, small(15)?, small(18)?, 0).ok()?);
        let minutes = i32::from(number(22, 2)?) * 60 + i32::from(number(24, 2)?);
        let sign = match text.get(20..22)? {
            " +" => 1,
            " -" => -1,
            _ => return None,
        };
        let offset = Offset::from_seconds(sign * minutes * 60).ok()?;
        Self::of(offset.to_timestamp(time).ok()?, SECOND)
    }

    fn iso(text: &str) -> Option<Self> {
        let digits = text.split_once('.').map_or("", |(_, fraction)| fraction);
        let n_digits = digits.bytes().take_while(u8::is_ascii_digit).count();
        let timestamp = text.parse().or_else(|_| Offset::UTC.to_timestamp(text.parse::<DateTime>()?)).ok()?;
        Self::of(timestamp, resolution(SECOND, n_digits))
    }

    fn of(timestamp: Timestamp, resolution: Nanos) -> Option<Self> {
        Some(Self { at: Nanos(u64::try_from(timestamp.as_nanosecond()).ok()?), resolution })
    }

    fn since_1970(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        // So many digits have the times from 2001 to 2286.
        let unit = match whole.len() {
            ..=10 => SECOND,
            11..=13 => Nanos::from_millis(1),
            14..=16 => Nanos::from_micros(1),
            _ => Nanos(1),
        };
        let at = unit.0.checked_mul(whole.parse().ok()?)?;
        Some(Self { at: Nanos(at.checked_add(part(unit, fraction)?)?), resolution: resolution(unit, fraction.len()) })
    }
}

/// The step of the last of so many digits after the point.
fn resolution(unit: Nanos, n_digits: usize) -> Nanos {
    Nanos((0..n_digits).fold(unit.0, |step, _| step / 10).max(1))
}

/// The value of digits after the point, without those below a nanosecond.
fn part(unit: Nanos, digits: &str) -> Option<u64> {
    let mut step = unit.0;
    let mut sum = 0;
    for byte in digits.bytes() {
        step /= 10;
        sum += step * u64::from(char::from(byte).to_digit(10)?);
    }
    Some(sum)
}

/// Reads a number of a unit, with or without a fraction.
pub(super) fn duration(text: &[u8], unit: Nanos) -> Option<Nanos> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = unit.0.checked_mul(whole.parse().ok()?)?;
    Some(Nanos(whole.checked_add(part(unit, fraction)?)?))
}

/// Reads a duration whose unit the log does not name: milliseconds if it is whole, as Envoy writes, and seconds if it has a point,
/// as Caddy does. It may have a unit (`1.5ms`).
pub(super) fn any_duration(text: &[u8]) -> Option<Nanos> {
    let unit = if text.contains(&b'.') { SECOND } else { Nanos::from_millis(1) };
    duration(text, unit).or_else(|| std::str::from_utf8(text).ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_every_kind_are_the_same_time() {
        let second = 1_795_686_708_000_000_000;
        let cases = [
            ("26/Nov/2026:09:51:48 +0000", second, SECOND.0),
            ("26/Nov/2026:11:21:48 +0130", second, SECOND.0),
            ("26/Nov/2026:01:51:48 -0800", second, SECOND.0),
            ("2026-11-26T09:51:48+00:00", second, SECOND.0),
            ("2026-11-26T10:51:48.620+01:00", second + 620_000_000, 1_000_000),
            ("2026-11-26T09:51:48.6Z", second + 600_000_000, 100_000_000),
            ("2026-11-26 09:51:48.620001", second + 620_001_000, 1_000),
            ("1795686708", second, SECOND.0),
            ("1795686708.620", second + 620_000_000, 1_000_000),
            ("1795686708.6200001234567", second + 620_000_123, 1),
            ("1795686708620", second + 620_000_000, 1_000_000),
            ("1795686708620001", second + 620_001_000, 1_000),
            ("1795686708620001002", second + 620_001_002, 1),
        ];
        for (text, at, resolution) in cases {
            let time = LoggedTime { at: Nanos(at), resolution: Nanos(resolution) };
            assert_eq!(LoggedTime::parse(text.as_bytes()), Some(time), "{text}");
        }
        for text in [
            "",
            "-",
            ".",
            "26/Foo/2026:09:51:48 +0000",
            "31/Feb/2026:09:51:48 +0000",
            "1.2.3",
            "99999999999999999999",
            "x",
        ] {
            assert_eq!(LoggedTime::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn durations_have_the_unit_that_they_look_like() {
        let cases = [("0.004", 4_000_000), ("100", 100_000_000), ("1.5ms", 1_500_000), ("12us", 12_000), ("0", 0)];
        for (text, ns) in cases {
            assert_eq!(any_duration(text.as_bytes()), Some(Nanos(ns)), "{text}");
        }
        assert_eq!((any_duration(b"-"), any_duration(b"")), (None, None));
        assert_eq!(duration(b"1234", Nanos::from_micros(1)), Some(Nanos(1_234_000)));
    }
}

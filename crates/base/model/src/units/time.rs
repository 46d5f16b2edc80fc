//! Durations.

use std::{
    fmt,
    ops::{Add, AddAssign, Div, Mul, Sub},
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{UnitError, approximate, rounded, significant, text::number_and_unit};

/// A duration, or a timestamp of a monotonic clock, in nanoseconds: up to 584 years.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Zero duration.
    pub const ZERO: Self = Self(0);
    /// The longest duration.
    pub const MAX: Self = Self(u64::MAX);

    /// Converts from whole seconds.
    #[must_use]
    #[inline]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Converts from whole milliseconds.
    #[must_use]
    #[inline]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Converts from whole microseconds.
    #[must_use]
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Converts from seconds, rounded to nanoseconds; negative values give zero.
    #[must_use]
    pub const fn from_secs_f64(secs: f64) -> Self {
        Self(rounded(secs * 1e9))
    }

    /// Converts to seconds.
    #[must_use]
    pub const fn as_secs_f64(self) -> f64 {
        approximate(self.0) / 1e9
    }

    /// The time from `earlier` to this timestamp; zero if `earlier` is later.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// The shortest text that parses back to exactly this duration, such as `1500us`.
    #[must_use]
    pub fn exact(self) -> String {
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
        let (size, unit) = units.into_iter().find(|(size, _)| self.0.is_multiple_of(*size)).unwrap_or((1, "ns"));
        format!("{}{unit}", self.0 / size)
    }

    /// Converts to the standard library's type.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add for Nanos {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Self;
    /// Saturates at zero: the kernel's clocks on two cores may differ by a few nanoseconds.
    #[inline]
    fn sub(self, other: Self) -> Self {
        self.since(other)
    }
}

impl Mul<u64> for Nanos {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl Div<u64> for Nanos {
    type Output = Self;
    fn div(self, divisor: u64) -> Self {
        Self(self.0 / divisor)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = approximate(self.0);
        let (number, unit) = match self.0 {
            0 => return f.pad("0 s"),
            1..1_000 => (ns, "ns"),
            1_000..999_500 => (ns / 1e3, "µs"),
            999_500..999_500_000 => (ns / 1e6, "ms"),
            _ => (ns / 1e9, "s"),
        };
        f.pad(&format!("{} {unit}", significant(number)))
    }
}

impl FromStr for Nanos {
    type Err = UnitError;

    /// Parses `250us`, `1.5 ms`, `10s`, `2min`, `1h`; a bare number is in seconds.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = number_and_unit(text)?;
        let factor = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" | "" => 1e9,
            "m" | "min" => 60e9,
            "h" => 3600e9,
            _ => return Err(UnitError::UnknownUnit { text: text.to_owned(), expected: "250us, 10ms, 30s, 2min" }),
        };
        let ns = number * factor;
        if ns < approximate(u64::MAX) { Ok(Self(rounded(ns))) } else { Err(UnitError::OutOfRange(text.to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_span_is_read_back_within_its_digits() {
        for ns in [1, 999, 48_200, 41_300_000, 999_500, 1_230_000_000, 3_600_000_000_000] {
            let span = Nanos(ns);
            let again: Nanos = span.to_string().parse().unwrap();
            assert!(again.0.abs_diff(ns) * 200 <= ns, "{span} became {again}");
        }
    }

    #[test]
    fn spans_are_read_in_every_unit() {
        let cases = [
            ("250us", 250_000),
            ("1.5ms", 1_500_000),
            ("10", 10_000_000_000),
            ("2min", 120_000_000_000),
            ("0.5 s", 500_000_000),
        ];
        for (text, ns) in cases {
            assert_eq!(text.parse(), Ok(Nanos(ns)), "{text}");
        }
        for text in ["", "s", "10 parsecs", "-1s", "1e3"] {
            assert!(text.parse::<Nanos>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stamp_from_the_future_is_no_time_ago() {
        assert_eq!(Nanos(5) - Nanos(7), Nanos::ZERO);
    }
}

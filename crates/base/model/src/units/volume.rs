//! Volumes of data and numbers of frames.

use std::{
    fmt,
    ops::{Add, AddAssign, Mul, Sub},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

use super::{UnitError, approximate, grouped, rounded, significant, text};

/// A volume of data in bytes of eight bits.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A number of frames or packets.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Frames(pub u64);

macro_rules! counted {
    ($unit:ident) => {
        impl Add for $unit {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }
        impl AddAssign for $unit {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sub for $unit {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }
        impl Mul<u64> for $unit {
            type Output = Self;
            fn mul(self, factor: u64) -> Self {
                Self(self.0.saturating_mul(factor))
            }
        }
    };
}
counted!(Bytes);
counted!(Frames);

impl Bytes {
    /// The shortest text that parses back to exactly this volume, such as `64KiB`.
    #[must_use]
    pub fn exact(self) -> String {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let whole = units.into_iter().find(|(size, _)| self.0 > 0 && self.0.is_multiple_of(*size));
        whole.map_or_else(|| self.0.to_string(), |(size, unit)| format!("{}{unit}", self.0 / size))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut number = approximate(self.0) / 1024.0;
        let mut unit = 0;
        while number >= 1024.0 && unit + 1 < UNITS.len() {
            number /= 1024.0;
            unit += 1;
        }
        let text = if number.fract() == 0.0 { format!("{number:.0}") } else { significant(number) };
        f.pad(&format!("{text} {}", UNITS[unit]))
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    /// Parses `1400`, `1400B`, `64KiB`, `10MB`, `128k`; `k` is 1000, `Ki` is 1024.
    fn from_str(given: &str) -> Result<Self, UnitError> {
        let (number, unit) = text::number_and_unit(given)?;
        let factor = text::prefix_factor(unit.strip_suffix('B').unwrap_or(unit))
            .ok_or_else(|| UnitError::UnknownUnit { text: given.to_owned(), expected: "1400, 64KiB, 10MB" })?;
        let bytes = number * factor;
        if bytes >= approximate(u64::MAX) {
            return Err(UnitError::OutOfRange(given.to_owned()));
        }
        if bytes.fract() == 0.0 { Ok(Self(rounded(bytes))) } else { Err(UnitError::NotWhole(given.to_owned())) }
    }
}

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&grouped(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Nanos;

    #[test]
    fn a_rate_over_an_empty_span_is_not_a_number() {
        assert_eq!(Bytes(1) / Nanos::ZERO, None);
        assert_eq!(Frames(0) / Nanos::ZERO, None);
    }

    #[test]
    fn volumes_are_read_with_both_kinds_of_prefix() {
        for (text, bytes) in
            [("1400", 1400), ("64KiB", 65_536), ("1.5k", 1500), ("10MB", 10_000_000), ("1 GiB", 1 << 30)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["64Kib", "1.0001", "", "KiB", "99999999999T"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_whole_number_of_units_is_printed_without_digits() {
        for (bytes, text) in [(64, "64 B"), (65_536, "64 KiB"), (1_500_000, "1.43 MiB")] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}

//! Rates: bits and countable things per second.

use std::{
    fmt,
    ops::{Div, Mul},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

use super::{Bytes, Frames, Nanos, UnitError, approximate, rounded, text};

/// Bits per second, finite and not negative; the name of the value states the layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct BitsPerSec(f64);

/// Countable things (requests, frames, connections) per second, finite and not negative.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct PerSec(f64);

macro_rules! rate {
    ($unit:ident, $suffix:literal) => {
        impl $unit {
            /// Accepts a finite number that is not negative.
            #[must_use]
            pub fn new(per_second: f64) -> Option<Self> {
                (per_second.is_finite() && per_second >= 0.0).then_some(Self(per_second))
            }

            /// A text that parses back to exactly this rate, such as `1234500kbit/s`.
            #[must_use]
            pub fn exact(self) -> String {
                let prefixes = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
                let whole = |(size, _): &(f64, &str)| self.0 >= *size && (self.0 / size).fract() == 0.0;
                let (size, prefix) = prefixes.into_iter().find(whole).unwrap_or((1.0, ""));
                format!("{}{prefix}{}", self.0 / size, $suffix)
            }

            /// The number per second.
            #[must_use]
            pub const fn get(self) -> f64 {
                self.0
            }
        }
    };
}
rate!(BitsPerSec, "bit/s");
rate!(PerSec, "/s");

impl PerSec {
    /// The gap between two events; `None` at a rate of zero.
    #[must_use]
    pub fn gap(self) -> Option<Nanos> {
        (self.0 > 0.0).then(|| Nanos(rounded(1e9 / self.0)))
    }
}

impl BitsPerSec {
    /// How many units of this volume fit into one second; `None` for an empty unit.
    #[must_use]
    pub fn per_unit(self, unit: Bytes) -> Option<PerSec> {
        PerSec::new(self.0 / (approximate(unit.0) * 8.0))
    }
}

impl Div<Nanos> for Bytes {
    type Output = Option<BitsPerSec>;
    fn div(self, span: Nanos) -> Option<BitsPerSec> {
        BitsPerSec::new(approximate(self.0) * 8.0 / span.as_secs_f64())
    }
}

impl Div<Nanos> for Frames {
    type Output = Option<PerSec>;
    fn div(self, span: Nanos) -> Option<PerSec> {
        PerSec::new(approximate(self.0) / span.as_secs_f64())
    }
}

impl Mul<Bytes> for PerSec {
    type Output = BitsPerSec;
    fn mul(self, each: Bytes) -> BitsPerSec {
        BitsPerSec(self.0 * approximate(each.0) * 8.0)
    }
}

impl fmt::Display for BitsPerSec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write_si(f, self.0, "bit/s")
    }
}

impl fmt::Display for PerSec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write_si(f, self.0, "/s")
    }
}

impl FromStr for BitsPerSec {
    type Err = UnitError;

    /// Parses `10G`, `10Gbit`, `10Gbps`, `10Gbit/s` as bits, and `1.2GB/s` as bytes; `k` is 1000, `Ki` is 1024.
    fn from_str(given: &str) -> Result<Self, UnitError> {
        let (number, unit) = text::number_and_unit(given)?;
        let (prefix, bits) = ["bit/s", "bits/s", "bits", "bit", "bps", "b/s", "b"]
            .iter()
            .find_map(|suffix| Some((unit.strip_suffix(suffix)?, 1.0)))
            .or_else(|| Some((unit.strip_suffix("B/s")?, 8.0)))
            .unwrap_or((unit, 1.0));
        let factor = text::prefix_factor(prefix).ok_or_else(|| UnitError::UnknownUnit {
            text: given.to_owned(),
            expected: "10G, 10Gbit/s, 800Mbps, 1.2GB/s",
        })?;
        Self::new(number * factor * bits).ok_or_else(|| UnitError::OutOfRange(given.to_owned()))
    }
}

impl FromStr for PerSec {
    type Err = UnitError;

    /// Parses `20k`, `20k/s`, `1.5Mpps`, `600/s`.
    fn from_str(given: &str) -> Result<Self, UnitError> {
        let (number, unit) = text::number_and_unit(given)?;
        let prefix = ["pps", "/s", "req/s", "rps"].iter().find_map(|suffix| unit.strip_suffix(suffix)).unwrap_or(unit);
        let factor = text::prefix_factor(prefix.trim_end())
            .ok_or_else(|| UnitError::UnknownUnit { text: given.to_owned(), expected: "20k, 1.5M, 1.5Mpps, 600/s" })?;
        Self::new(number * factor).ok_or_else(|| UnitError::OutOfRange(given.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_rates_are_read_as_users_of_other_tools_write_them() {
        let cases = [
            ("10G", 1e10),
            ("10Gbit", 1e10),
            ("800Mbps", 8e8),
            ("10 Gbit/s", 1e10),
            ("1.2GB/s", 9.6e9),
            ("1Ki", 1024.0),
            ("64", 64.0),
        ];
        for (text, bits) in cases {
            assert_eq!(text.parse::<BitsPerSec>().map(BitsPerSec::get), Ok(bits), "{text}");
        }
        for text in ["10GB", "fast", "-1G", "10Gpps"] {
            assert!(text.parse::<BitsPerSec>().is_err(), "{text}");
        }
    }

    #[test]
    fn event_rates_are_read_with_and_without_their_unit() {
        for (text, rate) in [("20k", 2e4), ("1.5Mpps", 1.5e6), ("600/s", 600.0), ("20 k/s", 2e4)] {
            assert_eq!(text.parse::<PerSec>().map(PerSec::get), Ok(rate), "{text}");
        }
    }

    #[test]
    fn rates_are_printed_with_the_prefix_that_leaves_few_digits() {
        for (bits, text) in [(9.1e9, "9.10 Gbit/s"), (999.6e6, "1.00 Gbit/s"), (512.0, "512 bit/s"), (0.0, "0 bit/s")] {
            assert_eq!(BitsPerSec(bits).to_string(), text);
        }
    }
}

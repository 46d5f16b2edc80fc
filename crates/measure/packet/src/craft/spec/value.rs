//! Values of fields: a single value, or a range from which each flow or each frame gets one.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    num::NonZeroU64,
};

use super::{
    super::{
        ChangePer,
        header::{FieldSpec, Notation},
    },
    SpecFault,
};
use fathom_model::MacAddress;

/// The values of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::craft) struct Value {
    /// The only value, or the lowest.
    pub(in crate::craft) first: u128,
    /// The number of values.
    pub(in crate::craft) n: NonZeroU64,
    pub(in crate::craft) succession: ValueSequence,
    /// Whether the value changes per flow or per frame.
    pub(in crate::craft) per: ChangePer,
}

/// The order of the values of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::craft) enum ValueSequence {
    /// Ascending by this step.
    Step(u64),
    Random,
}

/// The most values of a range: [`FieldValues`](super::super::FieldValues) multiplies in 64 bits.
const VALUES_MAX: u128 = 1 << 32;
/// The letters of TCP flags, from the lowest bit (RFC 9293 section 3.1).
const TCP_FLAGS: &str = "FSRPAUEC";

impl Value {
    /// A single value.
    pub(in crate::craft) const fn constant(first: u128) -> Self {
        Self { first, n: NonZeroU64::MIN, succession: ValueSequence::Step(1), per: ChangePer::Flow }
    }

    /// A random value of a range for each flow.
    pub(in crate::craft) fn any((low, high): (u128, u128)) -> Self {
        let n = u64::try_from(high - low + 1).ok().and_then(NonZeroU64::new);
        Self { succession: ValueSequence::Random, n: n.unwrap_or(NonZeroU64::MIN), ..Self::constant(low) }
    }

    /// Whether it is a range.
    #[must_use]
    pub(in crate::craft) fn is_range(&self) -> bool {
        self.n > NonZeroU64::MIN
    }

    /// Parses `VALUE`, `FIRST-LAST`, `FIRST-LAST+STEP`, `ADDRESS/LENGTH`, any of these with `?`, or a plain `?`.
    pub(super) fn read(text: &str, field: &FieldSpec) -> Result<Self, SpecFault> {
        let (range, is_random) = text.strip_suffix('?').map_or((text, false), |range| (range, true));
        if range.is_empty() && is_random {
            return field.any.map(Self::any).ok_or(SpecFault::NoRange(field.keyword));
        }
        let (range, step) = range.split_once('+').map_or((range, None), |(range, step)| (range, Some(step)));
        let (low, high) = bounds(range, field)?;
        if low == high && (is_random || step.is_some()) {
            return Err(if is_random { SpecFault::NoRange(field.keyword) } else { SpecFault::Step });
        }
        let by = match step {
            Some(_) if is_random => return Err(SpecFault::RandomSteps),
            Some(step) => step
                .parse::<u64>()
                .ok()
                .filter(|step| *step > 0 && u128::from(*step) <= high - low)
                .ok_or(SpecFault::Step)?,
            None => 1,
        };
        let n = (high - low) / u128::from(by) + 1;
        let n = u64::try_from(n).ok().filter(|n| u128::from(*n) <= VALUES_MAX).and_then(NonZeroU64::new);
        let succession = if is_random { ValueSequence::Random } else { ValueSequence::Step(by) };
        Ok(Self { succession, n: n.ok_or(SpecFault::TooWide)?, ..Self::constant(low) })
    }
}

/// Returns the lowest and the highest value of a range; both are the same for a single value.
fn bounds(text: &str, field: &FieldSpec) -> Result<(u128, u128), SpecFault> {
    let (low, high) = match text.split_once('-') {
        Some((low, high)) => (parse_value(low, field)?, parse_value(high, field)?),
        None => match text.split_once('/') {
            Some((address, length)) => {
                subnet(address, length, field).ok_or_else(|| SpecFault::not_a_value(text, field))?
            }
            None => (parse_value(text, field)?, parse_value(text, field)?),
        },
    };
    if low > high {
        return Err(SpecFault::Backwards);
    }
    if field.bits > 64 && low >> 64 != high >> 64 {
        return Err(SpecFault::UpperHalf);
    }
    Ok((low, high))
}

/// Returns the range of host addresses in a subnet. For IPv4 it excludes the network and broadcast addresses.
fn subnet(address: &str, length: &str, field: &FieldSpec) -> Option<(u128, u128)> {
    if !matches!(field.notation, Notation::Ipv4 | Notation::Ipv6) {
        return None;
    }
    let n_bits = field.bits - length.parse::<usize>().ok().filter(|length| *length <= field.bits)?;
    let hosts = if n_bits == 128 { u128::MAX } else { (1 << n_bits) - 1 };
    let low = parse_value(address, field).ok()? & !hosts;
    let spare = u128::from(field.notation == Notation::Ipv4 && n_bits > 1);
    Some((low + spare, (low | hosts) - spare))
}

/// Parses a single value.
pub(super) fn parse_value(text: &str, field: &FieldSpec) -> Result<u128, SpecFault> {
    let value = match field.notation {
        Notation::Number => parse_number(text),
        Notation::Mac => {
            text.parse().ok().map(|MacAddress(bytes)| bytes.iter().fold(0, |all, byte| all << 8 | u128::from(*byte)))
        }
        Notation::Ipv4 => text.parse::<Ipv4Addr>().ok().map(|address| address.to_bits().into()),
        Notation::Ipv6 => text.parse::<Ipv6Addr>().ok().map(Ipv6Addr::to_bits),
        Notation::TcpFlags => flags(text).or_else(|| parse_number(text)),
    };
    let value = value.ok_or_else(|| SpecFault::not_a_value(text, field))?;
    let is_small = value <= field.max();
    is_small.then_some(value).ok_or_else(|| SpecFault::TooGreat { word: field.keyword, max: field.max().to_string() })
}

/// Parses a number in decimal or after `0x`. It may have no sign.
pub(super) fn parse_number(text: &str) -> Option<u128> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    let is_number = digits.chars().all(|digit| digit.is_digit(radix));
    is_number.then(|| u128::from_str_radix(digits, radix).ok()).flatten()
}

fn flags(text: &str) -> Option<u128> {
    let first = (!text.is_empty()).then_some(0);
    text.chars().try_fold(first?, |all, letter| Some(all | 1 << TCP_FLAGS.find(letter)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::craft::header::HeaderSpec;

    fn read(header: &str, field: &str, text: &str) -> Result<Value, SpecFault> {
        Value::read(text, HeaderSpec::find(header).unwrap().field(field).unwrap())
    }

    fn values(value: Value) -> (u128, u64, ValueSequence) {
        (value.first, value.n.get(), value.succession)
    }

    #[test]
    fn values_are_read_as_their_fields_write_them() {
        let one = |header, field, text| read(header, field, text).unwrap().first;
        assert_eq!(one("ip", "ttl", "64"), 64);
        assert_eq!(one("ip", "id", "0xbeef"), 0xbeef);
        assert_eq!(one("ip", "src", "198.18.0.1"), 0xc612_0001);
        assert_eq!(one("ip6", "src", "2001:db8::1"), 0x2001_0db8 << 96 | 1);
        assert_eq!(one("eth", "src", "02:00:00:00:00:ff"), 0x0200_0000_00ff);
        assert_eq!(one("tcp", "flags", "SA"), 0x12);
        assert_eq!(one("tcp", "flags", "0xff"), 0xff);
    }

    #[test]
    fn ranges_step_or_are_random() {
        let of = |header, field, text| values(read(header, field, text).unwrap());
        assert_eq!(of("udp", "src", "1024-65535"), (1024, 64_512, ValueSequence::Step(1)));
        assert_eq!(of("udp", "src", "10-20+5"), (10, 3, ValueSequence::Step(5)));
        assert_eq!(of("udp", "src", "10-24+5"), (10, 3, ValueSequence::Step(5)));
        assert_eq!(of("udp", "src", "?"), (1024, 64_512, ValueSequence::Random));
        assert_eq!(of("udp", "dst", "?"), (1, 49_151, ValueSequence::Random));
        assert_eq!(of("ip", "dst", "10.0.0.0/24"), (0x0a00_0001, 254, ValueSequence::Step(1)));
        assert_eq!(of("ip", "dst", "10.0.0.9/31?"), (0x0a00_0008, 2, ValueSequence::Random));
        assert_eq!(of("ip6", "dst", "fd00::/96?"), (0xfd00 << 112, 1 << 32, ValueSequence::Random));
        assert_eq!(
            of("eth", "src", "02:00:00:00:00:01-02:00:00:00:00:0a"),
            (0x0200_0000_0001, 10, ValueSequence::Step(1))
        );
    }

    #[test]
    fn what_is_no_value_is_refused() {
        let fault = |header, field, text| read(header, field, text).unwrap_err();
        assert_eq!(fault("ip", "ttl", "256"), SpecFault::TooGreat { word: "ttl", max: "255".to_owned() });
        assert_eq!(fault("ip", "ttl", "9-3"), SpecFault::Backwards);
        assert_eq!(fault("ip", "ttl", "3?"), SpecFault::NoRange("ttl"));
        assert_eq!(fault("ip", "dst", "?"), SpecFault::NoRange("dst"));
        assert_eq!(fault("ip", "ttl", "1-9+2?"), SpecFault::RandomSteps);
        assert_eq!(fault("ip", "ttl", "1-9+0"), SpecFault::Step);
        assert_eq!(fault("ip", "ttl", "7+1"), SpecFault::Step);
        assert_eq!(fault("ip", "ttl", "7-8+2"), SpecFault::Step);
        assert_eq!(fault("ip6", "dst", "fd00::/64"), SpecFault::TooWide);
        assert_eq!(fault("ip6", "dst", "fd00::-fd01::"), SpecFault::UpperHalf);
        for text in ["", "x", "+5", "-", "1-", "0x", "1 ", "16/8", "99999999999999999999999999999999999999999"] {
            assert!(matches!(fault("ip", "ttl", text), SpecFault::NotValue { .. }), "{text}");
        }
        assert!(matches!(fault("tcp", "flags", "SX"), SpecFault::NotValue { .. }));
    }
}

//! Converts values to positions and selects the labeled values of an axis. Pure arithmetic.

use fathom_model::{Unit, units::approximate};

/// A mapping from a range of values to pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    log: bool,
    domain: (f64, f64),
    range: (f64, f64),
}

impl Scale {
    /// Creates a linear scale.
    pub(crate) const fn linear(domain: (f64, f64), range: (f64, f64)) -> Self {
        Self { log: false, domain, range }
    }

    /// Creates a logarithmic scale. Both ends of the domain must be above zero.
    pub(crate) fn log(domain: (f64, f64), range: (f64, f64)) -> Self {
        assert!(domain.0 > 0.0 && domain.1 > 0.0, "a logarithmic axis from {} to {}", domain.0, domain.1);
        Self { log: true, domain, range }
    }

    /// Returns the position of a value. Values outside the domain are clamped to its ends.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let along = |v: f64| if self.log { v.max(f64::MIN_POSITIVE).ln() } else { v };
        let (low, high) = (along(self.domain.0), along(self.domain.1));
        let share = if high > low { (along(value) - low) / (high - low) } else { 0.5 };
        self.range.0 + share.clamp(0.0, 1.0) * (self.range.1 - self.range.0)
    }

    /// Describes the scale for the page's script: kind, pixels, values, unit.
    pub(crate) fn describe(&self, unit: &str) -> String {
        let ((p0, p1), (v0, v1)) = (self.range, self.domain);
        format!("{} {p0:.1} {p1:.1} {v0} {v1} {unit}", if self.log { "log" } else { "lin" })
    }
}

/// Returns the step of 1, 2 or 5 times a power of ten that divides a span into about `parts` parts.
pub(crate) fn step(span: f64, parts: f64) -> f64 {
    if span <= 0.0 || !span.is_finite() {
        return 1.0;
    }
    let raw = span / parts;
    let power = 10_f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= raw * 0.999_999).unwrap_or(10.0);
    factor * power
}

/// Returns the multiples of the step from zero to the first one that is not below `high`.
pub(crate) fn ticks_from_zero(high: f64, parts: f64) -> Vec<f64> {
    let step = step(high, parts);
    let mut ticks = vec![0.0];
    while ticks.last().is_some_and(|last| *last < high * 0.999_999) && ticks.len() < 100 {
        ticks.push(step * approximate(ticks.len() as u64));
    }
    ticks
}

/// Returns the ticks of a logarithmic axis, including its ends: 1, 2, 5 per decade for few decades, otherwise powers of ten.
pub(crate) fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (high / low).log10();
    let factors: &[f64] = if decades <= 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let mut all = Vec::new();
    let mut power = 10_f64.powf(low.log10().floor());
    while power <= high * 10.0 && all.len() < 100 {
        all.extend(factors.iter().map(|factor| factor * power));
        power *= 10.0;
    }
    let first = all.iter().rposition(|tick| *tick <= low * 1.000_001).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high * 0.999_999).unwrap_or(all.len() - 1);
    all[first..=last.max(first)].to_vec()
}

/// Returns the multiple of a unit for the labels of an axis up to `high`: its size and its name.
pub(crate) fn magnitude(unit: Unit, high: f64) -> (f64, String) {
    let si = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let prefix = si.into_iter().find(|(size, _)| high >= *size).unwrap_or((1.0, ""));
    let (size, name) = match unit {
        Unit::Ratio => return (0.01, "%".to_owned()),
        Unit::Nanos => {
            let times = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
            let (size, name) = times.into_iter().find(|(size, _)| high >= *size).unwrap_or((1.0, "ns"));
            return (size, name.to_owned());
        }
        Unit::BitsPerSec => (prefix.0, format!("{}bit/s", prefix.1)),
        Unit::FramesPerSec => (prefix.0, format!("{}pps", prefix.1)),
        Unit::RequestsPerSec => (prefix.0, format!("{} req/s", prefix.1)),
        Unit::PerSec => (prefix.0, format!("{}/s", prefix.1)),
        Unit::Bytes => (prefix.0, format!("{}B", prefix.1)),
        Unit::Count => (prefix.0, prefix.1.to_owned()),
    };
    (size, name.trim_start().to_owned())
}

/// Formats a number for an axis, without trailing zeros.
pub(crate) fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_one_two_or_five_times_a_power_of_ten() {
        for (span, parts, expected) in [(10.0, 5.0, 2.0), (9.1, 4.0, 5.0), (0.3, 3.0, 0.1), (4.7e9, 5.0, 1e9)] {
            assert!((step(span, parts) - expected).abs() < expected * 1e-9, "{span} in {parts}");
        }
    }

    #[test]
    fn ticks_begin_at_zero_and_enclose_the_highest_value() {
        assert_eq!(ticks_from_zero(9.1, 5.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks_from_zero(0.0, 5.0), [0.0]);
        assert_eq!(ticks_from_zero(2.0, 2.0), [0.0, 1.0, 2.0]);
    }

    #[test]
    fn logarithmic_ticks_enclose_the_values_and_thin_out() {
        let labels = |low, high| log_ticks(low, high).into_iter().map(label).collect::<Vec<_>>().join(" ");
        assert_eq!(labels(30.0, 1800.0), "20 50 100 200 500 1000 2000");
        assert_eq!(labels(30.0, 2_000_000.0), "10 100 1000 10000 100000 1000000 10000000");
        assert_eq!(labels(100.0, 100.0), "100");
    }

    #[test]
    fn a_scale_puts_values_where_they_belong_and_never_outside() {
        let linear = Scale::linear((0.0, 10.0), (200.0, 0.0));
        assert!((linear.at(5.0) - 100.0).abs() < 1e-9 && linear.at(20.0).abs() < 1e-9);
        let log = Scale::log((1.0, 10_000.0), (0.0, 400.0));
        assert!((log.at(100.0) - 200.0).abs() < 1e-9 && log.at(0.0).abs() < 1e-9);
    }

    #[test]
    fn an_axis_is_labelled_in_the_multiple_that_gives_short_numbers() {
        let cases = [
            (Unit::BitsPerSec, 9.1e9, "Gbit/s"),
            (Unit::RequestsPerSec, 2e5, "k req/s"),
            (Unit::RequestsPerSec, 200.0, "req/s"),
            (Unit::Nanos, 48_200.0, "µs"),
            (Unit::FramesPerSec, 3.1e6, "Mpps"),
        ];
        for (unit, high, name) in cases {
            assert_eq!(magnitude(unit, high).1, name);
        }
    }
}

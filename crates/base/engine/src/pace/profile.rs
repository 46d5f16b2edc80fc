//! A rate over time, made of steps and ramps.

use std::str::FromStr;

use fathom_model::units::{Nanos, PerSec, UnitError, rounded};

/// Why a text is not a valid profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// A part is not of the form `RATE:SPAN` or `RATE-RATE:SPAN`.
    #[error("`{0}` is neither a step such as 10k:10s nor a ramp such as 0-20k:30s")]
    Part(String),
    /// A rate or a duration cannot be parsed.
    #[error("`{part}`: {cause}")]
    Unit {
        /// The part that contains it.
        part: String,
        /// The parse error.
        cause: UnitError,
    },
    /// No event would ever be due.
    #[error("the rate is 0 throughout")]
    Nothing,
}

/// A segment of a profile, during which the rate is constant or changes linearly.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Segment {
    /// Its beginning, in seconds from the start.
    begin: f64,
    /// Its length in seconds; infinite for the last segment of a steady rate.
    span: f64,
    /// The number of events in the segments before it.
    before: f64,
    /// Events per second at its beginning, and the increase of that rate per second.
    rate: f64,
    growth: f64,
}

impl Segment {
    fn n_events(&self) -> f64 {
        // A step may have infinite length, and infinity times a growth of zero is NaN.
        let grown = if self.growth == 0.0 { 0.0 } else { self.growth * self.span / 2.0 };
        self.span * (self.rate + grown)
    }

    /// Returns the time from the beginning of the segment until `n` of its events have occurred.
    ///
    /// Solves `n = rate·t + growth·t²/2` in the form that loses no precision when either term is small.
    fn time_of(&self, n: f64) -> f64 {
        let speed = (self.rate * self.rate + 2.0 * self.growth * n).max(0.0).sqrt();
        2.0 * n / (self.rate + speed)
    }
}

/// The requested events per second over the time since the start.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile(Vec<Segment>);

impl Profile {
    /// A constant rate without end; `None` for a rate of zero.
    #[must_use]
    pub fn steady(rate: PerSec) -> Option<Self> {
        let segment = Segment { begin: 0.0, span: f64::INFINITY, before: 0.0, rate: rate.get(), growth: 0.0 };
        (rate.get() > 0.0).then(|| Self(vec![segment]))
    }

    /// The total length; `None` if it has no end.
    #[must_use]
    pub fn length(&self) -> Option<Nanos> {
        let end: f64 = self.0.iter().map(|segment| segment.span).sum();
        end.is_finite().then(|| Nanos::from_secs_f64(end))
    }

    /// The highest rate of the profile.
    #[must_use]
    pub fn peak(&self) -> PerSec {
        let end = |segment: &Segment| if segment.growth > 0.0 { segment.growth * segment.span } else { 0.0 };
        let peak = self.0.iter().map(|segment| segment.rate + end(segment)).fold(0.0, f64::max);
        PerSec::new(peak).unwrap_or_default()
    }

    /// Returns when the expected number of events reaches `n`. `from` is the first segment to search and is set to the one found.
    ///
    /// Returns `None` beyond the end.
    pub(super) fn time_of(&self, n: f64, from: &mut usize) -> Option<Nanos> {
        let rest = self.0.get(*from..)?;
        let skipped = rest.iter().position(|segment| n < segment.before + segment.n_events())?;
        *from += skipped;
        let segment = &self.0[*from];
        Some(Nanos(rounded((segment.begin + segment.time_of(n - segment.before)) * 1e9)))
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    /// Parses steps `10k:10s,20k:10s` and ramps `0-20k:30s`, in any combination.
    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let mut segments: Vec<Segment> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (rates, span) = part.rsplit_once(':').ok_or_else(|| ProfileError::Part(part.to_owned()))?;
            let unit = |cause| ProfileError::Unit { part: part.to_owned(), cause };
            let rate = |text: &str| text.trim().parse::<PerSec>().map(PerSec::get).map_err(unit);
            let span = span.trim().parse::<Nanos>().map_err(unit)?.as_secs_f64();
            if span <= 0.0 {
                return Err(ProfileError::Part(part.to_owned()));
            }
            let (from, to) = rates.split_once('-').unwrap_or((rates, rates));
            let (rate, to) = (rate(from)?, rate(to)?);
            let (begin, before) =
                segments.last().map_or((0.0, 0.0), |last| (last.begin + last.span, last.before + last.n_events()));
            segments.push(Segment { begin, span, before, rate, growth: (to - rate) / span });
        }
        let profile = Self(segments);
        if profile.peak().get() > 0.0 { Ok(profile) } else { Err(ProfileError::Nothing) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(text: &str) -> Vec<f64> {
        let profile: Profile = text.parse().unwrap();
        let mut from = 0;
        (0_u32..).map_while(|n| profile.time_of(f64::from(n), &mut from)).map(Nanos::as_secs_f64).collect()
    }

    #[test]
    fn a_step_holds_its_rate_for_its_span() {
        assert_eq!(times("2:2s,4:1s"), [0.0, 0.5, 1.0, 1.5, 2.0, 2.25, 2.5, 2.75]);
        assert_eq!(times("1:1s,0:10s,1:1s"), [0.0, 11.0], "nothing is due in a part of rate 0");
    }

    #[test]
    fn a_ramp_holds_the_mean_of_its_rates() {
        for (text, n) in [("0-1000:2s", 1000), ("1000-0:2s", 1000), ("500-1500:2s", 2000)] {
            let times = times(text);
            assert_eq!(times.len(), n, "{text}");
            assert!(times.is_sorted() && times[n - 1] < 2.0, "{text}");
        }
        // In a ramp from zero, a quarter of the events occur in the first half of the time.
        let early = times("0-1000:2s").iter().filter(|time| **time < 1.0).count();
        assert_eq!(early, 250);
    }

    #[test]
    fn length_and_peak_are_those_of_all_parts() {
        let profile: Profile = "10k:10s, 0-20k:30s, 5k:500ms".parse().unwrap();
        assert_eq!(profile.length(), Some(Nanos::from_millis(40_500)));
        assert_eq!(rounded(profile.peak().get()), 20_000);
        assert_eq!(Profile::steady(PerSec::new(7.0).unwrap()).unwrap().length(), None);
    }

    #[test]
    fn what_is_wrong_with_a_profile_is_named() {
        for text in ["", "10k", "10k:0s", "10k:10s,"] {
            assert!(matches!(text.parse::<Profile>(), Err(ProfileError::Part(_))), "{text}");
        }
        for text in ["fast:10s", "10k:soon", "1-2-3:1s"] {
            assert!(matches!(text.parse::<Profile>(), Err(ProfileError::Unit { .. })), "{text}");
        }
        assert_eq!("0:1s,0-0:1s".parse::<Profile>(), Err(ProfileError::Nothing));
    }
}

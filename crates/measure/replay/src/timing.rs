//! When the requests of a recording are due.

use fathom_engine::Error;
use fathom_model::{
    Settings,
    settings::SettingError,
    units::{Nanos, PerSec, approximate, rounded},
};

/// The slowest and the fastest speed.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.001..=10_000.0;

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Timing {
    /// As they were, so many times as fast.
    Recorded { speed: f64 },
    /// In their order, so many per second.
    Rate(PerSec),
    /// Each when the one before it on its connection is answered, and a connection when another is over.
    AsAnswered,
}

impl Timing {
    /// Reads the options `speed` and `rate`.
    ///
    /// # Errors
    /// Names the option that is wrong.
    pub fn of(settings: &Settings) -> Result<Self, Error> {
        let speed = settings.text("speed");
        if let Some(rate) = settings.rate("rate") {
            return match speed {
                None if rate.get() > 0.0 => Ok(Self::Rate(rate)),
                None => Err(wrong("rate", "more than 0 requests per second", rate.to_string())),
                Some(speed) => Err(wrong("speed", "no value beside --rate, which says when requests are due", speed)),
            };
        }
        let Some(text) = speed else { return Ok(Self::Recorded { speed: 1.0 }) };
        if text == "max" {
            return Ok(Self::AsAnswered);
        }
        let factor = text.strip_suffix('x').unwrap_or(&text).parse::<f64>().ok();
        let factor = factor.filter(|factor| SPEEDS.contains(factor));
        factor
            .map(|speed| Self::Recorded { speed })
            .ok_or_else(|| wrong("speed", "0.001x to 10000x, or max for as fast as answers come", text))
    }

    /// The title of a test: the file, and when its requests are sent.
    pub(crate) fn title(settings: &Settings) -> String {
        let file = settings.text("file").unwrap_or_default();
        let name = file.rsplit('/').next().unwrap_or_default();
        match Self::of(settings) {
            Ok(Self::Rate(rate)) => format!("replay of {name} at {rate}"),
            Ok(Self::AsAnswered) => format!("replay of {name}, as fast as answers come"),
            Ok(Self::Recorded { speed }) if (speed - 1.0).abs() > f64::EPSILON => {
                format!("replay of {name}, {speed}x")
            }
            _ => format!("replay of {name}"),
        }
    }

    /// The time from the start at which a request is due, by its time since the first one in the recording; at once if that does not
    /// decide.
    pub(crate) fn due(self, after: Nanos) -> Nanos {
        match self {
            Self::Recorded { speed } => Nanos(rounded(approximate(after.0) / speed)),
            Self::Rate(_) | Self::AsAnswered => Nanos::ZERO,
        }
    }

    /// The timing of each of so many copies, so that all together keep to a rate.
    pub(crate) fn per_copy(self, n_copies: usize) -> Self {
        match self {
            Self::Rate(rate) => PerSec::new(rate.get() / approximate(n_copies as u64)).map_or(self, Self::Rate),
            timing => timing,
        }
    }

    /// The time that a recording of `n` requests over a span takes; `None` if only the server decides.
    #[must_use]
    pub fn length(self, n: u64, span: Nanos) -> Option<Nanos> {
        match self {
            Self::Recorded { .. } => Some(self.due(span)),
            Self::Rate(rate) => Some(rate_time(rate, n)),
            Self::AsAnswered => None,
        }
    }
}

/// The time from the start at which the request number `n`, from 0, is due at a rate.
pub(crate) fn rate_time(rate: PerSec, n: u64) -> Nanos {
    Nanos(rounded(approximate(n) / rate.get() * 1e9))
}

fn wrong(name: &str, expected: &str, given: String) -> Error {
    SettingError::NotAllowed { name: name.to_owned(), expected: expected.to_owned(), given }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(options: &[(&str, &str)]) -> Result<Timing, Error> {
        let settings = options.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
        Timing::of(&settings)
    }

    #[test]
    fn requests_are_due_as_recorded_or_at_a_rate() {
        let second = Nanos::from_secs(1);
        for (options, due, length) in [
            (&[][..], 1000, Some(1000)),
            (&[("speed", "2x")], 500, Some(500)),
            (&[("speed", "0.5")], 2000, Some(2000)),
            (&[("rate", "100")], 0, Some(90)),
            (&[("speed", "max")], 0, None),
        ] {
            let timing = timing(options).unwrap();
            assert_eq!(timing.due(second), Nanos::from_millis(due), "{options:?}");
            assert_eq!(timing.length(9, second), length.map(Nanos::from_millis), "{options:?}");
        }
    }

    #[test]
    fn a_wrong_speed_is_named() {
        for options in
            [&[("speed", "0x")][..], &[("speed", "fast")], &[("speed", "NaN")], &[("speed", "2x"), ("rate", "5")]]
        {
            let error = timing(options).unwrap_err().to_string();
            assert!(error.contains("`speed`") && error.contains(options[0].1), "{error}");
        }
    }
}

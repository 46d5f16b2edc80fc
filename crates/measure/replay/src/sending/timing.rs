//! When the requests of a recording are due.

use fathom_engine::Error;
use fathom_model::{
    Settings,
    settings::SettingError,
    units::{Nanos, PerSec},
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

    /// The time from the start at which the request number `order` of all is due; `after` is its time in the recording.
    pub(super) fn due(self, order: usize, after: Nanos) -> Nanos {
        match self {
            Self::Recorded { speed } => Nanos((after.0 as f64 / speed) as u64),
            Self::Rate(rate) => Nanos((order as f64 / rate.get() * 1e9) as u64),
            Self::AsAnswered => Nanos::ZERO,
        }
    }

    /// The time that a recording of `n` requests over a span takes; `None` if only the server decides.
    #[must_use]
    pub fn length(self, n: u64, span: Nanos) -> Option<Nanos> {
        (self != Self::AsAnswered).then(|| self.due(usize::try_from(n).unwrap_or(usize::MAX), span))
    }
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
        for (options, due) in [
            (&[][..], 1000),
            (&[("speed", "2x")], 500),
            (&[("speed", "0.5")], 2000),
            (&[("rate", "100")], 70),
            (&[("speed", "max")], 0),
        ] {
            assert_eq!(timing(options).unwrap().due(7, second), Nanos::from_millis(due), "{options:?}");
        }
        assert_eq!(timing(&[("speed", "4x")]).unwrap().length(9, second), Some(Nanos::from_millis(250)));
        assert_eq!(timing(&[("speed", "max")]).unwrap().length(9, second), None);
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

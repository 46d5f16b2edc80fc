//! The distribution of messages over time, as a user writes it.

use std::str::FromStr;

use fathom_model::units::PerSec;

use super::TrafficError;

/// The most messages of one burst, equal to the largest batch of a system call.
const BURST_MAX: u64 = 1024;
/// The largest spread of frames: beyond it very few frames determine a log-normal mean.
const SPREAD_MAX: f64 = 3.0;

/// The distribution of messages over time at a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TrafficPattern {
    /// At equal intervals.
    Constant,
    /// This many back to back, with bursts at equal intervals; without a number, the messages due in each millisecond.
    Bursts(Option<u64>),
    /// Like video: the messages of a frame back to back, with this many frames per second.
    Frames {
        per_sec: PerSec,
        /// The standard deviation of a frame's size relative to its mean; the sizes are log-normal.
        spread: f64,
    },
    /// At random and independently of each other.
    Poisson,
}

impl FromStr for TrafficPattern {
    type Err = TrafficError;

    /// Reads `constant`, `bursts`, `bursts:N`, `frames:FPS`, `frames:FPS:SPREAD%` and `poisson`.
    fn from_str(text: &str) -> Result<Self, TrafficError> {
        let (word, rest) = text.split_once(':').map_or((text, None), |(word, rest)| (word, Some(rest)));
        match (word, rest) {
            ("constant", None) => Ok(Self::Constant),
            ("poisson", None) => Ok(Self::Poisson),
            ("bursts", None) => Ok(Self::Bursts(None)),
            ("bursts", Some(n)) => {
                let of = n.parse().ok().filter(|n| (1..=BURST_MAX).contains(n));
                of.map(|of| Self::Bursts(Some(of))).ok_or(TrafficError::Burst)
            }
            ("frames", Some(rest)) => {
                let (rate, spread) = rest.split_once(':').map_or((rest, None), |(rate, spread)| (rate, Some(spread)));
                let frames = rate.parse().ok().filter(|rate| (0.1..=10_000.0).contains(rate)).and_then(PerSec::new);
                let per_sec = frames.ok_or(TrafficError::FrameRate)?;
                let Some(spread) = spread else { return Ok(Self::Frames { per_sec, spread: 0.0 }) };
                let part = spread.strip_suffix('%').and_then(|text| text.parse::<f64>().ok()).map(|part| part / 100.0);
                let spread = part.filter(|part| (0.0..=SPREAD_MAX).contains(part)).ok_or(TrafficError::Spread)?;
                Ok(Self::Frames { per_sec, spread })
            }
            _ => Err(TrafficError::Pattern),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_read() {
        let frames = |per_sec, spread| TrafficPattern::Frames { per_sec: PerSec::new(per_sec).unwrap(), spread };
        for (text, traffic) in [
            ("constant", TrafficPattern::Constant),
            ("poisson", TrafficPattern::Poisson),
            ("bursts", TrafficPattern::Bursts(None)),
            ("bursts:32", TrafficPattern::Bursts(Some(32))),
            ("frames:60", frames(60.0, 0.0)),
            ("frames:29.97:25%", frames(29.97, 0.25)),
        ] {
            assert_eq!(text.parse(), Ok(traffic), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (error, texts) in [
            (TrafficError::Pattern, &["", "burst", "constant:1", "frames", "poisson:7"][..]),
            (TrafficError::Burst, &["bursts:0", "bursts:1025", "bursts:"]),
            (TrafficError::FrameRate, &["frames:0", "frames:x", "frames:nan", "frames:10001:5%"]),
            (TrafficError::Spread, &["frames:60:10", "frames:60:-1%", "frames:60:301%", "frames:60:nan%"]),
        ] {
            for text in texts {
                assert_eq!(text.parse::<TrafficPattern>(), Err(error), "{text}");
            }
        }
    }
}

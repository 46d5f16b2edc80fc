//! The delay of an answer, as a distribution.
//!
//! A delay is drawn by inverse transform sampling: [`Delay::at`] maps a uniform number through the inverse of the distribution
//! function, so the distribution can be tested without random draws. This module knows no clock.

use std::str::FromStr;

use fathom_model::units::{Nanos, approximate, rounded};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use statrs::distribution::{ContinuousCDF as _, Exp, Normal};

use super::{
    InvalidText,
    fraction::{Fraction, sum_to_whole},
};

/// The longest delay: clients have given up by then. Draws of an unbounded distribution beyond it are clamped to it.
const DELAY_MAX: Nanos = Nanos::from_secs(60);

/// The distribution of the time from a request to its answer.
///
/// As text: `5ms`, `uniform 1ms..5ms`, `exponential 2ms` (its mean), `normal 5ms 1ms` (mean and standard deviation, truncated at
/// zero), or a mix of these: `90% 1ms, 10% exponential 20ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delay(Vec<(Fraction, DelayDistribution)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DelayDistribution {
    Constant(Nanos),
    Uniform(Nanos, Nanos),
    Exponential(Nanos),
    Normal(Nanos, Nanos),
}

impl Delay {
    /// The same delay for every answer.
    #[must_use]
    pub fn constant(span: Nanos) -> Self {
        Self(vec![(Fraction(super::fraction::WHOLE), DelayDistribution::Constant(span))])
    }

    /// Whether all answers are sent without delay.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.iter().all(|(_, law)| *law == DelayDistribution::Constant(Nanos::ZERO))
    }

    /// Maps a uniform number from 0 to 1 to a delay.
    ///
    /// Within each part of a mix this is the quantile of the number.
    #[must_use]
    pub fn at(&self, number: f64) -> Nanos {
        let total: f64 = self.0.iter().map(|(share, _)| f64::from(share.0)).sum();
        let mut left = number.clamp(0.0, 1.0) * total;
        let last = self.0.len() - 1;
        for (idx, (share, law)) in self.0.iter().enumerate() {
            let share = f64::from(share.0);
            if left < share || idx == last {
                return law.quantile((left / share).min(1.0)).min(DELAY_MAX);
            }
            left -= share;
        }
        Nanos::ZERO
    }
}

impl DelayDistribution {
    fn quantile(self, p: f64) -> Nanos {
        match self {
            Self::Constant(span) => span,
            Self::Uniform(low, high) => low + Nanos(rounded(p * approximate((high - low).0))),
            Self::Exponential(mean) => {
                Exp::new(1.0 / approximate(mean.0)).map_or(mean, |law| nanos(law.inverse_cdf(p)))
            }
            Self::Normal(mean, deviation) => {
                // The distribution is truncated at zero: the numbers are spread over the rest.
                Normal::new(approximate(mean.0), approximate(deviation.0)).map_or(mean, |law| {
                    let below = law.cdf(0.0);
                    nanos(law.inverse_cdf(below + p * (1.0 - below)))
                })
            }
        }
    }

    /// The longest of its parameters.
    fn longest(self) -> Nanos {
        match self {
            Self::Constant(span) | Self::Uniform(_, span) | Self::Exponential(span) => span,
            Self::Normal(mean, deviation) => mean.max(deviation),
        }
    }
}

fn nanos(ns: f64) -> Nanos {
    // Infinity, the last quantile of an unbounded distribution, becomes the longest delay.
    if ns < approximate(DELAY_MAX.0) { Nanos(rounded(ns)) } else { DELAY_MAX }
}

impl FromStr for Delay {
    type Err = InvalidText;

    fn from_str(text: &str) -> Result<Self, InvalidText> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let parts: Vec<(Fraction, DelayDistribution)> = match parts[..] {
            [one] if !one.contains('%') => vec![(Fraction(super::fraction::WHOLE), one.parse()?)],
            _ => parts
                .into_iter()
                .map(|part| {
                    let (share, law) = part.split_once('%').ok_or(InvalidText)?;
                    Ok((share.parse()?, law.parse()?))
                })
                .collect::<Result<_, InvalidText>>()?,
        };
        let is_sound = sum_to_whole(parts.iter().map(|(share, _)| *share));
        if is_sound { Ok(Self(parts)) } else { Err(InvalidText) }
    }
}

impl FromStr for DelayDistribution {
    type Err = InvalidText;

    fn from_str(text: &str) -> Result<Self, InvalidText> {
        let span = |text: &str| text.trim().parse::<Nanos>().map_err(|_| InvalidText);
        let (word, rest) = text.trim().split_once(char::is_whitespace).unwrap_or(("", text));
        let law = match word {
            "uniform" => {
                let (low, high) = rest.split_once("..").ok_or(InvalidText)?;
                Self::Uniform(span(low)?, span(high)?)
            }
            "exponential" => Self::Exponential(span(rest)?),
            "normal" => {
                let (mean, deviation) = rest.trim().split_once(char::is_whitespace).ok_or(InvalidText)?;
                Self::Normal(span(mean)?, span(deviation)?)
            }
            _ => Self::Constant(span(text)?),
        };
        let is_sound = law.longest() <= DELAY_MAX
            && match law {
                Self::Constant(_) => true,
                Self::Uniform(low, high) => low <= high,
                Self::Exponential(mean) => mean > Nanos::ZERO,
                Self::Normal(_, deviation) => deviation > Nanos::ZERO,
            };
        if is_sound { Ok(law) } else { Err(InvalidText) }
    }
}

/// A sequence of random delays; equal seeds give equal sequences.
#[derive(Debug)]
pub(super) struct DelaySequence {
    delay: Delay,
    numbers: SmallRng,
}

impl DelaySequence {
    pub(super) fn new(delay: Delay, seed: u64) -> Self {
        Self { delay, numbers: SmallRng::seed_from_u64(seed) }
    }

    pub(super) fn next(&mut self) -> Nanos {
        self.delay.at(self.numbers.random())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay(text: &str) -> Delay {
        text.parse().unwrap_or_else(|_| panic!("{text}"))
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn quantiles_are_those_of_the_distribution() {
        // Exponential: -ln(1-p). Normal: 1.2816 standard deviations at 90 %.
        let cases = [
            ("5ms", 0.0, 5 * MS),
            ("5ms", 1.0, 5 * MS),
            ("uniform 1ms..5ms", 0.0, MS),
            ("uniform 1ms..5ms", 0.25, 2 * MS),
            ("uniform 1ms .. 5ms", 1.0, 5 * MS),
            ("exponential 2ms", 0.5, 1_386_294),
            ("exponential 2ms", 0.99, 9_210_340),
            ("exponential 2ms", 1.0, DELAY_MAX.0),
            ("normal 50ms 1ms", 0.5, 50 * MS),
            ("normal 50ms 1ms", 0.9, 51_281_552),
            // Half of the distribution lies below zero, so the median of the rest is its 75 % quantile.
            ("normal 0s 1ms", 0.5, 674_490),
            ("90% 1ms, 10% 20ms", 0.89, MS),
            ("90% 1ms, 10% 20ms", 0.91, 20 * MS),
            ("50% uniform 0s..1ms,50% exponential 2ms", 0.75, 1_386_294),
        ];
        for (text, p, ns) in cases {
            let chosen = delay(text).at(p).0;
            assert!(chosen.abs_diff(ns) <= 1, "{text} at {p}: {chosen} for {ns}");
        }
    }

    #[test]
    fn what_is_drawn_spreads_like_the_distribution_and_follows_from_the_seed() {
        let delay = delay("80% exponential 2ms, 20% normal 5ms 1ms");
        let draw = |seed| {
            let mut draws = DelaySequence::new(delay.clone(), seed);
            (0..10_000).map(|_| draws.next()).collect::<Vec<_>>()
        };
        let mut drawn = draw(7);
        assert_eq!(drawn, draw(7));
        assert_ne!(drawn, draw(8));
        drawn.sort_unstable();
        let mut exact: Vec<Nanos> = (0..10_000).map(|i| delay.at((f64::from(i) + 0.5) / 10_000.0)).collect();
        exact.sort_unstable();
        // Kolmogorov-Smirnov: with ten thousand draws, a deviation beyond 2 % of rank has a probability below one in a thousand,
        // and this seed does not cause one.
        for rank in (200..9_800).step_by(100) {
            assert!((exact[rank - 200]..=exact[rank + 200]).contains(&drawn[rank]), "rank {rank}: {}", drawn[rank]);
        }
    }

    #[test]
    fn no_delay_is_known_as_such() {
        assert!(delay("0s").is_none());
        assert!(!delay("1ns").is_none());
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        let cases = [
            "",
            "x",
            "uniform 5ms",
            "uniform 5ms..1ms",
            "exponential 0s",
            "exponential",
            "normal 5ms",
            "normal 5ms 0s",
            "90% 1ms",
            "90% 1ms, 20% 2ms",
            "1ms, 2ms",
            "2min",
            "pareto 1ms",
        ];
        for text in cases {
            assert_eq!(text.parse::<Delay>(), Err(InvalidText), "{text}");
        }
    }
}

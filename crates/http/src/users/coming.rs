//! How users come: so many over a time, or by a schedule.

use fathom_engine::pace::{Arrivals, Process, Profile, Share};
use fathom_model::units::Nanos;

/// How users come, all workers together.
#[derive(Debug, Clone)]
pub enum Coming {
    /// So many, spread evenly over a time from the start on, each in a seat of its own.
    Population {
        /// At least 1.
        n: u64,
        /// Zero for all at once.
        over: Nanos,
    },
    /// By a schedule; one who finds no free seat waits for it.
    Arrivals {
        /// Users per second, over time.
        profile: Profile,
        /// How they are spread.
        process: Process,
        /// The most who are there at once, at least 1.
        n_seats: u64,
    },
}

impl Coming {
    /// The most users who are there at once.
    #[must_use]
    pub fn n_seats(&self) -> u64 {
        match self {
            Self::Population { n, .. } => *n,
            Self::Arrivals { n_seats, .. } => *n_seats,
        }
    }

    /// Whether users come when the schedule says, not when the trial begins.
    pub(super) fn is_scheduled(&self) -> bool {
        matches!(self, Self::Arrivals { .. })
    }

    /// Whether it has an end of its own, so that everything counts until then.
    pub(super) fn has_end(&self) -> bool {
        matches!(self, Self::Arrivals { profile, .. } if profile.length().is_some())
    }

    /// When the users of one worker come, since the start.
    pub(super) fn of(&self, share: Share) -> Comings {
        match self {
            Self::Population { n, over } => {
                Comings::Spread(Spread { n: *n, over: *over, next: share.idx as u64, step: share.of as u64 })
            }
            Self::Arrivals { profile, process, .. } => {
                Comings::Arrivals(Arrivals::new(profile.clone(), *process, share))
            }
        }
    }
}

/// When the users of one worker come, one after another.
#[derive(Debug, Clone)]
pub(super) enum Comings {
    Spread(Spread),
    Arrivals(Arrivals),
}

impl Iterator for Comings {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        match self {
            Self::Spread(spread) => spread.next(),
            Self::Arrivals(arrivals) => arrivals.next(),
        }
    }
}

/// Every so-many-th of users who are spread evenly over a time.
#[derive(Debug, Clone)]
pub(super) struct Spread {
    n: u64,
    over: Nanos,
    next: u64,
    step: u64,
}

impl Iterator for Spread {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        let nth = (self.next < self.n).then_some(self.next)?;
        self.next += self.step;
        // Years of nanoseconds times millions of users do not fit 64 bits.
        let at = u128::from(self.over.0) * u128::from(nth) / u128::from(self.n);
        Some(Nanos(u64::try_from(at).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_together_spread_a_population_evenly() {
        let population = Coming::Population { n: 10, over: Nanos::from_secs(1) };
        let mut all: Vec<Nanos> = (0..3).flat_map(|idx| population.of(Share { idx, of: 3 })).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq((0..10).map(|n| Nanos::from_millis(100 * n))));
        let at_once = Coming::Population { n: 4, over: Nanos::ZERO };
        assert!(at_once.of(Share { idx: 0, of: 1 }).eq([Nanos::ZERO; 4]));
    }
}

//! When users arrive: a fixed number over a time, or on a schedule.

use std::sync::Arc;

use fathom_engine::pace::{ArrivalProcess, Arrivals, Profile, WorkShare};
use fathom_model::units::Nanos;

/// The arrivals of users, all workers together.
#[derive(Debug, Clone)]
pub enum UserArrivals {
    /// A fixed number, spread evenly over a time from the start, each in its own slot.
    Population {
        /// At least 1.
        n: u64,
        /// Zero means all at once.
        ramp_up: Nanos,
    },
    /// On a schedule; a user that finds no free slot waits for one.
    Arrivals {
        /// Users per second, over time.
        profile: Profile,
        /// The distribution of the arrivals.
        process: ArrivalProcess,
        /// The most concurrent users, at least 1.
        n_slots: u64,
    },
    /// At given times; a user that finds no free slot waits for one.
    Times {
        /// Since the start, in order.
        times: Arc<[Nanos]>,
        /// The most concurrent users, at least 1.
        n_slots: u64,
    },
}

impl UserArrivals {
    /// The most concurrent users.
    #[must_use]
    pub fn n_slots(&self) -> u64 {
        match self {
            Self::Population { n, .. } => *n,
            Self::Arrivals { n_slots, .. } | Self::Times { n_slots, .. } => *n_slots,
        }
    }

    /// Whether arrivals follow a schedule instead of the start of the trial.
    pub(super) fn is_scheduled(&self) -> bool {
        matches!(self, Self::Arrivals { .. } | Self::Times { .. })
    }

    /// Whether the arrivals end by themselves, so that everything counts until then.
    pub(super) fn has_end(&self) -> bool {
        match self {
            Self::Population { .. } => false,
            Self::Arrivals { profile, .. } => profile.length().is_some(),
            Self::Times { .. } => true,
        }
    }

    /// The arrival times of one worker's users, since the start.
    pub(super) fn times_of(&self, share: WorkShare) -> ArrivalTimes {
        match self {
            Self::Population { n, ramp_up: over } => {
                ArrivalTimes::Spread(EvenArrivals { n: *n, over: *over, next: share.idx as u64, step: share.of as u64 })
            }
            Self::Arrivals { profile, process, .. } => {
                ArrivalTimes::Arrivals(Arrivals::new(profile.clone(), *process, share))
            }
            Self::Times { times, .. } => {
                ArrivalTimes::Given(GivenArrivals { times: Arc::clone(times), next: share.idx, step: share.of })
            }
        }
    }
}

/// The arrival times of one worker's users, in order.
#[derive(Debug, Clone)]
pub(super) enum ArrivalTimes {
    Spread(EvenArrivals),
    Arrivals(Arrivals),
    Given(GivenArrivals),
}

impl Iterator for ArrivalTimes {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        match self {
            Self::Spread(spread) => spread.next(),
            Self::Arrivals(arrivals) => arrivals.next(),
            Self::Given(given) => given.next(),
        }
    }
}

/// Every n-th of the users that come at given times.
#[derive(Debug, Clone)]
pub(super) struct GivenArrivals {
    times: Arc<[Nanos]>,
    next: usize,
    step: usize,
}

impl Iterator for GivenArrivals {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        let time = self.times.get(self.next).copied()?;
        self.next += self.step;
        Some(time)
    }
}

/// Every n-th of the users that are spread evenly over a time.
#[derive(Debug, Clone)]
pub(super) struct EvenArrivals {
    n: u64,
    over: Nanos,
    next: u64,
    step: u64,
}

impl Iterator for EvenArrivals {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        let nth = (self.next < self.n).then_some(self.next)?;
        self.next += self.step;
        // Years of nanoseconds times millions of users do not fit in 64 bits.
        let at = u128::from(self.over.0) * u128::from(nth) / u128::from(self.n);
        Some(Nanos(u64::try_from(at).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_together_spread_a_population_evenly() {
        let population = UserArrivals::Population { n: 10, ramp_up: Nanos::from_secs(1) };
        let mut all: Vec<Nanos> = (0..3).flat_map(|idx| population.times_of(WorkShare { idx, of: 3 })).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq((0..10).map(|n| Nanos::from_millis(100 * n))));
        let at_once = UserArrivals::Population { n: 4, ramp_up: Nanos::ZERO };
        assert!(at_once.times_of(WorkShare { idx: 0, of: 1 }).eq([Nanos::ZERO; 4]));
    }
}

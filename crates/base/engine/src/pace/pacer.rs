//! When a worker wakes to start due requests: once for each start, or periodically for all that have become due.
//!
//! A wake-up costs more than a send, so starts that share a wake-up are cheaper but late by a known time. Nothing here reads a clock.

use fathom_model::units::Nanos;

use super::{LATE, WakeLatency};

/// How precisely starts keep to their intended times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pacing {
    /// Each start has its own wake-up, and CPU time is spent to be on time.
    #[default]
    Precise,
    /// Starts that are due within a [`Pacing::PERIOD`] share a wake-up.
    Cheap,
}

impl Pacing {
    /// The minimum time between two wake-ups for starts; most load generators use timers of this length.
    pub const PERIOD: Nanos = Nanos::from_millis(1);

    /// Returns the lag beyond which a start counts as late, including the lag that the pacing mode itself causes.
    #[must_use]
    pub fn late_from(self) -> Nanos {
        match self {
            Self::Precise => LATE,
            Self::Cheap => Self::PERIOD + LATE,
        }
    }
}

/// The wake-ups of one worker.
#[derive(Debug)]
pub(crate) struct Pacer {
    pacing: Pacing,
    waking: WakeLatency,
    /// Nothing is started before this time.
    rests_until: Nanos,
}

impl Pacer {
    /// Creates the pacer of a worker that has not slept yet.
    #[must_use]
    pub(crate) fn new(pacing: Pacing) -> Self {
        Self { pacing, waking: WakeLatency::default(), rests_until: Nanos::ZERO }
    }

    /// Returns whether it is time to check for due requests.
    #[must_use]
    pub(crate) fn looks(&self, now: Nanos) -> bool {
        now >= self.rests_until
    }

    /// Records that a request became due and was started at `now`.
    pub(crate) fn started(&mut self, now: Nanos) {
        if self.pacing == Pacing::Cheap {
            self.rests_until = now + Pacing::PERIOD;
        }
    }

    /// Returns when to wake up for a start that is due at `due`.
    #[must_use]
    pub(crate) fn until(&self, due: Nanos) -> Nanos {
        match self.pacing {
            Pacing::Precise => due.since(self.waking.early()),
            Pacing::Cheap => due.max(self.rests_until),
        }
    }

    /// Learns from a sleep that was meant to end at `until`.
    pub(crate) fn learn(&mut self, until: Nanos, woke: Nanos) {
        self.waking.learn(until, woke);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cheap_worker_wakes_once_for_all_that_is_due_within_a_period() {
        let mut pacer = Pacer::new(Pacing::Cheap);
        let micros = Nanos::from_micros;
        assert!(pacer.looks(micros(0)), "the first start waits for nothing");
        pacer.started(micros(10));
        assert_eq!(pacer.until(micros(50)), micros(1010));
        assert!(!pacer.looks(micros(1009)) && pacer.looks(micros(1010)));
        // Requests that become due after the rest are not delayed.
        assert_eq!(pacer.until(micros(5000)), micros(5000));
    }

    #[test]
    fn a_precise_worker_always_looks_and_is_awake_in_time() {
        let mut pacer = Pacer::new(Pacing::Precise);
        (0..2_000).for_each(|_| pacer.learn(Nanos::ZERO, Nanos::from_micros(30)));
        pacer.started(Nanos::from_micros(10));
        assert!(pacer.looks(Nanos::from_micros(10)));
        let until = pacer.until(Nanos::from_micros(100));
        assert!(until < Nanos::from_micros(100) && until > Nanos::from_micros(80), "{until}");
    }
}

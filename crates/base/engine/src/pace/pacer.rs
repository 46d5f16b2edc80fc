//! When a worker wakes for what is due: for each start at its time, or now and then for all that have become due.
//!
//! Waking costs more than sending, so starts that share it are cheaper, and late by a known span. Knows no clock.

use fathom_model::units::Nanos;

use super::{LATE, WakeLatency};

/// How exactly starts keep to their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pacing {
    /// Each start has a wake-up of its own, and processor time is spent to be on time.
    #[default]
    Precise,
    /// Starts that are due within a [`Pacing::PERIOD`] share a wake-up.
    Cheap,
}

impl Pacing {
    /// The least time between two wake-ups for starts: as long as the timers of most load generators.
    pub const PERIOD: Nanos = Nanos::from_millis(1);

    /// From which lag on a start is late, beyond what the pacing itself makes of it.
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
pub struct Pacer {
    pacing: Pacing,
    waking: WakeLatency,
    /// Until then nothing more is started.
    rests_until: Nanos,
}

impl Pacer {
    /// A worker that has not slept yet.
    #[must_use]
    pub fn new(pacing: Pacing) -> Self {
        Self { pacing, waking: WakeLatency::default(), rests_until: Nanos::ZERO }
    }

    /// Whether it is time to look for what is due.
    #[must_use]
    pub fn looks(&self, now: Nanos) -> bool {
        now >= self.rests_until
    }

    /// Something became due and was started at `now`.
    pub fn started(&mut self, now: Nanos) {
        if self.pacing == Pacing::Cheap {
            self.rests_until = now + Pacing::PERIOD;
        }
    }

    /// Until when to sleep before a start that is due at `due`.
    #[must_use]
    pub fn until(&self, due: Nanos) -> Nanos {
        match self.pacing {
            Pacing::Precise => due.since(self.waking.early()),
            Pacing::Cheap => due.max(self.rests_until),
        }
    }

    /// Learns from a sleep that was to end at `until`.
    pub fn learn(&mut self, until: Nanos, woke: Nanos) {
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
        // What is due later than that is not delayed.
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

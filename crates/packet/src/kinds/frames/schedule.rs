//! When frames are due, and what becomes of those whose time was missed.

use fathom_engine::pace::{Constant, Pace};
use fathom_model::units::Nanos;

/// A constant rate that does not make up for a stall.
///
/// A sender that catches up after it was held up sends a burst that nobody asked for: the device under test drops it, and the
/// loss is the tool's. So what is late by more than a little is skipped, and shows as offered below intended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    pace: Constant,
    skipped: u64,
}

/// The most frames that may be late together: half of the 256 that small rings and queues hold.
const LATE_MAX: u64 = 128;

impl Schedule {
    pub(super) const fn new(pace: Constant) -> Self {
        Self { pace, skipped: 0 }
    }

    /// How long to wait for the next frame after so many; zero when it is due.
    pub(super) fn wait(&self, elapsed: Nanos, n_sent: u64) -> Nanos {
        self.pace.wait(elapsed, n_sent + self.skipped)
    }

    /// How late the next frame after so many is.
    pub(super) fn lag(&self, elapsed: Nanos, n_sent: u64) -> Nanos {
        elapsed.since(self.pace.at(n_sent + self.skipped))
    }

    /// How many frames are to be sent by now, in all; skips what is too late.
    pub(super) fn due(&mut self, elapsed: Nanos, n_sent: u64) -> u64 {
        let due = self.pace.due(elapsed).saturating_sub(self.skipped);
        let too_late = due.saturating_sub(n_sent + LATE_MAX);
        self.skipped += too_late;
        due - too_late
    }

    /// How many frames the rate asked for, those that were skipped included, when so many are to be sent.
    pub(super) const fn intended(&self, due: u64) -> u64 {
        due + self.skipped
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::units::PerSec;

    use super::*;

    fn schedule() -> Schedule {
        Schedule::new(Constant::new(PerSec::new(1e6).unwrap()).unwrap())
    }

    #[test]
    fn a_sender_in_time_skips_nothing() {
        let mut schedule = schedule();
        let mut n_sent = 0;
        for micros in (0..10_000).step_by(100) {
            n_sent = schedule.due(Nanos::from_micros(micros), n_sent);
            assert_eq!(n_sent, micros + 1);
            assert_eq!(schedule.intended(n_sent), n_sent);
            assert_eq!(schedule.wait(Nanos::from_micros(micros), n_sent), Nanos::from_micros(1));
        }
    }

    #[test]
    fn a_stall_costs_frames_and_makes_no_burst() {
        let mut schedule = schedule();
        let n_sent = schedule.due(Nanos::from_micros(9), 0);
        assert_eq!(schedule.lag(Nanos::from_micros(5_009), n_sent), Nanos::from_micros(4_999));
        let due = schedule.due(Nanos::from_micros(5_009), n_sent);
        assert_eq!((n_sent, due, schedule.intended(due)), (10, 10 + LATE_MAX, 5_010));
        assert_eq!(schedule.wait(Nanos::from_micros(5_009), due), Nanos::from_micros(1), "the rate goes on from here");
    }
}

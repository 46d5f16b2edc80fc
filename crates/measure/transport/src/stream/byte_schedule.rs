//! The due times of a stream's bytes at a rate.

use fathom_engine::pace::{ConstantRate, Pace as _};
use fathom_model::units::{BitsPerSec, Nanos, PerSec};

/// The largest backlog that a sender still catches up; time beyond it is lost for good.
///
/// Long enough for a stall of the machine, short enough that a path that was too slow for seconds gets no burst of seconds.
pub const BEHIND_MAX: Nanos = Nanos::from_millis(100);

/// A schedule of bytes: each has its own due time, whatever the sizes of the writes.
#[derive(Debug, Clone, Copy)]
pub struct ByteSchedule {
    bytes: ConstantRate,
    start: Nanos,
    n_sent: u64,
    /// The time that could not be made up.
    unrecovered: Nanos,
}

impl ByteSchedule {
    /// Creates a schedule from `start` at this rate; `None` for a rate of zero.
    pub fn new(rate: BitsPerSec, start: Nanos) -> Option<Self> {
        let bytes = ConstantRate::new(PerSec::new(rate.get() / 8.0)?)?;
        Some(Self { bytes, start, n_sent: 0, unrecovered: Nanos::ZERO })
    }

    /// When the next byte is due; a time up to `now` means that it is due or late.
    pub fn next_due(&mut self, now: Nanos) -> Nanos {
        let due = self.start + self.bytes.at(self.n_sent) + self.unrecovered;
        let behind = now.since(due);
        if behind > BEHIND_MAX {
            self.unrecovered += behind - BEHIND_MAX;
            return due + (behind - BEHIND_MAX);
        }
        due
    }

    pub fn advance(&mut self, n_bytes: u64) {
        self.n_sent += n_bytes;
    }

    /// The time for which the rate was not kept, because the backlog was larger than the stream may catch up.
    pub fn unrecovered(&self) -> Nanos {
        self.unrecovered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> ByteSchedule {
        ByteSchedule::new(BitsPerSec::new(8e6).unwrap(), Nanos::from_secs(1)).unwrap()
    }

    #[test]
    fn bytes_are_due_one_after_another_whatever_the_writes_are() {
        let mut pace = pace();
        assert_eq!(pace.next_due(Nanos::ZERO), Nanos::from_secs(1));
        pace.advance(1_000);
        assert_eq!(pace.next_due(Nanos::from_secs(1)), Nanos::from_secs(1) + Nanos::from_millis(1));
        (0..999).for_each(|_| pace.advance(1_000));
        assert_eq!(pace.next_due(Nanos::from_secs(1)), Nanos::from_secs(2));
        assert_eq!(pace.unrecovered(), Nanos::ZERO);
    }

    #[test]
    fn a_short_stall_is_made_up_for_and_a_long_one_is_not() {
        let (mut pace, start) = (pace(), Nanos::from_secs(1));
        assert_eq!(pace.next_due(start + Nanos::from_millis(90)), start, "all of 90 ms is still due");
        assert_eq!(pace.next_due(start + Nanos::from_millis(700)), start + Nanos::from_millis(600));
        assert_eq!(pace.unrecovered(), Nanos::from_millis(600));
        assert_eq!(
            pace.next_due(start + Nanos::from_millis(700)),
            start + Nanos::from_millis(600),
            "what is given up is counted once"
        );
    }

    #[test]
    fn there_is_no_schedule_at_rate_zero() {
        assert!(ByteSchedule::new(BitsPerSec::new(0.0).unwrap(), Nanos::ZERO).is_none());
    }
}

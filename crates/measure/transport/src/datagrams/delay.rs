//! One-way delays, from the send time on one host's clock and the receive time on another's.
//!
//! The kernel timestamps received packets with `CLOCK_REALTIME`, senders use `CLOCK_MONOTONIC`. On one machine both clocks run at
//! the same rate and differ by a constant that only a step of `CLOCK_REALTIME` changes; a step is detected and voids the delays.
//! The offset between the monotonic clocks of two hosts is measured elsewhere, by the controller that sets the start.

use fathom_model::{PeerClock, units::Nanos};

/// The smallest clock step: more than an uninterrupted read of two clocks in succession can take.
const STEP: u64 = 50_000;
/// The number of comparisons of the clocks, so that at least one is not interrupted.
const TRIES: usize = 8;

/// The amount by which `CLOCK_REALTIME` is ahead of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset(Nanos);

impl ClockOffset {
    /// Compares two clocks several times and keeps the comparison that took the shortest.
    #[must_use]
    pub fn between(monotonic: impl Fn() -> Nanos, wall: impl Fn() -> Nanos) -> Self {
        let compare = |_| {
            let (before, wall, after) = (monotonic(), wall(), monotonic());
            let took = after - before;
            (took, wall - (before + Nanos(took.0 / 2)))
        };
        let tries = (0..TRIES).map(compare);
        Self(tries.min().map_or(Nanos::ZERO, |(_, offset)| offset))
    }

    /// Converts a wall-clock time to the monotonic clock.
    #[must_use]
    pub fn to_monotonic(self, wall: Nanos) -> Nanos {
        wall - self.0
    }

    /// Whether the clock was not stepped between the two comparisons.
    #[must_use]
    pub fn is_unchanged(self, later: Self) -> bool {
        self.0.0.abs_diff(later.0.0) < STEP
    }
}

/// The clocks needed for a one-way delay.
#[derive(Debug, Clone, Copy)]
pub struct DelayClocks {
    /// The offset of the receiver's two clocks.
    pub here: ClockOffset,
    /// The sender's clock.
    pub peer: PeerClock,
}

impl DelayClocks {
    /// The one-way delay; zero if the error of the comparison would make it negative.
    #[must_use]
    pub fn delay(self, (sent, received): (Nanos, Nanos)) -> Nanos {
        self.here.to_monotonic(received) - self.peer.ours(sent)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_try_that_was_not_interrupted_counts_and_a_step_is_noticed() {
        let time = Cell::new(1_000_000_u64);
        let spans = [900_000, 40, 30, 500_000];
        let n = Cell::new(0_usize);
        let monotonic = || {
            let read = n.get();
            n.set(read + 1);
            time.set(time.get() + spans[read % spans.len()]);
            Nanos(time.get())
        };
        let offset = ClockOffset::between(monotonic, || Nanos(time.get() + 7_000_000_000));
        assert!(offset.0.0.abs_diff(7_000_000_000) <= 20, "{offset:?}");
        assert!(offset.to_monotonic(Nanos(7_000_000_500)).0.abs_diff(500) <= 20);
        assert!(offset.is_unchanged(ClockOffset(offset.0 + Nanos(40_000))));
        assert!(!offset.is_unchanged(ClockOffset(offset.0 + Nanos::from_millis(1))));
    }

    #[test]
    fn a_delay_between_two_clocks_is_read_on_the_receivers() {
        let peer = PeerClock { ahead_ns: 2_000, error_ns: Some(Nanos(100)), compared_ns: Nanos::ZERO };
        let clocks = DelayClocks { here: ClockOffset(Nanos(1_000_000)), peer };
        assert_eq!(clocks.delay((Nanos(52_000), Nanos(1_050_300))), Nanos(300));
        assert_eq!(clocks.delay((Nanos(52_000), Nanos(1_049_990))), Nanos::ZERO, "within the error");
    }
}

//! One-way delays, from the time of sending on one host's clock and of receiving on another's.
//!
//! The kernel stamps what it receives on `CLOCK_REALTIME`, senders on `CLOCK_MONOTONIC`. On one machine both clocks run alike and
//! differ by a constant that only a step of the former changes; a change is noticed and voids the delays. How the monotonic clocks
//! of two hosts differ is not found out here: who gave the start has compared them.

use fathom_model::{PeerClock, units::Nanos};

/// What a step of the clock is at least: more than reading two clocks one after another may take without being interrupted.
const STEP: u64 = 50_000;
/// How often the clocks are compared, for one try that is not interrupted.
const TRIES: usize = 8;

/// By how much `CLOCK_REALTIME` is ahead of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset(Nanos);

impl ClockOffset {
    /// Compares two clocks; of several tries the one that took the shortest counts.
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

    /// A time of the one clock on the other.
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

/// The clocks that a one-way delay is read from.
#[derive(Debug, Clone, Copy)]
pub struct DelayClocks {
    /// The receiver's two.
    pub here: ClockOffset,
    /// The sender's.
    pub peer: PeerClock,
}

impl DelayClocks {
    /// How long something was under way; zero where the error of the comparison would make it negative.
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

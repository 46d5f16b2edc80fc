//! One-way delays, where one clock shows the time of sending and of receiving.
//!
//! The kernel stamps what it receives on `CLOCK_REALTIME`, senders on `CLOCK_MONOTONIC`. On one machine both clocks run alike and
//! differ by a constant that only a step of the former changes; a change is noticed and voids the delays.

use fathom_model::units::Nanos;

/// What a step of the clock is at least: more than reading two clocks one after another may take without being interrupted.
const STEP: u64 = 50_000;
/// How often the clocks are compared, for one try that is not interrupted.
const TRIES: usize = 8;

/// By how much `CLOCK_REALTIME` is ahead of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockOffset(Nanos);

impl ClockOffset {
    /// Compares two clocks; of several tries the one that took the shortest counts.
    #[must_use]
    pub(crate) fn between(monotonic: impl Fn() -> Nanos, wall: impl Fn() -> Nanos) -> Self {
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
    pub(crate) fn to_monotonic(self, wall: Nanos) -> Nanos {
        wall - self.0
    }

    /// Whether the clock was not stepped between the two comparisons.
    #[must_use]
    pub(crate) fn is_still(self, later: Self) -> bool {
        self.0.0.abs_diff(later.0.0) < STEP
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
        assert!(offset.is_still(ClockOffset(offset.0 + Nanos(40_000))));
        assert!(!offset.is_still(ClockOffset(offset.0 + Nanos::from_millis(1))));
    }
}

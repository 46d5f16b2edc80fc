//! The times of readings whose cost grows with the size of the host.

use fathom_model::units::Nanos;

/// A reading takes at most one part in so many of the time (0.08 %): the dearer it is, the rarer. There are three kinds, beside the
/// counters, and all together must stay below 1 % of a core. A dump of sockets walks the kernel's whole hash table, however few there are.
const TIME_BY_COST: u64 = 1_250;

/// The distance of readings. The first two are always due, because a rate needs them.
#[derive(Debug)]
pub(crate) struct ReadingPace {
    least: Nanos,
    n: u64,
    began: Nanos,
    cost: Nanos,
}

impl ReadingPace {
    /// Creates a pace with a least time between two readings.
    pub(crate) const fn new(least: Nanos) -> Self {
        Self { least, n: 0, began: Nanos::ZERO, cost: Nanos::ZERO }
    }

    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        let distance = self.least.max(Nanos(self.cost.0.saturating_mul(TIME_BY_COST)));
        self.is_first_rate() || now.since(self.began) >= distance
    }

    /// Returns true before the second reading, without which there is no rate.
    pub(crate) const fn is_first_rate(&self) -> bool {
        self.n < 2
    }

    /// Has the next two readings made at once, for another first rate.
    pub(crate) const fn begin_anew(&mut self) {
        self.n = 0;
    }

    /// Notes a reading that began at this time and took this much CPU time.
    pub(crate) fn took(&mut self, began: Nanos, cost: Nanos) {
        (self.began, self.cost, self.n) = (began, cost, self.n + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_that_costs_more_is_made_less_often_but_the_second_is_always_made() {
        let millis = Nanos::from_millis;
        let mut pace = ReadingPace::new(millis(100));
        assert!(pace.is_due(millis(0)));
        pace.took(millis(0), millis(30));
        assert!(pace.is_due(millis(1)), "without a second reading there is no rate");
        pace.took(millis(1), millis(30));
        assert!(!pace.is_due(millis(37_500)) && pace.is_due(millis(37_501)));
        pace.took(millis(37_501), Nanos(5_000));
        assert!(!pace.is_due(millis(37_600)) && pace.is_due(millis(37_601)));
    }
}

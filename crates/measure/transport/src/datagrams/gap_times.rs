//! How long datagrams took right before gaps in the numbers, which tells whether a queue overflowed.
//!
//! A full queue delays the datagram before each loss alike, however evenly the sender sends. A gap that a late datagram fills counts too.
//! This module reads no clock.

use fathom_model::{Histogram, units::Nanos};

/// Finds the gaps of one flow.
#[derive(Debug, Clone, Default)]
pub(super) struct GapTimes {
    /// The highest number so far, with the time from its sending to its arrival. The two clocks need not agree.
    highest: Option<(u64, i128)>,
    /// The shortest such time so far. The first datagrams of a stream find an empty queue.
    least: i128,
    before_gaps: Histogram,
}

impl GapTimes {
    /// Adds a datagram by its number and its times of sending and arrival; one below the highest number opens no gap.
    #[inline]
    pub(super) fn arrived(&mut self, number: u64, (sent, received): (Nanos, Nanos)) {
        let took = i128::from(received.0) - i128::from(sent.0);
        match self.highest {
            Some((highest, _)) if number <= highest => return,
            Some((highest, before)) if number - highest > 1 => self.add(before),
            Some(_) => {}
            None => self.least = took,
        }
        self.least = self.least.min(took);
        self.highest = Some((number, took));
    }

    /// How much longer than the fastest one the datagrams before gaps took.
    pub(super) fn finish(self) -> Histogram {
        self.before_gaps
    }

    #[cold]
    fn add(&mut self, took: i128) {
        self.before_gaps.record(u64::try_from(took - self.least).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrived_right_before_a_gap_is_compared_with_the_fastest() {
        let mut gaps = GapTimes::default();
        // Each number with what it took; the sender's clock is ahead. The fourth number is overtaken, and fills its gap.
        for (number, took) in [(0, 10), (1, 25), (4, 8), (3, 90), (5, 20), (7, 9)] {
            gaps.arrived(number, (Nanos(1_000 + number), Nanos(900 + number + took)));
        }
        let found: Vec<(u64, u64)> = gaps.finish().buckets().map(|(low, _, n)| (low, n)).collect();
        assert_eq!(found, [(12, 1), (15, 1)], "25 - 10 and 20 - 8");
    }
}

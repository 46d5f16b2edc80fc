//! Decides which connections are checked for timeouts next.

use fathom_model::units::Nanos;

/// The interval between two checks of a connection. Timeouts are seconds.
const SWEEP: Nanos = Nanos::from_millis(100);

/// Walks round the connections at the pace of the clock.
#[derive(Debug, Default)]
pub(crate) struct TimeoutSweep {
    at: Nanos,
    next: usize,
}

impl TimeoutSweep {
    /// Returns the indices, of `n`, that have become due since the last call.
    pub(crate) fn due(&mut self, now: Nanos, n: usize) -> impl Iterator<Item = usize> + use<> {
        let next = self.next;
        let share = (now - self.at).0.saturating_mul(n as u64) / SWEEP.0;
        let share = usize::try_from(share).unwrap_or(n).min(n);
        if share > 0 {
            *self = Self { at: now, next: (next + share) % n };
        }
        (0..share).map(move |step| (next + step) % n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_turn_once_in_a_tenth_of_a_second() {
        let mut sweep = TimeoutSweep::default();
        assert!(sweep.due(Nanos::from_secs(1), 7).eq(0..7), "the first time all are due");
        let mut seen = [0; 7];
        for millis in 1..=1_000 {
            sweep.due(Nanos::from_millis(1_000 + millis), 7).for_each(|place| seen[place] += 1);
        }
        assert!(seen.iter().all(|n| (9..=10).contains(n)), "{seen:?}");
        assert_eq!(sweep.due(Nanos::from_millis(2_000), 7).count(), 0);
    }
}

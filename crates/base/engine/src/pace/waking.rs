//! Learns how late sleeps end on this machine, so that later sleeps can end in time.
//!
//! A sleeping processor wakes a few microseconds after its timer, on a virtual machine tens of them. Nothing here reads a clock.

use fathom_model::units::Nanos;

/// The time that one check takes. A shorter sleep would end later than its target.
const LEAST: Nanos = Nanos::from_micros(5);
/// The lateness that is accepted: less than half of the threshold for late starts. No CPU time is spent to avoid it.
const ALLOWED: Nanos = Nanos::from_micros(20);
/// The maximum that is compensated. On a machine with longer wake-ups, all of the CPU time would go into polling.
const MOST: Nanos = Nanos::from_micros(50);
/// The learning step: a few hundred sleeps characterize a machine, and no single sleep does.
const STEP: Nanos = Nanos(250);

/// The lateness that three of four sleeps do not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WakeLatency(Nanos);

impl Default for WakeLatency {
    fn default() -> Self {
        Self(LEAST)
    }
}

impl WakeLatency {
    /// Returns how long before its due time a worker ends its sleep. It polls for the rest of the time.
    #[must_use]
    pub(crate) fn early(self) -> Nanos {
        self.0.since(ALLOWED)
    }

    /// Learns from a sleep that was meant to end at `until`. A sleep that ended early says nothing.
    pub(crate) fn learn(&mut self, until: Nanos, woke: Nanos) {
        if woke < until {
            return;
        }
        // One step up for every three down: the estimate settles where a quarter of the sleeps are later.
        let was_later = woke - until > self.0;
        self.0 = if was_later { (self.0 + STEP * 3).min(MOST) } else { self.0.since(STEP).max(LEAST) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimate after many sleeps that are late by these times in turn.
    fn learned(late: &[u64]) -> Nanos {
        let mut waking = WakeLatency::default();
        for idx in 0..2_000 {
            waking.learn(Nanos::from_secs(1), Nanos::from_secs(1) + Nanos::from_micros(late[idx % late.len()]));
        }
        waking.0
    }

    #[test]
    fn it_rests_where_a_quarter_of_the_sleeps_are_later() {
        let is_within = |late: &[u64], low: u64, high: u64| {
            let (low, high) = (Nanos::from_micros(low), Nanos::from_micros(high));
            assert!((low..=high).contains(&learned(late)), "{}", learned(late));
        };
        is_within(&[28], 27, 29);
        is_within(&[10, 10, 30, 10, 10, 10, 31, 10, 10, 10], 9, 12);
        is_within(&[20, 10, 30, 40, 20, 10, 30, 40], 29, 41);
    }

    #[test]
    fn a_machine_that_wakes_soon_is_let_sleep_to_the_end() {
        assert_eq!(WakeLatency(LEAST).early(), Nanos::ZERO);
        assert_eq!(WakeLatency(ALLOWED + LEAST).early(), LEAST);
    }

    #[test]
    fn what_is_spent_on_looking_is_bounded() {
        assert_eq!(learned(&[1_000]), MOST);
        assert_eq!(learned(&[0]), LEAST);
    }

    #[test]
    fn a_sleep_that_ended_before_its_time_tells_nothing() {
        let mut waking = WakeLatency::default();
        waking.learn(Nanos::from_secs(2), Nanos::from_secs(1));
        assert_eq!(waking, WakeLatency::default());
    }
}

//! How late sleeps end on this machine, learned from those that did, so that the next one can end in time.
//!
//! A processor that sleeps wakes some microseconds after its timer, on a virtual machine tens of them. Knows no clock.

use fathom_model::units::Nanos;

/// Looking again takes this long, so a sleep that is shorter would end later.
const LEAST: Nanos = Nanos::from_micros(5);
/// So late a start may be without more ado: half of what is called late, and no processor time is spent on less.
const ALLOWED: Nanos = Nanos::from_micros(20);
/// A machine that sleeps longer than this is not waited for: all of it would be spent on looking.
const MOST: Nanos = Nanos::from_micros(50);
/// How fast it is learned: some hundred sleeps tell a machine from another, and none of them alone.
const STEP: Nanos = Nanos(250);

/// The lateness that three sleeps of four do not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeLatency(Nanos);

impl Default for WakeLatency {
    fn default() -> Self {
        Self(LEAST)
    }
}

impl WakeLatency {
    /// How long before it must be awake a worker has its sleep end; what is left it spends on looking.
    #[must_use]
    pub fn early(self) -> Nanos {
        self.0.since(ALLOWED)
    }

    /// Learns from a sleep that was to end at `until`; one that something else has ended tells nothing.
    pub fn learn(&mut self, until: Nanos, woke: Nanos) {
        if woke < until {
            return;
        }
        // One step up as often as three down: the estimate rests where a quarter of the sleeps are later.
        let was_later = woke - until > self.0;
        self.0 = if was_later { (self.0 + STEP * 3).min(MOST) } else { self.0.since(STEP).max(LEAST) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is learned when sleeps are late by these spans, over and over.
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

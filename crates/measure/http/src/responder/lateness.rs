//! How late the kernel ends a wait.

use fathom_model::units::Nanos;

/// The step by which the estimate falls; it rises by three of them.
const STEP: Nanos = Nanos(250);
/// The longest estimate: who waits is awake for that long before each time.
const MAX: Nanos = Nanos::from_micros(50);

/// The lateness of waits that their time limit ended: three in four of the last few hundred were no later.
///
/// A thread runs 5 to 70 µs after the timer that wakes it up. For an answer on time, the wait ends earlier by this much, and the thread is awake
/// for the rest. A wait that other programs delay by milliseconds moves the estimate by one step only.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UsualLateness(Nanos);

impl UsualLateness {
    pub(super) fn get(self) -> Nanos {
        self.0
    }

    pub(super) fn learn(&mut self, lateness: Nanos) {
        self.0 = if lateness > self.0 { (self.0 + STEP + STEP + STEP).min(MAX) } else { self.0.since(STEP) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_near_the_third_quartile_and_a_wait_of_milliseconds_moves_it_little() {
        let mut usual = UsualLateness::default();
        for n in 0..2_000 {
            usual.learn(Nanos::from_micros(5 + n * 7 % 8));
        }
        assert!((9_000..=11_500).contains(&usual.get().0), "{usual:?}");
        let before = usual.get();
        usual.learn(Nanos::from_millis(30));
        assert!(usual.get().since(before) < Nanos::from_micros(1), "{usual:?}");
        for _ in 0..1_000 {
            usual.learn(Nanos::from_millis(30));
        }
        assert_eq!(usual.get(), MAX);
    }
}

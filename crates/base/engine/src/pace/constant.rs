//! Events at equal intervals.

use fathom_model::units::{Nanos, PerSec, approximate, rounded};

use super::Pace;

/// The interval between two events is kept in units of 2⁻³² ns, so that a day at a million per second drifts by less than 20 µs.
const FRACTION_BITS: u32 = 32;

/// A constant rate without drift: the time of each event is computed from its number, not from the previous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConstantRate {
    gap: u128,
}

impl ConstantRate {
    /// Creates a schedule at this rate; returns `None` for a rate of zero.
    #[must_use]
    pub fn new(rate: PerSec) -> Option<Self> {
        let gap = (1e9 / rate.get() * approximate(1 << FRACTION_BITS)).ceil();
        (rate.get() > 0.0).then(|| Self { gap: u128::from(rounded(gap).max(1)) })
    }
}

impl Pace for ConstantRate {
    fn due(&self, elapsed: Nanos) -> u64 {
        let n = (u128::from(elapsed.0) << FRACTION_BITS) / self.gap + 1;
        u64::try_from(n).unwrap_or(u64::MAX)
    }

    fn at(&self, n: u64) -> Nanos {
        let whole = (u128::from(n) * self.gap).div_ceil(1 << FRACTION_BITS);
        Nanos(u64::try_from(whole).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: f64) -> ConstantRate {
        ConstantRate::new(PerSec::new(rate).unwrap()).unwrap()
    }

    #[test]
    fn a_second_holds_as_many_events_as_the_rate_says() {
        for rate in [1.0, 3.0, 1_000.0, 333_333.0, 1_488_095.0] {
            let pace = pace(rate);
            let n = rounded(rate);
            assert!(pace.at(n) >= Nanos::from_secs(1) && pace.at(n - 1) < Nanos::from_secs(1), "{rate}");
        }
    }

    #[test]
    fn what_is_due_is_what_had_its_time() {
        let pace = pace(300_000.0);
        for n in [0, 1, 7, 299_999, 3_000_000] {
            assert_eq!(pace.wait(pace.at(n), n), Nanos::ZERO);
            assert!(pace.due(pace.at(n)) > n, "event {n} is due at its own time");
        }
    }

    #[test]
    fn nothing_is_ever_due_at_rate_zero() {
        assert_eq!(ConstantRate::new(PerSec::default()), None);
    }
}

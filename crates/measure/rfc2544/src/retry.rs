//! Repeats trials in which the tool did not send the requested traffic. Such a trial says nothing about the device.

use super::{LAG_MAX, StopReason, Tester, TrialCounts, TrialRequest};
use fathom_model::units::{Nanos, rounded};

/// The most tries of a trial. A shared machine stalls a sender now and then; if this many trials in a row stall, it cannot send
/// the load.
pub(super) const TRIES: u32 = 10;

/// A tester that repeats invalid trials.
pub(super) struct RetryingTester<'a, T> {
    pub(super) tester: &'a mut T,
    /// The largest ratio of unsent frames.
    pub(super) unsent_max: f64,
    /// The largest lag at which losses are still due to the device.
    lag_max: Nanos,
    /// The number of repeated trials.
    pub(super) n_repeated: u32,
}

impl<'a, T: Tester> RetryingTester<'a, T> {
    pub(super) const fn new(tester: &'a mut T, unsent_max: f64) -> Self {
        Self { tester, unsent_max, lag_max: LAG_MAX, n_repeated: 0 }
    }

    /// For methods with so much loss that a late burst makes no difference.
    pub(super) const fn ignore_lag(self) -> Self {
        Self { lag_max: Nanos(u64::MAX), ..self }
    }

    /// Runs a trial until it is valid.
    pub(super) fn trial(&mut self, asked: &TrialRequest) -> Result<TrialCounts, StopReason<T::Error>> {
        let (unsent_max, lag_max) = (self.unsent_max, self.lag_max);
        self.trial_until(asked, |seen| seen.is_valid(unsent_max, lag_max))
    }

    /// Runs a trial until it is conclusive for the method.
    pub(super) fn trial_until(
        &mut self,
        asked: &TrialRequest,
        tells: impl Fn(&TrialCounts) -> bool,
    ) -> Result<TrialCounts, StopReason<T::Error>> {
        for _ in 0..TRIES {
            let seen = self.tester.trial(asked).map_err(StopReason::Failed)?;
            if tells(&seen) {
                return Ok(seen);
            }
            self.n_repeated += 1;
        }
        Err(StopReason::RateNotSent { rate: rounded(asked.traffic.rate()) })
    }
}

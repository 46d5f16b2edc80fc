//! Trials in which the tool sent what was asked; one in which it did not says nothing of the device, and is made again.

use super::{LAG_MAX, StopReason, Tester, TrialCounts, TrialRequest};
use fathom_model::units::{Nanos, rounded};

/// A machine that others use too stalls a sender now and then; one that does so in that many trials in turn cannot send the load.
pub(super) const TRIES: u32 = 10;

/// A tester whose trials are as they were asked for.
pub(super) struct RetryingTester<'a, T> {
    pub(super) tester: &'a mut T,
    /// The largest share that may be unsent.
    pub(super) unsent_max: f64,
    /// The longest lag with which what is seen is the device's doing.
    lag_max: Nanos,
    /// Trials that were made again.
    pub(super) n_repeated: u32,
}

impl<'a, T: Tester> RetryingTester<'a, T> {
    pub(super) const fn new(tester: &'a mut T, unsent_max: f64) -> Self {
        Self { tester, unsent_max, lag_max: LAG_MAX, n_repeated: 0 }
    }

    /// For methods in which so much is lost that a late burst makes no difference.
    pub(super) const fn ignore_lag(self) -> Self {
        Self { lag_max: Nanos(u64::MAX), ..self }
    }

    /// One trial that counts.
    pub(super) fn trial(&mut self, asked: &TrialRequest) -> Result<TrialCounts, StopReason<T::Error>> {
        let (unsent_max, lag_max) = (self.unsent_max, self.lag_max);
        self.trial_until(asked, |seen| seen.is_valid(unsent_max, lag_max))
    }

    /// One trial that tells what the method wants to know.
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

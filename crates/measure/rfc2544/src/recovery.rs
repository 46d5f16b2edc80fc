//! How long a device still loses frames after an overload (RFC 2544 section 26.5).

use fathom_model::units::{Nanos, approximate, rounded};

use super::{MethodResult, RetryingTester, Tester, TrialRequest, TrialTraffic};

/// The ratio of the overload to the throughput.
pub const OVERLOAD: f64 = 1.1;
/// The fraction of the overload that is offered after it.
const REDUCED: f64 = 0.5;

/// The parameters of the test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecoveryOptions {
    /// Frames per second of the overload: [`overload`].
    pub overload: f64,
    /// The duration of the overload, and of the observation after it.
    pub duration: Nanos,
    /// The number of repetitions.
    pub n: u32,
}

/// The result of all repetitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryResult {
    /// The time from the drop of the rate to the last lost frame, for each repetition.
    pub runs: Vec<Nanos>,
    /// Their average: the benchmark.
    pub mean: Nanos,
    /// Repetitions without any loss, so there was nothing to recover from.
    pub n_lossless: u32,
    /// Repetitions that still lost frames at the end of the trial: the device recovers later, or not at all.
    pub n_unrecovered: u32,
}

/// The upper limit of an overload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OverloadLimit {
    /// The maximum rate of the link: a device cannot be offered more.
    Media(f64),
    /// The maximum rate of this tool, which is not a property of the device.
    Tester(f64),
}

/// The largest ratio of unsent frames: with more unsent, the overload would not be 110 %.
const UNSENT_MAX: f64 = 0.01;
/// A loss after this fraction of the trial indicates that the losses continue.
const LATE: f64 = 0.9;

/// The rate of the overload; `None` if it cannot be offered.
#[must_use]
pub fn overload(throughput: f64, bound: OverloadLimit) -> Option<f64> {
    let asked = throughput * OVERLOAD;
    match bound {
        OverloadLimit::Media(most) => Some(asked.min(most)).filter(|rate| *rate > throughput),
        OverloadLimit::Tester(most) => Some(asked).filter(|rate| *rate <= most),
    }
}

/// Repeats overload and drop; the result is `None` if the tester does not know when frames were lost.
pub fn recovery<T: Tester>(asked: &RecoveryOptions, tester: &mut T) -> MethodResult<Option<RecoveryResult>, T::Error> {
    let mut checked = RetryingTester::new(tester, UNSENT_MAX).ignore_lag();
    let RecoveryOptions { overload: rate, duration, n } = *asked;
    let traffic = TrialTraffic::Step { rate, duration, then: rate * REDUCED, after: duration };
    let mut found = Vec::new();
    for nth in 0..n {
        let left = Nanos(traffic.duration().0.saturating_mul(u64::from(n - nth)));
        match checked.trial(&TrialRequest { traffic, purpose: "recovery", time_left: left }) {
            Ok(seen) => match seen.recovery {
                Some(recovery) => found.push((recovery, seen.received >= seen.offered)),
                // If one trial does not know it, no other trial will.
                None => break,
            },
            Err(cut) => return MethodResult { result: summarize(&found, duration), stopped: Some(cut) },
        }
    }
    MethodResult { result: summarize(&found, duration), stopped: None }
}

fn summarize(found: &[(Nanos, bool)], after: Nanos) -> Option<RecoveryResult> {
    let n = u64::try_from(found.len()).ok().filter(|n| *n > 0)?;
    let late = after.as_secs_f64() * LATE;
    let count = |is: &dyn Fn(&(Nanos, bool)) -> bool| {
        u32::try_from(found.iter().filter(|run| is(run)).count()).unwrap_or(u32::MAX)
    };
    let sum: f64 = found.iter().map(|(run, _)| approximate(run.0)).sum();
    Some(RecoveryResult {
        runs: found.iter().map(|(run, _)| *run).collect(),
        mean: Nanos(rounded(sum / approximate(n))),
        n_lossless: count(&|(_, is_lossless)| *is_lossless),
        n_unrecovered: count(&|(run, _)| run.as_secs_f64() >= late),
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{StopReason, virtual_device::VirtualDevice},
        *,
    };

    const ASKED: RecoveryOptions = RecoveryOptions { overload: 220_000.0, duration: Nanos::from_secs(60), n: 3 };

    #[test]
    fn a_recovery_is_the_time_that_the_device_goes_on_losing_after_the_drop() {
        let mut device = VirtualDevice::policer(200_000.0, 512.0);
        device.recovers_in = Some(Nanos::from_millis(1_750));
        let found = recovery(&ASKED, &mut device).result.unwrap();
        assert_eq!((found.mean, found.runs.len()), (Nanos::from_millis(1_750), 3));
        assert_eq!((found.n_lossless, found.n_unrecovered), (0, 0));
        assert_eq!(device.took, Nanos::from_secs(3 * 120), "as long as the overload is looked at behind it");
    }

    #[test]
    fn the_drop_is_to_half_of_the_overload() {
        /// Records the requested traffic.
        struct Noting(Vec<TrialTraffic>);
        impl Tester for Noting {
            type Error = ();

            fn trial(&mut self, asked: &TrialRequest) -> Result<super::super::TrialCounts, ()> {
                self.0.push(asked.traffic);
                let recovery = Some(Nanos(self.0.len() as u64 * 1_000));
                Ok(super::super::TrialCounts { intended: 10, offered: 10, received: 9, recovery, ..Default::default() })
            }
        }
        let mut noting = Noting(Vec::new());
        let found = recovery(&ASKED, &mut noting).result.unwrap();
        assert_eq!((found.mean, found.runs[2]), (Nanos(2_000), Nanos(3_000)));
        let minute = Nanos::from_secs(60);
        let expected = TrialTraffic::Step { rate: 220_000.0, duration: minute, then: 110_000.0, after: minute };
        assert_eq!(noting.0, [expected; 3]);
    }

    #[test]
    fn a_device_that_is_still_losing_at_the_end_has_not_recovered() {
        let mut device = VirtualDevice::policer(200_000.0, 1.0);
        device.recovers_in = Some(Nanos::from_millis(59_990));
        assert_eq!(recovery(&ASKED, &mut device).result.unwrap().n_unrecovered, 3);
    }

    #[test]
    fn an_overload_that_loses_nothing_leaves_nothing_to_recover_from() {
        let mut device = VirtualDevice::policer(300_000.0, 1.0);
        device.recovers_in = Some(Nanos::ZERO);
        let found = recovery(&ASKED, &mut device).result.unwrap();
        assert_eq!((found.n_lossless, found.mean), (3, Nanos::ZERO));
    }

    #[test]
    fn a_tester_that_does_not_see_losses_as_they_happen_is_asked_once() {
        let mut device = VirtualDevice::policer(200_000.0, 1.0);
        assert_eq!(recovery(&ASKED, &mut device), MethodResult { result: None, stopped: None });
        assert_eq!(device.n_trials, 1);
    }

    #[test]
    fn repetitions_before_an_interruption_are_kept() {
        let mut device = VirtualDevice::policer(200_000.0, 1.0);
        device.recovers_in = Some(Nanos::from_millis(3));
        device.fails_after = Some(2);
        let MethodResult { result: found, stopped: cut } = recovery(&ASKED, &mut device);
        assert_eq!((found.unwrap().runs.len(), cut), (2, Some(StopReason::Failed("ctrl-C"))));
    }

    #[test]
    fn an_overload_is_bounded_by_the_link_and_refused_beyond_the_tool() {
        let near = |rate: Option<f64>, expected: f64| rate.is_some_and(|rate| (rate - expected).abs() < 1e-3);
        assert!(near(overload(1_000.0, OverloadLimit::Media(2_000.0)), 1_100.0));
        assert!(
            near(overload(1_000.0, OverloadLimit::Media(1_050.0)), 1_050.0),
            "the maximum rate of the media, if that is lower"
        );
        assert_eq!(
            overload(1_000.0, OverloadLimit::Media(1_000.0)),
            None,
            "a link that the device fills overloads nothing"
        );
        assert!(near(overload(1_000.0, OverloadLimit::Tester(1_100.1)), 1_100.0));
        assert_eq!(overload(1_000.0, OverloadLimit::Tester(1_050.0)), None);
    }
}

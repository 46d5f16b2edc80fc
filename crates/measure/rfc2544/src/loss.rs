//! The frame loss rate at loads from the maximum downward (RFC 2544 section 26.3).

use fathom_model::units::{Nanos, approximate, rounded};

use super::{MethodResult, RetryingTester, Tester, TrialRequest, TrialTraffic};

/// The loads and the duration of trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossCurve {
    /// Frames per second at 100 %.
    pub max_rate: f64,
    /// The decrement of the load, as a fraction of the maximum. The RFC allows at most a tenth.
    pub step: f64,
    /// The duration of each trial.
    pub duration: Nanos,
}

/// The loss at one load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossAtLoad {
    /// Frames per second that were scheduled.
    pub rate: f64,
    /// Frames that were offered.
    pub offered: u64,
    /// Frames that arrived.
    pub received: u64,
    /// The ratio of lost to offered frames.
    pub loss_ratio: f64,
}

/// The largest ratio of unsent frames in a valid trial. The resolution of the loss ratio is a tenth of a percentage point.
const UNSENT_MAX: f64 = 0.002;
/// The test ends after this many loads in a row without loss.
const LOSSLESS_MAX: u32 = 2;

/// Lowers the load from the maximum until two loads in a row lose nothing.
pub fn loss<T: Tester>(curve: &LossCurve, tester: &mut T) -> MethodResult<Vec<LossAtLoad>, T::Error> {
    let mut checked = RetryingTester::new(tester, UNSENT_MAX);
    let n_steps = rounded((1.0 / curve.step).floor());
    let mut found = Vec::new();
    let mut n_lossless = 0;
    for down in 0..n_steps {
        let rate = curve.max_rate * (1.0 - approximate(down) * curve.step);
        let traffic = TrialTraffic::Stream { rate, duration: curve.duration };
        let left = Nanos(curve.duration.0.saturating_mul(n_steps - down));
        let seen = match checked.trial(&TrialRequest { traffic, purpose: "loss", time_left: left }) {
            Ok(seen) => seen,
            Err(cut) => return MethodResult { result: found, stopped: Some(cut) },
        };
        let loss_ratio = seen.loss_ratio().unwrap_or(1.0);
        found.push(LossAtLoad { rate, offered: seen.offered, received: seen.received, loss_ratio });
        n_lossless = if loss_ratio > 0.0 { 0 } else { n_lossless + 1 };
        if n_lossless == LOSSLESS_MAX {
            break;
        }
    }
    MethodResult { result: found, stopped: None }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{StopReason, virtual_device::VirtualDevice},
        *,
    };

    const CURVE: LossCurve = LossCurve { max_rate: 400_000.0, step: 0.1, duration: Nanos::from_secs(10) };

    #[test]
    fn the_loss_curve_of_a_policer_is_what_it_does_not_let_pass() {
        let mut device = VirtualDevice::policer(200_000.0, 1.0);
        let MethodResult { result: found, stopped: cut } = loss(&CURVE, &mut device);
        assert_eq!(cut, None);
        let rates: Vec<u64> = found.iter().map(|at| rounded(at.rate / 1000.0)).collect();
        assert_eq!(rates, [400, 360, 320, 280, 240, 200, 160]);
        for at in &found {
            let expected = (1.0 - 200_000.0 / at.rate).max(0.0);
            assert!((at.loss_ratio - expected).abs() < 1e-5, "{at:?}");
        }
    }

    #[test]
    fn a_device_without_loss_takes_two_trials_and_one_that_passes_nothing_takes_all() {
        let mut clean = VirtualDevice::policer(1e9, 1.0);
        assert_eq!(loss(&CURVE, &mut clean).result.len(), 2);
        let mut dead = VirtualDevice::policer(0.0, 0.0);
        let found = loss(&CURVE, &mut dead).result;
        assert!(found.len() == 10 && found.iter().all(|at| at.received == 0), "{found:?}");
    }

    #[test]
    fn what_was_measured_before_an_interruption_is_kept() {
        let mut device = VirtualDevice::policer(200_000.0, 1.0);
        device.fails_after = Some(3);
        let MethodResult { result: found, stopped: cut } = loss(&CURVE, &mut device);
        assert_eq!((found.len(), cut), (3, Some(StopReason::Failed("ctrl-C"))));
    }
}

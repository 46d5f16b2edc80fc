//! How long a device forwards nothing after a reset (RFC 2544 section 26.6), measured by frame loss (RFC 6201 section 4).

use fathom_model::units::{Nanos, approximate};

use super::{MethodResult, RetryingTester, Tester, TrialRequest, TrialTraffic};

/// The effect of a reset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResetResult {
    /// Frames that were lost.
    pub lost: u64,
    /// The time in which the offered rate delivers this many frames.
    pub time: Nanos,
}

/// A frame that was not sent would count as lost by the reset.
const UNSENT_MAX: f64 = 0.01;

/// Sends one stream at a rate without loss while the device is reset.
pub fn reset<T: Tester>(rate: f64, duration: Nanos, tester: &mut T) -> MethodResult<Option<ResetResult>, T::Error> {
    let lost_per_sec = rate * f64::from(tester.n_directions());
    let mut checked = RetryingTester::new(tester, UNSENT_MAX).ignore_lag();
    let traffic = TrialTraffic::Stream { rate, duration };
    match checked.trial(&TrialRequest { traffic, purpose: "reset", time_left: duration }) {
        Ok(seen) => {
            let lost = seen.offered.saturating_sub(seen.received);
            MethodResult {
                result: Some(ResetResult { lost, time: Nanos::from_secs_f64(approximate(lost) / lost_per_sec) }),
                stopped: None,
            }
        }
        Err(cut) => MethodResult { result: None, stopped: Some(cut) },
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::virtual_device::{Bidirectional, VirtualDevice},
        *,
    };

    #[test]
    fn the_time_of_a_reset_is_what_was_lost_over_the_rate() {
        let mut device = VirtualDevice::policer(1e6, 1.0);
        device.outage = Nanos::from_millis(1_250);
        let found = reset(20_000.0, Nanos::from_secs(10), &mut device).result;
        assert_eq!(found, Some(ResetResult { lost: 25_000, time: Nanos::from_millis(1_250) }));
        let found = reset(20_000.0, Nanos::from_secs(10), &mut Bidirectional(device)).result;
        assert_eq!(found, Some(ResetResult { lost: 50_000, time: Nanos::from_millis(1_250) }));
    }
}

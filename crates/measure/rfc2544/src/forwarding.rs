//! The forwarding rate at the maximum offered load, and the maximum forwarding rate (RFC 2889 section 5.1, RFC 2285 section 3.6).

use fathom_model::units::{Nanos, approximate, rounded};

use super::{LossCurve, MethodResult, RetryingTester, Tester, TrialRequest, TrialTraffic};

/// The forwarding rates under overload.
#[derive(Debug, Clone, PartialEq)]
pub struct ForwardingResult {
    /// Frames per second forwarded at the maximum offered load.
    pub at_max: f64,
    /// The maximum forwarding rate over all loads.
    pub max: f64,
    /// The load that reached it. It counts each direction, while the rates above sum all directions.
    pub max_at: f64,
}

/// The forwarding rate is compared with the offered rate, so almost all of it must be sent.
const UNSENT_MAX: f64 = 0.005;

/// Lowers the load from the maximum offered load until no lower load can exceed the highest forwarding rate so far.
pub fn forwarding<T: Tester>(curve: &LossCurve, tester: &mut T) -> MethodResult<Option<ForwardingResult>, T::Error> {
    let n_ways = f64::from(tester.n_directions());
    let mut checked = RetryingTester::new(tester, UNSENT_MAX);
    let n_steps = rounded((1.0 / curve.step).floor());
    let mut found: Option<ForwardingResult> = None;
    for down in 0..n_steps {
        let rate = curve.max_rate * (1.0 - approximate(down) * curve.step);
        if found.as_ref().is_some_and(|found| found.max >= rate * n_ways) {
            break;
        }
        let traffic = TrialTraffic::Stream { rate, duration: curve.duration };
        let left = Nanos(curve.duration.0.saturating_mul(n_steps - down));
        let seen = match checked.trial(&TrialRequest { traffic, purpose: "forwarding rate", time_left: left }) {
            Ok(seen) => seen,
            Err(cut) => return MethodResult { result: found, stopped: Some(cut) },
        };
        // A trial that begins late is shorter than asked. Its frames were due at the rate, so their number tells its time.
        let forwarded = approximate(seen.received) * rate * n_ways / approximate(seen.intended);
        let best = found.get_or_insert(ForwardingResult { at_max: forwarded, max: forwarded, max_at: rate });
        if forwarded > best.max {
            (best.max, best.max_at) = (forwarded, rate);
        }
    }
    MethodResult { result: found, stopped: None }
}

#[cfg(test)]
mod tests {
    use super::{
        super::virtual_device::{Bidirectional, VirtualDevice},
        *,
    };

    #[test]
    fn a_policer_forwards_its_rate_whatever_is_offered() {
        let curve = LossCurve { max_rate: 400_000.0, step: 0.1, duration: Nanos::from_secs(10) };
        let mut device = VirtualDevice::policer(210_000.0, 10.0);
        let found = forwarding(&curve, &mut device).result.unwrap();
        assert_eq!(found, ForwardingResult { at_max: 210_001.0, max: 210_001.0, max_at: 400_000.0 });
        assert_eq!(device.n_trials, 5, "from 400,000 down to 240,000: at 200,000 no more than that can be forwarded");
    }

    #[test]
    fn a_device_that_collapses_under_overload_has_its_maximum_below_it() {
        /// Forwards everything up to a rate, and less and less above it.
        struct Collapsing;
        impl Tester for Collapsing {
            type Error = ();

            /// Begins a tenth of a second late, as a host does that is slow to prepare.
            fn trial(&mut self, asked: &TrialRequest) -> Result<super::super::TrialCounts, ()> {
                let rate = asked.traffic.rate();
                let seconds = asked.traffic.duration().as_secs_f64() - 0.1;
                let offered = rounded(rate * seconds);
                let received = if rate <= 250_000.0 { offered } else { rounded((500_000.0 - rate) * seconds) };
                Ok(super::super::TrialCounts { intended: offered, offered, received, ..Default::default() })
            }
        }
        let curve = LossCurve { max_rate: 400_000.0, step: 0.1, duration: Nanos::from_secs(1) };
        let found = forwarding(&curve, &mut Collapsing).result.unwrap();
        assert_eq!(found, ForwardingResult { at_max: 100_000.0, max: 240_000.0, max_at: 240_000.0 });
        let both = forwarding(&curve, &mut Bidirectional(Collapsing)).result.unwrap();
        assert_eq!(both, ForwardingResult { at_max: 200_000.0, max: 480_000.0, max_at: 240_000.0 });
    }
}

//! Latency at the throughput (RFC 2544 section 26.2) in the form of RFC 8219 section 7: typical, worst-case, and variation.

use fathom_model::units::Nanos;

use super::{DelayVariation, Latencies, MethodResult, RetryingTester, Tester, TrialRequest, TrialTraffic};

/// The parameters of the test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyOptions {
    /// Frames per second: the throughput.
    pub rate: f64,
    /// The duration of each stream.
    pub duration: Nanos,
    /// The number of repetitions.
    pub n: u32,
}

/// The result of all repetitions: the median of each value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyResult {
    /// The latencies of each repetition.
    pub runs: Vec<Latencies>,
    /// The typical latency: the median of the medians.
    pub typical: Nanos,
    /// The worst-case latency: the median of the 99.9th percentiles.
    pub worst: Nanos,
    /// The packet delay variation: the median of the 99.9th percentiles minus the minimum.
    pub pdv: Nanos,
    /// The inter-packet delay variation: the medians of its medians and of its maxima.
    pub ipdv: Option<DelayVariation>,
}

/// Latency depends on the rate, so almost all frames must be sent.
const UNSENT_MAX: f64 = 0.01;

/// Repeats the stream; the result is `None` if the tester does not measure latencies.
pub fn latency<T: Tester>(runs: &LatencyOptions, tester: &mut T) -> MethodResult<Option<LatencyResult>, T::Error> {
    let mut checked = RetryingTester::new(tester, UNSENT_MAX);
    let mut found = Vec::new();
    for nth in 0..runs.n {
        let traffic = TrialTraffic::Stream { rate: runs.rate, duration: runs.duration };
        let left = Nanos(runs.duration.0.saturating_mul(u64::from(runs.n - nth)));
        match checked.trial(&TrialRequest { traffic, purpose: "latency", time_left: left }) {
            Ok(seen) => match seen.latencies {
                Some(latencies) => found.push(latencies),
                // If one trial does not measure it, no other trial will.
                None => break,
            },
            Err(cut) => return MethodResult { result: summarize(found), stopped: Some(cut) },
        }
    }
    MethodResult { result: summarize(found), stopped: None }
}

fn summarize(runs: Vec<Latencies>) -> Option<LatencyResult> {
    let median = |of: fn(&Latencies) -> Option<Nanos>| {
        let mut values: Vec<Nanos> = runs.iter().filter_map(of).collect();
        values.sort_unstable();
        let middle = values.len().checked_sub(1)?;
        Some(Nanos(u64::midpoint(values[middle / 2].0, values[middle.div_ceil(2)].0)))
    };
    let typical = median(|run| Some(run.median))?;
    let (worst, pdv) = (median(|run| Some(run.worst))?, median(|run| Some(run.pdv()))?);
    let ipdv = median(|run| Some(run.variation?.median)).zip(median(|run| Some(run.variation?.max)));
    Some(LatencyResult { typical, worst, pdv, ipdv: ipdv.map(|(median, max)| DelayVariation { median, max }), runs })
}

#[cfg(test)]
mod tests {
    use super::{super::virtual_device::VirtualDevice, *};

    const RUNS: LatencyOptions = LatencyOptions { rate: 1000.0, duration: Nanos::from_secs(120), n: 20 };

    fn latencies(micros: u64) -> Latencies {
        let us = Nanos::from_micros;
        Latencies {
            n: 1000,
            min: us(micros),
            median: us(2 * micros),
            worst: us(9 * micros),
            max: us(20 * micros),
            variation: Some(DelayVariation { median: us(micros), max: us(7 * micros) }),
        }
    }

    #[test]
    fn the_values_are_medians_of_the_repetitions() {
        let runs = [5, 1, 3, 100].map(latencies).to_vec();
        let found = summarize(runs.clone()).unwrap();
        let us = Nanos::from_micros;
        assert_eq!((found.typical, found.worst, found.pdv), (us(8), us(36), us(32)));
        assert_eq!(found.ipdv, Some(DelayVariation { median: us(4), max: us(28) }));
        assert_eq!(summarize(runs[..3].to_vec()).unwrap().typical, us(6));
    }

    #[test]
    fn a_stream_is_repeated_as_often_as_asked() {
        let mut device = VirtualDevice::policer(1e6, 1.0);
        device.latencies = Some(latencies(4));
        assert_eq!(latency(&RUNS, &mut device).result.unwrap().runs, [latencies(4); 20]);
        assert_eq!(device.took, Nanos::from_secs(20 * 120));
    }

    #[test]
    fn without_latencies_one_trial_shows_that_there_are_none() {
        let mut device = VirtualDevice::policer(1e6, 1.0);
        assert_eq!(latency(&RUNS, &mut device), MethodResult { result: None, stopped: None });
        assert_eq!(device.n_trials, 1);
    }
}

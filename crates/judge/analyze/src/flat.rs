//! Rates that hardly vary, because something passes no more.

use fathom_model::{
    names::host::DEV_RX_BYTES,
    units::{Nanos, ratio},
};
use fathom_statistics::median;

use crate::evidence::TestEvidence;

/// Half of the intervals of a path that overflowed differed from their median by 0.4 % at most, those of the interface behind it; with random losses,
/// by 1.7 % at least (two rounds each, of streams, transactions, and requests on one to 200 connections, with and without keep-alive).
const FULL: f64 = 0.005;
/// The usual distance of the samples of a host, with which that was measured.
const INTERVAL: Nanos = Nanos::from_millis(200);

/// The usual rate of many intervals, and the distance from it that half of them keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct UsualRate {
    /// Per second.
    pub(crate) rate: f64,
    /// The median absolute deviation, as a share of the rate.
    pub(crate) deviation: f64,
    /// The length of an interval.
    interval: Nanos,
}

impl UsualRate {
    /// With fewer intervals than this, they may be alike by chance.
    const INTERVALS_MIN: usize = 8;

    /// `None` if the intervals are too few, or nothing passed in half of them.
    pub(crate) fn of(rates: &[f64]) -> Option<Self> {
        let rate = median(rates).filter(|rate| *rate > 0.0 && rates.len() >= Self::INTERVALS_MIN)?;
        let distances: Vec<f64> = rates.iter().map(|one| (one - rate).abs()).collect();
        Some(Self { rate, deviation: median(&distances)? / rate, interval: INTERVAL })
    }

    /// Returns the bytes per second that the interface of a host received in the measured time of all rounds.
    pub(crate) fn received(seen: &TestEvidence<'_>, host: &str) -> Option<Self> {
        let interface = seen.interface(host);
        let in_trial = |trial| {
            let (record, (first, last)) = seen.measured_samples(trial, host)?;
            let series = record.series_of(DEV_RX_BYTES).find(|series| series.of == interface)?;
            let rate = move |sample: usize| {
                let bytes = series.at(sample + 1)?.saturating_sub(series.at(sample)?);
                Some(ratio(bytes, (record.at_ns[sample + 1] - record.at_ns[sample]).0)? * 1e9)
            };
            Some((first..last).filter_map(rate))
        };
        let rates: Vec<f64> = seen.trials().iter().filter_map(|trial| in_trial(trial)).flatten().collect();
        let spans = seen.trials().iter().filter_map(|trial| seen.measured_samples(trial, host));
        let span: u64 = spans.map(|(record, (first, last))| (record.at_ns[last] - record.at_ns[first]).0).sum();
        let interval = Nanos(span.checked_div(u64::try_from(rates.len()).ok()?)?);
        Some(Self { interval, ..Self::of(&rates)? })
    }

    /// Whether the interface behind a full path receives so evenly. A steady load may be as even: something else has to show that the path is full.
    pub(crate) fn is_that_of_full_path(self) -> bool {
        // A long test keeps longer intervals, over which chance evens out.
        let parts = ratio(self.interval.0, INTERVAL.0).unwrap_or(1.0).max(1.0);
        self.deviation <= FULL / parts.sqrt()
    }
}

//! The trials of a benchmark. The methods request them; the kind of the test runs them.

use std::collections::BTreeMap;

use fathom_fleet::Error;
use fathom_model::{
    Histogram, Record, Settings, Side, Trial,
    benchmark::BenchmarkTrial,
    names::{count, distribution::LATENCY},
    run::BeyondLimit,
    units::{Nanos, PerSec, approximate, ratio},
};
use fathom_packet::kinds::frames::{RECOVERY_NS, STEP_AT, STEP_RATE, VARIATION};
use fathom_rfc2544::{DelayVariation, Latencies, Tester, TrialCounts, TrialRequest, TrialTraffic};
use fathom_sys::clock;

use crate::{
    execute::{checked_plan::CheckedTest, trial_executor::RunExecutor},
    hosts::Hosts,
};

/// Extra time for a burst trial. The number of frames ends a burst; the time is only an upper bound.
const BURST_EXTRA: Nanos = Nanos::from_secs(1);

/// Runs the trials of one frame size.
pub(super) struct FrameTrials<'a, 'b> {
    pub executor: &'a RunExecutor<'b>,
    pub test: &'a CheckedTest,
    /// The option that sets the rate.
    pub rate_option: &'static str,
    /// The title of the test in the results.
    pub title: String,
    pub hosts: &'a mut Hosts,
    /// The number of tests that run together, one per direction.
    pub n_directions: u32,
    pub pause: Nanos,
    /// The name of the current method.
    pub method: &'static str,
    pub trials: Vec<BenchmarkTrial>,
    /// The last stream trial at each rate, for all tests that run together. The key is the rate in hundredths of a frame per second.
    pub trials_by_rate: BTreeMap<u64, Vec<Trial>>,
}

/// Converts a rate to a key of `trials_by_rate`.
pub(super) fn rate_key(rate: f64) -> u64 {
    fathom_model::units::rounded(rate * 100.0)
}

impl Tester for FrameTrials<'_, '_> {
    type Error = Error;

    fn n_directions(&self) -> u32 {
        self.n_directions
    }

    fn trial(&mut self, asked: &TrialRequest) -> Result<TrialCounts, Error> {
        let began = clock::now();
        let left = Nanos(asked.time_left.0 / 1_000_000_000 * 1_000_000_000);
        let rate = fathom_model::Unit::FramesPerSec.show(asked.traffic.rate());
        let words = match asked.traffic {
            TrialTraffic::Stream { .. } => format!("{}, {}: at {rate}   about {left} left", self.method, asked.purpose),
            TrialTraffic::Burst { n_frames, .. } => {
                format!("{}: {n_frames} frames at {rate}   about {left} left", self.method)
            }
            TrialTraffic::Step { then, .. } => {
                let then = fathom_model::Unit::FramesPerSec.show(then);
                format!("{}: at {rate}, then at {then}   about {left} left", self.method)
            }
        };
        self.executor.progress.show_search_step(&self.title, &words);
        let round = u32::try_from(self.trials.len()).unwrap_or(u32::MAX);
        let outcome = self.executor.run_trial(&self.test_for(&asked.traffic), round, self.hosts);
        if let Some(error) = outcome.error {
            return Err(error);
        }
        self.executor.wait(self.pause)?;
        let seen = TrialCounts { took: clock::now() - began, ..trial_counts(&outcome.trials) };
        self.trials.push(BenchmarkTrial {
            what: self.method.to_owned(),
            rate: asked.traffic.rate(),
            duration_ns: asked.traffic.duration(),
            n_intended: seen.intended,
            n_offered: seen.offered,
            n_received: seen.received,
        });
        if let TrialTraffic::Stream { rate, .. } = asked.traffic {
            self.trials_by_rate.insert(rate_key(rate), outcome.trials);
        }
        Ok(seen)
    }
}

/// A loss of this share is that of an overload, and not one frame at its edge.
const OVERLOAD_LOSS: f64 = 0.01;
/// Far above the throughput, another place may drop frames than at it.
const NEAR: f64 = 1.2;
/// The share of the intended frames that a trial has to offer.
const OFFERED: f64 = 0.99;

impl FrameTrials<'_, '_> {
    /// Returns the trial that overloads what limits the throughput, of the test at this place among those that run together.
    pub(super) fn beyond(&self, options: &Settings, throughput: f64, at: usize) -> Option<BeyondLimit> {
        let (rate, trials) = overload(&self.trials_by_rate, throughput)?;
        let options = options.clone().with(self.rate_option, exact_rate(rate));
        Some(BeyondLimit { rate, options, trials: vec![trials.get(at)?.clone()] })
    }

    /// Returns the test with this traffic. There is no warm-up, because every frame counts.
    fn test_for(&self, traffic: &TrialTraffic) -> CheckedTest {
        let options = self.test.options.clone().with(self.rate_option, exact_rate(traffic.rate()));
        let (options, span) = match traffic {
            TrialTraffic::Stream { duration, .. } => (options, *duration),
            TrialTraffic::Burst { n_frames, .. } => {
                (options.with("count", n_frames.to_string()), traffic.duration() + BURST_EXTRA)
            }
            TrialTraffic::Step { duration, then, .. } => {
                let options = options.with(STEP_AT, duration.exact()).with(STEP_RATE, exact_rate(*then));
                (options, traffic.duration())
            }
        };
        self.test.with_options(options).without_warmup().lasting(span)
    }
}

/// Returns the trials at the lowest rate just above the throughput that lost as much as an overload does, or else at the lowest that lost anything,
/// with their rate in frames per second.
fn overload(trials_by_rate: &BTreeMap<u64, Vec<Trial>>, throughput: f64) -> Option<(f64, &Vec<Trial>)> {
    let lost = |trials: &[Trial]| {
        let counts = trial_counts(trials);
        ratio(counts.offered, counts.intended).filter(|offered| *offered >= OFFERED)?;
        ratio(counts.offered.saturating_sub(counts.received), counts.offered).filter(|lost| *lost > 0.0)
    };
    let above = trials_by_rate.range(rate_key(throughput) + 1..);
    let lossy: Vec<_> =
        above.filter_map(|(key, trials)| Some((approximate(*key) / 100.0, trials, lost(trials)?))).collect();
    let is_overload = |(rate, _, lost): &&(f64, _, f64)| *rate <= NEAR * throughput && *lost >= OVERLOAD_LOSS;
    let (rate, trials, _) = *lossy.iter().find(is_overload).or(lossy.first())?;
    Some((rate, trials))
}

/// Formats a rate in frames per second as an option value.
pub(super) fn exact_rate(rate: f64) -> String {
    PerSec::new(rate).expect("a method asks for rates above zero").exact()
}

/// Merges the latencies of the receivers. Returns none if they measured none.
fn latencies(receivers: &[&Record]) -> Option<Latencies> {
    let of = |name: &str| {
        let mut all = Histogram::new();
        receivers.iter().filter_map(|receiver| receiver.distributions.get(name)).for_each(|times| all.merge(times));
        (all.count() > 0).then_some(all)
    };
    let times = of(LATENCY)?;
    let quantile = |q: f64| times.quantile(q).map(Nanos);
    let variation = of(VARIATION)
        .and_then(|times| Some(DelayVariation { median: Nanos(times.quantile(0.5)?), max: Nanos(times.max()?) }));
    let (min, max) = (Nanos(times.min()?), Nanos(times.max()?));
    Some(Latencies { n: times.count(), min, median: quantile(0.5)?, worst: quantile(0.999)?, max, variation })
}

/// Adds up the records of all tests of one trial.
pub(super) fn trial_counts<'a>(trials: impl IntoIterator<Item = &'a Trial>) -> TrialCounts {
    let records: Vec<&Record> = trials.into_iter().flat_map(|trial| trial.records.values()).collect();
    let of = |side: Side| -> Vec<&Record> { records.iter().copied().filter(|record| record.side == side).collect() };
    let total = |record: &&Record, name: &str| record.totals.get(name).copied();
    let (senders, receivers) = (of(Side::Initiator), of(Side::Responder));
    let offered = |sender: &&Record| total(sender, count::SENT).unwrap_or(0);
    TrialCounts {
        // A flat-out sender has no schedule, so its intended frames are the sent frames.
        intended: senders.iter().map(|one| total(one, count::INTENDED).unwrap_or_else(|| offered(one))).sum(),
        offered: senders.iter().map(offered).sum(),
        received: receivers.iter().filter_map(|one| total(one, count::RECEIVED)).sum(),
        latencies: latencies(&receivers),
        recovery: receivers.iter().filter_map(|one| total(one, RECOVERY_NS)).max().map(Nanos),
        lag: Nanos(senders.iter().filter_map(|one| total(one, count::SCHEDULE_LAG_NS_MAX)).max().unwrap_or(0)),
        took: Nanos::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trials at rates, each with what was due, sent and received.
    fn trials(counts: &[(f64, [u64; 3])]) -> BTreeMap<u64, Vec<Trial>> {
        let of = |(rate, [intended, offered, received]): &(f64, [u64; 3])| {
            let record = |side, totals: &[(&str, u64)]| Record {
                totals: totals.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
                ..Record::empty(side)
            };
            let sender = record(Side::Initiator, &[(count::INTENDED, *intended), (count::SENT, *offered)]);
            let receiver = record(Side::Responder, &[(count::RECEIVED, *received)]);
            let records = [("a".to_owned(), sender), ("b".to_owned(), receiver)].into();
            (rate_key(*rate), vec![Trial { records, ..Trial::default() }])
        };
        counts.iter().map(of).collect()
    }

    #[test]
    fn the_trial_beyond_a_throughput_is_a_near_one_that_lost_what_an_overload_does() {
        let at = |counts: &[(f64, [u64; 3])]| overload(&trials(counts), 1_000.0).map(|(rate, _)| rate);
        let kept = (1_000.0, [1_000, 1_000, 1_000]);
        let edge = (1_010.0, [1_010, 1_010, 1_009]);
        let near = (1_100.0, [1_100, 1_100, 1_000]);
        let far = (5_000.0, [5_000, 5_000, 1_000]);
        assert_eq!(at(&[kept, edge, near, far]), Some(1_100.0));
        assert_eq!(at(&[kept, edge, far]), Some(1_010.0), "far above, another place may be full");
        assert_eq!(at(&[kept, far]), Some(5_000.0), "there is no other");
        assert_eq!(at(&[kept, (1_100.0, [1_100, 900, 800])]), None, "fathom did not send them");
        assert_eq!(at(&[kept, (1_100.0, [1_100, 1_100, 1_100])]), None);
    }
}

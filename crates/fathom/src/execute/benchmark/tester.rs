//! The trials of a benchmark: trials of the kind `frames`, as the methods ask for them.

use std::collections::BTreeMap;

use fathom_fleet::Error;
use fathom_model::{
    Record, Side, TestPlan, Trial,
    benchmark::BenchmarkTrial,
    names::count,
    units::{Nanos, PerSec},
};
use fathom_packet::{
    kinds::frames::{LATENCY, RECOVERY_NS, STEP_AT, STEP_RATE, VARIATION},
    methods::{Asked, Latencies, Seen, Tester, Traffic, Variation},
};
use fathom_sys::clock;

use crate::{execute::course::Course, hosts::Hosts};

/// A burst ends by its number; the time only bounds it.
const BURST_EXTRA: Nanos = Nanos::from_secs(1);

/// Makes the trials of one frame size.
pub(super) struct Trials<'a, 'b> {
    pub(super) course: &'a Course<'b>,
    pub(super) test: &'a TestPlan,
    pub(super) hosts: &'a mut Hosts,
    pub(super) pause: Nanos,
    /// The method that is carried out.
    pub(super) method: &'static str,
    pub(super) made: Vec<BenchmarkTrial>,
    /// The last trial of each rate of a stream, by the rate in hundredths of a frame per second.
    pub(super) kept: BTreeMap<u64, Trial>,
}

/// A rate as a key.
pub(super) fn key(rate: f64) -> u64 {
    fathom_model::units::rounded(rate * 100.0)
}

impl Tester for Trials<'_, '_> {
    type Error = Error;

    fn trial(&mut self, asked: &Asked) -> Result<Seen, Error> {
        let began = clock::now();
        let left = Nanos(asked.left.0 / 1_000_000_000 * 1_000_000_000);
        let rate = fathom_model::Unit::FramesPerSec.show(asked.traffic.rate());
        let words = match asked.traffic {
            Traffic::Stream { .. } => format!("{}, {}: at {rate}   about {left} left", self.method, asked.what),
            Traffic::Burst { n_frames, .. } => {
                format!("{}: {n_frames} frames at {rate}   about {left} left", self.method)
            }
            Traffic::Step { then, .. } => {
                let then = fathom_model::Unit::FramesPerSec.show(then);
                format!("{}: at {rate}, then at {then}   about {left} left", self.method)
            }
        };
        self.course.progress.searches(&self.test.name, &words);
        let round = u32::try_from(self.made.len()).unwrap_or(u32::MAX);
        let outcome = self.course.play(&self.test_for(&asked.traffic), round, self.hosts);
        if let Some(error) = outcome.error {
            return Err(error);
        }
        self.course.wait(self.pause)?;
        let seen = Seen { took: clock::now() - began, ..seen(&outcome.trial) };
        self.made.push(BenchmarkTrial {
            what: self.method.to_owned(),
            rate: asked.traffic.rate(),
            duration_ns: asked.traffic.duration(),
            n_intended: seen.intended,
            n_offered: seen.offered,
            n_received: seen.received,
        });
        if let Traffic::Stream { rate, .. } = asked.traffic {
            self.kept.insert(key(rate), outcome.trial);
        }
        Ok(seen)
    }
}

impl Trials<'_, '_> {
    fn test_for(&self, traffic: &Traffic) -> TestPlan {
        let mut test = test_at(self.test, traffic.rate());
        test.duration = match traffic {
            Traffic::Stream { duration, .. } => duration.exact(),
            Traffic::Burst { n_frames, .. } => {
                test.options.set("count", n_frames.to_string());
                (traffic.duration() + BURST_EXTRA).exact()
            }
            Traffic::Step { duration, then, .. } => {
                test.options.set(STEP_AT, duration.exact());
                test.options.set(STEP_RATE, exact(*then));
                traffic.duration().exact()
            }
        };
        test
    }
}

/// A test of the same frames at a rate, without a warm-up: every frame counts.
pub(super) fn test_at(test: &TestPlan, rate: f64) -> TestPlan {
    let mut test = TestPlan { benchmark: None, warmup: Nanos::ZERO.exact(), ..test.clone() };
    test.options.set("rate", exact(rate));
    test
}

fn exact(rate: f64) -> String {
    PerSec::new(rate).expect("a method asks for rates above zero").exact()
}

/// What the receiver's distributions say of latencies, where it could tell them.
fn latencies(receiver: &Record) -> Option<Latencies> {
    let of = |name: &str| receiver.distributions.get(name).filter(|times| times.count() > 0);
    let times = of(LATENCY)?;
    let quantile = |q: f64| times.quantile(q).map(Nanos);
    let variation = of(VARIATION)
        .and_then(|times| Some(Variation { median: Nanos(times.quantile(0.5)?), max: Nanos(times.max()?) }));
    let (min, max) = (Nanos(times.min()?), Nanos(times.max()?));
    Some(Latencies { n: times.count(), min, median: quantile(0.5)?, worst: quantile(0.999)?, max, variation })
}

/// What the records of a trial say.
pub(super) fn seen(trial: &Trial) -> Seen {
    let of = |side: Side| trial.records.values().find(|record| record.side == side);
    let total = |record: Option<&Record>, name: &str| record.and_then(|record| record.totals.get(name)).copied();
    let (sender, receiver) = (of(Side::Initiator), of(Side::Responder));
    let offered = total(sender, count::SENT).unwrap_or(0);
    Seen {
        // Flat out, nothing is intended but what is sent.
        intended: total(sender, count::INTENDED).unwrap_or(offered),
        offered,
        received: total(receiver, count::RECEIVED).unwrap_or(0),
        latencies: receiver.and_then(latencies),
        recovery: total(receiver, RECOVERY_NS).map(Nanos),
        lag: total(sender, count::SCHEDULE_LAG_NS_MAX).map_or(Nanos::ZERO, Nanos),
        took: Nanos::ZERO,
    }
}

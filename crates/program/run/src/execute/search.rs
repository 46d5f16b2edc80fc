//! A search for a limit: the trials of one test at many rates, judged as they come.

use std::{collections::BTreeMap, io};

use fathom_analyze::value_in;
use fathom_engine::search::{
    Certainty, Forwarded, LoadLevel, Measurer, Observation, SearchResult, SearchTrialRequest, search,
};
use fathom_fleet::{Error, ErrorClass};
use fathom_model::{
    Confidence, Derivation, Metric, Record, Side, TestRun, Trial, ValueKind,
    finding::PromiseOutcome,
    names::{count, distribution},
    run::Host,
    search::{CurvePoint, Decision, LoadCurve, SearchTrial},
    units::{Nanos, approximate, ratio, rounded},
};
use fathom_report::formats::RunEvent;
use fathom_statistics::samples_needed;
use fathom_sys::clock;

use super::{
    checked_plan::CheckedTest,
    search_spec::{ObjectivePart, SearchSpec},
    trial_executor::RunExecutor,
};
use crate::hosts::Hosts;

/// A trial at a low rate is made longer for the sake of its quantile, but at most by so much.
const LONGER_MAX: u64 = 10;

/// So many may be due and not sent when a trial ends, at any rate; in a trial of a hundred they are no sign of a slow tool.
const UNSENT_AT_END_MAX: u64 = 3;

/// Why no trial can be made any more.
enum SearchTrialError {
    Fleet(Error),
    Output(io::Error),
}

/// A trial with what was made of it.
struct SearchedTrial {
    load: LoadLevel,
    judged: SearchTrial,
    trial: Trial,
}

/// Makes the trials of a search on the hosts of a run.
struct SearchTrials<'a, 'b> {
    executor: &'a RunExecutor<'b>,
    test: &'a CheckedTest,
    /// What the test is called in the result.
    title: String,
    spec: &'a SearchSpec,
    hosts_info: &'a BTreeMap<String, Host>,
    hosts: &'a mut Hosts,
    trials: Vec<SearchedTrial>,
}

impl RunExecutor<'_> {
    /// Searches for the limit of a test, and writes all that was measured into its run; why it was ended early.
    pub(super) fn search(
        &self,
        into: &mut TestRun,
        (test, spec): (&CheckedTest, &SearchSpec),
        (known, hosts): (&BTreeMap<String, Host>, &mut Hosts),
    ) -> anyhow::Result<Option<Error>> {
        let title = into.title.clone();
        let mut trials =
            SearchTrials { executor: self, test, title, spec, hosts_info: known, hosts, trials: Vec::new() };
        let mut found = search(&spec.bounds, &mut trials);
        let made = trials.trials;
        let error = found.error.take();
        if !made.is_empty() {
            write(into, spec, &found, made);
        }
        match error {
            Some(SearchTrialError::Output(error)) => Err(error.into()),
            Some(SearchTrialError::Fleet(error)) => Ok(Some(error)),
            None => Ok(None),
        }
    }
}

impl Measurer for SearchTrials<'_, '_> {
    type Error = SearchTrialError;

    fn measure(&mut self, step: &SearchTrialRequest) -> Result<Observation, SearchTrialError> {
        let began = clock::now();
        self.executor.progress.show_search_step(&self.title, &self.step_text(step));
        let outcome = self.executor.run_trial(&self.test_at(step), step.n_done, self.hosts);
        let took = clock::now() - began;
        if let Some(error) = outcome.error {
            // One trial that failed at a high rate says nothing; a host that is lost, or nothing that ever worked, says all.
            if error.class() != ErrorClass::Failed || self.trials.is_empty() {
                return Err(SearchTrialError::Fleet(error));
            }
        }
        // No test is made together with one that searches, so there is one.
        let trial = outcome.trials.into_iter().next().unwrap_or_default();
        let (observation, judged) = self.judge(&trial, step, took);
        if self.executor.is_live() {
            let mut out = io::stdout().lock();
            RunEvent::trial(&self.test.name, &trial).write(&mut out).map_err(SearchTrialError::Output)?;
            RunEvent::step(&self.test.name, step.load.get(), &judged)
                .write(&mut out)
                .map_err(SearchTrialError::Output)?;
        }
        self.trials.push(SearchedTrial { load: step.load, judged, trial });
        Ok(observation)
    }
}

impl SearchTrials<'_, '_> {
    /// The test at one rate, long enough for the quantile that is judged.
    fn test_at(&self, step: &SearchTrialRequest) -> CheckedTest {
        let load = step.load;
        let test = self.test.with_options(self.spec.options_at(&self.test.options, load));
        if let Some(duration) = step.duration {
            return test.lasting(duration);
        }
        let needed = self.spec.parts.iter().filter_map(|part| match part.metric.from {
            Derivation::Quantile { q, .. } => Some(samples_needed(q)),
            _ => None,
        });
        match (needed.max(), self.spec.option.value) {
            (Some(needed), ValueKind::Rate) => {
                let wanted = self.test.phases.measure_ns;
                let needed = Nanos(rounded(1e9 * approximate(needed) / load.get()));
                test.lasting(needed.max(wanted).min(Nanos(wanted.0.saturating_mul(LONGER_MAX))))
            }
            _ => test,
        }
    }

    /// What is done now: `narrowing 32.0 – 45.2 k req/s, at 38.1 k req/s`.
    fn step_text(&self, step: &SearchTrialRequest) -> String {
        let unit = self.spec.achieved.unit;
        let at = unit.show(step.load.get());
        let word = step.purpose.word();
        match (step.kept, step.broken) {
            (Some(kept), Some(broken)) => {
                format!("{word} {} – {}: at {at}", unit.show(kept.get()), unit.show(broken.get()))
            }
            _ => format!("{word}: at {at}"),
        }
    }

    fn judge(&self, trial: &Trial, step: &SearchTrialRequest, took: Nanos) -> (Observation, SearchTrial) {
        let spec = self.spec;
        let is_whole = !trial.records.is_empty() && trial.records.values().all(|record| record.complete);
        let value_of = |metric| value_in(trial, self.hosts_info, metric).filter(|_| is_whole);
        let (value, achieved) = (value_of(&spec.parts[0].metric), value_of(&spec.achieved));
        let kept = spec.parts.iter().map(|part| {
            let value = value_of(&part.metric)?;
            Some(part.promise.judge(value, None) == PromiseOutcome::Kept)
        });
        let keeps = kept.reduce(|all, one| Some(all? && one?)).flatten();
        let initiator = trial.records.values().find(|record| record.side == Side::Initiator);
        let total = |name: &str| initiator.and_then(|record| record.totals.get(name)).copied();
        let late = initiator.and_then(|record| generator_lateness(&spec.parts, record));
        let sent = total(count::SENT).zip(total(count::INTENDED));
        let sent = sent.and_then(|(sent, intended)| ratio((sent + UNSENT_AT_END_MAX).min(intended), intended));
        // A kind that knows why a start was late says by that whose fault it was that something was not sent.
        let unsent = sent.filter(|_| late.is_none());
        // What is lost is what such an objective is about: how much of it may be missing is for its bound to say.
        let is_loss = spec.parts.iter().any(|part| is_of_loss(&part.metric));
        let is_random = self.test.options.text("arrivals").is_some_and(|arrivals| arrivals != "constant");
        let observation = Observation {
            keeps,
            sent: unsent,
            achieved: achieved.filter(|_| !is_loss).map(|achieved| achieved / step.load.get()),
            n_random: total(count::INTENDED).filter(|_| is_random).map(approximate),
            late,
            took,
            forwarded: achieved.map(|achieved| self.forwarded(step, achieved, self.loss().and_then(value_of))),
        };
        let judged = SearchTrial {
            n: step.n_done,
            purpose: step.purpose,
            sent: sent.map(|share| share * step.load.get()),
            achieved,
            value,
            median_ns: spec.median.as_ref().and_then(value_of),
            vote: observation.vote(),
            took_ns: took,
        };
        (observation, judged)
    }
}

impl SearchTrials<'_, '_> {
    /// The metric that tells what is lost, of a kind that counts it.
    fn loss(&self) -> Option<&'static Metric> {
        self.test.kind.metrics().iter().find(|metric| is_of_loss(metric))
    }

    /// What became of a load; of a kind that counts no loss, what was not achieved of it is lost.
    fn forwarded(&self, step: &SearchTrialRequest, achieved: f64, lost: Option<f64>) -> Forwarded {
        let effective = step.duration.unwrap_or(self.test.phases.measure_ns);
        // A target that catches up on what was due before lost nothing.
        let loss_ratio = lost.unwrap_or(1.0 - achieved / step.load.get()).max(0.0);
        Forwarded { loss_ratio, effective, rate: Some(achieved) }
    }
}

/// The share of starts that were late by our own doing, if that can be why the objective was not kept.
///
/// It cannot when more waited for a connection, nor when the time from the actual start, which leaves our lateness out, breaks
/// the objective too: then the target would have broken it for a tool without fault as well. A tool that starts later than
/// answers take also reads them late, so that its times from the actual start accuse nobody.
fn generator_lateness(parts: &[ObjectivePart], record: &Record) -> Option<f64> {
    let total = |name: &str| record.totals.get(name).copied();
    let (own, others) = (total(count::LATE_OWN_CPU)?, total(count::LATE_NO_CONNECTION).unwrap_or(0));
    let of = |name: &str, q: f64| record.distributions.get(name).and_then(|times| times.quantile(q));
    let breaks = |part: &ObjectivePart| match &part.metric.from {
        Derivation::Quantile { distribution: name, q, .. } if name == distribution::RESPONSE_TIME => {
            let (time, lag) = (of(distribution::SERVICE_TIME, *q), of(distribution::SCHEDULE_LAG, *q));
            time.filter(|time| lag.is_none_or(|lag| lag < *time))
                .is_some_and(|time| part.promise.judge(approximate(time), None) != PromiseOutcome::Kept)
        }
        _ => false,
    };
    let is_excused = own < others || parts.iter().any(breaks);
    if is_excused { Some(0.0) } else { ratio(own, total(count::INTENDED)?) }
}

/// Whether a metric tells what of one side's does not arrive at the other.
fn is_of_loss(metric: &Metric) -> bool {
    matches!(&metric.from, Derivation::Missing { sent, arrived } if sent.0 != arrived.0)
}

/// Writes the curve of a search into the run of its test, and the trials at the limit as those of the test.
fn write(into: &mut TestRun, spec: &SearchSpec, found: &SearchResult<SearchTrialError>, made: Vec<SearchedTrial>) {
    let at_limit = found.kept.or_else(|| made.iter().map(|made| made.load).reduce(|a, b| if b < a { b } else { a }));
    if let Some(load) = at_limit {
        into.options = spec.options_at(&into.options, load);
    }
    let mut points: Vec<CurvePoint> = found.points.iter().map(|point| empty(point.load)).collect();
    for SearchedTrial { load, judged, trial } in made {
        if let Some(idx) = found.points.iter().position(|point| point.load == load) {
            points[idx].trials.push(judged);
        }
        if Some(load) == at_limit {
            into.trials.push(trial);
        }
    }
    let is_sure = found.sure == (Certainty::Confirmed, Certainty::Confirmed);
    let confidence = found.kept.zip(found.broken).filter(|_| is_sure).map(|(kept, broken)| {
        let ends = found.points.iter().filter(|point| point.load == kept || point.load == broken);
        let n_trials = ends.map(|point| usize::try_from(point.confirmed.total()).unwrap_or(0)).sum();
        Confidence { low: kept.get(), high: broken.get(), level: spec.bounds.confidence, n_trials }
    });
    into.curve = Some(LoadCurve {
        objective: spec.objective.clone(),
        metric: spec.parts[0].metric.name.to_string(),
        bound: spec.parts[0].promise.bound,
        option: spec.option.name.to_owned(),
        unit: spec.achieved.unit,
        ending: found.ending,
        kept: found.kept.map(LoadLevel::get),
        broken: found.broken.map(LoadLevel::get),
        confidence,
        knee: None,
        points,
    });
}

/// A point whose values follow from its trials.
fn empty(load: LoadLevel) -> CurvePoint {
    let decision = Decision::Undecided;
    CurvePoint {
        offered: load.get(),
        decision,
        cause: None,
        achieved: None,
        value: None,
        median_ns: None,
        trials: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Histogram, Timeline, plan::SearchPlan};

    use super::*;
    use crate::registry;

    /// The share that counts as our own lateness, of a hundred starts of which forty were late by our own doing.
    fn late(service: Nanos, lag: Nanos) -> Option<f64> {
        let search = SearchPlan {
            objective: "latency_ns_p99 < 20ms".to_owned(),
            option: Some("rate".to_owned()),
            low: None,
            high: None,
            precision: Some("2.5%".to_owned()),
            confidence: Some("95%".to_owned()),
            trials: Some(200),
        };
        let spec = SearchSpec::of(&search, registry::kind("http_open").unwrap()).unwrap();
        let times = |time: Nanos| {
            let mut times = Histogram::new();
            (0..100).for_each(|_| times.record(time.0));
            times
        };
        let totals = [(count::INTENDED, 100), (count::LATE_OWN_CPU, 40), (count::LATE_NO_CONNECTION, 0)];
        let record = Record {
            side: Side::Initiator,
            start_ns: Nanos::ZERO,
            start_late_ns: Nanos::ZERO,
            measured_ns: (Nanos::ZERO, Nanos::from_secs(1)),
            steady: true,
            complete: true,
            cpu_ns: Nanos::ZERO,
            cpu_ns_by_core: BTreeMap::new(),
            timeline: Timeline::default(),
            totals: totals.map(|(name, n)| (name.to_owned(), n)).into(),
            distributions: [
                (distribution::SERVICE_TIME.to_owned(), times(service)),
                (distribution::SCHEDULE_LAG.to_owned(), times(lag)),
            ]
            .into(),
            flows: Vec::new(),
            facts: BTreeMap::new(),
            users: None,
            probe: None,
            errors: BTreeMap::new(),
            notes: Vec::new(),
        };
        generator_lateness(&spec.parts, &record)
    }

    #[test]
    fn a_tool_that_starts_later_than_answers_take_accuses_no_target() {
        let ms = Nanos::from_millis;
        assert_eq!(late(ms(67), ms(683)), Some(0.4), "it read the answers late as well");
        assert_eq!(late(ms(67), ms(5)), Some(0.0), "the target broke the objective by itself");
        assert_eq!(late(ms(2), ms(30)), Some(0.4), "the target kept the objective");
    }
}

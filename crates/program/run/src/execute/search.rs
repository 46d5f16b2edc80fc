//! A search for a limit: trials of one test at many rates, each judged as it ends.

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
    run::{BeyondLimit, Host},
    search::{CurvePoint, Decision, LoadCurve, MissReason, SearchTrial, Vote},
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

/// The largest factor by which a trial at a low rate is made longer, to get enough samples for its quantile.
const LONGER_MAX: u64 = 10;

/// The starts that may be due but unsent when a trial ends, at any rate. In a trial of only a hundred starts they do not mean that
/// the tool is slow.
const UNSENT_AT_END_MAX: u64 = 3;

/// An error that ends the search.
enum SearchTrialError {
    Fleet(Error),
    Output(io::Error),
}

/// A trial and its judgment.
struct SearchedTrial {
    load: LoadLevel,
    judged: SearchTrial,
    trial: Trial,
}

/// Runs the trials of a search on the hosts of a run.
struct SearchTrials<'a, 'b> {
    executor: &'a RunExecutor<'b>,
    test: &'a CheckedTest,
    /// The title of the test in the result.
    title: String,
    spec: &'a SearchSpec,
    hosts_info: &'a BTreeMap<String, Host>,
    hosts: &'a mut Hosts,
    trials: Vec<SearchedTrial>,
}

impl RunExecutor<'_> {
    /// Searches for the limit of a test and writes all results into its run. Returns the error that ended the search early.
    pub(super) fn search(
        &self,
        into: &mut TestRun,
        test: &CheckedTest,
        spec: &SearchSpec,
        known: &BTreeMap<String, Host>,
        hosts: &mut Hosts,
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
            // One failed trial at a high rate does not end the search. A lost host or a failed first trial does.
            if error.class() != ErrorClass::Failed || self.trials.is_empty() {
                return Err(SearchTrialError::Fleet(error));
            }
        }
        // No other test runs together with a search, so there is one trial.
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
    /// Returns the test at one rate, long enough for the judged quantile.
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

    /// Describes the current step: `narrowing 32.0 k req/s – 45.2 k req/s: at 38.1 k req/s`.
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
        // If a kind counts why starts were late, that count already tells whether unsent starts are the tool's fault.
        let unsent = sent.filter(|_| late.is_none());
        // An objective on loss has its own bound for missing messages, so the achieved rate is not checked.
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
    /// Returns the loss metric of the kind, if it has one.
    fn loss(&self) -> Option<&'static Metric> {
        self.test.kind.metrics().iter().find(|metric| is_of_loss(metric))
    }

    /// Returns the loss at a load. If the kind counts no loss, the part of the load that was not achieved counts as lost.
    fn forwarded(&self, step: &SearchTrialRequest, achieved: f64, lost: Option<f64>) -> Forwarded {
        let effective = step.duration.unwrap_or(self.test.phases.measure_ns);
        // A target that catches up on an earlier backlog lost nothing.
        let loss_ratio = lost.unwrap_or(1.0 - achieved / step.load.get()).max(0.0);
        Forwarded { loss_ratio, effective, rate: Some(achieved) }
    }
}

/// Returns the share of starts that this tool itself delayed, if that can be the reason why the objective was not kept.
///
/// It cannot be the reason if more starts waited for a connection, or if the time from the actual start breaks the objective too.
/// That time excludes the tool's own delay, so the target would have broken the objective with a perfect tool as well. If the tool
/// starts requests with a longer delay than answers take, it also reads the answers late, and that time proves nothing.
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

/// Returns true if a metric is the loss from one side to the other.
fn is_of_loss(metric: &Metric) -> bool {
    matches!(&metric.from, Derivation::Missing { sent, arrived } if sent.0 != arrived.0)
}

/// Of the trials beyond the limit, so many of the last are kept.
const BEYOND_MAX: usize = 2;
/// The trial at 110 % of the limit shows what ends it more clearly than the nearest; far above, another place may be the first to end it.
const NEAR: f64 = 1.2;

/// Writes the curve of a search into the run of its test, and the trials at the limit as the trials of the test.
fn write(into: &mut TestRun, spec: &SearchSpec, found: &SearchResult<SearchTrialError>, made: Vec<SearchedTrial>) {
    let at_limit = found.kept.or_else(|| made.iter().map(|made| made.load).reduce(|a, b| if b < a { b } else { a }));
    if let Some(load) = at_limit {
        into.options = spec.options_at(&into.options, load);
    }
    // If even the lowest rate breaks the objective, the trials at it are those of the test.
    into.beyond = found.kept.zip(found.broken).and_then(|(kept, broken)| {
        let highest = broken.get().max(NEAR * kept.get());
        let is_missed = |made: &&SearchedTrial| {
            let missed = matches!(made.judged.vote, Vote::Broken(reason) if reason != MissReason::Generator);
            missed && (broken.get()..=highest).contains(&made.load.get())
        };
        let missed = || made.iter().filter(is_missed);
        let load = missed().map(|made| made.load).reduce(|a, b| if b > a { b } else { a })?;
        let last = missed().rev().filter(|made| made.load == load).take(BEYOND_MAX);
        let trials = last.map(|made| made.trial.clone()).collect();
        Some(BeyondLimit { rate: load.get(), options: spec.options_at(&into.options, load), trials })
    });
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

/// Creates a point without values. The analysis computes them from its trials.
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
    use fathom_model::{Histogram, plan::SearchPlan};

    use super::*;
    use crate::registry;

    /// Returns the share that counts as the tool's own lateness, for 100 starts of which the tool delayed 40.
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
            measured_ns: (Nanos::ZERO, Nanos::from_secs(1)),
            totals: totals.map(|(name, n)| (name.to_owned(), n)).into(),
            distributions: [
                (distribution::SERVICE_TIME.to_owned(), times(service)),
                (distribution::SCHEDULE_LAG.to_owned(), times(lag)),
            ]
            .into(),
            ..Record::empty(Side::Initiator)
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

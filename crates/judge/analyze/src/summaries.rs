//! The values of a test with their uncertainty, computed from its records and the definitions of its metrics.
//!
//! The unit of replication is the trial. Rounds are spread over the whole run, so the spread of the trials includes the
//! variation between runs.

use std::{borrow::Cow, collections::BTreeMap};

use fathom_model::{
    Better, Confidence, Derivation, Histogram, Metric, Record, Side, StepKind, StepRecord, Summary, Trial, UsersRecord,
    Visits,
    metric::{StepValue, TargetsValue, UsersValue, per},
    names::{count, host::DEVICE_CPU_NS},
    record::Series,
    run::{Host, TestRun},
    units::{Nanos, approximate, approximate_signed, grouped, ratio},
};
use fathom_statistics::{
    LEVEL, mean, mean_interval, proportion_interval, quantile_summary, samples_needed, share_interval,
};

use crate::{
    benchmark,
    cores::WORK,
    curve, targets,
    window::{MeasuredWindow, members, record_of, samples_within, usable_trials, widened},
};

/// The input for the values of one test.
struct TestTrials<'a> {
    trials: Vec<&'a Trial>,
    hosts: &'a BTreeMap<String, Host>,
}

/// Returns the values of a test in the order of its metrics, or none if the test could not run.
pub(crate) fn summaries(test: &TestRun, hosts: &BTreeMap<String, Host>, metrics: &[Metric]) -> Vec<Summary> {
    if test.unavailable.is_some() {
        return Vec::new();
    }
    let trials = TestTrials { trials: usable_trials(&test.trials), hosts };
    let n_left_out = test.trials.len() - trials.trials.len();
    metrics
        .iter()
        .map(|metric| {
            match metric.from {
                Derivation::Limit => return curve::summary(test, metric),
                Derivation::Benchmark => return benchmark::summary(test, metric),
                _ => {}
            }
            let mut summary = trials.summary(metric);
            if summary.note.as_deref() == Some(NOT_RECORDED) {
                summary.note = metric.inapplicable.as_deref().or(Some(NOT_RECORDED)).map(str::to_owned);
            }
            if n_left_out > 0 && summary.note.is_none() {
                summary.note =
                    Some(format!("{n_left_out} of {} trials did not end and are left out", test.trials.len()));
            }
            summary
        })
        .collect()
}

/// Returns the value of a metric in one trial, or `None` if it was not measured in that trial.
#[must_use]
pub fn value_in(trial: &Trial, hosts: &BTreeMap<String, Host>, metric: &Metric) -> Option<f64> {
    TestTrials { trials: vec![trial], hosts }.summary(metric).value
}

/// Returns the value of a metric in some trials of a test, with its interval.
pub(crate) fn summary_of(trials: &[Trial], hosts: &BTreeMap<String, Host>, metric: &Metric) -> Summary {
    TestTrials { trials: usable_trials(trials), hosts }.summary(metric)
}

/// The unit of work for counters of bytes.
const GIBIBYTE: f64 = 1_073_741_824.0;

const MINUTE_NS: f64 = 60e9;

/// The value of one trial, or the reason why it is missing.
type Value = Result<f64, String>;

/// The reason for a missing value. The wording is always the same, so that a report prints it once.
const NOT_RECORDED: &str = "not recorded";

const fn side_name(side: Side) -> &'static str {
    match side {
        Side::Initiator => "initiator",
        Side::Responder => "responder",
    }
}

fn record_or_reason(trial: &Trial, side: Side) -> Result<(&str, &Record), String> {
    record_of(trial, side).ok_or_else(|| format!("there is no record of the {}", side_name(side)))
}

fn total(trial: &Trial, side: Side, counter: &str) -> Result<u64, String> {
    let (_, record) = record_or_reason(trial, side)?;
    record.totals.get(counter).copied().ok_or_else(|| NOT_RECORDED.to_owned())
}

/// Returns the total that a derivation names by side and counter.
fn side_total(trial: &Trial, (side, counter): &(Side, Cow<'static, str>)) -> Result<u64, String> {
    total(trial, *side, counter)
}

/// Converts a quantile of times to events per minute. The longest times become the low end.
fn per_minute(times: Summary) -> Summary {
    let inverse = |nanos: f64| MINUTE_NS / nanos;
    Summary {
        value: times.value.filter(|nanos| *nanos > 0.0).map(inverse),
        confidence: times.confidence.filter(|t| t.low > 0.0).map(|t| Confidence {
            low: inverse(t.high),
            high: inverse(t.low),
            ..t
        }),
        trials: times.trials.iter().copied().filter(|nanos| *nanos > 0.0).map(inverse).collect(),
        ..times
    }
}

impl<'a> TestTrials<'a> {
    fn summary(&self, metric: &Metric) -> Summary {
        match &metric.from {
            Derivation::Rate { side, counter } => {
                self.mean_summary(metric, |trial| Ok(metric.unit.per_counted() * self.rate(trial, *side, counter)?))
            }
            Derivation::RateOfBoth { counter } => self.mean_summary(metric, |trial| {
                let there = self.rate(trial, Side::Initiator, counter)?;
                Ok(metric.unit.per_counted() * (there + self.rate(trial, Side::Responder, counter)?))
            }),
            Derivation::Total { side, counter } if count::is_maximum(counter) => {
                self.max_summary(metric, |trial| total(trial, *side, counter).map(approximate))
            }
            Derivation::Total { side, counter } => {
                self.mean_summary(metric, |trial| total(trial, *side, counter).map(approximate))
            }
            Derivation::Cost { side, counter } => self.mean_summary(metric, |trial| cost(trial, *side, counter)),
            Derivation::HostCost { side, counter } => {
                self.mean_summary(metric, |trial| self.host_cost(trial, *side, counter))
            }
            Derivation::DeviceCost { host, side, counter } => {
                self.mean_summary(metric, |trial| self.cost_on(&[host.as_ref()], trial, *side, counter))
            }
            Derivation::Limit => Summary { note: Some("one trial has no limit".to_owned()), ..empty(metric) },
            Derivation::Benchmark => Summary { note: Some("one trial is no benchmark".to_owned()), ..empty(metric) },
            Derivation::Targets { of } => self.targets_summary(metric, *of),
            Derivation::Users { of } => self.users_summary(metric, *of),
            Derivation::Step { step, of } => self.step_summary(metric, step, *of),
            Derivation::Quantile { side, distribution, q } => self.times_summary(metric, *side, distribution, *q),
            Derivation::PerMinute { side, distribution, q } => {
                per_minute(self.times_summary(metric, *side, distribution, *q))
            }
            Derivation::Share { part, whole } => {
                self.ratio_summary(metric, |trial| Ok((side_total(trial, part)?, side_total(trial, whole)?)), ratio)
            }
            Derivation::Proportion { part, whole } => {
                self.proportion_summary(metric, |trial| Ok((side_total(trial, part)?, side_total(trial, whole)?)))
            }
            Derivation::Quotient { of, over } => self.mean_summary(metric, |trial| {
                per(side_total(trial, of)?, side_total(trial, over)?)
                    .ok_or_else(|| "there is nothing to divide by".to_owned())
            }),
            Derivation::Missing { sent, arrived } => {
                let parts = |trial: &Trial| Ok((side_total(trial, arrived)?, side_total(trial, sent)?));
                // Subtracts before dividing, so that one lost packet in a billion is not rounded away.
                self.ratio_summary(metric, parts, |arrived, sent| {
                    let missing = i64::try_from(i128::from(sent) - i128::from(arrived)).ok()?;
                    (sent > 0).then(|| approximate_signed(missing) / approximate(sent))
                })
            }
        }
    }

    fn times_summary(&self, metric: &Metric, side: Side, distribution: &str, q: f64) -> Summary {
        self.quantile_summary(metric, q, &|trial| {
            record_or_reason(trial, side).ok()?.1.distributions.get(distribution).map(Cow::Borrowed)
        })
    }

    /// Returns a value of all trials together: counts of targets add up, and a p-value of a part says less.
    fn targets_summary(&self, metric: &Metric, of: TargetsValue) -> Summary {
        let (trials, _) = self.values(|trial| targets::value(&[trial], of));
        match targets::value(&self.trials, of) {
            Ok(value) => Summary { value: Some(value), trials, ..empty(metric) },
            Err(why) => Summary { note: Some(why), ..empty(metric) },
        }
    }

    fn users_summary(&self, metric: &Metric, of: UsersValue) -> Summary {
        match of {
            UsersValue::Begun | UsersValue::Finished | UsersValue::GaveUp => {
                self.mean_summary(metric, |trial| visits_per_sec(trial, of))
            }
            UsersValue::GaveUpShare => {
                let parts = |trial: &Trial| {
                    let (visits, _) = visits(trial)?;
                    Ok((visits.n_gave_up, visits.n_gave_up.saturating_add(visits.n_finished)))
                };
                self.ratio_summary(metric, parts, ratio)
            }
            UsersValue::Errors => {
                let parts = |trial: &Trial| {
                    let (_, users) = users_of(trial)?;
                    Ok(leaf_steps(users).map(failed).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)))
                };
                self.ratio_summary(metric, parts, ratio)
            }
            UsersValue::Time { q } => self.quantile_summary(metric, q, &|trial| {
                let (_, users) = users_of(trial).ok()?;
                let mut all = Histogram::new();
                leaf_steps(users).for_each(|step| all.merge(&step.times));
                Some(Cow::Owned(all))
            }),
        }
    }

    fn step_summary(&self, metric: &Metric, name: &str, of: StepValue) -> Summary {
        match of {
            StepValue::Errors => self.ratio_summary(metric, |trial| Ok(failed(step(trial, name)?)), ratio),
            StepValue::Passed => self.mean_summary(metric, |trial| {
                let (record, _) = users_of(trial)?;
                Ok(approximate(step(trial, name)?.n_passed) / measured_secs(record)?)
            }),
            StepValue::Time { q } => {
                self.quantile_summary(metric, q, &|trial| step(trial, name).ok().map(|step| Cow::Borrowed(&step.times)))
            }
        }
    }

    /// Returns the growth per second of a counter while all sides measured.
    fn rate(&self, trial: &Trial, side: Side, counter: &str) -> Value {
        let (host, record) = record_or_reason(trial, side)?;
        // If a count ended the trial, everything that arrived belongs to the time in which it was sent.
        let whole = record_of(trial, Side::Initiator).and_then(|(_, initiator)| initiator.whole_span());
        if let Some((span, counted)) = whole.zip(record.totals.get(counter)) {
            return Ok(approximate(*counted) / span.as_secs_f64());
        }
        let window = MeasuredWindow::common(trial, self.hosts).ok_or("the sides did not measure at the same time")?;
        let (from, to) = widened(&record.timeline, window.in_record(self.hosts, host, record));
        if !record.timeline.counters.contains_key(counter) {
            return Err(format!("the {} did not count {counter} over time", side_name(side)));
        }
        match record.timeline.growth(counter, from, to) {
            Some((growth, span)) if span > Nanos::ZERO => Ok(approximate(growth) / span.as_secs_f64()),
            _ => Err("no whole interval lies where all sides measured".to_owned()),
        }
    }

    /// Returns the CPU time of all cores of a side's host per unit of the side's work, while all sides measured.
    fn host_cost(&self, trial: &Trial, side: Side, counter: &str) -> Value {
        let (host, _) = record_or_reason(trial, side)?;
        let cost = self.cost_on(&self.machines(members(trial, host)), trial, side, counter)?;
        if cost > 0.0 { Ok(cost) } else { Err(format!("the {} did no work", side_name(side))) }
    }

    /// Returns the CPU time of all cores of some hosts per unit of a side's work, while all sides measured.
    fn cost_on(&self, hosts: &[&str], trial: &Trial, side: Side, counter: &str) -> Value {
        let window = MeasuredWindow::common(trial, self.hosts).ok_or("the sides did not measure at the same time")?;
        let mut per_sec = 0.0;
        for host in hosts {
            let unknown = || format!("the cores of {host} were not watched");
            per_sec += worked_per_sec(trial, host, window.on_host(self.hosts, host)).ok_or_else(unknown)?;
        }
        let rate = self.rate(trial, side, counter)?;
        let cost = per_sec / rate * if count::OF_BYTES.contains(&counter) { GIBIBYTE } else { 1.0 };
        if cost.is_finite() { Ok(cost) } else { Err(format!("the {} did no work", side_name(side))) }
    }

    /// Returns one of all hosts that are the same machine, because they have the same cores.
    fn machines<'h>(&self, hosts: Vec<&'h str>) -> Vec<&'h str> {
        let boot = |host: &str| self.hosts.get(host).and_then(|host| host.environment.get("kernel", "boot_id"));
        let mut machines: Vec<&str> = Vec::new();
        for host in hosts {
            if !machines.iter().any(|other| boot(host).is_some() && boot(other) == boot(host)) {
                machines.push(host);
            }
        }
        machines
    }

    /// Returns the values of the trials that have one, and the first reason why a value is missing.
    fn values(&self, of: impl Fn(&'a Trial) -> Value) -> (Vec<f64>, Option<String>) {
        let mut reason = self.trials.is_empty().then(|| "no trial was run".to_owned());
        let mut values = Vec::with_capacity(self.trials.len());
        for trial in &self.trials {
            match of(trial) {
                Ok(value) => values.push(value),
                Err(why) => reason = reason.or(Some(why)),
            }
        }
        (values, reason)
    }

    /// Returns true if what arrived was counted, and that was nothing.
    fn nothing_arrived(&self) -> bool {
        let records = || self.trials.iter().flat_map(|trial| trial.records.values());
        let mut received = records().filter_map(|record| record.totals.get(count::RECEIVED)).peekable();
        received.peek().is_some() && received.all(|n| *n == 0)
    }

    /// Returns why a share has no whole.
    fn why_empty(&self) -> &'static str {
        if self.nothing_arrived() { "nothing arrived" } else { "there was nothing to take a share of" }
    }

    fn mean_summary(&self, metric: &Metric, of: impl Fn(&'a Trial) -> Value) -> Summary {
        let (trials, note) = self.values(of);
        // Rates, totals and costs are never negative, but the interval of a few trials that differ a lot could be.
        let confidence = mean_interval(&trials, LEVEL).map(|t| Confidence { low: t.low.max(0.0), ..t });
        Summary { value: mean(&trials), confidence, trials, note, ..empty(metric) }
    }

    fn max_summary(&self, metric: &Metric, of: impl Fn(&'a Trial) -> Value) -> Summary {
        let (trials, note) = self.values(of);
        Summary { value: trials.iter().copied().reduce(f64::max), trials, note, ..empty(metric) }
    }

    fn quantile_summary(
        &self,
        metric: &Metric,
        q: f64,
        of: &dyn Fn(&'a Trial) -> Option<Cow<'a, Histogram>>,
    ) -> Summary {
        let histograms: Vec<Cow<'a, Histogram>> = self.trials.iter().filter_map(|trial| of(trial)).collect();
        let mut merged = Histogram::new();
        for histogram in &histograms {
            merged.merge(histogram);
        }
        let trials: Vec<f64> =
            histograms.iter().filter_map(|histogram| histogram.quantile(q)).map(approximate).collect();
        let Some(summary) = quantile_summary(&merged, &trials, q) else {
            let note = match (histograms.is_empty(), self.nothing_arrived()) {
                (true, _) => NOT_RECORDED,
                (false, true) => "nothing arrived",
                (false, false) => "nothing of the kind happened",
            };
            return Summary { note: Some(note.to_owned()), ..empty(metric) };
        };
        let needed = samples_needed(q);
        let few = || format!("too few samples ({} of {})", grouped(summary.n_samples), grouped(needed));
        Summary {
            value: Some(summary.value),
            confidence: summary.confidence,
            trials,
            n_above: Some(summary.n_above),
            n_samples: Some(summary.n_samples),
            note: (summary.n_samples < needed).then(few),
            ..empty(metric)
        }
    }

    fn ratio_summary(
        &self,
        metric: &Metric,
        parts: impl Fn(&'a Trial) -> Result<(u64, u64), String>,
        share: impl Fn(u64, u64) -> Option<f64>,
    ) -> Summary {
        let of_trial = |trial| {
            let (part, whole) = parts(trial)?;
            share(part, whole).ok_or_else(|| self.why_empty().to_owned())
        };
        let (trials, note) = self.values(of_trial);
        let (part, whole) = self.pooled(&parts);
        let value = share(part, whole);
        let confidence = value.and_then(|value| share_interval(&trials, value, whole));
        Summary { value, confidence, trials, n_samples: Some(whole), note, ..empty(metric) }
    }

    /// A share of units that are independent of each other. Even one trial gives an interval.
    fn proportion_summary(&self, metric: &Metric, parts: impl Fn(&'a Trial) -> Result<(u64, u64), String>) -> Summary {
        let plain = self.ratio_summary(metric, &parts, ratio);
        Summary { confidence: proportion_interval(self.pooled(&parts), plain.trials.len(), LEVEL), ..plain }
    }

    /// Returns part and whole, summed over the trials that have both.
    fn pooled(&self, parts: impl Fn(&'a Trial) -> Result<(u64, u64), String>) -> (u64, u64) {
        let counted = self.trials.iter().filter_map(|trial| parts(trial).ok());
        counted.fold((0, 0), |sum: (u64, u64), one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)))
    }
}

/// Returns the CPU time of all cores of a host per second of a span, in nanoseconds; that of its threads for the device of a lab. `None` if they
/// were not watched.
fn worked_per_sec(trial: &Trial, host: &str, span: (Nanos, Nanos)) -> Option<f64> {
    let record = trial.hosts.get(host)?;
    let (first, last) = samples_within(record, span)?;
    let grown = |series: &Series| Some(series.at(last)?.saturating_sub(series.at(first)?));
    let of_threads: Vec<u64> = record.series_of(DEVICE_CPU_NS).filter_map(grown).collect();
    let of_cores = || WORK.iter().flat_map(|(state, _)| record.series_of(state)).filter_map(grown).collect();
    // The cores of a lab are those of the whole machine.
    let worked: Vec<u64> = if of_threads.is_empty() { of_cores() } else { of_threads };
    let secs = (record.at_ns[last] - record.at_ns[first]).as_secs_f64();
    (!worked.is_empty()).then(|| approximate(worked.into_iter().sum()) / secs)
}

/// Returns the users of a trial and the record that contains them.
fn users_of(trial: &Trial) -> Result<(&Record, &UsersRecord), String> {
    let (_, record) = record_or_reason(trial, Side::Initiator)?;
    record.users.as_ref().map(|users| (record, users)).ok_or_else(|| "there were no scripted users".to_owned())
}

/// Returns the steps without the transactions that contain them.
fn leaf_steps(users: &UsersRecord) -> impl Iterator<Item = &StepRecord> {
    users.steps.iter().filter(|step| step.kind == StepKind::Step)
}

fn step<'a>(trial: &'a Trial, name: &str) -> Result<&'a StepRecord, String> {
    let (_, users) = users_of(trial)?;
    users.steps.iter().find(|step| step.name == name).ok_or_else(|| format!("there is no step {name}"))
}

/// Returns the failures at a step and the number of visits that ended there. Users still under way count as neither passed nor
/// failed.
pub(crate) fn failed(step: &StepRecord) -> (u64, u64) {
    let n_failed: u64 = step.errors.values().sum();
    (n_failed, n_failed.saturating_add(step.n_passed))
}

/// Returns the visits in the measured part and its length in seconds.
fn visits(trial: &Trial) -> Result<(Visits, f64), String> {
    let (record, users) = users_of(trial)?;
    let visits = users.measured.ok_or("visits were not counted for the measured part alone")?;
    Ok((visits, measured_secs(record)?))
}

fn visits_per_sec(trial: &Trial, of: UsersValue) -> Value {
    let (visits, secs) = visits(trial)?;
    let n = match of {
        UsersValue::Begun => visits.n_begun,
        UsersValue::Finished => visits.n_finished,
        _ => visits.n_gave_up,
    };
    Ok(approximate(n) / secs)
}

/// Returns the length of the measured part in seconds, or an error if it is empty.
fn measured_secs(record: &Record) -> Value {
    let (from, to) = record.measured_ns;
    let span = (to > from).then(|| (to - from).as_secs_f64());
    span.ok_or_else(|| "nothing was measured".to_owned())
}

/// The CPU time of a side's own threads per unit of its work.
fn cost(trial: &Trial, side: Side, counter: &str) -> Value {
    let (_, record) = record_or_reason(trial, side)?;
    let work = total(trial, side, counter)?;
    if record.cpu_ns == Nanos::ZERO {
        return Err(format!("the {}'s processor time was not measured", side_name(side)));
    }
    ratio(record.cpu_ns.0, work).ok_or_else(|| format!("the {} did no work", side_name(side)))
}

fn empty(metric: &Metric) -> Summary {
    Summary {
        metric: metric.clone(),
        value: None,
        confidence: None,
        trials: Vec::new(),
        n_above: None,
        n_samples: None,
        note: None,
    }
}

/// Returns the headline value of a test: the first rate for which higher is better.
pub(crate) fn main_rate(test: &TestRun) -> Option<&Summary> {
    test.summaries.iter().find(|summary| is_main_rate(&summary.metric))
}

/// Returns true for a rate that can be the headline of a test; the first one is.
#[must_use]
pub fn is_main_rate(metric: &Metric) -> bool {
    matches!(metric.from, Derivation::Rate { .. }) && metric.better == Better::Higher
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::{RunBuilder, loss, p999, throughput};
    use fathom_model::{Unit, names::distribution};

    #[test]
    fn the_longest_times_make_the_fewest_round_trips_per_minute() {
        let mut builder = RunBuilder::new();
        builder.probes(&[(10_000_000, 20_000_000), (10_000_000, 30_000_000), (10_000_000, 20_000_000)]);
        let per_minute = |q| Metric {
            unit: Unit::Count,
            better: Better::Higher,
            from: Derivation::per_minute(Side::Initiator, distribution::RESPONSE_TIME, q),
            ..p999()
        };
        let summary = |q| summaries(&builder.run.tests[0], &builder.run.hosts, &[per_minute(q)]).remove(0);
        let (median, tail) = (summary(0.5), summary(0.99));
        assert!((median.value.unwrap() - 6_000.0).abs() < 60.0, "{median:?}");
        assert!((tail.trials[0] - 3_000.0).abs() < 30.0 && (tail.trials[1] - 2_000.0).abs() < 20.0, "{tail:?}");
        let confidence = tail.confidence.unwrap();
        assert!(confidence.low < tail.value.unwrap() && tail.value.unwrap() < confidence.high, "{tail:?}");
    }

    #[test]
    fn where_all_was_lost_no_burst_is_said_to_be_absent() {
        let note = |n_received| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, n_received)]);
            for record in builder.run.tests[0].trials[0].records.values_mut() {
                record.distributions.insert(distribution::SERVICE_TIME.to_owned(), Histogram::new());
            }
            summaries(&builder.run.tests[0], &builder.run.hosts, &[p999()]).remove(0).note
        };
        assert_eq!(note(0).as_deref(), Some("nothing arrived"));
        assert_eq!(note(1000).as_deref(), Some("nothing of the kind happened"));
    }

    #[test]
    fn what_a_count_ended_is_divided_by_its_own_time_and_not_by_ticks() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        for record in builder.run.tests[0].trials[0].records.values_mut() {
            record.totals.values_mut().for_each(|total| *total /= 100);
            if record.side == Side::Initiator {
                record.measure_until(Nanos::from_millis(10));
            }
        }
        let value = builder.analyzed().tests[0].summaries[0].value;
        assert_eq!(value, Some(900.0), "9 of 10 arrived that took 10 ms to send");
    }

    #[test]
    fn the_work_of_all_cores_of_a_host_is_divided_by_what_was_done() {
        let mut builder = RunBuilder::new();
        builder.tcp_rr(1_000, 1);
        builder.cpu("client", "cpu0", [10, 20, 20, 0]);
        builder.cpu("client", "cpu1", [0, 0, 10, 0]);
        let cost = Metric {
            unit: Unit::Nanos,
            from: Derivation::host_cost(Side::Initiator, count::TRANSACTIONS),
            ..throughput()
        };
        builder.context.metrics.insert("tcp_rr".to_owned(), vec![cost.clone()]);
        let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 1e-6;
        // 0.6 cores for 1,000 transactions per second.
        let value = builder.analyzed().tests[0].summaries[0].value.unwrap();
        assert!(near(value, 600_000.0), "{value}");
        let mut blind = RunBuilder::new();
        blind.tcp_rr(1_000, 1);
        blind.context.metrics.insert("tcp_rr".to_owned(), vec![cost]);
        assert_eq!(blind.analyzed().tests[0].summaries[0].value, None);
        // For bytes, the cost is that of one GiB.
        let mut stream = RunBuilder::new();
        stream.tcp_stream(&[125_000_000]);
        stream.cpu("target", "cpu0", [0, 50, 0, 0]);
        let from = Derivation::host_cost(Side::Responder, count::BYTES_RECEIVED);
        stream
            .context
            .metrics
            .insert("tcp_stream".to_owned(), vec![Metric { unit: Unit::Nanos, from, ..throughput() }]);
        let value = stream.analyzed().tests[0].summaries[0].value.unwrap();
        assert!(near(value, 0.5e9 * GIBIBYTE / 125e6), "{value}");
    }

    #[test]
    fn what_goes_both_ways_is_added_up_where_both_sides_counted() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        let both = Metric { from: Derivation::rate_of_both(count::BYTES_RECEIVED), ..throughput() };
        let test = &mut builder.run.tests[0];
        let value = |test: &TestRun| summaries(test, &BTreeMap::new(), std::slice::from_ref(&both)).remove(0);
        assert_eq!(value(test).value, None, "one side has counted nothing");
        let records = &mut test.trials[0].records;
        let timeline = records["target"].timeline.clone();
        records.get_mut("client").unwrap().timeline = timeline;
        assert_eq!(value(test).value, Some(16_000.0));
    }

    #[test]
    fn a_rate_is_the_mean_of_the_trials_with_an_interval_over_them() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000, 1_100, 1_200]);
        let summary = &builder.analyzed().tests[0].summaries[0];
        assert_eq!(summary.trials, [8_000.0, 8_800.0, 9_600.0]);
        assert_eq!(summary.value, Some(8_800.0));
        let interval = summary.confidence.unwrap();
        assert!(interval.low < 8_000.0 && interval.high > 9_600.0 && interval.n_trials == 3, "{interval:?}");
    }

    #[test]
    fn one_trial_has_a_value_and_no_interval() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        let summary = &builder.analyzed().tests[0].summaries[0];
        assert_eq!((summary.value, summary.confidence), (Some(8_000.0), None));
    }

    #[test]
    fn a_rate_nobody_counted_is_missing_with_its_reason() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000, 1_000]);
        for trial in &mut builder.run.tests[0].trials {
            trial.records.get_mut("target").unwrap().timeline.counters.clear();
        }
        let summary = &builder.analyzed().tests[0].summaries[0];
        assert_eq!(summary.value, None);
        assert_eq!(summary.note.as_deref(), Some("the responder did not count bytes_received over time"));
    }

    #[test]
    fn a_value_that_cannot_be_does_not_apply_and_one_that_was_not_recorded_does() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        let from = Derivation::total(Side::Initiator, count::SCHEDULE_LAG_NS_MAX);
        let lag = Metric { unit: Unit::Nanos, from, ..throughput() };
        let why = "none was due";
        builder.context.metrics.insert("tcp_stream".to_owned(), vec![lag.clone(), lag.unless(why)]);
        let of = |builder: &RunBuilder| builder.analyzed().tests[0].summaries.clone();
        let told: Vec<(bool, Option<String>)> = of(&builder).into_iter().map(|s| (s.applies(), s.note)).collect();
        assert_eq!(told, [(true, Some(NOT_RECORDED.to_owned())), (false, Some(why.to_owned()))]);
        builder.total("client", count::SCHEDULE_LAG_NS_MAX, 7);
        assert!(of(&builder).iter().all(|summary| summary.value == Some(7.0) && summary.applies()));
    }

    #[test]
    fn a_trial_that_did_not_end_is_left_out_of_the_value() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000, 1_000, 5]);
        builder.run.tests[0].trials[2].records.get_mut("client").unwrap().complete = false;
        let summary = &builder.analyzed().tests[0].summaries[0];
        assert_eq!(summary.value, Some(8_000.0));
        assert!(summary.note.as_deref().unwrap().contains("1 of 3 trials"), "{:?}", summary.note);
    }

    #[test]
    fn loss_is_pooled_over_the_trials() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 990), (3000, 3000)]);
        let run = builder.analyzed();
        let summary = run.tests[0].summaries.iter().find(|s| s.metric == loss()).unwrap();
        assert_eq!((summary.value, summary.n_samples), (Some(0.0025), Some(4000)));
        assert_eq!(summary.trials, [0.01, 0.0]);
        assert!(summary.confidence.unwrap().low >= 0.0);
    }

    #[test]
    fn a_loss_of_zero_is_bounded_by_three_in_n() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000), (2000, 2000)]);
        let run = builder.analyzed();
        let summary = run.tests[0].summaries.iter().find(|s| s.metric == loss()).unwrap();
        let interval = summary.confidence.unwrap();
        assert_eq!((summary.value, interval.low, interval.high), (Some(0.0), 0.0, 0.001));
    }

    #[test]
    fn a_p999_of_a_thousand_samples_is_marked() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000, 1_000]);
        builder.context.metrics.insert("tcp_stream".to_owned(), vec![p999(), throughput()]);
        for trial in &mut builder.run.tests[0].trials {
            let mut histogram = Histogram::new();
            (1..=500).for_each(|value| histogram.record(value * 1000));
            let record = trial.records.get_mut("client").unwrap();
            record.distributions.insert(distribution::SERVICE_TIME.to_owned(), histogram);
        }
        let summary = &builder.analyzed().tests[0].summaries[0];
        assert_eq!((summary.n_samples, summary.n_above), (Some(1000), Some(0)));
        assert!(summary.note.as_deref().unwrap().contains("too few samples (1,000 of 10,000)"), "{:?}", summary.note);
        assert!(summary.confidence.is_some() && summary.value.is_some());
    }

    #[test]
    fn cost_is_processor_time_per_unit_of_work() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        let record = builder.run.tests[0].trials[0].records.get_mut("target").unwrap();
        (record.cpu_ns, record.totals) = (Nanos(5_000), [(count::BYTES_RECEIVED.to_owned(), 1000)].into());
        assert_eq!(cost(&builder.run.tests[0].trials[0], Side::Responder, count::BYTES_RECEIVED), Ok(5.0));
        assert!(cost(&builder.run.tests[0].trials[0], Side::Initiator, count::BYTES_RECEIVED).is_err());
    }
}

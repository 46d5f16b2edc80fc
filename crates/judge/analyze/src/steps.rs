//! Sums up the actions of scripted users, step by step, over all trials of a test, and judges the promises of the script.
//!
//! The values of a step are computed like all others: its metrics define how they follow from the records.

use std::collections::BTreeMap;

use fathom_model::{
    Better, Derivation, JudgedPromise, Metric, Side, StepRecord, StepSummary, Summary, Trial, Unit, UsersRecord,
    UsersSummary,
    finding::PromiseOutcome,
    metric::{MetricName, StepValue, UnitAndSense, UsersValue},
    run::{Host, TestRun},
    units::{grouped, ratio, rounded},
};
use fathom_statistics::samples_needed;

use crate::{
    judged_promise::compare,
    promise::{self, Promise, Relation},
    summaries,
    window::{record_of, usable_trials},
};

/// The page that defines the values.
const SOURCE: &str = "docs/methods/steps.md";
/// The rule of three: to see an event of share p with 95 % confidence, this number divided by p samples are needed.
const RARE_SAMPLES_MIN: f64 = 3.0;

const TIMES: [(MetricName, f64); 5] = [
    (MetricName("time_ns_p50", "p50"), 0.5),
    (MetricName("time_ns_p90", "p90"), 0.9),
    (MetricName("time_ns_p99", "p99"), 0.99),
    (MetricName("time_ns_p999", "p99.9"), 0.999),
    (MetricName("time_ns_max", "max"), 1.0),
];

const USERS_PER_SEC: MetricName = MetricName("users_per_sec", "users/s");
const ERRORS: MetricName = MetricName("errors_ratio", "errors");
const FREQUENT: UnitAndSense = UnitAndSense(Unit::PerSec, Better::Higher);
const RARE: UnitAndSense = UnitAndSense(Unit::Ratio, Better::Lower);

/// Returns the metrics of a script as a whole, in addition to those of its kind. `promises` can name more percentiles.
#[must_use]
pub fn script_metrics(promises: &[String]) -> Vec<Metric> {
    let all = [
        (USERS_PER_SEC, FREQUENT, UsersValue::Begun),
        (MetricName("finished_per_sec", "finished/s"), FREQUENT, UsersValue::Finished),
        (MetricName("gave_up_per_sec", "gave up/s"), UnitAndSense(Unit::PerSec, Better::Lower), UsersValue::GaveUp),
        (MetricName("gave_up_ratio", "gave up"), RARE, UsersValue::GaveUpShare),
        (ERRORS, RARE, UsersValue::Errors),
    ];
    let times = TIMES.into_iter().map(|(named, q)| (named, UnitAndSense::TIME, UsersValue::Time { q }));
    let metric = |(named, measure, of)| Metric::of(named, measure, SOURCE, Derivation::Users { of });
    let mut metrics = all.into_iter().chain(times).map(metric).collect();
    add_percentiles(&mut metrics, promises, |q| Derivation::Users { of: UsersValue::Time { q } });
    metrics
}

/// Returns the metrics of a step or a transaction. `promises` can name more percentiles.
#[must_use]
pub fn step_metrics(step: &str, promises: &[String]) -> Vec<Metric> {
    let from = |of| Derivation::Step { step: step.to_owned().into(), of };
    let times = TIMES.into_iter().map(|(named, q)| {
        let measure = UnitAndSense::TIME;
        Metric::of(named, measure, SOURCE, from(StepValue::Time { q }))
    });
    let others = [
        Metric::of(ERRORS, RARE, SOURCE, from(StepValue::Errors)),
        Metric::of(USERS_PER_SEC, FREQUENT, SOURCE, from(StepValue::Passed)),
    ];
    let mut metrics = times.chain(others).collect();
    add_percentiles(&mut metrics, promises, |q| from(StepValue::Time { q }));
    metrics
}

/// Adds the percentiles of the promises that are not always computed, such as `p95 < 200ms`.
fn add_percentiles(metrics: &mut Vec<Metric>, promises: &[String], from: impl Fn(f64) -> Derivation) {
    for text in promises {
        let title = text.trim_start().split(['<', '>', '≤', '≥', '=', ' ']).next().unwrap_or_default();
        let Some(q) = quantile_of(title) else { continue };
        if metrics.iter().all(|metric| metric.title != title) {
            let name = format!("time_ns_{}", title.replace('.', "")).into();
            let (unit, better) = (Unit::Nanos, Better::Lower);
            metrics.push(Metric {
                name,
                title: title.to_owned().into(),
                unit,
                better,
                source: SOURCE.into(),
                from: from(q),
                inapplicable: None,
            });
        }
    }
}

/// Returns the quantile of a title such as `p95` or `p99.95`.
fn quantile_of(title: &str) -> Option<f64> {
    let percent = title.strip_prefix('p').filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit()))?;
    percent.parse::<f64>().ok().map(|percent| percent / 100.0).filter(|q| (0.0..1.0).contains(q))
}

/// Sums up the users of a test, or returns `None` if it had no scripted users.
pub(crate) fn users(test: &TestRun, hosts: &BTreeMap<String, Host>) -> Option<UsersSummary> {
    let trials = usable_trials(&test.trials);
    let records: Vec<&UsersRecord> = trials.iter().filter_map(|trial| users_of(trial)).collect();
    let first = records.first()?;
    let sum = |of: fn(&UsersRecord) -> u64| records.iter().map(|record| of(record)).sum();
    let n_begun = records.iter().filter_map(|record| record.measured).map(|visits| visits.n_begun).sum();
    let values = summaries::summaries(test, hosts, &script_metrics(&first.promises));
    let of_script: Vec<&Summary> = values.iter().chain(&test.summaries).collect();
    let promises = first.promises.iter().map(|text| judge(text, &test.full_name(), &of_script)).collect();
    let mut steps = merge_steps(&records, n_begun);
    for step in &mut steps {
        let promised = records.iter().find_map(|record| record.steps.iter().find(|other| other.name == step.name));
        let promised = promised.map_or(&[][..], |step| &step.promises);
        step.summaries = summaries::summaries(test, hosts, &step_metrics(&step.name, promised));
        let of_step: Vec<&Summary> = step.summaries.iter().collect();
        let whose = format!("{} {}", test.full_name(), step.name);
        step.promises = promised.iter().map(|text| judge(text, &whose, &of_step)).collect();
    }
    Some(UsersSummary {
        n_started: sum(|record| record.n_started),
        n_finished: sum(|record| record.n_finished),
        n_gave_up: sum(|record| record.n_gave_up),
        n_most: records.iter().map(|record| record.n_most).max().unwrap_or(0),
        summaries: values,
        promises,
        steps,
    })
}

/// Returns the users of a trial.
fn users_of(trial: &Trial) -> Option<&UsersRecord> {
    record_of(trial, Side::Initiator)?.1.users.as_ref()
}

/// Merges the steps of all trials in the order of the script, with their counts, errors and one example of each cause.
fn merge_steps(records: &[&UsersRecord], n_begun: u64) -> Vec<StepSummary> {
    let mut steps: Vec<StepSummary> = Vec::new();
    for record in records.iter().flat_map(|record| &record.steps) {
        let known = steps.iter().position(|step| step.name == record.name);
        let idx = known.unwrap_or_else(|| {
            steps.push(StepSummary { name: record.name.clone(), kind: record.kind, ..StepSummary::default() });
            steps.len() - 1
        });
        add(&mut steps[idx], record);
    }
    // If all visits began in the warm-up, the step with the most visits counts as the start of the funnel.
    let whole = if n_begun > 0 { n_begun } else { steps.iter().map(|step| step.n_reached).max().unwrap_or(0) };
    for step in &mut steps {
        step.reached_ratio = ratio(step.n_reached, whole);
    }
    steps
}

fn add(step: &mut StepSummary, record: &StepRecord) {
    step.n_reached += record.n_reached;
    step.n_passed += record.n_passed;
    for (cause, n) in &record.errors {
        *step.errors.entry(cause.clone()).or_default() += n;
    }
    for example in &record.examples {
        if !step.examples.iter().any(|known| known.cause == example.cause) {
            step.examples.push(example.clone());
        }
    }
}

/// Judges one promise by the values that it can refer to.
fn judge(text: &str, whose: &str, values: &[&Summary]) -> JudgedPromise {
    let metrics: Vec<Metric> = values.iter().map(|summary| summary.metric.clone()).collect();
    let open = |why: String| JudgedPromise {
        text: text.to_owned(),
        metric: None,
        bound: None,
        margin: None,
        outcome: PromiseOutcome::Open,
        reason: Some(format!("{whose} was promised {text}: {why}")),
    };
    let (metric, promise) = match promise::split(text, &metrics) {
        Ok(read) => read,
        Err(error) => return open(error.to_string()),
    };
    let known =
        JudgedPromise { metric: Some(metric.name.to_string()), bound: Some(promise.bound), ..open(String::new()) };
    let summary = values.iter().find(|summary| summary.metric.name == metric.name);
    let Some((summary, value)) = summary.and_then(|summary| Some((*summary, summary.value?))) else {
        let why = summary.and_then(|summary| summary.note.clone()).unwrap_or_else(|| "it was not measured".to_owned());
        return JudgedPromise { reason: open(why).reason, ..known };
    };
    let margin = margin(promise, value);
    let (outcome, reason) = compare(whose, summary, value, promise);
    if let Some(why) = too_few(summary, promise, outcome) {
        return JudgedPromise { margin, reason: open(why).reason, ..known };
    }
    JudgedPromise { margin, outcome, reason: (outcome != PromiseOutcome::Kept).then_some(reason), ..known }
}

/// Returns the distance of a value from its bound, as a share of the bound. Positive values are on the good side.
fn margin(promise: Promise, value: f64) -> Option<f64> {
    let room = match promise.relation {
        Relation::AtLeast | Relation::MoreThan => value - promise.bound,
        Relation::AtMost | Relation::LessThan => promise.bound - value,
    };
    (promise.bound > 0.0).then(|| room / promise.bound)
}

/// Returns why a value cannot be judged: a quantile without enough samples, or a small share of few samples.
///
/// Few samples are enough to break a promise about a share that is too large.
fn too_few(summary: &Summary, promise: Promise, outcome: PromiseOutcome) -> Option<String> {
    let n = summary.n_samples?;
    let needed = match summary.metric.from {
        Derivation::Quantile { q, .. }
        | Derivation::Step { of: StepValue::Time { q }, .. }
        | Derivation::Users { of: UsersValue::Time { q } } => samples_needed(q),
        _ if outcome == PromiseOutcome::Kept && promise.bound > 0.0 => {
            rounded((RARE_SAMPLES_MIN / promise.bound).ceil())
        }
        _ => return None,
    };
    (n < needed).then(|| format!("too few samples ({} of {})", grouped(n), grouped(needed)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::{RunBuilder, step, visits};
    use fathom_model::{Run, StepKind, VerdictState, units::Nanos};

    /// A script of three steps, of which the second fails now and then. `promised` lists promises by step.
    fn shop(trials: usize, n: u64, promised: &[(&str, &str)]) -> Run {
        let mut users = visits(
            (n, n / 10),
            vec![step("home", (n, 0), 1_000), step("login", (n, n / 10), 2_000), step("buy", (n - n / 10, 0), 3_000)],
        );
        for (name, text) in promised {
            match users.steps.iter_mut().find(|step| step.name == *name) {
                Some(step) => step.promises.push((*text).to_owned()),
                None => users.promises.push((*text).to_owned()),
            }
        }
        let mut builder = RunBuilder::new();
        builder.users(&vec![users; trials]);
        builder.analyzed()
    }

    fn of<'a>(run: &'a Run, name: &str) -> &'a StepSummary {
        run.tests[0].users.as_ref().unwrap().steps.iter().find(|step| step.name == name).unwrap()
    }

    fn value(step: &StepSummary, name: &str) -> f64 {
        step.summaries.iter().find(|summary| summary.metric.name == name).unwrap().value.unwrap()
    }

    #[test]
    fn steps_of_all_trials_are_counted_together() {
        let run = shop(2, 1_000, &[]);
        let login = of(&run, "login");
        assert_eq!((login.n_reached, login.n_passed, login.errors["status 500, expected 200"]), (2_000, 1_800, 200));
        assert_eq!(login.examples.len(), 1, "one example of a cause is enough");
        assert_eq!((value(login, "errors_ratio"), value(login, "users_per_sec")), (0.1, 900.0));
        let median = value(login, "time_ns_p50");
        assert!((median / 900_000.0 - 1.0).abs() < 0.005, "{median}");
        assert_eq!(rounded(value(login, "time_ns_max")), 1_800_000);
    }

    #[test]
    fn the_funnel_is_the_share_of_the_visits_that_began() {
        let run = shop(2, 1_000, &[]);
        let shares: Vec<Option<f64>> =
            run.tests[0].users.as_ref().unwrap().steps.iter().map(|step| step.reached_ratio).collect();
        assert_eq!(shares, [Some(1.0), Some(1.0), Some(0.9)]);
    }

    #[test]
    fn a_funnel_of_visits_that_all_began_before_is_one_of_the_steps() {
        let mut builder = RunBuilder::new();
        builder.users(&[visits((0, 0), vec![step("read", (500, 0), 10), step("write", (50, 0), 10)])]);
        assert_eq!(of(&builder.analyzed(), "write").reached_ratio, Some(0.1));
    }

    #[test]
    fn users_per_second_are_those_of_the_measured_part() {
        let run = shop(3, 1_000, &[]);
        let users = run.tests[0].users.as_ref().unwrap();
        let value = |name: &str| users.summaries.iter().find(|s| s.metric.name == name).unwrap().value;
        assert_eq!((value("users_per_sec"), value("finished_per_sec")), (Some(1_000.0), Some(900.0)));
        assert_eq!((value("gave_up_ratio"), users.n_started), (Some(0.1), 3_300));
        assert_eq!(value("errors_ratio"), Some(100.0 / 2_900.0));
    }

    #[test]
    fn a_quantile_of_few_samples_is_marked_and_not_judged() {
        let run = shop(2, 100, &[("login", "p99 < 1s"), ("login", "p50 < 1s")]);
        let login = of(&run, "login");
        let p99 = login.summaries.iter().find(|summary| summary.metric.name == "time_ns_p99").unwrap();
        assert_eq!(p99.note.as_deref(), Some("too few samples (180 of 1,000)"));
        assert_eq!(login.promises[0].outcome, PromiseOutcome::Open);
        assert!(login.promises[0].reason.as_deref().unwrap().ends_with("too few samples (180 of 1,000)"));
        assert_eq!(login.promises[1].outcome, PromiseOutcome::Kept, "the median needs twenty");
    }

    #[test]
    fn no_error_among_few_does_not_keep_a_promise_of_few_errors() {
        let run = shop(1, 100, &[("home", "errors < 0.1%"), ("home", "errors < 5%"), ("login", "errors < 5%")]);
        let outcomes = of(&run, "home").promises.iter().map(|promise| promise.outcome).collect::<Vec<_>>();
        assert_eq!(outcomes, [PromiseOutcome::Open, PromiseOutcome::Kept]);
        assert_eq!(
            of(&run, "login").promises[0].outcome,
            PromiseOutcome::Broken,
            "ten of a hundred are enough to break it"
        );
    }

    #[test]
    fn the_margin_is_what_is_left_to_the_bound() {
        let run = shop(2, 1_000, &[("buy", "max < 5.4ms"), ("login", "errors < 5%"), ("", "users/s > 500")]);
        let margin = |promise: &JudgedPromise| format!("{:.0} %", promise.margin.unwrap() * 100.0);
        assert_eq!(margin(&of(&run, "buy").promises[0]), "50 %");
        assert_eq!(margin(&of(&run, "login").promises[0]), "-100 %");
        assert_eq!(margin(&run.tests[0].users.as_ref().unwrap().promises[0]), "100 %");
    }

    #[test]
    fn a_promise_that_a_step_breaks_fails_the_run() {
        let run = shop(2, 1_000, &[("login", "errors < 0.1%"), ("buy", "p99 < 1s"), ("", "requests/s > 900")]);
        assert_eq!(run.verdict.state, VerdictState::Broken);
        assert_eq!(run.verdict.reasons, ["app shop login errors 10 % >= 0.10 %"]);
        let broken = run.findings.iter().find(|finding| finding.id == "promise-broken").unwrap();
        assert_eq!(broken.evidence[0].counter, "login errors_ratio");
        assert_eq!(shop(2, 1_000, &[("buy", "p99 < 1s"), ("", "requests/s > 900")]).verdict.state, VerdictState::Kept);
    }

    #[test]
    fn what_is_promised_without_a_step_is_promised_of_all_steps_together() {
        let run = shop(2, 1_000, &[("", "p50 < 1ms"), ("", "max < 3ms"), ("", "errors < 5%")]);
        let users = run.tests[0].users.as_ref().unwrap();
        let time = |name: &str| users.summaries.iter().find(|s| s.metric.name == name).unwrap();
        assert_eq!((time("time_ns_p50").n_samples, time("time_ns_max").value), (Some(5_600), Some(2_700_000.0)));
        assert!(users.promises.iter().all(|promise| promise.outcome == PromiseOutcome::Kept), "{:?}", users.promises);
    }

    #[test]
    fn a_promise_that_cannot_be_read_leaves_the_verdict_open() {
        let run = shop(2, 1_000, &[("login", "p9x < 1s")]);
        assert_eq!(run.verdict.state, VerdictState::Open);
        assert!(run.verdict.reasons[0].contains("there is no metric `p9x` to promise"), "{:?}", run.verdict.reasons);
    }

    #[test]
    fn any_percentile_can_be_promised() {
        let run =
            shop(2, 1_000, &[("home", "p95 < 900us"), ("home", "p75<1ms"), ("", "p97.5 < 1s"), ("home", "p100 < 1s")]);
        let home = of(&run, "home");
        let outcomes: Vec<PromiseOutcome> = home.promises.iter().map(|promise| promise.outcome).collect();
        assert_eq!(outcomes, [PromiseOutcome::Broken, PromiseOutcome::Kept, PromiseOutcome::Open]);
        assert!((value(home, "time_ns_p95") / 950_000.0 - 1.0).abs() < 0.003);
        let users = run.tests[0].users.as_ref().unwrap();
        assert_eq!(users.promises[0].metric.as_deref(), Some("time_ns_p975"));
        assert_eq!(users.promises[0].outcome, PromiseOutcome::Kept);
    }

    #[test]
    fn visits_that_were_not_told_apart_have_no_rate() {
        let mut builder = RunBuilder::new();
        builder.users(&[UsersRecord { measured: None, ..visits((10, 0), vec![step("home", (10, 0), 5)]) }]);
        let run = builder.analyzed();
        let rate = &run.tests[0].users.as_ref().unwrap().summaries[0];
        assert_eq!(rate.value, None);
        assert_eq!(rate.note.as_deref(), Some("visits were not counted for the measured part alone"));
    }

    #[test]
    fn a_transaction_is_no_further_error_of_the_script() {
        let mut users = visits((100, 10), vec![step("login", (100, 10), 5), step("buying", (100, 10), 9)]);
        users.steps[1].kind = StepKind::Transaction;
        let mut builder = RunBuilder::new();
        builder.users(&[users]);
        let run = builder.analyzed();
        let errors = run.tests[0].users.as_ref().unwrap().summaries.iter().find(|s| s.metric.name == "errors_ratio");
        assert_eq!(errors.unwrap().value, Some(0.1));
        assert_eq!(of(&run, "buying").examples[0].at_ns, Nanos::from_millis(700));
    }
}

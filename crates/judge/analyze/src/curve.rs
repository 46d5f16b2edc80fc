//! Evaluates the trials of a search: the load curve, its knee, and the limit as a value of the test.

use fathom_model::{
    Better, Derivation, Metric, Run, Summary, Unit,
    metric::{MetricName, UnitAndSense},
    run::TestRun,
    search::{CurvePoint, Decision, Ending, LoadCurve, MissReason, Vote},
};
use fathom_statistics::{Loaded, knee};
use std::collections::BTreeMap;

use crate::promise::{self, Promise};

/// The page that describes the search.
const SOURCE: &str = "docs/methods/find_limit.md";

/// Returns the metric that a search adds to those of its kind, for the unit of the rate.
#[must_use]
pub fn limit_metric(unit: Unit) -> Metric {
    let name = if unit == Unit::BitsPerSec { "limit_bps" } else { "limit_per_sec" };
    Metric::of(MetricName(name, "limit"), UnitAndSense(unit, Better::Higher), SOURCE, Derivation::Limit)
}

/// Returns the metric of the achieved rate: the first rate for which higher is better, in the unit of the option.
#[must_use]
pub fn achieved_metric(metrics: &[Metric], is_bits: bool) -> Option<&Metric> {
    let is_rate = |metric: &&Metric| matches!(metric.from, Derivation::Rate { .. }) && metric.better == Better::Higher;
    metrics.iter().filter(is_rate).find(|metric| (metric.unit == Unit::BitsPerSec) == is_bits)
}

/// Returns the metric of the median latency, if the kind measures latencies.
#[must_use]
pub fn median_metric(metrics: &[Metric]) -> Option<&Metric> {
    let of = |metric: &Metric| match &metric.from {
        Derivation::Quantile { distribution, q, .. } => Some((distribution.clone(), *q)),
        _ => None,
    };
    let (first, _) = metrics.iter().find_map(of)?;
    metrics.iter().find(|metric| of(metric).is_some_and(|(name, q)| name == first && (q - 0.5).abs() < 1e-9))
}

/// Fills in the results of a curve: the decision and the medians of each rate, and the knee.
pub(crate) fn derive(curve: &mut LoadCurve) {
    let (kept, broken) = (curve.kept, curve.broken);
    for point in &mut curve.points {
        point.decision = match point.offered {
            offered if kept.is_some_and(|kept| offered <= kept) => Decision::Kept,
            offered if broken.is_some_and(|broken| offered >= broken) => Decision::Broken,
            _ => Decision::Undecided,
        };
        point.cause = most_frequent_cause(point).filter(|_| point.decision != Decision::Kept);
        let said = || point.trials.iter().filter(|trial| trial.vote != Vote::Void);
        (point.achieved, point.value, point.median_ns) = (
            median(said().filter_map(|trial| trial.achieved)),
            median(said().filter_map(|trial| trial.value)),
            median(said().filter_map(|trial| trial.median_ns)),
        );
    }
    let measured: Vec<(f64, Loaded)> = curve
        .points
        .iter()
        .filter_map(|point| {
            let loaded = Loaded { throughput: point.achieved?, response: point.median_ns? };
            Some((point.offered, loaded))
        })
        .collect();
    let loaded: Vec<Loaded> = measured.iter().map(|(_, loaded)| *loaded).collect();
    curve.knee = knee(&loaded).map(|at| measured[at].0);
}

fn most_frequent_cause(point: &CurvePoint) -> Option<MissReason> {
    let mut counts: BTreeMap<MissReason, usize> = BTreeMap::new();
    for trial in &point.trials {
        if let Vote::Broken(cause) = trial.vote {
            *counts.entry(cause).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(_, n)| *n).map(|(cause, _)| cause)
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

/// Returns the limit as a value of its test.
pub(crate) fn summary(test: &TestRun, metric: &Metric) -> Summary {
    let curve = test.curve.as_ref();
    let confidence =
        curve.filter(|curve| curve.cause() != Some(MissReason::Generator)).and_then(|curve| curve.confidence);
    Summary {
        metric: metric.clone(),
        value: curve.and_then(|curve| curve.kept),
        confidence,
        trials: Vec::new(),
        n_above: None,
        n_samples: None,
        note: curve.map_or_else(|| Some("no trial was run".to_owned()), note),
    }
}

/// Returns the remark that belongs to the limit.
fn note(curve: &LoadCurve) -> Option<String> {
    let show = |rate: Option<f64>| rate.map(|rate| curve.unit.show(rate)).unwrap_or_default();
    let text = match (curve.ending, curve.cause()) {
        (Ending::Found, Some(MissReason::Generator)) => {
            format!("at {} fathom itself did not keep up: the limit of the target is not lower", show(curve.broken))
        }
        (Ending::Found, _) => return None,
        (Ending::AllKept, _) => "the highest rate that was allowed: the limit is above it".to_owned(),
        (Ending::AllBroken, Some(MissReason::Generator)) => {
            format!("fathom itself was late even at {}: nothing is known of the target", show(curve.broken))
        }
        (Ending::AllBroken, _) => format!("the objective is not met even at {}", show(curve.broken)),
        (Ending::OutOfBudget, _) => "not sure: the trials that were allowed ran out".to_owned(),
        (Ending::Unsettled, _) => "not sure: trials at the same rate contradict each other".to_owned(),
        (Ending::Stopped, _) => "not sure: the search did not come to its end".to_owned(),
    };
    Some(text)
}

/// Returns the objective in readable form: `p99 < 20.0 ms`. Several objectives are joined.
fn objective_words(curve: &LoadCurve, metrics: &[Metric]) -> String {
    let words = |text: &str| match promise::split(text, metrics) {
        Ok((metric, Promise { relation, bound })) => {
            format!("{} {} {}", metric.title, relation.sign(), metric.show(bound))
        }
        Err(_) => text.trim().to_owned(),
    };
    curve.objective.split(',').map(words).collect::<Vec<_>>().join(" and ")
}

/// Returns the limit as a sentence: `the target keeps p99 < 20.0 ms up to 41.2 k req/s (40.6 – 41.9, 95 %)`.
pub(crate) fn sentence(run: &Run, test: &TestRun) -> Option<String> {
    let curve = test.curve.as_ref()?;
    let metrics: Vec<Metric> = test.summaries.iter().map(|summary| summary.metric.clone()).collect();
    let objective = objective_words(curve, &metrics);
    let target = match &test.to {
        Some(to) if *to != test.from && run.hosts.contains_key(to) => to.as_str(),
        _ => "the target",
    };
    let show = |rate: f64| curve.unit.show(rate);
    Some(match (curve.ending, curve.kept, curve.broken) {
        (Ending::AllBroken, _, Some(broken)) if curve.cause() == Some(MissReason::Generator) => {
            format!("fathom itself was late even at {}, so nothing is known of {target} and {objective}", show(broken))
        }
        (Ending::AllBroken, _, Some(broken)) => format!("{objective}: not met even at {}", show(broken)),
        (Ending::AllKept, Some(kept), _) => {
            format!("{target} keeps {objective} at every rate up to {}, the highest that was allowed", show(kept))
        }
        (Ending::Found, Some(kept), Some(broken)) if curve.cause() == Some(MissReason::Generator) => format!(
            "{target} keeps {objective} up to {} at least; at {} fathom itself was the limit",
            show(kept),
            show(broken)
        ),
        (Ending::Found, Some(kept), Some(broken)) => {
            let level = curve.confidence.map_or_else(String::new, |sure| format!(", {:.0} %", 100.0 * sure.level));
            let beyond = match curve.cause() {
                Some(MissReason::FellBehind) => "; beyond it answers fall behind requests",
                _ => "",
            };
            let interval = range(&show(kept), &show(broken));
            format!("{target} keeps {objective} up to {} ({interval}{level}){beyond}", show(kept))
        }
        (_, Some(kept), Some(broken)) => {
            let own =
                if curve.cause() == Some(MissReason::Generator) { " and above it fathom itself was late" } else { "" };
            let (kept, broken) = (show(kept), show(broken));
            let unit = broken.split_once(' ').map(|(_, unit)| unit).filter(|unit| kept.ends_with(unit));
            let interval = range(&kept, &broken);
            let interval = unit.map_or_else(|| interval.clone(), |unit| format!("{interval} {unit}"));
            format!("{target} seems to keep {objective} up to {interval}, but that is not sure{own}")
        }
        (_, Some(kept), None) => format!("{target} seems to keep {objective} at {}; more was not tried", show(kept)),
        (_, None, Some(broken)) => {
            let lowest = curve.points.first()?;
            let own = match most_frequent_cause(lowest) {
                Some(MissReason::Generator) => format!(", as fathom itself was late even at {}", show(lowest.offered)),
                _ => String::new(),
            };
            format!("no rate below {} was found that keeps {objective} for sure{own}", show(broken))
        }
        (_, None, None) => return None,
    })
}

/// Formats a range of two values. A common unit is written once.
fn range(low: &str, high: &str) -> String {
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((number, unit)), Some((other, same))) if unit == same => format!("{number} – {other}"),
        _ => format!("{low} – {high}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::finding::Severity;

    fn found(ending: Ending, cause: MissReason) -> Run {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000), (1000, 1000)]);
        builder.search(ending, cause);
        builder.analyzed()
    }

    fn title(run: &Run) -> &str {
        &run.findings.iter().find(|finding| finding.id == "limit").unwrap().title
    }

    #[test]
    fn the_limit_is_told_first_with_its_interval_and_its_confidence() {
        let run = found(Ending::Found, MissReason::Objective);
        assert_eq!(title(&run), "target keeps loss <= 0.10 % up to 4.00 kpps (4.00 – 4.10, 95 %)");
        assert_eq!(run.findings[0].severity, Severity::HoldsBack);
        let limit = &run.tests[0].summaries[0];
        assert_eq!((limit.metric.name.as_ref(), limit.value), ("limit_per_sec", Some(4000.0)));
        assert_eq!(limit.confidence.map(|sure| (sure.low, sure.high)), Some((4000.0, 4100.0)));
    }

    #[test]
    fn what_the_tool_could_not_offer_is_not_told_as_the_limit_of_the_target() {
        let run = found(Ending::Found, MissReason::Generator);
        assert_eq!(
            title(&run),
            "target keeps loss <= 0.10 % up to 4.00 kpps at least; at 4.10 kpps fathom itself was the limit"
        );
        let limit = &run.tests[0].summaries[0];
        assert_eq!(limit.confidence, None);
        assert!(limit.note.as_ref().unwrap().contains("the limit of the target is not lower"));
    }

    #[test]
    fn a_rate_that_the_tool_was_late_at_accuses_nobody() {
        let all_broken = |cause| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, 1000), (1000, 1000)]);
            builder.search(Ending::AllBroken, cause);
            let curve = builder.run.tests[0].curve.as_mut().unwrap();
            (curve.kept, curve.broken) = (None, Some(1_000.0));
            for trial in &mut curve.points[0].trials {
                trial.vote = Vote::Broken(cause);
            }
            title(&builder.analyzed()).to_owned()
        };
        assert_eq!(all_broken(MissReason::Objective), "loss <= 0.10 %: not met even at 1.00 kpps");
        let late = "fathom itself was late even at 1.00 kpps, so nothing is known of target and loss <= 0.10 %";
        assert_eq!(all_broken(MissReason::Generator), late);
    }

    #[test]
    fn a_search_that_did_not_end_is_not_sure() {
        let run = found(Ending::OutOfBudget, MissReason::Objective);
        assert!(title(&run).ends_with("up to 4.00 – 4.10 kpps, but that is not sure"), "{}", title(&run));
        assert!(run.tests[0].summaries[0].note.as_ref().unwrap().starts_with("not sure"));
    }

    #[test]
    fn a_search_that_was_sure_of_no_rate_says_so() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000), (1000, 1000)]);
        builder.search(Ending::OutOfBudget, MissReason::Objective);
        let curve = builder.run.tests[0].curve.as_mut().unwrap();
        curve.kept = None;
        for trial in &mut curve.points[0].trials {
            trial.vote = Vote::Broken(MissReason::Generator);
        }
        let words = "no rate below 4.10 kpps was found that keeps loss <= 0.10 % for sure, as fathom itself was late even at 1.00 kpps";
        assert_eq!(title(&builder.analyzed()), words);
    }

    #[test]
    fn each_rate_is_decided_by_the_ends_and_its_values_are_medians() {
        let run = found(Ending::Found, MissReason::Objective);
        let points = &run.tests[0].curve.as_ref().unwrap().points;
        let decided: Vec<Decision> = points.iter().map(|point| point.decision).collect();
        assert_eq!(decided, [Decision::Kept, Decision::Kept, Decision::Kept, Decision::Undecided, Decision::Broken]);
        assert_eq!(points[2].achieved, Some(3999.0));
        assert_eq!((points[2].cause, points[4].cause), (None, Some(MissReason::Objective)));
    }

    #[test]
    fn the_knee_is_where_throughput_per_latency_is_highest() {
        let run = found(Ending::Found, MissReason::Objective);
        assert_eq!(run.tests[0].curve.as_ref().unwrap().knee, Some(2000.0));
    }

    #[test]
    fn medians_of_even_numbers_lie_in_the_middle() {
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!((median([7.0].into_iter()), median([].into_iter())), (Some(7.0), None));
    }
}

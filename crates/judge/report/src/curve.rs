//! The load curve of a search as lines of a table, the same in text and HTML: picked and put into words, not computed.

use fathom_model::{
    Metric, TestRun,
    search::{CurvePoint, Decision, Ending, LoadCurve, MissReason, Vote},
};

use crate::view::{self, MISSING, RowMark};

/// A rate of the curve.
#[derive(Debug)]
pub(crate) struct CurveLine {
    /// What was offered, achieved, the value of the objective and the median latency.
    pub(crate) values: [String; 4],
    /// How many of its trials kept the objective: `9 of 9`.
    pub(crate) trials: String,
    /// What the search says of it, and why.
    pub(crate) assessment: String,
    /// Whether it is the limit or the knee.
    pub(crate) marker: String,
    /// How the line is to be looked at.
    pub(crate) mark: RowMark,
}

/// The titles above the values; without a median of its own the last is empty, and so is its column.
pub(crate) fn titles(test: &TestRun, curve: &LoadCurve) -> [String; 4] {
    let title = metric(test, curve).map_or_else(|| curve.metric.clone(), |metric| metric.title.to_string());
    ["offered".to_owned(), "achieved".to_owned(), title, "median latency".to_owned()]
}

/// The metric of the objective.
pub(crate) fn metric<'a>(test: &'a TestRun, curve: &LoadCurve) -> Option<&'a Metric> {
    test.summaries.iter().map(|summary| &summary.metric).find(|metric| metric.name == curve.metric.as_str())
}

/// The objective with the words of its metric: `p99 < 20ms`.
pub(crate) fn objective(test: &TestRun, curve: &LoadCurve) -> String {
    let bound = curve.objective.strip_prefix(curve.metric.as_str());
    match (metric(test, curve), bound) {
        (Some(metric), Some(bound)) => format!("{} {}", metric.title, bound.trim()),
        _ => curve.objective.clone(),
    }
}

/// Every rate, ascending.
pub(crate) fn curve_lines(test: &TestRun, curve: &LoadCurve) -> Vec<CurveLine> {
    curve.points.iter().map(|point| line(test, curve, point)).collect()
}

fn line(test: &TestRun, curve: &LoadCurve, point: &CurvePoint) -> CurveLine {
    let rate = |value: f64| curve.unit.show(value);
    let known = |value: Option<String>| value.unwrap_or_else(|| MISSING.to_owned());
    let value = |value: f64| metric(test, curve).map_or_else(|| value.to_string(), |metric| view::show(metric, value));
    let votes = || point.trials.iter().filter(|trial| trial.vote != Vote::Void);
    let n_kept = votes().filter(|trial| trial.vote == Vote::Kept).count();
    let is_at = |place: Option<f64>| place.is_some_and(|place| place.total_cmp(&point.offered).is_eq());
    let named = [("limit", curve.kept), ("knee", curve.knee)];
    let is: Vec<&str> = named.into_iter().filter(|(_, place)| is_at(*place)).map(|(name, _)| name).collect();
    CurveLine {
        values: [
            rate(point.offered),
            known(point.achieved.map(rate)),
            known(point.value.map(value)),
            point.median_ns.map(|ns| fathom_model::Unit::Nanos.show(ns)).unwrap_or_default(),
        ],
        trials: format!("{n_kept} of {}", votes().count()),
        assessment: assessment(point),
        marker: is.join(", "),
        mark: match point.decision {
            Decision::Kept => RowMark::Kept,
            Decision::Broken => RowMark::Broken,
            Decision::Undecided => RowMark::Open,
        },
    }
}

fn assessment(point: &CurvePoint) -> String {
    let word = match point.decision {
        Decision::Kept => return "kept".to_owned(),
        Decision::Broken => "broken",
        Decision::Undecided => "undecided",
    };
    match point.cause {
        Some(MissReason::FellBehind) => format!("{word}: fell behind"),
        Some(MissReason::Generator) => format!("{word}: fathom was late"),
        Some(MissReason::Objective) | None => word.to_owned(),
    }
}

/// What must be said below the curve.
pub(crate) fn remark(curve: &LoadCurve) -> Option<&'static str> {
    match curve.ending {
        Ending::Found => None,
        Ending::AllKept => Some("every rate that was allowed is kept"),
        Ending::AllBroken => Some("every rate that was allowed is broken"),
        Ending::OutOfBudget => Some("the trials that were allowed ran out before the ends were sure"),
        Ending::Unsettled => Some("trials at the same rate contradict each other, so that no end is sure"),
        Ending::Stopped => Some("the search did not come to its end"),
    }
}

//! The load curve of a search: every rate that was tried, with its result.

use fathom_model::{
    TestRun, Unit,
    search::{CurvePoint, Decision, Ending, LoadCurve, MissReason, Vote},
};

use super::block::{Block, Cell, Figure, Row, Table, columns};
use crate::{
    plot::curve::load_curve,
    words::{self, MISSING, Mark, objective, objective_metric},
};

/// Returns the blocks for the curve of a test, or none if it has no curve.
pub(super) fn blocks(test: &TestRun) -> Vec<Block<'_>> {
    let Some(curve) = &test.curve else { return Vec::new() };
    let title = objective_metric(test, curve).map_or(curve.metric.as_str(), |metric| &metric.title);
    let objective = objective(test, curve);
    let about = format!("each point is a rate that was tried; the band holds the highest that keeps {objective}");
    let figure = Figure {
        is_wide: true,
        table: Some(Table {
            columns: columns(["offered", "achieved", title, "median latency", "trials", &objective, ""]),
            rows: curve.points.iter().map(|point| row(test, curve, point)).collect(),
            ..Table::default()
        }),
        on_screen: true,
        ..Figure::new("load curve", about, move || load_curve(test, curve))
    };
    let remark = match curve.ending {
        Ending::Found => None,
        Ending::AllKept => Some("every rate that was allowed is kept"),
        Ending::AllBroken => Some("every rate that was allowed is broken"),
        Ending::OutOfBudget => Some("the trials that were allowed ran out before the ends were sure"),
        Ending::Unsettled => Some("trials at the same rate contradict each other, so that no end is sure"),
        Ending::Stopped => Some("the search did not finish"),
    };
    std::iter::once(Block::Figure(figure)).chain(remark.map(|remark| Block::caution(remark, Mark::Open))).collect()
}

fn row(test: &TestRun, curve: &LoadCurve, point: &CurvePoint) -> Row {
    let rate = |value: f64| curve.unit.show(value);
    let known = |value: Option<String>| value.unwrap_or_else(|| MISSING.to_owned());
    let metric = objective_metric(test, curve);
    let value = |value: f64| metric.map_or_else(|| value.to_string(), |metric| words::show(metric, value));
    let votes = || point.trials.iter().filter(|trial| trial.vote != Vote::Void);
    let n_kept = votes().filter(|trial| trial.vote == Vote::Kept).count();
    let is_at = |place: Option<f64>| place.is_some_and(|place| place.total_cmp(&point.offered).is_eq());
    let named = [("limit", curve.kept), ("knee", curve.knee)].into_iter().filter(|(_, place)| is_at(*place));
    let named: Vec<&str> = named.map(|(name, _)| name).collect();
    let (word, mark) = match point.decision {
        Decision::Kept => ("kept", Mark::Kept),
        Decision::Broken => ("broken", Mark::Broken),
        Decision::Undecided => ("undecided", Mark::Open),
    };
    let cause = match point.cause.filter(|_| mark != Mark::Kept) {
        Some(MissReason::FellBehind) => ": fell behind",
        Some(MissReason::Generator) => ": fathom was late",
        Some(MissReason::Objective) | None => "",
    };
    Row::new([
        Cell::from(rate(point.offered)),
        known(point.achieved.map(rate)).into(),
        known(point.value.map(value)).into(),
        point.median_ns.map(|ns| Unit::Nanos.show(ns)).unwrap_or_default().into(),
        format!("{n_kept} of {}", votes().count()).into(),
        Cell::from(format!("{word}{cause}")).marked(mark),
        Cell::from(if named.is_empty() { String::new() } else { format!("◂ {}", named.join(", ")) }).strong(),
    ])
}

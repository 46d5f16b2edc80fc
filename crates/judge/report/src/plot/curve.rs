//! Draws a load curve: the achieved rate and the latency over the offered rate, with the limit and the knee marked.

use fathom_model::{Metric, TestRun, Unit, search::LoadCurve};
use maud::{Markup, html};

use super::{
    Plot,
    panel::{Axis, BOTTOM, LEFT, Line, Panel, RIGHT, TOP, draw},
    percentiles::time,
    px,
    scale::{Scale, log_ticks},
};
use crate::words::{objective, objective_metric};

/// The gap between the panels, for the axis labels of the second one.
const GAP: f64 = 86.0;
const PANEL: f64 = (RIGHT - LEFT - GAP) / 2.0;
/// The search overloads the target on its way. Points beyond this multiple of the limit would compress the rest of the curve.
const BEYOND: f64 = 1.6;

pub(crate) fn load_curve(test: &TestRun, curve: &LoadCurve) -> Plot {
    let most = curve.points.iter().map(|point| point.offered).fold(0.0, f64::max);
    let end = curve.broken.or(curve.kept).map_or(most, |limit| (limit * BEYOND).min(most));
    let of = |value: fn(&fathom_model::search::CurvePoint) -> Option<f64>| -> Vec<(f64, f64)> {
        let shown = curve.points.iter().filter(|point| point.offered <= end);
        shown.filter_map(|point| Some((point.offered, value(point)?))).collect()
    };
    let achieved = of(|point| point.achieved);
    if achieved.len() < 2 {
        return Err("One rate makes no curve; see the table.");
    }
    let x = |left: f64| Axis::from_zero("offered, ", curve.unit, end, (left, left + PANEL));
    let y = Axis::from_zero("achieved, ", curve.unit, end, (BOTTOM, TOP));
    let whole = y.ticks.last().map_or(end, |(tick, _)| *tick);
    let panel = |x: Axis, y: Axis, lines: Vec<Line>, reference: Line| {
        let marks = marks(curve, &x.scale);
        Panel { x, y, lines, references: vec![reference], marks }
    };
    let as_much = ("as much as offered".to_owned(), vec![(0.0, 0.0), (whole, whole)]);
    let mut panels = vec![panel(x(LEFT), y, vec![("achieved".to_owned(), achieved)], as_much)];
    let (values, medians) = (of(|point| point.value), of(|point| point.median_ns));
    if let Some(metric) = objective_metric(test, curve).filter(|_| !values.is_empty()) {
        let mut lines = vec![(metric.title.to_string(), values)];
        if metric.unit == Unit::Nanos && !medians.is_empty() {
            lines.push(("median".to_owned(), medians));
        }
        let bound = (objective(test, curve), vec![(0.0, curve.bound), (whole, curve.bound)]);
        let y = axis_of_objective(metric, lines.iter().flat_map(|(_, points)| points), curve.bound);
        panels.extend(y.map(|y| panel(x(LEFT + PANEL + GAP), y, lines, bound)));
    }
    Ok(draw("load curve", &panels))
}

/// Returns the axis of the objective's value. It is logarithmic for times, which grow without bound at the limit.
fn axis_of_objective<'a>(metric: &Metric, points: impl Iterator<Item = &'a (f64, f64)>, bound: f64) -> Option<Axis> {
    let all = points.map(|(_, value)| *value).chain([bound]).filter(|value| *value > 0.0);
    let (lowest, highest) = all.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if highest <= 0.0 {
        return None;
    }
    if metric.unit != Unit::Nanos {
        return Some(Axis::from_zero(&format!("{}, ", metric.title), metric.unit, highest, (BOTTOM, TOP)));
    }
    let ticks = log_ticks(lowest, highest);
    let ends = (ticks.first().copied()?, ticks.last().copied()?.max(ticks[0] * 2.0));
    let ticks = ticks.into_iter().map(|tick| (tick, time(tick))).collect();
    Some(Axis { scale: Scale::log(ends, (BOTTOM, TOP)), ticks, title: metric.title.to_string(), unit: metric.unit })
}

/// Draws the interval of the limit as a band and the knee as a line.
fn marks(curve: &LoadCurve, x: &Scale) -> Markup {
    let ends = curve.kept.zip(curve.broken).map(|(kept, broken)| (x.at(kept), x.at(broken)));
    html! {
        @if let Some((from, to)) = ends {
            rect.window x=(px(from)) y=(px(TOP)) width=(px((to - from).max(1.5))) height=(px(BOTTOM - TOP)) {
                title { "the limit lies here" }
            }
            text.tick.strong x=(px(from)) y=(px(TOP - 4.0)) text-anchor="middle" { "limit" }
        }
        @if let Some(knee) = curve.knee.map(|knee| px(x.at(knee))) {
            line.grid x1=(knee) x2=(knee) y1=(px(TOP)) y2=(px(BOTTOM)) {}
            text.tick.strong x=(knee) y=(px(TOP - 4.0)) text-anchor="middle" { "knee" }
        }
    }
}

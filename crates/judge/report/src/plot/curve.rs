//! A load curve: what is achieved of what is offered, and what becomes of the latency; the limit and the knee are marked.

use fathom_model::{Metric, TestRun, Unit, search::LoadCurve};
use maud::{Markup, html};

use super::{
    Plot, path, px,
    scale::{Scale, label, log_ticks, magnitude, ticks_from_zero},
    throughput::unit_word,
    y_grid,
};
use crate::words::{objective, objective_metric};

const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 58.0;
/// Between the panels: room for the labels of the second one's axis.
const GAP: f64 = 86.0;
const PANEL: f64 = (WIDTH - LEFT - GAP - 14.0) / 2.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
/// Targets are overloaded on the way to a limit; what lies further beyond it than this would squeeze the rest together.
const BEYOND: f64 = 1.6;

/// A line of a panel: its name and its points.
type PanelLine = (String, Vec<(f64, f64)>);

/// One of the two drawings.
struct CurvePanel {
    title: String,
    unit: Unit,
    x: Scale,
    y: Scale,
    labels: Vec<(f64, String)>,
    lines: Vec<PanelLine>,
    /// What the lines are compared with, and what it is called.
    reference: Option<(String, Vec<(f64, f64)>)>,
}

/// Draws both panels.
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
    let ticks = ticks_from_zero(end / magnitude(curve.unit, end).0, 5.0);
    let size = magnitude(curve.unit, end).0;
    let whole = ticks.last().copied().unwrap_or(1.0) * size;
    let named: Vec<(f64, String)> = ticks.iter().map(|tick| (tick * size, label(*tick))).collect();
    let x = |left: f64| Scale::linear((0.0, whole), (left, left + PANEL));
    let first = CurvePanel {
        title: format!("achieved, {}", magnitude(curve.unit, end).1),
        unit: curve.unit,
        x: x(LEFT),
        y: Scale::linear((0.0, whole), (HEIGHT - BOTTOM, TOP)),
        labels: named.clone(),
        lines: vec![("achieved".to_owned(), achieved)],
        reference: Some(("as much as offered".to_owned(), vec![(0.0, 0.0), (whole, whole)])),
    };
    let values = of(|point| point.value);
    let medians = of(|point| point.median_ns);
    let second = objective_metric(test, curve).and_then(|metric| {
        let mut lines = vec![(metric.title.to_string(), values)];
        if metric.unit == Unit::Nanos && !medians.is_empty() {
            lines.push(("median".to_owned(), medians));
        }
        of_objective((test, curve, metric), x(LEFT + PANEL + GAP), lines, whole)
    });
    Ok(draw(curve, &named, &[Some(first), second]))
}

/// The panel of the objective's value: logarithmic for times, which grow without bound at the limit.
fn of_objective(
    (test, curve, metric): (&TestRun, &LoadCurve, &Metric),
    x: Scale,
    lines: Vec<PanelLine>,
    whole: f64,
) -> Option<CurvePanel> {
    let all = || lines.iter().flat_map(|(_, points)| points).map(|(_, value)| *value).chain([curve.bound]);
    let (lowest, highest) = (all().filter(|value| *value > 0.0).fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    if highest <= 0.0 || lines[0].1.is_empty() {
        return None;
    }
    let name = |value: f64| {
        let (size, word) = magnitude(metric.unit, value);
        format!("{} {word}", label(value / size)).trim_end().to_owned()
    };
    let (ticks, y) = if metric.unit == Unit::Nanos {
        let ticks = log_ticks(lowest, highest);
        let ends = (ticks.first().copied()?, ticks.last().copied()?.max(ticks[0] * 2.0));
        (ticks, Scale::log(ends, (HEIGHT - BOTTOM, TOP)))
    } else {
        let size = magnitude(metric.unit, highest).0;
        let ticks: Vec<f64> = ticks_from_zero(highest / size, 5.0).into_iter().map(|tick| tick * size).collect();
        let top = ticks.last().copied()?;
        (ticks, Scale::linear((0.0, top), (HEIGHT - BOTTOM, TOP)))
    };
    Some(CurvePanel {
        title: metric.title.to_string(),
        unit: metric.unit,
        x,
        y,
        labels: ticks.into_iter().map(|tick| (tick, name(tick))).collect(),
        lines,
        reference: Some((objective(test, curve), vec![(0.0, curve.bound), (whole, curve.bound)])),
    })
}

fn draw(curve: &LoadCurve, ticks: &[(f64, String)], panels: &[Option<CurvePanel>]) -> Markup {
    let unit = magnitude(curve.unit, ticks.last().map_or(1.0, |(value, _)| *value)).1;
    html! {
        svg.plot.wide viewBox={ "0 0 " (px(WIDTH)) " " (px(HEIGHT)) } role="img" aria-label="load curve" {
            @for panel in panels.iter().flatten() {
                @let (left, right) = (panel.x.at(0.0), panel.x.at(f64::MAX));
                (y_grid(&panel.y, &panel.labels, (left, right), ""))
                (marks(curve, panel))
                @for (value, text) in ticks {
                    text.tick x=(px(panel.x.at(*value))) y=(px(HEIGHT - BOTTOM + 17.0)) text-anchor="middle" { (text) }
                }
                text.unit x=(px(right)) y=(px(HEIGHT - 4.0)) text-anchor="end" { "offered, " (unit) }
                text.unit x=(px(left)) y=(px(TOP - 20.0)) { (panel.title) }
                @if let Some((name, points)) = &panel.reference {
                    path.line.faint d=(path(points.iter().map(|(x, y)| (panel.x.at(*x), panel.y.at(*y))))) { title { (name) } }
                    @if let Some((x, y)) = points.last().filter(|(_, y)| points[0].1.total_cmp(y).is_eq()) {
                        text.tick x=(px(panel.x.at(*x))) y=(px(panel.y.at(*y) - 5.0)) text-anchor="end" { (name) }
                    }
                }
                g.pick data-x=(panel.x.describe(unit_word(curve.unit))) data-y=(panel.y.describe(unit_word(panel.unit))) data-title="offered" {
                    @for (idx, (name, points)) in panel.lines.iter().enumerate() {
                        path class={ "line s" (idx % 4 + 1) } d=(path(points.iter().map(|(x, y)| (panel.x.at(*x), panel.y.at(*y))))) data-name=(name) {
                            title { (name) }
                        }
                        @for (x, y) in points {
                            circle class={ "part s" (idx % 4 + 1) } cx=(px(panel.x.at(*x))) cy=(px(panel.y.at(*y))) r="2.2" {}
                        }
                    }
                }
            }
        }
        @for panel in panels.iter().flatten().filter(|panel| panel.lines.len() > 1) {
            ul.legend {
                @for (idx, (name, _)) in panel.lines.iter().enumerate() {
                    li { span class={ "key s" (idx % 4 + 1) } {} (name) }
                }
            }
        }
    }
}

/// The interval of the limit as a band, and the knee as a line.
fn marks(curve: &LoadCurve, panel: &CurvePanel) -> Markup {
    let (top, bottom) = (TOP, HEIGHT - BOTTOM);
    let ends = curve.kept.zip(curve.broken).map(|(kept, broken)| (panel.x.at(kept), panel.x.at(broken)));
    html! {
        @if let Some((from, to)) = ends {
            rect.window x=(px(from)) y=(px(top)) width=(px((to - from).max(1.5))) height=(px(bottom - top)) {
                title { "the limit lies here" }
            }
            text.tick.strong x=(px(from)) y=(px(top - 4.0)) text-anchor="middle" { "limit" }
        }
        @if let Some(knee) = curve.knee {
            line.grid x1=(px(panel.x.at(knee))) x2=(px(panel.x.at(knee))) y1=(px(top)) y2=(px(bottom)) {}
            text.tick.strong x=(px(panel.x.at(knee))) y=(px(top - 4.0)) text-anchor="middle" { "knee" }
        }
    }
}

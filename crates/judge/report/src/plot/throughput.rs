//! Draws a rate over time: one panel per round on a common axis, with the measured window marked.

use fathom_model::{Derivation, Metric, TestRun, Trial, Unit, role::Side, units::approximate};
use maud::{Markup, html};

use super::{
    Plot,
    event_marks::{self, EventMark},
    float, path, px,
    scale::{Scale, label, magnitude, ticks_from_zero},
    y_grid,
};

const WIDTH: f64 = 1040.0;
const LEFT: f64 = 52.0;
const GAP: f64 = 14.0;
const TOP: f64 = 34.0;
const PANEL_HEIGHT: f64 = 150.0;
/// The space below a row of panels for the labels of the time axis.
const BELOW: f64 = 40.0;
const PER_ROW: usize = 5;
/// The maximum number of points of a line. Beyond it, neighbors are joined, which loses no count and is not visible.
const POINTS_MAX: usize = 128;
/// The maximum number of rounds in a drawing. Four rows fill a screen.
pub(crate) const ROUNDS_MAX: usize = 20;

/// One round: the end of each interval in seconds and the rate in it, the measured window in seconds, and what happened.
struct RoundPanel {
    round: u32,
    points: Vec<(f64, f64)>,
    window: (f64, f64),
    marks: Vec<EventMark>,
}

/// Returns the first metric of a test that is a rate over time, with its side and counter.
pub(crate) fn rate_of(test: &TestRun) -> Option<(&Metric, Side, &str)> {
    test.summaries.iter().find_map(|summary| match &summary.metric.from {
        Derivation::Rate { side, counter } => Some((&summary.metric, *side, counter.as_ref())),
        _ => None,
    })
}

fn panel(trial: &Trial, side: Side, counter: &str, factor: f64) -> Option<RoundPanel> {
    let record = trial.records.values().find(|record| record.side == side)?;
    let column = record.timeline.counters.get(counter)?;
    let ends = &record.timeline.end_ns[..column.len().min(record.timeline.end_ns.len())];
    let joined = ends.len().div_ceil(POINTS_MAX).max(1);
    let mut begin = 0.0;
    let mut points = Vec::with_capacity(POINTS_MAX);
    for (ends, growth) in ends.chunks(joined).zip(column.chunks(joined)) {
        let end = ends[ends.len() - 1].as_secs_f64();
        if end > begin {
            points.push((begin.midpoint(end), approximate(growth.iter().sum()) * factor / (end - begin)));
        }
        begin = end;
    }
    let window = (record.measured_ns.0.as_secs_f64(), record.measured_ns.1.as_secs_f64());
    let marks = event_marks::of_round(trial);
    (!points.is_empty()).then_some(RoundPanel { round: trial.round, points, window, marks })
}

/// Draws the rate in every round.
pub(crate) fn throughput(test: &TestRun) -> Plot {
    let (metric, side, counter) = rate_of(test).ok_or("This test has no rate to draw over time.")?;
    let factor = metric.unit.per_counted();
    let panels = test.trials.iter().filter_map(|trial| panel(trial, side, counter, factor));
    let panels: Vec<RoundPanel> = panels.take(ROUNDS_MAX).collect();
    let highest = panels.iter().flat_map(|panel| &panel.points).map(|(_, rate)| *rate).fold(0.0, f64::max);
    if highest <= 0.0 {
        return Err("No interval of any round recorded progress, so there is no line to draw.");
    }
    if panels.iter().all(|panel| panel.points.len() < 2) {
        return Err("One interval makes no line; see the table.");
    }
    Ok(draw(metric, highest, &panels))
}

fn draw(metric: &Metric, highest: f64, panels: &[RoundPanel]) -> Markup {
    let (size, name) = magnitude(metric.unit, highest);
    let ticks = ticks_from_zero(highest / size, 4.0);
    let top_value = ticks.last().copied().unwrap_or(1.0) * size;
    let labels: Vec<(f64, String)> = ticks.iter().map(|tick| (tick * size, label(*tick))).collect();
    let seconds = panels
        .iter()
        .filter_map(|panel| panel.points.last().map(|last| last.0.max(panel.window.1)))
        .fold(0.0, f64::max);
    let columns = panels.len().min(PER_ROW);
    let width = (WIDTH - LEFT - GAP * (float(columns) - 1.0)) / float(columns);
    let rows: Vec<&[RoundPanel]> = panels.chunks(PER_ROW).collect();
    let above = if panels.iter().all(|panel| panel.marks.is_empty()) { 0.0 } else { event_marks::HEIGHT };
    let pitch = PANEL_HEIGHT + BELOW + above;
    let height = TOP + pitch * float(rows.len()) - BELOW / 2.0;
    html! {
        svg.plot.wide viewBox={ "0 0 " (px(WIDTH)) " " (px(height)) } role="img" aria-label={ (metric.title) " over time" } {
            @for (row, panels) in rows.iter().enumerate() {
                @let top = TOP + above + pitch * float(row);
                @let y = Scale::linear((0.0, top_value), (top + PANEL_HEIGHT, top));
                (y_grid(&y, &labels, (LEFT, LEFT + float(panels.len()) * (width + GAP) - GAP), &name))
                @for (column, panel) in panels.iter().enumerate() {
                    @let left = LEFT + float(column) * (width + GAP);
                    (draw_panel(panel, &Scale::linear((0.0, seconds), (left, left + width)), &y, metric.unit))
                }
            }
        }
    }
}

fn draw_panel(panel: &RoundPanel, x: &Scale, y: &Scale, unit: Unit) -> Markup {
    let (from, to) = (x.at(panel.window.0), x.at(panel.window.1));
    let (top, bottom) = (y.at(f64::MAX), y.at(0.0));
    let end = panel.points.last().map_or(0.0, |last| last.0.max(panel.window.1));
    let measured = |point: &&(f64, f64)| point.0 >= panel.window.0 && point.0 <= panel.window.1;
    let place = |point: &(f64, f64)| (x.at(point.0), y.at(point.1));
    html! {
        g.pick data-x=(x.describe("s")) data-y=(y.describe(unit_word(unit))) data-title={ "round " (panel.round + 1) } {
            rect.window x=(px(from)) y=(px(top)) width=(px((to - from).max(0.0))) height=(px(bottom - top)) {
                title { "measured from " (label(panel.window.0)) " s to " (label(panel.window.1)) " s" }
            }
            (event_marks::draw(&panel.marks, x, (top, bottom)))
            path.line.faint d=(path(panel.points.iter().map(place))) {}
            path.line.s1 d=(path(panel.points.iter().filter(measured).map(place))) data-name="" {}
            text.tick x=(px(x.at(0.0))) y=(px(bottom + 17.0)) { "0" }
            text.tick x=(px(x.at(end))) y=(px(bottom + 17.0)) text-anchor="end" { (label((end * 10.0).round() / 10.0)) " s" }
            text.tick.strong x=(px(x.at(0.0).midpoint(x.at(end)))) y=(px(bottom + 17.0)) text-anchor="middle" { "round " (panel.round + 1) }
        }
    }
}

/// Returns the name by which the page's script knows a unit.
pub(super) const fn unit_word(unit: Unit) -> &'static str {
    match unit {
        Unit::BitsPerSec => "bit/s",
        Unit::RequestsPerSec => "req/s",
        Unit::FramesPerSec => "pps",
        Unit::PerSec => "/s",
        Unit::Nanos => "ns",
        Unit::Bytes => "B",
        Unit::Count | Unit::Ratio => "",
    }
}

//! Benchmarks: what is lost at each load, and what is forwarded at each frame size against what could be.

use fathom_model::{Benchmark, Run, Unit, benchmark::LossPoint};
use maud::{Markup, html};

use super::{
    Plot, float, path, px,
    scale::{Scale, label, magnitude, ticks_from_zero},
    y_grid,
};
use crate::words::benchmarks;

const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = HEIGHT - 40.0;

/// A line with its name; the places of a faint one are compared with, not measured.
struct PlotLine {
    name: String,
    points: Vec<(f64, f64)>,
    is_faint: bool,
}

/// What was lost at each load, of the loss curve and of the search.
pub(crate) fn loss_curve(found: &Benchmark) -> Plot {
    let of = |points: &[LossPoint]| {
        let mut points: Vec<(f64, f64)> = points.iter().map(|point| (point.rate, point.loss_ratio)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let lines: Vec<PlotLine> = [("frame loss", &found.loss), ("in the search", &found.searched)]
        .into_iter()
        .filter(|(_, points)| !points.is_empty())
        .map(|(name, points)| PlotLine { name: name.to_owned(), points: of(points), is_faint: false })
        .collect();
    if lines.is_empty() {
        return Err("No loss was measured at any load.");
    }
    let all = || lines.iter().flat_map(|line| &line.points);
    let most = all().map(|(rate, _)| *rate).fold(found.max_rate, f64::max);
    let (size, unit) = magnitude(Unit::FramesPerSec, most);
    let x: Vec<(f64, String)> =
        ticks_from_zero(most / size, 5.0).into_iter().map(|tick| (tick * size, label(tick))).collect();
    let worst = all().map(|(_, loss)| *loss).fold(0.001, f64::max);
    let y: Vec<(f64, String)> =
        ticks_from_zero(100.0 * worst, 5.0).into_iter().map(|tick| (tick / 100.0, label(tick))).collect();
    Ok(draw(&lines, (&x, &format!("offered, {unit}")), (&y, "lost, %"), Some(found.max_rate)))
}

/// The first rate that was found at each frame size, with what it could be at most.
pub(crate) fn rates(run: &Run) -> Plot {
    let mut lines: Vec<PlotLine> = Vec::new();
    let mut add = |name: &str, is_faint: bool, point: (f64, f64)| match lines.iter_mut().find(|line| line.name == name)
    {
        Some(line) => line.points.push(point),
        None => lines.push(PlotLine { name: name.to_owned(), points: vec![point], is_faint }),
    };
    let mut sizes = Vec::new();
    for (nth, (_, found)) in benchmarks(run).enumerate() {
        let place = float(nth) + 0.5;
        sizes.push((place, format!("{} B", found.size_bytes)));
        add("theoretical", true, (place, found.line_rate.unwrap_or(found.max_rate)));
        let rates = found.results.iter().filter(|result| result.metric.unit == Unit::FramesPerSec);
        for result in rates {
            if let Some(value) = result.value {
                add(&result.metric.title, false, (place, value));
            }
        }
    }
    if lines.len() < 2 {
        return Err("No rate was found.");
    }
    let most = lines.iter().flat_map(|line| &line.points).map(|(_, rate)| *rate).fold(0.0, f64::max);
    let (size, unit) = magnitude(Unit::FramesPerSec, most);
    let y: Vec<(f64, String)> =
        ticks_from_zero(most / size, 5.0).into_iter().map(|tick| (tick * size, label(tick))).collect();
    let ends = [(0.0, String::new()), (float(sizes.len()), String::new())];
    let x: Vec<(f64, String)> = ends[..1].iter().chain(&sizes).chain(&ends[1..]).cloned().collect();
    Ok(draw(&lines, (&x, "frame size"), (&y, &unit), None))
}

type Axis<'a> = (&'a [(f64, String)], &'a str);

fn draw(lines: &[PlotLine], (x_ticks, x_name): Axis<'_>, (y_ticks, y_name): Axis<'_>, whole: Option<f64>) -> Markup {
    let end = |ticks: &[(f64, String)]| ticks.last().map_or(1.0, |(value, _)| *value);
    let x = Scale::linear((0.0, end(x_ticks)), (LEFT, RIGHT));
    let y = Scale::linear((0.0, end(y_ticks)), (BOTTOM, TOP));
    let numbered = || lines.iter().filter(|line| !line.is_faint).enumerate();
    html! {
        svg.plot.wide viewBox={ "0 0 " (px(WIDTH)) " " (px(HEIGHT)) } role="img" aria-label=(y_name) {
            (y_grid(&y, y_ticks, (LEFT, RIGHT), y_name))
            @for (value, text) in x_ticks {
                text.tick x=(px(x.at(*value))) y=(px(BOTTOM + 17.0)) text-anchor="middle" { (text) }
            }
            text.unit x=(px(RIGHT)) y=(px(HEIGHT - 4.0)) text-anchor="end" { (x_name) }
            @if let Some(whole) = whole {
                path.line.faint d=(path([(x.at(whole), TOP), (x.at(whole), BOTTOM)])) { title { "100 %" } }
            }
            @for line in lines.iter().filter(|line| line.is_faint) {
                path.line.faint d=(path(line.points.iter().map(|(a, b)| (x.at(*a), y.at(*b))))) { title { (line.name) } }
            }
            @for (idx, line) in numbered() {
                path class={ "line s" (idx % 4 + 1) } d=(path(line.points.iter().map(|(a, b)| (x.at(*a), y.at(*b))))) {
                    title { (line.name) }
                }
                @for (a, b) in &line.points {
                    circle class={ "part s" (idx % 4 + 1) } cx=(px(x.at(*a))) cy=(px(y.at(*b))) r="2.2" {}
                }
            }
        }
        ul.legend {
            @for (idx, line) in numbered() { li { span class={ "key s" (idx % 4 + 1) } {} (line.name) } }
        }
    }
}

//! Draws benchmarks: the loss at each load, and the rate at each frame size compared with the possible rate.

use fathom_model::{Benchmark, Run, Unit, benchmark::LossPoint};
use maud::html;

use super::{
    Plot, float,
    panel::{Axis, BOTTOM, LEFT, Line, Panel, RIGHT, TOP, draw},
    scale::Scale,
};
use crate::words::benchmarks;

/// Draws the loss at each load, from the loss curve and from the search.
pub(crate) fn loss_curve(found: &Benchmark) -> Plot {
    let of = |(name, points): (&str, &Vec<LossPoint>)| -> Line {
        let mut points: Vec<(f64, f64)> = points.iter().map(|point| (point.rate, point.loss_ratio)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (name.to_owned(), points)
    };
    let lines = [("loss", &found.loss), ("in the search", &found.searched)].into_iter();
    let lines: Vec<Line> = lines.filter(|(_, points)| !points.is_empty()).map(of).collect();
    if lines.is_empty() {
        return Err("No loss was measured at any load.");
    }
    let all = || lines.iter().flat_map(|(_, points)| points);
    let most = all().map(|(rate, _)| *rate).fold(found.max_rate, f64::max);
    let worst = all().map(|(_, loss)| *loss).fold(0.001, f64::max);
    let x = Axis::from_zero("offered, ", Unit::FramesPerSec, most, (LEFT, RIGHT));
    let y = Axis::from_zero("lost, ", Unit::Ratio, worst, (BOTTOM, TOP));
    let whole = ("100 %".to_owned(), vec![(found.max_rate, 0.0), (found.max_rate, f64::MAX)]);
    Ok(draw("lost, %", &[panel(x, y, lines, vec![whole])]))
}

/// Draws the first rate at each frame size, with the highest possible rate.
pub(crate) fn rates(run: &Run) -> Plot {
    let mut lines: Vec<Line> = Vec::new();
    let (mut sizes, mut most) = (Vec::new(), Vec::new());
    for (nth, (_, found)) in benchmarks(run).enumerate() {
        let place = float(nth) + 0.5;
        sizes.push((place, format!("{} B", found.size_bytes)));
        most.push((place, found.line_rate.unwrap_or(found.max_rate)));
        for result in found.results.iter().filter(|result| result.metric.unit == Unit::FramesPerSec) {
            let Some(value) = result.value else { continue };
            match lines.iter_mut().find(|(name, _)| *name == result.metric.title) {
                Some((_, points)) => points.push((place, value)),
                None => lines.push((result.metric.title.to_string(), vec![(place, value)])),
            }
        }
    }
    if lines.is_empty() {
        return Err("No rate was found.");
    }
    let highest = lines.iter().flat_map(|(_, points)| points).chain(&most).map(|(_, rate)| *rate).fold(0.0, f64::max);
    let scale = Scale::linear((0.0, float(sizes.len())), (LEFT, RIGHT));
    let x = Axis { scale, ticks: sizes, title: "size".to_owned(), unit: Unit::Count };
    let y = Axis::from_zero("", Unit::FramesPerSec, highest, (BOTTOM, TOP));
    Ok(draw(&y.title.clone(), &[panel(x, y, lines, vec![("theoretical".to_owned(), most)])]))
}

fn panel(x: Axis, y: Axis, lines: Vec<Line>, references: Vec<Line>) -> Panel {
    Panel { x, y, lines, references, marks: html! {} }
}

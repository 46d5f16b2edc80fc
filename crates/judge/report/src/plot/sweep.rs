//! Draws the values of compared paths over a swept parameter, with intervals and knees.

use fathom_model::{Metric, Sweep, Unit};
use maud::{Markup, html};

use super::{
    N_COLOURS, Plot,
    panel::{Axis, BOTTOM, LEFT, Line, Panel, RIGHT, TOP, draw},
    px,
    scale::Scale,
};

/// A parameter whose values span more than this factor has a logarithmic axis.
const LOGARITHMIC: f64 = 30.0;

pub(crate) fn sweep_curves(metric: Option<&Metric>, sweep: &Sweep) -> Plot {
    let all = || sweep.curves.iter().flat_map(|curve| &curve.points);
    let numbers = all().map(|point| point.number);
    let (low, high) = numbers.fold((f64::MAX, f64::MIN), |(low, high), number| (low.min(number), high.max(number)));
    if low >= high {
        return Err("One value makes no curve; see the table.");
    }
    let ends = (LEFT, RIGHT);
    let scale = if low > 0.0 && high > LOGARITHMIC * low {
        Scale::log((low, high), ends)
    } else {
        Scale::linear((low, high), ends)
    };
    // The values that were measured are the ticks: between them nothing is known.
    let first = sweep.curves.first().map(|curve| curve.points.as_slice()).unwrap_or_default();
    let ticks = first.iter().map(|point| (point.number, point.at.clone())).collect();
    let x = Axis { scale, ticks, title: sweep.parameter.clone(), unit: Unit::Count };
    let highest = all().map(|point| point.confidence.map_or(point.value, |interval| interval.high)).fold(0.0, f64::max);
    let before = metric.map(|metric| format!("{}, ", metric.title)).unwrap_or_default();
    let y = Axis::from_zero(&before, metric.map_or(Unit::Count, |metric| metric.unit), highest, (BOTTOM, TOP));
    let line = |curve: &fathom_model::SweepCurve| -> Line {
        (curve.path.clone(), curve.points.iter().map(|point| (point.number, point.value)).collect())
    };
    let lines = sweep.curves.iter().map(line).collect();
    let marks = marks(sweep, &x.scale, &y.scale);
    Ok(draw("values over a parameter", &[Panel { x, y, lines, references: Vec::new(), marks }]))
}

/// Draws the intervals as bars and the knees as lines.
fn marks(sweep: &Sweep, x: &Scale, y: &Scale) -> Markup {
    html! {
        @for (idx, curve) in sweep.curves.iter().enumerate() {
            @for (at, interval) in curve.points.iter().filter_map(|point| Some((x.at(point.number), point.confidence?))) {
                line class={ "line s" (idx % N_COLOURS + 1) } x1=(px(at)) x2=(px(at)) y1=(px(y.at(interval.low))) y2=(px(y.at(interval.high))) {}
            }
            @if let Some(point) = curve.points.iter().find(|point| curve.knee.as_ref() == Some(&point.at)) {
                @let at = px(x.at(point.number));
                line.grid x1=(at) x2=(at) y1=(px(TOP)) y2=(px(BOTTOM)) {}
                text.tick.strong x=(at) y=(px(TOP - 4.0)) text-anchor="middle" { "knee of " (curve.path) }
            }
        }
    }
}

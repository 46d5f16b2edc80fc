//! Draws compared values as parts of the reference: a bar per value for its interval, on one axis.

use fathom_model::{ComparedArm, Comparison, Metric, PairedValue};
use maud::html;

use super::{
    Plot,
    panel::{LEFT, RIGHT, WIDTH},
    px,
    scale::{Scale, label, log_ticks, step},
};
use crate::words;

/// The height of a row, and where the bars begin: the names stand left of them.
const ROW: f64 = 26.0;
const BARS: f64 = LEFT + 250.0;
const TOP: f64 = 30.0;
/// The least distance of the ends of the axis from the reference.
const SPAN_MIN: f64 = 0.05;

/// The room for the half of the last label.
const LABEL: f64 = 12.0;
/// Parts that span more than this factor have a logarithmic axis.
const LOGARITHMIC: f64 = 4.0;
/// The least part on an axis. The ends of wide intervals may be none at all.
const PART_MIN: f64 = 0.01;

/// A compared value with its metric, as a row of a table or a drawing shows it.
pub(crate) struct ShownValue<'a> {
    pub(crate) comparison: &'a Comparison,
    pub(crate) arm: &'a ComparedArm,
    pub(crate) metric: &'a Metric,
    pub(crate) value: &'a PairedValue,
    /// The reference against itself.
    pub(crate) null: Option<&'a PairedValue>,
}

/// Returns the axis for parts from `low` to `high`, which include 1, and its ticks. Parts that differ a lot have a logarithmic one.
fn axis(low: f64, high: f64) -> (Scale, Vec<f64>) {
    let ends = (BARS, RIGHT - LABEL);
    let low = low.max(PART_MIN);
    if high > LOGARITHMIC * low {
        let ticks = log_ticks(low, high);
        return (Scale::log((ticks[0], ticks[ticks.len() - 1]), ends), ticks);
    }
    let gap = step(high - low, 6.0);
    let (low, high) = ((low.min(1.0 - SPAN_MIN) / gap).floor() * gap, (high.max(1.0 + SPAN_MIN) / gap).ceil() * gap);
    let ticks = std::iter::successors(Some(low), |tick| Some(tick + gap)).take_while(|tick| *tick <= high + gap / 2.0);
    (Scale::linear((low, high), ends), ticks.take(40).collect())
}

pub(crate) fn costs(all: &[ShownValue<'_>]) -> Plot {
    let rows: Vec<_> =
        all.iter().filter_map(|shown| Some((shown, shown.value.ratio?, shown.value.ratio?.confidence?))).collect();
    if rows.is_empty() {
        return Err("No value has an interval as a part of the reference.");
    }
    let farthest = rows.iter().flat_map(|(_, _, interval)| [interval.low, interval.high]);
    let (low, high) = farthest.fold((1.0_f64, 1.0_f64), |(low, high), end| (low.min(end), high.max(end)));
    let (x, ticks) = axis(low, high);
    let bottom = TOP + ROW * super::float(rows.len());
    Ok(html! {
        svg.plot.wide viewBox={ "0 0 " (px(WIDTH)) " " (px(bottom + 30.0)) } role="img" aria-label="values as parts of the reference" {
            @for tick in &ticks {
                line.grid x1=(px(x.at(*tick))) x2=(px(x.at(*tick))) y1=(px(TOP - 8.0)) y2=(px(bottom)) {}
                text.tick.strong[(tick - 1.0).abs() < 1e-9] x=(px(x.at(*tick))) y=(px(bottom + 17.0)) text-anchor="middle" { "× " (label(*tick)) }
            }
            line.reference x1=(px(x.at(1.0))) x2=(px(x.at(1.0))) y1=(px(TOP - 8.0)) y2=(px(bottom)) {}
            @for (idx, (shown, ratio, interval)) in rows.iter().enumerate() {
                @let y = TOP + ROW * super::float(idx) + ROW / 2.0;
                text.tick x=(px(BARS - 12.0)) y=(px(y + 4.0)) text-anchor="end" {
                    (shown.comparison.name) ", " (shown.metric.title) ", " (shown.arm.path)
                }
                @if let Some(null) = shown.null.and_then(|null| null.ratio?.confidence) {
                    line.line.faint x1=(px(x.at(null.low))) x2=(px(x.at(null.high))) y1=(px(y + 7.0)) y2=(px(y + 7.0)) {}
                }
                line.line.s1 x1=(px(x.at(interval.low))) x2=(px(x.at(interval.high))) y1=(px(y)) y2=(px(y)) {
                    title { (words::factor(*ratio)) }
                }
                circle.part.s1 cx=(px(x.at(ratio.value))) cy=(px(y)) r="3.5" {}
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_differ_a_lot_have_room_on_the_axis_and_near_ones_too() {
        let (wide, ticks) = axis(0.0, 230.0);
        assert!(wide.at(2.0) - wide.at(1.0) > 30.0, "a double is no longer at the line of one");
        assert!(ticks.iter().any(|tick| (tick - 1.0).abs() < 1e-9), "{ticks:?}");
        let (near, ticks) = axis(0.9, 1.02);
        assert!(near.at(1.02) - near.at(0.9) > 300.0 && ticks.len() > 4, "{ticks:?}");
    }
}

//! Draws compared values as parts of the reference: a bar per value for its interval, on one axis.

use fathom_model::{ComparedArm, Comparison, Metric, PairedValue};
use maud::html;

use super::{
    Plot,
    panel::{LEFT, RIGHT, WIDTH},
    px,
    scale::{Scale, label, step},
};
use crate::words;

/// The height of a row, and where the bars begin: the names stand left of them.
const ROW: f64 = 26.0;
const BARS: f64 = LEFT + 250.0;
const TOP: f64 = 30.0;
/// The least distance of the ends of the axis from the reference.
const SPAN_MIN: f64 = 0.05;

/// A compared value with its metric, as a row of a table or a drawing shows it.
pub(crate) struct ShownValue<'a> {
    pub(crate) comparison: &'a Comparison,
    pub(crate) arm: &'a ComparedArm,
    pub(crate) metric: &'a Metric,
    pub(crate) value: &'a PairedValue,
    /// The reference against itself.
    pub(crate) null: Option<&'a PairedValue>,
}

pub(crate) fn costs(all: &[ShownValue<'_>]) -> Plot {
    let rows: Vec<_> =
        all.iter().filter_map(|shown| Some((shown, shown.value.ratio?, shown.value.ratio?.confidence?))).collect();
    if rows.is_empty() {
        return Err("No value has an interval as a part of the reference.");
    }
    let farthest = rows.iter().flat_map(|(_, _, interval)| [interval.low, interval.high]);
    let (low, high) = farthest.fold((1.0_f64, 1.0_f64), |(low, high), end| (low.min(end), high.max(end)));
    let gap = step(high - low, 6.0);
    let (low, high) = ((low.min(1.0 - SPAN_MIN) / gap).floor() * gap, (high.max(1.0 + SPAN_MIN) / gap).ceil() * gap);
    let x = Scale::linear((low, high), (BARS, RIGHT));
    let ticks: Vec<f64> = std::iter::successors(Some(low), |tick| Some(tick + gap))
        .take_while(|tick| *tick <= high + gap / 2.0)
        .take(40)
        .collect();
    let bottom = TOP + ROW * super::float(rows.len());
    Ok(html! {
        svg.plot.wide viewBox={ "0 0 " (px(WIDTH)) " " (px(bottom + 30.0)) } role="img" aria-label="values as parts of the reference" {
            @for tick in &ticks {
                line.grid x1=(px(x.at(*tick))) x2=(px(x.at(*tick))) y1=(px(TOP - 8.0)) y2=(px(bottom)) {}
                text.tick x=(px(x.at(*tick))) y=(px(bottom + 17.0)) text-anchor="middle" { "× " (label(*tick)) }
            }
            line.line.faint x1=(px(x.at(1.0))) x2=(px(x.at(1.0))) y1=(px(TOP - 8.0)) y2=(px(bottom)) {}
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

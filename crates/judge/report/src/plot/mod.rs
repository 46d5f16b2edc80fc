//! Drawings of a run as SVG, colored by the CSS classes of the page.
//!
//! A drawing is either markup or a sentence with the reason why there is none. `maud` escapes all texts.

pub(crate) mod anatomy;
pub(crate) mod benchmark;
pub(crate) mod conservation;
pub(crate) mod core_heatmap;
pub(crate) mod cost;
pub(crate) mod curve;
mod event_marks;
pub(crate) mod funnel;
pub(crate) mod matrix;
mod panel;
pub(crate) mod percentiles;
mod scale;
pub(crate) mod series;
pub(crate) mod share;
pub(crate) mod sweep;
pub(crate) mod throughput;

use fathom_model::units::approximate;
use maud::{Markup, html};

/// A drawing, or the reason why there is none.
pub(crate) type Plot = Result<Markup, &'static str>;

/// The number of lines with a color of their own. A request has five times, from its connect to its end.
const N_COLOURS: usize = 5;

/// Draws the names of the lines next to a piece of each.
fn legend<'a>(names: impl Iterator<Item = &'a str>) -> Markup {
    html! {
        ul.legend {
            @for (index, name) in names.enumerate() {
                li {
                    // The line as it is drawn: without colors, its dashes tell it apart.
                    svg.dash viewBox="0 0 30 8" aria-hidden="true" {
                        path class={ "line s" (index % N_COLOURS + 1) } d="M1 4H29" {}
                    }
                    (name)
                }
            }
        }
    }
}

/// What tells a part of a drawing from the others: a color, and a number for readers to whom colors look alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// The CSS class of the color.
    pub(crate) class: String,
    pub(crate) number: usize,
}

impl Key {
    /// Draws the key for a legend.
    pub(crate) fn markup(&self) -> Markup {
        html! { span class={ "key " (self.class) } {} span.number { (self.number) } }
    }
}

/// Whether parts of this color have stripes, as those at the other end and those beyond the number of colors.
fn is_striped(class: &str) -> bool {
    class.ends_with(STRIPED)
}

/// The end of the class of a color with stripes.
const STRIPED: &str = " far";

/// Formats a coordinate with a precision of a tenth of a pixel.
fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// Returns a line through points, as SVG path data.
fn path(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let mut d = String::new();
    for (x, y) in points {
        d.push(if d.is_empty() { 'M' } else { 'L' });
        d.push_str(&px(x));
        d.push(' ');
        d.push_str(&px(y));
    }
    d
}

/// Converts an index for calculations.
fn float(index: usize) -> f64 {
    approximate(index as u64)
}

/// Draws horizontal grid lines with their labels on the left and the name of the unit above.
fn y_grid(scale: &scale::Scale, ticks: &[(f64, String)], span: (f64, f64), name: &str) -> Markup {
    let (left, right) = span;
    let top = ticks.iter().map(|(value, _)| scale.at(*value)).fold(f64::INFINITY, f64::min);
    html! {
        @for (value, text) in ticks {
            line.grid x1=(px(left)) x2=(px(right)) y1=(px(scale.at(*value))) y2=(px(scale.at(*value))) {}
            text.tick x=(px(left - 8.0)) y=(px(scale.at(*value) + 4.0)) text-anchor="end" { (text) }
        }
        // From the edge of the drawing on: a long unit has no room left of the axis.
        text.unit x="0" y=(px(top - 13.0)) { (name) }
    }
}

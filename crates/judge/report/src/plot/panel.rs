//! Draws lines in one or several panels next to each other, with reference lines.

use fathom_model::Unit;
use maud::{Markup, html};

use super::{
    legend, path, px,
    scale::{Scale, label, magnitude, ticks_from_zero},
    throughput::unit_word,
    y_grid,
};

pub(super) const WIDTH: f64 = 1040.0;
pub(super) const LEFT: f64 = 58.0;
pub(super) const RIGHT: f64 = WIDTH - 14.0;
const HEIGHT: f64 = 300.0;
pub(super) const TOP: f64 = 34.0;
pub(super) const BOTTOM: f64 = HEIGHT - 40.0;

/// A name and points.
pub(super) type Line = (String, Vec<(f64, f64)>);

/// An axis and its labeled values.
pub(super) struct Axis {
    pub(super) scale: Scale,
    pub(super) ticks: Vec<(f64, String)>,
    pub(super) title: String,
    pub(super) unit: Unit,
}

impl Axis {
    /// Returns an axis from zero to the highest value of a unit. `before` is text in front of the unit.
    pub(super) fn from_zero(before: &str, unit: Unit, highest: f64, range: (f64, f64)) -> Self {
        let (size, name) = magnitude(unit, highest);
        let ticks: Vec<(f64, String)> =
            ticks_from_zero(highest / size, 5.0).into_iter().map(|tick| (tick * size, label(tick))).collect();
        let scale = Scale::linear((0.0, ticks.last().map_or(1.0, |(value, _)| *value)), range);
        let title = format!("{before}{name}").trim_end_matches([',', ' ']).to_owned();
        Self { scale, ticks, title, unit }
    }
}

pub(super) struct Panel {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
    /// Reference lines.
    pub(super) references: Vec<Line>,
    /// Marks on the horizontal axis, drawn below the lines.
    pub(super) marks: Markup,
}

/// Draws the panels. A panel has a legend if it has several lines or is the only one.
pub(super) fn draw(label: &str, panels: &[Panel]) -> Markup {
    html! {
        svg.plot.wide viewBox={ "0 0 " (px(WIDTH)) " " (px(HEIGHT)) } role="img" aria-label=(label) {
            @for panel in panels { (panel_markup(panel)) }
        }
        @for panel in panels.iter().filter(|panel| panel.lines.len() > 1 || panels.len() == 1) {
            (legend(panel.lines.iter().map(|(name, _)| name.as_str())))
        }
    }
}

fn panel_markup(Panel { x, y, lines, references, marks }: &Panel) -> Markup {
    let (left, right) = (x.scale.at(f64::MIN), x.scale.at(f64::MAX));
    let place = |(a, b): &(f64, f64)| (x.scale.at(*a), y.scale.at(*b));
    html! {
        (y_grid(&y.scale, &y.ticks, (left, right), ""))
        (marks)
        @for (value, text) in &x.ticks {
            text.tick x=(px(x.scale.at(*value))) y=(px(BOTTOM + 17.0)) text-anchor="middle" { (text) }
        }
        text.unit x=(px(right)) y=(px(HEIGHT - 4.0)) text-anchor="end" { (x.title) }
        text.unit x=(px(left)) y=(px(TOP - 20.0)) { (y.title) }
        @for (name, points) in references {
            path.line.faint d=(path(points.iter().map(place))) { title { (name) } }
            @if let Some((a, b)) = points.last().filter(|(_, b)| points[0].1.total_cmp(b).is_eq()).map(place) {
                text.tick x=(px(a)) y=(px(b - 5.0)) text-anchor="end" { (name) }
            }
        }
        g.pick data-x=(x.scale.describe(unit_word(x.unit))) data-y=(y.scale.describe(unit_word(y.unit))) data-title=(x.title.split(',').next().unwrap_or_default()) {
            @for (idx, (name, points)) in lines.iter().enumerate() {
                @let colour = idx % super::N_COLOURS + 1;
                path class={ "line s" (colour) } d=(path(points.iter().map(place))) data-name=(name) { title { (name) } }
                @for (a, b) in points.iter().map(place) {
                    circle class={ "part s" (colour) } cx=(px(a)) cy=(px(b)) r="2.2" {}
                }
            }
        }
    }
}

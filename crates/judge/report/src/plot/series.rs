//! Draws series over time in one panel, with gaps where a value is not known.

use fathom_model::units::Nanos;
use maud::html;

use super::{
    N_COLOURS, Plot, legend,
    panel::{Axis, BOTTOM, LEFT, RIGHT, TOP, WIDTH},
    path, px,
    scale::{Scale, label, ticks_from_zero},
    throughput::unit_word,
    y_grid,
};
use crate::recording::{Chart, ChartLine};

const HEIGHT: f64 = 250.0;
/// What the panel of curves has below its plot more than this one.
const LOWER: f64 = 50.0;

/// Draws the series of a chart.
pub(crate) fn series(chart: &Chart, span: Nanos) -> Plot {
    let highest = chart.lines.iter().map(|line| line.highest).fold(0.0, f64::max);
    if highest <= 0.0 || span == Nanos::ZERO {
        return Err("Nothing was counted, so there is no line to draw.");
    }
    if chart.lines.iter().all(|line| line.points.len() < 2) {
        return Err("One interval makes no line; see the table.");
    }
    let bottom = BOTTOM - LOWER;
    let y = Axis::from_zero("", chart.unit, highest, (bottom, TOP));
    let (size, name) = time_unit(span);
    let seconds = span.as_secs_f64();
    let x = Scale::linear((0.0, seconds * 1e9), (LEFT, RIGHT));
    let ticks = ticks_from_zero(seconds / size, 8.0);
    let ticks = ticks.into_iter().filter(|tick| *tick <= seconds / size * 1.000_001);
    let place = |(at, value): (Nanos, f64)| (x.at(at.as_secs_f64() * 1e9), y.scale.at(value));
    Ok(html! {
        svg.plot.wide viewBox={ "0 0 " (px(WIDTH)) " " (px(HEIGHT)) } role="img" aria-label=(chart.title) {
            (y_grid(&y.scale, &y.ticks, (LEFT, RIGHT), ""))
            text.unit x=(px(LEFT)) y=(px(TOP - 20.0)) { (y.title) }
            @for tick in ticks {
                text.tick x=(px(x.at(tick * size * 1e9))) y=(px(bottom + 17.0)) text-anchor="middle" { (label(tick)) }
            }
            text.unit x=(px(RIGHT)) y=(px(HEIGHT - 6.0)) text-anchor="end" { (name) " since the beginning" }
            g.pick data-x=(x.describe("ns")) data-y=(y.scale.describe(unit_word(chart.unit))) data-title="" {
                @for (index, line) in chart.lines.iter().enumerate() {
                    @let class = format!("line s{}", index % N_COLOURS + 1);
                    @for part in parts(line) {
                        path class=(class) d=(path(part.into_iter().map(place))) data-name=(line.name) {
                            title { (line.name) }
                        }
                    }
                }
            }
        }
        @if chart.lines.len() > 1 || chart.lines[0].name != chart.title {
            (legend(chart.lines.iter().map(|line| line.name.as_str())))
        }
    })
}

/// Returns the stretches of a line in which all values are known.
fn parts(line: &ChartLine) -> Vec<Vec<(Nanos, f64)>> {
    let mut parts = vec![Vec::new()];
    for (at, value) in &line.points {
        match (value, parts.last_mut()) {
            (Some(value), Some(part)) => part.push((*at, *value)),
            (None, Some(part)) if !part.is_empty() => parts.push(Vec::new()),
            _ => {}
        }
    }
    parts.retain(|part: &Vec<_>| !part.is_empty());
    parts
}

/// Returns the unit of the time axis: its length in seconds and its name.
fn time_unit(span: Nanos) -> (f64, &'static str) {
    let units = [(86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")];
    let found = units.into_iter().find(|(size, _)| span.as_secs_f64() >= 3.0 * size);
    found.unwrap_or((1.0, "seconds"))
}

/// Draws values as blocks of an eighth of a line's height; a blank is a value that is not known.
pub(crate) fn sparkline(values: &[Option<f64>], highest: f64, width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if highest <= 0.0 {
        return String::new();
    }
    let n_joined = values.len().div_ceil(width.max(1)).max(1);
    let block = |values: &[Option<f64>]| {
        let Some(value) = values.iter().flatten().copied().reduce(f64::max) else { return ' ' };
        let reached =
            BLOCKS.iter().enumerate().rev().find(|(index, _)| value >= highest * (super::float(*index) - 0.5) / 7.0);
        reached.map_or(BLOCKS[0], |(_, block)| *block)
    };
    values.chunks(n_joined).map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_keeps_peaks_and_shows_what_is_not_known_as_a_blank() {
        let values = [Some(0.0), Some(8.0), None, Some(4.0)];
        assert_eq!(sparkline(&values, 8.0, 10), "▁█ ▅");
        assert_eq!(sparkline(&[Some(0.0), Some(8.0), Some(1.0), Some(1.0)], 8.0, 2), "█▂");
        assert_eq!(sparkline(&values, 0.0, 10), "");
        assert_eq!(sparkline(&[], 1.0, 10), "");
    }

    #[test]
    fn a_line_has_a_gap_where_a_value_is_not_known() {
        let points = [Some(1.0), Some(2.0), None, None, Some(3.0), None];
        let points = (1..).zip(points).map(|(second, value)| (Nanos::from_secs(second), value)).collect();
        let line = ChartLine { name: String::new(), points, mean: 2.0, highest: 3.0, highest_at: Nanos::from_secs(5) };
        assert_eq!(parts(&line).iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_time_axis_has_at_least_three_of_its_unit() {
        let name = |seconds| time_unit(Nanos::from_secs(seconds)).1;
        assert_eq!([name(2), name(179), name(181), name(10_800)], ["seconds", "seconds", "minutes", "hours"]);
    }
}

//! Draws latency by percentile. The tail is stretched (1 / (1 − p)), and the time is logarithmic.

use std::collections::BTreeMap;

use fathom_model::{
    Histogram, TestRun, Unit,
    units::{approximate, grouped},
};
use maud::{Markup, html};

use super::{
    N_COLOURS, Plot, float, legend, path, px,
    scale::{Scale, label, log_ticks, magnitude},
    y_grid,
};

const WIDTH: f64 = 510.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;
/// A quantile with fewer values above it is drawn dotted, because it would change with every run.
const ABOVE_MIN: u64 = 10;
/// The number of points per power of ten of 1 / (1 − p).
const POINTS_PER_DECADE: u32 = 12;

/// Returns the distributions of a test in nanoseconds, each merged over all rounds.
pub(crate) fn merged(test: &TestRun) -> BTreeMap<&str, Histogram> {
    let mut all: BTreeMap<&str, Histogram> = BTreeMap::new();
    for (name, histogram) in test.trials.iter().flat_map(|trial| trial.records.values()).flat_map(|r| &r.distributions)
    {
        if name.ends_with("_ns") {
            all.entry(name).or_default().merge(histogram);
        }
    }
    all.retain(|_, histogram| histogram.count() > 0);
    all
}

/// Returns the display name of a distribution: `service_time_ns` becomes `service time`.
pub(crate) fn display_name(name: &str) -> String {
    name.trim_end_matches("_ns").replace('_', " ")
}

/// Values below the largest median divided by this are drawn on the axis.
const SHOWN: u64 = 1000;

/// Draws every distribution of a test except those that are all zero, which would stretch the axis down to a nanosecond.
pub(crate) fn percentiles(test: &TestRun) -> Plot {
    let mut all = merged(test);
    all.retain(|_, histogram| histogram.max().is_some_and(|max| max > 0));
    let lowest = lowest(&all).ok_or("No latency was recorded in this test.")?;
    let highest = all.values().filter_map(Histogram::max).max().unwrap_or(lowest);
    let n_most = all.values().map(Histogram::count).max().unwrap_or(1);
    let ticks = log_ticks(approximate(lowest.max(1)), approximate(highest.max(1)));
    let bounds = match ticks.as_slice() {
        [] => return Err("The recorded latencies are out of range."),
        [only] => (only * 0.5, only * 2.0),
        [first, .., last] => (*first, *last),
    };
    let x = Scale::log((1.0, approximate(n_most.max(100))), (LEFT, WIDTH - RIGHT));
    let y = Scale::log(bounds, (HEIGHT - BOTTOM, TOP));
    Ok(draw(&distinct(&all), &ticks, &x, &y))
}

/// Returns the start of the axis: the lowest value that is not negligible compared with the others.
fn lowest(all: &BTreeMap<&str, Histogram>) -> Option<u64> {
    let slowest = all.values().filter_map(|histogram| histogram.quantile(0.5)).max()?;
    all.values().filter_map(Histogram::min).min().map(|lowest| lowest.max(slowest / SHOWN))
}

/// Returns the distinct lines. Lines that would hide each other are merged, with all their names.
fn distinct<'a>(all: &'a BTreeMap<&str, Histogram>) -> Vec<(String, &'a Histogram)> {
    let mut lines: Vec<(String, &Histogram)> = Vec::new();
    for (name, histogram) in all {
        match lines.iter_mut().find(|(_, other)| is_alike(other, histogram)) {
            Some((names, _)) => *names = format!("{names}, {}", display_name(name)),
            None => lines.push((display_name(name), histogram)),
        }
    }
    lines
}

/// Returns true if two lines coincide.
fn is_alike(a: &Histogram, b: &Histogram) -> bool {
    const ALIKE: f64 = 0.03;
    let near = |((_, one), (_, other)): (&(f64, f64), &(f64, f64))| (one - other).abs() <= ALIKE * one.max(*other);
    let (a, b) = (curve(a), curve(b));
    a.len() == b.len() && a.iter().zip(&b).all(near)
}

fn draw(all: &[(String, &Histogram)], ticks: &[f64], x: &Scale, y: &Scale) -> Markup {
    let labels: Vec<(f64, String)> = ticks.iter().map(|tick| (*tick, time(*tick))).collect();
    let n_most = all.iter().map(|(_, histogram)| histogram.count()).max().unwrap_or(1);
    html! {
        svg.plot viewBox={ "0 0 " (px(WIDTH)) " " (px(HEIGHT)) } role="img" aria-label="latency by percentile" {
            (y_grid(y, &labels, (LEFT, WIDTH - RIGHT), ""))
            @for (_, inverse) in marks(n_most) {
                line.grid x1=(px(x.at(inverse))) x2=(px(x.at(inverse))) y1=(px(TOP)) y2=(px(HEIGHT - BOTTOM)) {}
            }
            @for (text, at) in labels_apart(marks(n_most), x) {
                text.tick x=(px(at)) y=(px(HEIGHT - BOTTOM + 18.0)) text-anchor="middle" { (text) }
            }
            g.pick data-x=(x.describe("p")) data-y=(y.describe("ns")) data-title="" {
                @for (index, (name, histogram)) in all.iter().enumerate() {
                    (line(name, index, histogram, (x, y)))
                }
            }
        }
        @if all.len() > 1 || all.iter().any(|(name, _)| name.contains(", ")) {
            (legend(all.iter().map(|(name, _)| name.as_str())))
        }
    }
}

fn line(name: &str, index: usize, histogram: &Histogram, (x, y): (&Scale, &Scale)) -> Markup {
    let sure = (histogram.count() / ABOVE_MIN).max(1);
    let points = curve(histogram);
    let place = |(inverse, ns): &(f64, f64)| (x.at(*inverse), y.at(*ns));
    let split = points.iter().rposition(|(inverse, _)| *inverse <= approximate(sure)).unwrap_or(0);
    html! {
        path class={ "line unsure s" (index % N_COLOURS + 1) } d=(path(points.iter().skip(split).map(place))) data-name=(name) {}
        path class={ "line s" (index % N_COLOURS + 1) } d=(path(points.iter().take(split + 1).map(place))) data-name=(name) {
            title { (name) ", " (grouped(histogram.count())) " samples" }
        }
    }
}

/// Returns points of 1 / (1 − p) and nanoseconds, as far as the number of values allows.
fn curve(histogram: &Histogram) -> Vec<(f64, f64)> {
    let last = approximate(histogram.count());
    let per_decade = f64::from(POINTS_PER_DECADE);
    let steps = (0..).map(|index| 10_f64.powf(float(index) / per_decade)).take_while(|inverse| *inverse < last);
    let inner = steps.filter_map(|inverse| Some((inverse, approximate(histogram.quantile(1.0 - 1.0 / inverse)?))));
    inner.chain(histogram.max().map(|max| (last, approximate(max)))).collect()
}

/// Returns the percentiles on the axis, as far as there are values.
fn marks(n_most: u64) -> Vec<(&'static str, f64)> {
    let all = [
        ("p50", 2.0),
        ("p90", 10.0),
        ("p99", 100.0),
        ("p99.9", 1e3),
        ("p99.99", 1e4),
        ("p99.999", 1e5),
        ("p99.9999", 1e6),
    ];
    let reached = |(_, inverse): &(&str, f64)| *inverse <= approximate(n_most.max(100));
    all.into_iter().filter(reached).collect()
}

/// Returns the labels that do not touch the one before, each with its place.
fn labels_apart(marks: Vec<(&'static str, f64)>, x: &Scale) -> Vec<(&'static str, f64)> {
    /// The width of a character on a narrow page, where text is larger.
    const CHARACTER: f64 = 8.5;
    let half = |text: &str| float(text.len() + 1) * CHARACTER / 2.0;
    let mut end = f64::NEG_INFINITY;
    let mut labels = Vec::new();
    for (text, at) in marks.into_iter().map(|(text, inverse)| (text, x.at(inverse))) {
        if at - half(text) >= end {
            end = at + half(text);
            labels.push((text, at));
        }
    }
    labels
}

/// Formats a tick of a time axis in a suitable unit.
pub(super) fn time(ns: f64) -> String {
    let (size, unit) = magnitude(Unit::Nanos, ns);
    format!("{} {unit}", label(ns / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_ends_at_the_maximum_and_never_falls() {
        let mut histogram = Histogram::new();
        for value in 1..=1000 {
            histogram.record(value * 1000);
        }
        let points = curve(&histogram);
        assert_eq!(points.last(), Some(&(1000.0, 1_000_000.0)));
        assert!(points.windows(2).all(|pair| pair[0].1 <= pair[1].1));
        assert!(curve(&Histogram::new()).is_empty());
    }

    /// A distribution of a hundred values: the multiples of the first.
    fn of(first: u64) -> Histogram {
        let mut histogram = Histogram::new();
        (1..=100).for_each(|value| histogram.record(value * first));
        histogram
    }

    #[test]
    fn lines_on_each_other_are_one_with_both_names() {
        let all =
            BTreeMap::from([("first_byte_ns", of(10_000)), ("send_ns", of(500)), ("service_time_ns", of(10_100))]);
        let names: Vec<String> = distinct(&all).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["first byte, service time", "send"]);
    }

    #[test]
    fn the_axis_does_not_reach_down_to_what_took_no_time() {
        let mut short = of(1);
        short.record_n(0, 10_000);
        let all = BTreeMap::from([("download_time_ns", short), ("service_time_ns", of(10_000))]);
        assert!(
            lowest(&all).is_some_and(|ns| (400..600).contains(&ns)),
            "a thousandth of the median: {:?}",
            lowest(&all)
        );
    }

    #[test]
    fn percentiles_of_many_samples_do_not_run_together() {
        let labels = |n: u64| {
            let x = Scale::log((1.0, approximate(n)), (LEFT, WIDTH - RIGHT));
            labels_apart(marks(n), &x).into_iter().map(|(text, _)| text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(labels(20_000_000), "p50 p90 p99 p99.9 p99.99 p99.9999");
        assert_eq!(labels(20_000), "p50 p90 p99 p99.9 p99.99");
    }

    #[test]
    fn ticks_of_time_have_their_own_unit() {
        assert_eq!([time(500.0), time(20_000.0), time(2e9)], ["500 ns", "20 µs", "2 s"]);
    }
}

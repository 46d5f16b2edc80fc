//! What benchmarking methods found as lines of tables, the same in text and HTML: picked and put into words, not computed.

use fathom_model::{
    Benchmark, Run, TestRun, Unit,
    benchmark::{BenchmarkResult, LossPoint},
    units::percent,
};

use crate::view::{self, MISSING};

/// The titles above the cells.
pub(crate) const TITLES: [&str; 6] = ["frames", "value", "result", "bounds", "theoretical", "share"];

/// A value of the table.
#[derive(Debug)]
pub(crate) struct BenchmarkLine {
    /// The frame size, the value's name, the value, what encloses it, what is 100 %, and the share of that.
    pub(crate) cells: [String; 6],
    /// Whether it is no regular result.
    pub(crate) is_irregular: bool,
}

/// Tests with benchmarks, in their order.
pub(crate) fn tests(run: &Run) -> impl Iterator<Item = (&TestRun, &Benchmark)> {
    run.tests.iter().filter_map(|test| Some((test, test.benchmark.as_ref()?)))
}

/// The values of one frame size.
pub(crate) fn result_lines(benchmark: &Benchmark) -> Vec<BenchmarkLine> {
    let size = format!("{} B", benchmark.size_bytes);
    let line = |(nth, result): (usize, &BenchmarkResult)| BenchmarkLine {
        cells: [
            if nth == 0 { size.clone() } else { String::new() },
            result.metric.title.to_string(),
            result.value.map_or_else(|| MISSING.to_owned(), |value| view::show(&result.metric, value)),
            bounds(result),
            theoretical(benchmark, result).map(|rate| result.metric.show(rate)).unwrap_or_default(),
            share(benchmark, result),
        ],
        is_irregular: result.is_irregular,
    };
    benchmark.results.iter().enumerate().map(line).collect()
}

fn bounds(result: &BenchmarkResult) -> String {
    let show = |value: f64| view::show(&result.metric, value);
    match (result.low, result.high) {
        (None, None) => String::new(),
        (Some(low), None) => format!("≥ {}", show(low)),
        (None, Some(high)) => format!("< {}", show(high)),
        (Some(low), Some(high)) => format!("{} – {}", show(low), show(high)),
    }
}

/// What a rate could be at most.
fn theoretical(benchmark: &Benchmark, result: &BenchmarkResult) -> Option<f64> {
    (result.metric.unit == Unit::FramesPerSec).then_some(benchmark.line_rate.unwrap_or(benchmark.max_rate))
}

fn share(benchmark: &Benchmark, result: &BenchmarkResult) -> String {
    let whole = theoretical(benchmark, result);
    result.value.zip(whole).map(|(value, whole)| percent(value / whole)).unwrap_or_default()
}

/// What 100 % of a frame size are: `100 % are 252 kpps, fathom's own maximum`, and what is known of that maximum.
pub(crate) fn reference(benchmark: &Benchmark) -> String {
    let show = |rate: f64| Unit::FramesPerSec.show(rate);
    let Benchmark { size_bytes, max_rate, reference, .. } = benchmark;
    let whole = format!("{size_bytes} B: 100 % are {}, {}", show(*max_rate), reference.words());
    let line = benchmark.line_rate.map(|line| format!("; the link carries {}", show(line))).unwrap_or_default();
    let own = benchmark.own.map(|own| {
        format!(
            "; into a sink that loses nothing fathom sends {} on time (flat out {}), lost there {}, not sent {}",
            show(own.rate),
            show(own.flat_out),
            percent(own.loss_ratio),
            percent(own.unsent_ratio)
        )
    });
    whole + &line + &own.unwrap_or_default()
}

/// The loss curve, each rate with its share of the maximum and what is lost.
pub(crate) fn loss(benchmark: &Benchmark) -> Vec<[String; 4]> {
    let line = |point: &LossPoint| {
        [
            format!("{} B", benchmark.size_bytes),
            percent(point.rate / benchmark.max_rate),
            Unit::FramesPerSec.show(point.rate),
            percent(point.loss_ratio),
        ]
    };
    benchmark.loss.iter().map(line).collect()
}

/// What must be said below the tables, each sentence once.
pub(crate) fn remarks(run: &Run) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for (test, benchmark) in tests(run) {
        let notes = benchmark
            .results
            .iter()
            .filter_map(|result| Some(format!("{}, {}: {}", test.name, result.metric.title, result.note.as_ref()?)));
        let cut = benchmark.cut.iter().map(|cut| format!("{}: not finished: {cut}", test.name));
        for remark in cut.chain(notes).chain(benchmark.remarks.iter().cloned()) {
            if !all.contains(&remark) {
                all.push(remark);
            }
        }
    }
    all
}

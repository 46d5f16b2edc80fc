//! Results of benchmarking methods at all frame sizes: rates, losses, and the meaning of 100 %.

use fathom_model::{
    Benchmark, Run, TestRun, Unit,
    benchmark::{BenchmarkResult, LossPoint},
    units::percent,
};

use super::{
    block::{Block, Cell, Column, Figure, List, Medium, Row, Table, columns},
    notes::note,
};
use crate::{
    plot::benchmark::{loss_curve, rates},
    words::{self, MISSING, Mark, benchmarks},
};

/// Returns true if a run consists only of benchmarks and tests that run together with them.
pub(super) fn is_all(run: &Run) -> bool {
    let is_beside = |name: &str| run.plan.tests.iter().any(|test| test.name == name && test.paired_with.is_some());
    let is_one = |test: &TestRun| test.unavailable.is_none() && (test.benchmark.is_some() || is_beside(&test.name));
    !run.tests.is_empty() && run.tests.iter().all(is_one)
}

/// Returns a table with the values of all frame sizes, and the remarks.
pub(super) fn overview(run: &Run) -> Option<Block<'_>> {
    let n_sizes = benchmarks(run).count();
    // This column is next to the result, where a narrow screen does not cut it off.
    let titles = ["size", "value", "result", "", "bounds", "theoretical", "share"];
    let mut shown = columns(titles);
    shown.push(Column::text("definition").only(Medium::Page));
    let results = |(_, found): (_, &Benchmark)| -> Vec<Row> {
        found.results.iter().enumerate().map(|(nth, result)| result_row(found, nth, result)).collect()
    };
    let rows: Vec<Row> = benchmarks(run).flat_map(results).collect();
    let mut blocks = Vec::new();
    if rows.is_empty() {
        blocks.push(Block::marked("nothing was found", Mark::Open));
    }
    let figure = Figure {
        is_wide: true,
        ..Figure::new("rates by size", "result compared with the maximum possible", move || rates(run))
    };
    if n_sizes > 1 {
        blocks.push(Block::Figure(figure));
    }
    blocks.push(Block::Table(Table { columns: shown, rows, ..Table::default() }));
    blocks.push(Block::Table(losses(benchmarks(run).map(|(_, found)| found))).on_screen());
    blocks.extend(benchmarks(run).map(|(_, found)| Block::sentence(reference(found))));
    blocks.push(Block::List(List { items: remarks(run).into_iter().map(note).collect(), ..List::default() }));
    (n_sizes > 0).then(|| super::block::section("benchmarks", "All sizes", blocks))
}

/// Returns the loss at each load of one frame size.
pub(super) fn section(test: &TestRun) -> Option<Block<'_>> {
    let found = test.benchmark.as_ref()?;
    let about = "loss as a share of what was offered; the dotted line is 100 %";
    Some(Block::Figure(Figure {
        is_wide: true,
        table: Some(losses(std::iter::once(found))),
        ..Figure::new("loss", about, move || loss_curve(found))
    }))
}

fn result_row(found: &Benchmark, nth: usize, result: &BenchmarkResult) -> Row {
    let show = |value: f64| words::show(&result.metric, value);
    // The highest possible rate at this frame size. Only rates have one.
    let whole = (result.metric.unit == Unit::FramesPerSec).then_some(found.line_rate.unwrap_or(found.max_rate));
    let share = result.value.zip(whole).map(|(value, whole)| percent(value / whole));
    let bounds = match (result.low, result.high) {
        (None, None) => String::new(),
        (Some(low), None) => format!("≥ {}", show(low)),
        (None, Some(high)) => format!("< {}", show(high)),
        (Some(low), Some(high)) => format!("{} – {}", show(low), show(high)),
    };
    Row::new([
        Cell::from(if nth == 0 { format!("{} B", found.size_bytes) } else { String::new() }),
        result.metric.title.as_ref().into(),
        Cell::from(result.value.map_or_else(|| MISSING.to_owned(), show)).strong(),
        Cell::from(if result.is_irregular { "irregular" } else { "" }).marked(Mark::Open),
        bounds.into(),
        whole.map(|rate| result.metric.show(rate)).unwrap_or_default().into(),
        share.unwrap_or_default().into(),
        Cell::from(result.metric.source.as_ref()).faint(),
    ])
}

/// Describes what 100 % means for a frame size: `100 % are 252 kpps, fathom's own maximum`, and the facts about that maximum.
fn reference(benchmark: &Benchmark) -> String {
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

/// Returns a table of the loss curves: each rate with its share of the maximum and its loss.
fn losses<'a>(all: impl Iterator<Item = &'a Benchmark>) -> Table {
    let row = |found: &Benchmark, point: &LossPoint| {
        Row::new([
            format!("{} B", found.size_bytes),
            percent(point.rate / found.max_rate),
            Unit::FramesPerSec.show(point.rate),
            percent(point.loss_ratio),
        ])
    };
    let rows = all.flat_map(|found| found.loss.iter().map(move |point| row(found, point))).collect();
    Table { columns: columns(["size", "load", "offered", "lost"]), rows, ..Table::default() }
}

/// Returns the remarks below the tables, each sentence once.
fn remarks(run: &Run) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for (test, benchmark) in benchmarks(run) {
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

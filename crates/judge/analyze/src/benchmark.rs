//! The results of benchmarking methods, as values and as a sentence.

use fathom_model::{Benchmark, Metric, Summary, TestRun, Unit, benchmark::BenchmarkResult, units::percent};

/// Returns a benchmark result as a value of its test.
pub(crate) fn summary(test: &TestRun, metric: &Metric) -> Summary {
    let results = || test.benchmark.iter().flat_map(|benchmark| &benchmark.results);
    let found = results().find(|result| result.metric.name == metric.name);
    Summary {
        metric: metric.clone(),
        value: found.and_then(|result| result.value),
        // The bounds are not a confidence interval. They are in the table of the benchmark.
        confidence: None,
        trials: Vec::new(),
        n_above: None,
        n_samples: None,
        note: found.map_or_else(|| Some("it was not measured".to_owned()), |result| result.note.clone()),
    }
}

#[must_use]
pub fn headline(benchmark: &Benchmark) -> Option<&BenchmarkResult> {
    benchmark.results.iter().find(|result| result.metric.unit == Unit::FramesPerSec && result.value.is_some())
}

/// Returns the result as a sentence: `64 B frames: throughput 50.0 kpps (49.9 – 50.1), 24 % of fathom's own maximum`.
pub(crate) fn sentence(benchmark: &Benchmark) -> Option<String> {
    let found = headline(benchmark)?;
    let show = |value: f64| found.metric.show(value);
    let value = found.value?;
    let bounds = match (found.low, found.high) {
        (Some(low), Some(high)) if low < high => format!(" ({} – {})", show(low), show(high)),
        _ => String::new(),
    };
    let share = percent(value / benchmark.max_rate);
    let irregular = if found.is_irregular { ", an irregular result" } else { "" };
    let Benchmark { unit, size_bytes, reference, .. } = benchmark;
    Some(format!(
        "{size_bytes} B {}: {} {}{bounds}, {share} of {}{irregular}",
        unit.words(),
        found.metric.title,
        show(value),
        reference.words()
    ))
}

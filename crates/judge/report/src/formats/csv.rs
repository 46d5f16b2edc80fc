//! One row per test, step and metric, for spreadsheets and scripts.

use std::io;

use fathom_model::{
    ComparedArm, Comparison, Estimate, JudgedPromise, LimitKind, PairedValue, Run, Summary, TestRun, Unit,
    search::CurvePoint,
};
use serde::Serialize;

use crate::{Format, sanitize::one_line};

/// Writes the values of a run as comma-separated rows with a header. Missing values are empty.
#[derive(Debug, Clone, Copy)]
pub struct Csv;

/// A row. `value` and its interval are in the unit that ends the metric's name and is also in `unit`.
#[derive(Debug, Clone, Default, Serialize)]
struct CsvRow {
    run: String,
    started: String,
    test: String,
    layer: &'static str,
    kind: String,
    from: String,
    to: String,
    metric: String,
    unit: String,
    value: String,
    interval_low: String,
    interval_high: String,
    interval_level_ratio: String,
    n_trials: String,
    n_samples: String,
    n_above: String,
    limit_kind: String,
    limit_value: String,
    limit_used_ratio: String,
    note: String,
    offered: String,
    step: String,
    /// The value of a sweep at which paths are compared.
    at: String,
}

impl Format for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn write(&self, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
        let mut rows = csv::Writer::from_writer(out);
        for test in &run.tests {
            rows_of(run, test).iter().try_for_each(|row| rows.serialize(row)).map_err(io_error)?;
        }
        comparison_rows(run).iter().try_for_each(|row| rows.serialize(row)).map_err(io_error)?;
        if run.tests.is_empty() {
            rows.serialize(CsvRow { run: words(&run.id), started: words(&run.started), ..CsvRow::default() })
                .map_err(io_error)?;
        }
        rows.flush()
    }
}

/// Returns the system error, because a caller checks its kind.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

fn rows_of(run: &Run, test: &TestRun) -> Vec<CsvRow> {
    let of_test = CsvRow {
        run: words(&run.id),
        started: words(&run.started),
        test: words(&test.name),
        layer: test.layer.name(),
        kind: words(&test.kind),
        from: words(&test.from),
        to: test.answering().map(words).unwrap_or_default(),
        note: test.unavailable.as_deref().map(words).unwrap_or_default(),
        ..CsvRow::default()
    };
    let mut rows: Vec<CsvRow> = test.summaries.iter().map(|summary| value_row(&of_test, test, summary)).collect();
    rows.extend(curve_rows(&of_test, test));
    rows.extend(loss_rows(&of_test, test));
    rows.extend(step_rows(&of_test, test));
    if test.summaries.is_empty() {
        rows.push(of_test);
    }
    rows
}

fn value_row(of_test: &CsvRow, test: &TestRun, summary: &Summary) -> CsvRow {
    let interval = summary.confidence;
    let limit = crate::words::limit_of(test, summary);
    CsvRow {
        metric: words(&summary.metric.name),
        unit: serialised(&summary.metric.unit),
        value: number(summary.value),
        interval_low: number(interval.map(|interval| interval.low)),
        interval_high: number(interval.map(|interval| interval.high)),
        interval_level_ratio: number(interval.map(|interval| interval.level)),
        n_trials: number(interval.map(|interval| interval.n_trials)),
        n_samples: number(summary.n_samples),
        n_above: number(summary.n_above),
        limit_kind: limit.map(|limit| serialised(&limit.kind)).unwrap_or_default(),
        limit_value: number(limit.map(|limit| limit.value)),
        limit_used_ratio: number(limit.and_then(|limit| limit.used)),
        note: summary.note.as_deref().map_or_else(|| of_test.note.clone(), words),
        ..of_test.clone()
    }
}

/// Returns what paths cost: the ratio to the reference and the difference from it, for each compared value.
fn comparison_rows(run: &Run) -> Vec<CsvRow> {
    let of_comparison = |comparison: &Comparison| {
        let test_of = |arm: &ComparedArm| run.tests.iter().find(|test| test.name == arm.test);
        let of_arm = |arm: &ComparedArm| {
            let Some(test) = test_of(arm) else { return Vec::new() };
            let at = comparison.at.as_ref().map(|at| words(&at.value)).unwrap_or_default();
            let row = |value: &PairedValue, what: &str, unit: String, estimate: Estimate| CsvRow {
                run: words(&run.id),
                started: words(&run.started),
                test: words(&arm.test),
                layer: test.layer.name(),
                kind: words(&test.kind),
                from: words(&test.from),
                to: test.answering().map(words).unwrap_or_default(),
                metric: format!("{} {what}", words(&value.metric)),
                unit,
                value: estimate.value.to_string(),
                interval_low: number(estimate.confidence.map(|interval| interval.low)),
                interval_high: number(estimate.confidence.map(|interval| interval.high)),
                interval_level_ratio: number(estimate.confidence.map(|interval| interval.level)),
                n_trials: arm.n_pairs.to_string(),
                note: words(&value.text),
                at: at.clone(),
                ..CsvRow::default()
            };
            let unit_of = |value: &PairedValue| {
                let metric = test.summaries.iter().find(|summary| summary.metric.name == value.metric.as_str());
                metric.map(|summary| serialised(&summary.metric.unit)).unwrap_or_default()
            };
            let rows = |value: &PairedValue| {
                let ratio = value.ratio.map(|ratio| row(value, "ratio", serialised(&Unit::Ratio), ratio));
                let difference = value.difference.map(|of| row(value, "difference", unit_of(value), of));
                ratio.into_iter().chain(difference).collect::<Vec<_>>()
            };
            arm.values.iter().flat_map(rows).collect()
        };
        comparison.arms.iter().flat_map(of_arm).collect::<Vec<_>>()
    };
    run.comparisons.iter().flat_map(of_comparison).collect()
}

/// Returns the load curve of a search: for each offered rate, the achieved rate, the objective's value and the median latency.
fn curve_rows(of_test: &CsvRow, test: &TestRun) -> Vec<CsvRow> {
    let Some(curve) = &test.curve else { return Vec::new() };
    let unit = crate::words::objective_metric(test, curve).map(|metric| serialised(&metric.unit)).unwrap_or_default();
    let of_point = |point: &CurvePoint| {
        let values = [
            ("achieved".to_owned(), serialised(&curve.unit), point.achieved),
            (words(&curve.metric), unit.clone(), point.value),
            ("median_ns".to_owned(), serialised(&Unit::Nanos), point.median_ns),
        ];
        let cause = point.cause.map(|cause| format!(": {}", serialised(&cause))).unwrap_or_default();
        let of_point = CsvRow {
            n_trials: point.trials.len().to_string(),
            note: format!("{}{cause}", serialised(&point.decision)),
            offered: point.offered.to_string(),
            ..of_test.clone()
        };
        let row = |(metric, unit, value)| CsvRow { metric, unit, value: number(value), ..of_point.clone() };
        values.into_iter().filter(|(.., value): &(_, _, Option<f64>)| value.is_some()).map(row).collect::<Vec<_>>()
    };
    curve.points.iter().flat_map(of_point).collect()
}

/// Returns the loss curve of a benchmark: the loss at each offered rate.
fn loss_rows(of_test: &CsvRow, test: &TestRun) -> impl Iterator<Item = CsvRow> {
    test.benchmark.iter().flat_map(|benchmark| &benchmark.loss).map(|point| CsvRow {
        metric: "loss_ratio".to_owned(),
        unit: serialised(&Unit::Ratio),
        value: point.loss_ratio.to_string(),
        n_trials: point.n_trials.to_string(),
        offered: point.rate.to_string(),
        ..of_test.clone()
    })
}

/// Returns the values of the users: those of the script, then those of each step with the number of users who reached it.
fn step_rows(of_test: &CsvRow, test: &TestRun) -> Vec<CsvRow> {
    let Some(users) = &test.users else { return Vec::new() };
    let promised = |step: &str, promises: &[JudgedPromise], summary: &Summary| CsvRow {
        step: words(step),
        ..promised_row(value_row(of_test, test, summary), promises, summary)
    };
    // A value of the test can have the same name; it is about requests, not steps.
    let of_all = users.summaries.iter().map(|summary| promised("all steps", &users.promises, summary));
    let mut rows: Vec<CsvRow> = of_all.collect();
    for step in &users.steps {
        let counts = [
            ("reached", Unit::Count, step.n_reached.to_string()),
            ("passed", Unit::Count, step.n_passed.to_string()),
            ("reached_ratio", Unit::Ratio, number(step.reached_ratio)),
        ];
        rows.extend(counts.map(|(metric, unit, value)| CsvRow {
            metric: metric.to_owned(),
            unit: serialised(&unit),
            value,
            step: words(&step.name),
            ..of_test.clone()
        }));
        rows.extend(step.summaries.iter().map(|summary| promised(&step.name, &step.promises, summary)));
    }
    rows
}

/// Adds the promise about a value as its limit. If there are several, picks one that was not kept, or else the one with the
/// smallest margin.
fn promised_row(row: CsvRow, promises: &[JudgedPromise], summary: &Summary) -> CsvRow {
    let about = promises.iter().filter(|promise| promise.metric.as_deref() == Some(&*summary.metric.name));
    let room = |promise: &&JudgedPromise| promise.margin.unwrap_or(f64::NEG_INFINITY);
    let nearest = about.min_by(|a, b| room(a).total_cmp(&room(b)));
    let bound = nearest.and_then(|promise| promise.bound);
    let used = summary.value.zip(bound).filter(|(_, bound)| *bound > 0.0).map(|(value, bound)| value / bound);
    // A metric of the test can have the same name, but this limit does not belong to it.
    let limit_kind = nearest.map(|_| serialised(&LimitKind::Promise)).unwrap_or_default();
    CsvRow { limit_kind, limit_value: number(bound), limit_used_ratio: number(used), ..row }
}

fn number(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Returns the name of a variant as in JSON, so that all formats use the same names.
fn serialised(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Returns a text that no spreadsheet interprets as a formula.
fn words(text: &str) -> String {
    let text = one_line(text);
    if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_from_a_host_is_only_a_text() {
        assert_eq!(words("=HYPERLINK(\"x\")"), "'=HYPERLINK(\"x\")");
        assert_eq!(words("eth0\u{1b}"), "eth0");
    }
}

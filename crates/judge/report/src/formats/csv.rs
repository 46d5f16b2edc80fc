//! One row per test, step and metric, for spreadsheets and scripts.

use std::io;

use fathom_model::{JudgedPromise, Limit, LimitKind, Run, Summary, TestRun, Unit, search::CurvePoint};

use crate::{Format, sanitize::one_line};

/// Values of a run as comma-separated rows with a header; what is missing is empty.
#[derive(Debug, Clone, Copy)]
pub struct Csv;

/// The columns; `value` and its interval are in the unit that ends the metric's name and stands in `unit`.
const COLUMNS: [&str; 22] = [
    "run",
    "started",
    "test",
    "layer",
    "kind",
    "from",
    "to",
    "metric",
    "unit",
    "value",
    "interval_low",
    "interval_high",
    "interval_level_ratio",
    "n_trials",
    "n_samples",
    "n_above",
    "limit_kind",
    "limit_value",
    "limit_used_ratio",
    "note",
    "offered",
    "step",
];

impl Format for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn extension(&self) -> &'static str {
        "csv"
    }

    fn write(&self, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
        let mut rows = csv::Writer::from_writer(out);
        rows.write_record(COLUMNS)?;
        for test in &run.tests {
            for summary in &test.summaries {
                rows.write_record(row(run, test, Some(summary)))?;
            }
            let curves = curve_rows(run, test).into_iter().chain(loss_rows(run, test));
            for row in curves.chain(step_rows(run, test)) {
                rows.write_record(row)?;
            }
            if test.summaries.is_empty() {
                rows.write_record(row(run, test, None))?;
            }
        }
        rows.flush()
    }
}

fn row(run: &Run, test: &TestRun, summary: Option<&Summary>) -> Vec<String> {
    let interval = summary.and_then(|summary| summary.confidence);
    let limit = |summary: &Summary| test.limits.iter().find(|limit| limit.metric == summary.metric.name);
    let limit: Option<&Limit> = summary.and_then(limit);
    let note = summary.and_then(|summary| summary.note.as_deref()).or(test.unavailable.as_deref());
    vec![
        words(&run.id),
        words(&run.started),
        words(&test.name),
        test.layer.name().to_owned(),
        words(&test.kind),
        words(&test.from),
        test.to.as_deref().map(words).unwrap_or_default(),
        summary.map(|summary| words(&summary.metric.name)).unwrap_or_default(),
        summary.map(|summary| serialised(&summary.metric.unit)).unwrap_or_default(),
        number(summary.and_then(|summary| summary.value)),
        number(interval.map(|interval| interval.low)),
        number(interval.map(|interval| interval.high)),
        number(interval.map(|interval| interval.level)),
        number(interval.map(|interval| interval.n_trials)),
        number(summary.and_then(|summary| summary.n_samples)),
        number(summary.and_then(|summary| summary.n_above)),
        limit.map(|limit| serialised(&limit.kind)).unwrap_or_default(),
        number(limit.map(|limit| limit.value)),
        number(limit.and_then(|limit| limit.used)),
        note.map(words).unwrap_or_default(),
        String::new(),
        String::new(),
    ]
}

/// The load curve of a search: at each rate that was offered what was achieved, the objective's value and the median latency.
fn curve_rows(run: &Run, test: &TestRun) -> Vec<Vec<String>> {
    let Some(curve) = &test.curve else { return Vec::new() };
    let unit = crate::words::objective_metric(test, curve).map(|metric| serialised(&metric.unit)).unwrap_or_default();
    let of_point = |point: &CurvePoint| {
        let values = [
            ("achieved".to_owned(), serialised(&curve.unit), point.achieved),
            (words(&curve.metric), unit.clone(), point.value),
            ("median_ns".to_owned(), serialised(&Unit::Nanos), point.median_ns),
        ];
        let said = serialised(&point.decision);
        let cause = point.cause.map(|cause| format!(": {}", serialised(&cause))).unwrap_or_default();
        let offered = point.offered.to_string();
        let n_trials = point.trials.len().to_string();
        let row = move |(metric, unit, value): (String, String, Option<f64>)| {
            let mut row = row(run, test, None);
            (row[7], row[8], row[9], row[13]) = (metric, unit, number(value), n_trials.clone());
            (row[19], row[20]) = (format!("{said}{cause}"), offered.clone());
            row
        };
        values.into_iter().filter(|(.., value)| value.is_some()).map(row).collect::<Vec<_>>()
    };
    curve.points.iter().flat_map(of_point).collect()
}

/// The loss curve of a benchmark: what was lost at each rate that was offered.
fn loss_rows(run: &Run, test: &TestRun) -> Vec<Vec<String>> {
    let points = test.benchmark.iter().flat_map(|benchmark| &benchmark.loss);
    let of_point = |point: &fathom_model::benchmark::LossPoint| {
        let mut row = row(run, test, None);
        (row[7], row[8]) = ("loss_ratio".to_owned(), serialised(&Unit::Ratio));
        (row[9], row[13]) = (number(Some(point.loss_ratio)), point.n_trials.to_string());
        row[20] = point.rate.to_string();
        row
    };
    points.map(of_point).collect()
}

/// What stands in the column of the step for all of them together.
const ALL_STEPS: &str = "all steps";

/// What users did: the values of the script, then those of each step with how many reached it.
fn step_rows(run: &Run, test: &TestRun) -> Vec<Vec<String>> {
    let Some(users) = &test.users else { return Vec::new() };
    let mut rows: Vec<Vec<String>> = users.summaries.iter().map(|summary| row(run, test, Some(summary))).collect();
    for (row, summary) in rows.iter_mut().zip(&users.summaries) {
        promised(row, (&users.promises, summary));
        // A value of the test may have the same name: of requests, not of steps.
        ALL_STEPS.clone_into(&mut row[21]);
    }
    for step in &users.steps {
        let counted = |metric: &str, unit: Unit, value: Option<String>| {
            let mut row = row(run, test, None);
            (row[7], row[8], row[9]) = (metric.to_owned(), serialised(&unit), value.unwrap_or_default());
            row
        };
        let mut of_step = vec![
            counted("reached", Unit::Count, Some(step.n_reached.to_string())),
            counted("passed", Unit::Count, Some(step.n_passed.to_string())),
            counted("reached_ratio", Unit::Ratio, step.reached_ratio.map(|share| share.to_string())),
        ];
        for summary in &step.summaries {
            let mut row = row(run, test, Some(summary));
            promised(&mut row, (&step.promises, summary));
            of_step.push(row);
        }
        for row in &mut of_step {
            row[21] = words(&step.name);
        }
        rows.extend(of_step);
    }
    rows
}

/// The promise of a value as its limit; of several the one that is not kept, or that leaves least room.
fn promised(row: &mut [String], (promises, summary): (&[JudgedPromise], &Summary)) {
    let about = promises.iter().filter(|promise| promise.metric.as_deref() == Some(&*summary.metric.name));
    let room = |promise: &&JudgedPromise| promise.margin.unwrap_or(f64::NEG_INFINITY);
    let nearest = about.min_by(|a, b| room(a).total_cmp(&room(b)));
    // A metric of the test may have the same name, whose limit is not this one's.
    (row[16], row[17], row[18]) = (String::new(), String::new(), String::new());
    if let Some(promise) = nearest {
        row[16] = serialised(&LimitKind::Promise);
        row[17] = number(promise.bound);
        row[18] =
            number(summary.value.zip(promise.bound).filter(|(_, bound)| *bound > 0.0).map(|(v, bound)| v / bound));
    }
}

fn number(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// The word that stands for a variant in JSON, so that all formats use the same.
fn serialised(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A text that no spreadsheet takes for a formula.
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

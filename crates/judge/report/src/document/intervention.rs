//! What changing one option of a test did, for each change that was tried.

use fathom_model::{Effect, Intervention, TestRun};

use super::block::{Block, Cell, Column, Row, Table};
use crate::words::{self, MISSING, Mark};

/// Returns a table with a row per change, or nothing if none was tried.
pub(super) fn blocks(test: &TestRun) -> Vec<Block<'_>> {
    if test.interventions.is_empty() {
        return Vec::new();
    }
    let titles = ["changed option", "shown by", "without", "with"].map(Column::text);
    let columns = titles.into_iter().chain([Column::number("trials"), Column::text("outcome")]).collect();
    let rows = test.interventions.iter().map(|tried| row(test, tried)).collect();
    vec![
        Block::Heading("with one option changed".to_owned()),
        Block::Table(Table { columns, rows, ..Table::default() }),
    ]
}

/// Returns the sentence about the change that was tried because no cause was found.
pub(super) fn without_cause(test: &TestRun) -> Option<String> {
    let tried = test.interventions.iter().find(|tried| tried.cause.is_none())?;
    tried.effect.as_ref().map(|effect| effect.text.clone())
}

/// Returns a note for each change that was not tried to its end.
pub(super) fn cut_short(test: &TestRun) -> impl Iterator<Item = String> {
    test.interventions
        .iter()
        .filter_map(|tried| Some(format!("{} was not tried to the end: {}", tried.change(), tried.cut.as_ref()?)))
}

fn row(test: &TestRun, tried: &Intervention) -> Row {
    let metric =
        test.summaries.iter().map(|summary| &summary.metric).find(|metric| metric.name == tried.metric.as_str());
    let change = match &tried.from {
        Some(from) => format!("--{} {from} → {}", tried.option, tried.to),
        None => tried.change(),
    };
    let [without, with] = match &tried.effect {
        Some(Effect { unchanged, changed, .. }) => [unchanged, changed].map(value),
        None => [MISSING; 2].map(Cell::from),
    };
    let (word, mark) = match tried.effect.as_ref().map(|effect| effect.outcome) {
        Some(outcome) => words::proof(outcome),
        None => ("not known", Mark::Open),
    };
    Row::new([
        Cell::from(change),
        Cell::from(metric.map_or(tried.metric.as_str(), |metric| &metric.title)),
        without,
        with,
        Cell::from((tried.unchanged.len() + tried.changed.len()).to_string()),
        Cell::from(word).marked(mark),
    ])
}

/// Returns a value with its interval, and the value of each trial for a page.
fn value(summary: &fathom_model::Summary) -> Cell {
    let shown = summary.value.map_or_else(|| MISSING.to_owned(), |value| words::show(&summary.metric, value));
    let trials: Vec<String> = summary.trials.iter().map(|value| words::show(&summary.metric, *value)).collect();
    let interval = words::interval(summary);
    let interval = if interval.is_empty() { interval } else { format!(" ({interval})") };
    Cell { hint: trials.join(", "), ..Cell::from(format!("{shown}{interval}")).strong() }
}

//! The users, step by step: how far they got, the times of the steps, the promises, and the failures.

use fathom_model::{
    JudgedPromise, Run, StepKind, StepSummary, Summary, TestRun, UsersSummary,
    finding::PromiseOutcome,
    units::{counted, grouped, percent, significant},
};

use super::block::{Block, Cell, Column, Failure, Figure, Medium, Row, Table};
use crate::{
    plot::funnel::{STEPS_MAX, funnel, step_times},
    words::{self, MISSING, Mark, NOT_KNOWN, TIMES, step_name},
};

/// The maximum number of rows on a terminal.
const SCREEN_MAX: usize = 40;
/// The order in which quantiles are removed on a narrow terminal, in the order of [`TIMES`]. The 99th percentile stays.
const GIVES_WAY: [u8; TIMES.len()] = [2, 3, 0, 5, 4];
/// After them the share is removed, because it follows from the number before it.
const SHARE_GIVES_WAY: u8 = 1;

/// Returns the blocks about the users of a test.
pub(super) fn blocks<'a>(run: &'a Run, test: &'a TestRun) -> Vec<Block<'a>> {
    let Some(users) = &test.users else { return Vec::new() };
    let lines = lines(run, test, users);
    let mut blocks = vec![
        Block::Heading("Users, step by step".to_owned()).on_page(),
        Block::labelled("users", users_sentence(users)),
    ];
    if lines.is_empty() {
        return blocks;
    }
    blocks.push(Block::Columns(figures(run, test, users).map(|figure| vec![Block::Figure(figure)]).into()).on_page());
    blocks.push(Block::Table(table(&lines)));
    blocks.push(Block::aside("Below each value its 95 % interval over the rounds.").on_page());
    if users.steps.iter().any(|step| step.kind == StepKind::Transaction) {
        blocks.push(Block::aside("Σ  a transaction: all its steps, without the think times between them"));
    }
    let n_hidden = lines.len().saturating_sub(SCREEN_MAX);
    if n_hidden > 1 {
        blocks.push(Block::aside(format!("… and {n_hidden} more steps in the HTML report")).on_screen());
    }
    if lines.iter().any(has_too_few) {
        blocks.push(Block::aside("( )  from too few samples"));
    }
    blocks.extend(promises_table(&lines).map(Block::on_page));
    blocks.push(Block::Failures(failures(users)));
    blocks
}

fn figures<'a>(run: &'a Run, test: &'a TestRun, users: &'a UsersSummary) -> [Figure<'a>; 2] {
    let beyond = users.steps.len().saturating_sub(STEPS_MAX);
    let more = if beyond > 0 { format!("; the first {STEPS_MAX} steps, {beyond} more below") } else { String::new() };
    [
        Figure::new("Steps reached", format!("of the visits that began{more}"), move || funnel(users)),
        Figure::new("How long the steps took", "successful steps, all rounds", move || {
            step_times(users, |outcome| words::trusted(run, test, outcome))
        }),
    ]
}

/// A step, or all steps together.
struct Line<'a> {
    name: String,
    /// The kind of the step. `None` for all steps together.
    kind: Option<StepKind>,
    n_reached: u64,
    /// The share of the visits that began.
    share: String,
    summaries: &'a [Summary],
    promises: Vec<PromiseCell<'a>>,
}

/// Returns a line per step in the order of the script, and one for all steps together.
fn lines<'a>(run: &Run, test: &'a TestRun, users: &'a UsersSummary) -> Vec<Line<'a>> {
    let of_step = |step: &'a StepSummary| Line {
        name: step_name(step),
        kind: Some(step.kind),
        n_reached: step.n_reached,
        share: step.reached_ratio.map_or(MISSING.to_owned(), percent),
        summaries: &step.summaries,
        promises: step_promises(run, test, step),
    };
    let mut lines: Vec<Line<'_>> = users.steps.iter().map(of_step).collect();
    if users.steps.len() > 1 || !users.promises.is_empty() {
        let single = users.steps.iter().filter(|step| step.kind == StepKind::Step);
        lines.push(Line {
            name: "all steps".to_owned(),
            kind: None,
            n_reached: single.map(|step| step.n_reached).sum(),
            // The number of visits at all steps together is not a part of a whole.
            share: String::new(),
            summaries: &users.summaries,
            promises: script_promises(run, test, users),
        });
    }
    lines
}

fn summary_of<'a>(summaries: &'a [Summary], name: &str) -> Option<&'a Summary> {
    summaries.iter().find(|summary| summary.metric.name == name)
}

/// Returns a cell with a value and its interval below. A value from too few samples is in parentheses.
fn value(summaries: &[Summary], name: &str) -> Cell {
    let Some((summary, value)) = summary_of(summaries, name).and_then(|summary| Some((summary, summary.value?))) else {
        return Cell::from(MISSING);
    };
    let text = summary.metric.show(value);
    // The number of rounds is above the table. Here it would only make every column wider.
    let below = if summary.is_vague() { NOT_KNOWN.to_owned() } else { words::interval(summary) };
    let cell = if words::is_too_few(summary) { Cell::from(format!("({text})")).faint() } else { text.into() };
    Cell { below, ..cell }
}

/// Returns true if a quantile of a line comes from too few samples.
fn has_too_few(line: &Line<'_>) -> bool {
    TIMES.iter().any(|(_, name)| summary_of(line.summaries, name).is_some_and(words::is_too_few))
}

/// Returns a row per step. On a terminal, which has no table of promises, a step has one row per promise.
fn table(lines: &[Line<'_>]) -> Table {
    let mut columns = vec![Column::text("step")];
    let share = Column { gives_way: SHARE_GIVES_WAY, ..Column::number("share") };
    columns.extend([Column::number("reached"), share, Column::number("errors")]);
    let quantile = |((title, _), gives_way)| Column { gives_way, ..Column::number(title) };
    columns.extend(TIMES.into_iter().zip(GIVES_WAY).map(quantile));
    columns.extend(["promised", "", "margin"].map(|title| Column::text(title).only(Medium::Screen)));
    let mut rows = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let is_hidden = lines.len() > SCREEN_MAX + 1 && (SCREEN_MAX - 1..lines.len() - 1).contains(&index);
        let mut cells = vec![
            Cell::from(line.name.as_str()).strong(),
            grouped(line.n_reached).into(),
            line.share.as_str().into(),
            value(line.summaries, "errors_ratio"),
        ];
        cells.extend(TIMES.iter().map(|(_, name)| value(line.summaries, name)));
        let of_promise = |promise: &PromiseCell<'_>| {
            let text = Cell::from(promise.text);
            [text, promise.word.into(), promise.margin.as_str().into()].map(|cell| cell.marked(promise.mark))
        };
        let further = line.promises.iter().skip(1).map(|promise| {
            let cells = vec![Cell::default(); cells.len()].into_iter().chain(of_promise(promise));
            Row { only: Some(Medium::Screen), ..Row::new(cells) }
        });
        let further: Vec<Row> = if is_hidden { Vec::new() } else { further.collect() };
        cells.extend(line.promises.first().map(of_promise).unwrap_or_default());
        let class = match line.kind {
            Some(StepKind::Step) => "",
            Some(StepKind::Transaction) => "transaction",
            None => "all",
        };
        rows.push(Row { class, only: is_hidden.then_some(Medium::Page), cells });
        rows.extend(further);
    }
    Table { class: "steps", columns, rows, flows: false }
}

fn promises_table<'a>(lines: &[Line<'_>]) -> Option<Block<'a>> {
    let row = |name: &str, promise: &PromiseCell<'_>| {
        let margin = if promise.margin.is_empty() { MISSING } else { &promise.margin };
        Row::new([
            Cell::from(name).strong(),
            promise.text.into(),
            Cell::from(promise.value()).strong(),
            promise.summary.map(words::interval).unwrap_or_default().into(),
            Cell::from(promise.word).marked(promise.mark),
            margin.into(),
            promise.short_reason().into(),
        ])
    };
    let row = &row;
    let rows: Vec<Row> =
        lines.iter().flat_map(|line| line.promises.iter().map(move |promise| row(&line.name, promise))).collect();
    let mut columns = ["step", "promise"].map(Column::text).to_vec();
    columns.extend(["result", "95 % interval", "kept", "margin"].map(Column::number));
    columns.push(Column::text(""));
    (!rows.is_empty()).then(|| Block::Table(Table { class: "promises", columns, rows, flows: false }))
}

/// A promise in a table.
#[derive(Debug, Clone)]
pub(super) struct PromiseCell<'a> {
    /// The promise as written.
    pub(super) text: &'a str,
    /// The value that the promise refers to.
    pub(super) summary: Option<&'a Summary>,
    /// The outcome: `ok`, `✗`, `unclear`.
    pub(super) word: &'static str,
    /// The distance to the bound: `20 %`, `−50 %`. A value that is many times the bound reads `63 ×`.
    pub(super) margin: String,
    /// The distance as a number.
    pub(super) margin_ratio: Option<f64>,
    pub(super) mark: Mark,
    /// The reason why the promise was not kept.
    pub(super) reason: Option<&'a str>,
}

impl PromiseCell<'_> {
    /// Returns the formatted value that the promise refers to.
    pub(super) fn value(&self) -> String {
        let value = self.summary.and_then(|summary| Some(words::show(&summary.metric, summary.value?)));
        value.unwrap_or_else(|| MISSING.to_owned())
    }

    /// Returns why the promise could not be judged, without its text. For a broken promise, the numbers are enough.
    fn short_reason(&self) -> &str {
        let reason = self.reason.filter(|_| self.mark == Mark::Open).unwrap_or_default();
        reason.split_once(&format!("{}: ", self.text)).map_or(reason, |(_, why)| why)
    }
}

/// Formats a judged promise by its outcome, with the value that it refers to from `among`.
fn promised<'a>(
    promise: &'a JudgedPromise,
    outcome: PromiseOutcome,
    mut among: impl Iterator<Item = &'a Summary>,
) -> PromiseCell<'a> {
    let (word, mark) = words::promise(outcome);
    let margin = |margin: f64| match margin {
        // Far from the bound, a multiple is easier to understand than a percentage.
        beyond if beyond < -1.0 => format!("{} ×", significant(1.0 - beyond)),
        beyond if beyond < 0.0 => format!("−{}", percent(-beyond)),
        much if much > 1.0 => format!("{} ×", significant(1.0 + much)),
        room => percent(room),
    };
    PromiseCell {
        text: &promise.text,
        summary: among.find(|summary| promise.metric.as_deref() == Some(&*summary.metric.name)),
        word,
        margin: promise.margin.map(margin).unwrap_or_default(),
        margin_ratio: promise.margin,
        mark,
        reason: promise.reason.as_deref(),
    }
}

/// Returns the promises about all steps together. They can also refer to other values of the test.
fn script_promises<'a>(run: &Run, test: &'a TestRun, users: &'a UsersSummary) -> Vec<PromiseCell<'a>> {
    let among = users.summaries.iter().chain(&test.summaries);
    let of = |promise: &'a JudgedPromise| promised(promise, words::trusted(run, test, promise.outcome), among.clone());
    users.promises.iter().map(of).collect()
}

fn step_promises<'a>(run: &Run, test: &TestRun, step: &'a StepSummary) -> Vec<PromiseCell<'a>> {
    let of = |promise: &'a JudgedPromise| {
        promised(promise, words::trusted(run, test, promise.outcome), step.summaries.iter())
    };
    step.promises.iter().map(of).collect()
}

/// Returns every promise of a script with its step. Promises about all steps together come first.
pub(super) fn promises<'a>(run: &Run, test: &'a TestRun) -> Vec<(Option<&'a StepSummary>, PromiseCell<'a>)> {
    let Some(users) = &test.users else { return Vec::new() };
    let of_all = script_promises(run, test, users).into_iter().map(|promise| (None, promise));
    let of_step = |step| step_promises(run, test, step).into_iter().map(move |promise| (Some(step), promise));
    of_all.chain(users.steps.iter().flat_map(of_step)).collect()
}

/// Returns the causes of failed steps, the most frequent first. Transactions are skipped, because their steps have the causes.
fn failures(users: &UsersSummary) -> Vec<Failure<'_>> {
    let of_step = |step: &StepSummary| step.kind == StepKind::Step;
    let mut all: Vec<Failure<'_>> = Vec::new();
    for step in users.steps.iter().filter(|step| of_step(step)) {
        for (cause, n) in &step.errors {
            let example = step.examples.iter().find(|example| example.cause == *cause);
            all.push(Failure { step: &step.name, cause, n: *n, example });
        }
    }
    all.sort_by_key(|failure| std::cmp::Reverse(failure.n));
    all
}

/// Describes the users: `24 users came, at most 8 at once; 2,178 visits to the end (740 /s), 12 given up (0.55 %)`.
fn users_sentence(users: &UsersSummary) -> String {
    let value = |name: &str| summary_of(&users.summaries, name).and_then(|s| Some(s.metric.show(s.value?)));
    let aside = |name: &str| value(name).map(|value| format!(" ({value})")).unwrap_or_default();
    format!(
        "{} came, at most {} at once; {} to the end{}, {} given up{}",
        counted(users.n_started, "user"),
        grouped(users.n_most),
        counted(users.n_finished, "visit"),
        aside("finished_per_sec"),
        grouped(users.n_gave_up),
        if users.n_gave_up > 0 { aside("gave_up_ratio") } else { String::new() },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_has_its_sign_and_a_bound_of_nothing_has_none() {
        let promise = |margin| JudgedPromise {
            text: "p99 < 300ms".to_owned(),
            metric: None,
            bound: None,
            margin,
            outcome: PromiseOutcome::Broken,
            reason: None,
        };
        let margin = |of| promised(&promise(of), PromiseOutcome::Broken, [].iter()).margin;
        assert_eq!(margin(Some(-0.5)), "−50 %");
        assert_eq!(margin(Some(0.2)), "20 %");
        assert_eq!(margin(Some(-62.7)), "63.7 ×");
        assert_eq!(margin(Some(741.0)), "742 ×");
        assert_eq!(margin(None), "");
    }
}

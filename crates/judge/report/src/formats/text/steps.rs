//! What users did, step by step, on a screen.

use fathom_model::{StepKind, TestRun, UsersSummary, units::grouped};

use super::{
    detail::grid,
    screen::{
        TextScreen,
        Tone::{self, Bad, Faint, Plain, Strong, Warn},
        fitted, wrap,
    },
};
use crate::{
    sanitize::one_line,
    steps::{self, PromiseCell, StepLine, TIMES},
    view::RowMark,
};

/// The causes of errors that fit below the table; all are in the HTML report.
const FAILURES_MAX: usize = 8;
/// The lines of the table that are still read on a screen.
const STEPS_MAX: usize = 40;
/// The columns before the quantiles and behind them.
const COLUMNS_BEFORE: [&str; 4] = ["step", "reached", "share", "errors"];
const COLUMNS_AFTER: [&str; 3] = ["promised", "", "margin"];
/// The quantiles on a wide screen and on narrower ones, by their places in [`TIMES`].
const SHOWN: [&[usize]; 3] = [&[0, 1, 2], &[0, 2], &[2]];
/// What a name keeps of its letters before a quantile gives way.
const NAME_MIN: usize = 14;

/// The letters of a step's name before its errors.
const FAILED_MAX: usize = 24;

type Rows = Vec<(Vec<String>, Tone)>;

pub(super) fn write(screen: &mut TextScreen, test: &TestRun, users: &UsersSummary) {
    let mut lines = steps::step_lines(test, users);
    let beyond = lines.len().saturating_sub(STEPS_MAX);
    if beyond > 1 {
        // The last line is that of all steps.
        lines.drain(STEPS_MAX - 1..lines.len() - 1);
    }
    screen.blank_line();
    screen.wrapped((Faint, "  users  "), (Plain, &steps::users_sentence(users)));
    if lines.is_empty() {
        return;
    }
    screen.blank_line();
    let of_width = |shown: &&[usize]| width(&rows(&lines, shown)) <= screen.width();
    let shown = SHOWN.into_iter().find(of_width).unwrap_or(SHOWN[SHOWN.len() - 1]);
    let titles = shown.iter().map(|column| TIMES[*column].0);
    let header: Vec<&str> = COLUMNS_BEFORE.into_iter().chain(titles).chain(COLUMNS_AFTER).collect();
    grid(screen, &header, &rows(&lines, shown));
    if lines.iter().any(|line| line.kind == Some(StepKind::Transaction)) {
        screen.line(&[(Faint, "  "), (Faint, steps::TRANSACTION_WORDS)]);
    }
    if beyond > 1 {
        screen.line(&[(Faint, &format!("  … and {beyond} more steps in the HTML report"))]);
    }
    if let Some(few) = steps::too_few_sentence(&lines, shown) {
        screen.wrapped((Faint, "  note  "), (Plain, &few));
    }
    failures(screen, users);
}

/// The columns that rows take on the screen, their first one cut as far as may be.
fn width(rows: &Rows) -> usize {
    let n = |column: usize| rows.iter().map(|(cells, _)| cells[column].chars().count()).max().unwrap_or(0);
    let columns = rows.first().map_or(0, |(cells, _)| cells.len());
    // A title of a column is no wider than its values, but for `reached` and `margin` of small counts.
    let others = (1..columns).map(|column| n(column).max(7) + 2).sum::<usize>();
    n(0).min(NAME_MIN) + others + 4
}

/// A row per step; a step that promises much has a row for each further promise.
fn rows(lines: &[StepLine<'_>], shown: &[usize]) -> Rows {
    let mut rows = Rows::new();
    for line in lines {
        let quantile = |column: &usize| {
            let cell = &line.times[*column];
            if cell.few { format!("({})", cell.text) } else { cell.text.clone() }
        };
        let of_step = [&line.name, &line.reached, &line.share, &line.errors.text].map(|text| one_line(text));
        let cells = of_step.into_iter().chain(shown.iter().map(quantile)).collect();
        promised(&mut rows, cells, &line.promises);
    }
    rows
}

/// A row with its first promise, and one for each further one.
fn promised(rows: &mut Rows, cells: Vec<String>, promises: &[PromiseCell<'_>]) {
    let n = cells.len();
    let mut first = Some(cells);
    if promises.is_empty() {
        let none = [String::new(), String::new(), String::new()];
        rows.push((first.take().into_iter().flatten().chain(none).collect(), Plain));
    }
    for promise in promises {
        let mut cells = first.take().unwrap_or_else(|| vec![String::new(); n]);
        cells.extend([one_line(promise.text), promise.word.to_owned(), promise.margin.clone()]);
        let tone = match promise.mark {
            RowMark::Broken => Bad,
            RowMark::Open => Warn,
            _ => Plain,
        };
        rows.push((cells, tone));
    }
}

fn failures(screen: &mut TextScreen, users: &UsersSummary) {
    let failures = steps::failures(users);
    if failures.is_empty() {
        return;
    }
    screen.blank_line();
    let widest =
        failures.iter().map(|failure| one_line(failure.step).chars().count()).max().unwrap_or(0).min(FAILED_MAX);
    for failure in failures.iter().take(FAILURES_MAX) {
        let label = format!("  failed  {:>8}  {}  ", grouped(failure.n), fitted(&one_line(failure.step), widest));
        screen.wrapped((Bad, &label), (Strong, failure.cause));
        if let Some(example) = failure.example {
            let indent = " ".repeat(label.chars().count());
            let room = screen.width().saturating_sub(indent.len());
            // One line is enough to find it in a log; the whole stands in the other formats.
            let short = wrap(&fitted(&one_line(&steps::shortened(example)), room), room).join(" ");
            screen.line(&[(Plain, &indent), (Faint, &fitted(&short, room))]);
        }
    }
    if failures.len() > FAILURES_MAX {
        screen.line(&[(Faint, &format!("  … and {} more causes in the HTML report", failures.len() - FAILURES_MAX))]);
    }
}

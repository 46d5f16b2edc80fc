//! One test in detail: every value with its rounds, percentiles, connections, errors and notes.

use fathom_model::{
    Run, Summary, TestRun,
    units::{Nanos, approximate, grouped},
};

use super::{
    drop_balance, probe,
    screen::{
        TextScreen,
        Tone::{self, Bad, Faint, Good, Plain, Strong, Warn},
        fitted,
    },
    steps,
};
use crate::{
    flow,
    plot::percentiles::{display_name, merged},
    view::{self, MISSING, RowMark},
};

/// The rounds whose values fit on a line; of more, the table has no columns.
const ROUNDS_MAX: usize = 7;

/// What the first column keeps when the screen is narrow.
const FIRST_MIN: usize = 10;

pub(super) fn write(screen: &mut TextScreen, run: &Run, test: &TestRun) {
    if let Some(reason) = &test.unavailable {
        screen.line(&[(Plain, "  "), (Warn, MISSING), (Plain, "  "), (Warn, reason)]);
        return;
    }
    screen.line(&[(Strong, &format!("  {}", test.named()))]);
    screen.blank_line();
    values(screen, run, test);
    curve(screen, test);
    if let Some(users) = &test.users {
        steps::write(screen, test, users);
    }
    probe::write(screen, test);
    percentiles(screen, test);
    if let Some(conservation) = &test.conservation {
        screen.blank_line();
        drop_balance(screen, conservation);
    }
    flows(screen, test);
    let errors = view::errors(test);
    if !errors.is_empty() {
        screen.blank_line();
        for (cause, n) in errors {
            screen.wrapped((Bad, &format!("  error  {:>9}  ", grouped(n))), (Plain, &cause));
        }
    }
    screen.blank_line();
    for (note, n) in view::notes(run, test, |_| true) {
        let often = if n > 1 { format!("{note} ({n} times)") } else { note };
        screen.wrapped((Faint, "  note  "), (Plain, &often));
    }
    for loss in view::unavailable(run) {
        screen.wrapped((Faint, "  note  "), (Plain, &loss));
    }
}

/// Columns aligned to what is in them: the first to the left, numbers to the right.
///
/// A column in which nothing stands takes no room.
pub(super) fn grid(screen: &mut TextScreen, header: &[&str], lines: &[(Vec<String>, Tone)]) {
    let stands = |column: &usize| *column == 0 || lines.iter().any(|(cells, _)| !cells[*column].is_empty());
    let kept: Vec<usize> = (0..header.len()).filter(stands).collect();
    let header: Vec<&str> = kept.iter().map(|column| header[*column]).collect();
    let of_kept = |cells: &Vec<String>| kept.iter().map(|column| cells[*column].clone()).collect();
    let lines: Vec<(Vec<String>, Tone)> = lines.iter().map(|(cells, tone)| (of_kept(cells), *tone)).collect();
    let n = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = header.iter().map(|title| n(title)).collect();
    for (width, column) in widths.iter_mut().zip(0..) {
        *width =
            lines.iter().filter_map(|(cells, _)| cells.get::<usize>(column)).map(|c| n(c)).fold(*width, usize::max);
    }
    // When the whole does not fit, names in the first column give way, then columns at the right.
    let others = |shown: usize| -> usize { widths[1..shown].iter().map(|width| width + 2).sum() };
    let are_names = !lines.iter().any(|(cells, _)| cells[0].starts_with(|c: char| c.is_ascii_digit()));
    let least = if are_names { widths[0].min(FIRST_MIN) } else { widths[0] };
    let beside = |shown: usize| if shown < widths.len() { 4 } else { 2 };
    let fits = |shown: &usize| others(*shown) + least + beside(*shown) <= screen.width();
    let shown = (2..=widths.len()).rev().find(fits).unwrap_or(2.min(widths.len()));
    widths[0] = widths[0].min(screen.width().saturating_sub(others(shown) + beside(shown)).max(least));
    let join = |cells: &mut dyn Iterator<Item = &str>| {
        let aligned = |(column, cell): (usize, &str)| match column {
            0 => fitted(cell, widths[0]),
            _ => format!("{cell:>0$}", widths[column]),
        };
        format!("  {}", cells.take(shown).enumerate().map(aligned).collect::<Vec<_>>().join("  "))
    };
    let more = if shown < widths.len() { " …" } else { "" };
    screen.line(&[(Faint, &join(&mut header.iter().copied())), (Faint, more)]);
    for (cells, tone) in &lines {
        screen.line(&[(*tone, &join(&mut cells.iter().map(String::as_str)))]);
    }
}

fn values(screen: &mut TextScreen, run: &Run, test: &TestRun) {
    let applying = test.summaries.iter().filter(|summary| summary.applies());
    let lines: Vec<(Vec<String>, Tone)> = applying.map(|summary| value(test, summary)).collect();
    if lines.is_empty() {
        screen.line(&[(Warn, &format!("  {MISSING}  no round was completed"))]);
        return;
    }
    // The rounds of a search are its trials at the limit.
    let title = if test.curve.is_some() { "at the limit" } else { "value" };
    grid(screen, &[title, "result", "95 % interval", "limit", "used"], &lines);
    if let Some(missing) = view::rounds_missing(run, test) {
        screen.line(&[(Warn, &format!("  {missing}"))]);
    }
    let of_rounds: Vec<&Summary> = test.summaries.iter().filter(|summary| summary.trials.len() > 1).collect();
    let n = of_rounds.iter().map(|summary| summary.trials.len()).max().unwrap_or(0);
    if n == 0 || n > ROUNDS_MAX {
        return;
    }
    screen.blank_line();
    let titles: Vec<String> = (1..=n).map(|round| format!("round {round}")).collect();
    let header: Vec<&str> = std::iter::once("by round").chain(titles.iter().map(String::as_str)).collect();
    let round_values = |summary: &&Summary| {
        let values = summary.trials.iter().map(|value| view::show(&summary.metric, *value));
        (std::iter::once(summary.metric.title.to_string()).chain(values).collect(), Plain)
    };
    grid(screen, &header, &of_rounds.iter().map(round_values).collect::<Vec<_>>());
}

fn value(test: &TestRun, summary: &Summary) -> (Vec<String>, Tone) {
    let row = view::value_row(test, summary, summary.metric.title.to_string());
    let tone = match row.mark {
        RowMark::Plain => Plain,
        RowMark::Kept => Good,
        RowMark::Broken => Bad,
        RowMark::Open | RowMark::Missing => Warn,
    };
    // Why there is no value stands among the notes, where there is room for it.
    let result = if summary.value.is_some() { row.result } else { MISSING.to_owned() };
    (vec![row.label, result, row.interval, row.limit, row.used], tone)
}

/// The rates of a search with what became of them.
fn curve(screen: &mut TextScreen, test: &TestRun) {
    let Some(curve) = &test.curve else { return };
    screen.blank_line();
    let mut header: Vec<String> = crate::curve::titles(test, curve).to_vec();
    header.extend(["trials", "", ""].map(str::to_owned));
    header[5] = crate::curve::objective(test, curve);
    let lines: Vec<(Vec<String>, Tone)> = crate::curve::curve_lines(test, curve)
        .into_iter()
        .map(|line| {
            let is = if line.marker.is_empty() { String::new() } else { format!("◂ {}", line.marker) };
            let cells = line.values.into_iter().chain([line.trials, line.assessment, is]).collect();
            (cells, if line.mark == RowMark::Kept { Plain } else { Warn })
        })
        .collect();
    grid(screen, &header.iter().map(String::as_str).collect::<Vec<_>>(), &lines);
    if let Some(remark) = crate::curve::remark(curve) {
        screen.line(&[(Warn, &format!("  {remark}"))]);
    }
}

fn percentiles(screen: &mut TextScreen, test: &TestRun) {
    let all = merged(test);
    if all.is_empty() {
        return;
    }
    screen.blank_line();
    let quantiles = [0.5, 0.9, 0.99, 0.999, 0.9999];
    let lines: Vec<(Vec<String>, Tone)> = all
        .iter()
        .map(|(name, histogram)| {
            // A quantile with no sample above it is the maximum under another name.
            let told = |q: f64| q >= 1.0 || approximate(histogram.count()) * (1.0 - q) >= 1.0;
            let quantile = |q: f64| histogram.quantile(q).filter(|_| told(q));
            let known = |q: f64| quantile(q).map_or(MISSING.to_owned(), |ns| Nanos(ns).to_string());
            let all = quantiles.into_iter().chain([1.0]).map(known);
            (std::iter::once(display_name(name)).chain(all).chain([grouped(histogram.count())]).collect(), Plain)
        })
        .collect();
    grid(screen, &["latency", "p50", "p90", "p99", "p99.9", "p99.99", "max", "samples"], &lines);
}

fn flows(screen: &mut TextScreen, test: &TestRun) {
    let Some((round, lines, beyond)) = flow::last_round(test) else { return };
    screen.blank_line();
    let title = format!("end of round {}", round + 1);
    let mut header = vec![title.as_str()];
    header.extend(flow::COLUMNS);
    let cells =
        |line: &flow::FlowLine| (std::iter::once(line.id.clone()).chain(line.cells.iter().cloned()).collect(), Plain);
    grid(screen, &header, &lines.iter().map(cells).collect::<Vec<_>>());
    if beyond > 0 {
        screen.line(&[(Faint, &format!("  … and {beyond} more connections in the JSON document"))]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::text::{Colour, TextStyle};

    #[test]
    fn a_table_of_which_one_column_is_left_is_drawn() {
        let mut screen = TextScreen::new(TextStyle { colour: Colour::Never, width: 80 });
        // A route on which nobody answered.
        let line = |hop: &str| (vec![hop.to_owned(), String::new(), String::new()], Plain);
        grid(&mut screen, &["hop", "address", "RTT"], &[line("1"), line("2")]);
        assert_eq!(screen.into_text(), "  hop\n  1\n  2\n");
    }
}

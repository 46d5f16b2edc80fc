//! Remarks on the numbers: notes, errors, and limitations of the hosts.

use fathom_model::{FailureCounts, Run, Summary, TestRun, units::grouped};

use super::{
    block::{Block, List, Sentence},
    intervention,
};
use crate::words::{MISSING, Mark, TOO_FEW, limit_of, quantiles};

/// The maximum number of notes that a terminal shows below a table of several tests.
const NOTES_MAX: usize = 6;

/// Creates a note.
pub(super) fn note(text: String) -> Sentence {
    Sentence { label: "note", text, ..Sentence::default() }
}

/// Returns the notes of all hosts and tests in one list, which a terminal shows the beginning of: what a host cannot do concerns every test,
/// and may be why one is missing.
pub(super) fn of_all(run: &Run) -> Block<'_> {
    let all = unavailable(run).chain(of_tests(run));
    Block::List(List { items: all.map(note).collect(), screen_max: Some(NOTES_MAX), ..List::default() })
}

/// Returns the errors and notes of one test. On a terminal, which has no section of hosts, also the limitations of the hosts.
pub(super) fn of_test<'a>(run: &'a Run, test: &'a TestRun) -> Vec<Block<'a>> {
    let error = |(cause, n)| Sentence {
        label: "error",
        of: grouped(n),
        text: cause,
        mark: Mark::Broken,
        ..Sentence::default()
    };
    let list = |title, items| Block::List(List { title, items, screen_max: None });
    let TestNotes { few, others } = notes(run, test, |_| true);
    let few = (!few.is_empty()).then(|| format!("{TOO_FEW}for {}", few.join(", ")));
    let notes: Vec<String> = few.into_iter().chain(others).collect();
    vec![
        list("Errors", errors(test).into_iter().map(error).collect()),
        list("Notes", notes.iter().cloned().map(note).collect()).on_page(),
        list("", notes.into_iter().chain(unavailable(run)).map(note).collect()).on_screen(),
    ]
}

/// Returns one note with all values that have too few samples, then the other notes, each after the name of its test.
fn of_tests(run: &Run) -> Vec<String> {
    let (mut all_few, mut all_others) = (Vec::new(), Vec::new());
    for test in &run.tests {
        let TestNotes { few, others } = notes(run, test, |summary| is_in_table(test, summary));
        if !few.is_empty() {
            all_few.push(format!("{}: {}", test.full_name(), few.join(", ")));
        }
        all_others.extend(others.into_iter().map(|note| format!("{}: {note}", test.full_name())));
    }
    let few = (!all_few.is_empty()).then(|| format!("{MISSING} {TOO_FEW}for {}", all_few.join("; ")));
    few.into_iter().chain(all_others).collect()
}

/// The remarks on the numbers of a test.
struct TestNotes {
    /// The values with too few samples, each with its number of samples.
    few: Vec<String>,
    /// All other notes, each once, with the number of rounds that have it.
    others: Vec<String>,
}

/// Returns the notes of a test. Notes of values that `shown` rejects are skipped.
fn notes(run: &Run, test: &TestRun, shown: impl Fn(&Summary) -> bool) -> TestNotes {
    let beside = test.summaries.iter().filter(|summary| summary.applies() && shown(summary));
    let of_metrics = beside.filter_map(|summary| Some((summary.metric.title.as_ref(), summary.note.as_deref()?)));
    let (few, others): (Vec<_>, Vec<_>) = of_metrics.partition(|(_, note)| note.starts_with(TOO_FEW));
    // A note that is already a finding is not repeated.
    let is_finding =
        |text: &str| run.findings.iter().any(|found| found.title == text && found.tests.contains(&test.name));
    let mut of_rounds: Vec<(&str, usize)> = Vec::new();
    let records = test.trials.iter().flat_map(|trial| trial.records.values());
    for note in records.flat_map(|record| &record.notes).filter(|note| !is_finding(&note.text)) {
        match of_rounds.iter_mut().find(|(text, _)| *text == note.text) {
            Some((_, n)) => *n += 1,
            None => of_rounds.push((&note.text, 1)),
        }
    }
    let cut = intervention::cut_short(test);
    let often = |(note, n): (&str, usize)| if n > 1 { format!("{note} ({n} times)") } else { note.to_owned() };
    TestNotes {
        few: few.iter().map(|(title, note)| format!("{title} {}", &note[TOO_FEW.len()..])).collect(),
        others: by_text(others).chain(of_rounds.into_iter().map(often)).chain(cut).collect(),
    }
}

/// Formats notes about values and groups those with the same text: `jitter, IPDV p99: not recorded`.
fn by_text<'a>(notes: Vec<(&'a str, &'a str)>) -> impl Iterator<Item = String> + use<'a> {
    let mut by_note: Vec<(&str, Vec<&str>)> = Vec::new();
    for (title, note) in notes {
        match by_note.iter_mut().find(|(same, _)| *same == note) {
            Some((_, titles)) => titles.push(title),
            None => by_note.push((note, vec![title])),
        }
    }
    by_note.into_iter().map(|(note, titles)| format!("{}: {note}", titles.join(", ")))
}

/// Returns the limitations of the hosts, grouped by text: `a, b: threaded NAPI: …`.
fn unavailable(run: &Run) -> impl Iterator<Item = String> {
    let hosts = run.hosts.iter();
    by_text(hosts.flat_map(|(name, host)| host.unavailable.iter().map(|loss| (name.as_str(), loss.as_str()))).collect())
}

/// Returns true if a value appears in the table of a run with several tests.
fn is_in_table(test: &TestRun, summary: &Summary) -> bool {
    let Some(first) = test.first_value() else { return false };
    let named = |other: &&Summary| other.metric.name == summary.metric.name;
    named(&first) || quantiles(test, first).iter().any(named) || limit_of(test, summary).is_some()
}

/// Returns the errors by cause over all rounds, the most frequent first.
fn errors(test: &TestRun) -> Vec<(String, u64)> {
    // Failures at a step of a script are listed with the step.
    let at_step =
        |cause: &String| test.users.iter().flat_map(|users| &users.steps).any(|step| step.errors.contains_key(cause));
    let records = test.trials.iter().flat_map(|trial| trial.records.values());
    let all: FailureCounts = records.flat_map(|record| record.errors.clone()).collect();
    let mut all: Vec<(String, u64)> = all.into_iter().map(|(failure, n)| (failure.to_string(), n)).collect();
    all.retain(|(cause, _)| !at_step(cause));
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_missing_for_one_reason_are_told_together() {
        let notes = vec![("jitter", "not recorded"), ("p99", "nobody asked"), ("IPDV p99", "not recorded")];
        let told: Vec<String> = by_text(notes).collect();
        assert_eq!(told, ["jitter, IPDV p99: not recorded", "p99: nobody asked"]);
    }
}

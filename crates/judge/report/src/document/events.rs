//! What a plan let happen during the rounds of a test, and what flows lost then.

use fathom_model::{
    EventEffect, EventRecord, TestRun,
    targets::target_name,
    units::{Nanos, grouped},
};

use super::block::{Block, Row, Table, columns};
use crate::words::{MISSING, Mark};

/// The most events of a table. The JSON document has all of them.
const ROWS_MAX: usize = 64;
/// The columns of all events.
const OF_EVENT: [&str; 3] = ["began", "took", "result"];
/// The columns of a test whose flows were watched.
const OF_EFFECT: [&str; 5] = ["own flows", "others hurt", "lost", "longest outage", "targets lost"];

/// Returns the events of all rounds as a table, each with its effect if the test knows flows.
pub(super) fn blocks(test: &TestRun) -> Vec<Block<'_>> {
    let events = || test.trials.iter().flat_map(|trial| trial.events.iter().map(|event| (trial.round, event)));
    if events().next().is_none() {
        return Vec::new();
    }
    let effects = test.targets.as_ref().map_or(&[][..], |summary| &summary.effects);
    let is_one_round = test.trials.len() < 2;
    let row = |(round, event): (u32, &EventRecord)| {
        let mut cells = of_event(event).to_vec();
        if !effects.is_empty() {
            let is_of_event = |effect: &&EventEffect| effect.round == round && effect.event == *event;
            cells.extend(of_effect(effects.iter().find(is_of_event)));
        }
        // The event comes last, because it may be a long command.
        cells.push(if is_one_round { event.event.clone() } else { format!("round {}: {}", round + 1, event.event) });
        Row::new(cells).marked(if event.failure.is_some() { Mark::Broken } else { Mark::Plain })
    };
    let rows = events().take(ROWS_MAX).map(row).collect();
    let titles = OF_EVENT.into_iter().chain(OF_EFFECT.into_iter().filter(|_| !effects.is_empty())).chain(["event"]);
    let table = Block::Table(Table { columns: columns(titles), rows, ..Table::default() });
    let more = events().count().saturating_sub(ROWS_MAX);
    let more = (more > 0).then(|| Block::aside(format!("… and {more} more events in the JSON document")));
    std::iter::once(table).chain(more).collect()
}

fn of_event(event: &EventRecord) -> [String; OF_EVENT.len()] {
    let result = match (&event.failure, event.status) {
        (Some(failure), _) => failure.clone(),
        (None, Some(0)) => event.n_runs.map_or_else(|| "done".to_owned(), |n| format!("done {} times", grouped(n))),
        (None, Some(status)) => format!("exit status {status}"),
        (None, None) => "running".to_owned(),
    };
    let time = |time: Option<Nanos>| time.map_or_else(|| MISSING.to_owned(), |time| time.to_string());
    [time(event.began_ns), time(event.took_ns), result]
}

/// Returns what flows lost by an event; an event that did not begin has no effect.
fn of_effect(effect: Option<&EventEffect>) -> [String; OF_EFFECT.len()] {
    let Some(effect) = effect else { return std::array::from_fn(|_| MISSING.to_owned()) };
    let names: Vec<&str> = effect.lost_targets.iter().map(|target| target_name(target)).collect();
    let longest = match (effect.n_unrecovered, effect.longest_ns) {
        (0, longest) => longest.map_or_else(|| MISSING.to_owned(), |longest| longest.to_string()),
        (n, _) => format!("to the end ({})", grouped(n)),
    };
    [
        format!("{} of {}", grouped(effect.n_own), grouped(effect.n_flows)),
        grouped(effect.n_collateral),
        grouped(effect.n_lost),
        longest,
        names.join(", "),
    ]
}

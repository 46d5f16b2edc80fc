//! The content of a report as blocks. It is built once from a run, so that the text and the page use the same words.
//!
//! Nothing here knows how a block looks. Texts are unchanged from the hosts; a renderer makes them safe.

mod anatomy;
mod benchmark;
mod block;
mod comparison;
mod curve;
mod events;
mod flow;
mod fragments;
mod history;
mod hosts;
mod intervention;
mod notes;
mod overview;
mod probe;
mod replay;
mod sharing;
mod steps;
mod targets;
mod test;
mod time_division;

use fathom_model::Run;

pub(crate) use block::*;
pub(crate) use history::{history, title};

/// Returns the content of the report about a run, in order.
pub(crate) fn blocks(run: &Run) -> Vec<Block<'_>> {
    let is_benchmark = benchmark::is_all(run);
    let is_single = run.tests.len() == 1 && !is_benchmark;
    let mut blocks = overview::top(run);
    blocks.extend(benchmark::overview(run));
    blocks.extend(comparison::blocks(run));
    if run.tests.is_empty() {
        blocks.push(Block::sentence("no test was run"));
    }
    if run.tests.len() > 1 {
        let ladder = overview::ladder(run);
        let table = overview::table(run, ladder.is_some());
        blocks.extend(ladder.map(Block::on_page));
        blocks.push(if is_benchmark { table.on_page() } else { table });
    }
    if !is_single {
        blocks.extend(overview::remarks_section(run).map(Block::on_page));
    }
    for test in &run.tests {
        let section = test::section(run, test);
        blocks.push(if is_single { section } else { section.on_page() });
    }
    if !is_single && !is_benchmark {
        blocks.extend(sharing::of_run(run).into_iter().map(Block::on_screen));
        blocks.extend(run.tests.iter().filter_map(anatomy::line).map(Block::on_screen));
        blocks.extend(run.tests.iter().flat_map(probe::with_heading).map(Block::on_screen));
        blocks.push(notes::of_all(run).on_screen());
    }
    blocks.push(overview::remarks(run).on_screen());
    if is_single {
        blocks.extend(overview::remarks_section(run).map(Block::on_page));
    }
    blocks.extend(hosts::section(run).map(Block::on_page));
    blocks.push(hosts::repeat(run).on_page());
    blocks.push(Block::Ending(overview::state(run)));
    blocks
}

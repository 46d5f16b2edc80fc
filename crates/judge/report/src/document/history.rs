//! The content of a report on a recording: the findings of its whole time, and its series.

use fathom_model::{Severity, units::Nanos};

use super::{
    block::{Block, Column, Fact, Figure, FindingBlock, Head, List, Row, Sentence, Table, columns, folded, section},
    overview,
};
use crate::{
    plot::series::{self, sparkline},
    recording::{Chart, ChartLine, HostHistory, SeenFinding},
};

/// The width of a line of the terminal's drawing, in characters.
const SPARK: usize = 32;
/// The most stretches of a finding that are listed.
const STRETCHES_MAX: usize = 4;

/// Returns the content of the report in order.
pub(crate) fn history(history: &HostHistory) -> Vec<Block<'_>> {
    let mut blocks = vec![head(history), findings(history)];
    blocks.extend(history.charts.iter().map(|chart| figure(history, chart)));
    let note = |text: &String| Sentence { label: "note", text: text.clone(), ..Sentence::default() };
    let notes = List { title: "Notes", items: history.notes.iter().map(note).collect(), screen_max: None };
    blocks.push(Block::List(notes));
    blocks.extend(environment(history).map(Block::on_page));
    blocks
}

fn head(history: &HostHistory) -> Block<'_> {
    Block::Head(Head {
        id: "recording".to_owned(),
        title: format!("{} over {}", history.host, history.span),
        command: history.command.clone(),
        hosts: vec![Fact::new("host", &history.host)],
        facts: vec![
            Fact::new("from", clock(&history.from)),
            Fact::new("to", clock(&history.to)),
            Fact::new("samples", history.n_samples.to_string()),
        ],
    })
}

/// Returns a time without the `T` of RFC 3339.
fn clock(at: &str) -> String {
    at.replacen('T', " ", 1)
}

fn findings(history: &HostHistory) -> Block<'_> {
    let (remarks, held): (Vec<&SeenFinding>, Vec<&SeenFinding>) =
        history.findings.iter().partition(|seen| seen.finding.severity == Severity::Remark);
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for seen in &held {
        blocks.push(finding(seen));
        blocks.push(Block::aside(stretches(seen)).on_screen());
    }
    if held.is_empty() {
        blocks.push(Block::sentence("No counter shows anything that held this host back."));
    }
    let item = |seen: &&SeenFinding| Sentence {
        label: "remark",
        text: format!("{} ({})", seen.finding.title, stretches(seen)),
        id: Some(format!("finding-{}", seen.finding.id)),
        ..Sentence::default()
    };
    blocks.push(Block::List(List { items: remarks.iter().map(item).collect(), ..List::default() }));
    section("findings", "What held it back", blocks)
}

fn finding(seen: &SeenFinding) -> Block<'_> {
    let finding = &seen.finding;
    Block::Finding(FindingBlock {
        finding,
        label: None,
        title: finding.title.clone(),
        proof: None,
        evidence: overview::evidence(finding, |_| None),
        explains: stretches(seen),
        tests: Vec::new(),
    })
}

/// Returns when a finding was seen: `seen from 10:00:03 to 10:00:13 and once more`.
fn stretches(seen: &SeenFinding) -> String {
    let stretch = |(from, to): &(String, String)| {
        if from == to { clock(from) } else { format!("{} to {}", clock(from), time_of_day(to)) }
    };
    let shown: Vec<String> = seen.stretches.iter().take(STRETCHES_MAX).map(stretch).collect();
    let more = match seen.stretches.len().saturating_sub(STRETCHES_MAX) {
        0 => String::new(),
        1 => ", and once more".to_owned(),
        n => format!(", and {n} times more"),
    };
    format!("Seen {}{more}", shown.join(", "))
}

/// Returns the part of a time behind its date.
fn time_of_day(at: &str) -> &str {
    at.split_once('T').map_or(at, |(_, time)| time)
}

fn figure<'a>(history: &'a HostHistory, chart: &'a Chart) -> Block<'a> {
    let mut titles = columns(["", "over time", "mean", "highest", "at"]);
    titles[1].only = Some(super::Medium::Screen);
    titles[0].title.clone_from(&chart.title);
    let top = chart.lines.iter().map(|line| line.highest).fold(0.0, f64::max);
    let row = |line: &ChartLine| {
        let points: Vec<Option<f64>> = line.points.iter().map(|(_, value)| *value).collect();
        Row::new([
            line.name.clone(),
            sparkline(&points, top, SPARK),
            chart.unit.show(line.mean),
            chart.unit.show(line.highest),
            since(line.highest_at),
        ])
    };
    Block::Figure(Figure {
        is_wide: true,
        table: Some(Table { columns: titles, rows: chart.lines.iter().map(row).collect(), ..Table::default() }),
        on_screen: true,
        ..Figure::new(chart.title.as_str(), chart.about.as_str(), move || series::series(chart, history.span))
    })
}

/// Returns a time since the beginning.
fn since(time: Nanos) -> String {
    format!("+{time}")
}

fn environment(history: &HostHistory) -> Option<Block<'_>> {
    let rows = history.environment.0.iter().flat_map(|(topic, facts)| {
        facts.iter().enumerate().map(move |(index, (name, value))| {
            let begins = index == 0;
            let cells = [if begins { topic.as_str() } else { "" }, name, value];
            Row { class: if begins { "begins" } else { "" }, ..Row::new(cells) }
        })
    });
    let rows: Vec<Row> = rows.collect();
    let columns = ["", "", history.host.as_str()].map(Column::text).to_vec();
    let table = Block::Table(Table { class: "environment", columns, rows, flows: false });
    let is_any = !history.environment.0.is_empty();
    is_any.then(|| section("hosts", "Host", vec![folded("environment", vec![table])]))
}

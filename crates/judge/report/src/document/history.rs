//! The content of a report on a recording: the findings of its whole time, and its series.

use fathom_model::{Severity, units::Nanos};
use jiff::Timestamp;

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

/// Returns the title of the report.
pub(crate) fn title(history: &HostHistory) -> String {
    format!("{} over {}", history.host, history.span)
}

fn head(history: &HostHistory) -> Block<'_> {
    Block::Head(Head {
        id: "recording".to_owned(),
        title: title(history),
        command: history.command.clone(),
        hosts: vec![Fact::new("host", &history.host)],
        facts: vec![
            Fact::new("from", clock(&history.from)),
            Fact::new("to", clock(&history.to)),
            Fact::new("samples", history.n_samples.to_string()),
        ],
    })
}

/// Returns a time of RFC 3339 for people: without the `T` and the fraction of its seconds.
fn clock(at: &str) -> String {
    let (seconds, fraction) = at.split_once('.').unwrap_or((at, ""));
    format!("{}{}", seconds.replacen('T', " ", 1), fraction.trim_start_matches(|c: char| c.is_ascii_digit()))
}

fn findings(history: &HostHistory) -> Block<'_> {
    let (remarks, held): (Vec<&SeenFinding>, Vec<&SeenFinding>) =
        history.findings.iter().partition(|seen| seen.finding.severity == Severity::Remark);
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for seen in &held {
        blocks.push(finding(history, seen));
        blocks.push(Block::aside(format!("Seen {}", stretches(history, seen))).on_screen());
    }
    if held.is_empty() {
        blocks.push(Block::sentence("No counter shows anything that held this host back."));
    }
    let item = |seen: &&SeenFinding| Sentence {
        label: "remark",
        text: format!("{} (seen {})", seen.finding.title, stretches(history, seen)),
        id: Some(format!("finding-{}", seen.finding.id)),
        ..Sentence::default()
    };
    blocks.push(Block::List(List { items: remarks.iter().map(item).collect(), ..List::default() }));
    section("findings", "What held it back", blocks)
}

fn finding<'a>(history: &HostHistory, seen: &'a SeenFinding) -> Block<'a> {
    let finding = &seen.finding;
    Block::Finding(FindingBlock {
        finding,
        label: None,
        title: finding.title.clone(),
        proof: None,
        evidence: overview::evidence(finding, |_| None),
        explains: format!("Seen {}", stretches(history, seen)),
        tests: Vec::new(),
    })
}

/// Returns when a finding was seen, on the axis of the drawings and by the clock: `+3.00 s to +13.0 s (10:00:03 to 10:00:13)`.
fn stretches(history: &HostHistory, seen: &SeenFinding) -> String {
    let stretch = |(from, to): &(String, String)| {
        let by_clock = between(&time_of_day(history, from), &time_of_day(history, to));
        match (apart(&history.from, from), apart(&history.from, to)) {
            (Some(begin), Some(end)) => format!("{} ({by_clock})", between(&since(begin), &since(end))),
            _ => by_clock,
        }
    };
    let shown: Vec<String> = seen.stretches.iter().take(STRETCHES_MAX).map(stretch).collect();
    let more = match seen.stretches.len().saturating_sub(STRETCHES_MAX) {
        0 => String::new(),
        1 => ", and once more".to_owned(),
        n => format!(", and {n} times more"),
    };
    format!("{}{more}", shown.join("; "))
}

fn between(from: &str, to: &str) -> String {
    if from == to { from.to_owned() } else { format!("{from} to {to}") }
}

/// Returns a time by the clock, with its date if the recording began at another one.
fn time_of_day(history: &HostHistory, at: &str) -> String {
    let (date, time) = at.split_once('T').unwrap_or(("", at));
    let time: String = time.chars().take_while(|c| c.is_ascii_digit() || *c == ':').collect();
    if history.from.starts_with(date) { time } else { format!("{date} {time}") }
}

/// Returns the time between two times of RFC 3339; none if one of them has no offset, or the second is earlier.
fn apart(from: &str, to: &str) -> Option<Nanos> {
    let [from, to] = [from, to].map(|at| at.parse::<Timestamp>().ok().map(Timestamp::as_nanosecond));
    Some(Nanos(u64::try_from(to? - from?).ok()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_the_clock_is_told_since_the_beginning() {
        let cases = [
            ("2026-11-30T07:28:32.299+00:00", "2026-11-30T07:28:34.808+00:00", Some(2_509_000_000)),
            ("2024-02-28T23:59:59Z", "2024-03-01T00:00:00Z", Some(86_401_000_000_000)),
            ("2026-12-31T23:00:00-01:00", "2027-01-01T01:30:00+01:00", Some(1_800_000_000_000)),
            ("2026-11-30T07:28:32Z", "soon", None),
        ];
        for (from, to, expected) in cases {
            assert_eq!(apart(from, to), expected.map(Nanos), "{from} {to}");
        }
        assert_eq!(clock("2026-11-30T07:28:34.808+00:00"), "2026-11-30 07:28:34+00:00");
    }
}

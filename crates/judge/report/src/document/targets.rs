//! Which targets answered, and the flows that lost the most.

use std::cmp::Reverse;

use fathom_model::{
    FlowOutage, TargetFlow, TargetsSummary, TestRun, Trial,
    targets::{ShareFit, target_name},
    units::{counted, grouped, percent, ratio},
};

use super::block::{Block, Row, Table, columns, folded};
use crate::words::{MISSING, Mark};

/// The most targets of a table. The JSON document has all of them.
const ROWS_MAX: usize = 64;
/// The most flows that are listed.
const FLOWS_MAX: usize = 16;

/// Returns the answers of targets as tables.
pub(super) fn blocks(test: &TestRun) -> Vec<Block<'_>> {
    let Some(summary) = &test.targets else { return Vec::new() };
    let mut blocks = targets(summary);
    blocks.extend(fit(summary));
    blocks
}

fn targets(summary: &TargetsSummary) -> Vec<Block<'static>> {
    let n_all: u64 = summary.targets.iter().map(|target| target.n).sum();
    let has_shares = summary.targets.iter().any(|target| target.expected.is_some());
    let row = |target: &fathom_model::TargetShare| {
        let share = ratio(target.n, n_all);
        let deviation = share.zip(target.expected).map(|(share, expected)| share / expected - 1.0);
        let mut cells = vec![target.name.clone(), grouped(target.n), share.map_or_else(|| MISSING.to_owned(), percent)];
        let of_shares = [
            target.expected.map_or_else(|| "not expected".to_owned(), percent),
            deviation.map_or_else(|| MISSING.to_owned(), |deviation| format!("{:+.1} %", deviation * 100.0)),
        ];
        cells.extend(of_shares.into_iter().filter(|_| has_shares));
        Row::new(cells).marked(if target.n == 0 { Mark::Broken } else { Mark::Plain })
    };
    let rows: Vec<Row> = summary.targets.iter().take(ROWS_MAX).map(row).collect();
    let titles = ["target", "answers", "share", "expected", "deviation"];
    let titles = titles.into_iter().take(if has_shares { titles.len() } else { 3 });
    let table = Table { columns: columns(titles), rows, ..Table::default() };
    let more = summary.targets.len().saturating_sub(ROWS_MAX);
    let more = (more > 0).then(|| Block::aside(format!("… and {more} more targets in the JSON document")));
    std::iter::once(Block::Table(table)).chain(more).collect()
}

fn fit(summary: &TargetsSummary) -> Option<Block<'static>> {
    summary.fit.as_ref().map(|fit| Block::aside(fit_text(fit)))
}

fn fit_text(fit: &ShareFit) -> String {
    let p = if fit.p < 0.0001 { "below 0.0001".to_owned() } else { format!("{:.4}", fit.p) };
    format!("chi-square {:.1} on {} of freedom; p {p}", fit.chi_square, counted(fit.degrees, "degree"))
}

/// Lists the flows of the last round that has some which lost the most.
pub(super) fn hurt_flows(test: &TestRun) -> Option<Block<'_>> {
    test.trials.iter().rev().find_map(flows)
}

/// Lists the flows of a round that were without an answer for longest, or that moved.
fn flows(trial: &Trial) -> Option<Block<'_>> {
    let record = trial.records.values().find_map(|record| record.targets.as_ref())?;
    let is_eventful = |flow: &&TargetFlow| !flow.outages.is_empty() || flow.moves().next().is_some();
    let mut hurt: Vec<&TargetFlow> = record.flows.iter().filter(is_eventful).collect();
    if hurt.is_empty() {
        return None;
    }
    hurt.sort_by_key(|flow| Reverse(flow.n_lost + flow.n_late));
    let titles =
        ["flow", "lost", "late", "of", "outage at", "length", "cause", "reconnected", "target before", "after"];
    let rows = hurt.iter().take(FLOWS_MAX).map(|flow| row(flow)).collect();
    let mut blocks = vec![Block::Table(Table { columns: columns(titles), rows, ..Table::default() })];
    if hurt.len() > FLOWS_MAX {
        blocks.push(Block::aside(format!("… and {} more flows in the JSON document", hurt.len() - FLOWS_MAX)));
    }
    Some(folded(format!("flows of round {} that had an outage or moved", trial.round + 1), blocks))
}

/// Builds the row of a flow with its longest outage, or else its first move.
fn row(flow: &TargetFlow) -> Row {
    let name =
        |target: Option<&str>| target.map_or_else(|| MISSING.to_owned(), |target| target_name(target).to_owned());
    let longest = flow.outages.iter().max_by_key(|outage| outage.n_lost + outage.n_late);
    let length = |outage: &FlowOutage| {
        outage.to_ns.map_or_else(|| "to the end".to_owned(), |to| to.since(outage.from_ns).to_string())
    };
    let [at, length, cause, reconnected] = match longest {
        Some(outage) => [
            outage.from_ns.to_string(),
            length(outage),
            outage.cause.name().to_owned(),
            outage.reconnect_ns.map_or_else(|| MISSING.to_owned(), |after| after.to_string()),
        ],
        None => ["", "", "moved", ""].map(str::to_owned),
    };
    let (before, after) = match (longest, flow.moves().next()) {
        (Some(outage), _) => (flow.target_before(outage.from_ns), outage.to_ns.and_then(|to| flow.target_from(to))),
        (None, Some((before, after))) => (Some(before.target.as_str()), Some(after.target.as_str())),
        (None, None) => (None, None),
    };
    let cells = [
        flow.id.clone(),
        grouped(flow.n_lost),
        grouped(flow.n_late),
        grouped(flow.n_due),
        at,
        length,
        cause,
        reconnected,
        name(before),
        name(after),
    ];
    Row::new(cells)
}

#[cfg(test)]
mod tests {
    use fathom_model::{OutageCause, TargetSpell, units::Nanos};

    use super::*;

    #[test]
    fn one_degree_of_freedom_is_one() {
        let text = |degrees| fit_text(&ShareFit { chi_square: 1.0, degrees, p: 0.5 });
        assert_eq!(text(1), "chi-square 1.0 on 1 degree of freedom; p 0.5000");
        assert_eq!(text(2), "chi-square 1.0 on 2 degrees of freedom; p 0.5000");
    }

    #[test]
    fn a_flow_is_told_with_its_targets_before_and_after_its_longest_outage() {
        let spell = |target: &str, from: u64, to: u64, connection: u32| TargetSpell {
            target: target.to_owned(),
            from_ns: Nanos(from),
            to_ns: Nanos(to),
            connection,
        };
        let outage = FlowOutage {
            from_ns: Nanos(100),
            to_ns: Some(Nanos(150)),
            n_lost: 5,
            n_late: 0,
            cause: OutageCause::Reset,
            reconnect_ns: Some(Nanos(20)),
        };
        let flow = TargetFlow {
            id: "10.0.0.1:5".to_owned(),
            n_due: 20,
            n_lost: 5,
            spells: vec![spell("t1#01", 0, 90, 0), spell("t2#02", 150, 200, 1)],
            outages: vec![outage],
            ..TargetFlow::default()
        };
        let texts: Vec<String> = row(&flow).cells.iter().map(|cell| cell.text.clone()).collect();
        assert_eq!(texts, ["10.0.0.1:5", "5", "0", "20", "100 ns", "50.0 ns", "reset", "20.0 ns", "t1", "t2"]);
    }
}

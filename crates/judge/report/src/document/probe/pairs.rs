//! Probes between several pairs of hosts: a row for each pair, and a matrix if all probe each other.

use fathom_model::{
    Link, LinkTrial, Metric, Record, TestRun,
    names::count::{HOPS, PATH_MTU, RECEIVED, SENT},
    probe::ProbeRecord,
    units::grouped,
};

use super::{
    super::{
        block::{Block, Cell, Row, Table, columns, folded},
        sharing::{LINES_MAX, further, matrices},
    },
    of_record,
};
use crate::words::{self, MISSING, Mark};

/// The metrics that a row has room for.
const SHOWN: [&str; 14] = [
    "rtt_ns_min",
    "rtt_ns_p50",
    "rtt_ns_max",
    "loss_ratio",
    PATH_MTU,
    HOPS,
    "ports_open",
    "ports_closed",
    "ports_filtered",
    "ports_other",
    "fragmented_loss_ratio",
    "whole_loss_ratio",
    "elsewhere_ratio",
    "unexpected_answers",
];
/// The metrics of a matrix that are no times and no shares.
const LENGTHS: [&str; 3] = [PATH_MTU, HOPS, "ports_open"];

/// Returns a matrix if there is one, a row for each pair or for each of a matrix that stands out, and the details of each pair for a page.
pub(super) fn blocks(test: &TestRun) -> Vec<Block<'_>> {
    let metrics: Vec<&Metric> = test.summaries.iter().map(|summary| &summary.metric).collect();
    let known = |metric: &&&Metric| test.links.iter().any(|link| link.values.contains_key(metric.name.as_ref()));
    let lengths = metrics.iter().filter(|metric| LENGTHS.contains(&metric.name.as_ref())).filter(known).copied();
    let mut blocks = matrices(test, lengths.chain(further(test)));
    let has_matrix = !blocks.is_empty();
    let shown: Vec<&Metric> =
        metrics.iter().filter(|metric| SHOWN.contains(&metric.name.as_ref())).filter(known).copied().collect();
    let of_link = |link: &Link| {
        let (remark, mark) = remark(test, link);
        let value = |metric: &&Metric| {
            let value = link.values.get(metric.name.as_ref()).map(|value| words::show(metric, *value));
            Cell::from(value.unwrap_or_else(|| MISSING.to_owned()))
        };
        let is_told = !has_matrix || mark != Mark::Plain;
        let cells = std::iter::once(Cell::from(way(link))).chain(shown.iter().map(value));
        is_told.then(|| Row::new(cells.chain([Cell::from(remark).marked(mark)])))
    };
    let rows: Vec<Row> = test.links.iter().filter_map(of_link).take(LINES_MAX).collect();
    if !rows.is_empty() {
        let titles = std::iter::once("pair".to_owned()).chain(shown.iter().map(|metric| metric.title.to_string()));
        blocks.push(Block::Table(Table { columns: columns(titles.chain([String::new()])), rows, ..Table::default() }));
    }
    let details = test.links.iter().take(LINES_MAX).filter_map(|link| {
        let blocks = of_record(probe(last_trial(test, link)?)?.1);
        (!blocks.is_empty()).then(|| folded(way(link), blocks).on_page())
    });
    blocks.extend(details);
    blocks
}

fn way(link: &Link) -> String {
    link.to.as_ref().map_or_else(|| link.from.clone(), |to| format!("{} → {to}", link.from))
}

/// Returns the last trial of a pair.
fn last_trial<'a>(test: &'a TestRun, link: &Link) -> Option<&'a LinkTrial> {
    let is_it = |trial: &&LinkTrial| trial.from == link.from && trial.to == link.to;
    test.trials.iter().rev().find_map(|trial| trial.links.iter().find(is_it))
}

fn probe(trial: &LinkTrial) -> Option<(&Record, &ProbeRecord)> {
    trial.records.values().find_map(|record| Some((record, record.probe.as_ref()?)))
}

/// Returns what stands out of a pair.
fn remark(test: &TestRun, link: &Link) -> (String, Mark) {
    let Some(last) = last_trial(test, link).filter(|trial| trial.is_whole()) else {
        return ("a host was lost".to_owned(), Mark::Open);
    };
    let Some((record, found)) = probe(last) else { return (String::new(), Mark::Plain) };
    if record.totals.get(SENT) == Some(&0) {
        return ("nothing sent".to_owned(), Mark::Open);
    }
    let is_silent = record.totals.get(RECEIVED) == Some(&0)
        || found.path_mtu.as_ref().is_some_and(|mtu| mtu.mtu_bytes.is_none())
        || (!found.hops.is_empty() && !found.hops.iter().any(|hop| hop.target));
    if is_silent {
        return ("no answer".to_owned(), Mark::Broken);
    }
    if let Some(from) = found.path_mtu.as_ref().and_then(|mtu| mtu.vanishing_from_bytes) {
        return (format!("black hole from {} B on", grouped(from)), Mark::Broken);
    }
    match found.outages.as_slice() {
        [] => (String::new(), Mark::Plain),
        [only] => (
            only.length_ns.map_or_else(|| "an outage to the end".to_owned(), |of| format!("an outage of {of}")),
            Mark::Broken,
        ),
        all => (format!("{} outages", all.len()), Mark::Broken),
    }
}

//! The kernel's statistics of the connections at the end of the last round.

use fathom_model::{
    FlowSummary, Record, TestRun, Unit,
    names::tcp,
    record::Flow,
    units::{approximate, grouped, percent, ratio},
};

use super::block::{Block, Row, Table, columns, folded};

/// The maximum number of connections in the list. The JSON document has all of them.
const FLOWS_MAX: usize = 16;

const COLUMNS: [&str; 10] =
    ["held by", "rate", "rtt", "rtt min", "cwnd", "mss", "resent", "delivery", "rwnd wait", "sndbuf wait"];

/// Returns the connections of the last round that recorded any.
pub(super) fn block(test: &TestRun) -> Option<Block<'_>> {
    let sampled = |trial: &&fathom_model::Trial| trial.records.values().any(|record| !record.flows.is_empty());
    let trial = test.trials.iter().rev().find(sampled)?;
    let with_flows = || trial.records.values().filter(|record| !record.flows.is_empty());
    let senders = || {
        test.flows.iter().filter_map(|one| Some((with_flows().find_map(|record| flow_of(record, &one.id))?, Some(one))))
    };
    // In transaction tests both ends report the same connections, so one end is enough.
    let one_side = || with_flows().take(1).flat_map(|record| &record.flows).map(|flow| (flow, None));
    let flows: Vec<(&Flow, Option<&FlowSummary>)> =
        if test.flows.is_empty() { one_side().collect() } else { senders().collect() };
    let table = Table {
        columns: columns(
            std::iter::once(format!("end of round {}", trial.round + 1)).chain(COLUMNS.map(str::to_owned)),
        ),
        rows: flows.iter().take(FLOWS_MAX).map(|(flow, summary)| row(flow, *summary)).collect(),
        ..Table::default()
    };
    let mut blocks = vec![Block::Table(table)];
    if flows.len() > FLOWS_MAX {
        blocks.push(Block::aside(format!("… and {} more connections in the JSON document", flows.len() - FLOWS_MAX)));
    }
    Some(folded("connections, as the kernel saw them", blocks))
}

fn flow_of<'a>(record: &'a Record, id: &str) -> Option<&'a Flow> {
    record.flows.iter().find(|flow| flow.id == id)
}

/// Builds the row of one connection: its addresses and one text per column. A text is empty if the kernel has no value.
fn row(flow: &Flow, summary: Option<&FlowSummary>) -> Row {
    let values = flow.samples.last().map(|sample| &sample.values);
    let get = |name: &str| values.and_then(|values| values.get(name)).copied();
    let show = |name: &str, unit: Unit| get(name).map(|value| unit.show(approximate(value))).unwrap_or_default();
    let of_busy = |name: &str| get(name).zip(get(tcp::BUSY_NS)).and_then(|(part, whole)| ratio(part, whole));
    let share = |name: &str| of_busy(name).map(percent).unwrap_or_default();
    Row::new([
        flow.id.clone(),
        summary.map(|flow| flow.held_by.short().to_owned()).unwrap_or_default(),
        summary.map(|flow| Unit::BitsPerSec.show(flow.acknowledged_bps)).unwrap_or_default(),
        show(tcp::RTT_NS, Unit::Nanos),
        show(tcp::RTT_MIN_NS, Unit::Nanos),
        show(tcp::CWND_SEGMENTS, Unit::Count),
        get(tcp::SND_MSS_BYTES).map(|bytes| format!("{} B", grouped(bytes))).unwrap_or_default(),
        show(tcp::RETRANS_TOTAL, Unit::Count),
        show(tcp::DELIVERY_RATE_BPS, Unit::BitsPerSec),
        share(tcp::RWND_LIMITED_NS),
        share(tcp::SNDBUF_LIMITED_NS),
    ])
}

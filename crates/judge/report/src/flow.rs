//! What the kernel said of the connections at the end of the last round.

use fathom_model::{
    FlowSummary, Record, TestRun, Unit,
    names::tcp,
    record::Flow,
    units::{approximate, grouped, percent, ratio},
};

/// The most connections that are listed: more are not read, they are in the JSON.
pub(crate) const FLOWS_MAX: usize = 16;

/// The columns of the list.
pub(crate) const COLUMNS: [&str; 10] =
    ["held by", "rate", "rtt", "rtt min", "cwnd", "mss", "resent", "delivery", "rwnd wait", "sndbuf wait"];

/// One connection: its addresses and a text per column, empty where the kernel said nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FlowLine {
    /// Local and remote address.
    pub(crate) id: String,
    /// The texts in the order of [`COLUMNS`].
    pub(crate) cells: Vec<String>,
}

/// The connections of the last round that has any, and how many there are beyond those listed.
pub(crate) fn last_round(test: &TestRun) -> Option<(u32, Vec<FlowLine>, usize)> {
    let sampled = |trial: &&fathom_model::Trial| trial.records.values().any(|record| !record.flows.is_empty());
    let trial = test.trials.iter().rev().find(sampled)?;
    let with_flows = || trial.records.values().filter(|record| !record.flows.is_empty());
    let senders = || {
        test.flows.iter().filter_map(|one| Some((with_flows().find_map(|record| named(record, &one.id))?, Some(one))))
    };
    // Of transactions both ends tell the same, so one of them is enough.
    let one_side = || with_flows().take(1).flat_map(|record| &record.flows).map(|flow| (flow, None));
    let flows: Vec<(&Flow, Option<&FlowSummary>)> =
        if test.flows.is_empty() { one_side().collect() } else { senders().collect() };
    let lines: Vec<FlowLine> = flows.iter().take(FLOWS_MAX).map(|(flow, summary)| flow_line(flow, *summary)).collect();
    Some((trial.round, lines, flows.len().saturating_sub(FLOWS_MAX)))
}

fn named<'a>(record: &'a Record, id: &str) -> Option<&'a Flow> {
    record.flows.iter().find(|flow| flow.id == id)
}

fn flow_line(flow: &Flow, summary: Option<&FlowSummary>) -> FlowLine {
    let values = flow.samples.last().map(|sample| &sample.values);
    let get = |name: &str| values.and_then(|values| values.get(name)).copied();
    let show = |name: &str, unit: Unit| get(name).map(|value| unit.show(approximate(value))).unwrap_or_default();
    let of_busy = |name: &str| get(name).zip(get(tcp::BUSY_NS)).and_then(|(part, whole)| ratio(part, whole));
    let share = |name: &str| of_busy(name).map(percent).unwrap_or_default();
    FlowLine {
        id: flow.id.clone(),
        cells: vec![
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
        ],
    }
}

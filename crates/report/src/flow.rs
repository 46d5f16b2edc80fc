//! What the kernel said of the connections at the end of the last round.

use fathom_model::{
    TestRun, Unit,
    names::tcp,
    record::Flow,
    units::{approximate, grouped, percent, ratio},
};

/// The most connections that are listed: more are not read, they are in the JSON.
pub(crate) const FLOWS_MAX: usize = 16;

/// The columns of the list.
pub(crate) const COLUMNS: [&str; 8] =
    ["rtt", "rtt min", "cwnd", "mss", "resent", "delivery", "rwnd wait", "sndbuf wait"];

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
    let flows: Vec<&Flow> = trial.records.values().find(|r| !r.flows.is_empty())?.flows.iter().collect();
    let lines: Vec<FlowLine> = flows.iter().take(FLOWS_MAX).map(|flow| line(flow)).collect();
    Some((trial.round, lines, flows.len().saturating_sub(FLOWS_MAX)))
}

fn line(flow: &Flow) -> FlowLine {
    let values = flow.samples.last().map(|sample| &sample.values);
    let get = |name: &str| values.and_then(|values| values.get(name)).copied();
    let show = |name: &str, unit: Unit| get(name).map(|value| unit.show(approximate(value))).unwrap_or_default();
    let of_busy = |name: &str| get(name).zip(get(tcp::BUSY_NS)).and_then(|(part, whole)| ratio(part, whole));
    let share = |name: &str| of_busy(name).map(percent).unwrap_or_default();
    FlowLine {
        id: flow.id.clone(),
        cells: vec![
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

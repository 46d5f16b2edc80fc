//! What single packets found out, as sentences and tables: a route, a path MTU, ports, outages.

use fathom_model::{
    TestRun,
    probe::{HopRecord, OutageRecord, PathMtuRecord, PortRecord, PortState, ProbeRecord},
    units::{Nanos, grouped},
};

use crate::view::{MISSING, Mark};

/// The outages that fit on a page; all are in the JSON document.
const OUTAGES_MAX: usize = 12;
/// The ports of one state that are named one by one.
const PORTS_MAX: usize = 40;

/// Rows under headings, and what must be said below.
pub(crate) struct Table {
    pub(crate) header: &'static [&'static str],
    pub(crate) lines: Vec<(Vec<String>, Mark)>,
    pub(crate) remark: Option<String>,
}

/// What the last round of a test found beside its values, if it was one of probes.
pub(crate) fn found(test: &TestRun) -> Option<&ProbeRecord> {
    let trials = test.trials.iter().rev();
    let mut found = trials.flat_map(|trial| trial.records.values()).filter_map(|record| record.probe.as_ref());
    let tells = |probe: &&ProbeRecord| {
        !probe.hops.is_empty() || !probe.ports.is_empty() || !probe.outages.is_empty() || probe.path_mtu.is_some()
    };
    found.find(tells)
}

/// What is known of the path MTU.
pub(crate) fn sentences(probe: &ProbeRecord) -> Vec<(String, Mark)> {
    probe.path_mtu.as_ref().map(mtu).unwrap_or_default()
}

/// Everything else.
pub(crate) fn tables(probe: &ProbeRecord) -> Vec<Table> {
    let tables = [hops(&probe.hops), ports(&probe.ports), outages(&probe.outages)];
    tables.into_iter().filter(|table| !table.lines.is_empty() || table.remark.is_some()).collect()
}

fn mtu(found: &PathMtuRecord) -> Vec<(String, Mark)> {
    let device = grouped(found.device_bytes);
    let first = match found.mtu_bytes {
        Some(mtu) => {
            let mtu = grouped(mtu);
            (format!("packets of up to {mtu} B come through; the own device takes {device} B"), Mark::Plain)
        }
        None => ("no packet of any length was answered".to_owned(), Mark::Missing),
    };
    let told = found.too_big.iter().map(|told| {
        let fits =
            if told.mtu_bytes == 0 { "no MTU given".to_owned() } else { format!("MTU {} B", grouped(told.mtu_bytes)) };
        (format!("{} says: packet too big, {fits}", told.from), Mark::Plain)
    });
    let hole = found.vanishing_from_bytes.map(|from| {
        let from = grouped(from);
        let text = format!("black hole: packets of {from} B and more vanish, and nobody says that they are too big");
        (text, Mark::Broken)
    });
    std::iter::once(first).chain(told).chain(hole).collect()
}

fn hops(hops: &[HopRecord]) -> Table {
    // A silent end tells nothing hop by hop.
    let last = hops.iter().rposition(|hop| !hop.addresses.is_empty()).map_or(0, |at| at + 1);
    let remark = (last < hops.len()).then(|| format!("nothing answers beyond hop {last}"));
    let header = &["hop", "address", "lost", "of", "RTT min", "median", "max", ""];
    Table { header, lines: hops[..last].iter().map(hop).collect(), remark }
}

fn hop(hop: &HopRecord) -> (Vec<String>, Mark) {
    let mut sorted = hop.rtt_ns.clone();
    sorted.sort_unstable();
    let n_answered = u64::try_from(sorted.len()).unwrap_or(u64::MAX);
    let show = |rtt: Option<&Nanos>| rtt.map_or_else(|| MISSING.to_owned(), Nanos::to_string);
    let remark = match (&hop.complaint, hop.target) {
        (Some(complaint), _) => complaint.clone(),
        (None, true) => "the host".to_owned(),
        (None, false) => String::new(),
    };
    let address = if hop.addresses.is_empty() { "*".to_owned() } else { hop.addresses.join(" or ") };
    let cells = vec![
        hop.hop.to_string(),
        address,
        hop.n_sent.saturating_sub(n_answered).to_string(),
        hop.n_sent.to_string(),
        show(sorted.first()),
        // The lower of the two in the middle, so that it is a time that was measured.
        show(sorted.get(sorted.len().saturating_sub(1) / 2)),
        show(sorted.last()),
        remark,
    ];
    let mark = match (&hop.complaint, hop.addresses.is_empty()) {
        (Some(_), _) => Mark::Broken,
        (None, true) => Mark::Missing,
        (None, false) => Mark::Plain,
    };
    (cells, mark)
}

fn ports(ports: &[PortRecord]) -> Table {
    let mut lines = Vec::new();
    for state in PortState::ALL {
        let of_state: Vec<&PortRecord> = ports.iter().filter(|port| port.state == state).collect();
        let mark = if state == PortState::Open { Mark::Kept } else { Mark::Plain };
        for port in of_state.iter().take(PORTS_MAX) {
            let rtt = port.rtt_ns.map_or_else(|| MISSING.to_owned(), |rtt| rtt.to_string());
            lines.push((vec![port.port.to_string(), state.name().to_owned(), rtt, port.answer.clone()], mark));
        }
        if of_state.len() > PORTS_MAX {
            let more = format!("{} more", grouped(u64::try_from(of_state.len() - PORTS_MAX).unwrap_or(u64::MAX)));
            lines.push((vec!["…".to_owned(), state.name().to_owned(), more, String::new()], mark));
        }
    }
    Table { header: &["port", "state", "RTT", "answer"], lines, remark: None }
}

fn outages(outages: &[OutageRecord]) -> Table {
    let line = |outage: &OutageRecord| {
        let length = outage.length_ns.map_or_else(|| "to the end".to_owned(), |length| length.to_string());
        (vec![outage.from.clone(), length, grouped(outage.n_probes)], Mark::Broken)
    };
    let lines: Vec<(Vec<String>, Mark)> = outages.iter().take(OUTAGES_MAX).map(line).collect();
    let n_more = outages.len().saturating_sub(OUTAGES_MAX);
    let remark = (n_more > 0).then(|| format!("{n_more} more outages are in the JSON document"));
    Table { header: &["outage from", "length", "probes lost"], lines, remark }
}

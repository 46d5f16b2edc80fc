//! What single packets found out: a route, a path MTU, ports, outages.

use fathom_model::{
    TestRun,
    probe::{HopRecord, OutageRecord, PathMtuRecord, PortRecord, PortState, ProbeRecord},
    units::{Nanos, grouped},
};

use super::{
    detail::grid,
    screen::{
        Screen,
        Tone::{self, Bad, Good, Plain, Strong, Warn},
    },
};
use crate::view::MISSING;

/// The outages that fit on a screen.
const OUTAGES_MAX: usize = 12;
/// The closed ports that are named one by one; of more, the first and how many others.
const PORTS_MAX: usize = 40;

/// What the last round of a test found, if it was one of probes.
pub(super) fn found(test: &TestRun) -> Option<&ProbeRecord> {
    let trials = test.trials.iter().rev();
    trials.flat_map(|trial| trial.records.values()).find_map(|record| record.probe.as_ref())
}

/// Whether there is something to be told beside the values.
fn has_more(probe: &ProbeRecord) -> bool {
    !probe.hops.is_empty() || !probe.ports.is_empty() || !probe.outages.is_empty() || probe.path_mtu.is_some()
}

/// Writes it with the name of its test above, for a run of several.
pub(super) fn write_named(screen: &mut Screen, test: &TestRun) {
    if let Some(probe) = found(test).filter(|probe| has_more(probe)) {
        screen.gap();
        screen.line(&[(Strong, &format!("  {}", test.title)), (Plain, &format!(" to {}", probe.target))]);
        write(screen, probe);
    }
}

/// Writes it.
pub(super) fn write(screen: &mut Screen, probe: &ProbeRecord) {
    if let Some(path_mtu) = &probe.path_mtu {
        screen.gap();
        mtu(screen, path_mtu);
    }
    if !probe.hops.is_empty() {
        screen.gap();
        hops(screen, &probe.hops);
    }
    if !probe.ports.is_empty() {
        screen.gap();
        ports(screen, &probe.ports);
    }
    if !probe.outages.is_empty() {
        screen.gap();
        outages(screen, &probe.outages);
    }
}

fn mtu(screen: &mut Screen, found: &PathMtuRecord) {
    let device = format!("the own device takes {} B", grouped(found.device_bytes));
    match found.mtu_bytes {
        Some(mtu) => screen.line(&[(Plain, &format!("  packets of up to {} B come through; {device}", grouped(mtu)))]),
        None => screen.line(&[(Warn, "  no packet of any length was answered")]),
    }
    for told in &found.too_big {
        let fits =
            if told.mtu_bytes == 0 { "no MTU given".to_owned() } else { format!("MTU {} B", grouped(told.mtu_bytes)) };
        screen.line(&[(Plain, &format!("  {} says: packet too big, {fits}", told.from))]);
    }
    if let Some(from) = found.vanishing_from_bytes {
        let text = format!(
            "black hole: packets of {} B and more vanish, and nobody says that they are too big",
            grouped(from)
        );
        screen.wrapped((Plain, "  "), (Bad, &text));
    }
}

fn hops(screen: &mut Screen, hops: &[HopRecord]) {
    // A silent end tells nothing hop by hop.
    let last = hops.iter().rposition(|hop| !hop.addresses.is_empty()).map_or(0, |at| at + 1);
    let lines: Vec<(Vec<String>, Tone)> = hops[..last].iter().map(hop).collect();
    grid(screen, &["hop", "address", "lost", "of", "RTT min", "median", "max", ""], &lines);
    if last < hops.len() {
        screen.line(&[(Warn, &format!("  {MISSING}  nothing answers beyond hop {last}"))]);
    }
}

fn hop(hop: &HopRecord) -> (Vec<String>, Tone) {
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
    let tone = if hop.complaint.is_some() {
        Bad
    } else if hop.addresses.is_empty() {
        Warn
    } else {
        Plain
    };
    (cells, tone)
}

fn ports(screen: &mut Screen, ports: &[PortRecord]) {
    let mut lines = Vec::new();
    for state in PortState::ALL {
        let of_state: Vec<&PortRecord> = ports.iter().filter(|port| port.state == state).collect();
        let tone = if state == PortState::Open { Good } else { Plain };
        for port in of_state.iter().take(PORTS_MAX) {
            let rtt = port.rtt_ns.map_or_else(|| MISSING.to_owned(), |rtt| rtt.to_string());
            lines.push((vec![port.port.to_string(), state.name().to_owned(), rtt, port.answer.clone()], tone));
        }
        if of_state.len() > PORTS_MAX {
            let more = format!("{} more", grouped(u64::try_from(of_state.len() - PORTS_MAX).unwrap_or(u64::MAX)));
            lines.push((vec!["…".to_owned(), state.name().to_owned(), more, String::new()], tone));
        }
    }
    grid(screen, &["port", "state", "RTT", "answer"], &lines);
}

fn outages(screen: &mut Screen, outages: &[OutageRecord]) {
    let line = |outage: &OutageRecord| {
        let length = outage.length_ns.map_or_else(|| "to the end".to_owned(), |length| length.to_string());
        (vec![outage.from.clone(), length, grouped(outage.n_probes)], Bad)
    };
    let lines: Vec<(Vec<String>, Tone)> = outages.iter().take(OUTAGES_MAX).map(line).collect();
    grid(screen, &["outage from", "length", "probes lost"], &lines);
    if outages.len() > OUTAGES_MAX {
        screen.line(&[(Warn, &format!("  … and {} more in the JSON document", outages.len() - OUTAGES_MAX))]);
    }
}

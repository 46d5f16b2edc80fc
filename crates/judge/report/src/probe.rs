//! What single packets found out, as sentences and tables: a route, a path MTU, ports, outages.

use fathom_model::{
    Record, Run, TestRun,
    names::count::{RECEIVED, SENT},
    probe::{HopRecord, OutageRecord, PathMtuRecord, PortRecord, PortState, ProbeRecord},
    units::{Nanos, grouped},
};

use crate::view::{MISSING, RowMark};

/// The outages that fit on a page; all are in the JSON document.
const OUTAGES_MAX: usize = 12;
/// The ports of one state that are named one by one.
const PORTS_MAX: usize = 40;

/// Rows under headings, and what must be said below.
pub(crate) struct ProbeTable {
    pub(crate) header: &'static [&'static str],
    pub(crate) lines: Vec<(Vec<String>, RowMark)>,
    pub(crate) remark: Option<String>,
}

/// What the last round of a test found beside its values, if it was one of probes.
pub(crate) fn last_probe_record(test: &TestRun) -> Option<&ProbeRecord> {
    let trials = test.trials.iter().rev();
    let mut found = trials.flat_map(|trial| trial.records.values()).filter_map(|record| record.probe.as_ref());
    let tells = |probe: &&ProbeRecord| {
        !probe.hops.is_empty() || !probe.ports.is_empty() || !probe.outages.is_empty() || probe.path_mtu.is_some()
    };
    found.find(tells)
}

/// What a person asked who probed a host, in a few lines: a word, the answer, and how it is to be looked at.
pub(crate) struct ProbeAnswer {
    pub(crate) word: &'static str,
    pub(crate) text: String,
    pub(crate) mark: RowMark,
}

fn records(test: &TestRun) -> impl Iterator<Item = (&Record, &ProbeRecord)> {
    let records = test.trials.iter().flat_map(|trial| trial.records.values());
    records.filter_map(|record| Some((record, record.probe.as_ref()?)))
}

/// The host that a run probed; nothing for a run that did anything else beside.
pub(crate) fn target(run: &Run) -> Option<&str> {
    let mut targets = run.tests.iter().map(|test| records(test).next().map(|(_, probe)| probe.target.as_str()));
    let first = targets.next()??;
    targets.all(|target| target == Some(first)).then_some(first)
}

/// The answers of all tests of a run of probes, in the order of the tests; none for any other run.
pub(crate) fn answers(run: &Run) -> Vec<ProbeAnswer> {
    if target(run).is_none() {
        return Vec::new();
    }
    let of_test = |test| {
        let (_, last) = records(test).last()?;
        let answers = match (&last.path_mtu, last.hops.is_empty(), last.ports.is_empty()) {
            (Some(mtu), ..) => vec![answer_of_mtu(mtu)],
            (None, false, _) => vec![answer_of_route(&last.hops)],
            (None, true, false) => vec![answer_of_ports(&last.ports)],
            (None, true, true) => answers_of_series(test),
        };
        Some(answers)
    };
    run.tests.iter().filter_map(of_test).flatten().collect()
}

fn answers_of_series(test: &TestRun) -> Vec<ProbeAnswer> {
    let total = |counter: &str| -> u64 { records(test).filter_map(|(record, _)| record.totals.get(counter)).sum() };
    let (n_sent, n_received) = (total(SENT), total(RECEIVED));
    let (yes, mark) = match n_received {
        0 => ("no", RowMark::Broken),
        n if n < n_sent => ("yes, with losses", RowMark::Open),
        _ => ("yes", RowMark::Kept),
    };
    let shown = |name: &str| {
        let summary = test.summaries.iter().find(|summary| summary.metric.name == name)?;
        // A quantile of too few samples is but the largest of them once more.
        let says_more = summary.note.is_none() || name != "rtt_ns_p99";
        let summary = Some(summary).filter(|_| says_more)?;
        Some(summary.metric.show(summary.value?))
    };
    let loss = shown("loss_ratio").map_or_else(String::new, |loss| format!(", {loss} lost"));
    let text = format!("{yes}: {} of {} probes answered{loss}", grouped(n_received), grouped(n_sent));
    let trips = [("min", "rtt_ns_min"), ("median", "rtt_ns_p50"), ("p99", "rtt_ns_p99"), ("max", "rtt_ns_max")];
    let trips: Vec<String> = trips.iter().filter_map(|(word, name)| Some(format!("{word} {}", shown(name)?))).collect();
    let mut answers = vec![ProbeAnswer { word: "reachable", text, mark }];
    if !trips.is_empty() {
        answers.push(ProbeAnswer { word: "RTT", text: trips.join(" · "), mark: RowMark::Plain });
    }
    answers.push(answer_of_outages(test));
    answers
}

fn answer_of_outages(test: &TestRun) -> ProbeAnswer {
    let outages: Vec<&OutageRecord> = records(test).flat_map(|(_, probe)| &probe.outages).collect();
    let longest = outages.iter().filter_map(|outage| outage.length_ns).max();
    let lasts = outages.iter().find(|outage| outage.length_ns.is_none());
    let mut words = match outages.len() {
        0 => vec!["none".to_owned()],
        n => vec![grouped(u64::try_from(n).unwrap_or(u64::MAX))],
    };
    words.extend(longest.map(|longest| format!("the longest {longest}")));
    words.extend(lasts.map(|outage| format!("one from {} to the end", outage.from)));
    let mark = if outages.is_empty() { RowMark::Plain } else { RowMark::Broken };
    ProbeAnswer { word: "outages", text: words.join(", "), mark }
}

fn answer_of_mtu(found: &PathMtuRecord) -> ProbeAnswer {
    let (text, mark) = match (found.mtu_bytes, found.vanishing_from_bytes) {
        (None, _) => (format!("{MISSING}  no packet of any length was answered"), RowMark::Missing),
        (Some(mtu), Some(_)) => (format!("{} B, and a black hole beyond", grouped(mtu)), RowMark::Broken),
        (Some(mtu), None) => (format!("{} B", grouped(mtu)), RowMark::Plain),
    };
    ProbeAnswer { word: "path MTU", text, mark }
}

fn answer_of_route(hops: &[HopRecord]) -> ProbeAnswer {
    let (text, mark) = match hops.iter().find(|hop| hop.target) {
        Some(last) if last.hop == 1 => ("1 hop".to_owned(), RowMark::Plain),
        Some(last) => (format!("{} hops", last.hop), RowMark::Plain),
        None => {
            let last = hops.iter().rfind(|hop| !hop.addresses.is_empty()).map_or(0, |hop| hop.hop);
            (format!("the host was not reached; the last that answered is hop {last}"), RowMark::Open)
        }
    };
    ProbeAnswer { word: "route", text, mark }
}

fn answer_of_ports(ports: &[PortRecord]) -> ProbeAnswer {
    let of = |state: &PortState| {
        let n = ports.iter().filter(|port| port.state == *state).count();
        (n > 0).then(|| format!("{} {}", grouped(u64::try_from(n).unwrap_or(u64::MAX)), state.name()))
    };
    let text = PortState::ALL.iter().filter_map(of).collect::<Vec<_>>().join(", ");
    ProbeAnswer { word: "ports", text, mark: RowMark::Plain }
}

/// What is known of the path MTU.
pub(crate) fn sentences(probe: &ProbeRecord) -> Vec<(String, RowMark)> {
    probe.path_mtu.as_ref().map(mtu).unwrap_or_default()
}

/// Everything else.
pub(crate) fn tables(probe: &ProbeRecord) -> Vec<ProbeTable> {
    let tables = [hops(&probe.hops), ports(&probe.ports), outages(&probe.outages)];
    tables.into_iter().filter(|table| !table.lines.is_empty() || table.remark.is_some()).collect()
}

fn mtu(found: &PathMtuRecord) -> Vec<(String, RowMark)> {
    let device = grouped(found.device_bytes);
    let first = match found.mtu_bytes {
        Some(mtu) => {
            let mtu = grouped(mtu);
            (format!("packets of up to {mtu} B come through; the own device takes {device} B"), RowMark::Plain)
        }
        None => ("no packet of any length was answered".to_owned(), RowMark::Missing),
    };
    let told = found.too_big.iter().map(|told| {
        let fits =
            if told.mtu_bytes == 0 { "no MTU given".to_owned() } else { format!("MTU {} B", grouped(told.mtu_bytes)) };
        (format!("{} says: packet too big, {fits}", told.from), RowMark::Plain)
    });
    let hole = found.vanishing_from_bytes.map(|from| {
        let from = grouped(from);
        let text = format!("black hole: packets of {from} B and more vanish without a `too big` message");
        (text, RowMark::Broken)
    });
    std::iter::once(first).chain(told).chain(hole).collect()
}

fn hops(hops: &[HopRecord]) -> ProbeTable {
    // A silent end tells nothing hop by hop.
    let last = hops.iter().rposition(|hop| !hop.addresses.is_empty()).map_or(0, |at| at + 1);
    let remark = (last < hops.len()).then(|| format!("nothing answers beyond hop {last}"));
    let header = &["hop", "address", "lost", "of", "RTT min", "median", "max", ""];
    ProbeTable { header, lines: hops[..last].iter().map(hop).collect(), remark }
}

fn hop(hop: &HopRecord) -> (Vec<String>, RowMark) {
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
        (Some(_), _) => RowMark::Broken,
        (None, true) => RowMark::Missing,
        (None, false) => RowMark::Plain,
    };
    (cells, mark)
}

fn ports(ports: &[PortRecord]) -> ProbeTable {
    let mut lines = Vec::new();
    for state in PortState::ALL {
        let of_state: Vec<&PortRecord> = ports.iter().filter(|port| port.state == state).collect();
        let mark = if state == PortState::Open { RowMark::Kept } else { RowMark::Plain };
        for port in of_state.iter().take(PORTS_MAX) {
            let rtt = port.rtt_ns.map_or_else(|| MISSING.to_owned(), |rtt| rtt.to_string());
            lines.push((vec![port.port.to_string(), state.name().to_owned(), rtt, port.answer.clone()], mark));
        }
        if of_state.len() > PORTS_MAX {
            let more = format!("{} more", grouped(u64::try_from(of_state.len() - PORTS_MAX).unwrap_or(u64::MAX)));
            lines.push((vec!["…".to_owned(), state.name().to_owned(), more, String::new()], mark));
        }
    }
    ProbeTable { header: &["port", "state", "RTT", "answer"], lines, remark: None }
}

fn outages(outages: &[OutageRecord]) -> ProbeTable {
    let line = |outage: &OutageRecord| {
        let length = outage.length_ns.map_or_else(|| "to the end".to_owned(), |length| length.to_string());
        (vec![outage.from.clone(), length, grouped(outage.n_probes)], RowMark::Broken)
    };
    let lines: Vec<(Vec<String>, RowMark)> = outages.iter().take(OUTAGES_MAX).map(line).collect();
    let n_more = outages.len().saturating_sub(OUTAGES_MAX);
    let remark = (n_more > 0).then(|| format!("{n_more} more outages are in the JSON document"));
    ProbeTable { header: &["outage from", "length", "probes lost"], lines, remark }
}

//! Results of single-packet probes, as sentences and tables: a route, a path MTU, ports, outages.

mod pairs;

use fathom_model::{
    Layer, Record, Run, TestRun,
    names::count::{RECEIVED, SENT},
    probe::{HopRecord, OutageRecord, PathMtuRecord, PortRecord, PortState, ProbeRecord},
    units::{Nanos, grouped},
};

use super::{
    block::{Block, Fact, Row, Table, columns},
    fragments,
};
use crate::words::{MISSING, Mark};

/// The maximum number of outages on a page. The JSON document has all of them.
const OUTAGES_MAX: usize = 12;
/// The maximum number of ports of one state that are listed.
const PORTS_MAX: usize = 40;

/// Returns the probe results of the last round of a test, if it was a probe test.
fn last_record(test: &TestRun) -> Option<&ProbeRecord> {
    let tells = |probe: &&ProbeRecord| {
        let has_rows = !probe.hops.is_empty() || !probe.ports.is_empty() || !probe.outages.is_empty();
        has_rows || probe.path_mtu.is_some() || probe.fragments.is_some()
    };
    let trials = test.trials.iter().rev();
    trials.flat_map(|trial| trial.records.values()).filter_map(|record| record.probe.as_ref()).find(tells)
}

/// Returns the results of a probe test as sentences and tables.
pub(super) fn blocks(test: &TestRun) -> Vec<Block<'_>> {
    if test.layer == Layer::Path && !test.links.is_empty() {
        return pairs::blocks(test);
    }
    last_record(test).map(of_record).unwrap_or_default()
}

/// Returns the results of the probes of one host as sentences and tables.
fn of_record(probe: &ProbeRecord) -> Vec<Block<'_>> {
    let mut blocks = probe.path_mtu.as_ref().map(mtu).unwrap_or_default();
    blocks.extend(probe.fragments.iter().flat_map(fragments::blocks));
    for (table, remark) in [hops(&probe.hops), ports(&probe.ports), outages(&probe.outages)] {
        if !table.rows.is_empty() || remark.is_some() {
            blocks.push(Block::Table(table));
            blocks.extend(remark.map(|remark| Block::caution(remark, Mark::Missing)));
        }
    }
    blocks
}

/// Returns the same results below the name of the test, for a run of several tests.
pub(super) fn with_heading(test: &TestRun) -> Vec<Block<'_>> {
    let to = match last_record(test) {
        Some(probe) => &probe.target,
        None if test.links.is_empty() || test.layer != Layer::Path => return Vec::new(),
        None => test.to.as_ref().unwrap_or(&test.from),
    };
    let heading = Block::Heading(format!("{} to {to}", test.title));
    std::iter::once(heading).chain(blocks(test)).collect()
}

fn records(test: &TestRun) -> impl Iterator<Item = (&Record, &ProbeRecord)> {
    let records = test.trials.iter().flat_map(|trial| trial.records.values());
    records.filter_map(|record| Some((record, record.probe.as_ref()?)))
}

/// Returns the host that a run probed, or `None` if the run did anything else.
pub(super) fn target(run: &Run) -> Option<&str> {
    let mut targets = run.tests.iter().map(|test| records(test).next().map(|(_, probe)| probe.target.as_str()));
    let first = targets.next()??;
    targets.all(|target| target == Some(first)).then_some(first)
}

/// Returns the answers of all tests of a probe run, in the order of the tests. Any other run has none.
pub(super) fn answers(run: &Run) -> Vec<Fact> {
    if target(run).is_none() {
        return Vec::new();
    }
    let of_test = |test| {
        let (_, last) = records(test).last()?;
        if let Some(found) = &last.fragments {
            return Some(vec![fragments::answer(found)]);
        }
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

fn answers_of_series(test: &TestRun) -> Vec<Fact> {
    let total = |counter: &str| -> u64 { records(test).filter_map(|(record, _)| record.totals.get(counter)).sum() };
    let (n_sent, n_received) = (total(SENT), total(RECEIVED));
    let (yes, mark) = match n_received {
        0 => ("no", Mark::Broken),
        n if n < n_sent => ("yes, with losses", Mark::Open),
        _ => ("yes", Mark::Kept),
    };
    let shown = |name: &str| {
        let summary = test.summaries.iter().find(|summary| summary.metric.name == name)?;
        // A quantile of too few samples only repeats the largest sample.
        let says_more = summary.note.is_none() || name != "rtt_ns_p99";
        let summary = Some(summary).filter(|_| says_more)?;
        Some(summary.metric.show(summary.value?))
    };
    let loss = shown("loss_ratio").map_or_else(String::new, |loss| format!(", {loss} lost"));
    let text = format!("{yes}: {} of {} probes answered{loss}", grouped(n_received), grouped(n_sent));
    let trips = [("min", "rtt_ns_min"), ("median", "rtt_ns_p50"), ("p99", "rtt_ns_p99"), ("max", "rtt_ns_max")];
    let trips: Vec<String> = trips.iter().filter_map(|(word, name)| Some(format!("{word} {}", shown(name)?))).collect();
    let mut answers = vec![Fact { name: "reachable", text, mark }];
    if !trips.is_empty() {
        answers.push(Fact { name: "RTT", text: trips.join(" · "), mark: Mark::Plain });
    }
    answers.push(answer_of_outages(test));
    answers
}

fn answer_of_outages(test: &TestRun) -> Fact {
    let outages: Vec<&OutageRecord> = records(test).flat_map(|(_, probe)| &probe.outages).collect();
    let longest = outages.iter().filter_map(|outage| outage.length_ns).max();
    let lasts = outages.iter().find(|outage| outage.length_ns.is_none());
    let mut words = match outages.len() {
        0 => vec!["none".to_owned()],
        n => vec![grouped(u64::try_from(n).unwrap_or(u64::MAX))],
    };
    words.extend(longest.map(|longest| format!("the longest {longest}")));
    words.extend(lasts.map(|outage| format!("one from {} to the end", outage.from)));
    let mark = if outages.is_empty() { Mark::Plain } else { Mark::Broken };
    Fact { name: "outages", text: words.join(", "), mark }
}

fn answer_of_mtu(found: &PathMtuRecord) -> Fact {
    let (text, mark) = match (found.mtu_bytes, found.vanishing_from_bytes) {
        (None, _) => (format!("{MISSING}  no packet of any length was answered"), Mark::Missing),
        (Some(mtu), Some(_)) => (format!("{} B, and a black hole beyond", grouped(mtu)), Mark::Broken),
        (Some(mtu), None) => (format!("{} B", grouped(mtu)), Mark::Plain),
    };
    Fact { name: "path MTU", text, mark }
}

fn answer_of_route(hops: &[HopRecord]) -> Fact {
    let (text, mark) = match hops.iter().find(|hop| hop.target) {
        Some(last) if last.hop == 1 => ("1 hop".to_owned(), Mark::Plain),
        Some(last) => (format!("{} hops", last.hop), Mark::Plain),
        None => {
            let last = hops.iter().rfind(|hop| !hop.addresses.is_empty()).map_or(0, |hop| hop.hop);
            (format!("the host was not reached; the last that answered is hop {last}"), Mark::Open)
        }
    };
    Fact { name: "route", text, mark }
}

fn answer_of_ports(ports: &[PortRecord]) -> Fact {
    let of = |state: &PortState| {
        let n = ports.iter().filter(|port| port.state == *state).count();
        (n > 0).then(|| format!("{} {}", grouped(u64::try_from(n).unwrap_or(u64::MAX)), state.name()))
    };
    let text = PortState::ALL.iter().filter_map(of).collect::<Vec<_>>().join(", ");
    Fact { name: "ports", text, mark: Mark::Plain }
}

fn mtu(found: &PathMtuRecord) -> Vec<Block<'_>> {
    let device = grouped(found.device_bytes);
    let first = match found.mtu_bytes.map(grouped) {
        Some(mtu) => Block::marked(
            format!("packets of up to {mtu} B come through; the own device takes {device} B"),
            Mark::Plain,
        ),
        None => Block::marked("no packet of any length was answered", Mark::Missing),
    };
    let message = found.too_big.iter().map(|message| {
        let fits = if message.mtu_bytes == 0 {
            "no MTU given".to_owned()
        } else {
            format!("MTU {} B", grouped(message.mtu_bytes))
        };
        Block::sentence(format!("{} says: packet too big, {fits}", message.from))
    });
    let hole = found.vanishing_from_bytes.map(|from| {
        let from = grouped(from);
        let text = format!("black hole: packets of {from} B and more vanish without a `too big` message");
        Block::marked(text, Mark::Broken)
    });
    std::iter::once(first).chain(message).chain(hole).collect()
}

/// A table and the remark below it.
type TableWithRemark = (Table, Option<String>);

fn table<const N: usize>(titles: [&str; N], rows: Vec<Row>) -> Table {
    Table { columns: columns(titles), rows, ..Table::default() }
}

fn hops(hops: &[HopRecord]) -> TableWithRemark {
    // Hops after the last answer are not listed one by one.
    let last = hops.iter().rposition(|hop| !hop.addresses.is_empty()).map_or(0, |at| at + 1);
    let remark = (last < hops.len()).then(|| format!("nothing answers beyond hop {last}"));
    let titles = ["hop", "address", "lost", "of", "RTT min", "median", "max", ""];
    (table(titles, hops[..last].iter().map(hop).collect()), remark)
}

fn hop(hop: &HopRecord) -> Row {
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
    let cells = [
        hop.hop.to_string(),
        address,
        hop.n_sent.saturating_sub(n_answered).to_string(),
        hop.n_sent.to_string(),
        show(sorted.first()),
        // Of two middle values the lower one, so that the median is a time that was measured.
        show(sorted.get(sorted.len().saturating_sub(1) / 2)),
        show(sorted.last()),
        remark,
    ];
    Row::new(cells).marked(match (&hop.complaint, hop.addresses.is_empty()) {
        (Some(_), _) => Mark::Broken,
        (None, true) => Mark::Missing,
        (None, false) => Mark::Plain,
    })
}

fn ports(ports: &[PortRecord]) -> TableWithRemark {
    let mut rows = Vec::new();
    for state in PortState::ALL {
        let of_state: Vec<&PortRecord> = ports.iter().filter(|port| port.state == state).collect();
        let mark = if state == PortState::Open { Mark::Kept } else { Mark::Plain };
        for port in of_state.iter().take(PORTS_MAX) {
            let rtt = port.rtt_ns.map_or_else(|| MISSING.to_owned(), |rtt| rtt.to_string());
            rows.push(
                Row::new([port.port.to_string(), state.name().to_owned(), rtt, port.answer.clone()]).marked(mark),
            );
        }
        if of_state.len() > PORTS_MAX {
            let more = format!("{} more", of_state.len() - PORTS_MAX);
            rows.push(Row::new(["…", state.name(), &more, ""]).marked(mark));
        }
    }
    (table(["port", "state", "RTT", "answer"], rows), None)
}

fn outages(outages: &[OutageRecord]) -> TableWithRemark {
    let row = |outage: &OutageRecord| {
        let length = outage.length_ns.map_or_else(|| "to the end".to_owned(), |length| length.to_string());
        Row::new([outage.from.clone(), length, grouped(outage.n_probes)]).marked(Mark::Broken)
    };
    let n_more = outages.len().saturating_sub(OUTAGES_MAX);
    let remark = (n_more > 0).then(|| format!("{n_more} more outages are in the JSON document"));
    let rows = outages.iter().take(OUTAGES_MAX).map(row).collect();
    (table(["outage from", "length", "probes lost"], rows), remark)
}

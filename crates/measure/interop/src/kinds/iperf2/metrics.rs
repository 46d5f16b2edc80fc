//! The metrics of a test against an iperf 2 server, and those that the server reports.

use fathom_model::{
    Better, Derivation, Metric, Record, Side, Unit,
    metric::{MetricName, UnitAndSense},
    units::{approximate, rounded},
};

use crate::iperf2::ServerReport;

const SOURCE: &str = "docs/methods/iperf2.md";

/// Payload bytes sent or received by the client's sockets.
pub(super) const BYTES: &str = "bytes_moved";
pub(super) const CALLS: &str = "calls";
pub(super) const FULL: &str = "calls_without_room";
/// Datagrams sent, or the highest number received.
pub(super) const DATAGRAMS: &str = "datagrams";
pub(super) const RECEIVED: &str = "datagrams_received";
pub(super) const JITTER_SUM: &str = "jitter_ns_sum";
const JITTER: &str = fathom_model::names::count::JITTER_NS;
const KIBIBYTES: &str = "kibibytes_moved";
/// Datagrams sent, and those of them that were lost, as counted by the receiver.
const ALL_SENT: &str = "datagrams_sent";
const ALL_LOST: &str = "datagrams_lost";
const RETRANSMITS: &str = "retransmits";
const SERVER_RATE: &str = "server_rate_bps";
const SERVER_BYTES: &str = "server_bytes";

const CLIENT: Side = Side::Initiator;
const BITS: UnitAndSense = UnitAndSense(Unit::BitsPerSec, Better::Higher);
const THROUGHPUT: Metric =
    Metric::of(MetricName("throughput_bps", "goodput"), BITS, SOURCE, Derivation::rate(CLIENT, BYTES));

pub(super) const TCP: &[Metric] = &[
    THROUGHPUT,
    Metric::of(
        MetricName("retransmitted_segments", "segments sent again"),
        UnitAndSense(Unit::Count, Better::Lower),
        SOURCE,
        Derivation::total(CLIENT, RETRANSMITS),
    ),
    Metric::of(
        MetricName("cost_client_ns_per_kib", "client's CPU per KiB"),
        UnitAndSense::TIME,
        SOURCE,
        Derivation::cost(CLIENT, KIBIBYTES),
    ),
];

pub(super) const UDP: &[Metric] = &[
    THROUGHPUT,
    Metric::of(
        MetricName("server_throughput_bps", "by the server"),
        BITS,
        SOURCE,
        Derivation::total(CLIENT, SERVER_RATE),
    ),
    Metric::of(
        MetricName("loss_ratio", "lost"),
        UnitAndSense(Unit::Ratio, Better::Lower),
        SOURCE,
        Derivation::share((CLIENT, ALL_LOST), (CLIENT, ALL_SENT)),
    ),
    Metric::of(
        MetricName("jitter_ns", "jitter"),
        UnitAndSense::TIME,
        "RFC 3550 section 6.4.1",
        Derivation::total(CLIENT, JITTER),
    ),
];

/// Adds the totals that this side knows without the server.
pub(super) fn add_client_totals(record: &mut Record, retransmits: Option<u64>) {
    let moved = record.totals.get(BYTES).copied().unwrap_or(0);
    record.totals.insert(KIBIBYTES.to_owned(), moved / 1024);
    record.totals.remove(JITTER_SUM);
    if let Some(retransmits) = retransmits {
        record.totals.insert(RETRANSMITS.to_owned(), retransmits);
    }
}

/// Adds what the client counted of the server's datagrams.
pub(super) fn add_received(record: &mut Record, jitter_ns: u64) {
    let total = |record: &Record, name: &str| record.totals.get(name).copied().unwrap_or(0);
    let (sent, received) = (total(record, DATAGRAMS), total(record, RECEIVED));
    record.totals.insert(ALL_SENT.to_owned(), sent);
    record.totals.insert(ALL_LOST.to_owned(), sent.saturating_sub(received));
    record.totals.insert(JITTER.to_owned(), jitter_ns);
}

/// Adds the reports of the server on all flows.
pub(super) fn add_reports(record: &mut Record, reports: &[ServerReport]) {
    let sum = |of: fn(&ServerReport) -> u64| reports.iter().map(of).sum::<u64>();
    let span = reports.iter().map(|report| report.span.as_secs_f64()).fold(0.0, f64::max);
    let bytes = sum(|report| report.bytes);
    let mut put = |name: &str, value: u64| record.totals.insert(name.to_owned(), value);
    put(SERVER_BYTES, bytes);
    if span > 0.0 {
        put(SERVER_RATE, rounded(approximate(bytes) * 8.0 / span));
    }
    put(ALL_SENT, sum(|report| report.datagrams));
    put(ALL_LOST, sum(|report| report.lost));
    put(JITTER, reports.iter().map(|report| report.jitter.0).max().unwrap_or(0));
}

//! The metrics of a test against an iperf 2 server, and those that the server reports.

use fathom_model::{
    Metric, Record,
    units::{approximate, rounded},
};

use super::super::server_kind::metrics::{
    self, DATAGRAMS_LOST, DATAGRAMS_SENT, JITTER, KIBIBYTES, RETRANSMITS, SERVER_BYTES, SERVER_RATE,
};
pub(super) use super::super::server_kind::metrics::{BYTES, JITTER_SUM};
use crate::iperf2::ServerReport;

const SOURCE: &str = "docs/methods/iperf2.md";

pub(super) const CALLS: &str = "calls";
pub(super) const FULL: &str = "calls_without_room";
/// Datagrams sent, or the highest number received.
pub(super) const DATAGRAMS: &str = "datagrams";
pub(super) const RECEIVED: &str = "datagrams_received";

const THROUGHPUT: Metric = metrics::throughput(SOURCE);

pub(super) const TCP: &[Metric] = &[THROUGHPUT, metrics::retransmitted_segments(SOURCE), metrics::cost_per_kib(SOURCE)];

pub(super) const UDP: &[Metric] =
    &[THROUGHPUT, metrics::server_throughput(SOURCE), metrics::loss(SOURCE), metrics::jitter()];

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
    record.totals.insert(DATAGRAMS_SENT.to_owned(), sent);
    record.totals.insert(DATAGRAMS_LOST.to_owned(), sent.saturating_sub(received));
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
    put(DATAGRAMS_SENT, sum(|report| report.datagrams));
    put(DATAGRAMS_LOST, sum(|report| report.lost));
    put(JITTER, reports.iter().map(|report| report.jitter.0).max().unwrap_or(0));
}

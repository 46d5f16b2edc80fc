//! The metrics of a test against an iperf3 server, and those that the server reports.

use fathom_model::{
    Better, Derivation, Metric, Record, Unit,
    metric::{MetricName, UnitAndSense},
    units::{approximate, rounded},
};

use super::super::server_kind::metrics::{
    self, CLIENT, DATAGRAMS_LOST, DATAGRAMS_SENT, JITTER, KIBIBYTES, RETRANSMITS, SERVER_BYTES, SERVER_RATE,
};
pub(super) use super::super::server_kind::metrics::{BYTES, JITTER_SUM};
use crate::iperf3::{Iperf3Outcome, Results, StreamRole};

const SOURCE: &str = "docs/methods/iperf3.md";

/// Datagrams sent, and the highest numbers received.
pub(super) const DATAGRAMS: &str = "datagrams";
pub(super) const LOST: &str = "lost";
const SERVER_CPU: &str = "server_cpu_ns";
const SERVER_TIME: &str = "server_time_ns";

const THROUGHPUT: Metric = metrics::throughput(SOURCE);
const SERVER: Metric = metrics::server_throughput(SOURCE);
const SERVER_SHARE: Metric = Metric::of(
    MetricName("server_cpu_ratio", "server's CPU"),
    UnitAndSense(Unit::Ratio, Better::Lower),
    SOURCE,
    Derivation::share((CLIENT, SERVER_CPU), (CLIENT, SERVER_TIME)),
);

pub(super) const TCP: &[Metric] =
    &[THROUGHPUT, SERVER, metrics::retransmitted_segments(SOURCE), metrics::cost_per_kib(SOURCE), SERVER_SHARE];

pub(super) const UDP: &[Metric] = &[THROUGHPUT, SERVER, metrics::loss(SOURCE), metrics::jitter(), SERVER_SHARE];

/// Adds the totals that this side knows without the server.
pub(super) fn add_client_totals(record: &mut Record, outcome: &Iperf3Outcome) {
    let moved = record.totals.get(BYTES).copied().unwrap_or(0);
    record.totals.insert(KIBIBYTES.to_owned(), moved / 1024);
    record.totals.remove(JITTER_SUM);
    let receives = outcome.streams.iter().filter(|own| own.stream.role == StreamRole::Receiver);
    if let Some(jitter) = receives.map(|own| own.total.jitter.0).max() {
        record.totals.insert(JITTER.to_owned(), jitter);
    }
    if let Some(name) = &outcome.congestion {
        record.facts.insert("congestion".to_owned(), name.clone());
    }
}

/// Adds the server's results for its streams, by the role of each side.
pub(super) fn add_server_totals(record: &mut Record, results: &Results, outcome: &Iperf3Outcome) {
    let mut put = |name: &str, value: u64| record.totals.insert(name.to_owned(), value);
    let streams = || outcome.streams.iter().filter_map(|own| Some((own, results.stream(own.stream.id)?)));
    let span = streams().map(|(_, told)| told.seconds).fold(0.0, f64::max);
    // Servers before 3.2 do not report a duration.
    let span = if span > 0.0 { span } else { outcome.span.as_secs_f64() };
    let bytes: u64 = streams().map(|(_, told)| told.bytes).sum();
    put(SERVER_BYTES, bytes);
    put(SERVER_RATE, rounded(approximate(bytes) * 8.0 / span.max(1e-9)));
    put(SERVER_TIME, rounded(span * 1e9));
    put(SERVER_CPU, rounded(results.cpu.total / 100.0 * span * 1e9));
    let (mut sent, mut lost, mut again) = (0, 0, 0);
    let mut jitter = record.totals.get(JITTER).copied().unwrap_or(0);
    for (own, told) in streams() {
        match own.stream.role {
            StreamRole::Sender => {
                sent += own.total.packets;
                lost += told.lost;
                again += own.total.tcp.map_or(0, |tcp| tcp.retransmits);
                jitter = jitter.max(rounded(told.jitter_secs * 1e9));
            }
            StreamRole::Receiver => {
                sent += told.packets.max(own.total.packets);
                lost += own.total.lost;
                again += told.retransmits.unwrap_or(0);
            }
        }
    }
    let mut put = |name: &str, value: u64| record.totals.insert(name.to_owned(), value);
    put(DATAGRAMS_SENT, sent);
    put(DATAGRAMS_LOST, lost);
    put(RETRANSMITS, again);
    put(JITTER, jitter);
    if let Some(name) = &results.congestion {
        record.facts.insert("server_congestion".to_owned(), name.clone());
    }
}

//! The metrics of a test against a netserver, and the totals that they are derived from.

use fathom_model::{
    Better, Derivation, Metric, Record, Unit,
    metric::{MetricName, UnitAndSense},
    names::{count::TRANSACTIONS, distribution::SERVICE_TIME},
    units::{approximate, rounded},
};

use super::super::server_kind::metrics::{self, BYTES, CLIENT, DATAGRAMS_LOST, DATAGRAMS_SENT, KIBIBYTES, SERVER_RATE};
use crate::netperf::{Counter, DataPattern, DataProtocol, TestSpec, wire::OmniResults};

const SOURCE: &str = "docs/methods/netperf.md";

/// Send or receive calls of the client: its datagrams.
const CALLS: &str = "calls";
const FAILED_SENDS: &str = "failed_sends";
/// Requests whose answer did not come in time.
const LOST: &str = "lost_requests";
const REQUESTS: &str = "requests";
const SERVER_CPU: &str = "server_host_cpu_ns";
const SERVER_TIME: &str = "server_host_time_ns";

/// The counters of a stream; the first one shows whether the rate is steady.
const STREAM_COUNTERS: &[&str] = &[BYTES, CALLS, FAILED_SENDS];
/// The counters of transactions.
const TRANSACTION_COUNTERS: &[&str] = &[TRANSACTIONS, LOST];

const RATE: UnitAndSense = UnitAndSense(Unit::PerSec, Better::Higher);
const SHARE: UnitAndSense = UnitAndSense(Unit::Ratio, Better::Lower);

const fn metric(name: MetricName, measure: UnitAndSense, from: Derivation) -> Metric {
    Metric::of(name, measure, SOURCE, from)
}

const THROUGHPUT: Metric = metrics::throughput(SOURCE);
const SERVER: Metric = metrics::server_throughput(SOURCE);
const SERVER_SHARE: Metric = metric(
    MetricName("server_host_cpu_ratio", "CPU of the server's host"),
    SHARE,
    Derivation::share((CLIENT, SERVER_CPU), (CLIENT, SERVER_TIME)),
);
const PER_SECOND: Metric =
    metric(MetricName("transactions_per_sec", "transactions"), RATE, Derivation::rate(CLIENT, TRANSACTIONS));
const COST_PER_TRANSACTION: Metric = metric(
    MetricName("cost_client_ns_per_transaction", "client's CPU per transaction"),
    UnitAndSense::TIME,
    Derivation::cost(CLIENT, TRANSACTIONS),
);

const fn latency(name: MetricName, q: f64) -> Metric {
    metric(name, UnitAndSense::TIME, Derivation::quantile(CLIENT, SERVICE_TIME, q))
}

const P50: Metric = latency(MetricName("latency_ns_p50", "p50"), 0.5);
const P90: Metric = latency(MetricName("latency_ns_p90", "p90"), 0.9);
const P99: Metric = latency(MetricName("latency_ns_p99", "p99"), 0.99);
const P999: Metric = latency(MetricName("latency_ns_p999", "p99.9"), 0.999);
const LATENCY_MAX: Metric = latency(MetricName("latency_ns_max", "max"), 1.0);

pub(super) const TCP_STREAM: &[Metric] = &[THROUGHPUT, SERVER, metrics::cost_per_kib(SOURCE), SERVER_SHARE];
pub(super) const UDP_STREAM: &[Metric] = &[
    THROUGHPUT,
    SERVER,
    metric(MetricName("datagrams_per_sec", "datagrams"), RATE, Derivation::rate(CLIENT, CALLS)),
    metrics::loss(SOURCE),
    SERVER_SHARE,
];
pub(super) const TCP_TRANSACTIONS: &[Metric] =
    &[PER_SECOND, P50, P90, P99, P999, LATENCY_MAX, COST_PER_TRANSACTION, SERVER_SHARE];
pub(super) const UDP_RR: &[Metric] = &[
    PER_SECOND,
    P50,
    P90,
    P99,
    P999,
    LATENCY_MAX,
    metric(MetricName("loss_ratio", "lost"), SHARE, Derivation::share((CLIENT, LOST), (CLIENT, REQUESTS))),
    COST_PER_TRANSACTION,
    SERVER_SHARE,
];

/// The counters of a test.
pub(super) fn counters(spec: &TestSpec) -> &'static [&'static str] {
    if spec.pattern == DataPattern::Transactions { TRANSACTION_COUNTERS } else { STREAM_COUNTERS }
}

/// The place of a counter among [`counters`]; `None` if a test does not show it.
pub(super) fn place(spec: &TestSpec, counter: Counter) -> Option<usize> {
    let is_transactions = spec.pattern == DataPattern::Transactions;
    match (counter, is_transactions) {
        (Counter::BytesSent | Counter::BytesReceived, false) | (Counter::Transactions, true) => Some(0),
        (Counter::SendCalls | Counter::RecvCalls, false) | (Counter::Lost, true) => Some(1),
        (Counter::FailedSends, false) => Some(2),
        _ => None,
    }
}

/// Adds the totals that this side knows without the server.
pub(super) fn add_client_totals(record: &mut Record, spec: &TestSpec) {
    let total = |name: &str| record.totals.get(name).copied().unwrap_or(0);
    let (bytes, requests) = (total(BYTES), total(TRANSACTIONS) + total(LOST));
    if spec.pattern == DataPattern::Transactions {
        record.totals.insert(REQUESTS.to_owned(), requests);
    } else {
        record.totals.insert(KIBIBYTES.to_owned(), bytes / 1024);
    }
}

/// Adds the results of the server for all flows; the first flow alone had the CPUs measured.
pub(super) fn add_server_totals(record: &mut Record, results: &[(usize, OmniResults)]) {
    let first = results.iter().find(|(flow, _)| *flow == 0).map(|(_, results)| results);
    let results: Vec<&OmniResults> = results.iter().map(|(_, results)| results).collect();
    let mut put = |name: &str, value: u64| record.totals.insert(name.to_owned(), value);
    let rate = |results: &&OmniResults| {
        let bytes = approximate(results.bytes_received + results.bytes_sent);
        if results.seconds > 0.0 { bytes * 8.0 / f64::from(results.seconds) } else { 0.0 }
    };
    put(SERVER_RATE, rounded(results.iter().map(rate).sum()));
    if let Some(first) = first {
        let span = f64::from(first.seconds) * 1e9;
        put(SERVER_TIME, rounded(span));
        put(SERVER_CPU, rounded(span * f64::from(first.cpu.busy) / 100.0));
    }
    if let Some(name) = results.first().map(|results| &results.congestion).filter(|name| !name.is_empty()) {
        record.facts.insert("server_congestion".to_owned(), name.clone());
    }
}

/// Adds what was lost of the datagrams of this side, from the results of the server for every flow.
///
/// The bytes say how many came; the count of calls begins anew after 2^32.
pub(super) fn add_loss(record: &mut Record, spec: &TestSpec, (results, size): (&[(usize, OmniResults)], u32)) {
    if (spec.protocol, spec.pattern) != (DataProtocol::Udp, DataPattern::Up) {
        return;
    }
    let sent = record.totals.get(CALLS).copied().unwrap_or(0);
    let received: u64 = results.iter().map(|(_, results)| results.bytes_received / u64::from(size.max(1))).sum();
    record.totals.insert(DATAGRAMS_SENT.to_owned(), sent);
    record.totals.insert(DATAGRAMS_LOST.to_owned(), sent.saturating_sub(received));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_the_server_say_what_was_lost() {
        let mut record = Record::empty(CLIENT);
        let sent = (1 << 32) + 100;
        record.totals.insert(CALLS.to_owned(), sent);
        let spec = TestSpec { protocol: DataProtocol::Udp, ..TestSpec::default() };
        let results = OmniResults { bytes_received: 1400 * (sent - 7), recv_calls: 93, ..OmniResults::default() };
        add_loss(&mut record, &spec, (&[(0, results)], 1400));
        assert_eq!((record.totals[DATAGRAMS_SENT], record.totals[DATAGRAMS_LOST]), (sent, 7));
    }
}

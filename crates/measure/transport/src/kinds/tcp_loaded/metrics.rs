//! The metrics of latency under load.

use fathom_model::{
    Better, Derivation, Metric, Side, Unit,
    metric::{MetricName, UnitAndSense},
    names::{
        count,
        distribution::{CONNECT_TIME, RESPONSE_TIME, SCHEDULE_LAG},
        tcp,
    },
};

use crate::tcp_sampler::BYTES_TRANSMITTED;

const SOURCE: &str = "docs/methods/tcp_loaded.md";
const HERE: Side = Side::Initiator;
const THERE: Side = Side::Responder;
const GOODPUT: UnitAndSense = UnitAndSense(Unit::BitsPerSec, Better::Higher);

const fn own(name: MetricName, measure: UnitAndSense, from: Derivation) -> Metric {
    Metric::of(name, measure, SOURCE, from)
}

const fn time(name: MetricName, distribution: &'static str, q: f64) -> Metric {
    own(name, UnitAndSense::TIME, Derivation::quantile(HERE, distribution, q))
}

const fn rtt(name: MetricName, sender: Side) -> Metric {
    own(name, UnitAndSense::TIME, Derivation::quantile(sender, tcp::RTT_NS, 0.5))
}

const fn retransmitted(name: MetricName, sender: Side) -> Metric {
    let from = Derivation::share((sender, tcp::BYTES_RETRANS), (sender, BYTES_TRANSMITTED));
    Metric::of(name, UnitAndSense(Unit::Ratio, Better::Lower), "RFC 6349 section 4.2", from)
}

/// Up is the initiator's sending direction, down the other.
pub(super) const METRICS: &[Metric] = &[
    time(MetricName("latency_ns_p50", "p50"), RESPONSE_TIME, 0.5),
    time(MetricName("latency_ns_p90", "p90"), RESPONSE_TIME, 0.9),
    time(MetricName("latency_ns_p99", "p99"), RESPONSE_TIME, 0.99),
    time(MetricName("latency_ns_max", "max"), RESPONSE_TIME, 1.0),
    own(
        MetricName("responsiveness_rpm", "round trips per minute"),
        UnitAndSense(Unit::Count, Better::Higher),
        Derivation::per_minute(HERE, RESPONSE_TIME, 0.9),
    ),
    own(MetricName("throughput_bps_up", "goodput up"), GOODPUT, Derivation::rate(THERE, count::BYTES_RECEIVED)),
    own(MetricName("throughput_bps_down", "goodput down"), GOODPUT, Derivation::rate(HERE, count::BYTES_RECEIVED)),
    rtt(MetricName("rtt_ns_p50_up", "RTT of the load up p50"), HERE),
    rtt(MetricName("rtt_ns_p50_down", "RTT of the load down p50"), THERE),
    retransmitted(MetricName("retransmitted_ratio_up", "retransmitted up"), HERE),
    retransmitted(MetricName("retransmitted_ratio_down", "retransmitted down"), THERE),
    own(
        MetricName("probes_per_sec", "probes answered"),
        UnitAndSense(Unit::PerSec, Better::Neither),
        Derivation::rate(HERE, count::TRANSACTIONS),
    ),
    time(MetricName("lag_ns_p99", "probes sent late p99"), SCHEDULE_LAG, 0.99),
    time(MetricName("connect_ns_p50", "connect p50"), CONNECT_TIME, 0.5),
];

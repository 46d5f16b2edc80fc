//! The metrics of requests without sockets.

use fathom_http::{metric_definitions::MetricPage, names as http};
use fathom_model::{
    Better::{Higher, Lower, Neither},
    Derivation, Metric, Side, Unit,
    metric::{MetricName, UnitAndSense},
    names::{count, distribution},
};

use crate::client::BY_SLOW_PATH;

const SIDE: Side = Side::Initiator;
const PAGE: MetricPage = MetricPage("docs/methods/http_xdp.md");

const fn latency(named: MetricName, q: f64) -> Metric {
    PAGE.quantile(named, distribution::RESPONSE_TIME, q)
}

const fn first_byte(named: MetricName, q: f64) -> Metric {
    PAGE.quantile(named, distribution::FIRST_BYTE, q)
}

const P50: Metric = latency(MetricName("latency_ns_p50", "p50"), 0.5);
const P90: Metric = latency(MetricName("latency_ns_p90", "p90"), 0.9);
const P99: Metric = latency(MetricName("latency_ns_p99", "p99"), 0.99);
const P999: Metric = latency(MetricName("latency_ns_p999", "p99.9"), 0.999);
const MAX: Metric = latency(MetricName("latency_ns_max", "max"), 1.0);
const FIRST_P50: Metric = first_byte(MetricName("first_byte_ns_p50", "first byte p50"), 0.5);
const FIRST_P99: Metric = first_byte(MetricName("first_byte_ns_p99", "first byte p99"), 0.99);
const FIRST_MAX: Metric = first_byte(MetricName("first_byte_ns_max", "first byte max"), 1.0);
const FAILED: Metric = PAGE.metric(
    MetricName("failed_ratio", "failed (RFC 9411)"),
    UnitAndSense(Unit::Ratio, Lower),
    Derivation::missing((SIDE, http::ATTEMPTS), (SIDE, http::STATUS[0])),
);
const SLOW: Metric =
    PAGE.share(MetricName("slow_path_ratio", "answered by the slow path"), (BY_SLOW_PATH, count::REQUESTS));
const HOST_COST: Metric = PAGE.metric(
    MetricName("host_cost_ns", "cost per request, whole host"),
    UnitAndSense(Unit::Nanos, Lower),
    Derivation::host_cost(SIDE, count::REQUESTS),
);

/// Those of a closed load.
pub(super) const CLOSED: &[Metric] = &[
    PAGE.answered_rate(),
    P50,
    P90,
    P99,
    P999,
    MAX,
    FIRST_P50,
    FIRST_P99,
    FIRST_MAX,
    PAGE.metric(
        MetricName("connections_per_sec", "connections"),
        UnitAndSense(Unit::PerSec, Higher),
        Derivation::rate(SIDE, count::CONNECTIONS),
    ),
    PAGE.quantile(MetricName("connect_ns_p50", "SYN-ACK p50"), distribution::CONNECT_TIME, 0.5),
    PAGE.quantile(MetricName("connect_ns_p99", "SYN-ACK p99"), distribution::CONNECT_TIME, 0.99),
    PAGE.error_share("errors"),
    PAGE.not_2xx(),
    FAILED,
    SLOW,
    HOST_COST,
];

/// Those of requests at a rate.
pub(super) const OPEN: &[Metric] = &[
    PAGE.answered_rate(),
    P50,
    P90,
    P99,
    P999,
    MAX,
    FIRST_P50,
    FIRST_P99,
    FIRST_MAX,
    PAGE.metric(
        MetricName("offered_per_sec", "offered"),
        UnitAndSense(Unit::RequestsPerSec, Neither),
        Derivation::rate(SIDE, count::INTENDED),
    ),
    PAGE.quantile(MetricName("lag_ns_p99", "lag p99"), distribution::SCHEDULE_LAG, 0.99),
    PAGE.share(
        MetricName("late_no_connection_ratio", "late, no connection free"),
        (count::LATE_NO_CONNECTION, count::INTENDED),
    ),
    PAGE.share(MetricName("late_own_cpu_ratio", "late, own processor"), (count::LATE_OWN_CPU, count::INTENDED)),
    PAGE.share(MetricName("not_started_ratio", "never started"), (http::NOT_STARTED, count::INTENDED)),
    PAGE.error_share("errors"),
    PAGE.not_2xx(),
    FAILED,
    SLOW,
    HOST_COST,
];

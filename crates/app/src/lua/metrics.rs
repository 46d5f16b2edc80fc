//! What a script's load amounts to, the most important first.

use fathom_http::names;
use fathom_model::{
    Better::{Higher, Lower, Neither},
    Derivation, Metric, Side, Unit,
    metric::{Measure, Named},
    names::{count, distribution},
};

const SIDE: Side = Side::Initiator;
const PAGE: &str = "docs/methods/app_lua.md";

const fn metric(named: Named, measure: Measure, from: Derivation) -> Metric {
    Metric::of(named, measure, PAGE, from)
}

const fn quantile(named: Named, distribution: &'static str, q: f64) -> Metric {
    metric(named, Measure(Unit::Nanos, Lower), Derivation::quantile(SIDE, distribution, q))
}

pub(super) const ALL: &[Metric] = &[
    metric(
        Named("requests_per_sec", "requests"),
        Measure(Unit::RequestsPerSec, Higher),
        Derivation::rate(SIDE, count::REQUESTS),
    ),
    quantile(Named("latency_ns_p50", "p50"), distribution::SERVICE_TIME, 0.5),
    quantile(Named("latency_ns_p90", "p90"), distribution::SERVICE_TIME, 0.9),
    quantile(Named("latency_ns_p99", "p99"), distribution::SERVICE_TIME, 0.99),
    quantile(Named("latency_ns_p999", "p99.9"), distribution::SERVICE_TIME, 0.999),
    quantile(Named("latency_ns_max", "max"), distribution::SERVICE_TIME, 1.0),
    quantile(Named("first_byte_ns_p50", "first byte p50"), distribution::FIRST_BYTE, 0.5),
    quantile(Named("connect_ns_p50", "connect p50"), distribution::CONNECT_TIME, 0.5),
    metric(
        Named("received_bps", "received"),
        Measure(Unit::BitsPerSec, Neither),
        Derivation::rate(SIDE, count::BYTES_RECEIVED),
    ),
    metric(
        Named("errors_ratio", "errors"),
        Measure(Unit::Ratio, Lower),
        Derivation::share((SIDE, names::ERRORS), (SIDE, names::ATTEMPTS)),
    ),
    metric(
        Named("not_2xx_ratio", "answers other than 2xx"),
        Measure(Unit::Ratio, Lower),
        Derivation::missing((SIDE, count::REQUESTS), (SIDE, names::STATUS[0])),
    ),
    metric(Named("cost_ns", "cost per request"), Measure(Unit::Nanos, Lower), Derivation::cost(SIDE, count::REQUESTS)),
];

//! What a closed loop amounts to, the most important first.

use std::borrow::Cow::Borrowed;

use fathom_model::{
    Better::{Higher, Lower, Neither},
    Derivation, Metric, Side, Unit,
    metric::Better,
    names::{count, distribution},
};

use crate::names;

const METHOD: &str = "docs/methods/http_closed.md";
const SIDE: Side = Side::Initiator;

const fn metric(name: &'static str, title: &'static str, (unit, better): (Unit, Better), from: Derivation) -> Metric {
    Metric { name: Borrowed(name), title: Borrowed(title), unit, better, source: Borrowed(METHOD), from }
}

const fn rate(counter: &'static str) -> Derivation {
    Derivation::Rate { side: SIDE, counter: Borrowed(counter) }
}

const fn quantile(name: &'static str, title: &'static str, distribution: &'static str, q: f64) -> Metric {
    let from = Derivation::Quantile { side: SIDE, distribution: Borrowed(distribution), q };
    metric(name, title, (Unit::Nanos, Lower), from)
}

pub(super) const METRICS: &[Metric] = &[
    metric("requests_per_sec", "requests", (Unit::RequestsPerSec, Higher), rate(count::REQUESTS)),
    quantile("latency_ns_p50", "p50", distribution::SERVICE_TIME, 0.5),
    quantile("latency_ns_p90", "p90", distribution::SERVICE_TIME, 0.9),
    quantile("latency_ns_p99", "p99", distribution::SERVICE_TIME, 0.99),
    quantile("latency_ns_p999", "p99.9", distribution::SERVICE_TIME, 0.999),
    quantile("latency_ns_max", "max", distribution::SERVICE_TIME, 1.0),
    quantile("first_byte_ns_p50", "first byte p50", distribution::FIRST_BYTE, 0.5),
    quantile("connect_ns_p50", "connect p50", distribution::CONNECT_TIME, 0.5),
    metric("received_bps", "received", (Unit::BitsPerSec, Neither), rate(count::BYTES_RECEIVED)),
    metric(
        "errors_ratio",
        "errors",
        (Unit::Ratio, Lower),
        Derivation::Share { part: (SIDE, Borrowed(names::ERRORS)), whole: (SIDE, Borrowed(names::ATTEMPTS)) },
    ),
    metric(
        "not_2xx_ratio",
        "answers other than 2xx",
        (Unit::Ratio, Lower),
        Derivation::Missing { sent: (SIDE, Borrowed(count::REQUESTS)), arrived: (SIDE, Borrowed(names::STATUS[0])) },
    ),
    metric(
        "cost_ns",
        "cost per request",
        (Unit::Nanos, Lower),
        Derivation::Cost { side: SIDE, counter: Borrowed(count::REQUESTS) },
    ),
];

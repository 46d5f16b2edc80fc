//! What a script's load amounts to, the most important first.

use fathom_http::metrics::Page;
use fathom_model::{Metric, metric::Named, names::distribution};

const PAGE: Page = Page("docs/methods/app_lua.md");

pub(super) const ALL: &[Metric] = &[
    PAGE.answered(),
    PAGE.quantile(Named("latency_ns_p50", "p50"), distribution::SERVICE_TIME, 0.5),
    PAGE.quantile(Named("latency_ns_p90", "p90"), distribution::SERVICE_TIME, 0.9),
    PAGE.quantile(Named("latency_ns_p99", "p99"), distribution::SERVICE_TIME, 0.99),
    PAGE.quantile(Named("latency_ns_p999", "p99.9"), distribution::SERVICE_TIME, 0.999),
    PAGE.quantile(Named("latency_ns_max", "max"), distribution::SERVICE_TIME, 1.0),
    PAGE.quantile(Named("first_byte_ns_p50", "first byte p50"), distribution::FIRST_BYTE, 0.5),
    PAGE.quantile(Named("connect_ns_p50", "connect p50"), distribution::CONNECT_TIME, 0.5),
    PAGE.received(),
    PAGE.errors("errors"),
    PAGE.not_2xx(),
    PAGE.cost(),
];

//! The metrics of a script's load, the most important first.

use fathom_http::metric_definitions::MetricPage;
use fathom_model::{Metric, metric::MetricName, names::distribution};

const PAGE: MetricPage = MetricPage("docs/methods/app_lua.md");

pub(super) const ALL: &[Metric] = &[
    PAGE.answered_rate(),
    PAGE.quantile(MetricName("latency_ns_p50", "p50"), distribution::SERVICE_TIME, 0.5),
    PAGE.quantile(MetricName("latency_ns_p90", "p90"), distribution::SERVICE_TIME, 0.9),
    PAGE.quantile(MetricName("latency_ns_p99", "p99"), distribution::SERVICE_TIME, 0.99),
    PAGE.quantile(MetricName("latency_ns_p999", "p99.9"), distribution::SERVICE_TIME, 0.999),
    PAGE.quantile(MetricName("latency_ns_max", "max"), distribution::SERVICE_TIME, 1.0),
    PAGE.quantile(MetricName("first_byte_ns_p50", "first byte p50"), distribution::FIRST_BYTE, 0.5),
    PAGE.quantile(MetricName("connect_ns_p50", "TCP connect p50"), distribution::CONNECT_TIME, 0.5),
    PAGE.received_rate(),
    PAGE.error_share("errors"),
    PAGE.not_2xx(),
    PAGE.cpu_cost(),
];

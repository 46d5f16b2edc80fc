//! The values of requests that are sent again, recorded or live.

use fathom_http::metric_definitions::MetricPage;
use fathom_model::{
    Better::Neither,
    Derivation, Metric, Side, Unit,
    metric::{MetricName, UnitAndSense},
    names::distribution,
};

/// The number of answers that were compared, and of those that differ.
pub(super) const COMPARED: &str = "answers_compared";
pub(super) const DIFFERENT: &str = "answers_different";
/// The distribution of the times of answers in the recording.
pub(super) const RECORDED_TIME: &str = "recorded_time_ns";

/// Why some values are absent.
const NOT_DUE: &str = "no request is due at a time with --speed max";
const NOT_COMPARED: &str = "answers are not compared without --compare";

const PAGE: MetricPage = MetricPage("docs/methods/http_replay.md");

pub(super) const METRICS: &[Metric] = &[
    PAGE.answered_rate(),
    PAGE.quantile(MetricName("latency_ns_p50", "p50"), distribution::SERVICE_TIME, 0.5),
    PAGE.quantile(MetricName("latency_ns_p90", "p90"), distribution::SERVICE_TIME, 0.9),
    PAGE.quantile(MetricName("latency_ns_p99", "p99"), distribution::SERVICE_TIME, 0.99),
    PAGE.quantile(MetricName("latency_ns_p999", "p99.9"), distribution::SERVICE_TIME, 0.999),
    PAGE.quantile(MetricName("latency_ns_max", "max"), distribution::SERVICE_TIME, 1.0),
    PAGE.quantile(MetricName("response_ns_p50", "from due time p50"), distribution::RESPONSE_TIME, 0.5).unless(NOT_DUE),
    PAGE.quantile(MetricName("response_ns_p99", "from due time p99"), distribution::RESPONSE_TIME, 0.99)
        .unless(NOT_DUE),
    PAGE.quantile(MetricName("lag_ns_p50", "lag p50"), distribution::SCHEDULE_LAG, 0.5).unless(NOT_DUE),
    PAGE.quantile(MetricName("lag_ns_p99", "lag p99"), distribution::SCHEDULE_LAG, 0.99).unless(NOT_DUE),
    PAGE.quantile(MetricName("lag_ns_max", "lag max"), distribution::SCHEDULE_LAG, 1.0).unless(NOT_DUE),
    PAGE.metric(
        MetricName("recorded_ns_p50", "recorded p50"),
        UnitAndSense(Unit::Nanos, Neither),
        Derivation::quantile(Side::Initiator, RECORDED_TIME, 0.5),
    )
    .unless(NOT_COMPARED),
    PAGE.metric(
        MetricName("recorded_ns_p99", "recorded p99"),
        UnitAndSense(Unit::Nanos, Neither),
        Derivation::quantile(Side::Initiator, RECORDED_TIME, 0.99),
    )
    .unless(NOT_COMPARED),
    PAGE.quantile(MetricName("first_byte_ns_p50", "first byte p50"), distribution::FIRST_BYTE, 0.5),
    PAGE.quantile(MetricName("connect_ns_p50", "TCP connect p50"), distribution::CONNECT_TIME, 0.5),
    PAGE.received_rate(),
    PAGE.error_share("errors"),
    PAGE.not_2xx(),
    PAGE.share(MetricName("different_ratio", "answers that differ"), (DIFFERENT, COMPARED)).unless(NOT_COMPARED),
    PAGE.cpu_cost(),
];

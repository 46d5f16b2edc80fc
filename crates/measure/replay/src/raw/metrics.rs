//! The values of messages that are sent again.

use fathom_http::metric_definitions::MetricPage;
use fathom_model::{
    Better::{Higher, Neither},
    Derivation, Metric, Side, Unit,
    metric::{MetricName, UnitAndSense},
    names::{
        count,
        distribution::{CONNECT_TIME, RESPONSE_TIME, SCHEDULE_LAG, SERVICE_TIME},
    },
};

/// The answers that were compared, and those that differ.
pub(super) const COMPARED: &str = "answers_compared";
pub(super) const DIFFERENT: &str = "answers_different";
/// The messages that failed, and all that were to have an answer or failed.
pub(super) const FAILED: &str = "messages_failed";
pub(super) const ENDED: &str = "messages_ended";
/// The distribution of the times of answers in the recording.
pub(super) const RECORDED_TIME: &str = "recorded_time_ns";

/// Why some values are absent.
const NOT_DUE: &str = "nothing is due at a time with --speed max";
const NOT_COMPARED: &str = "answers are not compared without --compare";
const NO_ANSWER: &str = "the recording has no answer";

const SIDE: Side = Side::Initiator;
const PAGE: MetricPage = MetricPage("docs/methods/tcp_replay.md");

const fn rate(named: MetricName, measure: UnitAndSense, counter: &'static str) -> Metric {
    PAGE.metric(named, measure, Derivation::rate(SIDE, counter))
}

pub(super) const METRICS: &[Metric] = &[
    rate(MetricName("sent_per_sec", "sent"), UnitAndSense(Unit::PerSec, Higher), count::SENT),
    rate(MetricName("answered_per_sec", "answered"), UnitAndSense(Unit::PerSec, Higher), count::TRANSACTIONS),
    PAGE.quantile(MetricName("latency_ns_p50", "p50"), SERVICE_TIME, 0.5).unless(NO_ANSWER),
    PAGE.quantile(MetricName("latency_ns_p90", "p90"), SERVICE_TIME, 0.9).unless(NO_ANSWER),
    PAGE.quantile(MetricName("latency_ns_p99", "p99"), SERVICE_TIME, 0.99).unless(NO_ANSWER),
    PAGE.quantile(MetricName("latency_ns_p999", "p99.9"), SERVICE_TIME, 0.999).unless(NO_ANSWER),
    PAGE.quantile(MetricName("latency_ns_max", "max"), SERVICE_TIME, 1.0).unless(NO_ANSWER),
    PAGE.quantile(MetricName("response_ns_p50", "from due time p50"), RESPONSE_TIME, 0.5).unless(NOT_DUE),
    PAGE.quantile(MetricName("response_ns_p99", "from due time p99"), RESPONSE_TIME, 0.99).unless(NOT_DUE),
    PAGE.quantile(MetricName("lag_ns_p50", "lag p50"), SCHEDULE_LAG, 0.5).unless(NOT_DUE),
    PAGE.quantile(MetricName("lag_ns_p99", "lag p99"), SCHEDULE_LAG, 0.99).unless(NOT_DUE),
    PAGE.quantile(MetricName("lag_ns_max", "lag max"), SCHEDULE_LAG, 1.0).unless(NOT_DUE),
    PAGE.metric(
        MetricName("recorded_ns_p50", "recorded p50"),
        UnitAndSense(Unit::Nanos, Neither),
        Derivation::quantile(SIDE, RECORDED_TIME, 0.5),
    )
    .unless(NO_ANSWER),
    PAGE.metric(
        MetricName("recorded_ns_p99", "recorded p99"),
        UnitAndSense(Unit::Nanos, Neither),
        Derivation::quantile(SIDE, RECORDED_TIME, 0.99),
    )
    .unless(NO_ANSWER),
    PAGE.quantile(MetricName("connect_ns_p50", "connect p50"), CONNECT_TIME, 0.5)
        .unless("datagrams need no connection"),
    rate(MetricName("sent_bps", "bytes sent"), UnitAndSense(Unit::BitsPerSec, Neither), count::BYTES_SENT),
    rate(MetricName("received_bps", "bytes received"), UnitAndSense(Unit::BitsPerSec, Neither), count::BYTES_RECEIVED),
    PAGE.share(MetricName("errors_ratio", "errors"), (FAILED, ENDED)),
    PAGE.share(MetricName("different_ratio", "answers that differ"), (DIFFERENT, COMPARED)).unless(NOT_COMPARED),
    PAGE.metric(MetricName("cost_ns", "cost per message"), UnitAndSense::TIME, Derivation::cost(SIDE, count::SENT)),
];

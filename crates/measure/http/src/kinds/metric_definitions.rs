//! The metrics that all kinds of requests share; the page of each kind defines them.

use fathom_model::{
    Better::{Higher, Lower, Neither},
    Derivation, Metric, Side, Unit,
    metric::{MetricName, UnitAndSense},
    names::{count, distribution},
};

use crate::names;

const SIDE: Side = Side::Initiator;

/// The page of docs/methods that defines the metrics of a kind.
#[derive(Debug, Clone, Copy)]
pub struct MetricPage(pub &'static str);

impl MetricPage {
    /// A metric that only this kind of requests has.
    #[must_use]
    pub const fn metric(self, named: MetricName, measure: UnitAndSense, from: Derivation) -> Metric {
        Metric::of(named, measure, self.0, from)
    }

    /// The time that the share `q` of the requests does not exceed.
    #[must_use]
    pub const fn quantile(self, named: MetricName, distribution: &'static str, q: f64) -> Metric {
        self.metric(named, UnitAndSense(Unit::Nanos, Lower), Derivation::quantile(SIDE, distribution, q))
    }

    /// The ratio of one count to another.
    #[must_use]
    pub const fn share(self, named: MetricName, (part, whole): (&'static str, &'static str)) -> Metric {
        self.metric(named, UnitAndSense(Unit::Ratio, Lower), Derivation::share((SIDE, part), (SIDE, whole)))
    }

    /// Requests per second that got their whole answer.
    #[must_use]
    pub const fn answered_rate(self) -> Metric {
        let measure = UnitAndSense(Unit::RequestsPerSec, Higher);
        self.metric(MetricName("requests_per_sec", "requests"), measure, Derivation::rate(SIDE, count::REQUESTS))
    }

    /// The rate of bytes from the server, heads included.
    #[must_use]
    pub const fn received_rate(self) -> Metric {
        let measure = UnitAndSense(Unit::BitsPerSec, Neither);
        self.metric(MetricName("received_bps", "received"), measure, Derivation::rate(SIDE, count::BYTES_RECEIVED))
    }

    /// The share of requests without a whole answer. The label distinguishes it for scripted users, who have failures of their own.
    #[must_use]
    pub const fn error_share(self, label: &'static str) -> Metric {
        self.share(MetricName("errors_ratio", label), (names::ERRORS, names::ATTEMPTS))
    }

    /// The share of answers with a status other than 2xx.
    #[must_use]
    pub const fn not_2xx(self) -> Metric {
        let from = Derivation::missing((SIDE, count::REQUESTS), (SIDE, names::STATUS[0]));
        self.metric(MetricName("not_2xx_ratio", "answers other than 2xx"), UnitAndSense(Unit::Ratio, Lower), from)
    }

    /// Processor time of this side per request.
    #[must_use]
    pub const fn cpu_cost(self) -> Metric {
        let from = Derivation::cost(SIDE, count::REQUESTS);
        self.metric(MetricName("cost_ns", "cost per request"), UnitAndSense(Unit::Nanos, Lower), from)
    }
}

const OF_CLOSED: MetricPage = MetricPage("docs/methods/http_closed.md");
const OF_OPEN: MetricPage = MetricPage("docs/methods/http_open.md");

pub(super) const CLOSED: &[Metric] = &[
    OF_CLOSED.answered_rate(),
    OF_CLOSED.quantile(MetricName("latency_ns_p50", "p50"), distribution::SERVICE_TIME, 0.5),
    OF_CLOSED.quantile(MetricName("latency_ns_p90", "p90"), distribution::SERVICE_TIME, 0.9),
    OF_CLOSED.quantile(MetricName("latency_ns_p99", "p99"), distribution::SERVICE_TIME, 0.99),
    OF_CLOSED.quantile(MetricName("latency_ns_p999", "p99.9"), distribution::SERVICE_TIME, 0.999),
    OF_CLOSED.quantile(MetricName("latency_ns_max", "max"), distribution::SERVICE_TIME, 1.0),
    OF_CLOSED.quantile(MetricName("first_byte_ns_p50", "first byte p50"), distribution::FIRST_BYTE, 0.5),
    OF_CLOSED.quantile(MetricName("download_ns_p50", "download p50"), distribution::DOWNLOAD_TIME, 0.5),
    OF_CLOSED.quantile(MetricName("connect_ns_p50", "TCP connect p50"), distribution::CONNECT_TIME, 0.5),
    OF_CLOSED.received_rate(),
    OF_CLOSED.error_share("errors"),
    OF_CLOSED.not_2xx(),
    OF_CLOSED.cpu_cost(),
];

pub(super) const OPEN: &[Metric] = &[
    OF_OPEN.answered_rate(),
    OF_OPEN.quantile(MetricName("latency_ns_p50", "p50"), distribution::RESPONSE_TIME, 0.5),
    OF_OPEN.quantile(MetricName("latency_ns_p90", "p90"), distribution::RESPONSE_TIME, 0.9),
    OF_OPEN.quantile(MetricName("latency_ns_p99", "p99"), distribution::RESPONSE_TIME, 0.99),
    OF_OPEN.quantile(MetricName("latency_ns_p999", "p99.9"), distribution::RESPONSE_TIME, 0.999),
    OF_OPEN.quantile(MetricName("latency_ns_max", "max"), distribution::RESPONSE_TIME, 1.0),
    OF_OPEN.metric(
        MetricName("offered_per_sec", "offered"),
        UnitAndSense(Unit::RequestsPerSec, Neither),
        Derivation::rate(SIDE, count::INTENDED),
    ),
    OF_OPEN.quantile(MetricName("service_ns_p50", "service p50"), distribution::SERVICE_TIME, 0.5),
    OF_OPEN.quantile(MetricName("service_ns_p99", "service p99"), distribution::SERVICE_TIME, 0.99),
    OF_OPEN.quantile(MetricName("lag_ns_p50", "lag p50"), distribution::SCHEDULE_LAG, 0.5),
    OF_OPEN.quantile(MetricName("lag_ns_p99", "lag p99"), distribution::SCHEDULE_LAG, 0.99),
    OF_OPEN.quantile(MetricName("lag_ns_max", "lag max"), distribution::SCHEDULE_LAG, 1.0),
    OF_OPEN.share(
        MetricName("late_no_connection_ratio", "late, no connection free"),
        (count::LATE_NO_CONNECTION, count::INTENDED),
    ),
    OF_OPEN.share(MetricName("late_own_cpu_ratio", "late, own processor"), (count::LATE_OWN_CPU, count::INTENDED)),
    OF_OPEN.share(MetricName("not_started_ratio", "never started"), (names::NOT_STARTED, count::INTENDED)),
    OF_OPEN.quantile(MetricName("first_byte_ns_p50", "first byte p50"), distribution::FIRST_BYTE, 0.5),
    OF_OPEN.quantile(MetricName("download_ns_p50", "download p50"), distribution::DOWNLOAD_TIME, 0.5),
    OF_OPEN.quantile(MetricName("connect_ns_p50", "TCP connect p50"), distribution::CONNECT_TIME, 0.5),
    OF_OPEN.received_rate(),
    OF_OPEN.error_share("errors"),
    OF_OPEN.not_2xx(),
    OF_OPEN.cpu_cost(),
];

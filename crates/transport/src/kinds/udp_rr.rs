//! How fast questions are answered in single datagrams, and how many of them or of their answers are lost.

use fathom_engine::{Error, Test, TestKind};
use fathom_model::{
    Better, Derivation, Layer, Metric, OptionDoc, Role, Settings, Side, Unit,
    metric::{Measure, Named},
    names::{
        count,
        distribution::{RESPONSE_TIME, SCHEDULE_LAG, SERVICE_TIME},
    },
};

use super::tcp_rr::{Page, at_rate, flows};
use crate::{
    exchange::{
        ARRIVALS, NOT_STARTED, RATE, SPIN, Schedule,
        udp::{self, LOST, REQUEST, RESPONSE, TIMEOUT},
    },
    link::PORTS,
    options::{BUFFER, BUSY_POLL, DEVICE, DSCP, FLOW_LABEL, FLOWS, PORT, SOURCE, WORKERS},
};

/// Request and response in datagrams, each flow waiting for its answers.
pub(crate) struct UdpRr;
/// The same by a schedule.
pub(crate) struct UdpRrOpen;

const CLOSED: Page = Page("docs/methods/udp_rr.md");
const OPEN: Page = Page("docs/methods/udp_rr_open.md");

const OF_INITIATOR: Named = Named("cost_initiator_ns", "initiator's CPU per transaction");
const OF_RESPONDER: Named = Named("cost_responder_ns", "responder's CPU per transaction");
const ON_THE_WAY_THERE: Named = Named("request_loss_ratio", "requests lost");

impl Page {
    /// Requests that the responder never saw.
    const fn request_loss(self) -> Metric {
        let from = Derivation::missing((Side::Initiator, count::SENT), (Side::Responder, count::RECEIVED));
        self.metric(ON_THE_WAY_THERE, Measure(Unit::Ratio, Better::Lower), from)
    }
}

const METRICS: &[Metric] = &[
    CLOSED.rate(Named("transactions_per_sec", "transactions"), count::TRANSACTIONS),
    CLOSED.time(Named("latency_ns_p50", "p50"), (SERVICE_TIME, 0.5)),
    CLOSED.time(Named("latency_ns_p90", "p90"), (SERVICE_TIME, 0.9)),
    CLOSED.time(Named("latency_ns_p99", "p99"), (SERVICE_TIME, 0.99)),
    CLOSED.time(Named("latency_ns_p999", "p99.9"), (SERVICE_TIME, 0.999)),
    CLOSED.time(Named("latency_ns_max", "max"), (SERVICE_TIME, 1.0)),
    CLOSED.share(Named("loss_ratio", "lost"), (LOST, count::SENT)),
    CLOSED.request_loss(),
    CLOSED.cost(OF_INITIATOR, (Side::Initiator, count::TRANSACTIONS)),
    CLOSED.cost(OF_RESPONDER, (Side::Responder, count::TRANSACTIONS)),
];
const OPEN_METRICS: &[Metric] = &[
    OPEN.rate(Named("transactions_per_sec", "transactions"), count::TRANSACTIONS),
    OPEN.time(Named("latency_ns_p50", "p50"), (RESPONSE_TIME, 0.5)),
    OPEN.time(Named("latency_ns_p90", "p90"), (RESPONSE_TIME, 0.9)),
    OPEN.time(Named("latency_ns_p99", "p99"), (RESPONSE_TIME, 0.99)),
    OPEN.time(Named("latency_ns_p999", "p99.9"), (RESPONSE_TIME, 0.999)),
    OPEN.time(Named("latency_ns_max", "max"), (RESPONSE_TIME, 1.0)),
    OPEN.offered(),
    OPEN.share(Named("loss_ratio", "lost"), (LOST, count::SENT)),
    OPEN.request_loss(),
    OPEN.time(Named("service_ns_p50", "service p50"), (SERVICE_TIME, 0.5)),
    OPEN.time(Named("service_ns_p99", "service p99"), (SERVICE_TIME, 0.99)),
    OPEN.time(Named("lag_ns_p50", "lag p50"), (SCHEDULE_LAG, 0.5)),
    OPEN.time(Named("lag_ns_p99", "lag p99"), (SCHEDULE_LAG, 0.99)),
    OPEN.time(Named("lag_ns_max", "lag max"), (SCHEDULE_LAG, 1.0)),
    OPEN.share(Named("late_no_flow_ratio", "late, no flow free"), (count::LATE_NO_CONNECTION, count::INTENDED)),
    OPEN.share(Named("late_own_cpu_ratio", "late, own processor"), (count::LATE_OWN_CPU, count::INTENDED)),
    OPEN.share(Named("not_started_ratio", "never started"), (NOT_STARTED, count::INTENDED)),
    OPEN.cost(OF_INITIATOR, (Side::Initiator, count::TRANSACTIONS)),
    OPEN.cost(OF_RESPONDER, (Side::Responder, count::TRANSACTIONS)),
];

impl TestKind for UdpRr {
    fn name(&self) -> &'static str {
        "udp_rr"
    }

    fn about(&self) -> &'static str {
        "transactions per second in single datagrams, their latency, and what was lost"
    }

    fn layer(&self) -> Layer {
        Layer::Udp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        format!("rr, {}", flows(settings))
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[
            FLOWS, WORKERS, REQUEST, RESPONSE, TIMEOUT, SPIN, BUFFER, DSCP, BUSY_POLL, PORT, PORTS, SOURCE, DEVICE,
            FLOW_LABEL,
        ]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        udp::prepare(self.name(), role, None)
    }
}

impl TestKind for UdpRrOpen {
    fn name(&self) -> &'static str {
        "udp_rr_open"
    }

    fn about(&self) -> &'static str {
        "transactions in single datagrams at a rate, answered in time or not; latency from the intended start"
    }

    fn layer(&self) -> Layer {
        Layer::Udp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        format!("rr {}, {}", at_rate(settings), flows(settings))
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[
            RATE, ARRIVALS, FLOWS, WORKERS, REQUEST, RESPONSE, TIMEOUT, BUFFER, DSCP, BUSY_POLL, PORT, PORTS, SOURCE,
            DEVICE, FLOW_LABEL,
        ]
    }

    fn metrics(&self) -> &'static [Metric] {
        OPEN_METRICS
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        udp::prepare(self.name(), role, Some(Schedule::of(role)?))
    }
}

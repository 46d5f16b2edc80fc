//! The rate of connections that are opened, used once and closed, and of connections that are opened and closed unused.

use fathom_engine::{CeilingSetup, CommandDoc, Error, EvaluationRow, Test, TestKind};
use fathom_model::{
    Layer, Metric, OptionDoc, Role, Settings, Side,
    metric::MetricName,
    names::{
        count,
        distribution::{CONNECT_TIME, SERVICE_TIME},
    },
};
use fathom_sys::policy::Policy;

use super::rr::MetricPage;
use crate::{
    churn::{self, CLOSE, ConnectionPurpose},
    connection_setup::PORTS,
    options::{CONGESTION, DEVICE, DSCP, FLOW_LABEL, FLOWS, NODELAY, PORT, SOURCE, WORKERS},
    request_response::{
        self,
        sizes::{REQUEST, RESPONSE},
    },
};

/// Connect, request, response, close.
pub(crate) struct TcpCrr;
/// Connect and close.
pub(crate) struct TcpCc;

const CRR: MetricPage = MetricPage("docs/methods/tcp_crr.md");
const CC: MetricPage = MetricPage("docs/methods/tcp_cc.md");

const OF_INITIATOR: MetricName = MetricName("cost_initiator_ns", "initiator's CPU per connection");
const OF_RESPONDER: MetricName = MetricName("cost_responder_ns", "responder's CPU per connection");

const METRICS: &[Metric] = &[
    CRR.rate(MetricName("connections_per_sec", "connections"), count::TRANSACTIONS),
    CRR.time(MetricName("latency_ns_p50", "p50"), SERVICE_TIME, 0.5),
    CRR.time(MetricName("latency_ns_p90", "p90"), SERVICE_TIME, 0.9),
    CRR.time(MetricName("latency_ns_p99", "p99"), SERVICE_TIME, 0.99),
    CRR.time(MetricName("latency_ns_p999", "p99.9"), SERVICE_TIME, 0.999),
    CRR.time(MetricName("latency_ns_max", "max"), SERVICE_TIME, 1.0),
    CRR.time(MetricName("connect_ns_p50", "connect p50"), CONNECT_TIME, 0.5),
    CRR.time(MetricName("connect_ns_p99", "connect p99"), CONNECT_TIME, 0.99),
    CRR.cost(OF_INITIATOR, Side::Initiator, count::TRANSACTIONS),
    CRR.cost(OF_RESPONDER, Side::Responder, count::TRANSACTIONS),
];
const CC_METRICS: &[Metric] = &[
    CC.rate(MetricName("connections_per_sec", "connections"), count::TRANSACTIONS),
    CC.time(MetricName("connect_ns_p50", "connect p50"), CONNECT_TIME, 0.5),
    CC.time(MetricName("connect_ns_p90", "connect p90"), CONNECT_TIME, 0.9),
    CC.time(MetricName("connect_ns_p99", "connect p99"), CONNECT_TIME, 0.99),
    CC.time(MetricName("connect_ns_p999", "connect p99.9"), CONNECT_TIME, 0.999),
    CC.time(MetricName("connect_ns_max", "connect max"), CONNECT_TIME, 1.0),
    CC.time(MetricName("latency_ns_p50", "open to closed p50"), SERVICE_TIME, 0.5),
    CC.time(MetricName("latency_ns_p99", "open to closed p99"), SERVICE_TIME, 0.99),
    CC.cost(OF_INITIATOR, Side::Initiator, count::TRANSACTIONS),
    CC.cost(OF_RESPONDER, Side::Responder, count::TRANSACTIONS),
];

/// A title such as `connect + rr, 16 at a time`.
fn title(what: &str, settings: &Settings) -> String {
    match settings.count(FLOWS.name).unwrap_or(1) {
        1 => what.to_owned(),
        n => format!("{what}, {n} at a time"),
    }
}

impl TestKind for TcpCrr {
    fn name(&self) -> &'static str {
        "tcp_crr"
    }

    fn about(&self) -> &'static str {
        "connections per second, each used for one transaction, and their latency"
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        title("connect + rr", settings)
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[FLOWS, WORKERS, REQUEST, RESPONSE, CLOSE, CONGESTION, DSCP, NODELAY, PORT, PORTS, SOURCE, DEVICE, FLOW_LABEL]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        request_response::check(settings)
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::test("crr"))
    }

    fn evaluation(&self) -> &'static [EvaluationRow] {
        &[EvaluationRow { name: "tcp_crr", options: &[], is_optional: false }]
    }

    fn ceilings(&self) -> &'static [CeilingSetup] {
        &[CeilingSetup { options: &[], needs_lab: false }]
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        churn::prepare(self.name(), role, policy, ConnectionPurpose::Transaction)
    }
}

impl TestKind for TcpCc {
    fn name(&self) -> &'static str {
        "tcp_cc"
    }

    fn about(&self) -> &'static str {
        "connections per second that are opened and closed without any use, and how long opening takes"
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        title("connect + close", settings)
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[FLOWS, WORKERS, CLOSE, CONGESTION, DSCP, PORT, PORTS, SOURCE, DEVICE, FLOW_LABEL]
    }

    fn metrics(&self) -> &'static [Metric] {
        CC_METRICS
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        request_response::check(settings)
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::test("cc"))
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        churn::prepare(self.name(), role, policy, ConnectionPurpose::ConnectOnly)
    }
}

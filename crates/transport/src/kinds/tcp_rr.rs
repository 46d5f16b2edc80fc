//! How fast questions are answered over connections that stay open.
//!
//! In the closed model each flow asks the next question when it has the answer, so times are service times. In the open one questions
//! come by a schedule, whether those before are answered or not, and response times count from when each was to be asked.

use fathom_engine::{Error, Test, TestKind};
use fathom_model::{
    Better, Derivation, Layer, Metric, OptionDoc, Role, Settings, Side, Unit,
    metric::{Measure, Named},
    names::{
        count,
        distribution::{CONNECT_TIME, RESPONSE_TIME, SCHEDULE_LAG, SERVICE_TIME},
    },
};

use super::LATENCY;
use crate::{
    exchange::{
        self, ARRIVALS, BURST, FLOWS, NOT_STARTED, RATE, REACTOR, SPIN, Schedule,
        sizes::{REQUEST, RESPONSE},
    },
    link::PORTS,
    options::{BUFFER, BUSY_POLL, CONGESTION, DEVICE, DSCP, FLOW_LABEL, KEEPALIVE, NODELAY, PORT, SOURCE, WORKERS},
};

/// Request and response over open connections, each flow waiting for its answers.
pub(crate) struct TcpRr;
/// The same by a schedule.
pub(crate) struct TcpRrOpen;

const SIDE: Side = Side::Initiator;

/// The page of a kind, on which its metrics are defined.
#[derive(Clone, Copy)]
pub(super) struct Page(pub(super) &'static str);

impl Page {
    pub(super) const fn metric(self, named: Named, measure: Measure, from: Derivation) -> Metric {
        Metric::of(named, measure, self.0, from)
    }

    pub(super) const fn rate(self, named: Named, counter: &'static str) -> Metric {
        self.metric(named, Measure(Unit::PerSec, Better::Higher), Derivation::rate(SIDE, counter))
    }

    pub(super) const fn offered(self) -> Metric {
        let measure = Measure(Unit::PerSec, Better::Neither);
        self.metric(Named("offered_per_sec", "offered"), measure, Derivation::rate(SIDE, count::INTENDED))
    }

    pub(super) const fn time(self, named: Named, (distribution, q): (&'static str, f64)) -> Metric {
        self.metric(named, LATENCY, Derivation::quantile(SIDE, distribution, q))
    }

    pub(super) const fn share(self, named: Named, (part, whole): (&'static str, &'static str)) -> Metric {
        let from = Derivation::share((SIDE, part), (SIDE, whole));
        self.metric(named, Measure(Unit::Ratio, Better::Lower), from)
    }

    pub(super) const fn cost(self, named: Named, (side, counter): (Side, &'static str)) -> Metric {
        self.metric(named, LATENCY, Derivation::cost(side, counter))
    }

    const fn host_cost(self, named: Named, side: Side) -> Metric {
        self.metric(named, LATENCY, Derivation::host_cost(side, count::TRANSACTIONS))
    }
}

const CLOSED: Page = Page("docs/methods/tcp_rr.md");
const OPEN: Page = Page("docs/methods/tcp_rr_open.md");

const OF_INITIATOR: Named = Named("cost_initiator_ns", "initiator's CPU per transaction");
const OF_RESPONDER: Named = Named("cost_responder_ns", "responder's CPU per transaction");

const METRICS: &[Metric] = &[
    CLOSED.rate(Named("transactions_per_sec", "transactions"), count::TRANSACTIONS),
    CLOSED.time(Named("latency_ns_p50", "p50"), (SERVICE_TIME, 0.5)),
    CLOSED.time(Named("latency_ns_p90", "p90"), (SERVICE_TIME, 0.9)),
    CLOSED.time(Named("latency_ns_p99", "p99"), (SERVICE_TIME, 0.99)),
    CLOSED.time(Named("latency_ns_p999", "p99.9"), (SERVICE_TIME, 0.999)),
    CLOSED.time(Named("latency_ns_max", "max"), (SERVICE_TIME, 1.0)),
    CLOSED.cost(OF_INITIATOR, (Side::Initiator, count::TRANSACTIONS)),
    CLOSED.cost(OF_RESPONDER, (Side::Responder, count::TRANSACTIONS)),
    CLOSED.host_cost(Named("host_cost_initiator_ns", "initiating host's CPU per transaction"), Side::Initiator),
    CLOSED.host_cost(Named("host_cost_responder_ns", "responding host's CPU per transaction"), Side::Responder),
    CLOSED.time(Named("connect_ns_p50", "connect p50"), (CONNECT_TIME, 0.5)),
    CLOSED.time(Named("connect_ns_p99", "connect p99"), (CONNECT_TIME, 0.99)),
];
const OPEN_METRICS: &[Metric] = &[
    OPEN.rate(Named("transactions_per_sec", "transactions"), count::TRANSACTIONS),
    OPEN.time(Named("latency_ns_p50", "p50"), (RESPONSE_TIME, 0.5)),
    OPEN.time(Named("latency_ns_p90", "p90"), (RESPONSE_TIME, 0.9)),
    OPEN.time(Named("latency_ns_p99", "p99"), (RESPONSE_TIME, 0.99)),
    OPEN.time(Named("latency_ns_p999", "p99.9"), (RESPONSE_TIME, 0.999)),
    OPEN.time(Named("latency_ns_max", "max"), (RESPONSE_TIME, 1.0)),
    OPEN.offered(),
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
    OPEN.time(Named("connect_ns_p50", "connect p50"), (CONNECT_TIME, 0.5)),
    OPEN.time(Named("connect_ns_p99", "connect p99"), (CONNECT_TIME, 0.99)),
];

/// How many flows, for titles.
pub(super) fn flows(settings: &Settings) -> String {
    match settings.count(FLOWS.name).unwrap_or(1) {
        1 => "1 flow".to_owned(),
        n => format!("{n} flows"),
    }
}

/// At which rate, for titles.
pub(super) fn at_rate(settings: &Settings) -> String {
    let arrivals = settings.text(ARRIVALS.name).filter(|word| word != "constant");
    let arrivals = arrivals.map_or_else(String::new, |word| format!(", {word}"));
    settings.rate(RATE.name).map_or("at a rate".to_owned(), |rate| format!("at {rate}")) + &arrivals
}

impl TestKind for TcpRr {
    fn name(&self) -> &'static str {
        "tcp_rr"
    }

    fn about(&self) -> &'static str {
        "transactions per second and their latency over open TCP connections"
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        let burst = settings.count(BURST.name).filter(|burst| *burst > 1);
        format!("rr, {}{}", flows(settings), burst.map_or_else(String::new, |burst| format!(", bursts of {burst}")))
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[
            FLOWS, WORKERS, REQUEST, RESPONSE, BURST, SPIN, REACTOR, CONGESTION, BUFFER, DSCP, NODELAY, KEEPALIVE,
            BUSY_POLL, PORT, PORTS, SOURCE, DEVICE, FLOW_LABEL,
        ]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        exchange::prepare(self.name(), role, None)
    }
}

impl TestKind for TcpRrOpen {
    fn name(&self) -> &'static str {
        "tcp_rr_open"
    }

    fn about(&self) -> &'static str {
        "TCP transactions at a rate, whether answered in time or not; latency from the intended start"
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        format!("rr {}, {}", at_rate(settings), flows(settings))
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[
            RATE, ARRIVALS, FLOWS, WORKERS, REQUEST, RESPONSE, REACTOR, CONGESTION, BUFFER, DSCP, NODELAY, KEEPALIVE,
            BUSY_POLL, PORT, PORTS, SOURCE, DEVICE, FLOW_LABEL,
        ]
    }

    fn metrics(&self) -> &'static [Metric] {
        OPEN_METRICS
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        exchange::prepare(self.name(), role, Some(Schedule::of(role)?))
    }
}

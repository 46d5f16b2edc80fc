//! Request rate and latency over connections that stay open, and in single datagrams.
//!
//! In the closed model each flow sends the next request when it has the answer, so times are service times. In the open model
//! requests follow a schedule, whether earlier ones are answered or not, and response times count from the scheduled start.

use std::sync::LazyLock;

use fathom_engine::{CeilingSetup, CommandDoc, Error, EvaluationRow, Test, TestKind};
use fathom_model::{
    Better, Derivation, Layer, Metric, OptionDoc, Role, Settings, Side, Unit,
    metric::{MetricName, UnitAndSense},
    names::{
        count,
        distribution::{CONNECT_TIME, RESPONSE_TIME, SCHEDULE_LAG, SERVICE_TIME},
    },
};
use fathom_sys::policy::Policy;

use crate::{
    connection_setup::PORTS,
    options::{
        BUFFER, BUSY_POLL, CONGESTION, DEVICE, DSCP, FLOW_LABEL, FLOWS as DATAGRAM_FLOWS, KEEPALIVE, MPTCP, NODELAY,
        PORT, SOURCE, WORKERS,
    },
    request_response::{
        self, ARRIVALS, BURST, DELAY, FLOWS, NOT_STARTED, OpenLoad, RATE, REACTOR, SPIN, sizes,
        udp::{self, TIMEOUT},
    },
};

/// Request and response over one protocol, in a closed loop or on a schedule.
pub(crate) struct RequestResponse {
    name: &'static str,
    about: &'static str,
    layer: Layer,
    /// Whether requests follow a schedule.
    is_open: bool,
    options: &'static [OptionDoc],
    metrics: &'static LazyLock<Vec<Metric>>,
}

/// Over open TCP connections, each flow waiting for its answers.
pub(crate) static TCP: RequestResponse = RequestResponse {
    name: "tcp_rr",
    about: "transactions per second and their latency over open TCP connections",
    layer: Layer::Tcp,
    is_open: false,
    options: &[
        FLOWS,
        WORKERS,
        sizes::REQUEST,
        sizes::RESPONSE,
        BURST,
        SPIN,
        DELAY,
        REACTOR,
        CONGESTION,
        BUFFER,
        DSCP,
        NODELAY,
        MPTCP,
        KEEPALIVE,
        BUSY_POLL,
        PORT,
        PORTS,
        SOURCE,
        DEVICE,
        FLOW_LABEL,
    ],
    metrics: &TCP_METRICS,
};
/// The same on a schedule.
pub(crate) static TCP_OPEN: RequestResponse = RequestResponse {
    name: "tcp_rr_open",
    about: "TCP transactions at a rate, whether answered in time or not; latency from the intended start",
    layer: Layer::Tcp,
    is_open: true,
    options: &[
        RATE,
        ARRIVALS,
        FLOWS,
        WORKERS,
        sizes::REQUEST,
        sizes::RESPONSE,
        REACTOR,
        CONGESTION,
        BUFFER,
        DSCP,
        NODELAY,
        MPTCP,
        KEEPALIVE,
        BUSY_POLL,
        PORT,
        PORTS,
        SOURCE,
        DEVICE,
        FLOW_LABEL,
    ],
    metrics: &TCP_OPEN_METRICS,
};
/// In datagrams, each flow waiting for its answers.
pub(crate) static UDP: RequestResponse = RequestResponse {
    name: "udp_rr",
    about: "transactions per second in single datagrams, their latency and loss",
    layer: Layer::Udp,
    is_open: false,
    options: &[
        DATAGRAM_FLOWS,
        WORKERS,
        udp::REQUEST,
        udp::RESPONSE,
        TIMEOUT,
        SPIN,
        BUFFER,
        DSCP,
        BUSY_POLL,
        PORT,
        PORTS,
        SOURCE,
        DEVICE,
        FLOW_LABEL,
    ],
    metrics: &UDP_METRICS,
};
/// The same on a schedule.
pub(crate) static UDP_OPEN: RequestResponse = RequestResponse {
    name: "udp_rr_open",
    about: "transactions in single datagrams at a rate, answered in time or not; latency from the intended start",
    layer: Layer::Udp,
    is_open: true,
    options: &[
        RATE,
        ARRIVALS,
        DATAGRAM_FLOWS,
        WORKERS,
        udp::REQUEST,
        udp::RESPONSE,
        TIMEOUT,
        BUFFER,
        DSCP,
        BUSY_POLL,
        PORT,
        PORTS,
        SOURCE,
        DEVICE,
        FLOW_LABEL,
    ],
    metrics: &UDP_OPEN_METRICS,
};

const SIDE: Side = Side::Initiator;

/// The page of a kind that defines its metrics.
#[derive(Clone, Copy)]
pub(super) struct MetricPage(pub(super) &'static str);

impl MetricPage {
    pub(super) const fn metric(self, named: MetricName, measure: UnitAndSense, from: Derivation) -> Metric {
        Metric::of(named, measure, self.0, from)
    }

    pub(super) const fn rate(self, named: MetricName, counter: &'static str) -> Metric {
        self.metric(named, UnitAndSense(Unit::PerSec, Better::Higher), Derivation::rate(SIDE, counter))
    }

    pub(super) const fn offered(self) -> Metric {
        let measure = UnitAndSense(Unit::PerSec, Better::Neither);
        self.metric(MetricName("offered_per_sec", "offered"), measure, Derivation::rate(SIDE, count::INTENDED))
    }

    pub(super) const fn time(self, named: MetricName, distribution: &'static str, q: f64) -> Metric {
        self.metric(named, UnitAndSense::TIME, Derivation::quantile(SIDE, distribution, q))
    }

    pub(super) const fn share(self, named: MetricName, (part, whole): (&'static str, &'static str)) -> Metric {
        let from = Derivation::share((SIDE, part), (SIDE, whole));
        self.metric(named, UnitAndSense(Unit::Ratio, Better::Lower), from)
    }

    pub(super) const fn cost(self, named: MetricName, side: Side, counter: &'static str) -> Metric {
        self.metric(named, UnitAndSense::TIME, Derivation::cost(side, counter))
    }

    /// Transactions per second, and the quantiles of their times.
    fn transactions(self, distribution: &'static str) -> Vec<Metric> {
        let time = |named, q| self.time(named, distribution, q);
        vec![
            self.rate(MetricName("transactions_per_sec", "transactions"), count::TRANSACTIONS),
            time(MetricName("latency_ns_p50", "p50"), 0.5),
            time(MetricName("latency_ns_p90", "p90"), 0.9),
            time(MetricName("latency_ns_p99", "p99"), 0.99),
            time(MetricName("latency_ns_p999", "p99.9"), 0.999),
            time(MetricName("latency_ns_max", "max"), 1.0),
        ]
    }

    /// How well the schedule was kept.
    fn schedule(self) -> Vec<Metric> {
        let of_intended = |counter| (counter, count::INTENDED);
        vec![
            self.time(MetricName("service_ns_p50", "service p50"), SERVICE_TIME, 0.5),
            self.time(MetricName("service_ns_p99", "service p99"), SERVICE_TIME, 0.99),
            self.time(MetricName("lag_ns_p50", "lag p50"), SCHEDULE_LAG, 0.5),
            self.time(MetricName("lag_ns_p99", "lag p99"), SCHEDULE_LAG, 0.99),
            self.time(MetricName("lag_ns_max", "lag max"), SCHEDULE_LAG, 1.0),
            self.share(MetricName("late_no_flow_ratio", "late, no flow free"), of_intended(count::LATE_NO_CONNECTION)),
            self.share(MetricName("late_own_cpu_ratio", "late, own processor"), of_intended(count::LATE_OWN_CPU)),
            self.share(MetricName("not_started_ratio", "never started"), of_intended(NOT_STARTED)),
        ]
    }

    /// The loss of transactions, and of requests alone.
    fn losses(self) -> Vec<Metric> {
        let on_the_way_there = Derivation::missing((SIDE, count::SENT), (Side::Responder, count::RECEIVED));
        let ratio = UnitAndSense(Unit::Ratio, Better::Lower);
        vec![
            self.share(MetricName("loss_ratio", "lost"), (count::TRANSACTIONS_LOST, count::SENT)),
            self.metric(MetricName("request_loss_ratio", "requests lost"), ratio, on_the_way_there),
        ]
    }

    /// Processor time of the threads of each side.
    fn costs(self) -> Vec<Metric> {
        let (initiator, responder) = ("initiator's CPU per transaction", "responder's CPU per transaction");
        vec![
            self.cost(MetricName("cost_initiator_ns", initiator), Side::Initiator, count::TRANSACTIONS),
            self.cost(MetricName("cost_responder_ns", responder), Side::Responder, count::TRANSACTIONS),
        ]
    }

    fn host_costs(self) -> Vec<Metric> {
        let (initiator, responder) = ("initiating host's CPU per transaction", "responding host's CPU per transaction");
        vec![
            self.host_cost(MetricName("host_cost_initiator_ns", initiator), Side::Initiator),
            self.host_cost(MetricName("host_cost_responder_ns", responder), Side::Responder),
        ]
    }

    fn connects(self) -> Vec<Metric> {
        vec![
            self.time(MetricName("connect_ns_p50", "connect p50"), CONNECT_TIME, 0.5),
            self.time(MetricName("connect_ns_p99", "connect p99"), CONNECT_TIME, 0.99),
        ]
    }

    const fn host_cost(self, named: MetricName, side: Side) -> Metric {
        self.metric(named, UnitAndSense::TIME, Derivation::host_cost(side, count::TRANSACTIONS))
    }
}

static TCP_METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let page = MetricPage("docs/methods/tcp_rr.md");
    [page.transactions(SERVICE_TIME), page.costs(), page.host_costs(), page.connects()].concat()
});
static TCP_OPEN_METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let page = MetricPage("docs/methods/tcp_rr_open.md");
    let asked = vec![page.offered()];
    [page.transactions(RESPONSE_TIME), asked, page.schedule(), page.costs(), page.connects()].concat()
});
static UDP_METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let page = MetricPage("docs/methods/udp_rr.md");
    [page.transactions(SERVICE_TIME), page.losses(), page.costs()].concat()
});
static UDP_OPEN_METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let page = MetricPage("docs/methods/udp_rr_open.md");
    let asked = vec![page.offered()];
    [page.transactions(RESPONSE_TIME), asked, page.losses(), page.schedule(), page.costs()].concat()
});

/// The number of flows, for titles.
fn flows(settings: &Settings) -> String {
    match settings.count(FLOWS.name).unwrap_or(1) {
        1 => "1 flow".to_owned(),
        n => format!("{n} flows"),
    }
}

/// The rate, for titles.
fn at_rate(settings: &Settings) -> String {
    let arrivals = settings.text(ARRIVALS.name).filter(|word| word != "constant");
    let arrivals = arrivals.map_or_else(String::new, |word| format!(", {word}"));
    settings.rate(RATE.name).map_or("at a rate".to_owned(), |rate| format!("at {rate}")) + &arrivals
}

impl TestKind for RequestResponse {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn layer(&self) -> Layer {
        self.layer
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        if self.is_open {
            return format!("rr {}, {}", at_rate(settings), flows(settings));
        }
        let burst = settings.count(BURST.name).filter(|burst| *burst > 1);
        format!("rr, {}{}", flows(settings), burst.map_or_else(String::new, |burst| format!(", bursts of {burst}")))
    }

    fn options(&self) -> &'static [OptionDoc] {
        self.options
    }

    fn metrics(&self) -> &'static [Metric] {
        self.metrics
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        if self.is_open {
            OpenLoad::of(settings, 0)?;
        }
        if self.layer == Layer::Udp { udp::check(settings) } else { request_response::check(settings) }
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::test(if self.is_open { "rr-open" } else { "rr" }))
    }

    fn evaluation(&self) -> &'static [EvaluationRow] {
        const ROWS: &[EvaluationRow] = &[
            EvaluationRow { name: "tcp_rr", options: &[("flows", "1")], is_optional: false },
            EvaluationRow { name: "tcp_rr_many", options: &[("flows", "32")], is_optional: false },
        ];
        if self.layer == Layer::Tcp && !self.is_open { ROWS } else { &[] }
    }

    fn ceilings(&self) -> &'static [CeilingSetup] {
        const SETUP: CeilingSetup = CeilingSetup { options: &[("flows", "32")], needs_lab: false };
        if self.layer == Layer::Tcp && !self.is_open { &[SETUP] } else { &[] }
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        let schedule = self.is_open.then(|| OpenLoad::of(&role.settings, role.seed)).transpose()?;
        let prepare = if self.layer == Layer::Udp { udp::prepare } else { request_response::prepare };
        prepare(self.name, role, policy, schedule)
    }
}

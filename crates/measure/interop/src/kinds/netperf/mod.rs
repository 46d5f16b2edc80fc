//! A test against a netserver: an existing one, or ours at the other end of a lab.
//!
//! The client's side runs like all our tests. The server knows no warm-up, so its results cover the whole trial. It cannot be told to
//! end a stream of its own or to expect no more connections, so a trial of datagrams or a stream to the client (`down`) and one of a
//! connection per transaction (`crr`) last as long as the longest possible one.

mod metrics;
mod settings;

use std::cell::RefCell;

use fathom_engine::{
    CommandDoc, Consent, EndCondition, Error, NamedTarget, Phase, StopFlag, Test, TestKind, TrialContext, WorkerHandle,
    WorkerPool,
};
use fathom_model::{
    Endpoints, Histogram, Layer, Metric, OptionDoc, Record, Role, Settings, Side, names::distribution::SERVICE_TIME,
    units::Nanos,
};
use fathom_sys::{clock, policy::Policy};
use fathom_transport::{options, tcp_sampler::TcpInfoSampler};

use super::{own_server::OwnServer, server_kind};
use crate::netperf::{
    self, Client, ClientOptions, Counter, DataPattern, DataProtocol, EndSettings, MESSAGE_MAX, NetserverOptions,
    PreparedTest, Server, TestLength, TestSpec, TransferContext,
};

/// A test of one kind.
pub(crate) struct Netperf {
    name: &'static str,
    about: &'static str,
    /// The value of `--test`.
    word: &'static str,
    protocol: DataProtocol,
    pattern: DataPattern,
    is_connection_each: bool,
    options: &'static [OptionDoc],
    metrics: &'static [Metric],
}

/// TCP streams in either direction.
pub(crate) const TCP_STREAM: Netperf = Netperf {
    name: "netperf_tcp_stream",
    about: "payload per second of TCP streams to or from a netserver",
    word: "stream",
    protocol: DataProtocol::Tcp,
    pattern: DataPattern::Up,
    is_connection_each: false,
    options: settings::TCP_STREAM,
    metrics: metrics::TCP_STREAM,
};
/// Transactions over open TCP connections.
pub(crate) const TCP_RR: Netperf = Netperf {
    name: "netperf_tcp_rr",
    about: "transactions per second with a netserver over open TCP connections, and their latency",
    word: "rr",
    protocol: DataProtocol::Tcp,
    pattern: DataPattern::Transactions,
    is_connection_each: false,
    options: settings::TCP_RR,
    metrics: metrics::TCP_TRANSACTIONS,
};
/// Transactions over a TCP connection each.
pub(crate) const TCP_CRR: Netperf = Netperf {
    name: "netperf_tcp_crr",
    about: "transactions per second with a netserver over a TCP connection each, and their latency",
    word: "crr",
    protocol: DataProtocol::Tcp,
    pattern: DataPattern::Transactions,
    is_connection_each: true,
    options: settings::TCP_CRR,
    metrics: metrics::TCP_TRANSACTIONS,
};
/// Datagrams in either direction.
pub(crate) const UDP_STREAM: Netperf = Netperf {
    name: "netperf_udp_stream",
    about: "datagrams to or from a netserver as fast as possible, and their loss",
    word: "stream",
    protocol: DataProtocol::Udp,
    pattern: DataPattern::Up,
    is_connection_each: false,
    options: settings::UDP_STREAM,
    metrics: metrics::UDP_STREAM,
};
/// Transactions in single datagrams.
pub(crate) const UDP_RR: Netperf = Netperf {
    name: "netperf_udp_rr",
    about: "transactions per second with a netserver in single datagrams, their latency and loss",
    word: "rr",
    protocol: DataProtocol::Udp,
    pattern: DataPattern::Transactions,
    is_connection_each: false,
    options: settings::UDP_RR,
    metrics: metrics::UDP_RR,
};

impl Netperf {
    /// The test without the settings of a plan.
    fn base(&self) -> TestSpec {
        TestSpec {
            protocol: self.protocol,
            pattern: self.pattern,
            is_connection_each: self.is_connection_each,
            ..TestSpec::default()
        }
    }
}

impl TestKind for Netperf {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn layer(&self) -> Layer {
        if self.protocol == DataProtocol::Tcp { Layer::Tcp } else { Layer::Udp }
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        server_kind::is_two_sided(settings)
    }

    fn title(&self, settings: &Settings) -> String {
        server_kind::title(&format!("netperf {}", self.word), settings, "flow")
    }

    fn options(&self) -> &'static [OptionDoc] {
        self.options
    }

    fn metrics(&self) -> &'static [Metric] {
        self.metrics
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        server_kind::named_targets(settings, netperf::PORT, Consent::Server)
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        server_kind::destination(settings, netperf::PORT)?;
        settings::spec(&self.base(), settings).map(drop)
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::protocol("netperf").for_test(self.word))
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        if role.side == Side::Responder {
            return Ok(Box::new(own_server(role, policy)?));
        }
        let spec = settings::spec(&self.base(), &role.settings)?;
        let mut asked = ClientOptions::new(server_kind::server_destinations(role, policy, netperf::PORT, self.name)?);
        asked.from = server_kind::source(role);
        let stop = StopFlag::default();
        let n_flows = options::count(&role.settings, &settings::FLOWS).unwrap_or(1);
        let clients = (0..n_flows).map(|_| Client::connect(asked.clone(), &stop).map_err(test_error));
        Ok(Box::new(NetperfClientTest { clients: clients.collect::<Result<_, _>>()?, role: role.clone(), spec, stop }))
    }
}

/// Converts an error of netperf to an error of a test.
fn test_error(error: netperf::Error) -> Error {
    let hint = error.hint().map(str::to_owned);
    match error {
        netperf::Error::Silent { .. } | netperf::Error::Transfer { .. } | netperf::Error::Closed { .. } => {
            Error::Peer { what: format!("(a netserver) aborted the test: {error}") }
        }
        error => Error::Unsupported { what: format!("netperf: {error}"), hint },
    }
}

/// The client's side.
struct NetperfClientTest {
    role: Role,
    clients: Vec<Client>,
    spec: TestSpec,
    stop: StopFlag,
}

/// A flow in its worker thread.
struct WorkerFlow<'a> {
    worker: &'a WorkerHandle<'a>,
    spec: &'a TestSpec,
    times: RefCell<Histogram>,
}

impl TransferContext for WorkerFlow<'_> {
    fn add(&self, counter: Counter, amount: u64) {
        if let Some(place) = metrics::place(self.spec, counter) {
            self.worker.add(place, amount);
        }
    }

    fn is_over(&self) -> bool {
        self.worker.is_over()
    }

    fn on_transaction(&self, time: Nanos) {
        self.worker.show_latency(time);
        if self.worker.phase() == Phase::Measure {
            self.times.borrow_mut().record(time.0);
        }
    }
}

/// What a worker leaves behind.
struct FinishedFlow {
    prepared: PreparedTest,
    times: Histogram,
    failure: Option<netperf::Error>,
}

impl NetperfClientTest {
    /// Describes the test to the server on each connection, and opens the data connections.
    fn prepare_flows(&mut self, context: &TrialContext) -> Result<Vec<PreparedTest>, Error> {
        // The server's time begins now, and ours at the start.
        let longest = context.start.since(clock::now()) + context.phases.longest();
        let seconds = longest.as_secs_f64().ceil().max(1.0);
        self.spec.length =
            TestLength::Seconds(u32::try_from(fathom_model::units::rounded(seconds)).unwrap_or(u32::MAX));
        let spec = &self.spec;
        let prepare = |(idx, client): (usize, &mut Client)| {
            // One measurement of the server's CPUs is enough for all flows.
            let remote = EndSettings { measures_cpu: idx == 0, ..spec.remote.clone() };
            let mut prepared = client.prepare(&TestSpec { remote, ..spec.clone() })?;
            prepared.connect()?;
            Ok(prepared)
        };
        self.clients.iter_mut().enumerate().map(prepare).collect::<Result<_, _>>().map_err(test_error)
    }
}

impl Test for NetperfClientTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(mut self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let flows = self.prepare_flows(context)?;
        let sockets: Vec<_> = flows.iter().map(|flow| flow.socket.clone()).collect();
        let is_sampled = self.spec.protocol == DataProtocol::Tcp && !self.spec.is_connection_each;
        let mut sampler = TcpInfoSampler::new(if is_sampled { &sockets } else { &[] }).of_unseen_peer();
        let spec = &self.spec;
        let pool = WorkerPool {
            states: flows,
            counters: metrics::counters(spec),
            cores: &self.role.cores,
            until: EndCondition::PhasesOver,
        };
        let mut trial_results = pool.run(context, &mut sampler, |worker, mut prepared| {
            let worker_flow = WorkerFlow { worker: &worker, spec, times: RefCell::default() };
            let failure = prepared.transfer(&worker_flow).err();
            Ok(FinishedFlow { prepared, times: worker_flow.times.take(), failure })
        })?;
        let finished = std::mem::take(&mut trial_results.workers);
        let mut record = trial_results.record(self.role.side);
        if is_sampled {
            sampler.finish(&mut record, trial_results.counts());
        }
        // All are told first, so that no flow lasts longer at the server than the one before it.
        finished.iter().filter(|flow| flow.failure.is_none()).for_each(|flow| flow.prepared.finish_sending());
        let n_flows = finished.len();
        let call_size = finished.first().map_or(1, |flow| flow.prepared.send_size());
        let mut times = Histogram::default();
        let mut results = Vec::new();
        for (idx, (flow, client)) in finished.into_iter().zip(&mut self.clients).enumerate() {
            times.merge(&flow.times);
            let failure = flow.failure.map_or(Ok(()), Err);
            let ended = failure.and_then(|()| flow.prepared.await_end(&self.stop));
            match ended.and_then(|()| client.results(flow.prepared.results_max(client.answer_max()))) {
                Ok(told) => results.push((idx, told)),
                Err(error) => server_kind::record_failure(&mut record, "netperf", &error),
            }
        }
        if spec.pattern == DataPattern::Transactions {
            record.distributions.insert(SERVICE_TIME.to_owned(), times);
        }
        metrics::add_client_totals(&mut record, spec);
        metrics::add_server_totals(&mut record, &results);
        if results.len() == n_flows {
            metrics::add_loss(&mut record, spec, (&results, call_size));
        }
        Ok(record)
    }
}

/// More than the most flows of a client.
const CLIENTS: usize = 1100;

/// Starts our own server, for the other end of a lab.
fn own_server(role: &Role, policy: &Policy) -> Result<OwnServer, Error> {
    let guests = fathom_engine::guests(role, policy);
    let options = NetserverOptions {
        clients: CLIENTS,
        guests,
        // Clients of a served host share its memory with everyone.
        message_max: if policy.is_for_others() { NetserverOptions::default().message_max } else { MESSAGE_MAX },
        policy: policy.clone(),
        ..NetserverOptions::default()
    };
    let server = Server::bind(options::listen_address(role), options).map_err(test_error)?;
    OwnServer::start(role, server.address(), move |stop| {
        server.run(stop).map(|totals| totals.finished).map_err(test_error)
    })
}

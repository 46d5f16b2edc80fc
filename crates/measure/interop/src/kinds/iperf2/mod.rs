//! A test against an iperf 2 server: an existing one, or ours at the other end of a lab.
//!
//! The client's side runs like all our tests. Over UDP the server's reports are added to the totals of the record. The server knows no
//! warm-up, so its numbers cover the whole trial.

mod metrics;
mod settings;

use std::sync::Arc;

use fathom_engine::{CommandDoc, EndCondition, Error, NamedTarget, Test, TestKind, TrialContext, WorkerPool};
use fathom_model::{Endpoints, Layer, Metric, OptionDoc, Record, Role, Settings, Side, names::count, units::Nanos};
use fathom_sys::{clock, policy::Policy, socket::Socket};
use fathom_transport::{options, tcp_sampler::TcpInfoSampler};

use super::{
    own_server::OwnServer,
    server_kind::{self, FirstFailure, WorkerFlow},
};
use crate::iperf2::{
    self, BackTraffic, Client, FlowContext, FlowCounter, FlowRole, FlowTable, Server, ServerOptions, TcpState,
    TransportProtocol,
};
use crate::sockets::ClientFilter;

/// A test over one transport protocol.
pub(crate) struct Iperf2 {
    name: &'static str,
    carrier: TransportProtocol,
    options: &'static [OptionDoc],
    metrics: &'static [Metric],
}

/// TCP streams.
pub(crate) const TCP: Iperf2 = Iperf2 {
    name: "iperf_tcp",
    carrier: TransportProtocol::Tcp,
    options: settings::TCP_OPTIONS,
    metrics: metrics::TCP,
};
/// Numbered datagrams.
pub(crate) const UDP: Iperf2 = Iperf2 {
    name: "iperf_udp",
    carrier: TransportProtocol::Udp,
    options: settings::UDP_OPTIONS,
    metrics: metrics::UDP,
};

/// The counters of the client's side, in the order of [`FlowCounter`].
const COUNTERS: &[&str] = &[
    metrics::BYTES,
    metrics::CALLS,
    metrics::FULL,
    metrics::DATAGRAMS,
    metrics::RECEIVED,
    count::REORDERED,
    metrics::JITTER_SUM,
];

/// The timeout of a connection while a test is prepared.
const CONNECT_MAX: Nanos = Nanos::from_secs(5);

impl TestKind for Iperf2 {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        match self.carrier {
            TransportProtocol::Tcp => "payload per second of TCP streams to or from an iperf 2 server",
            TransportProtocol::Udp => "datagrams to or from an iperf 2 server, and their loss",
        }
    }

    fn layer(&self) -> Layer {
        if self.carrier == TransportProtocol::Tcp { Layer::Tcp } else { Layer::Udp }
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        server_kind::is_two_sided(settings)
    }

    fn title(&self, settings: &Settings) -> String {
        server_kind::title("iperf", settings, "flow")
    }

    fn options(&self) -> &'static [OptionDoc] {
        self.options
    }

    fn metrics(&self) -> &'static [Metric] {
        self.metrics
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        server_kind::named_targets(settings, iperf2::PORT, settings::consent(settings))
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        server_kind::destination(settings, iperf2::PORT)?;
        settings::check(self.carrier, settings)
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::protocol("iperf"))
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        if role.side == Side::Responder {
            return Ok(Box::new(own_server(role, policy)?));
        }
        let from = server_kind::source(role);
        let servers = server_kind::server_destinations(role, policy, iperf2::PORT, self.name)?;
        let longest = role.phases.longest();
        let asked = settings::client_options(self.carrier, &role.settings, servers, (from, longest))?;
        let asked = iperf2::ClientOptions { connect_timeout: Some(CONNECT_MAX), ..asked };
        let client = Client::connect(asked).map_err(test_error)?;
        Ok(Box::new(Iperf2ClientTest { role: role.clone(), client }))
    }
}

/// Converts an iperf error to an error of a test.
fn test_error(error: iperf2::Error) -> Error {
    let hint = error.hint().map(str::to_owned);
    match error {
        iperf2::Error::Connect { .. } | iperf2::Error::SocketOption { .. } | iperf2::Error::Listen { .. } => {
            Error::Unsupported { what: format!("iperf: {error}"), hint }
        }
        iperf2::Error::NoServer { .. } => Error::Unsupported { what: error.to_string(), hint },
        error => Error::Peer { what: format!("(an iperf server) aborted the test: {error}") },
    }
}

/// The client's side.
struct Iperf2ClientTest {
    role: Role,
    client: Client,
}

impl FlowContext for WorkerFlow<'_, iperf2::Error> {
    fn add(&self, counter: FlowCounter, amount: u64) {
        self.worker.add(counter as usize, amount);
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }

    fn start(&self) -> Nanos {
        self.worker.start
    }
}

impl Test for Iperf2ClientTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(mut self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        clock::sleep_until(context.start);
        self.client.request_reverse().map_err(test_error)?;
        let carrier = self.client.carrier();
        let sockets: Vec<Arc<Socket>> = self.client.sockets();
        let is_tcp = carrier.protocol() == TransportProtocol::Tcp;
        let mut sampler = TcpInfoSampler::new(if is_tcp { &sockets } else { &[] }).of_unseen_peer();
        let failure = FirstFailure::none();
        let pool = WorkerPool {
            states: sockets.clone(),
            counters: COUNTERS,
            cores: &self.role.cores,
            until: EndCondition::PhasesOver,
        };
        let trial_results = pool.run(context, &mut sampler, |worker, socket| {
            let worker_flow = WorkerFlow { worker: &worker, failure: &failure };
            Ok(carrier.run(&socket, &worker_flow).map_err(|error| failure.record(error)))
        })?;
        let mut record = trial_results.record(self.role.side);
        let counts = trial_results.counts();
        if is_tcp {
            sampler.finish(&mut record, counts);
        }
        let retransmits = sockets.iter().filter_map(|socket| TcpState::of(socket)).map(|tcp| tcp.retransmits).sum();
        let sends = carrier.role() == FlowRole::Sender;
        metrics::add_client_totals(&mut record, (is_tcp && sends).then_some(retransmits));
        let mut failure = failure.into_inner();
        if !is_tcp && !sends {
            let jitters = (0..sockets.len()).filter_map(|idx| counts.of(idx, FlowCounter::JitterNs as usize));
            metrics::add_received(&mut record, jitters.max().unwrap_or(0));
        } else if failure.is_none() {
            let ends = || sockets.iter().zip(&trial_results.workers);
            // All are told first, so that no flow lasts longer at the server than the one before it.
            ends().for_each(|(socket, sent)| carrier.mark_end(socket, sent.as_ref().ok().and_then(Option::as_ref)));
            let reports: Result<Vec<_>, _> = ends()
                .filter_map(|(socket, sent)| carrier.finish(socket, sent.as_ref().ok()?.as_ref()).transpose())
                .collect();
            match reports {
                Ok(reports) if is_tcp => drop(reports),
                Ok(reports) => metrics::add_reports(&mut record, &reports),
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            server_kind::record_failure(&mut record, "iperf", &error);
        }
        Ok(record)
    }
}

/// Starts our own server, for the other end of a lab.
fn own_server(role: &Role, policy: &Policy) -> Result<OwnServer, Error> {
    let guests = fathom_engine::guests(role, policy);
    let admits: ClientFilter = Arc::new({
        let guests = guests.clone();
        move |address| guests.admit(address)
    });
    let options = ServerOptions {
        is_client_allowed: Some(admits.clone()),
        guests,
        // A served host sends datagrams only to addresses that TCP has proven: they could be forged.
        back_traffic: if policy.is_for_others() { BackTraffic::ProvenPeers } else { BackTraffic::Permitted(admits) },
        policy: policy.clone(),
        ..ServerOptions::default()
    };
    let server = Server::bind(options::listen_address(role), options).map_err(test_error)?;
    OwnServer::start(role, server.address(), move |stop| {
        server.run(stop, &FlowTable::new(&(), None)).map(|totals| totals.finished).map_err(test_error)
    })
}

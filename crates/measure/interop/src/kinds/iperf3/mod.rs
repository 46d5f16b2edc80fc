//! A test against an iperf3 server: an existing one, or ours at the other end of a lab.
//!
//! The client's side runs like all our tests. The server's results are added to the totals of the record. The server knows no
//! warm-up, so its numbers cover the whole trial.

mod metrics;
mod settings;

use fathom_engine::{
    CommandDoc, Consent, EndCondition, Error, NamedTarget, StopFlag, Test, TestKind, TrialContext, TrialObserver,
    WorkerCounts, WorkerPool,
};
use fathom_model::{
    Endpoints, Layer, Metric, OptionDoc, Record, Role, Settings, Side,
    names::count,
    units::{Nanos, approximate, rounded},
};
use fathom_sys::{clock, policy::Policy};

use super::{
    own_server::OwnServer,
    server_kind::{self, FirstFailure, WorkerFlow},
};
use crate::iperf3::{
    self, Client, ClientOptions, Cookie, Counter, Iperf3Outcome, OpenStream, Server, ServerOptions, StreamContext,
    StreamCounts, StreamOutcome, StreamRole, TransportProtocol,
};
use fathom_transport::{options, tcp_sampler::TcpInfoSampler};

/// A test over one transport protocol.
pub(crate) struct Iperf3 {
    name: &'static str,
    carrier: TransportProtocol,
    options: &'static [OptionDoc],
    metrics: &'static [Metric],
}

/// TCP streams.
pub(crate) const TCP: Iperf3 = Iperf3 {
    name: "iperf3_tcp",
    carrier: TransportProtocol::Tcp,
    options: settings::TCP_OPTIONS,
    metrics: metrics::TCP,
};
/// Numbered datagrams.
pub(crate) const UDP: Iperf3 = Iperf3 {
    name: "iperf3_udp",
    carrier: TransportProtocol::Udp,
    options: settings::UDP_OPTIONS,
    metrics: metrics::UDP,
};

/// The counters of the client's side, in the order of [`Counter`].
const COUNTERS: &[&str] = &[metrics::BYTES, metrics::DATAGRAMS, metrics::LOST, count::REORDERED, metrics::JITTER_SUM];

impl TestKind for Iperf3 {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        match self.carrier {
            TransportProtocol::Tcp => "payload per second of TCP streams to or from an iperf3 server",
            TransportProtocol::Udp => "datagrams to or from an iperf3 server, and their loss",
        }
    }

    fn layer(&self) -> Layer {
        if self.carrier == TransportProtocol::Tcp { Layer::Tcp } else { Layer::Udp }
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        server_kind::is_two_sided(settings)
    }

    fn title(&self, settings: &Settings) -> String {
        server_kind::title("iperf3", settings, "stream")
    }

    fn options(&self) -> &'static [OptionDoc] {
        self.options
    }

    fn metrics(&self) -> &'static [Metric] {
        self.metrics
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        server_kind::named_targets(settings, iperf3::PORT, Consent::Server)
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        server_kind::destination(settings, iperf3::PORT)?;
        settings::parameters(self.carrier, settings).map(drop)
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc::protocol("iperf3"))
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        if role.side == Side::Responder {
            return Ok(Box::new(own_server(role, policy)?));
        }
        let stop = StopFlag::default();
        let mut parameters = settings::parameters(self.carrier, &role.settings)?;
        // The client keeps the time. The server's guard gets the longest possible duration.
        let longest = role.phases.longest().as_secs_f64().ceil();
        parameters.time_secs = u32::try_from(rounded(longest)).unwrap_or(1).clamp(1, 86_400);
        let asked = ClientOptions {
            servers: server_kind::server_destinations(role, policy, iperf3::PORT, self.name)?,
            parameters,
            from: server_kind::source(role),
            connect_timeout: Some(CONNECT_MAX),
            ..ClientOptions::default()
        };
        let client = connect(&asked, &stop).map_err(test_error)?;
        Ok(Box::new(Iperf3ClientTest { role: role.clone(), client, stop }))
    }
}

/// The timeout of the control connection while a test is prepared.
const CONNECT_MAX: Nanos = Nanos::from_secs(5);

/// How long a server may be busy with the previous trial before it is ready again.
const BUSY_MAX: Nanos = Nanos::from_secs(3);

/// Connects, and retries while the server is busy with our previous test.
fn connect(asked: &ClientOptions, stop: &StopFlag) -> Result<Client, iperf3::Error> {
    let deadline = clock::now() + BUSY_MAX;
    loop {
        match Client::connect(asked.clone(), Cookie::fresh(), stop) {
            Err(iperf3::Error::Busy) if clock::now() < deadline => {
                clock::sleep_until(clock::now() + Nanos::from_millis(100));
            }
            outcome => return outcome,
        }
    }
}

/// Converts an iperf3 error to an error of a test.
fn test_error(error: iperf3::Error) -> Error {
    match error {
        iperf3::Error::Connect { .. } | iperf3::Error::Denied { .. } | iperf3::Error::SocketOption { .. } => {
            Error::Unsupported { what: format!("iperf3: {error}"), hint: error.hint().map(str::to_owned) }
        }
        iperf3::Error::Busy | iperf3::Error::Unexpected { .. } | iperf3::Error::Refused { .. } => {
            Error::Unsupported { what: format!("the iperf3 server: {error}"), hint: error.hint().map(str::to_owned) }
        }
        error => Error::Peer { what: format!("(an iperf3 server) aborted the test: {error}") },
    }
}

/// The client's side.
struct Iperf3ClientTest {
    role: Role,
    client: Client,
    stop: StopFlag,
}

impl StreamContext for WorkerFlow<'_, fathom_sys::Error> {
    fn add(&self, counter: Counter, amount: u64) {
        self.worker.add(counter as usize, amount);
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }

    fn start(&self) -> Nanos {
        self.worker.start
    }
}

/// Watches the control connection while the workers stream.
struct ControlWatcher<'a> {
    client: &'a mut Client,
    streams: &'a FirstFailure<fathom_sys::Error>,
    failure: Option<iperf3::Error>,
    sampler: Option<TcpInfoSampler>,
}

impl TrialObserver for ControlWatcher<'_> {
    fn on_interval(&mut self, elapsed: Nanos, counts: WorkerCounts<'_>) {
        if let Some(flows) = &mut self.sampler {
            flows.on_interval(elapsed, counts);
        }
        if self.failure.is_none() {
            self.failure = self.client.poll_for_end();
            if self.failure.is_some() {
                self.streams.end_all();
            }
        }
    }
}

impl Test for Iperf3ClientTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(mut self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        self.client.open_streams().map_err(test_error)?;
        let streams: Vec<OpenStream> = self.client.streams().to_vec();
        let parameters = self.client.parameters().clone();
        let is_tcp = parameters.protocol == TransportProtocol::Tcp;
        let sockets: Vec<_> = streams.iter().map(|open| open.socket.clone()).collect();
        let broken = FirstFailure::none();
        let mut looking = ControlWatcher {
            client: &mut self.client,
            streams: &broken,
            failure: None,
            sampler: is_tcp.then(|| TcpInfoSampler::new(&sockets).of_unseen_peer()),
        };
        let pool = WorkerPool {
            states: streams.clone(),
            counters: COUNTERS,
            cores: &self.role.cores,
            until: EndCondition::PhasesOver,
        };
        let trial_results = pool.run(context, &mut looking, |worker, open| {
            let worker_flow = WorkerFlow { worker: &worker, failure: &broken };
            if let Err(error) = iperf3::stream(&open, &parameters, None, &worker_flow) {
                broken.record(error);
            }
            Ok(())
        })?;
        let ControlWatcher { failure: why, sampler: flows, .. } = looking;
        let mut record = trial_results.record(self.role.side);
        let counts = trial_results.counts();
        if let Some(flows) = flows {
            flows.finish(&mut record, counts);
        }
        let outcome = client_outcome(&streams, &record, counts);
        let told = match (why, broken.into_inner()) {
            (Some(why), _) => Err(why),
            (None, Some(error)) => Err(error.into()),
            (None, None) => self.client.finish(&outcome.results(None)),
        };
        metrics::add_client_totals(&mut record, &outcome);
        match told {
            Ok(results) => metrics::add_server_totals(&mut record, &results, &outcome),
            Err(error) => {
                self.stop.abort();
                server_kind::record_failure(&mut record, "iperf3", &error);
            }
        }
        Ok(record)
    }
}

/// Returns the counts of this side in the form for the server.
fn client_outcome(streams: &[OpenStream], record: &Record, counts: WorkerCounts<'_>) -> Iperf3Outcome {
    let span = record.timeline.end_ns.last().copied().unwrap_or_default();
    let of = |(place, open): (usize, &OpenStream)| {
        let count = |counter: Counter| counts.of(place, counter as usize).unwrap_or(0);
        StreamOutcome {
            stream: open.stream,
            total: StreamCounts {
                bytes: count(Counter::Bytes),
                packets: count(Counter::Packets),
                lost: count(Counter::Lost),
                out_of_order: count(Counter::OutOfOrder),
                jitter: Nanos(count(Counter::JitterNs)),
                tcp: (open.stream.role == StreamRole::Sender).then(|| iperf3::TcpState::of(&open.socket)).flatten(),
            },
            omitted: iperf3::Omitted::default(),
            extremes: None,
        }
    };
    let share = approximate(record.cpu_ns.0) / approximate(span.0.max(1)) * 100.0;
    Iperf3Outcome {
        streams: streams.iter().enumerate().map(of).collect(),
        span,
        cpu: iperf3::CpuUse { total: share, user: 0.0, system: share },
        congestion: streams.first().and_then(|open| fathom_sys::socket::congestion(&open.socket).ok()),
        peer: None,
    }
}

/// Starts our own server, for the other end of a lab.
fn own_server(role: &Role, policy: &Policy) -> Result<OwnServer, Error> {
    let guests = fathom_engine::guests(role, policy);
    let options = ServerOptions { clients: 1, guests, ..ServerOptions::default() };
    let server = Server::bind(options::listen_address(role), None, options).map_err(test_error)?;
    OwnServer::start(role, server.address(), move |stop| {
        server.run(stop, &|| Box::new(())).map(|totals| totals.finished).map_err(test_error)
    })
}

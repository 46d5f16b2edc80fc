//! A test against an iperf3 server: one that is there already, or ours at the other end of a lab.
//!
//! The client's side is conducted as every test of ours; what the server tells at the end goes into the record's totals. The
//! server knows no warm-up, so its numbers are those of the whole trial.

mod metrics;
mod settings;

use std::{
    net::SocketAddr,
    panic::resume_unwind,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use fathom_engine::{Counts, Crew, Error, Session, StopFlag, Test, TestKind, Until, Watcher, Worker};
use fathom_model::{
    Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side,
    names::count,
    units::{Nanos, approximate, rounded},
};
use fathom_sys::{
    clock,
    policy::{Destination, Policy, Refused},
    threads,
};

pub use self::settings::destination;
use crate::{
    flows::FlowWatch,
    link, options,
    protocol::iperf3::{
        self, Asked, Carrier, Client, Conducted, Cookie, Counter, Open, Outcome, Part, Reading, Served, Server,
        ServerOptions, StreamOutcome,
    },
};

/// A test over one carrier.
pub(crate) struct Iperf3 {
    name: &'static str,
    carrier: Carrier,
    options: &'static [OptionDoc],
    metrics: &'static [Metric],
}

/// Streams of bytes.
pub(crate) const TCP: Iperf3 =
    Iperf3 { name: "iperf3_tcp", carrier: Carrier::Tcp, options: settings::TCP_OPTIONS, metrics: metrics::TCP };
/// Numbered datagrams.
pub(crate) const UDP: Iperf3 =
    Iperf3 { name: "iperf3_udp", carrier: Carrier::Udp, options: settings::UDP_OPTIONS, metrics: metrics::UDP };

/// What is counted on the client's side, in the order of [`Counter`].
const COUNTERS: &[&str] = &[metrics::BYTES, metrics::DATAGRAMS, metrics::LOST, count::REORDERED, metrics::JITTER_SUM];

impl TestKind for Iperf3 {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        match self.carrier {
            Carrier::Tcp => "payload per second of TCP streams to or from an iperf3 server",
            Carrier::Udp => "datagrams to or from an iperf3 server, and what was lost",
        }
    }

    fn layer(&self) -> Layer {
        if self.carrier == Carrier::Tcp { Layer::Tcp } else { Layer::Udp }
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        settings.text(settings::HOST.name).is_none()
    }

    fn title(&self, settings: &Settings) -> String {
        let way = settings.text(settings::WAY.name).filter(|way| way != "up").map(|way| format!(" {way}"));
        let flows = match settings.count(settings::STREAMS.name).unwrap_or(1) {
            1 => "1 stream".to_owned(),
            n => format!("{n} streams"),
        };
        format!("iperf3{}, {flows}", way.unwrap_or_default())
    }

    fn options(&self) -> &'static [OptionDoc] {
        self.options
    }

    fn metrics(&self) -> &'static [Metric] {
        self.metrics
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        settings::destination(settings)?;
        settings::parameters(self.carrier, settings).map(drop)
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        if role.side == Side::Responder {
            return Ok(Box::new(Serving::bind(role, policy)?));
        }
        let stop = StopFlag::default();
        let mut parameters = settings::parameters(self.carrier, &role.settings)?;
        // The time is the client's to keep; the server's guard is told the longest that it may be.
        let longest = role.phases.longest().as_secs_f64().ceil();
        parameters.time_secs = u32::try_from(rounded(longest)).unwrap_or(1).clamp(1, 86_400);
        // Only ours at the other end of a path under test is reached from this host's address there.
        let asked = Asked {
            servers: servers((role, policy), self.name)?,
            parameters,
            from: role.address.filter(|_| self.is_two_sided(&role.settings)),
            connect_timeout: Some(CONNECT_MAX),
            ..Asked::default()
        };
        let client = connect(&asked, &stop).map_err(said)?;
        Ok(Box::new(Testing { role: role.clone(), client, stop }))
    }
}

/// How long the control connection may take while a test is prepared.
const CONNECT_MAX: Nanos = Nanos::from_secs(5);
/// How soon the other end's end is noticed.
const LOOK: Nanos = Nanos::from_millis(20);

/// How long a server may be busy with the trial before this one, which it has yet to put away.
const BUSY_MAX: Nanos = Nanos::from_secs(3);

/// Connects, and once more while the server is busy with what it did for us a moment ago.
fn connect(asked: &Asked, stop: &StopFlag) -> Result<Client, iperf3::Error> {
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

/// An iperf3 error as one of a test.
fn said(error: iperf3::Error) -> Error {
    match error {
        iperf3::Error::Connect { .. } | iperf3::Error::Denied { .. } | iperf3::Error::SocketOption { .. } => {
            Error::Unsupported { what: format!("iperf3: {error}"), hint: error.hint().map(str::to_owned) }
        }
        iperf3::Error::Busy | iperf3::Error::Unexpected { .. } | iperf3::Error::Refused { .. } => {
            Error::Unsupported { what: format!("the iperf3 server: {error}"), hint: error.hint().map(str::to_owned) }
        }
        error => Error::Peer { what: format!("(an iperf3 server) broke the test off: {error}") },
    }
}

/// Where the server is: the one that was named, or ours.
fn servers((role, policy): (&Role, &Policy), kind: &'static str) -> Result<Vec<Destination>, Error> {
    let Some((host, port)) = destination(&role.settings)? else {
        return Ok(vec![policy.permit(link::told(role, kind)?)?]);
    };
    let unknown = |error| match Refused::within(&error) {
        Some(refused) => refused.clone().into(),
        None => Error::Unsupported { what: format!("there is no host `{host}`: {error}"), hint: None },
    };
    policy.resolve(&host, port).map_err(unknown)
}

/// The client's side.
struct Testing {
    role: Role,
    client: Client,
    stop: StopFlag,
}

/// A stream in the hands of its thread.
struct Hand<'a> {
    worker: &'a Worker<'a>,
    is_broken: &'a AtomicBool,
}

impl Conducted for Hand<'_> {
    fn add(&self, counter: Counter, amount: u64) {
        self.worker.add(counter as usize, amount);
    }

    fn is_over(&self) -> bool {
        self.worker.is_over() || self.is_broken.load(Ordering::Relaxed)
    }

    fn start(&self) -> Nanos {
        self.worker.start
    }
}

/// Looks after the control connection while the workers stream.
struct Looking<'a> {
    client: &'a mut Client,
    is_broken: &'a AtomicBool,
    why: Option<iperf3::Error>,
    flows: Option<FlowWatch>,
}

impl Watcher for Looking<'_> {
    fn interval(&mut self, elapsed: Nanos, counts: Counts<'_>) {
        if let Some(flows) = &mut self.flows {
            flows.interval(elapsed, counts);
        }
        if self.why.is_none() {
            self.why = self.client.heard_of_end();
            self.is_broken.store(self.why.is_some(), Ordering::Relaxed);
        }
    }
}

impl Test for Testing {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(mut self: Box<Self>, session: &Session) -> Result<Record, Error> {
        self.client.open_streams().map_err(said)?;
        let streams: Vec<Open> = self.client.streams().to_vec();
        let parameters = self.client.parameters().clone();
        let is_tcp = parameters.carrier == Carrier::Tcp;
        let sockets: Vec<_> = streams.iter().map(|open| open.socket.clone()).collect();
        let is_broken = AtomicBool::new(false);
        let mut looking = Looking {
            client: &mut self.client,
            is_broken: &is_broken,
            why: None,
            flows: is_tcp.then(|| FlowWatch::new(&sockets)),
        };
        let crew =
            Crew { states: streams.clone(), counters: COUNTERS, cores: &self.role.cores, until: Until::PhasesOver };
        let broken = Mutex::new(None);
        let conducted = crew.conduct(session, &mut looking, |worker, open| {
            let hand = Hand { worker: &worker, is_broken: &is_broken };
            if let Err(error) = iperf3::stream(&open, (&parameters, None), &hand) {
                is_broken.store(true, Ordering::Relaxed);
                broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            Ok(())
        })?;
        let Looking { why, flows, .. } = looking;
        let mut record = conducted.record(self.role.side);
        let counts = conducted.counts();
        if let Some(flows) = flows {
            flows.finish(&mut record, counts);
        }
        let outcome = own_outcome(&streams, (&record, counts));
        let told = match (why, broken.into_inner().unwrap_or_else(PoisonError::into_inner)) {
            (Some(why), _) => Err(why),
            (None, Some(error)) => Err(error.into()),
            (None, None) => self.client.finish(&outcome.results(None)),
        };
        metrics::own(&mut record, &outcome);
        match told {
            Ok(results) => metrics::told(&mut record, &results, &outcome),
            Err(error) => break_off(&mut record, &error, &self.stop),
        }
        Ok(record)
    }
}

/// Keeps what was measured of a test that its server did not bring to an end.
fn break_off(record: &mut Record, error: &iperf3::Error, stop: &StopFlag) {
    stop.abort();
    record.complete = false;
    *record.errors.entry(format!("iperf3: {error}")).or_default() += 1;
}

/// What this side counted, as the server is told.
fn own_outcome(streams: &[Open], (record, counts): (&Record, Counts<'_>)) -> Outcome {
    let span = record.timeline.end_ns.last().copied().unwrap_or_default();
    let of = |(place, open): (usize, &Open)| {
        let count = |counter: Counter| counts.of(place, counter as usize).unwrap_or(0);
        StreamOutcome {
            stream: open.stream,
            total: Reading {
                bytes: count(Counter::Bytes),
                packets: count(Counter::Packets),
                lost: count(Counter::Lost),
                out_of_order: count(Counter::OutOfOrder),
                jitter: Nanos(count(Counter::JitterNs)),
                tcp: (open.stream.part == Part::Sender).then(|| iperf3::TcpState::of(&open.socket)).flatten(),
            },
            omitted: iperf3::Omitted::default(),
            extremes: None,
        }
    };
    let share = approximate(record.cpu_ns.0) / approximate(span.0.max(1)) * 100.0;
    Outcome {
        streams: streams.iter().enumerate().map(of).collect(),
        span,
        cpu: iperf3::CpuUse { total: share, user: 0.0, system: share },
        congestion: streams.first().and_then(|open| fathom_sys::socket::congestion(&open.socket).ok()),
        peer: None,
    }
}

/// Our own server, for the other end of a lab; it serves from the preparation on, because its client connects in its own.
struct Serving {
    role: Role,
    address: SocketAddr,
    stop: StopFlag,
    server: Option<JoinHandle<Result<Served, iperf3::Error>>>,
}

impl Serving {
    fn bind(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let guests = fathom_engine::guests(role, policy);
        let admits = Arc::new(move |address| guests.admit(address));
        let options = ServerOptions { clients: 1, admits: Some(admits), ..ServerOptions::default() };
        let server = Server::bind(options::listen_address(role), (None, options)).map_err(said)?;
        let (address, stop) = (server.address(), StopFlag::default());
        let told = stop.clone();
        let server = threads::start(move || server.run(&told, &|| Box::new(())))
            .map_err(|cause| Error::System { what: "start a thread for the server of iperf3".to_owned(), cause })?;
        Ok(Self { role: role.clone(), address, stop, server: Some(server) })
    }

    /// Ends the server, which happens within moments, and says what it served.
    fn end(&mut self) -> Option<Result<Served, iperf3::Error>> {
        self.stop.finish();
        let served = self.server.take()?.join();
        Some(served.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Of a server that was not asked for its outcome only the end matters.
        let _ = self.end();
    }
}

impl Test for Serving {
    fn endpoints(&self) -> Endpoints {
        link::tell(self.address)
    }

    fn run(mut self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let crew = Crew { states: vec![()], counters: &["tests"], cores: &[], until: Until::Told };
        let conducted = crew.conduct(session, &mut (), |worker, ()| {
            while !worker.is_over() {
                clock::sleep_until(clock::now() + LOOK);
            }
            Ok(())
        })?;
        let mut record = conducted.record(self.role.side);
        let served = self.end().transpose().map_err(said)?.unwrap_or_default();
        record.totals.insert("tests".to_owned(), served.finished);
        if served.finished == 0 {
            let text = "no client brought its test to an end".to_owned();
            record.notes.push(Note { id: "no-test".to_owned(), text });
        }
        Ok(record)
    }
}

//! Round-trip time while streams fill the path.
//!
//! A probe connection sends requests at a fixed rate while other connections stream up, down, both ways or not at all; a plan
//! with one test for each compares them. The streams are those of `tcp_stream`, the probes are in [`probe`]. This module knows
//! nothing of queues.

mod metrics;
mod probe;

use std::sync::Arc;

use fathom_engine::{CommandDoc, Error, Test, TestKind, TrialContext, WorkerPool, pace::ConstantRate};
use fathom_model::{
    Endpoints, Histogram, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, ValueKind,
    names::{
        count,
        distribution::{CONNECT_TIME, RESPONSE_TIME, SCHEDULE_LAG},
        tcp,
    },
    units::{PerSec, grouped},
};
use fathom_sys::{policy::Policy, socket::Socket};

use self::probe::{ProbeResults, ProbeSender};
use super::tcp_stream::flow::{Flow, FlowResult, LastMoved};
use crate::{
    connection_setup::FlowConnections,
    options::{
        self, BUFFER, CONGESTION, DEVICE, DSCP, FLOW_LABEL, FLOWS, MSS, PORT, SOURCE, STREAM_FLOWS, SocketOptions,
    },
    payload::Payload,
    stream::{ReceiveSink, SendSource, StreamReceiver, StreamSender},
    tcp_sampler::TcpInfoSampler,
    worker_reading::{PayloadCount, WorkerReading},
};

/// Probes at a fixed rate together with streams.
pub(crate) struct TcpLoaded;

const NAME: &str = "tcp_loaded";
/// The bytes that a stream hands to the kernel in one call, as `docs/methods/tcp_stream.md` explains.
const WRITE: usize = 512 << 10;
/// A higher rate of probes would itself be a load.
const RATE_MAX: f64 = 10_000.0;
/// The key of the responder's address that connection setup looks for.
const ADDRESS: &str = "address";

const LOAD: OptionDoc = OptionDoc {
    name: "direction",
    value: ValueKind::Choice(&["none", "up", "down", "both"]),
    default: Some("both"),
    help: "direction of the streams that load the path besides the probes, seen from the initiator",
};
const PROBE_RATE: OptionDoc = OptionDoc {
    name: "probe-rate",
    value: ValueKind::Rate,
    default: Some("100"),
    help: "probes per second, sent whether earlier ones are answered or not",
};

/// A group of connections with its own listener, because the listener tells the purpose of an incoming connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowGroup {
    Probe,
    Up,
    Down,
}

impl FlowGroup {
    /// The key of its address in the responder's endpoints, and its offset from the first port.
    fn place(self) -> (&'static str, u64) {
        match self {
            Self::Probe => ("address_probe", 0),
            Self::Up => ("address_up", 1),
            Self::Down => ("address_down", 2),
        }
    }

    fn sends(self, side: Side) -> bool {
        match self {
            Self::Probe => false,
            Self::Up => side == Side::Initiator,
            Self::Down => side == Side::Responder,
        }
    }

    /// The role with which its connections are opened.
    fn role(self, role: &Role, n_flows: usize) -> Result<Role, Error> {
        let mut role = role.clone();
        let (key, place) = self.place();
        role.settings.set(FLOWS.name, n_flows.to_string());
        if self == Self::Probe {
            // A probe shares only the path with the load.
            for option in [BUFFER, CONGESTION, MSS] {
                role.settings.0.remove(option.name);
            }
        }
        if let Some(port) = role.settings.count(PORT.name).filter(|port| *port > 0) {
            if port + place > u64::from(u16::MAX) {
                let expected = "a port below 65534, as streams have the next two";
                return Err(options::invalid_value(PORT.name, expected, &port));
            }
            role.settings.set(PORT.name, (port + place).to_string());
        }
        role.peer = role.peer.remove(key).map(|address| (ADDRESS.to_owned(), address)).into_iter().collect();
        Ok(role)
    }
}

/// The directions of the streams.
fn streams(settings: &Settings) -> &'static [FlowGroup] {
    match settings.text(LOAD.name).as_deref() {
        Some("none") => &[],
        Some("up") => &[FlowGroup::Up],
        Some("down") => &[FlowGroup::Down],
        _ => &[FlowGroup::Up, FlowGroup::Down],
    }
}

fn schedule(settings: &Settings) -> Result<ConstantRate, Error> {
    let rate = settings.rate(PROBE_RATE.name).unwrap_or_default();
    let bounded = PerSec::new(RATE_MAX).filter(|most| rate.get() >= 1.0 && rate <= *most);
    let refused = || options::invalid_value(PROBE_RATE.name, "1 to 10k probes per second", &rate);
    bounded.and_then(|_| ConstantRate::new(rate)).ok_or_else(refused)
}

impl TestKind for TcpLoaded {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "round-trip times at a fixed rate, idle and next to TCP streams that fill the path"
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        let flows = match (settings.count(FLOWS.name), settings.text(FLOWS.name)) {
            (None, Some(word)) => format!("as many flows as {word}"),
            (None | Some(1), _) => "1 flow".to_owned(),
            (Some(n), _) => format!("{n} flows"),
        };
        match settings.text(LOAD.name).as_deref() {
            Some("none") => "latency without load".to_owned(),
            Some("up") => format!("latency under load up, {flows}"),
            Some("down") => format!("latency under load down, {flows}"),
            _ => format!("latency under load in both directions, {flows} each"),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[LOAD, STREAM_FLOWS, PROBE_RATE, CONGESTION, BUFFER, MSS, DSCP, FLOW_LABEL, SOURCE, DEVICE, PORT]
    }

    fn metrics(&self) -> &'static [Metric] {
        metrics::METRICS
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        schedule(settings)?;
        SocketOptions::check(settings)
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc { scan: Some("direction=none,up,down,both"), ..CommandDoc::test("loaded") })
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        let schedule = schedule(&role.settings)?;
        let n_flows = options::stream_flows(role, NAME)?;
        let (mut upstreams, mut notes) = (Vec::new(), Vec::new());
        for upstream in streams(&role.settings).iter().chain(&[FlowGroup::Probe]) {
            let n_flows = if *upstream == FlowGroup::Probe { 1 } else { n_flows };
            let of_lane = upstream.role(role, n_flows)?;
            let (opening, told) = FlowConnections::prepare(&of_lane, NAME, &SocketOptions::of(&of_lane, policy))?;
            notes.extend(told.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
            upstreams.push((*upstream, n_flows, opening));
        }
        let receives = |upstream: &FlowGroup| *upstream != FlowGroup::Probe && !upstream.sends(role.side);
        let n_received = upstreams.iter().filter(|(upstream, ..)| receives(upstream)).count() * n_flows;
        let rooms = (0..n_received).map(|_| ReceiveSink::Copy(Payload::random(WRITE, role.seed))).collect();
        let source = SendSource::Buffer(Payload::random(WRITE, role.seed));
        Ok(Box::new(TcpLoadedTest {
            role: role.clone(),
            n_flows,
            schedule,
            groups: upstreams,
            source,
            sinks: rooms,
            notes,
        }))
    }
}

struct TcpLoadedTest {
    role: Role,
    n_flows: usize,
    schedule: ConstantRate,
    /// The streams come first, so that a stream's number is that of its worker.
    groups: Vec<(FlowGroup, usize, FlowConnections)>,
    source: SendSource,
    sinks: Vec<ReceiveSink>,
    notes: Vec<Note>,
}

/// The task of a worker with its connection.
enum FlowTask {
    Send(Arc<Socket>, Arc<WorkerReading>),
    Receive(Arc<Socket>, Arc<WorkerReading>, ReceiveSink),
    Probe(Arc<Socket>),
}

/// The result of a worker.
enum WorkerOutcome {
    Stream(FlowResult),
    Probe(ProbeResults),
}

impl Test for TcpLoadedTest {
    fn endpoints(&self) -> Endpoints {
        let mut endpoints = Endpoints::new();
        for (upstream, _, opening) in &self.groups {
            let address = opening.endpoints().remove(ADDRESS);
            endpoints.extend(address.map(|address| (upstream.place().0.to_owned(), address)));
        }
        if self.role.side == Side::Responder {
            endpoints.insert(FLOWS.name.to_owned(), self.n_flows.to_string());
        }
        endpoints
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let Self { role, schedule, groups: upstreams, source, sinks: mut rooms, mut notes, .. } = *self;
        let side = role.side;
        let counters = counters(&upstreams, side);
        let place = |counter: &str| counters.iter().position(|name| *name == counter).unwrap_or(0);
        let (sent, received) = (place(count::BYTES_SENT), place(count::BYTES_RECEIVED));
        let answered = place(count::TRANSACTIONS);
        let (mut tasks, mut connect) = (Vec::new(), Histogram::new());
        for (upstream, n_flows, opening) in upstreams {
            connect.merge(&opening.connect_times());
            let sockets = opening.establish(n_flows, context)?.into_iter().map(Arc::new);
            tasks.extend(sockets.map(|socket| match upstream {
                FlowGroup::Probe => FlowTask::Probe(socket),
                _ if upstream.sends(side) => {
                    let payload = PayloadCount { name: tcp::PAYLOAD_BYTES_SENT, counter: sent };
                    FlowTask::Send(socket, Arc::new(WorkerReading::new(payload)))
                }
                _ => {
                    let payload = PayloadCount { name: tcp::PAYLOAD_BYTES_RECEIVED, counter: received };
                    let sink = rooms.pop().expect("there is room for every stream that is received");
                    FlowTask::Receive(socket, Arc::new(WorkerReading::new(payload)), sink)
                }
            }));
        }
        let mut watch = sampler(&tasks);
        let pool = WorkerPool { states: tasks, counters, cores: &role.cores, until: side.into() };
        let last_moved = LastMoved::default();
        let results = pool.run(context, &mut watch, |worker, task| {
            let flow = |socket, reading| Flow::new(worker, context, side, (socket, reading), &last_moved);
            Ok(match task {
                FlowTask::Send(socket, reading) => {
                    let cannot = |cause| Error::System { what: "send a stream".to_owned(), cause };
                    let sending = StreamSender::new(&socket, &source).map_err(cannot)?;
                    WorkerOutcome::Stream(flow(&socket, &reading).send(sending))
                }
                FlowTask::Receive(socket, reading, sink) => {
                    WorkerOutcome::Stream(flow(&socket, &reading).receive(StreamReceiver::new(&socket, sink)))
                }
                FlowTask::Probe(socket) if side == Side::Initiator => {
                    WorkerOutcome::Probe(ProbeSender::new(worker, answered, context, (&socket, schedule)).run()?)
                }
                FlowTask::Probe(socket) => WorkerOutcome::Probe(probe::respond(worker, answered, &socket)),
            })
        })?;
        let mut record = results.record(side);
        watch.finish(&mut record, results.counts());
        record.notes.append(&mut notes);
        if side == Side::Initiator {
            record.distributions.insert(CONNECT_TIME.to_owned(), connect);
        }
        results.workers.into_iter().for_each(|outcome| add_outcome(&mut record, outcome));
        record.complete &= record.errors.is_empty();
        Ok(record)
    }
}

/// The counters of a side's workers. The first, the load's if there is one, decides when the rate is steady.
fn counters(upstreams: &[(FlowGroup, usize, FlowConnections)], side: Side) -> &'static [&'static str] {
    let sends = upstreams.iter().any(|(upstream, ..)| upstream.sends(side));
    let receives = upstreams.iter().any(|(upstream, ..)| *upstream != FlowGroup::Probe && !upstream.sends(side));
    match (sends, receives) {
        (true, true) => &[count::BYTES_RECEIVED, count::BYTES_SENT, count::TRANSACTIONS],
        (true, false) => &[count::BYTES_SENT, count::TRANSACTIONS],
        (false, true) => &[count::BYTES_RECEIVED, count::TRANSACTIONS],
        (false, false) => &[count::TRANSACTIONS],
    }
}

/// Samples the streams only: the probe measures more than its own `TCP_INFO` would show.
fn sampler(tasks: &[FlowTask]) -> TcpInfoSampler {
    let stream = |task: &FlowTask| match task {
        FlowTask::Send(socket, reading) | FlowTask::Receive(socket, reading, _) => {
            Some((Arc::clone(socket), Arc::clone(reading)))
        }
        FlowTask::Probe(_) => None,
    };
    TcpInfoSampler::of_workers(tasks.iter().filter_map(stream))
}

/// Adds the result of a worker.
fn add_outcome(record: &mut Record, outcome: WorkerOutcome) {
    match outcome {
        WorkerOutcome::Stream(told) => told.add_to(record),
        WorkerOutcome::Probe(probes) => {
            record.errors.extend(probes.errors);
            if record.side == Side::Responder {
                return;
            }
            record.distributions.insert(RESPONSE_TIME.to_owned(), probes.response);
            record.distributions.insert(SCHEDULE_LAG.to_owned(), probes.lag);
            if probes.n_unanswered > 0 {
                let text = format!(
                    "{} probes were never sent, or had no answer after the trial: their times are lower bounds",
                    grouped(probes.n_unanswered)
                );
                record.notes.push(Note::new("lower-bounds", text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_of_two_directions_are_sent_by_different_sides() {
        for side in [Side::Initiator, Side::Responder] {
            assert_ne!(FlowGroup::Up.sends(side), FlowGroup::Down.sends(side));
            assert!(!FlowGroup::Probe.sends(side));
        }
    }

    #[test]
    fn a_rate_that_would_be_a_load_of_its_own_is_refused() {
        let of = |rate: &str| schedule(&Settings::default().with("probe-rate", rate));
        assert!(of("100").is_ok() && of("10k").is_ok());
        for rate in ["0", "0.5", "11k"] {
            let refused = of(rate).unwrap_err().to_string();
            assert!(refused.contains("1 to 10k probes per second"), "{refused}");
        }
    }
}

//! How long a round trip takes beside streams that fill the path.
//!
//! A probe connection asks at a fixed rate while other connections stream up, down, both ways or not at all; a plan with one test
//! for each compares them. Streams are those of `tcp_stream`; what is new is [`probe`]. It knows nothing of queues.

mod metrics;
mod probe;

use std::sync::Arc;

use fathom_engine::{Crew, Error, Session, Test, TestKind, pace::Constant};
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

use self::probe::{Asking, Probes};
use super::tcp_stream::flow::{Flow, LastMoved, Told};
use crate::{
    flows::{FlowWatch, PayloadCount},
    link::Opening,
    options::{
        self, BUFFER, CONGESTION, DEVICE, DSCP, FLOW_LABEL, FLOWS, MSS, PORT, SOURCE, STREAM_FLOWS, SocketOptions,
    },
    payload::Payload,
    stream::{Inlet, Receiving, Sending, Source},
};

/// Probes at a fixed rate beside streams.
pub(crate) struct TcpLoaded;

const NAME: &str = "tcp_loaded";
/// What a stream hands to the kernel in one call, as `docs/methods/tcp_stream.md` chooses it.
const WRITE: usize = 512 << 10;
/// More probes per second than this would be a load of their own.
const RATE_MAX: f64 = 10_000.0;
/// The key of the responder's address that an opening looks for.
const ADDRESS: &str = "address";

const LOAD: OptionDoc = OptionDoc {
    name: "direction",
    value: ValueKind::Choice(&["none", "up", "down", "both"]),
    default: Some("both"),
    help: "which way streams fill the path beside the probes, seen from the initiator",
};
const PROBE_RATE: OptionDoc = OptionDoc {
    name: "probe-rate",
    value: ValueKind::Rate,
    default: Some("100"),
    help: "probes per second, sent whether those before are answered or not",
};

/// A group of connections with a listener of its own, as a connection must tell by where it came in what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Probe,
    Up,
    Down,
}

impl Lane {
    /// The key of its address in the responder's endpoints, and its place after the first port.
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
            // A probe has the path in common with the load, and nothing else.
            for option in [BUFFER, CONGESTION, MSS] {
                role.settings.0.remove(option.name);
            }
        }
        if let Some(port) = role.settings.count(PORT.name).filter(|port| *port > 0) {
            if port + place > u64::from(u16::MAX) {
                let expected = "a port below 65534, as streams have the next two";
                return Err(options::not_allowed(PORT.name, expected, &port));
            }
            role.settings.set(PORT.name, (port + place).to_string());
        }
        role.peer = role.peer.remove(key).map(|address| (ADDRESS.to_owned(), address)).into_iter().collect();
        Ok(role)
    }
}

/// The directions that streams go.
fn streams(settings: &Settings) -> &'static [Lane] {
    match settings.text(LOAD.name).as_deref() {
        Some("none") => &[],
        Some("up") => &[Lane::Up],
        Some("down") => &[Lane::Down],
        _ => &[Lane::Up, Lane::Down],
    }
}

fn schedule(settings: &Settings) -> Result<Constant, Error> {
    let rate = settings.rate(PROBE_RATE.name).unwrap_or_default();
    let bounded = PerSec::new(RATE_MAX).filter(|most| rate.get() >= 1.0 && rate <= *most);
    let refused = || options::not_allowed(PROBE_RATE.name, "1 to 10k probes per second", &rate);
    bounded.and_then(|_| Constant::new(rate)).ok_or_else(refused)
}

impl TestKind for TcpLoaded {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "round-trip times at a fixed rate, idle and beside TCP streams that fill the path"
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
            _ => format!("latency under load both ways, {flows} each"),
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

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        let schedule = schedule(&role.settings)?;
        let n_flows = options::stream_flows(role, NAME)?;
        let (mut lanes, mut notes) = (Vec::new(), Vec::new());
        for lane in streams(&role.settings).iter().chain(&[Lane::Probe]) {
            let n_flows = if *lane == Lane::Probe { 1 } else { n_flows };
            let of_lane = lane.role(role, n_flows)?;
            let (opening, told) = Opening::prepare(&of_lane, NAME, &SocketOptions::of(&of_lane, policy))?;
            notes.extend(told.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
            lanes.push((*lane, n_flows, opening));
        }
        let receives = |lane: &Lane| *lane != Lane::Probe && !lane.sends(role.side);
        let n_received = lanes.iter().filter(|(lane, ..)| receives(lane)).count() * n_flows;
        let rooms = (0..n_received).map(|_| Inlet::Copy(Payload::random(WRITE, role.seed))).collect();
        let source = Source::Buffer(Payload::random(WRITE, role.seed));
        Ok(Box::new(Loaded { role: role.clone(), n_flows, schedule, lanes, source, rooms, notes }))
    }
}

struct Loaded {
    role: Role,
    n_flows: usize,
    schedule: Constant,
    /// Those of the streams first, so that a stream's number is that of its worker.
    lanes: Vec<(Lane, usize, Opening)>,
    source: Source,
    rooms: Vec<Inlet>,
    notes: Vec<Note>,
}

/// What a worker does with its connection.
enum Task {
    Send(Arc<Socket>),
    Receive(Arc<Socket>, Inlet),
    Probe(Arc<Socket>),
}

/// What a worker comes back with.
enum Outcome {
    Streamed(Told),
    Probed(Probes),
}

impl Test for Loaded {
    fn endpoints(&self) -> Endpoints {
        let mut endpoints = Endpoints::new();
        for (lane, _, opening) in &self.lanes {
            let address = opening.endpoints().remove(ADDRESS);
            endpoints.extend(address.map(|address| (lane.place().0.to_owned(), address)));
        }
        if self.role.side == Side::Responder {
            endpoints.insert(FLOWS.name.to_owned(), self.n_flows.to_string());
        }
        endpoints
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let Self { role, schedule, lanes, source, mut rooms, mut notes, .. } = *self;
        let side = role.side;
        let counters = counters(&lanes, side);
        let place = |counter: &str| counters.iter().position(|name| *name == counter).unwrap_or(0);
        let (sent, received) = (place(count::BYTES_SENT), place(count::BYTES_RECEIVED));
        let answered = place(count::TRANSACTIONS);
        let (mut tasks, mut connect) = (Vec::new(), Histogram::new());
        for (lane, n_flows, opening) in lanes {
            connect.merge(&opening.connect_times());
            let sockets = opening.complete(n_flows, session)?.into_iter().map(Arc::new);
            tasks.extend(sockets.map(|socket| match lane {
                Lane::Probe => Task::Probe(socket),
                _ if lane.sends(side) => Task::Send(socket),
                _ => Task::Receive(socket, rooms.pop().expect("there is room for every stream that is received")),
            }));
        }
        let mut watch = watch(&tasks, (sent, received));
        let crew = Crew { states: tasks, counters, cores: &role.cores, until: side.into() };
        let last_moved = LastMoved::default();
        let conducted = crew.conduct(session, &mut watch, |worker, task| {
            let flow = |socket, counter| Flow::new(worker, (session, side), (socket, counter), &last_moved);
            Ok(match task {
                Task::Send(socket) => {
                    let cannot = |cause| Error::System { what: "send a stream".to_owned(), cause };
                    let sending = Sending::new(&socket, &source).map_err(cannot)?;
                    Outcome::Streamed(flow(&socket, sent).send(sending))
                }
                Task::Receive(socket, inlet) => {
                    Outcome::Streamed(flow(&socket, received).receive(Receiving::new(&socket, inlet)))
                }
                Task::Probe(socket) if side == Side::Initiator => {
                    Outcome::Probed(Asking::new((worker, answered), session, (&socket, schedule)).run()?)
                }
                Task::Probe(socket) => Outcome::Probed(probe::answer((worker, answered), &socket)),
            })
        })?;
        let mut record = conducted.record(side);
        watch.finish(&mut record, conducted.counts());
        record.notes.append(&mut notes);
        if side == Side::Initiator {
            record.distributions.insert(CONNECT_TIME.to_owned(), connect);
        }
        conducted.workers.into_iter().for_each(|outcome| settle(&mut record, outcome));
        record.complete &= record.errors.is_empty();
        Ok(record)
    }
}

/// What the workers of a side count; the first, which is the load's where there is one, decides when the rate is steady.
fn counters(lanes: &[(Lane, usize, Opening)], side: Side) -> &'static [&'static str] {
    let sends = lanes.iter().any(|(lane, ..)| lane.sends(side));
    let receives = lanes.iter().any(|(lane, ..)| *lane != Lane::Probe && !lane.sends(side));
    match (sends, receives) {
        (true, true) => &[count::BYTES_RECEIVED, count::BYTES_SENT, count::TRANSACTIONS],
        (true, false) => &[count::BYTES_SENT, count::TRANSACTIONS],
        (false, true) => &[count::BYTES_RECEIVED, count::TRANSACTIONS],
        (false, false) => &[count::TRANSACTIONS],
    }
}

/// Watches the streams alone: what `TCP_INFO` says of a probe, the probe says better.
fn watch(tasks: &[Task], (sent, received): (usize, usize)) -> FlowWatch {
    let stream = |task: &Task| match task {
        Task::Send(socket) => Some((Arc::clone(socket), PayloadCount { name: tcp::PAYLOAD_BYTES_SENT, counter: sent })),
        Task::Receive(socket, _) => {
            Some((Arc::clone(socket), PayloadCount { name: tcp::PAYLOAD_BYTES_RECEIVED, counter: received }))
        }
        Task::Probe(_) => None,
    };
    let (sockets, payload): (Vec<_>, Vec<_>) = tasks.iter().filter_map(stream).unzip();
    FlowWatch::new(&sockets).counting(payload)
}

/// Adds what a worker came back with.
fn settle(record: &mut Record, outcome: Outcome) {
    match outcome {
        Outcome::Streamed(told) => told.add_to(record),
        Outcome::Probed(probes) => {
            probes.causes.add_to(record);
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
                record.notes.push(Note { id: "lower-bounds".to_owned(), text });
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
            assert_ne!(Lane::Up.sends(side), Lane::Down.sends(side));
            assert!(!Lane::Probe.sends(side));
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

//! The rate at which TCP carries a stream of bytes.
//!
//! One blocking thread per flow. The sender closes its direction when the trial is over and the receiver reads to the end, so all
//! sent data is received before either side returns. This module does not determine what limits the rate; it records `TCP_INFO`
//! of every flow for analysis.

pub(super) mod flow;
mod metrics;

use std::sync::Arc;

use fathom_engine::{
    CeilingSetup, CommandDoc, DataDirection, Error, EvaluationRow, Test, TestKind, TrialContext, WorkerPool,
};
use fathom_model::{
    Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, ValueKind,
    names::{count, tcp},
    units::{BitsPerSec, Bytes, Nanos, approximate, grouped, rounded},
};
use fathom_sys::{
    clock,
    policy::Policy,
    socket::{Socket, zero_copy::MemoryFile},
};

use self::{
    flow::{Flow, FlowResult, LastMoved},
    metrics::{KIBIBYTES_MOVED, KIBIBYTES_RECEIVED, KIBIBYTES_SENT},
};
use crate::{
    connection_setup::FlowConnections,
    options::{
        self, BUFFER, BUSY_POLL, CONGESTION, DEVICE, DSCP, FLOW_LABEL, FLOWS, KEEPALIVE, MPTCP, MSS, NODELAY, PACING,
        PORT, SOURCE, STREAM_FLOWS, SocketOptions,
    },
    payload::Payload,
    stream::{
        ByteSchedule, CALL_BYTES, LowWatermark, ReceiveSink, SendSource, StreamReceiver, StreamSender, WakeBatch,
        ZeroCopyCounts,
    },
    tcp_sampler::TcpInfoSampler,
    worker_reading::{PayloadCount, WorkerReading},
};

/// The direction of the bytes, seen from the initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
    Both,
}

/// A stream one way or both ways. Each is a kind of its own because its metrics come from other sides.
pub(crate) struct TcpStream {
    name: &'static str,
    direction: Direction,
    metrics: &'static [Metric],
}

/// The initiator sends.
pub(crate) const UP: TcpStream = TcpStream {
    name: "tcp_stream",
    direction: Direction::Up,
    metrics: &metrics::one_way(Side::Initiator, Side::Responder),
};
/// The responder sends.
pub(crate) const DOWN: TcpStream = TcpStream {
    name: "tcp_stream_down",
    direction: Direction::Down,
    metrics: &metrics::one_way(Side::Responder, Side::Initiator),
};
/// Both send at the same time.
pub(crate) const BOTH: TcpStream =
    TcpStream { name: "tcp_stream_both", direction: Direction::Both, metrics: &metrics::BOTH };

/// The lower bound of a write that is as long as the bytes due in a millisecond.
const WRITE_PACED_MIN: f64 = 1448.0;

const WRITE: OptionDoc = OptionDoc {
    name: "write",
    value: ValueKind::Size,
    default: None,
    help: "bytes per send and receive call; default: 512 KiB, or 1 ms of --rate",
};
const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::BitRate,
    default: None,
    help: "total payload rate of all flows in one direction; default: as fast as possible",
};
const SEND: OptionDoc = OptionDoc {
    name: "send",
    value: ValueKind::Choice(&["copy", "sendfile", "zerocopy"]),
    default: Some("copy"),
    help: "how the sender sends: copy, sendfile, or zerocopy (MSG_ZEROCOPY)",
};
const RECEIVE: OptionDoc = OptionDoc {
    name: "receive",
    value: ValueKind::Choice(&["copy", "truncate"]),
    default: Some("copy"),
    help: "how the receiver receives: copy, or truncate (MSG_TRUNC: the kernel discards the payload without a copy)",
};
const WAKE: OptionDoc = OptionDoc {
    name: "wake",
    value: ValueKind::Size,
    default: None,
    help: "wake the receiver at this many bytes (SO_RCVLOWAT); 1: always; default: the bytes of 100 µs, at most 256 KiB",
};
const BYTES: OptionDoc = OptionDoc {
    name: "bytes",
    value: ValueKind::Size,
    default: None,
    help: "stop after this many bytes of all flows in one direction, at the latest after --duration",
};

const OMIT: OptionDoc = OptionDoc {
    name: "omit",
    value: ValueKind::Span,
    default: None,
    help: "exclude exactly this first part of each round; default: the warm-up ends when the rate is steady",
};

impl TestKind for TcpStream {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        match self.direction {
            Direction::Up => "payload per second of TCP streams from the initiator",
            Direction::Down => "payload per second of TCP streams to the initiator",
            Direction::Both => "payload per second of TCP streams in both directions at once",
        }
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        let way = match self.direction {
            Direction::Up => "stream",
            Direction::Down => "stream down",
            Direction::Both => "stream both ways",
        };
        let each = if self.direction == Direction::Both { " each" } else { "" };
        match (settings.count(FLOWS.name), settings.text(FLOWS.name)) {
            (None, Some(word)) => format!("{way}, as many flows as {word}{each}"),
            (None | Some(1), _) => format!("{way}, 1 flow{each}"),
            (Some(n), _) => format!("{way}, {n} flows{each}"),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[
            STREAM_FLOWS,
            WRITE,
            RATE,
            BYTES,
            OMIT,
            SEND,
            RECEIVE,
            WAKE,
            PACING,
            CONGESTION,
            BUFFER,
            MSS,
            NODELAY,
            DSCP,
            FLOW_LABEL,
            SOURCE,
            DEVICE,
            MPTCP,
            KEEPALIVE,
            BUSY_POLL,
            PORT,
        ]
    }

    fn metrics(&self) -> &'static [Metric] {
        self.metrics
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        StreamConfig::of(settings, options::count(settings, &STREAM_FLOWS).unwrap_or(1))?;
        SocketOptions::check(settings)
    }

    fn command(&self) -> Option<CommandDoc> {
        let direction = match self.direction {
            Direction::Up => DataDirection::Up,
            Direction::Down => DataDirection::Down,
            Direction::Both => DataDirection::Both,
        };
        Some(CommandDoc::test("stream").direction(direction))
    }

    fn evaluation(&self) -> &'static [EvaluationRow] {
        match self.direction {
            Direction::Up => &[EvaluationRow { name: "tcp_stream", options: &[("flows", "1")], is_optional: false }],
            // A way may be slow in one direction alone.
            Direction::Down => {
                &[EvaluationRow { name: "tcp_stream_down", options: &[("flows", "1")], is_optional: false }]
            }
            Direction::Both => &[],
        }
    }

    fn ceilings(&self) -> &'static [CeilingSetup] {
        const SETUP: CeilingSetup = CeilingSetup { options: &[], needs_lab: false };
        if self.direction == Direction::Up { &[SETUP] } else { &[] }
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        let n_flows = options::stream_flows(role, self.name)?;
        let mut role = role.clone();
        role.settings.set(FLOWS.name, n_flows.to_string());
        let demand = StreamConfig::of(&role.settings, n_flows)?;
        let mut socket_options = SocketOptions::of(&role, policy);
        socket_options.pacing = role.settings.bit_rate(PACING.name).and_then(|rate| share_of(rate, n_flows));
        let mut upstreams = Vec::new();
        let mut notes = Vec::new();
        for upstream in self.groups() {
            let (opening, told) = FlowConnections::prepare(&upstream.role(&role)?, self.name, &socket_options)?;
            notes.extend(told.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
            upstreams.push((*upstream, opening));
        }
        let n_received = upstreams.iter().filter(|(upstream, _)| !upstream.sends(role.side)).count() * n_flows;
        // Senders read from one shared buffer; each receiver writes to its own.
        let rooms = (0..n_received).map(|_| demand.sink(role.seed)).collect();
        let source = demand.source(role.seed)?;
        Ok(Box::new(TcpStreamTest { role, n_flows, config: demand, groups: upstreams, source, sinks: rooms, notes }))
    }
}

impl TcpStream {
    fn groups(&self) -> &'static [FlowGroup] {
        match self.direction {
            Direction::Up => &[FlowGroup::Up],
            Direction::Down => &[FlowGroup::Down],
            Direction::Both => &[FlowGroup::Up, FlowGroup::SecondDown],
        }
    }
}

/// The flows of one direction. Each direction has its own connections, so that its reverse path carries acknowledgements only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowGroup {
    Up,
    Down,
    /// Down, at a second address of the responder: the listener tells the direction of an incoming connection.
    SecondDown,
}

/// The keys of the responder's addresses in its endpoints: the address of a single group, and that of the second one.
const ADDRESS: &str = "address";
const ADDRESS_DOWN: &str = "address_down";

impl FlowGroup {
    fn sends(self, side: Side) -> bool {
        (self == Self::Up) == (side == Side::Initiator)
    }

    /// The role with which the connections of this group are opened.
    fn role(self, role: &Role) -> Result<Role, Error> {
        let mut role = role.clone();
        if self != Self::SecondDown {
            return Ok(role);
        }
        if let Some(port) = role.settings.count(PORT.name).filter(|port| *port > 0) {
            if port == u64::from(u16::MAX) {
                let expected =
                    "a port below 65535 for both directions, because the second direction uses the next port";
                return Err(options::invalid_value(PORT.name, expected, &port));
            }
            role.settings.set(PORT.name, (port + 1).to_string());
        }
        role.peer = role.peer.remove(ADDRESS_DOWN).map(|address| (ADDRESS.to_owned(), address)).into_iter().collect();
        Ok(role)
    }
}

fn share_of(rate: BitsPerSec, n_flows: usize) -> Option<BitsPerSec> {
    BitsPerSec::new(rate.get() / approximate(u64::try_from(n_flows).unwrap_or(1)))
}

/// The settings of every flow.
#[derive(Debug, Clone)]
struct StreamConfig {
    send_method: String,
    truncates: bool,
    write: usize,
    low_watermark: Option<Bytes>,
    rate: Option<BitsPerSec>,
    /// The bytes that each flow may send.
    budgets: Option<Vec<u64>>,
}

impl StreamConfig {
    fn of(settings: &Settings, n_flows: usize) -> Result<Self, Error> {
        let rate = settings.bit_rate(RATE.name).and_then(|rate| share_of(rate, n_flows));
        if rate.is_some_and(|rate| rate.get() < 8.0) {
            return Err(options::invalid_value(
                RATE.name,
                "at least a byte per second and flow",
                &settings.bit_rate(RATE.name).unwrap_or_default(),
            ));
        }
        let write = match (settings.size(WRITE.name), rate) {
            (Some(_), _) => options::message_size(settings, &WRITE)?,
            (None, Some(rate)) => {
                let in_a_millisecond = rate.get() / 8.0 / 1000.0;
                usize::try_from(rounded(in_a_millisecond.max(WRITE_PACED_MIN))).unwrap_or(CALL_BYTES).min(CALL_BYTES)
            }
            (None, None) => CALL_BYTES,
        };
        let budgets = settings.size(BYTES.name).map(|bytes| shares(bytes.0, n_flows));
        if budgets.as_ref().is_some_and(|budgets| budgets.contains(&0)) {
            let given = settings.size(BYTES.name).unwrap_or_default();
            return Err(options::invalid_value(BYTES.name, "at least a byte per flow", &given));
        }
        let wake = settings.size(WAKE.name);
        if let Some(bytes) = wake.filter(|bytes| !(1..=options::MESSAGE_MAX).contains(&bytes.0)) {
            return Err(options::invalid_value(WAKE.name, "1 B to 16 MiB", &bytes));
        }
        let way = settings.text(SEND.name).unwrap_or_default();
        Ok(Self {
            send_method: way,
            truncates: settings.text(RECEIVE.name).as_deref() == Some("truncate"),
            write,
            low_watermark: wake,
            rate,
            budgets,
        })
    }

    fn sink(&self, seed: u64) -> ReceiveSink {
        if self.truncates {
            return ReceiveSink::Truncate(Bytes(u64::try_from(self.write).unwrap_or(u64::MAX)));
        }
        ReceiveSink::Copy(Payload::random(self.write, seed))
    }

    fn source(&self, seed: u64) -> Result<SendSource, Error> {
        let payload = Payload::random(self.write, seed);
        Ok(match self.send_method.as_str() {
            "sendfile" => {
                let cannot = |cause| Error::System { what: "put the payload into a file in memory".to_owned(), cause };
                SendSource::MemoryFile(MemoryFile::of(payload.bytes()).map_err(cannot)?)
            }
            "zerocopy" => SendSource::ZeroCopy(payload),
            _ => SendSource::Buffer(payload),
        })
    }

    fn receiver<'a>(&self, socket: &'a Socket, inlet: ReceiveSink) -> StreamReceiver<'a> {
        let mut receiving = StreamReceiver::new(socket, inlet);
        let batch = if self.truncates { WakeBatch::TRUNCATED } else { WakeBatch::COPIED };
        receiving.low_watermark =
            Some(self.low_watermark.map_or_else(|| LowWatermark::adaptive(batch, clock::now()), LowWatermark::Fixed));
        receiving
    }

    /// The sender of a flow, by the flow's number in its group.
    fn sender<'a>(
        &self,
        socket: &'a Socket,
        source: &'a SendSource,
        idx: usize,
        start: Nanos,
    ) -> Result<StreamSender<'a>, Error> {
        let cannot = |cause| Error::Unsupported {
            what: format!("cannot send in the way `{}`: {cause}", self.send_method),
            hint: Some("use --send copy".to_owned()),
        };
        let mut sending = StreamSender::new(socket, source).map_err(cannot)?;
        sending.schedule = self.rate.and_then(|rate| ByteSchedule::new(rate, start));
        sending.budget = self.budgets.as_ref().and_then(|budgets| budgets.get(idx).copied());
        Ok(sending)
    }
}

/// Splits a number into whole parts that are as even as possible.
fn shares(whole: u64, n_parts: usize) -> Vec<u64> {
    let n = u64::try_from(n_parts).unwrap_or(u64::MAX).max(1);
    (0..n).map(|idx| whole / n + u64::from(idx < whole % n)).collect()
}

struct TcpStreamTest {
    role: Role,
    n_flows: usize,
    config: StreamConfig,
    groups: Vec<(FlowGroup, FlowConnections)>,
    source: SendSource,
    sinks: Vec<ReceiveSink>,
    notes: Vec<Note>,
}

/// A connection and its task.
struct FlowTask {
    socket: Arc<Socket>,
    /// Its number in its group.
    idx: usize,
    /// The destination of received bytes; `None` for a flow that sends.
    sink: Option<ReceiveSink>,
    reading: Arc<WorkerReading>,
}

impl Test for TcpStreamTest {
    fn endpoints(&self) -> Endpoints {
        let mut endpoints = Endpoints::new();
        for (upstream, opening) in &self.groups {
            let key = if *upstream == FlowGroup::SecondDown { ADDRESS_DOWN } else { ADDRESS };
            endpoints.extend(opening.endpoints().remove(ADDRESS).map(|address| (key.to_owned(), address)));
        }
        if self.role.side == Side::Responder {
            endpoints.insert(FLOWS.name.to_owned(), self.n_flows.to_string());
        }
        endpoints
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let Self { role, n_flows, config: demand, groups: upstreams, source, sinks: mut rooms, mut notes } = *self;
        let (side, counters) = (role.side, counters(&upstreams, role.side));
        let place = |counter: &str| counters.iter().position(|name| *name == counter).unwrap_or(0);
        let (sent, received) = (place(count::BYTES_SENT), place(count::BYTES_RECEIVED));
        let mut tasks = Vec::new();
        for (upstream, opening) in upstreams {
            let sockets = opening.establish(n_flows, context)?;
            tasks.extend(sockets.into_iter().enumerate().map(|(idx, socket)| {
                let sink = if upstream.sends(side) { None } else { rooms.pop() };
                let payload = match &sink {
                    Some(_) => PayloadCount { name: tcp::PAYLOAD_BYTES_RECEIVED, counter: received },
                    None => PayloadCount { name: tcp::PAYLOAD_BYTES_SENT, counter: sent },
                };
                FlowTask { socket: Arc::new(socket), idx, sink, reading: Arc::new(WorkerReading::new(payload)) }
            }));
        }
        let first = tasks.first().map(|task| Arc::clone(&task.socket));
        let mut watch = sampler(&tasks);
        let pool = WorkerPool { states: tasks, counters, cores: &role.cores, until: side.into() };
        let last_moved = LastMoved::default();
        let results = pool.run(context, &mut watch, |worker, FlowTask { socket, idx, sink, reading }| {
            let start = worker.start;
            let flow = Flow::new(worker, context, side, (&socket, &reading), &last_moved);
            match sink {
                Some(sink) => Ok(flow.receive(demand.receiver(&socket, sink))),
                None => Ok(flow.send(demand.sender(&socket, &source, idx, start)?)),
            }
        })?;
        let mut record = results.record(side);
        if demand.budgets.is_some() && record.complete {
            measure_all(&mut record, results.ended());
        }
        watch.finish(&mut record, results.counts());
        record.notes.append(&mut notes);
        record.notes.extend(first.and_then(|socket| options::busy_poll_note(&role.settings, &socket)));
        demand.record_results(&mut record, results.workers);
        Ok(record)
    }
}

/// The bytes end the trial, unless the time was over before; data in flight at that time is not part of it.
fn measure_all(record: &mut Record, ended: Nanos) {
    let over = record.measured_ns.1;
    record.measure_until(ended);
    record.measured_ns.1 = over.min(ended);
}

/// The counters of a side's workers; the first decides when the rate is steady.
fn counters(upstreams: &[(FlowGroup, FlowConnections)], side: Side) -> &'static [&'static str] {
    let sends = upstreams.iter().any(|(upstream, _)| upstream.sends(side));
    let receives = upstreams.iter().any(|(upstream, _)| !upstream.sends(side));
    match (sends, receives) {
        (true, true) => &[count::BYTES_RECEIVED, count::BYTES_SENT],
        (true, false) => &[count::BYTES_SENT],
        (false, _) => &[count::BYTES_RECEIVED],
    }
}

fn sampler(tasks: &[FlowTask]) -> TcpInfoSampler {
    TcpInfoSampler::of_workers(tasks.iter().map(|task| (Arc::clone(&task.socket), Arc::clone(&task.reading))))
}

impl StreamConfig {
    /// Records the results of the flows, the totals derived from others, and notes on deviations from the request.
    fn record_results(&self, record: &mut Record, told: Vec<FlowResult>) {
        let given_up = told.iter().map(|told| told.unrecovered).max().unwrap_or_default();
        let uncopied = told.iter().filter_map(|told| told.zero_copy).reduce(ZeroCopyCounts::merge);
        let sends = told.iter().any(|told| told.sent);
        for told in told {
            told.add_to(record);
        }
        record.complete &= record.errors.is_empty();
        let total = |record: &Record, name: &str| record.totals.get(name).copied();
        let bytes = [total(record, count::BYTES_SENT), total(record, count::BYTES_RECEIVED)];
        for (bytes, kibibytes) in bytes.into_iter().zip([KIBIBYTES_SENT, KIBIBYTES_RECEIVED]) {
            record.totals.extend(bytes.map(|bytes| (kibibytes.to_owned(), bytes / 1024)));
        }
        record.totals.insert(KIBIBYTES_MOVED.to_owned(), bytes.into_iter().flatten().sum::<u64>() / 1024);
        let mut note = |id: &str, text: String| record.notes.push(Note::new(id, text));
        if self.truncates && bytes[1].is_some() {
            let text =
                "the kernel of the receiver discarded the payload, so the result includes no copy to the application";
            note("receive-truncated", text.to_owned());
        }
        if let Some(ZeroCopyCounts { n_completed, n_copied }) = uncopied.filter(|sends| sends.n_copied > 0) {
            let text = format!(
                "the kernel copied {} of {} sends that were to go without a copy: the path ends on this machine, or its device cannot send from the program's pages",
                grouped(n_copied),
                grouped(n_completed)
            );
            note("zerocopy-copied", text);
        }
        if given_up > Nanos::ZERO {
            let text = format!(
                "the requested rate was not kept: a flow fell so far behind its schedule that {given_up} of it were skipped"
            );
            note("rate-not-kept", text);
        }
        let asked = self.budgets.as_ref().map(|budgets| budgets.iter().sum::<u64>());
        if let (Some(asked), Some(sent), true) = (asked, bytes[0], sends)
            && sent < asked
        {
            let text = format!("the time was over before all was sent: {} of {}", Bytes(sent), Bytes(asked));
            note("bytes-unsent", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_lose_nothing() {
        assert_eq!(shares(10, 3), [4, 3, 3]);
        assert_eq!(shares(2, 3), [1, 1, 0]);
    }

    #[test]
    fn the_two_lanes_of_one_test_go_opposite_ways() {
        for side in [Side::Initiator, Side::Responder] {
            assert_ne!(FlowGroup::Up.sends(side), FlowGroup::SecondDown.sends(side));
            assert_eq!(FlowGroup::Down.sends(side), FlowGroup::SecondDown.sends(side));
        }
    }
}

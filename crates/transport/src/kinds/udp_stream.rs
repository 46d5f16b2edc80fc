//! How many datagrams arrive of a stream, and what became of the others.
//!
//! One thread and one pair of sockets per flow; batches in every call. The receiver counts each number once, so that
//! sent = received + lost holds exactly after the drain, and asks its socket how many of the lost ones it dropped itself.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use fathom_engine::{
    Crew, Error, Session, Stop, Test, TestKind, Worker,
    pace::{Constant, Pace},
};
use fathom_model::{
    Better, Derivation, Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, Unit, ValueKind,
    metric::{Measure, Named},
    names::count,
    units::{Bytes, Nanos, PerSec, approximate, grouped},
};
use fathom_sys::{
    clock,
    datagram::{ReceiveBatch, SendBatch, Sent, Shape},
    socket::{self, Socket, Wait},
};

use super::LATENCY;
use crate::{
    causes::Causes,
    jitter::Jitter,
    link::PATIENCE,
    options::{self, BUFFER, DSCP, FLOWS, PORT, SocketOptions},
    payload,
    sequence::{Counts, Sequence},
    wire::{self, Header, Token},
};

/// Datagrams from the initiator to the responder.
pub(crate) struct UdpStream;

const SOURCE: &str = "docs/methods/udp_stream.md";
/// Arrived too far behind the newest to be told from a duplicate.
const LATE: &str = "late";
/// Datagrams of somebody else that came to our sockets.
const STRANGERS: &str = "strangers";
const SENDER: &[&str] = &[count::SENT, count::BYTES_SENT, count::SEND_REFUSED];
const RECEIVER: &[&str] =
    &[count::RECEIVED, count::BYTES_RECEIVED, count::DUPLICATES, count::REORDERED, LATE, STRANGERS];

const fn share(part: &'static str) -> Derivation {
    Derivation::share((Side::Responder, part), (Side::Responder, count::RECEIVED))
}

const RATIO: Measure = Measure(Unit::Ratio, Better::Lower);
const PPS: Measure = Measure(Unit::FramesPerSec, Better::Higher);
const METRICS: &[Metric] = &[
    Metric::of(
        Named("throughput_bps", "goodput"),
        Measure(Unit::BitsPerSec, Better::Higher),
        SOURCE,
        Derivation::rate(Side::Responder, count::BYTES_RECEIVED),
    ),
    Metric::of(Named("received_per_sec", "received"), PPS, SOURCE, Derivation::rate(Side::Responder, count::RECEIVED)),
    Metric::of(Named("sent_per_sec", "sent"), PPS, SOURCE, Derivation::rate(Side::Initiator, count::SENT)),
    Metric::of(
        Named("loss_ratio", "lost"),
        RATIO,
        "RFC 7680 section 2",
        Derivation::missing((Side::Initiator, count::SENT), (Side::Responder, count::RECEIVED)),
    ),
    Metric::of(Named("reordered_ratio", "reordered"), RATIO, "RFC 4737 section 3", share(count::REORDERED)),
    Metric::of(Named("duplicate_ratio", "duplicated"), RATIO, SOURCE, share(count::DUPLICATES)),
    Metric::of(
        Named("jitter_ns", "jitter"),
        LATENCY,
        "RFC 3550 section 6.4.1",
        Derivation::total(Side::Responder, count::JITTER_NS),
    ),
    Metric::of(
        Named("cost_sender_ns", "sender's CPU per datagram"),
        LATENCY,
        SOURCE,
        Derivation::cost(Side::Initiator, count::SENT),
    ),
    Metric::of(
        Named("cost_receiver_ns", "receiver's CPU per datagram"),
        LATENCY,
        SOURCE,
        Derivation::cost(Side::Responder, count::RECEIVED),
    ),
];

const SIZE: OptionDoc = OptionDoc {
    name: "size",
    value: ValueKind::Size,
    default: Some("1400"),
    help: "payload bytes of a datagram; 18 fill the smallest Ethernet frame",
};
const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::BitRate,
    default: None,
    help: "payload of all flows together, at equal distances; without it as fast as possible",
};
const PPS_RATE: OptionDoc = OptionDoc {
    name: "pps",
    value: ValueKind::Rate,
    default: None,
    help: "the same in datagrams per second, in place of `rate`",
};
const BATCH: OptionDoc = OptionDoc {
    name: "batch",
    value: ValueKind::Count(1, 1024),
    default: Some("32"),
    help: "most datagrams in one system call; each still goes through the stack alone",
};

/// The key of the responder's addresses, one per flow, with commas between.
const ADDRESSES: &str = "addresses";

/// What both sides have in hand.
struct Stream {
    role: Role,
    shape: Shape,
    /// The rate of each flow.
    per_flow: Option<PerSec>,
    notes: Vec<Note>,
}

impl Stream {
    fn of(role: &Role) -> Result<Self, Error> {
        let size = role.settings.size(SIZE.name).unwrap_or(Bytes(1400));
        let size = match usize::try_from(size.0) {
            Ok(bytes) if (wire::LENGTH..=65_507).contains(&bytes) => bytes,
            _ => return Err(options::not_allowed(SIZE.name, "18 to 65507 B", &size)),
        };
        let settings = &role.settings;
        let rate = match (settings.bit_rate(RATE.name), settings.rate(PPS_RATE.name)) {
            (Some(_), Some(pps)) => {
                return Err(options::not_allowed(PPS_RATE.name, "a rate only without `rate`", &pps));
            }
            (Some(bits), None) => bits.per_unit(Bytes(u64::try_from(size).unwrap_or(0))),
            (None, pps) => pps,
        };
        let (n_flows, _) = options::flows_and_workers(role);
        let n_flows = approximate(u64::try_from(n_flows).unwrap_or(1));
        let per_flow = rate.and_then(|rate| PerSec::new(rate.get() / n_flows));
        if per_flow.is_some_and(|rate| Constant::new(rate).is_none()) {
            return Err(options::not_allowed(PPS_RATE.name, "a rate above zero", &0));
        }
        let shape = Shape { count: options::count(settings, &BATCH).unwrap_or(32), size };
        Ok(Self { role: role.clone(), shape, per_flow, notes: Vec::new() })
    }

    /// Opens a socket with what was asked of all.
    fn open(&mut self, at: SocketAddr) -> Result<Socket, Error> {
        let cannot = |cause| Error::system(format!("open a UDP socket at {at}"), "CAP_NET_BIND_SERVICE", cause);
        let socket = socket::datagram(at).map_err(cannot)?;
        self.notes = SocketOptions::of(&self.role.settings).apply(&socket)?;
        socket::set_timeout(&socket, PATIENCE).map_err(cannot)?;
        Ok(socket)
    }

    fn token(&self, flow: usize) -> Token {
        Token::new(self.role.seed, u16::try_from(flow).expect("at most 4096 flows"))
    }
}

impl TestKind for UdpStream {
    fn name(&self) -> &'static str {
        "udp_stream"
    }

    fn about(&self) -> &'static str {
        "datagrams per second of UDP streams from the initiator, and what was lost, doubled or overtaken"
    }

    fn layer(&self) -> Layer {
        Layer::Udp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        let size = grouped(settings.size(SIZE.name).unwrap_or(Bytes(1400)).0);
        let bits = settings.bit_rate(RATE.name).map(|rate| format!(" at {rate}"));
        let pps = settings.rate(PPS_RATE.name).map(|rate| format!(" at {}", Unit::FramesPerSec.show(rate.get())));
        let flows = match settings.count(FLOWS.name).unwrap_or(1) {
            1 => String::new(),
            n => format!(", {n} flows"),
        };
        format!("{size} B{}{flows}", bits.or(pps).unwrap_or_default())
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[FLOWS, SIZE, RATE, PPS_RATE, BATCH, BUFFER, DSCP, PORT]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        let stream = Stream::of(role)?;
        Ok(match role.side {
            Side::Initiator => Box::new(Sending::connect(stream)?),
            Side::Responder => Box::new(Receiving::bind(stream)?),
        })
    }
}

/// The side that sends.
struct Sending {
    stream: Stream,
    sockets: Vec<Socket>,
    batches: Vec<SendBatch>,
}

impl Sending {
    fn connect(mut stream: Stream) -> Result<Self, Error> {
        let missing = Error::Endpoint { kind: UdpStream.name(), what: ADDRESSES };
        let told = stream.role.peer.get(ADDRESSES).cloned().unwrap_or_default();
        let told: Vec<SocketAddr> = told.split(',').filter_map(|text| text.parse().ok()).collect();
        let (n_flows, _) = options::flows_and_workers(&stream.role);
        if told.len() != n_flows {
            return Err(missing);
        }
        let mut sockets = Vec::with_capacity(n_flows);
        for to in told {
            let any = if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
            let socket = stream.open(SocketAddr::new(stream.role.address.unwrap_or(any), 0))?;
            let cannot = |cause| Error::System { what: format!("connect a UDP socket to {to}"), cause };
            socket.connect(&to.into()).map_err(socket::named("connect")).map_err(cannot)?;
            sockets.push(socket);
        }
        let batches = sockets.iter().map(|_| filled(stream.shape, stream.role.seed)).collect();
        Ok(Self { stream, sockets, batches })
    }
}

/// A batch of pseudo-random payloads.
fn filled(shape: Shape, seed: u64) -> SendBatch {
    let mut batch = SendBatch::new(shape);
    for (index, seed) in (0..shape.count).zip(seed..=u64::MAX) {
        payload::fill(batch.payload_mut(index), seed);
    }
    batch
}

impl Test for Sending {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let mut stream = self.stream;
        let states: Vec<_> = self.sockets.into_iter().zip(self.batches).collect();
        let role = &stream.role;
        let crew = Crew { states, counters: SENDER, cores: &role.cores, until: role.side.into() };
        let conducted = crew.conduct(session, &mut (), |worker, (socket, batch)| {
            let token = stream.token(worker.idx);
            let pace = stream.per_flow.and_then(Constant::new);
            let size = u64::try_from(stream.shape.size).unwrap_or(0);
            Ok(Sender { worker, session, socket, batch, token, pace, size, tally: SenderTally::default() }.run())
        })?;
        let mut record = conducted.record(role.side);
        let (mut intended, mut lag_max) = (0, Nanos::ZERO);
        for tally in conducted.workers {
            tally.causes.add_to(&mut record);
            intended += tally.intended;
            lag_max = lag_max.max(tally.lag_max);
        }
        if stream.per_flow.is_some() {
            record.totals.insert(count::INTENDED.to_owned(), intended);
            record.totals.insert(count::SCHEDULE_LAG_NS_MAX.to_owned(), lag_max.0);
        }
        record.notes.append(&mut stream.notes);
        Ok(record)
    }
}

#[derive(Default)]
struct SenderTally {
    intended: u64,
    lag_max: Nanos,
    causes: Causes,
}

/// A wait shorter than this is spun away: to sleep and to wake takes as long.
const SPIN_MAX: Nanos = Nanos::from_micros(5);
/// How often the end is marked, because a mark may be lost as well.
const END_MARKS: u32 = 10;
/// The distance of two end marks.
const END_MARK_GAP: Nanos = Nanos::from_millis(5);

/// One flow in the hands of its thread.
struct Sender<'a> {
    worker: Worker<'a>,
    session: &'a Session,
    socket: Socket,
    batch: SendBatch,
    token: Token,
    pace: Option<Constant>,
    size: u64,
    tally: SenderTally,
}

impl Sender<'_> {
    fn run(mut self) -> SenderTally {
        let mut number = 0;
        while !self.worker.is_over() {
            let now = clock::now();
            let count = self.due(now - self.worker.start, number);
            if count > 0 {
                number += self.send(number, count, now);
            }
        }
        if let Some(pace) = &self.pace {
            let elapsed = clock::now() - self.worker.start;
            self.tally.intended = pace.due(elapsed).max(number);
            self.tally.lag_max = self.tally.lag_max.max(elapsed - pace.at(number));
        }
        if self.session.stop.told() != Stop::Abort {
            self.mark_end(number);
        }
        self.tally
    }

    /// How many datagrams are to be sent now; waits for the next one when none is, and then says none.
    fn due(&mut self, elapsed: Nanos, number: u64) -> usize {
        let most = self.batch.shape().count;
        let Some(pace) = &self.pace else { return most };
        let due = pace.due(elapsed).saturating_sub(number);
        if due > 0 {
            self.tally.lag_max = self.tally.lag_max.max(elapsed - pace.at(number));
            return usize::try_from(due).unwrap_or(most).min(most);
        }
        let wait = pace.wait(elapsed, number);
        if wait > SPIN_MAX {
            // In steps, so that an end is noticed at the lowest rates too.
            clock::sleep_until(self.worker.start + elapsed + wait.min(PATIENCE));
        } else {
            std::hint::spin_loop();
        }
        0
    }

    /// Sends the next datagrams and returns how many the kernel took: the others keep their numbers for the next time.
    fn send(&mut self, number: u64, count: usize, now: Nanos) -> u64 {
        for (index, number) in (0..count).zip(number..=u64::MAX) {
            self.token.write(Header { number, sent: Some(now) }, self.batch.payload_mut(index));
        }
        let (mut taken, mut wait) = (0, Wait::Never);
        while taken < count && !self.worker.is_over() {
            match self.batch.send(&self.socket, taken..count, wait) {
                Ok(Sent::Datagrams(n)) => {
                    taken += n;
                    let n = u64::try_from(n).unwrap_or(0);
                    self.worker.add(0, n);
                    self.worker.add(1, n * self.size);
                }
                Ok(Sent::WouldBlock | Sent::NoBuffers) => {
                    // From here on the kernel may let us wait for room, instead of being asked again and again.
                    wait = Wait::Block;
                    self.worker.add(2, 1);
                }
                Err(error) => {
                    self.tally.causes.count(&error);
                    break;
                }
            }
        }
        u64::try_from(taken).unwrap_or(0)
    }

    /// Marks the end until the receiver has said that it saw a mark, or often enough.
    ///
    /// Marks are numbered and counted as the others are, so that one that is dropped does not upset the account.
    fn mark_end(&mut self, mut number: u64) {
        if let Err(error) = socket::set_timeout(&self.socket, END_MARK_GAP) {
            self.tally.causes.count(&error);
            return;
        }
        for _ in 0..END_MARKS {
            self.token.write(Header { number, sent: None }, self.batch.payload_mut(0));
            match self.batch.send(&self.socket, 0..1, Wait::Block) {
                Ok(Sent::Datagrams(_)) => {
                    number += 1;
                    self.tally.intended += 1;
                    self.worker.add(0, 1);
                    self.worker.add(1, self.size);
                }
                Ok(Sent::WouldBlock | Sent::NoBuffers) => self.worker.add(2, 1),
                // The receiver is gone.
                Err(_) => return,
            }
            if !matches!(socket::recv(&self.socket, &mut [0; 1], Wait::Block), Ok(None)) {
                return;
            }
        }
    }
}

/// The side that receives.
struct Receiving {
    stream: Stream,
    sockets: Vec<Socket>,
}

impl Receiving {
    fn bind(mut stream: Stream) -> Result<Self, Error> {
        let (n_flows, _) = options::flows_and_workers(&stream.role);
        let first = options::listen_address(&stream.role);
        let mut sockets = Vec::with_capacity(n_flows);
        for flow in 0..n_flows {
            let flow = u16::try_from(flow).expect("at most 4096 flows");
            let port = match first.port() {
                0 => 0,
                port => {
                    port.checked_add(flow).ok_or_else(|| options::not_allowed(PORT.name, "one port per flow", &port))?
                }
            };
            let socket = stream.open(SocketAddr::new(first.ip(), port))?;
            if stream.per_flow.is_some() {
                let cannot = |cause| Error::System { what: "ask for receive times".to_owned(), cause };
                socket::set_report_time(&socket).map_err(cannot)?;
            }
            sockets.push(socket);
        }
        Ok(Self { stream, sockets })
    }
}

impl Test for Receiving {
    fn endpoints(&self) -> Endpoints {
        let address = |socket| socket::local_address(socket).ok().map(|address| address.to_string());
        let addresses: Vec<_> = self.sockets.iter().filter_map(address).collect();
        BTreeMap::from([(ADDRESSES.to_owned(), addresses.join(","))])
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let mut stream = self.stream;
        let role = &stream.role;
        let crew = Crew { states: self.sockets, counters: RECEIVER, cores: &role.cores, until: role.side.into() };
        let conducted = crew.conduct(session, &mut (), |worker, socket| {
            let token = stream.token(worker.idx);
            let batch = ReceiveBatch::new(stream.shape);
            let size = u64::try_from(stream.shape.size).unwrap_or(0);
            Ok(Receiver { worker, session, socket, batch, token, size, tally: ReceiverTally::default() }.run())
        })?;
        let mut record = conducted.record(role.side);
        let (mut dropped, mut jitter) = (0, None);
        for tally in conducted.workers {
            tally.causes.add_to(&mut record);
            dropped += u64::from(tally.dropped);
            jitter = jitter.max(tally.jitter.estimate());
        }
        record.totals.insert(count::SOCKET_DROPPED.to_owned(), dropped);
        if let Some(jitter) = jitter {
            record.totals.insert(count::JITTER_NS.to_owned(), jitter.0);
        }
        record.notes.append(&mut stream.notes);
        Ok(record)
    }
}

#[derive(Default)]
struct ReceiverTally {
    jitter: Jitter,
    dropped: u32,
    causes: Causes,
}

/// How long after the end a flow may go on arriving.
const DRAIN_MAX: Nanos = Nanos::from_millis(500);

/// One flow in the hands of its thread.
struct Receiver<'a> {
    worker: Worker<'a>,
    session: &'a Session,
    socket: Socket,
    batch: ReceiveBatch,
    token: Token,
    size: u64,
    tally: ReceiverTally,
}

impl Receiver<'_> {
    /// Receives until nothing more comes after the end.
    fn run(mut self) -> ReceiverTally {
        let mut sequence = Sequence::default();
        let (mut has_ended, mut over_since) = (false, None);
        loop {
            let before = sequence.counts();
            match self.batch.receive(&self.socket, Wait::Block) {
                Ok(Some(n)) => {
                    let is_marked = self.take(n, &mut sequence);
                    self.count(before, sequence.counts());
                    if is_marked {
                        has_ended = true;
                        self.acknowledge();
                    }
                }
                Ok(None) if has_ended || self.worker.is_over() => break,
                Ok(None) => {}
                Err(error) => {
                    self.tally.causes.count(&error);
                    break;
                }
            }
            if self.worker.is_over() {
                let since = *over_since.get_or_insert_with(clock::now);
                if self.session.stop.told() == Stop::Abort || clock::now() - since > DRAIN_MAX {
                    break;
                }
            }
        }
        match socket::drops(&self.socket) {
            Ok(dropped) => self.tally.dropped = dropped,
            Err(error) => self.tally.causes.count(&error),
        }
        self.tally
    }

    /// Accounts for the datagrams of one call; whether an end mark was among them.
    fn take(&mut self, n: usize, sequence: &mut Sequence) -> bool {
        let mut is_marked = false;
        for index in 0..n {
            let Some(header) = self.token.read(self.batch.payload(index)) else {
                self.worker.add(5, 1);
                continue;
            };
            sequence.arrived(header.number);
            match (header.sent, self.batch.kernel_time(index)) {
                (Some(sent), Some(received)) => self.tally.jitter.arrived(sent, received),
                (None, _) => is_marked = true,
                (Some(_), None) => {}
            }
        }
        is_marked
    }

    /// Tells the sender that a mark was seen, and waits only shortly from now on.
    fn acknowledge(&self) {
        let Some(sender) = self.batch.source() else { return };
        // When either fails, the sender marks the end once more, or the wait is a little longer.
        let _ = self.socket.send_to(&[0], &sender.into());
        let _ = socket::set_timeout(&self.socket, END_MARK_GAP * 4);
    }

    /// Adds to the counters of [`RECEIVER`], in their order.
    fn count(&self, before: Counts, after: Counts) {
        let received = after.received - before.received;
        self.worker.add(0, received);
        self.worker.add(1, received * self.size);
        self.worker.add(2, after.duplicates - before.duplicates);
        self.worker.add(3, after.reordered - before.reordered);
        self.worker.add(4, after.late - before.late);
    }
}

//! How fast TCP carries a stream of bytes.
//!
//! One blocking thread per flow. The sender ends its direction when the trial is over, the receiver reads to the end, so all that
//! was sent is received before either side comes back. It knows nothing of what limits the rate; `TCP_INFO` of every flow is
//! recorded for those who ask.

use std::{net::Shutdown, sync::Arc};

use fathom_engine::{Crew, Error, Session, Stop, Test, TestKind, Worker};
use fathom_model::{
    Better, Derivation, Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, Unit, ValueKind,
    metric::{Measure, Named},
    names::{count, tcp},
    units::{BitsPerSec, Bytes, Nanos, approximate},
};
use fathom_sys::{
    clock,
    socket::{self, Socket, Wait},
    tcp_info::{State, TcpInfo},
};

use super::LATENCY;
use crate::{
    causes::Causes,
    flows::{BYTES_TRANSMITTED, FlowWatch},
    link::Opening,
    options::{self, BUFFER, CONGESTION, DSCP, FLOWS, MSS, PORT, SocketOptions},
    payload::Payload,
};

/// Which way the bytes flow, seen from the initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// A stream one way; the other way is another kind because its metrics come from other sides.
pub(crate) struct TcpStream {
    name: &'static str,
    way: Way,
    metrics: &'static [Metric],
}

/// The initiator sends.
pub(crate) const UP: TcpStream =
    TcpStream { name: "tcp_stream", way: Way::Up, metrics: &metrics(Side::Initiator, Side::Responder) };
/// The responder sends.
pub(crate) const DOWN: TcpStream =
    TcpStream { name: "tcp_stream_down", way: Way::Down, metrics: &metrics(Side::Responder, Side::Initiator) };

const SOURCE: &str = "docs/methods/tcp_stream.md";
/// Totals in units of 1024 bytes, so that a cost per unit is a readable number of nanoseconds.
const KIBIBYTES_SENT: &str = "kibibytes_sent";
const KIBIBYTES_RECEIVED: &str = "kibibytes_received";

const fn metrics(sender: Side, receiver: Side) -> [Metric; 8] {
    let describes = Measure(Unit::Count, Better::Lower);
    [
        Metric::of(
            Named("throughput_bps", "goodput"),
            Measure(Unit::BitsPerSec, Better::Higher),
            SOURCE,
            Derivation::rate(receiver, count::BYTES_RECEIVED),
        ),
        Metric::of(
            Named("retransmitted_ratio", "retransmitted"),
            Measure(Unit::Ratio, Better::Lower),
            "RFC 6349 section 4.2",
            Derivation::share((sender, tcp::BYTES_RETRANS), (sender, BYTES_TRANSMITTED)),
        ),
        Metric::of(
            Named("retransmitted_segments", "segments sent again"),
            describes,
            SOURCE,
            Derivation::total(sender, tcp::RETRANS_TOTAL),
        ),
        Metric::of(
            Named("rtt_ns_p50", "RTT under load p50"),
            LATENCY,
            SOURCE,
            Derivation::quantile(sender, tcp::RTT_NS, 0.5),
        ),
        Metric::of(
            Named("rtt_ns_p99", "RTT under load p99"),
            LATENCY,
            SOURCE,
            Derivation::quantile(sender, tcp::RTT_NS, 0.99),
        ),
        Metric::of(
            Named("missing_ratio", "not received"),
            Measure(Unit::Ratio, Better::Lower),
            SOURCE,
            Derivation::missing((sender, count::BYTES_SENT), (receiver, count::BYTES_RECEIVED)),
        ),
        Metric::of(
            Named("cost_sender_ns_per_kib", "sender's CPU per KiB"),
            LATENCY,
            SOURCE,
            Derivation::cost(sender, KIBIBYTES_SENT),
        ),
        Metric::of(
            Named("cost_receiver_ns_per_kib", "receiver's CPU per KiB"),
            LATENCY,
            SOURCE,
            Derivation::cost(receiver, KIBIBYTES_RECEIVED),
        ),
    ]
}

const WRITE: OptionDoc = OptionDoc {
    name: "write",
    value: ValueKind::Size,
    default: Some("128KiB"),
    help: "bytes handed to the kernel, and asked of it, in one call",
};
const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::BitRate,
    default: None,
    help: "bound of all flows together, kept by the kernel's pacing; without it as fast as possible",
};
const DISCARD: OptionDoc = OptionDoc {
    name: "discard",
    value: ValueKind::Flag,
    default: Some("false"),
    help: "the receiver discards in the kernel (MSG_TRUNC), which saves it the copy",
};

impl TestKind for TcpStream {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        match self.way {
            Way::Up => "payload per second of TCP streams from the initiator",
            Way::Down => "payload per second of TCP streams to the initiator",
        }
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        let way = if self.way == Way::Down { " down" } else { "" };
        match settings.count(FLOWS.name).unwrap_or(1) {
            1 => format!("stream{way}, 1 flow"),
            n => format!("stream{way}, {n} flows"),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[FLOWS, WRITE, RATE, DISCARD, CONGESTION, BUFFER, MSS, DSCP, PORT]
    }

    fn metrics(&self) -> &'static [Metric] {
        self.metrics
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        let (n_flows, _) = options::flows_and_workers(role);
        let per_flow = approximate(u64::try_from(n_flows).unwrap_or(1));
        let mut socket_options = SocketOptions::of(&role.settings);
        let rate = role.settings.bit_rate(RATE.name);
        socket_options.pacing = rate.and_then(|rate| BitsPerSec::new(rate.get() / per_flow));
        let write = options::message_size(&role.settings, &WRITE)?;
        let (opening, notes) = Opening::prepare(role, self.name, &socket_options)?;
        let sends = (role.side == Side::Initiator) == (self.way == Way::Up);
        // Senders read one buffer; receivers write to one each.
        let n_payloads = if sends { 1 } else { n_flows };
        let payloads = (0..n_payloads).map(|_| Payload::random(write, role.seed)).collect();
        Ok(Box::new(Stream { role: role.clone(), opening, sends, payloads, notes }))
    }
}

struct Stream {
    role: Role,
    opening: Opening,
    sends: bool,
    payloads: Vec<Payload>,
    notes: Vec<Note>,
}

impl Test for Stream {
    fn endpoints(&self) -> Endpoints {
        self.opening.endpoints()
    }

    fn run(mut self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let (n_flows, _) = options::flows_and_workers(&self.role);
        let sockets: Vec<_> = self.opening.complete(n_flows, session)?.into_iter().map(Arc::new).collect();
        let mut watch = FlowWatch::new(&sockets);
        let discards = self.role.settings.flag(DISCARD.name);
        let shared = if self.sends { self.payloads.pop() } else { None };
        let receivers = self.payloads.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let states: Vec<_> = sockets.into_iter().zip(receivers).collect();
        let side = self.role.side;
        let counters: &'static [&'static str] =
            if self.sends { &[count::BYTES_SENT] } else { &[count::BYTES_RECEIVED] };
        let crew = Crew { states, counters, cores: &self.role.cores, until: side.into() };
        let conducted = crew.conduct(session, &mut watch, |worker, (socket, room)| {
            let flow = Flow { worker, session, side, socket: &socket };
            Ok(match (&shared, room) {
                (Some(payload), _) => flow.send(payload.bytes()),
                (None, Some(room)) => flow.receive(room, discards),
                (None, None) => Causes::default(),
            })
        })?;
        let mut record = conducted.record(side);
        watch.finish(&mut record);
        conducted.workers.into_iter().for_each(|causes| causes.add_to(&mut record));
        record.complete &= record.errors.is_empty();
        for (bytes, kibibytes) in [(count::BYTES_SENT, KIBIBYTES_SENT), (count::BYTES_RECEIVED, KIBIBYTES_RECEIVED)] {
            if let Some(total) = record.totals.get(bytes).copied() {
                record.totals.insert(kibibytes.to_owned(), total / 1024);
            }
        }
        record.notes.append(&mut self.notes);
        if discards && !self.sends {
            let text = "the receiver discarded in the kernel, so the result holds no copy to the application";
            record.notes.push(Note { id: "receive-discarded".to_owned(), text: text.to_owned() });
        }
        Ok(record)
    }
}

/// How long the end of a stream may take to arrive.
const DRAIN_MAX: Nanos = Nanos::from_secs(3);
/// How many writes go out before the sender looks whether the other side has had enough.
const LOOK_EVERY: u32 = 16;

/// One flow in the hands of its thread.
struct Flow<'a> {
    worker: Worker<'a>,
    session: &'a Session,
    side: Side,
    socket: &'a Socket,
}

impl Flow<'_> {
    /// Sends until the trial is over, then until the receiver has it all.
    fn send(&self, payload: &[u8]) -> Causes {
        let mut causes = Causes::default();
        let mut n_writes = 0_u32;
        while !self.worker.is_over() {
            let sent = match socket::send(self.socket, payload, Wait::Block) {
                Ok(sent) => sent,
                Err(error) => {
                    causes.count(&error);
                    return causes;
                }
            };
            self.count(sent.unwrap_or(0));
            n_writes = n_writes.wrapping_add(1);
            let look = sent.is_none() || n_writes.is_multiple_of(LOOK_EVERY);
            if self.side == Side::Responder && look && self.has_peer_ended() {
                break;
            }
        }
        self.half_close();
        let begin = clock::now();
        while !self.is_lost(begin, &mut causes) {
            match socket::recv(self.socket, &mut [0; 64], Wait::Block) {
                Ok(Some(0)) => break,
                Ok(_) => {}
                Err(error) => {
                    causes.count(&error);
                    break;
                }
            }
        }
        // A receiver that ended first has not told yet that it has everything.
        while self.is_unacknowledged() && !self.is_lost(begin, &mut causes) {
            clock::sleep_until(clock::now() + Nanos::from_millis(1));
        }
        causes
    }

    /// Receives until the sender has ended.
    fn receive(&self, mut room: Payload, discards: bool) -> Causes {
        let mut causes = Causes::default();
        let mut over_since = None;
        let size = Bytes(u64::try_from(room.bytes().len()).unwrap_or(u64::MAX));
        loop {
            let received = if discards {
                socket::discard(self.socket, size, Wait::Block)
            } else {
                socket::recv(self.socket, room.bytes_mut(), Wait::Block)
            };
            match received {
                Ok(Some(0)) => {
                    self.half_close();
                    return causes;
                }
                Ok(received) => self.count(received.unwrap_or(0)),
                Err(error) => {
                    causes.count(&error);
                    return causes;
                }
            }
            if self.worker.is_over() {
                let since = *over_since.get_or_insert_with(|| {
                    if self.side == Side::Initiator {
                        self.half_close();
                    }
                    clock::now()
                });
                if self.is_lost(since, &mut causes) {
                    return causes;
                }
            }
        }
    }

    fn count(&self, bytes: usize) {
        self.worker.add(0, u64::try_from(bytes).unwrap_or(0));
    }

    /// Tells the other side that nothing more comes; an already broken connection needs no telling.
    fn half_close(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Whether both sides have ended and the end of this one has yet to be acknowledged.
    fn is_unacknowledged(&self) -> bool {
        TcpInfo::of(self.socket).is_ok_and(|info| info.state == State::LastAck)
    }

    fn has_peer_ended(&self) -> bool {
        matches!(socket::recv(self.socket, &mut [0; 64], Wait::Never), Ok(Some(0)) | Err(_))
    }

    /// Whether to give up on the end of a stream, because of an abort or of the time it takes.
    fn is_lost(&self, begin: Nanos, causes: &mut Causes) -> bool {
        if self.session.stop.told() == Stop::Abort {
            // Without a reset the kernel would go on sending what it has.
            let _ = socket::set_reset_on_close(self.socket);
            return true;
        }
        let late = clock::now() - begin > DRAIN_MAX;
        if late {
            causes.note("drain: timed out");
        }
        late
    }
}

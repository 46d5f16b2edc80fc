//! The share of a stream's datagrams that arrives, and the outcome of the others.
//!
//! One thread and one pair of sockets per flow; batches in every call. The receiver counts each number once, so that sent =
//! received + lost holds exactly after the drain, and asks its socket how many of the lost ones it dropped itself.

use std::net::SocketAddr;

use fathom_engine::{CeilingSetup, CommandDoc, DataDirection, Error, EvaluationRow, MethodSupport, Test, TestKind};
use fathom_model::{
    Better, Derivation, Endpoints, Layer, Metric, Note, OptionDoc, Role, Settings, Side, Unit,
    benchmark::TrafficUnit,
    metric::{MetricName, UnitAndSense},
    names::{
        count,
        distribution::{LOSS_BURST, ONE_WAY_DELAY},
    },
    settings::PACKET_RATE,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    policy::Policy,
    socket::{self, Socket},
};

use self::{receiver::UdpStreamReceiver, sender::UdpStreamSender, settings::StreamShape};
use crate::{
    connection_setup::BLOCKING_TIMEOUT, connection_setup::trial_secret, datagrams::FlowToken, options::SocketOptions,
};

mod receiver;
mod sender;
mod settings;

/// The direction of the datagrams, seen from the initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// The metric of the packet rate.
const RECEIVED: &str = "received_per_sec";

/// A stream in one direction. The other direction is a kind of its own because its metrics come from other sides.
pub(crate) struct UdpStream {
    name: &'static str,
    direction: Direction,
    metrics: &'static [Metric],
}

/// The initiator sends.
pub(crate) const UP: UdpStream =
    UdpStream { name: "udp_stream", direction: Direction::Up, metrics: &metrics(Side::Initiator, Side::Responder) };
/// The responder sends.
pub(crate) const DOWN: UdpStream = UdpStream {
    name: "udp_stream_down",
    direction: Direction::Down,
    metrics: &metrics(Side::Responder, Side::Initiator),
};

const SOURCE: &str = "docs/methods/udp_stream.md";
/// Datagrams too far behind the newest to be distinguished from duplicates.
const LATE: &str = "late";
/// Datagrams of other senders that arrived at the test's sockets.
const FOREIGN: &str = "strangers";
/// Messages from the kernel, which may join several datagrams to one message.
const MESSAGES_RECEIVED: &str = "messages_received";
/// Distributions of the receiver.
const REORDERING_EXTENT: &str = "reordering_extent_datagrams";
const IPDV: &str = "ipdv_ns";
/// The largest error of one-way delays, from the comparison of two clocks; zero if both ends use one clock.
const ONE_WAY_DELAY_ERROR: &str = "one_way_delay_error_ns";

const RFC_IPDV: &str = "RFC 5481 section 4.1";
const RFC_DELAY: &str = "RFC 7679 section 3";
const RATIO: UnitAndSense = UnitAndSense(Unit::Ratio, Better::Lower);
const PPS: UnitAndSense = UnitAndSense(Unit::FramesPerSec, Better::Higher);
const COUNT: UnitAndSense = UnitAndSense(Unit::Count, Better::Lower);
const BITS: UnitAndSense = UnitAndSense(Unit::BitsPerSec, Better::Higher);

const fn span(named: MetricName, source: &'static str, from: Derivation) -> Metric {
    Metric::of(named, UnitAndSense::TIME, source, from)
}

const fn metrics(sender: Side, receiver: Side) -> [Metric; 15] {
    use Derivation as By;
    let sent = (sender, count::SENT);
    let received = (receiver, count::RECEIVED);
    let bytes = By::rate(receiver, count::BYTES_RECEIVED);
    let reordered = By::share((receiver, count::REORDERED), received);
    let duplicated = By::share((receiver, count::DUPLICATES), received);
    let burst = By::quantile(receiver, LOSS_BURST, 1.0);
    let extent = By::quantile(receiver, REORDERING_EXTENT, 1.0);
    let delay_median = By::quantile(receiver, ONE_WAY_DELAY, 0.5);
    let delay_tail = By::quantile(receiver, ONE_WAY_DELAY, 0.99);
    [
        Metric::of(MetricName("throughput_bps", "goodput"), BITS, SOURCE, bytes),
        Metric::of(MetricName(RECEIVED, "received"), PPS, SOURCE, By::rate(receiver, count::RECEIVED)),
        Metric::of(MetricName("sent_per_sec", "sent"), PPS, SOURCE, By::rate(sender, count::SENT)),
        Metric::of(MetricName("loss_ratio", "lost"), RATIO, "RFC 7680 section 2", By::missing(sent, received)),
        Metric::of(MetricName("reordered_ratio", "reordered"), RATIO, "RFC 4737 section 3", reordered),
        Metric::of(MetricName("duplicate_ratio", "duplicated"), RATIO, SOURCE, duplicated),
        span(MetricName("jitter_ns", "jitter"), "RFC 3550 section 6.4.1", By::total(receiver, count::JITTER_NS)),
        span(MetricName("cost_sender_ns", "sender's CPU per datagram"), SOURCE, By::cost(sender, count::SENT)),
        span(
            MetricName("cost_receiver_ns", "receiver's CPU per datagram"),
            SOURCE,
            By::cost(receiver, count::RECEIVED),
        ),
        Metric::of(MetricName("loss_burst_max", "longest loss burst"), COUNT, SOURCE, burst),
        Metric::of(MetricName("reordering_extent_max", "reordering extent max"), COUNT, "RFC 4737 section 4.2", extent),
        span(MetricName("ipdv_ns_p99", "IPDV p99"), RFC_IPDV, By::quantile(receiver, IPDV, 0.99)),
        span(MetricName("one_way_delay_ns_p50", "one-way delay p50"), RFC_DELAY, delay_median),
        span(MetricName("one_way_delay_ns_p99", "one-way delay p99"), RFC_DELAY, delay_tail),
        span(MetricName("one_way_delay_error_ns", "one-way delay ±"), SOURCE, By::total(receiver, ONE_WAY_DELAY_ERROR)),
    ]
}

/// The bytes of a frame around a datagram's payload: Ethernet with its checksum, IPv4 and UDP.
const HEADERS: u64 = 14 + 4 + 20 + 8;
/// The key of the responder's addresses, one per flow, separated by commas.
const ADDRESSES: &str = "addresses";
/// The number of end marks, because a mark may be lost as well.
const END_MARKS: u32 = 10;
/// The interval between two end marks.
const END_MARK_GAP: Nanos = Nanos::from_millis(5);

/// The configuration of both sides.
struct UdpStreamConfig {
    kind: &'static str,
    role: Role,
    shape: StreamShape,
    notes: Vec<Note>,
    options: SocketOptions,
}

impl UdpStreamConfig {
    /// Opens a socket with the options of all sockets.
    fn open(&mut self, at: SocketAddr) -> Result<Socket, Error> {
        let (socket, notes) = self.options.bind_udp(at)?;
        self.notes = notes;
        wait_at_most(&socket)?;
        Ok(socket)
    }

    /// Opens a socket for each flow: bound, and on the initiator connected to the responder's address.
    fn open_all(&mut self) -> Result<Vec<Socket>, Error> {
        let n_flows = crate::options::flows_and_workers(&self.role).0;
        if self.role.side == Side::Responder { self.bind_all(n_flows) } else { self.connect_all(n_flows) }
    }

    fn bind_all(&mut self, n_flows: usize) -> Result<Vec<Socket>, Error> {
        let first = crate::options::listen_address(&self.role);
        let bind = |flow| {
            let no_port =
                || crate::options::invalid_value(crate::options::PORT.name, "one port per flow", &first.port());
            let port = match first.port() {
                0 => 0,
                port => u16::try_from(flow).ok().and_then(|flow| port.checked_add(flow)).ok_or_else(no_port)?,
            };
            self.open(SocketAddr::new(first.ip(), port))
        };
        (0..n_flows).map(bind).collect()
    }

    fn connect_all(&mut self, n_flows: usize) -> Result<Vec<Socket>, Error> {
        let told = self.role.peer.get(ADDRESSES).cloned().unwrap_or_default();
        let told: Vec<SocketAddr> = told.split(',').filter_map(|text| text.parse().ok()).collect();
        if told.len() != n_flows {
            return Err(Error::Endpoint { kind: self.kind, what: ADDRESSES });
        }
        let connect = |(idx, to)| {
            let (socket, notes) = self.options.connect_udp(to, self.role.address, idx)?;
            self.notes = notes;
            wait_at_most(&socket)?;
            Ok(socket)
        };
        self.options.targets(&told)?.iter().enumerate().map(connect).collect()
    }

    /// The endpoints for the initiator: the responder's own addresses.
    fn endpoints<'a>(&self, sockets: impl Iterator<Item = &'a Socket>) -> Endpoints {
        if self.role.side == Side::Initiator {
            return Endpoints::new();
        }
        let address = |socket| socket::local_address(socket).ok().map(|address| address.to_string());
        let addresses: Vec<_> = sockets.filter_map(address).collect();
        [(ADDRESSES.to_owned(), addresses.join(","))].into()
    }

    fn token(&self, flow: usize) -> FlowToken {
        FlowToken::new(trial_secret(&self.role), u16::try_from(flow).expect("at most 4096 flows"))
    }

    fn note(&mut self, id: &str, text: impl Into<String>) {
        self.notes.push(Note::new(id, text.into()));
    }
}

fn wait_at_most(socket: &Socket) -> Result<(), Error> {
    let cannot = |cause| Error::System { what: "bound a wait".to_owned(), cause };
    socket::set_timeout(socket, BLOCKING_TIMEOUT).map_err(cannot)
}

impl TestKind for UdpStream {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        match self.direction {
            Direction::Up => {
                "datagrams per second of UDP streams from the initiator, with loss, duplicates and reordering"
            }
            Direction::Down => {
                "datagrams per second of UDP streams to the initiator, with loss, duplicates and reordering"
            }
        }
    }

    fn layer(&self) -> Layer {
        Layer::Udp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        settings::title(settings, if self.direction == Direction::Down { "down, " } else { "" })
    }

    fn headline(&self, settings: &Settings) -> Option<&'static str> {
        settings::is_about_packets(settings).then_some(RECEIVED)
    }

    fn options(&self) -> &'static [OptionDoc] {
        settings::OPTIONS
    }

    fn metrics(&self) -> &'static [Metric] {
        self.metrics
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        StreamShape::of(settings, 0)?;
        SocketOptions::check(settings)
    }

    fn command(&self) -> Option<CommandDoc> {
        let is_up = self.direction == Direction::Up;
        let direction = if is_up { DataDirection::Up } else { DataDirection::Down };
        Some(CommandDoc::test("stream").direction(direction))
    }

    fn evaluation(&self) -> &'static [EvaluationRow] {
        // The rate is low enough for any link that is called fast, so that a loss is a finding.
        const ROW: EvaluationRow = EvaluationRow {
            name: "udp_stream",
            options: &[("size", "1400"), ("rate", "500Mbit/s")],
            is_optional: false,
        };
        if self.direction == Direction::Up { &[ROW] } else { &[] }
    }

    fn ceilings(&self) -> &'static [CeilingSetup] {
        const SETUP: CeilingSetup = CeilingSetup { options: &[("size", "1400")], needs_lab: false };
        if self.direction == Direction::Up { &[SETUP] } else { &[] }
    }

    fn methods(&self) -> Option<MethodSupport> {
        // The other methods need bursts and steps, which only frames have.
        let only = &["throughput", "mlrsearch", "loss", "forwarding"];
        // The payloads of the smallest, a medium and the largest datagram in one Ethernet frame.
        let (sizes, frame_overhead) = (&[18, 512, 1472], Bytes(HEADERS));
        let (unit, rate) = (TrafficUnit::Datagrams, PACKET_RATE);
        let support = MethodSupport { only, unit, rate, sizes, frame_overhead };
        (self.direction == Direction::Up).then_some(support)
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        let shape = StreamShape::of(&role.settings, role.seed)?;
        let stream = UdpStreamConfig {
            kind: self.name,
            role: role.clone(),
            shape,
            notes: Vec::new(),
            options: SocketOptions::of(role, policy),
        };
        let sends = (role.side == Side::Initiator) == (self.direction == Direction::Up);
        Ok(if sends {
            Box::new(UdpStreamSender::prepare(stream)?)
        } else {
            Box::new(UdpStreamReceiver::prepare(stream)?)
        })
    }
}

//! A stand-alone receiver for packets of a kernel's pktgen, whoever started it: loss, order and latency by pktgen's own header.
//!
//! It sends nothing, answers nothing and consumes nothing: it looks at copies. It knows the number of sent packets only from the
//! sequence numbers in them.

use fathom_engine::{CommandDoc, EndCondition, Error, Stop, Test, TestKind, TrialContext, WorkerHandle, WorkerPool};
use fathom_model::{
    Better, Derivation, Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, Unit, ValueKind,
    metric::{MetricName, UnitAndSense},
    names::{
        count::{DUPLICATES, RECEIVED, REORDERED, SOCKET_DROPPED},
        distribution::LATENCY,
    },
    units::{Bytes, Nanos},
};
use fathom_sys::{
    netlink::Netlink,
    packet::packet_socket::{ReceiveBuffer, Receiver},
    policy::Policy,
};

use fathom_pktgen::{DevicePorts, ReceivedPackets};

/// Counts pktgen's packets at a device.
#[derive(Debug, Clone, Copy)]
pub struct PktgenReceive;

/// The name in plans and errors.
pub const NAME: &str = "pktgen_receive";
/// How long the packets of others are counted unless the user says.
const ROUND: Nanos = Nanos::from_secs(10);

/// The number of all ports. With this, all packets count as those of a single pktgen device.
const ALL_PORTS: u64 = 1 << 16;

const OPTIONS: &[OptionDoc] = &[
    OptionDoc {
        name: "receive",
        value: ValueKind::Text,
        default: None,
        help: "send nothing: count the packets of any pktgen that arrive at this interface",
    },
    OptionDoc {
        name: "ports-each",
        value: ValueKind::Count(1, ALL_PORTS),
        default: Some("65536"),
        help: "source ports per sending pktgen device, to tell several devices apart; 1 if each uses one port",
    },
    OptionDoc {
        name: "shared-clock",
        value: ValueKind::Flag,
        default: None,
        help: "both hosts have the same wall clock: report latencies too",
    },
];

/// The count of sequence numbers from the lowest to the highest of each device, received or not.
const NUMBERED: &str = "numbered";
const UNTIMELY: &str = "untimely";
const VARIATION: &str = "ipdv_ns";
const COUNTERS: &[&str] = &[RECEIVED, DUPLICATES, REORDERED, NUMBERED];

const SOURCE: &str = "docs/methods/pktgen_receive.md";
const PPS: UnitAndSense = UnitAndSense(Unit::FramesPerSec, Better::Higher);
const RATIO: UnitAndSense = UnitAndSense(Unit::Ratio, Better::Lower);

const fn share(part: &'static str, whole: &'static str) -> Derivation {
    Derivation::share((Side::Initiator, part), (Side::Initiator, whole))
}

const fn quantile(distribution: &'static str, q: f64) -> Derivation {
    Derivation::quantile(Side::Initiator, distribution, q)
}

const METRICS: &[Metric] = &[
    Metric::of(
        MetricName("received_per_sec", "received"),
        PPS,
        "RFC 2285 section 3.6.1",
        Derivation::rate(Side::Initiator, RECEIVED),
    ),
    Metric::of(
        MetricName("loss_ratio", "lost"),
        RATIO,
        SOURCE,
        Derivation::missing((Side::Initiator, NUMBERED), (Side::Initiator, RECEIVED)),
    ),
    Metric::of(MetricName("unseen_ratio", "missed by the socket"), RATIO, SOURCE, share(SOCKET_DROPPED, NUMBERED)),
    Metric::of(MetricName("reordered_ratio", "reordered"), RATIO, "RFC 4737 section 3", share(REORDERED, RECEIVED)),
    Metric::of(MetricName("duplicate_ratio", "duplicated"), RATIO, SOURCE, share(DUPLICATES, RECEIVED)),
    Metric::of(
        MetricName("ipdv_ns_p50", "IPDV p50"),
        UnitAndSense::TIME,
        "RFC 5481 section 4.1",
        quantile(VARIATION, 0.5),
    ),
    Metric::of(
        MetricName("ipdv_ns_p99", "IPDV p99"),
        UnitAndSense::TIME,
        "RFC 5481 section 4.1",
        quantile(VARIATION, 0.99),
    ),
    Metric::of(MetricName("latency_ns_p50", "latency p50"), UnitAndSense::TIME, SOURCE, quantile(LATENCY, 0.5)),
    Metric::of(MetricName("latency_ns_p99", "p99"), UnitAndSense::TIME, SOURCE, quantile(LATENCY, 0.99)),
];

impl TestKind for PktgenReceive {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "packets received from a kernel's pktgen: loss, order and latency by its own header"
    }

    fn layer(&self) -> Layer {
        Layer::Frames
    }

    fn is_two_sided(&self, _: &Settings) -> bool {
        false
    }

    fn title(&self, settings: &Settings) -> String {
        settings.text("receive").map_or_else(|| "pktgen's".to_owned(), |device| format!("pktgen's at {device}"))
    }

    fn options(&self) -> &'static [OptionDoc] {
        OPTIONS
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(CommandDoc { single_round: Some(ROUND), ..CommandDoc::test("pktgen-receive").implied_by(&["receive"]) })
    }

    fn prepare(&self, role: &Role, _: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(Box::new(PktgenReceiveTest::prepare(role)?))
    }
}

/// A test on one device.
#[derive(Debug)]
struct PktgenReceiveTest {
    device: String,
    counter: PktgenCounter,
    shares_clock: bool,
    cores: Vec<usize>,
}

/// A packet socket and its counts.
#[derive(Debug)]
struct PktgenCounter {
    receiver: Receiver,
    inbox: ReceiveBuffer,
    arrivals: ReceivedPackets,
    /// Frames of any kind that reached the socket, and those that it had no room for.
    n_frames: u64,
    dropped: u64,
}

/// Room for 40 000 small frames: 100 ms at the rate that the socket keeps up with.
const BUFFER: Bytes = Bytes(32 << 20);
/// The longest wait for a packet between two checks for the end of the trial.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);

impl PktgenReceiveTest {
    fn prepare(role: &Role) -> Result<Self, Error> {
        let device = role.settings.text("receive").or_else(|| role.interface.clone()).ok_or_else(|| {
            let hint = Some("fathom packet --receive eth1".to_owned());
            Error::Unsupported { what: format!("{NAME} needs a device"), hint }
        })?;
        let link = Netlink::open().and_then(|mut netlink| netlink.link(&device));
        let link = link.map_err(|cause| Error::System { what: format!("find the device {device}"), cause })?;
        if !link.is_up {
            let hint = Some(format!("ip link set {device} up"));
            return Err(Error::Unsupported { what: format!("{device} is down"), hint });
        }
        let receiver = Receiver::open_stamped(link.index, BUFFER)
            .map_err(|cause| Error::system(format!("open a packet socket on {device}"), "CAP_NET_RAW", cause))?;
        let each = role.settings.count("ports-each").unwrap_or(ALL_PORTS);
        let arrivals = ReceivedPackets::of(
            DevicePorts { first: 0, each: u32::try_from(each).unwrap_or(u32::MAX) },
            u32::try_from(ALL_PORTS.div_ceil(each)).unwrap_or(1),
        );
        let account = PktgenCounter { receiver, inbox: ReceiveBuffer::default(), arrivals, n_frames: 0, dropped: 0 };
        let shares_clock = role.settings.flag("shared-clock");
        Ok(Self { device, counter: account, shares_clock, cores: role.cores.clone() })
    }
}

impl PktgenCounter {
    /// Takes the received frames, and reports the counts.
    fn receive(&mut self, worker: &WorkerHandle<'_>) -> fathom_sys::Result<()> {
        while self.receiver.receive(&mut self.inbox)? > 0 {
            for ((frame, length), at) in self.inbox.frames().zip(self.inbox.stamps()) {
                self.arrivals.record(frame, length, at);
            }
            if worker.is_over() {
                break;
            }
        }
        let seen = self.receiver.take_counts()?;
        self.n_frames += seen.frames.0;
        self.dropped += seen.dropped.0;
        let arrivals = &self.arrivals;
        let counts = [arrivals.distinct(), arrivals.duplicates(), arrivals.reordered(), arrivals.numbered()];
        for (place, count) in counts.into_iter().enumerate() {
            worker.raise(place, count.0);
        }
        Ok(())
    }

    fn count(&mut self, worker: &WorkerHandle<'_>) -> fathom_sys::Result<()> {
        while !worker.is_over() {
            self.receiver.wait(POLL_INTERVAL)?;
            self.receive(worker)?;
        }
        Ok(())
    }
}

impl Test for PktgenReceiveTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(mut self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let what = || format!("count packets at {}", self.device);
        let states = vec![&mut self.counter];
        let pool = WorkerPool { states, counters: COUNTERS, cores: &self.cores, until: EndCondition::PhasesOver };
        let results = pool.run(context, &mut (), |worker, account| {
            account.count(&worker).map_err(|cause| Error::System { what: what(), cause })
        })?;
        let mut record = results.record(Side::Initiator);
        let PktgenCounter { arrivals, n_frames: seen, dropped, .. } = self.counter;
        if arrivals.frames.0 == 0 && context.stop.state() != Stop::Abort {
            return Err(nothing_received(&self.device, seen));
        }
        let totals = [(SOCKET_DROPPED, dropped), (UNTIMELY, arrivals.untimely.0)];
        record.totals.extend(totals.map(|(name, count)| (name.to_owned(), count)));
        record.notes.extend(missed_note(dropped));
        let latency = self.shares_clock.then_some((LATENCY, arrivals.latency_ns));
        let times = latency.into_iter().chain([(VARIATION, arrivals.variation_ns)]);
        let some = times.filter(|(_, times)| times.count() > 0);
        record.distributions.extend(some.map(|(name, times)| (name.to_owned(), times)));
        Ok(record)
    }
}

/// Why a receiver that saw no packet of pktgen has no result.
fn nothing_received(device: &str, seen: u64) -> Error {
    let among = match seen {
        0 => "nor any other frame".to_owned(),
        n => format!("among {n} frames of other kinds"),
    };
    Error::NoResult {
        what: format!("no packet of a pktgen arrived at {device}, {among}"),
        hint: format!(
            "start pktgen while this counts, on the link of {device}, to its Ethernet address \
             (`ip link set {device} promisc on` accepts other addresses)"
        ),
    }
}

/// The note about frames that the socket had no room for.
fn missed_note(dropped: u64) -> Option<Note> {
    let text = format!("the socket had no room for {dropped} frames: any packets of pktgen among them count as lost");
    (dropped > 0).then(|| Note::new("socket-dropped", text))
}

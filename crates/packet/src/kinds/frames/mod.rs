//! Frames per second from one device to another, with every loss accounted for.
//!
//! The initiator sends numbered frames by the best backend that works; the responder ends and counts them in an XDP program, before its
//! network stack sees them. It knows nothing of searches: it runs one load for one time.

mod content;
mod counter;
mod device;
mod machine;
mod metrics;
mod receiver;
mod sender;

use fathom_engine::{Error, Test, TestKind};
use fathom_model::{Layer, Metric, OptionDoc, Role, Settings, Side, Unit, ValueKind};

use metrics::METRICS;
use receiver::Receiving;
use sender::Sending;

use crate::{backend, wire::FrameSize};

/// Sends frames at a rate or flat out, and counts where they end.
#[derive(Debug, Clone, Copy)]
pub struct Frames;

/// From the start to the return of the last worker, in nanoseconds: the timeline ends at the tick that noticed it.
pub const SEND_TIME_NS: &str = "send_time_ns";

/// The name in plans and errors.
const NAME: &str = "frames";

/// The UDP port that frames are sent to: discard (RFC 863), which nobody answers where no sink is.
const PORT: u16 = 9;

/// How the responder counts: the words of the option `counter`.
const COUNTERS: &[&str] = &["auto", "native", "generic", "xsk", "socket"];

/// How frames or bursts follow each other: the words of the option `arrivals`.
const ARRIVALS: &[&str] = &["constant", "poisson"];

/// The most flows, of which the responder keeps the order of each.
const FLOWS_MAX: u64 = 1_000_000;

const OPTIONS: &[OptionDoc] = &[
    OptionDoc { name: "rate", value: ValueKind::Rate, default: None, help: "frames per second; flat out if absent" },
    OptionDoc {
        name: "size",
        value: ValueKind::Size,
        default: Some("64"),
        help: "length of a frame on the wire, checksum included: 64 to 9018",
    },
    OptionDoc {
        name: "count",
        value: ValueKind::Count(1, u64::MAX),
        default: None,
        help: "end after this many frames, if that is before the end of the time",
    },
    OptionDoc {
        name: "flows",
        value: ValueKind::Count(1, FLOWS_MAX),
        default: Some("1"),
        help: "flows to send in turn, of which each is numbered for itself",
    },
    OptionDoc {
        name: "workers",
        value: ValueKind::Count(1, 64),
        default: Some("1"),
        help: "threads that send, each its share of the flows",
    },
    OptionDoc {
        name: "backend",
        value: ValueKind::Choice(backend::WORDS),
        default: Some("auto"),
        help: "how frames leave: by the kernel's pktgen, made in the kernel (live), by AF_XDP (xsk), by a packet socket, or by the first of \
               these that works",
    },
    OptionDoc {
        name: "arrivals",
        value: ValueKind::Choice(ARRIVALS),
        default: Some("constant"),
        help: "with a rate: at equal distances, or at random and independent of each other",
    },
    OptionDoc {
        name: "burst",
        value: ValueKind::Count(1, 65_536),
        default: Some("1"),
        help: "with a rate: so many frames leave together, as far apart as the rate asks",
    },
    OptionDoc { name: "qdisc", value: ValueKind::Flag, default: None, help: "send through the queueing discipline" },
    OptionDoc {
        name: "mac",
        value: ValueKind::Text,
        default: None,
        help: "address of the router to send to, if the responder is not on the same link",
    },
    OptionDoc {
        name: "counter",
        value: ValueKind::Choice(COUNTERS),
        default: Some("auto"),
        help: "count in XDP (native, generic), behind it (xsk), in a packet socket, or in the best that works",
    },
];

impl TestKind for Frames {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "frames per second from one device to another, and where lost ones went"
    }

    fn layer(&self) -> Layer {
        Layer::Frames
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        let size = settings.size("size").map_or(64, |size| size.0);
        let flows = Some(n_flows(settings)).filter(|n| *n > 1).map(|n| format!("{n} flows"));
        let rate = settings.rate("rate").map(|rate| format!(" at {}", Unit::FramesPerSec.show(rate.get())));
        let flows = flows.map(|flows| format!(", {flows}")).unwrap_or_default();
        format!("{size} B{}{flows}", rate.unwrap_or_default())
    }

    fn options(&self) -> &'static [OptionDoc] {
        OPTIONS
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        Ok(match role.side {
            Side::Initiator => Box::new(Sending::prepare(role)?),
            Side::Responder => Box::new(Receiving::prepare(role)?),
        })
    }
}

/// The size that was asked for.
fn frame_size(settings: &Settings) -> Result<FrameSize, Error> {
    let size = settings.size("size").map_or(Ok(FrameSize::MIN), FrameSize::new);
    size.map_err(|error| Error::Unsupported { what: error.to_string(), hint: None })
}

/// How many flows were asked for.
fn n_flows(settings: &Settings) -> u32 {
    settings.count("flows").and_then(|flows| u32::try_from(flows).ok()).unwrap_or(1)
}

/// How many threads are to send.
fn n_workers(settings: &Settings) -> u32 {
    settings.count("workers").and_then(|workers| u32::try_from(workers).ok()).unwrap_or(1)
}

/// The keys under which the responder tells the initiator what it needs to know.
mod endpoint {
    pub(super) const MAC: &str = "mac";
    pub(super) const ADDRESS: &str = "address";
    pub(super) const PORT: &str = "port";
    pub(super) const TRIAL: &str = "trial";
    pub(super) const COUNTER: &str = "counter";
    /// The first source port by which the responder knows packets of the kernel's pktgen.
    pub(super) const PKTGEN: &str = "pktgen";
    /// Which clock the responder goes by.
    pub(super) const CLOCK: &str = "clock";
}

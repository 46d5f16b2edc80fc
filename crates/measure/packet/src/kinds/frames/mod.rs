//! Frames per second from one device to another, with every loss accounted for.
//!
//! The initiator sends numbered frames by the best backend that works; the responder ends and counts them in an XDP program, before its
//! network stack sees them. It knows nothing of searches: it runs one load for one time.

mod clock_id;
mod counter;
mod device;
mod frame_options;
mod learning;
mod metrics;
mod receiver;
mod sender;
mod user_counter;

use fathom_engine::{Error, Test, TestKind};
use fathom_model::{Layer, Metric, OptionDoc, Role, Settings, Side, Unit, ValueKind};
use fathom_sys::policy::Policy;

pub use device::neighbour_towards;
pub use learning::{LEARNING, LEARNING_FRAMES, LEARNING_WAIT};
use metrics::METRICS;
use receiver::FramesReceiver;
pub use receiver::{LATENCY, RECOVERY_NS, VARIATION};
use sender::FramesSender;

use crate::{backend, craft};

/// Sends frames at a rate or flat out, and counts where they end.
#[derive(Debug, Clone, Copy)]
pub struct FramesTest;

/// From the first frame to the last, in nanoseconds: the timeline ends at the tick that noticed it.
pub const SEND_TIME_NS: &str = "send_time_ns";

/// The name in plans and errors.
const NAME: &str = "frames";

/// The UDP port that frames are sent to: discard (RFC 863), which nobody answers where no sink is.
const PORT: u16 = 9;

/// How the responder counts: the words of the option `counter`.
const COUNTERS: &[&str] = &["auto", "native", "generic", "xsk", "socket"];

/// How frames or bursts follow each other: the words of the option `arrivals`.
const ARRIVALS: &[&str] = &["constant", "poisson"];

/// The option that says when the rate changes.
pub const STEP_AT: &str = "step-at";
/// The option that says to which rate it changes.
pub const STEP_RATE: &str = "step-rate";

const OPTIONS: &[OptionDoc] = &[
    OptionDoc {
        name: "rate",
        value: ValueKind::Rate,
        default: None,
        help: "frames per second; default: as fast as possible",
    },
    OptionDoc {
        name: STEP_AT,
        value: ValueKind::Span,
        default: None,
        help: "with --step-rate: when the rate changes, counted from the first frame, warm-up included",
    },
    OptionDoc {
        name: STEP_RATE,
        value: ValueKind::Rate,
        default: None,
        help: "frames per second after --step-at; the result says how long frames were still lost",
    },
    craft::SIZE,
    craft::MIX,
    OptionDoc {
        name: "count",
        value: ValueKind::Count(1, u64::MAX),
        default: None,
        help: "stop after this many frames, even if time is left",
    },
    craft::FLOWS,
    craft::FRAME,
    craft::CAPTURE,
    craft::TRANSPORT,
    craft::ADDRESSES,
    craft::PORTS,
    craft::VLAN,
    craft::MPLS,
    craft::TTL,
    craft::TOS,
    craft::PAYLOAD,
    OptionDoc {
        name: "threads",
        value: ValueKind::Count(1, 64),
        default: Some("1"),
        help: "sending threads, each with its share of the flows",
    },
    OptionDoc {
        name: "backend",
        value: ValueKind::Choice(backend::BACKEND_NAMES),
        default: Some("auto"),
        help: "how to send frames: the kernel's pktgen, XDP in the kernel (live), AF_XDP (xsk), a packet socket, or auto: the first that works",
    },
    OptionDoc {
        name: "arrivals",
        value: ValueKind::Choice(ARRIVALS),
        default: Some("constant"),
        help: "with --rate: constant: evenly spaced; poisson: random and independent",
    },
    OptionDoc {
        name: "burst",
        value: ValueKind::Count(1, 65_536),
        default: Some("1"),
        help: "with --rate: frames per burst",
    },
    OptionDoc {
        name: "qdisc",
        value: ValueKind::Flag,
        default: None,
        help: "send through the interface's queueing discipline",
    },
    OptionDoc {
        name: "mac",
        value: ValueKind::Text,
        default: None,
        help: "destination MAC address; default: the next hop's, or the responder's on the same link",
    },
    OptionDoc {
        name: LEARNING,
        value: ValueKind::Count(0, 10_000),
        default: None,
        help: "learning frames that each end sends before a trial; not counted; 3 with --method",
    },
    OptionDoc {
        name: LEARNING_WAIT,
        value: ValueKind::Span,
        default: None,
        help: "with --learning: wait before the trial, at most 10s; 50ms with --method, 2s with --conform",
    },
    OptionDoc {
        name: "counter",
        value: ValueKind::Choice(COUNTERS),
        default: Some("auto"),
        help: "where to count frames: XDP (native, generic), AF_XDP (xsk), a packet socket, or auto: the best that works",
    },
];

impl TestKind for FramesTest {
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
        let flows = settings.count(craft::FLOWS.name).filter(|n| *n > 1).map(|n| format!("{n} flows"));
        let shown = |name: &str| settings.rate(name).map(|rate| Unit::FramesPerSec.show(rate.get()));
        let rate = shown("rate").map(|rate| match (shown(STEP_RATE), settings.span(STEP_AT)) {
            (Some(then), Some(at)) => format!(" at {rate}, after {at} at {then}"),
            _ => format!(" at {rate}"),
        });
        let flows = flows.map(|flows| format!(", {flows}")).unwrap_or_default();
        format!("{}{}{flows}", craft::title(settings), rate.unwrap_or_default())
    }

    fn options(&self) -> &'static [OptionDoc] {
        OPTIONS
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(match role.side {
            Side::Initiator => Box::new(FramesSender::prepare(role, policy)?),
            Side::Responder => Box::new(FramesReceiver::prepare(role, policy)?),
        })
    }
}

/// How many threads are to send.
fn n_workers(settings: &Settings) -> u32 {
    settings.count("threads").and_then(|workers| u32::try_from(workers).ok()).unwrap_or(1)
}

/// The keys under which the responder tells the initiator what it needs to know.
mod endpoint {
    pub(super) const MAC: &str = "mac";
    pub(super) const ADDRESS: &str = "address";
    /// Of IPv6, which is told only when it is asked for.
    pub(super) const ADDRESS_V6: &str = "address_v6";
    pub(super) const PORT: &str = "port";
    pub(super) const TRIAL: &str = "trial";
    pub(super) const COUNTER: &str = "counter";
    /// The first source port by which the responder knows packets of the kernel's pktgen.
    pub(super) const PKTGEN: &str = "pktgen";
    /// How many of them each thread of it has.
    pub(super) const PKTGEN_EACH: &str = "pktgen_each";
    /// Which clock the responder goes by.
    pub(super) const CLOCK: &str = "clock";
}

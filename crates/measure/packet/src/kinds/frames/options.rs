//! The options of frames, and the names that both ends share.

use fathom_model::{OptionDoc, Settings, ValueKind};

use crate::{backend, craft};

/// The option for the number of learning frames.
pub const LEARNING: &str = "learning";
/// The option for the time that a device gets to learn from them.
pub const LEARNING_WAIT: &str = "learning-wait";

/// The time from the first frame to the last, in nanoseconds. The timeline instead ends at the tick that noticed the end.
pub const SEND_TIME_NS: &str = "send_time_ns";

/// The name in plans and errors.
pub(super) const NAME: &str = "frames";

/// The UDP destination port: discard (RFC 863), which nobody answers if there is no sink.
pub(super) const PORT: u16 = 9;

/// The values of the option `counter`: how the responder counts.
const COUNTERS: &[&str] = &["auto", "native", "generic", "xsk", "socket"];

/// The values of the option `arrivals`: how frames or bursts follow each other.
const ARRIVALS: &[&str] = &["constant", "poisson"];

/// The option for the time of a rate change.
pub const STEP_AT: &str = "step-at";
/// The option for the rate after the change.
pub const STEP_RATE: &str = "step-rate";

pub(super) const OPTIONS: &[OptionDoc] = &[
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

/// The number of sending threads.
pub(super) fn n_workers(settings: &Settings) -> u32 {
    settings.count("threads").and_then(|workers| u32::try_from(workers).ok()).unwrap_or(1)
}

/// The keys of the values that the responder sends to the initiator.
pub(super) mod endpoint {
    pub(crate) const MAC: &str = "mac";
    pub(crate) const ADDRESS: &str = "address";
    /// The IPv6 address, present only if it is needed.
    pub(crate) const ADDRESS_V6: &str = "address_v6";
    pub(crate) const PORT: &str = "port";
    pub(crate) const TRIAL: &str = "trial";
    pub(crate) const COUNTER: &str = "counter";
    /// The first source port by which the responder recognizes packets of the kernel's pktgen.
    pub(crate) const PKTGEN: &str = "pktgen";
    /// The number of such ports per pktgen thread.
    pub(crate) const PKTGEN_EACH: &str = "pktgen_each";
    /// The clock of the responder.
    pub(crate) const CLOCK: &str = "clock";
}

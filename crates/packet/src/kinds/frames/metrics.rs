//! What the records of a trial of frames amount to.

use std::borrow::Cow;

use fathom_model::{
    Better, Derivation, Metric, Side, Unit,
    names::count::{DUPLICATES, RECEIVED, REORDERED, SCHEDULE_LAG_NS_MAX, SENT},
};

/// What one of a metric is, and which way of it is good.
#[derive(Clone, Copy)]
struct Measure(Unit, Better);

const PPS: Measure = Measure(Unit::FramesPerSec, Better::Higher);
const RATIO: Measure = Measure(Unit::Ratio, Better::Lower);
const TIME: Measure = Measure(Unit::Nanos, Better::Lower);

const fn metric(
    (name, title): (&'static str, &'static str),
    Measure(unit, better): Measure,
    source: &'static str,
    from: Derivation,
) -> Metric {
    Metric { name: Cow::Borrowed(name), title: Cow::Borrowed(title), unit, better, source: Cow::Borrowed(source), from }
}

const fn of(side: Side, counter: &'static str) -> (Side, Cow<'static, str>) {
    (side, Cow::Borrowed(counter))
}

const fn rate(side: Side, counter: &'static str) -> Derivation {
    Derivation::Rate { side, counter: Cow::Borrowed(counter) }
}

const fn share(part: &'static str) -> Derivation {
    Derivation::Share { part: of(Side::Responder, part), whole: of(Side::Responder, RECEIVED) }
}

const SOURCE: &str = "docs/methods/frames.md";

pub(super) const METRICS: &[Metric] = &[
    metric(("received_per_sec", "received"), PPS, "RFC 2285 section 3.6.1", rate(Side::Responder, RECEIVED)),
    metric(("sent_per_sec", "offered"), PPS, "RFC 2285 section 3.5.2", rate(Side::Initiator, SENT)),
    metric(
        ("loss_ratio", "lost"),
        RATIO,
        "RFC 1242 section 3.6",
        Derivation::Missing { sent: of(Side::Initiator, SENT), arrived: of(Side::Responder, RECEIVED) },
    ),
    metric(("reordered_ratio", "reordered"), RATIO, "RFC 4737 section 3", share(REORDERED)),
    metric(("duplicate_ratio", "duplicated"), RATIO, SOURCE, share(DUPLICATES)),
    metric(
        ("cost_sender_ns", "sender's CPU per frame"),
        TIME,
        SOURCE,
        Derivation::Cost { side: Side::Initiator, counter: Cow::Borrowed(SENT) },
    ),
    metric(
        ("schedule_lag_ns_max", "schedule lag max"),
        TIME,
        SOURCE,
        Derivation::Total { side: Side::Initiator, counter: Cow::Borrowed(SCHEDULE_LAG_NS_MAX) },
    ),
];

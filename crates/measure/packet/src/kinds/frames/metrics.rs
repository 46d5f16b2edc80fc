//! The metrics of a trial of frames.

use fathom_model::{
    Better, Derivation, Metric, Side, Unit,
    metric::{MetricName, UnitAndSense},
    names::{
        count::{DUPLICATES, INTENDED, RECEIVED, REORDERED, SCHEDULE_LAG_NS_MAX, SENT, UNSENT},
        distribution::LATENCY,
    },
};

use super::receiver::{GAP, PDV_NS, VARIATION};

const PPS: UnitAndSense = UnitAndSense(Unit::FramesPerSec, Better::Higher);
const RATIO: UnitAndSense = UnitAndSense(Unit::Ratio, Better::Lower);

const fn quantile(distribution: &'static str, q: f64) -> Derivation {
    Derivation::quantile(Side::Responder, distribution, q)
}

const fn share(part: &'static str) -> Derivation {
    Derivation::share((Side::Responder, part), (Side::Responder, RECEIVED))
}

const SOURCE: &str = "docs/methods/frames.md";

/// Why metrics of a schedule are missing.
const FLAT_OUT: &str = "frames left flat out, so none was due";

pub(super) const METRICS: &[Metric] = &[
    Metric::of(
        MetricName("received_per_sec", "received"),
        PPS,
        "RFC 2285 section 3.6.1",
        Derivation::rate(Side::Responder, RECEIVED),
    ),
    Metric::of(
        MetricName("sent_per_sec", "offered"),
        PPS,
        "RFC 2285 section 3.5.2",
        Derivation::rate(Side::Initiator, SENT),
    ),
    Metric::of(
        MetricName("loss_ratio", "lost"),
        RATIO,
        "RFC 1242 section 3.6",
        Derivation::missing((Side::Initiator, SENT), (Side::Responder, RECEIVED)),
    ),
    Metric::of(
        MetricName("latency_ns_p50", "latency p50"),
        UnitAndSense::TIME,
        "RFC 8219 section 7.2",
        quantile(LATENCY, 0.5),
    ),
    Metric::of(MetricName("latency_ns_p99", "p99"), UnitAndSense::TIME, SOURCE, quantile(LATENCY, 0.99)),
    Metric::of(
        MetricName("latency_ns_p999", "p99.9"),
        UnitAndSense::TIME,
        "RFC 8219 section 7.2",
        quantile(LATENCY, 0.999),
    ),
    Metric::of(
        MetricName("pdv_ns", "PDV"),
        UnitAndSense::TIME,
        "RFC 8219 section 7.3.1",
        Derivation::total(Side::Responder, PDV_NS),
    ),
    Metric::of(
        MetricName("ipdv_ns_p50", "IPDV p50"),
        UnitAndSense::TIME,
        "RFC 5481 section 4.1",
        quantile(VARIATION, 0.5),
    ),
    Metric::of(
        MetricName("ipdv_ns_max", "IPDV max"),
        UnitAndSense::TIME,
        "RFC 5481 section 4.1",
        quantile(VARIATION, 1.0),
    ),
    Metric::of(MetricName("arrival_gap_ns_p99", "arrival gap p99"), UnitAndSense::TIME, SOURCE, quantile(GAP, 0.99)),
    Metric::of(MetricName("reordered_ratio", "reordered"), RATIO, "RFC 4737 section 3", share(REORDERED)),
    Metric::of(MetricName("duplicate_ratio", "duplicated"), RATIO, SOURCE, share(DUPLICATES)),
    Metric::of(
        MetricName("cost_sender_ns", "sender's CPU per frame"),
        UnitAndSense::TIME,
        SOURCE,
        Derivation::cost(Side::Initiator, SENT),
    ),
    Metric::of(
        MetricName("schedule_lag_ns_max", "schedule lag max"),
        UnitAndSense::TIME,
        SOURCE,
        Derivation::total(Side::Initiator, SCHEDULE_LAG_NS_MAX),
    )
    .unless(FLAT_OUT),
    Metric::of(
        MetricName("unsent_ratio", "unsent"),
        RATIO,
        SOURCE,
        Derivation::share((Side::Initiator, UNSENT), (Side::Initiator, INTENDED)),
    )
    .unless(FLAT_OUT),
];

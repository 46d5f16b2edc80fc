//! The metrics of probe tests.

use fathom_model::{
    Better, Derivation, Metric, Side, Unit,
    metric::{MetricName, UnitAndSense},
    names::{
        count::{DUPLICATES, HOPS, PATH_MTU, RECEIVED, REORDERED, SENT},
        distribution::ROUND_TRIP,
    },
};

/// Probes without any answer from their destination.
pub(super) const LOST: &str = "lost";
/// Probes answered after their timeout.
pub(super) const LATE: &str = "late";
/// Probes refused on the path by an ICMP error.
pub(super) const REFUSED: &str = "refused";
/// Ports by state.
pub(super) const OPEN: &str = "open";
pub(super) const CLOSED: &str = "closed";
pub(super) const FILTERED: &str = "filtered";
pub(super) const OTHER: &str = "other";

/// Datagrams in one packet, and those of them without an answer.
pub(super) const WHOLE_SENT: &str = "whole_sent";
pub(super) const WHOLE_LOST: &str = "whole_lost";
/// Datagrams in fragments or behind extension headers that an answer is due to, and those of them without one.
pub(super) const FRAGMENTED_SENT: &str = "fragmented_sent";
pub(super) const FRAGMENTED_LOST: &str = "fragmented_lost";
/// Answers to such datagrams whose target can be compared with that of their flow, and those from another one.
pub(super) const JUDGED: &str = "judged";
pub(super) const ELSEWHERE: &str = "elsewhere";
/// Answers to datagrams that no host may put together.
pub(super) const UNEXPECTED: &str = "unexpected";

const RATIO: UnitAndSense = UnitAndSense(Unit::Ratio, Better::Lower);
const PPS: UnitAndSense = UnitAndSense(Unit::FramesPerSec, Better::Higher);
const COUNT: UnitAndSense = UnitAndSense(Unit::Count, Better::Neither);
const SOURCE: &str = "docs/methods/probe.md";
const FRAGMENTS_SOURCE: &str = "docs/methods/fragments.md";
const HERE: Side = Side::Initiator;

const fn round_trip(name: &'static str, title: &'static str, q: f64) -> Metric {
    Metric::of(
        MetricName(name, title),
        UnitAndSense::TIME,
        "RFC 2681 section 2",
        Derivation::quantile(HERE, ROUND_TRIP, q),
    )
}

const fn share(name: &'static str, title: &'static str, (part, source): (&'static str, &'static str)) -> Metric {
    Metric::of(MetricName(name, title), RATIO, source, Derivation::proportion((HERE, part), (HERE, SENT)))
}

const LOSS: Metric = share("loss_ratio", "lost", (LOST, "RFC 6673 section 3"));

pub(super) const SERIES: &[Metric] = &[
    round_trip("rtt_ns_p50", "RTT p50", 0.5),
    round_trip("rtt_ns_p90", "RTT p90", 0.9),
    round_trip("rtt_ns_p99", "RTT p99", 0.99),
    round_trip("rtt_ns_max", "RTT max", 1.0),
    round_trip("rtt_ns_min", "RTT min", 0.0),
    LOSS,
    share("late_ratio", "late", (LATE, SOURCE)),
    share("refused_ratio", "refused on the way", (REFUSED, SOURCE)),
    Metric::of(
        MetricName("reordered_ratio", "answers reordered"),
        RATIO,
        "RFC 4737 section 3",
        Derivation::proportion((HERE, REORDERED), (HERE, RECEIVED)),
    ),
    Metric::of(
        MetricName("duplicates", "answers twice"),
        UnitAndSense(Unit::Count, Better::Lower),
        SOURCE,
        Derivation::total(HERE, DUPLICATES),
    ),
    Metric::of(MetricName("sent_per_sec", "sent"), PPS, SOURCE, Derivation::rate(HERE, SENT)),
];

pub(super) const MTU: &[Metric] = &[Metric::of(
    MetricName(PATH_MTU, "path MTU, bytes"),
    // MTUs are shown in bytes, never in KiB.
    UnitAndSense(Unit::Count, Better::Higher),
    "RFC 8899 section 5",
    Derivation::total(HERE, PATH_MTU),
)];

pub(super) const ROUTE: &[Metric] = &[
    Metric::of(MetricName(HOPS, "hops"), COUNT, SOURCE, Derivation::total(HERE, HOPS)),
    round_trip("rtt_ns_p50", "RTT p50 to the host", 0.5),
    LOSS,
];

pub(super) const PORTS: &[Metric] = &[
    Metric::of(MetricName("ports_open", "open"), COUNT, SOURCE, Derivation::total(HERE, OPEN)),
    Metric::of(MetricName("ports_closed", "closed"), COUNT, SOURCE, Derivation::total(HERE, CLOSED)),
    Metric::of(MetricName("ports_filtered", "filtered"), COUNT, SOURCE, Derivation::total(HERE, FILTERED)),
    Metric::of(MetricName("ports_other", "open or filtered"), COUNT, SOURCE, Derivation::total(HERE, OTHER)),
    round_trip("rtt_ns_p50", "RTT p50", 0.5),
];

const FEWER: UnitAndSense = UnitAndSense(Unit::Count, Better::Lower);

pub(super) const FRAGMENTS: &[Metric] = &[
    Metric::of(
        MetricName("fragmented_loss_ratio", "fragmented datagrams lost"),
        RATIO,
        FRAGMENTS_SOURCE,
        Derivation::proportion((HERE, FRAGMENTED_LOST), (HERE, FRAGMENTED_SENT)),
    ),
    Metric::of(
        MetricName("elsewhere_ratio", "at another target than their flow"),
        RATIO,
        FRAGMENTS_SOURCE,
        Derivation::proportion((HERE, ELSEWHERE), (HERE, JUDGED)),
    ),
    Metric::of(
        MetricName("whole_loss_ratio", "whole datagrams lost"),
        RATIO,
        FRAGMENTS_SOURCE,
        Derivation::proportion((HERE, WHOLE_LOST), (HERE, WHOLE_SENT)),
    ),
    Metric::of(
        MetricName("unexpected_answers", "answers to incomplete datagrams"),
        FEWER,
        FRAGMENTS_SOURCE,
        Derivation::total(HERE, UNEXPECTED),
    ),
    Metric::of(MetricName("duplicates", "answers twice"), FEWER, FRAGMENTS_SOURCE, Derivation::total(HERE, DUPLICATES)),
];

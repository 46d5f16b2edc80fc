//! The metrics of streams, one way and both ways.

use fathom_model::{
    Better, Derivation, Metric, Side, Unit,
    metric::{MetricName, UnitAndSense},
    names::{count, tcp},
};

use crate::tcp_sampler::BYTES_TRANSMITTED;

const SOURCE: &str = "docs/methods/tcp_stream.md";
/// Totals in units of 1024 bytes, so that a cost per unit is a readable number of nanoseconds.
pub(super) const KIBIBYTES_SENT: &str = "kibibytes_sent";
pub(super) const KIBIBYTES_RECEIVED: &str = "kibibytes_received";

pub(super) const fn one_way(sender: Side, receiver: Side) -> [Metric; 10] {
    let describes = UnitAndSense(Unit::Count, Better::Lower);
    [
        Metric::of(
            MetricName("throughput_bps", "goodput"),
            UnitAndSense(Unit::BitsPerSec, Better::Higher),
            SOURCE,
            Derivation::rate(receiver, count::BYTES_RECEIVED),
        ),
        Metric::of(
            MetricName("retransmitted_ratio", "retransmitted"),
            UnitAndSense(Unit::Ratio, Better::Lower),
            "RFC 6349 section 4.2",
            Derivation::share((sender, tcp::BYTES_RETRANS), (sender, BYTES_TRANSMITTED)),
        ),
        Metric::of(
            MetricName("retransmitted_segments", "segments sent again"),
            describes,
            SOURCE,
            Derivation::total(sender, tcp::RETRANS_TOTAL),
        ),
        Metric::of(
            MetricName("rtt_ns_p50", "RTT under load p50"),
            UnitAndSense::TIME,
            SOURCE,
            Derivation::quantile(sender, tcp::RTT_NS, 0.5),
        ),
        Metric::of(
            MetricName("rtt_ns_p99", "RTT under load p99"),
            UnitAndSense::TIME,
            SOURCE,
            Derivation::quantile(sender, tcp::RTT_NS, 0.99),
        ),
        Metric::of(
            MetricName("missing_ratio", "not received"),
            UnitAndSense(Unit::Ratio, Better::Lower),
            SOURCE,
            Derivation::missing((sender, count::BYTES_SENT), (receiver, count::BYTES_RECEIVED)),
        ),
        Metric::of(
            MetricName("cost_sender_ns_per_kib", "sender's CPU per KiB"),
            UnitAndSense::TIME,
            SOURCE,
            Derivation::cost(sender, KIBIBYTES_SENT),
        ),
        Metric::of(
            MetricName("cost_receiver_ns_per_kib", "receiver's CPU per KiB"),
            UnitAndSense::TIME,
            SOURCE,
            Derivation::cost(receiver, KIBIBYTES_RECEIVED),
        ),
        Metric::of(
            MetricName("host_cost_sender_ns_per_gib", "sending host's CPU per GiB"),
            UnitAndSense::TIME,
            SOURCE,
            Derivation::host_cost(sender, count::BYTES_SENT),
        ),
        Metric::of(
            MetricName("host_cost_receiver_ns_per_gib", "receiving host's CPU per GiB"),
            UnitAndSense::TIME,
            SOURCE,
            Derivation::host_cost(receiver, count::BYTES_RECEIVED),
        ),
    ]
}

/// Totals in units of 1024 bytes of both directions together.
pub(super) const KIBIBYTES_MOVED: &str = "kibibytes_moved";

const GOODPUT: UnitAndSense = UnitAndSense(Unit::BitsPerSec, Better::Higher);
const SHARE: UnitAndSense = UnitAndSense(Unit::Ratio, Better::Lower);

const fn own(name: MetricName, measure: UnitAndSense, from: Derivation) -> Metric {
    Metric::of(name, measure, SOURCE, from)
}

const fn retransmitted(name: MetricName, sender: Side) -> Metric {
    let from = Derivation::share((sender, tcp::BYTES_RETRANS), (sender, BYTES_TRANSMITTED));
    Metric::of(name, SHARE, "RFC 6349 section 4.2", from)
}

const fn missing(sender: Side, receiver: Side) -> Derivation {
    Derivation::missing((sender, count::BYTES_SENT), (receiver, count::BYTES_RECEIVED))
}

const HERE: Side = Side::Initiator;
const THERE: Side = Side::Responder;

/// Up is the initiator's sending direction, down the other.
pub(super) const BOTH: [Metric; 11] = [
    own(MetricName("throughput_bps", "goodput, both ways"), GOODPUT, Derivation::rate_of_both(count::BYTES_RECEIVED)),
    own(MetricName("throughput_bps_up", "goodput up"), GOODPUT, Derivation::rate(THERE, count::BYTES_RECEIVED)),
    own(MetricName("throughput_bps_down", "goodput down"), GOODPUT, Derivation::rate(HERE, count::BYTES_RECEIVED)),
    retransmitted(MetricName("retransmitted_ratio_up", "retransmitted up"), HERE),
    retransmitted(MetricName("retransmitted_ratio_down", "retransmitted down"), THERE),
    own(
        MetricName("rtt_ns_p99_up", "RTT under load p99, up"),
        UnitAndSense::TIME,
        Derivation::quantile(HERE, tcp::RTT_NS, 0.99),
    ),
    own(
        MetricName("rtt_ns_p99_down", "RTT under load p99, down"),
        UnitAndSense::TIME,
        Derivation::quantile(THERE, tcp::RTT_NS, 0.99),
    ),
    own(MetricName("missing_ratio_up", "not received up"), SHARE, missing(HERE, THERE)),
    own(MetricName("missing_ratio_down", "not received down"), SHARE, missing(THERE, HERE)),
    own(
        MetricName("cost_initiator_ns_per_kib", "initiator's CPU per KiB"),
        UnitAndSense::TIME,
        Derivation::cost(HERE, KIBIBYTES_MOVED),
    ),
    own(
        MetricName("cost_responder_ns_per_kib", "responder's CPU per KiB"),
        UnitAndSense::TIME,
        Derivation::cost(THERE, KIBIBYTES_MOVED),
    ),
];

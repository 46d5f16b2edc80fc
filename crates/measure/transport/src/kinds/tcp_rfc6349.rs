//! A stream with a given window, compared with the ideal of RFC 6349.
//!
//! The streams are those of `tcp_stream`; this adds the known properties of the path, and the distance of the stream from its
//! ideal. It does not measure the path: other tests do that before.

use fathom_engine::{CommandDoc, DataDirection, Error, Test, TestKind, TrialContext};
use fathom_model::{
    Better, Derivation, Endpoints, Layer, Metric, OptionDoc, Record, Role, Settings, Side, Unit, ValueKind,
    metric::{MetricName, UnitAndSense},
    names::{count, tcp},
    units::{BitsPerSec, Bytes, Nanos, approximate, percent, rounded},
};
use fathom_sys::policy::Policy;

use super::tcp_stream::{self, TcpStream};
use crate::{
    options::{self, BUFFER, CONGESTION, DEVICE, DSCP, FLOW_LABEL, FLOWS, MSS, PORT, SOURCE, STREAM_FLOWS},
    tcp_sampler::BYTES_TRANSMITTED,
};

/// One window of a sweep over windows, in one direction. The other direction is a kind of its own because its metrics come from
/// other sides.
pub(crate) struct TcpRfc6349 {
    name: &'static str,
    stream: &'static TcpStream,
    sender: Side,
    metrics: &'static [Metric],
}

/// The initiator sends.
pub(crate) const UP: TcpRfc6349 = TcpRfc6349 {
    name: "tcp_rfc6349",
    stream: &tcp_stream::UP,
    sender: Side::Initiator,
    metrics: &metrics(Side::Initiator, Side::Responder),
};
/// The responder sends.
pub(crate) const DOWN: TcpRfc6349 = TcpRfc6349 {
    name: "tcp_rfc6349_down",
    stream: &tcp_stream::DOWN,
    sender: Side::Responder,
    metrics: &metrics(Side::Responder, Side::Initiator),
};

const SOURCE_OF_OURS: &str = "docs/methods/rfc6349.md";

const BANDWIDTH: OptionDoc = OptionDoc {
    name: "bandwidth",
    value: ValueKind::BitRate,
    default: None,
    help: "bottleneck bandwidth of the path at the IP layer; default: `fathom tcp --test rfc6349` measures it",
};
const BASELINE_RTT: OptionDoc = OptionDoc {
    name: "baseline-rtt",
    value: ValueKind::Span,
    default: None,
    help: "round-trip time of the idle path; default: `fathom tcp --test rfc6349` measures it",
};

/// Totals of the sending side, from which the metrics are derived.
mod totals {
    pub(super) const PATH_MTU: &str = "path_mtu_bytes";
    pub(super) const WINDOW: &str = "window_bytes";
    pub(super) const RTT_MEAN: &str = "rtt_mean_ns";
    pub(super) const RTT_BASELINE: &str = "rtt_baseline_ns";
    /// The mean round-trip time minus the baseline.
    pub(super) const BUFFER_DELAY: &str = "buffer_delay_ns";
    /// From the start until all was received.
    pub(super) const TRANSFER: &str = "transfer_ns";
    /// The time of the same bytes at the bandwidth of the path.
    pub(super) const TRANSFER_IDEAL: &str = "transfer_ideal_ns";
    /// Their time with this window.
    pub(super) const TRANSFER_AT_WINDOW: &str = "transfer_at_window_ns";
    pub(super) const IDEAL_AT_WINDOW: &str = "ideal_at_window_bps";
}

const BITS: Unit = Unit::BitsPerSec;
const LESS: UnitAndSense = UnitAndSense(Unit::Ratio, Better::Lower);
const MORE: UnitAndSense = UnitAndSense(Unit::Ratio, Better::Higher);
const BYTES: UnitAndSense = UnitAndSense(Unit::Bytes, Better::Neither);

const fn metrics(sender: Side, receiver: Side) -> [Metric; 9] {
    use Derivation as By;
    [
        Metric::of(
            MetricName("throughput_bps", "goodput"),
            UnitAndSense(BITS, Better::Higher),
            "RFC 6349 section 3.3",
            By::rate(receiver, count::BYTES_RECEIVED),
        ),
        Metric::of(
            MetricName("ideal_bps", "ideal at this window"),
            UnitAndSense(BITS, Better::Neither),
            SOURCE_OF_OURS,
            By::total(sender, totals::IDEAL_AT_WINDOW),
        ),
        Metric::of(
            MetricName("of_ideal_ratio", "of the ideal at this window"),
            MORE,
            SOURCE_OF_OURS,
            By::quotient((sender, totals::TRANSFER_AT_WINDOW), (sender, totals::TRANSFER)),
        ),
        Metric::of(
            MetricName("transfer_time_ratio", "transfer time ratio"),
            LESS,
            "RFC 6349 section 4.1",
            By::quotient((sender, totals::TRANSFER), (sender, totals::TRANSFER_IDEAL)),
        ),
        Metric::of(
            MetricName("efficiency_ratio", "TCP efficiency"),
            MORE,
            "RFC 6349 section 4.2",
            By::missing((sender, BYTES_TRANSMITTED), (sender, tcp::BYTES_RETRANS)),
        ),
        Metric::of(
            MetricName("buffer_delay_ratio", "buffer delay"),
            LESS,
            "RFC 6349 section 4.3",
            By::quotient((sender, totals::BUFFER_DELAY), (sender, totals::RTT_BASELINE)),
        ),
        Metric::of(
            MetricName("rtt_ns_mean", "mean RTT"),
            UnitAndSense::TIME,
            SOURCE_OF_OURS,
            By::total(sender, totals::RTT_MEAN),
        ),
        Metric::of(
            MetricName("window_bytes", "window advertised"),
            BYTES,
            SOURCE_OF_OURS,
            By::total(sender, totals::WINDOW),
        ),
        Metric::of(
            MetricName("path_mtu_bytes", "path MTU"),
            BYTES,
            SOURCE_OF_OURS,
            By::total(sender, totals::PATH_MTU),
        ),
    ]
}

/// The known properties of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
struct KnownPath {
    bandwidth: BitsPerSec,
    baseline: Nanos,
}

impl KnownPath {
    fn of(settings: &Settings) -> Result<Self, Error> {
        let bandwidth = settings.bit_rate(BANDWIDTH.name).filter(|rate| rate.get() > 0.0);
        let baseline = settings.span(BASELINE_RTT.name).filter(|span| *span > Nanos::ZERO);
        let missing = |option: &OptionDoc, expected| {
            let given = settings.text(option.name).unwrap_or_else(|| "nothing".to_owned());
            options::invalid_value(option.name, expected, &given)
        };
        Ok(Self {
            bandwidth: bandwidth.ok_or_else(|| missing(&BANDWIDTH, "the bandwidth of the path, such as 100Mbit"))?,
            baseline: baseline.ok_or_else(|| missing(&BASELINE_RTT, "the idle round-trip time, such as 40ms"))?,
        })
    }

    /// The bandwidth-delay product: the bytes in flight when the path is full and its queue is empty.
    fn bdp(&self) -> f64 {
        self.bandwidth.get() / 8.0 * self.baseline.as_secs_f64()
    }
}

impl TestKind for TcpRfc6349 {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        match self.sender {
            Side::Initiator => "a TCP stream with a given window, compared with the RFC 6349 maximum of the path",
            Side::Responder => "the same from the responder, compared with the RFC 6349 maximum of the path back",
        }
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        let flows = settings.count(FLOWS.name).unwrap_or(1);
        let way = if self.sender == Side::Responder { "down, " } else { "" };
        let window = settings.size(BUFFER.name).map(|size| Bytes(size.0.saturating_mul(flows)));
        match (window, KnownPath::of(settings)) {
            (Some(window), Ok(path)) => {
                format!("{way}window {window}, {} of the BDP", percent(approximate(window.0) / path.bdp()))
            }
            (Some(window), Err(_)) => format!("{way}window {window}"),
            (None, _) => format!("{way}window chosen by the kernel"),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[BANDWIDTH, BASELINE_RTT, BUFFER, STREAM_FLOWS, CONGESTION, MSS, DSCP, FLOW_LABEL, SOURCE, DEVICE, PORT]
    }

    fn metrics(&self) -> &'static [Metric] {
        self.metrics
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        KnownPath::of(settings)?;
        self.stream.check(settings)
    }

    fn command(&self) -> Option<CommandDoc> {
        let is_up = self.sender == Side::Initiator;
        let direction = if is_up { DataDirection::Up } else { DataDirection::Down };
        Some(CommandDoc::test("rfc6349").direction(direction))
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        let path = KnownPath::of(&role.settings)?;
        Ok(Box::new(Rfc6349Test { stream: self.stream.prepare(role, policy)?, path, sender: self.sender }))
    }
}

struct Rfc6349Test {
    stream: Box<dyn Test>,
    path: KnownPath,
    sender: Side,
}

impl Test for Rfc6349Test {
    fn endpoints(&self) -> Endpoints {
        self.stream.endpoints()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let mut record = self.stream.run(context)?;
        if record.side == self.sender {
            add_path_totals(&mut record, self.path);
        }
        Ok(record)
    }
}

/// Adds to a sender's record the comparison with what the path could carry.
fn add_path_totals(record: &mut Record, path: KnownPath) {
    let last = |name: &str| -> Vec<u64> {
        let flows = record.flows.iter();
        flows.filter_map(|flow| flow.samples.iter().rev().find_map(|sample| sample.values.get(name).copied())).collect()
    };
    let widest = |name: &str| -> u64 {
        let of_flow = |flow: &fathom_model::record::Flow| {
            flow.samples.iter().filter_map(|sample| sample.values.get(name).copied()).max()
        };
        record.flows.iter().filter_map(of_flow).sum()
    };
    let (mtu, mss) = (last(tcp::PMTU_BYTES).into_iter().min(), last(tcp::SND_MSS_BYTES).into_iter().min());
    // The payload per packet; without TCP_INFO it is unknown, and no ideal is reported.
    let (Some(mtu), Some(mss)) = (mtu, mss) else { return };
    let window = widest(tcp::SND_WND_BYTES);
    let ideal = path.bandwidth.get() * approximate(mss) / approximate(mtu);
    let at_window = ideal.min(approximate(window) * 8.0 / path.baseline.as_secs_f64());
    let bits = approximate(record.totals.get(count::BYTES_SENT).copied().unwrap_or(0)) * 8.0;
    let takes = |bps: f64| rounded(bits / bps * 1e9);
    let mean = record.distributions.get(tcp::RTT_NS).and_then(fathom_model::Histogram::mean).map(rounded);
    let transfer = record.timeline.end_ns.last().map(|end| end.0);
    let mut told =
        vec![(totals::PATH_MTU, mtu), (totals::RTT_BASELINE, path.baseline.0), (totals::TRANSFER_IDEAL, takes(ideal))];
    if window > 0 {
        told.extend([
            (totals::WINDOW, window),
            (totals::IDEAL_AT_WINDOW, rounded(at_window)),
            (totals::TRANSFER_AT_WINDOW, takes(at_window)),
        ]);
    }
    told.extend(transfer.map(|span| (totals::TRANSFER, span)));
    if let Some(mean) = mean {
        told.extend([(totals::RTT_MEAN, mean), (totals::BUFFER_DELAY, mean.saturating_sub(path.baseline.0))]);
    }
    record.totals.extend(told.into_iter().map(|(name, value)| (name.to_owned(), value)));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fathom_model::{
        Histogram, Timeline,
        record::{Flow, FlowSample},
    };

    use super::*;

    #[test]
    fn a_path_that_is_not_known_is_asked_for() {
        let of = |settings: Settings| KnownPath::of(&settings).unwrap_err().to_string();
        assert!(of(Settings::default()).contains("bandwidth"));
        let half = Settings::default().with("bandwidth", "100Mbit/s");
        assert!(of(half.clone()).contains("baseline-rtt"));
        let path = KnownPath::of(&half.with("baseline-rtt", "40ms")).unwrap();
        assert!((path.bdp() - 500_000.0).abs() < 1.0);
    }

    /// The record of a sender that took 12 s for bytes that fill 100 Mbit/s for 10 s, in packets of 1500 bytes.
    fn record(window: u64) -> Record {
        let values = [
            (tcp::PMTU_BYTES, 1500),
            (tcp::SND_MSS_BYTES, 1448),
            (tcp::SND_WND_BYTES, window),
            (tcp::BYTES_SENT, 121_000_000),
            (tcp::BYTES_RETRANS, 605_000),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        let sample = FlowSample { at_ns: Nanos::from_secs(12), values };
        let mut rtt = Histogram::new();
        rtt.record(50_000_000);
        rtt.record(70_000_000);
        Record {
            measured_ns: (Nanos::ZERO, Nanos::from_secs(12)),
            timeline: Timeline { end_ns: vec![Nanos::from_secs(6), Nanos::from_secs(12)], counters: BTreeMap::new() },
            totals: [(count::BYTES_SENT.to_owned(), 120_666_667)].into(),
            distributions: [(tcp::RTT_NS.to_owned(), rtt)].into(),
            flows: vec![Flow { id: "a-b".to_owned(), samples: vec![sample] }],
            ..Record::empty(Side::Initiator)
        }
    }

    fn judged(window: u64) -> BTreeMap<String, u64> {
        let path = KnownPath { bandwidth: BitsPerSec::new(100e6).unwrap(), baseline: Nanos::from_millis(40) };
        let mut record = record(window);
        add_path_totals(&mut record, path);
        record.totals
    }

    /// The quotient of two totals.
    fn ratio(totals: &BTreeMap<String, u64>, part: &str, whole: &str) -> f64 {
        approximate(totals[part]) / approximate(totals[whole])
    }

    #[track_caller]
    fn assert_near(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 1e-3, "{value} where {expected} was computed by hand");
    }

    #[test]
    fn the_metrics_of_a_window_that_fills_the_path_are_those_computed_by_hand() {
        // 100 Mbit/s of packets carry 96.53 Mbit/s of payload (1448 of 1500), which takes 10 s; 500 kB are the whole
        // bandwidth-delay product.
        let totals = judged(500_000);
        assert_near(approximate(totals[totals::IDEAL_AT_WINDOW]), 96_533_333.0);
        assert_near(ratio(&totals, totals::TRANSFER, totals::TRANSFER_IDEAL), 1.2);
        assert_near(ratio(&totals, totals::TRANSFER_AT_WINDOW, totals::TRANSFER), 10.0 / 12.0);
        // 60 ms on average are half more than 40 ms.
        assert_near(ratio(&totals, totals::BUFFER_DELAY, totals::RTT_BASELINE), 0.5);
        assert_eq!(totals[totals::PATH_MTU], 1500);
    }

    #[test]
    fn a_window_smaller_than_the_path_bounds_the_ideal_of_its_own_and_not_that_of_the_path() {
        // 250 kB every 40 ms are 50 Mbit/s, at which the transfer takes 19.307 s.
        let totals = judged(250_000);
        assert_eq!(totals[totals::IDEAL_AT_WINDOW], 50_000_000);
        assert_near(approximate(totals[totals::TRANSFER_AT_WINDOW]), 19.306_667e9);
        assert_near(ratio(&totals, totals::TRANSFER, totals::TRANSFER_IDEAL), 1.2);
    }

    #[test]
    fn a_round_trip_below_the_baseline_is_no_buffer_delay() {
        let path = KnownPath { bandwidth: BitsPerSec::new(100e6).unwrap(), baseline: Nanos::from_millis(80) };
        let mut record = record(250_000);
        add_path_totals(&mut record, path);
        assert_eq!(record.totals[totals::BUFFER_DELAY], 0);
    }

    #[test]
    fn without_what_the_kernel_says_of_the_connection_no_ideal_is_told() {
        let path = KnownPath { bandwidth: BitsPerSec::new(100e6).unwrap(), baseline: Nanos::from_millis(40) };
        let mut record = Record { flows: Vec::new(), ..record(250_000) };
        add_path_totals(&mut record, path);
        assert_eq!(record.totals.keys().collect::<Vec<_>>(), [count::BYTES_SENT]);
    }
}

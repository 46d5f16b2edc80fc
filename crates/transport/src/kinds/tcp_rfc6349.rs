//! A stream with a window of its own, judged by what RFC 6349 says it could be.
//!
//! Streams are those of `tcp_stream`; what is added is what the path is known to be, and how far from it the stream came. It does
//! not find out what the path is: that is done before, by other tests.

use fathom_engine::{Error, Session, Test, TestKind};
use fathom_model::{
    Better, Derivation, Endpoints, Layer, Metric, OptionDoc, Record, Role, Settings, Side, Unit, ValueKind,
    metric::{Measure, Named},
    names::{count, tcp},
    units::{BitsPerSec, Bytes, Nanos, approximate, percent, rounded},
};

use super::{LATENCY, tcp_stream};
use crate::{
    flows::BYTES_TRANSMITTED,
    options::{self, BUFFER, CONGESTION, DEVICE, DSCP, FLOW_LABEL, FLOWS, MSS, PORT, SOURCE, STREAM_FLOWS},
};

/// One window of a walk through windows.
pub(crate) struct TcpRfc6349;

const NAME: &str = "tcp_rfc6349";
const SOURCE_OF_OURS: &str = "docs/methods/rfc6349.md";

const BANDWIDTH: OptionDoc = OptionDoc {
    name: "bandwidth",
    value: ValueKind::BitRate,
    default: None,
    help: "bottleneck bandwidth of the path, of IP packets; `fathom tcp --test rfc6349` measures it when it is not given",
};
const BASELINE_RTT: OptionDoc = OptionDoc {
    name: "baseline-rtt",
    value: ValueKind::Span,
    default: None,
    help: "round-trip time of the idle path; `fathom tcp --test rfc6349` measures it when it is not given",
};

/// Totals of the sending side, from which the metrics follow.
mod totals {
    pub(super) const PATH_MTU: &str = "path_mtu_bytes";
    pub(super) const WINDOW: &str = "window_bytes";
    pub(super) const RTT_MEAN: &str = "rtt_mean_ns";
    pub(super) const RTT_BASELINE: &str = "rtt_baseline_ns";
    /// What the mean round-trip time has more than the baseline.
    pub(super) const BUFFER_DELAY: &str = "buffer_delay_ns";
    /// From the start until all was received.
    pub(super) const TRANSFER: &str = "transfer_ns";
    /// What the same bytes take at the bandwidth of the path.
    pub(super) const TRANSFER_IDEAL: &str = "transfer_ideal_ns";
    /// What they take with this window.
    pub(super) const TRANSFER_AT_WINDOW: &str = "transfer_at_window_ns";
    pub(super) const IDEAL_AT_WINDOW: &str = "ideal_at_window_bps";
}

const HERE: Side = Side::Initiator;
const THERE: Side = Side::Responder;
const LESS: Measure = Measure(Unit::Ratio, Better::Lower);
const MORE: Measure = Measure(Unit::Ratio, Better::Higher);

const fn total(name: Named, measure: Measure, counter: &'static str) -> Metric {
    Metric::of(name, measure, SOURCE_OF_OURS, Derivation::total(HERE, counter))
}

const METRICS: &[Metric] = &[
    Metric::of(
        Named("throughput_bps", "goodput"),
        Measure(Unit::BitsPerSec, Better::Higher),
        "RFC 6349 section 3.3",
        Derivation::rate(THERE, count::BYTES_RECEIVED),
    ),
    total(
        Named("ideal_bps", "ideal at this window"),
        Measure(Unit::BitsPerSec, Better::Neither),
        totals::IDEAL_AT_WINDOW,
    ),
    Metric::of(
        Named("of_ideal_ratio", "of the ideal at this window"),
        MORE,
        SOURCE_OF_OURS,
        Derivation::quotient((HERE, totals::TRANSFER_AT_WINDOW), (HERE, totals::TRANSFER)),
    ),
    Metric::of(
        Named("transfer_time_ratio", "transfer time ratio"),
        LESS,
        "RFC 6349 section 4.1",
        Derivation::quotient((HERE, totals::TRANSFER), (HERE, totals::TRANSFER_IDEAL)),
    ),
    Metric::of(
        Named("efficiency_ratio", "TCP efficiency"),
        MORE,
        "RFC 6349 section 4.2",
        Derivation::missing((HERE, BYTES_TRANSMITTED), (HERE, tcp::BYTES_RETRANS)),
    ),
    Metric::of(
        Named("buffer_delay_ratio", "buffer delay"),
        LESS,
        "RFC 6349 section 4.3",
        Derivation::quotient((HERE, totals::BUFFER_DELAY), (HERE, totals::RTT_BASELINE)),
    ),
    total(Named("rtt_ns_mean", "mean RTT"), LATENCY, totals::RTT_MEAN),
    total(Named("window_bytes", "window advertised"), Measure(Unit::Bytes, Better::Neither), totals::WINDOW),
    total(Named("path_mtu_bytes", "path MTU"), Measure(Unit::Bytes, Better::Neither), totals::PATH_MTU),
];

/// What a path is known to be.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Path {
    bandwidth: BitsPerSec,
    baseline: Nanos,
}

impl Path {
    fn of(settings: &Settings) -> Result<Self, Error> {
        let bandwidth = settings.bit_rate(BANDWIDTH.name).filter(|rate| rate.get() > 0.0);
        let baseline = settings.span(BASELINE_RTT.name).filter(|span| *span > Nanos::ZERO);
        let missing = |option: &OptionDoc, expected| {
            let given = settings.text(option.name).unwrap_or_else(|| "nothing".to_owned());
            options::not_allowed(option.name, expected, &given)
        };
        Ok(Self {
            bandwidth: bandwidth.ok_or_else(|| missing(&BANDWIDTH, "the bandwidth of the path, such as 100Mbit"))?,
            baseline: baseline.ok_or_else(|| missing(&BASELINE_RTT, "the idle round-trip time, such as 40ms"))?,
        })
    }

    /// The bytes that are under way when the path is full and its queue is empty.
    fn bdp(&self) -> f64 {
        self.bandwidth.get() / 8.0 * self.baseline.as_secs_f64()
    }
}

impl TestKind for TcpRfc6349 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "a TCP stream with a given window, against what RFC 6349 says the path could carry"
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        let flows = settings.count(FLOWS.name).unwrap_or(1);
        let window = settings.size(BUFFER.name).map(|size| Bytes(size.0.saturating_mul(flows)));
        match (window, Path::of(settings)) {
            (Some(window), Ok(path)) => {
                format!("window {window}, {} of the BDP", percent(approximate(window.0) / path.bdp()))
            }
            (Some(window), Err(_)) => format!("window {window}"),
            (None, _) => "window chosen by the kernel".to_owned(),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[BANDWIDTH, BASELINE_RTT, BUFFER, STREAM_FLOWS, CONGESTION, MSS, DSCP, FLOW_LABEL, SOURCE, DEVICE, PORT]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        let path = Path::of(&role.settings)?;
        Ok(Box::new(Judged { stream: tcp_stream::UP.prepare(role)?, path }))
    }
}

struct Judged {
    stream: Box<dyn Test>,
    path: Path,
}

impl Test for Judged {
    fn endpoints(&self) -> Endpoints {
        self.stream.endpoints()
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let mut record = self.stream.run(session)?;
        if record.side == HERE {
            judge(&mut record, self.path);
        }
        Ok(record)
    }
}

/// Adds to what a sender recorded how far it came from what the path could carry.
fn judge(record: &mut Record, path: Path) {
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
    // What of a packet is payload; without TCP_INFO nothing is known of it, and no ideal is told.
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
    use super::*;

    #[test]
    fn a_path_that_is_not_known_is_asked_for() {
        let of = |settings: Settings| Path::of(&settings).unwrap_err().to_string();
        assert!(of(Settings::default()).contains("bandwidth"));
        let half = Settings::default().with("bandwidth", "100Mbit/s");
        assert!(of(half.clone()).contains("baseline-rtt"));
        let path = Path::of(&half.with("baseline-rtt", "40ms")).unwrap();
        assert!((path.bdp() - 500_000.0).abs() < 1.0);
    }
}

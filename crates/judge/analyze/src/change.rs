//! Changes of one option of a test that show whether a cause is one.
//!
//! A change is cheap and harmless: it concerns only the test's own traffic to the same destination. The cause that it belongs to is
//! stated by the rule that finds the cause (`FindingRule::change`).

use fathom_model::{
    Better, Derivation, InterventionAim, Layer, Metric, Summary, TestRun, Unit,
    units::{BitsPerSec, Bytes, PerSec},
};

use crate::{cores::CoreLoad, evidence::TestEvidence, summaries::main_rate};

/// All options that a change can be of. None of them names a destination, a file or a program.
pub const CHANGEABLE_OPTIONS: [&str; 9] =
    ["buffer", "congestion", "connections", "flows", "mss", "pps", "rate", "size", "threads"];

/// A rate has to grow by this share to count. Less is the work of a lucky core or of a warm cache.
const RATE_EFFECT_MIN: f64 = 0.2;
/// A loss or a time has to fall by this share to count: the cause has to explain most of it.
const FALL_EFFECT_MIN: f64 = 0.5;
/// A lower rate stays this far below what arrived, so that a limit at that rate drops nothing.
const BELOW_DELIVERED: f64 = 0.8;
/// A lower rate is at most this share of the asked one.
const BELOW_ASKED: f64 = 0.5;
/// A smaller loss comes and goes by itself.
const LOSS_MIN: f64 = 1e-3;
/// A larger buffer for datagrams has at least this size: 33 ms at 1 Gbit/s.
const DATAGRAM_BUFFER_MIN: Bytes = Bytes(4 << 20);
/// A larger buffer for a stream has at least this size: on a path of 10 Mbit/s, a full one still empties within a second.
const STREAM_BUFFER_MIN: Bytes = Bytes(1 << 20);
/// A larger buffer has at most this size, so that a test with many sockets does not take the memory of its host.
const BUFFER_MAX: Bytes = Bytes(64 << 20);
/// A buffer of this size holds one super-segment at a time, so that no queue can grow from it.
const BUFFER_LEAST: Bytes = Bytes(16 << 10);
/// Every path carries packets of this size (RFC 791 asks for 576 bytes), with the headers of IPv6 and UDP or TCP.
const SIZE_SAFE: Bytes = Bytes(500);
/// More flows than this are no single change any more.
const FLOWS_MAX: u64 = 1024;
/// Cores that are busy for less than this share of the time can take over work.
const FREE: f64 = 0.5;

/// One option with another value, and the metric that shows the effect.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// One of [`CHANGEABLE_OPTIONS`].
    pub option: &'static str,
    /// The other value, in the exact form of the option.
    pub to: String,
    /// The name of the metric.
    pub metric: String,
    /// The smallest relative improvement that counts.
    pub effect_min: f64,
    /// What the improvement, or none, means for the cause.
    pub aim: InterventionAim,
}

impl Change {
    fn of(option: &'static str, to: String, metric: &Metric) -> Self {
        let effect_min = if metric.better == Better::Higher { RATE_EFFECT_MIN } else { FALL_EFFECT_MIN };
        Self { option, to, metric: metric.name.to_string(), effect_min, aim: InterventionAim::Verdict }
    }

    /// Returns the change as one whose effect proves the cause, while no effect does not refute it.
    pub(crate) fn without_refutation(self) -> Self {
        Self { aim: InterventionAim::ProofOnly, ..self }
    }

    /// Returns the change as one that tells more about the test, whatever its cause is.
    pub(crate) fn into_clue(self) -> Self {
        Self { aim: InterventionAim::Clue, ..self }
    }
}

/// Returns the loss of a test that lost enough for a proof.
fn loss(test: &TestRun) -> Option<&Summary> {
    let is_loss = |summary: &&Summary| matches!(summary.metric.from, Derivation::Missing { .. });
    test.summaries.iter().filter(is_loss).find(|summary| summary.value.is_some_and(|value| value >= LOSS_MIN))
}

/// Returns a metric by its name, if it has a value.
fn metric_of<'a>(test: &'a TestRun, name: &str) -> Option<&'a Metric> {
    test.summaries.iter().find(|summary| summary.metric.name == name && summary.value.is_some()).map(|s| &s.metric)
}

/// A larger receive buffer against the loss at a datagram socket.
pub(crate) fn larger_datagram_buffer(seen: &TestEvidence<'_>) -> Option<Change> {
    Some(Change::of("buffer", buffer_beyond(seen, DATAGRAM_BUFFER_MIN)?.exact(), &loss(seen.test)?.metric))
}

/// Larger socket buffers for the rate of a stream, at least twice the largest that this `sysctl` of a host lets the kernel choose.
pub(crate) fn larger_stream_buffer(seen: &TestEvidence<'_>, host: &str, sysctl: &str) -> Option<Change> {
    let chosen = seen.environment(host).and_then(|facts| facts.get("sysctl", sysctl));
    let most = chosen.and_then(|sizes| sizes.split_whitespace().nth(2)?.parse().ok()).unwrap_or(0u64);
    let least = Bytes(most.saturating_mul(2)).max(STREAM_BUFFER_MIN);
    Some(Change::of("buffer", buffer_beyond(seen, least)?.exact(), &main_rate(seen.test)?.metric))
}

/// Returns four times the size that the test asks for, but at least this much.
fn buffer_beyond(seen: &TestEvidence<'_>, least: Bytes) -> Option<Bytes> {
    let asked = seen.test.options.size("buffer").unwrap_or(Bytes(0));
    let size = asked.0.saturating_mul(4).max(least.0).min(BUFFER_MAX.0);
    (size > asked.0).then_some(Bytes(size))
}

/// The smallest useful socket buffers against a queue that a stream makes, which the median of a latency shows.
pub(crate) fn smaller_stream_buffer(seen: &TestEvidence<'_>) -> Option<Change> {
    let asked = seen.test.options.size("buffer");
    let metric = metric_of(seen.test, "latency_ns_p50")?;
    asked.is_none_or(|asked| asked > BUFFER_LEAST).then(|| Change::of("buffer", BUFFER_LEAST.exact(), metric))
}

/// A rate that is surely below what got through, against a loss of datagrams or frames.
pub(crate) fn lower_rate(seen: &TestEvidence<'_>) -> Option<Change> {
    if !matches!(seen.test.layer, Layer::Udp | Layer::Frames) {
        return None;
    }
    let (option, rate) = rate_below_delivered(seen)?;
    Some(Change::of(option, rate, &loss(seen.test)?.metric))
}

/// A rate of datagrams below what got through, against what this metric shows.
pub(crate) fn lower_rate_against(seen: &TestEvidence<'_>, metric: &str) -> Option<Change> {
    let metric = metric_of(seen.test, metric).filter(|_| seen.test.layer == Layer::Udp)?;
    let (option, rate) = rate_below_delivered(seen)?;
    Some(Change::of(option, rate, metric))
}

/// A rate of a TCP stream below what got through, against what this metric shows.
pub(crate) fn lower_stream_rate(seen: &TestEvidence<'_>, metric: &str) -> Option<Change> {
    let metric = metric_of(seen.test, metric).filter(|_| seen.test.layer == Layer::Tcp)?;
    let (option, rate) = rate_below_delivered(seen)?;
    Some(Change::of(option, rate, metric))
}

/// Returns the option that sets the rate of a test, with a value below what arrived and well below what was asked.
fn rate_below_delivered(seen: &TestEvidence<'_>) -> Option<(&'static str, String)> {
    let options = &seen.test.options;
    let of_units = |pps: Option<PerSec>| {
        let delivered = delivered(seen.test, Unit::FramesPerSec)? * BELOW_DELIVERED;
        let asked = pps.map_or(f64::INFINITY, |pps| pps.get() * BELOW_ASKED);
        Some(PerSec::new(two_digits(delivered.min(asked))?)?.exact())
    };
    if let Some(pps) = options.rate("pps") {
        return Some(("pps", of_units(Some(pps))?));
    }
    if seen.test.layer == Layer::Frames {
        return Some(("rate", of_units(options.rate("rate"))?));
    }
    let asked = options.bit_rate("rate").map_or(f64::INFINITY, |rate| rate.get() * BELOW_ASKED);
    let delivered = delivered(seen.test, Unit::BitsPerSec)? * BELOW_DELIVERED;
    Some(("rate", BitsPerSec::new(two_digits(delivered.min(asked))?)?.exact()))
}

/// Returns the first rate of a test in this unit, which is the one that arrived.
fn delivered(test: &TestRun, unit: Unit) -> Option<f64> {
    let is_rate = |metric: &Metric| matches!(metric.from, Derivation::Rate { .. }) && metric.unit == unit;
    test.summaries.iter().find(|summary| is_rate(&summary.metric))?.value.filter(|value| *value > 0.0)
}

/// Rounds down to two digits, for an option that people can read. `None` for less than one.
fn two_digits(value: f64) -> Option<f64> {
    let step = 10f64.powf((value.log10().floor() - 1.0).max(0.0));
    Some((value / step).floor() * step).filter(|value| *value >= 1.0)
}

/// Twice as many flows or connections, for the rate of them all.
pub(crate) fn more_flows(seen: &TestEvidence<'_>) -> Option<Change> {
    let options = &seen.test.options;
    let (option, n) = ["flows", "connections"].into_iter().find_map(|name| Some((name, options.count(name)?)))?;
    (n <= FLOWS_MAX / 2).then_some(())?;
    Some(Change::of(option, (n * 2).to_string(), &main_rate(seen.test)?.metric))
}

/// Twice as many flows for a stream, or threads for a load, if the host of the full core has another one that is idle.
pub(crate) fn another_core(seen: &TestEvidence<'_>, host: &str) -> Option<Change> {
    // The ends of a test on one machine take each other's cores, and interrupts follow the queue and not the thread.
    let is_free = |core: &CoreLoad| core.busy() < FREE;
    if seen.is_one_machine() || !seen.cores(host).iter().any(is_free) {
        return None;
    }
    let metric = &main_rate(seen.test)?.metric;
    if let Some(n) = seen.test.options.count("threads") {
        return Some(Change::of("threads", (n * 2).to_string(), metric));
    }
    if seen.test.layer == Layer::Tcp { more_flows(seen) } else { None }
}

/// A congestion control that does not take each loss for a full path, where the sender has it and does not use it.
pub(crate) fn loss_tolerant_control(seen: &TestEvidence<'_>, sender: &str) -> Option<Change> {
    const TOLERANT: &str = "bbr";
    let fact = |name: &str| seen.environment(sender)?.get("tcp", name);
    let is_there = fact("congestion_control_available")?.split_whitespace().any(|name| name == TOLERANT);
    let is_other = !seen.congestion_control(sender)?.starts_with(TOLERANT) && seen.test.layer == Layer::Tcp;
    (is_there && is_other).then_some(())?;
    Some(Change::of("congestion", TOLERANT.to_owned(), &main_rate(seen.test)?.metric))
}

/// Datagrams that pass every path, against a loss of large ones.
pub(crate) fn smaller_datagrams(seen: &TestEvidence<'_>) -> Option<Change> {
    let size = seen.test.options.size("size").filter(|size| *size > SIZE_SAFE && seen.test.layer == Layer::Udp);
    size.filter(|_| seen.test.options.text("mix").is_none())?;
    Some(Change::of("size", SIZE_SAFE.exact(), &loss(seen.test)?.metric))
}

/// Segments that pass every path, for a stream of which nothing got through.
pub(crate) fn smaller_segments(seen: &TestEvidence<'_>) -> Option<Change> {
    let is_larger = seen.test.options.count("mss").is_none_or(|mss| mss > SIZE_SAFE.0);
    (is_larger && seen.test.layer == Layer::Tcp).then_some(())?;
    let rate = seen.test.summaries.iter().find(|summary| matches!(summary.metric.from, Derivation::Rate { .. }))?;
    Some(Change::of("mss", SIZE_SAFE.0.to_string(), &rate.metric))
}

#[cfg(test)]
mod tests {
    use fathom_model::units::{approximate, rounded};

    use super::*;

    #[test]
    fn a_lower_rate_is_one_that_people_can_read() {
        let of = |value: f64| two_digits(value).map(rounded);
        assert_eq!((of(12_664_123.0), of(38.7), of(3.9)), (Some(12_000_000), Some(38), Some(3)));
        assert_eq!(of(0.4), None);
        assert!(approximate(DATAGRAM_BUFFER_MIN.0) * 8.0 / 1e9 > 0.033 && STREAM_BUFFER_MIN.0 * 8 < 10_000_000);
    }
}

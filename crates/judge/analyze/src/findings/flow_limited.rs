//! Connections waited for a buffer: the peer's receive window or their own send buffer.

use std::collections::BTreeMap;

use fathom_model::{
    Evidence, Finding, FlowSummary, NextStep, Severity, Side,
    names::tcp,
    record::FlowSample,
    units::{BitsPerSec, Bytes, Nanos, approximate, percent, ratio},
};

use fathom_statistics::mean;

use super::{FindingRule, rule::DEVICE_CORE_FULL};
use crate::{
    change::{Change, larger_stream_buffer},
    cores::CoreLoad,
    evidence::{TestEvidence, ratio_evidence, text_evidence},
    flows::{HARDLY, RMEM_USUAL, SHRINKS, has_standing_queue, is_mostly_queue, judged_samples, shrunk_windows},
    gap,
    resent::path_overflows,
};

/// If connections wait for a buffer for more than this share of their busy time, the stream is held back.
pub(crate) const HOLDS_BACK: f64 = 0.2;
/// A rate of at least this share of one size per round trip is bound by it: the round trip varies, and a part of a buffer is overhead.
const BOUND: f64 = 0.4;
/// With less than this share of its congestion window under way, a sender is not bound by it.
const ROOM: f64 = 0.8;
/// The share of a send buffer that a sender has under way when it may write again (`sk_stream_write_space`, net/core/stream.c). A rate of as
/// much per round trip is wholly the buffer's.
const REFILLED_FROM: f64 = 2.0 / 3.0;
/// The sizes of receive and send buffers that the kernel chooses from.
const RMEM: &str = "net.ipv4.tcp_rmem";
const WMEM: &str = "net.ipv4.tcp_wmem";
/// The kernel's default of `tcp_wmem`: least, usual, most.
const WMEM_USUAL: [u64; 3] = [4096, 16_384, 4 << 20];
/// A setting without which a window stays small, whatever the buffer may hold.
const MODERATE_RCVBUF: &str = "net.ipv4.tcp_moderate_rcvbuf";
/// A window is about half of its buffer. One that is this many times smaller is not held by the largest buffer.
const FAR_BELOW: u64 = 8;
/// A window that is as large as it can be without window scaling: the field of the header has 16 bits, and some kernels use 15 of them
/// (`tcp_workaround_signed_windows`, Documentation/networking/ip-sysctl.rst). A receiver may leave out a segment.
const UNSCALED: std::ops::RangeInclusive<u64> = 30_000..=65_535;
/// With fewer samples, a window that was small for once tells nothing.
const SAMPLES_MIN: usize = 8;
/// A core of a machine that may have both ends, and is as busy, may be what a reader waits for.
const NEARLY_FULL: f64 = 0.9;
/// Connections that were busy for less than this are ignored.
const BUSY_MIN: Nanos = Nanos::from_millis(100);

/// The peer's window was closed.
pub(crate) struct ReceiveWindow;

impl FindingRule for ReceiveWindow {
    fn id(&self) -> &'static str {
        "receive-window"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper", "cpu-quota", "tcp-memory", "latency-under-load", "acks-lost", DEVICE_CORE_FULL]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        // A window stays closed if the ACK that opens it is lost, but none gets small by that.
        cause == "acks-lost" && matches!(window_limit(seen), Some(WindowLimit::Small { .. }))
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let finding = window_limit(seen).and_then(|limit| match limit {
            WindowLimit::SlowReader(closed) => Some(self.slow_reader(seen, &closed)),
            WindowLimit::Small { sender, receiver, window } => {
                Some(self.small_window(seen, (sender, receiver), &window))
            }
            WindowLimit::Closed(closed) => Some(self.closed(seen, &closed)),
            WindowLimit::Unscaled(_) => None,
        });
        finding.into_iter().collect()
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        match window_limit(seen)? {
            // It fills a larger buffer as well.
            WindowLimit::SlowReader(_) | WindowLimit::Unscaled(_) => None,
            WindowLimit::Small { receiver, .. } => larger_stream_buffer(seen, receiver?, RMEM),
            // The receiver may read too slowly instead, for which no buffer is large enough.
            WindowLimit::Closed(closed) => {
                larger_stream_buffer(seen, closed.receiver?, RMEM).map(Change::without_refutation)
            }
        }
    }
}

impl ReceiveWindow {
    /// Reports a program that reads too slowly: its buffer was emptied and filled again all the time, so that a larger one fills as well.
    fn slow_reader(&self, seen: &TestEvidence<'_>, closed: &ClosedWindow<'_>) -> Finding {
        let reader = closed.receiver.map_or_else(|| "the server".to_owned(), |host| format!("the receiver on {host}"));
        let title = format!(
            "{reader} reads too slowly: the sender on {} waited {} of its time for room in the receive buffer",
            closed.sender,
            percent(closed.share)
        );
        closed.told(seen, self.id(), "slow reader", title).next(receive_queue(closed.receiver))
    }

    /// Reports a window that was closed, for a reason that it does not show.
    fn closed(&self, seen: &TestEvidence<'_>, closed: &ClosedWindow<'_>) -> Finding {
        let title = format!(
            "the sender on {} waited {} of its time for room in the receiver{}: it reads too slowly, or its buffer is smaller than the path holds",
            closed.sender,
            percent(closed.share),
            closed.receiver.map(|host| format!(" on {host}")).unwrap_or_default()
        );
        let next = larger_window(seen, (closed.sender, closed.receiver), widest_window(seen, closed.side));
        closed.told(seen, self.id(), "peer window", title).next(next)
    }

    /// Reports a window that was small all the time, so that each round trip carries one window at most.
    fn small_window(
        &self,
        seen: &TestEvidence<'_>,
        (sender, receiver): (&str, Option<&str>),
        bound: &SizeBound,
    ) -> Finding {
        let title = format!(
            "the receive window of {} is at most {}, and each round trip of {} carries no more than that",
            receiver.unwrap_or("the server"),
            bound.size,
            bound.rtt
        );
        seen.finding(self.id(), Severity::HoldsBack, "peer window", title)
            .evidence(bound.evidence(sender, tcp::SND_WND_BYTES))
            .explains(gap::explained_by_time(seen, bound.share))
            .next(larger_window(seen, (sender, receiver), Some(bound.size)))
    }
}

/// What the window of a receiver shows. The receiver is `None` where it is a server of another tool, whose host is not seen.
pub(super) enum WindowLimit<'a> {
    /// It opened wide and closed, again and again: its program leaves data in the buffer.
    SlowReader(ClosedWindow<'a>),
    /// It was small all the time, and each round trip carried as much.
    Small { sender: &'a str, receiver: Option<&'a str>, window: SizeBound },
    /// It was the largest that there is without window scaling, and each round trip carried as much, or it was closed for a part of the time.
    Unscaled(UnscaledWindow<'a>),
    /// It was closed for a part of the time.
    Closed(ClosedWindow<'a>),
}

/// A window that is as large as it can be without window scaling, and too small.
pub(super) struct UnscaledWindow<'a> {
    pub(super) sender: &'a str,
    pub(super) receiver: Option<&'a str>,
    /// What it costs, as a sentence.
    pub(super) cost: String,
    /// The share of the time that it costs.
    pub(super) share: f64,
    pub(super) evidence: Vec<Evidence>,
}

/// A window that kept its sender waiting.
#[derive(Clone, Copy)]
pub(super) struct ClosedWindow<'a> {
    side: Side,
    sender: &'a str,
    receiver: Option<&'a str>,
    /// The share of the busy time in which it was closed.
    share: f64,
}

impl<'a> ClosedWindow<'a> {
    fn told(&self, seen: &TestEvidence<'_>, id: &str, short: &str, title: String) -> Finding {
        seen.finding(id, Severity::HoldsBack, short, title)
            .evidence([self.evidence()])
            .explains(gap::explained_by_time(seen, self.share))
    }

    /// Returns the window without window scaling that was closed: a receiver that waits for a core leaves more in it than it holds.
    fn unscaled(&self, seen: &TestEvidence<'a>) -> Option<UnscaledWindow<'a>> {
        let window = widest_window(seen, self.side).filter(|window| is_unscaled(seen, self.side, *window))?;
        let cost = format!(
            "the sender on {} waited {} of its time for room in a window of {window} at most",
            self.sender,
            percent(self.share)
        );
        let evidence = vec![self.evidence(), text_evidence(self.sender, tcp::SND_WND_BYTES, window.to_string())];
        let Self { sender, receiver, share, .. } = *self;
        Some(UnscaledWindow { sender, receiver, cost, share, evidence })
    }

    fn evidence(&self) -> Evidence {
        ratio_evidence(self.sender, format!("{} of {}", tcp::RWND_LIMITED_NS, tcp::BUSY_NS), self.share)
    }
}

pub(super) fn window_limit<'a>(seen: &TestEvidence<'a>) -> Option<WindowLimit<'a>> {
    let is_planned = |limit: &WindowLimit<'_>| !matches!(limit, WindowLimit::Unscaled(_)) && seen.has_planned_window();
    shown_window(seen).filter(|limit| !is_planned(limit))
}

/// Returns what the window shows, whether or not it was meant to be so.
fn shown_window<'a>(seen: &TestEvidence<'a>) -> Option<WindowLimit<'a>> {
    let closed = closed_window(seen);
    if let Some(slow) = closed.filter(|closed| fills_again_and_again(seen, closed.side)) {
        return Some(WindowLimit::SlowReader(slow));
    }
    let small = SIDES.into_iter().find_map(|(side, peer)| {
        let is_path = |samples: &[FlowSample]| fills_path(seen, side, samples);
        let window =
            bound_by(seen, side, |samples| largest(samples, tcp::SND_WND_BYTES).filter(|_| !is_path(samples)))?;
        let (sender, receiver) = (seen.host_of(side)?, seen.host_of(peer));
        Some(if is_unscaled(seen, side, window.size) {
            let cost = format!("each round trip of {} carries no more than {}", window.rtt, window.size);
            let evidence = window.evidence(sender, tcp::SND_WND_BYTES);
            WindowLimit::Unscaled(UnscaledWindow { sender, receiver, cost, share: window.share, evidence })
        } else {
            WindowLimit::Small { sender, receiver, window }
        })
    });
    small.or_else(|| {
        let closed = closed?;
        Some(closed.unscaled(seen).map_or(WindowLimit::Closed(closed), WindowLimit::Unscaled))
    })
}

/// Whether the connections of a sender do without window scaling, and a window of this size is the largest that they can have and no smaller
/// one was chosen.
fn is_unscaled(seen: &TestEvidence<'_>, side: Side, window: Bytes) -> bool {
    if seen.test.options.size("buffer").is_some_and(|chosen| chosen.0 <= *UNSCALED.end()) {
        return false;
    }
    let scales = |sample: &FlowSample| sample.values.get(tcp::WINDOW_SCALING) != Some(&0);
    let is_scaled = seen.measured_flows(side).flat_map(|(_, samples)| samples).any(scales);
    !is_scaled && UNSCALED.contains(&window.0)
}

/// Returns the window that kept its sender waiting, if the receiver had the time to open it.
fn closed_window<'a>(seen: &TestEvidence<'a>) -> Option<ClosedWindow<'a>> {
    let closed = SIDES.into_iter().find_map(|(side, peer)| {
        let share = wait_ratio(seen, side, tcp::RWND_LIMITED_NS)?;
        Some(ClosedWindow { side, sender: seen.host_of(side)?, receiver: seen.host_of(peer), share })
    })?;
    // A receiver without CPU time to read closes its window. One that is not seen may be on the machine of its sender.
    let has_no_core = match closed.receiver {
        Some(host) => seen.cores(host).first().is_some_and(CoreLoad::is_full_of_own_work),
        None if !seen.is_memory(closed.sender) => false,
        None => seen.cores(closed.sender).first().is_some_and(|core| core.busy() >= NEARLY_FULL),
    };
    (!has_no_core && !path_overflows(seen) && !most_fill_path(seen, closed.side)).then_some(closed)
}

/// Returns true if the segments of a connection spend most of their time in a queue of the path. Between the cores of one machine these are the queue,
/// and segments wait for a thread without a core too.
fn fills_path(seen: &TestEvidence<'_>, side: Side, samples: &[FlowSample]) -> bool {
    let is_between_cores = || seen.host_of(side).is_some_and(|sender| seen.is_between_cores(sender));
    is_mostly_queue(samples) && !is_between_cores() && !seen.hosts().any(|host| seen.waits_for_core(host))
}

/// Returns true if that is so for most connections of a sender.
fn most_fill_path(seen: &TestEvidence<'_>, side: Side) -> bool {
    let sent: Vec<_> = seen.test.flows.iter().filter(|flow| Some(flow.sender.as_str()) == seen.host_of(side)).collect();
    let fills =
        |flow: &&&FlowSummary| judged_samples(seen, flow).is_some_and(|samples| fills_path(seen, side, samples));
    let n_filling = sent.iter().filter(fills).count();
    n_filling > 0 && 2 * n_filling >= sent.len()
}

/// Returns true if wide windows that a sender was offered shrank to half of what they had been, in at least a quarter of the samples.
fn fills_again_and_again(seen: &TestEvidence<'_>, side: Side) -> bool {
    let counts = seen.measured_flows(side).map(|(_, samples)| shrunk_windows(samples));
    let (n_shrunk, n_all) = counts.fold((0, 0), |sums, counts| (sums.0 + counts.0, sums.1 + counts.1));
    n_all >= SAMPLES_MIN && SHRINKS * n_shrunk >= n_all
}

/// The send buffer was full of data that the peer had not acknowledged.
pub(crate) struct SendBuffer;

impl FindingRule for SendBuffer {
    fn id(&self) -> &'static str {
        "send-buffer"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper", "cpu-quota", "tcp-memory", "latency-under-load", DEVICE_CORE_FULL]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // It is as large as the window that was chosen.
        if seen.has_planned_window() {
            return Vec::new();
        }
        let small = SIDES.into_iter().find_map(|(side, _)| {
            let sender = seen.host_of(side)?;
            let most = send_buffer_max(seen, sender)?;
            // With more under way, only the queue would grow.
            Some((sender, bound_by(seen, side, |samples| (!has_standing_queue(samples)).then_some(most))?))
        });
        if let Some((sender, bound)) = small {
            let title = format!(
                "the send buffer on {sender} holds {} at most, and each round trip of {} carries no more than that",
                bound.size, bound.rtt
            );
            return vec![
                seen.finding(self.id(), Severity::HoldsBack, "send buffer", title)
                    .evidence(bound.evidence(sender, "send buffer, most"))
                    .explains(gap::explained_by_time(seen, (bound.share / REFILLED_FROM).min(1.0)))
                    .next(larger_send_buffer(seen, sender)),
            ];
        }
        let limited =
            SIDES.into_iter().find_map(|(side, _)| Some((side, wait_ratio(seen, side, tcp::SNDBUF_LIMITED_NS)?)));
        let is_of_path = |side| path_overflows(seen) || most_fill_path(seen, side);
        let Some((side, share)) = limited.filter(|(side, _)| !is_of_path(*side)) else { return Vec::new() };
        let Some(sender) = seen.host_of(side) else { return Vec::new() };
        let title = format!("the send buffer on {sender} was too small for the path {} of the time", percent(share));
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "send buffer", title)
                .evidence([ratio_evidence(sender, format!("{} of {}", tcp::SNDBUF_LIMITED_NS, tcp::BUSY_NS), share)])
                .explains(gap::explained_by_time(seen, share))
                .next(larger_send_buffer(seen, sender)),
        ]
    }

    fn change(&self, finding: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        larger_stream_buffer(seen, &finding.evidence.first()?.host, WMEM)
    }
}

/// A size in bytes that each round trip carries at most.
pub(super) struct SizeBound {
    pub(super) size: Bytes,
    pub(super) rtt: Nanos,
    rate: BitsPerSec,
    /// The rate as a share of one size per round trip, the mean of the connections: the rest is not the size's.
    pub(super) share: f64,
}

impl SizeBound {
    pub(super) fn evidence(&self, host: &str, size: &str) -> Vec<Evidence> {
        let values = [
            (size, self.size.to_string()),
            (tcp::RTT_NS, self.rtt.to_string()),
            ("acknowledged", self.rate.to_string()),
        ];
        values.map(|(counter, value)| text_evidence(host, counter, value)).to_vec()
    }
}

/// Returns the size and the round trip of the connections that one side sends over, if their rate is one such size per round trip.
fn bound_by(seen: &TestEvidence<'_>, side: Side, size: impl Fn(&[FlowSample]) -> Option<u64>) -> Option<SizeBound> {
    let sender = seen.host_of(side)?;
    let of_flow = |summary: &FlowSummary| {
        let samples = judged_samples(seen, summary)?;
        let last = &samples.last()?.values;
        let (size, rtt) = (Bytes(size(samples)?), Nanos(*last.get(tcp::RTT_NS)?));
        let allowed = last.get(tcp::CWND_SEGMENTS)?.saturating_mul(*last.get(tcp::SND_MSS_BYTES)?);
        let bits_under_way = summary.acknowledged_bps * rtt.as_secs_f64();
        let share = (bits_under_way / (approximate(size.0) * 8.0)).min(1.0);
        // A send buffer counts the kernel's own bytes too, so that less than its size is under way.
        let waits_for_it = summary.waits.send_buffer.max(summary.waits.receive_window) >= HARDLY;
        let has_room = size.0 < allowed || waits_for_it && bits_under_way < ROOM * approximate(allowed) * 8.0;
        (has_room && share >= BOUND).then_some((size, rtt, share))
    };
    let sent: Vec<_> = seen.test.flows.iter().filter(|summary| summary.sender == sender).collect();
    let bound: Vec<(Bytes, Nanos, f64)> = sent.iter().filter_map(|summary| of_flow(summary)).collect();
    let (size, rtt, _) = *bound.first().filter(|_| 2 * bound.len() >= sent.len())?;
    let share = mean(&bound.iter().map(|(.., share)| *share).collect::<Vec<_>>())?;
    let rate = BitsPerSec::new(sent.iter().map(|summary| summary.acknowledged_bps).sum())?;
    Some(SizeBound { size, rtt, rate, share })
}

/// Returns the largest value that a connection showed.
fn largest(samples: &[FlowSample], name: &str) -> Option<u64> {
    samples.iter().filter_map(|sample| sample.values.get(name).copied()).max()
}

/// Returns the largest send buffer that a connection of this host can get: the kernel doubles a requested size.
fn send_buffer_max(seen: &TestEvidence<'_>, host: &str) -> Option<u64> {
    if let Some(asked) = seen.test.options.size("buffer") {
        return Some(asked.0.saturating_mul(2));
    }
    seen.environment(host)?.get("sysctl", WMEM)?.split_whitespace().nth(2)?.parse().ok()
}

/// The pairs of sender and peer: either side may have sent.
const SIDES: [(Side, Side); 2] = [(Side::Initiator, Side::Responder), (Side::Responder, Side::Initiator)];

/// Returns the growth of a counter as a share of the connections' busy time, if it is large enough to matter.
fn wait_ratio(seen: &TestEvidence<'_>, side: Side, counter: &str) -> Option<f64> {
    let sum = |name| seen.measured_flows(side).map(|(_, samples)| growth(samples, name)).sum();
    let (busy, limited) = (Nanos(sum(tcp::BUSY_NS)), sum(counter));
    ratio(limited, busy.0).filter(|share| *share > HOLDS_BACK && busy >= BUSY_MIN)
}

/// Returns the growth of a value over samples of a connection. A single sample counts from zero.
pub(super) fn growth(samples: &[FlowSample], name: &str) -> u64 {
    let value = |values: &BTreeMap<String, u64>| values.get(name).copied().unwrap_or(0);
    match samples {
        [] => 0,
        [only] => value(&only.values),
        [first, .., last] => value(&last.values).saturating_sub(value(&first.values)),
    }
}

/// Returns the widest window that the connections of a sender were offered in the newest trial.
fn widest_window(seen: &TestEvidence<'_>, side: Side) -> Option<Bytes> {
    let records = seen.trials().last()?.records.values().filter(|record| record.side == side);
    records
        .flat_map(|record| &record.flows)
        .filter_map(|flow| largest(&flow.samples, tcp::SND_WND_BYTES))
        .max()
        .map(Bytes)
}

/// Suggests what may widen a window: a larger buffer, unless the receiver's buffer may be far larger already.
fn larger_window(seen: &TestEvidence<'_>, (sender, receiver): (&str, Option<&str>), window: Option<Bytes>) -> NextStep {
    let Some(receiver) = receiver else { return receive_queue(None) };
    let sizes = seen.environment(receiver).and_then(|facts| facts.get("sysctl", RMEM));
    let most = || sizes?.split_whitespace().nth(2)?.parse().ok();
    let asked = seen.test.options.size("buffer");
    let room = asked.map(|asked| asked.0).or_else(most);
    let is_held = window.zip(room).is_some_and(|(window, room)| window.0.saturating_mul(FAR_BELOW) <= room);
    if is_held {
        return what_holds_window(seen, (sender, receiver));
    }
    larger_receive_buffer(seen, receiver)
}

/// Suggests to look whether data waits for the program that receives it.
fn receive_queue(receiver: Option<&str>) -> NextStep {
    let next = NextStep::new("ss -tnm state established");
    let shown = "a full Recv-Q if the program reads too slowly; if it is empty, the buffer (rb) is too small";
    match receiver {
        Some(host) => next.on(host).expected(format!("show {shown}")),
        None => next.expected(format!("show on the server's host {shown}")),
    }
}

/// Suggests a larger send buffer.
fn larger_send_buffer(seen: &TestEvidence<'_>, sender: &str) -> NextStep {
    larger_asked(seen, sender, WMEM).unwrap_or_else(|| larger_buffer(seen, sender, WMEM, WMEM_USUAL))
}

/// Suggests a larger size where the test asks for one: the settings of the host do not hold for its sockets.
fn larger_asked(seen: &TestEvidence<'_>, host: &str, sysctl: &str) -> Option<NextStep> {
    let larger = seen.test.options.size("buffer").and(larger_stream_buffer(seen, host, sysctl))?;
    let command = seen.repeat_with_option("buffer", &larger.to)?;
    Some(NextStep::new(command).expected("let more data be on its way at once"))
}

/// Suggests to turn on what lets a window grow, or to look for what keeps it small.
fn what_holds_window(seen: &TestEvidence<'_>, (sender, receiver): (&str, &str)) -> NextStep {
    let sizes_itself = seen.environment(receiver).and_then(|facts| facts.get("sysctl", MODERATE_RCVBUF)) != Some("0");
    if seen.test.options.size("buffer").is_none() && !sizes_itself {
        return NextStep::new(format!("sysctl -w {MODERATE_RCVBUF}=1"))
            .on(receiver)
            .expected("let the kernel enlarge the buffer, and with it the window");
    }
    let shown = "sysctl net.ipv4.tcp_moderate_rcvbuf";
    let address = seen.run.hosts.get(sender).and_then(|host| host.address.as_deref());
    let with_route = address.map(|address| format!("{shown}; ip route get {address}"));
    NextStep::new(with_route.unwrap_or_else(|| shown.to_owned()))
        .on(receiver)
        .expected("show what keeps the window small, as the buffer may be larger: a 0, or a `window` of the route")
}

/// Suggests a larger receive buffer, for TCP sockets that do not choose their own by the setting that `rmem_max` does not limit.
pub(super) fn larger_receive_buffer(seen: &TestEvidence<'_>, host: &str) -> NextStep {
    larger_asked(seen, host, RMEM).unwrap_or_else(|| larger_buffer(seen, host, RMEM, RMEM_USUAL))
}

/// Suggests twice the largest buffer that a host allows, at least the kernel's defaults. Suggests 32 MiB if it is unknown.
fn larger_buffer(seen: &TestEvidence<'_>, host: &str, name: &str, usual: [u64; 3]) -> NextStep {
    const UNKNOWN: u64 = 32 << 20;
    let now = seen.environment(host).and_then(|facts| facts.get("sysctl", name)).unwrap_or_default();
    let now: Vec<u64> = now.split_whitespace().filter_map(|part| part.parse().ok()).collect();
    let at_least = |idx: usize| now.get(idx).copied().unwrap_or(0).max(usual[idx]);
    let most = now.get(2).map_or(UNKNOWN, |most| most.saturating_mul(2).max(usual[2]));
    NextStep::new(format!("sysctl -w {name}=\"{} {} {most}\"", at_least(0), at_least(1)))
        .on(host)
        .expected("let more data be on its way at once")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{names::host, record::Flow};

    fn flow(values: &[(&str, u64)]) -> Flow {
        let sample = |factor: u64| FlowSample {
            at_ns: Nanos::from_millis(300 * factor),
            values: values.iter().map(|(name, value)| ((*name).to_owned(), value * factor)).collect(),
        };
        Flow { id: "a:1 b:2".to_owned(), samples: vec![sample(1), sample(2), sample(3)] }
    }

    fn streaming(values: &[(&str, u64)]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.flows = vec![flow(values), flow(values)];
        builder
    }

    #[test]
    fn a_sender_that_waits_for_the_receivers_window_is_told_where_to_enlarge_it() {
        let mut builder = streaming(&[(tcp::BUSY_NS, 500_000_000), (tcp::RWND_LIMITED_NS, 200_000_000)]);
        builder.run.hosts.get_mut("target").unwrap().environment.note(
            "sysctl",
            "net.ipv4.tcp_rmem",
            "4096\t131072\t6291456",
        );
        let finding = builder.finding("receive-window").unwrap();
        assert_eq!(finding.evidence[0].value, "40 %");
        let next = finding.next.unwrap();
        assert_eq!(next.command, "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 12582912\"");
        assert_eq!(next.on.as_deref(), Some("target"));
        assert_eq!(builder.finding("send-buffer"), None);
    }

    #[test]
    fn a_buffer_that_somebody_made_tiny_is_set_back_to_the_kernels_default() {
        let mut builder = streaming(&[(tcp::BUSY_NS, 500_000_000), (tcp::RWND_LIMITED_NS, 200_000_000)]);
        let target = builder.run.hosts.get_mut("target").unwrap();
        target.environment.note("sysctl", "net.ipv4.tcp_rmem", "4096 8192 8192");
        let command = builder.finding("receive-window").unwrap().next.unwrap().command;
        assert_eq!(command, "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\"");
    }

    #[test]
    fn a_window_without_scaling_that_a_receiver_without_a_core_leaves_full_is_no_small_buffer() {
        for (is_scaled, expected) in [(0, "no-window-scaling"), (1, "receive-window")] {
            let waits = [(tcp::BUSY_NS, 500_000_000), (tcp::RWND_LIMITED_NS, 200_000_000)];
            let window = [(tcp::SND_WND_BYTES, 20_000), (tcp::WINDOW_SCALING, is_scaled)];
            let builder = streaming(&[waits, window].concat());
            let found = ["no-window-scaling", "receive-window"].map(|id| builder.finding(id));
            let found: Vec<_> = found.into_iter().flatten().collect();
            assert_eq!((found.len(), found[0].id.as_str()), (1, expected));
            assert!(found[0].title.contains("the sender on client waited 40 % of its time for room in "));
        }
    }

    #[test]
    fn a_window_that_the_test_chose_is_not_too_small_and_lacks_nothing_once_it_carries_its_ideal() {
        let builder = |ideal: Option<u64>| {
            let mut builder = RunBuilder::new();
            builder.windowed_stream(4_096, &[(tcp::SNDBUF_LIMITED_NS, 0)]);
            let flows = &mut builder.run.tests[0].trials[0].records.get_mut("client").unwrap().flows;
            flows[0].samples[1].values.insert(tcp::SNDBUF_LIMITED_NS.to_owned(), 900_000_000);
            flows[0].samples[0].values.insert(tcp::BUSY_NS.to_owned(), 0);
            builder.run.tests[0].options.set("buffer", "4KiB");
            builder.host_counter("client", (host::TCP_MEMORY_PRESSURES, ""), 3);
            if let Some(ideal) = ideal {
                builder.ideal(ideal);
            }
            builder
        };
        assert!(["receive-window", "send-buffer"].iter().all(|id| builder(None).finding(id).is_some()));
        // The stream has 8 kbit/s.
        for (ideal, expected) in [(8_200, Severity::Remark), (20_000, Severity::HoldsBack)] {
            let builder = builder(Some(ideal));
            assert_eq!(["receive-window", "send-buffer"].map(|id| builder.finding(id)), [None, None]);
            assert_eq!(builder.finding("tcp-memory").unwrap().severity, expected, "an ideal of {ideal} bit/s");
        }
    }

    #[test]
    fn a_send_buffer_that_is_too_small_is_the_senders() {
        let builder = streaming(&[(tcp::BUSY_NS, 500_000_000), (tcp::SNDBUF_LIMITED_NS, 300_000_000)]);
        let finding = builder.finding("send-buffer").unwrap();
        assert_eq!(finding.next.unwrap().on.as_deref(), Some("client"));
    }

    #[test]
    fn a_test_with_a_buffer_of_its_own_is_repeated_with_a_larger_one() {
        for (waited, id) in [(tcp::SNDBUF_LIMITED_NS, "send-buffer"), (tcp::RWND_LIMITED_NS, "receive-window")] {
            let mut builder = streaming(&[(tcp::BUSY_NS, 500_000_000), (waited, 300_000_000)]);
            builder.run.command = "fathom tcp 198.18.0.2 --buffer 8KiB".to_owned();
            builder.run.tests[0].options.set("buffer", "8KiB");
            let command = builder.finding(id).unwrap().next.unwrap().command;
            assert!(command.starts_with("fathom tcp 198.18.0.2 --buffer "), "{id}: {command}");
        }
    }

    /// A stream to a server of another tool, which offered these windows and kept its sender waiting for half of the time.
    fn to_unseen_server(windows: &[u64]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.foreign_stream(12_500_000);
        let sample = |(at, window): (u64, &u64)| FlowSample {
            at_ns: Nanos::from_millis(50 * at),
            values: [
                (tcp::SND_WND_BYTES, *window),
                (tcp::BYTES_ACKED, 500_000 * at),
                (tcp::BUSY_NS, 50_000_000 * at),
                (tcp::RWND_LIMITED_NS, 25_000_000 * at),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        };
        let samples = (1..).zip(windows).map(sample).collect();
        let client = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        client.flows = vec![Flow { id: "a:1 b:2".to_owned(), samples }];
        builder
    }

    #[test]
    fn a_server_that_empties_its_buffer_too_slowly_is_told_from_one_with_a_small_buffer() {
        let filled = [64_000, 1_000, 60_000, 900, 64_000, 0, 64_000, 30_000, 2_000, 64_000];
        let finding = to_unseen_server(&filled.repeat(3)).finding("receive-window").unwrap();
        let title =
            "the server reads too slowly: the sender on client waited 50 % of its time for room in the receive buffer";
        assert_eq!((finding.short.as_str(), finding.title.as_str()), ("slow reader", title));
        assert_eq!(finding.next.unwrap().on, None);
        let tiny = [8_000, 100, 8_000, 0].repeat(8);
        let title = to_unseen_server(&tiny).finding("receive-window").unwrap().title;
        assert!(
            title.contains("or its buffer is smaller"),
            "a buffer of 8 kB is full of what arrives at once: {title}"
        );
        let grown = [8_000, 16_000, 32_000, 64_000, 64_000, 64_000, 64_000, 64_000, 64_000, 64_000];
        let finding = to_unseen_server(&grown).finding("receive-window").unwrap();
        assert!(finding.title.contains("or its buffer is smaller than the path holds"), "{}", finding.title);
    }

    #[test]
    fn a_server_that_may_be_on_the_full_machine_of_its_sender_is_not_blamed() {
        let mut builder = to_unseen_server(&[64_000, 1_000, 60_000, 900, 64_000, 0, 64_000, 30_000, 2_000, 64_000]);
        builder.cpu("client", "cpu0", [60, 40, 0, 0]);
        assert!(builder.finding("receive-window").is_some(), "behind a wire it has cores of its own");
        builder.driver("veth");
        assert_eq!(builder.finding("receive-window"), None);
    }

    #[test]
    fn a_window_that_is_closed_now_and_then_holds_nothing_back() {
        let builder = streaming(&[(tcp::BUSY_NS, 500_000_000), (tcp::RWND_LIMITED_NS, 50_000_000)]);
        assert_eq!(builder.finding("receive-window"), None);
    }

    #[test]
    fn connections_that_were_hardly_busy_tell_nothing() {
        let builder = streaming(&[(tcp::BUSY_NS, 10_000_000), (tcp::RWND_LIMITED_NS, 9_000_000)]);
        assert_eq!(builder.finding("receive-window"), None);
    }

    /// A stream whose receiver offers a window of this size all the time, each round trip of which carries it.
    fn small(wnd: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.windowed_stream(wnd, &[]);
        builder
    }

    #[test]
    fn a_window_that_each_round_trip_fills_is_named_although_the_kernel_calls_the_sender_busy() {
        let run = small(4608).analyzed();
        assert_eq!(run.findings[0].id, "receive-window", "{:#?}", run.findings);
        assert!(run.findings[0].title.contains("at most 4.50 KiB"), "{}", run.findings[0].title);
        assert!(
            run.findings.iter().all(|f| f.id != "core-saturated" || f.severity == Severity::Remark),
            "the cores are an effect"
        );
        assert_eq!(small(3_000_000).finding("receive-window"), None);
    }

    #[test]
    fn a_send_buffer_that_a_standing_queue_fills_is_not_too_small() {
        let found = |rtt_min: Nanos, acked_per_s: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            let values = [
                (tcp::RTT_NS, 40_000_000),
                (tcp::RTT_MIN_NS, rtt_min.0),
                (tcp::SND_WND_BYTES, 32 << 20),
                (tcp::CWND_SEGMENTS, 10_000),
                (tcp::SND_MSS_BYTES, 1448),
            ];
            let at = |ms: u64, acked: u64| {
                let values = values.iter().copied().chain([(tcp::BYTES_ACKED, acked), (tcp::BUSY_NS, ms * 1_000_000)]);
                FlowSample {
                    at_ns: Nanos::from_millis(ms),
                    values: values.map(|(name, n)| (name.to_owned(), n)).collect(),
                }
            };
            let flow = Flow { id: "a:1 b:2".to_owned(), samples: vec![at(200, 0), at(1200, acked_per_s)] };
            builder.run.tests[0].trials[0].records.get_mut("client").unwrap().flows = vec![flow];
            let environment = &mut builder.run.hosts.get_mut("client").unwrap().environment;
            environment.note("sysctl", WMEM, "4096 16384 4194304");
            builder.finding("send-buffer")
        };
        let whole = [39, 33, 20].map(|ms| found(Nanos::from_millis(ms), 100_000_000).is_some());
        assert_eq!(whole, [true, true, false]);
        let half = found(Nanos::from_millis(39), 50_000_000).and_then(|finding| finding.explains);
        assert!(
            half.is_some_and(|share| share > 0.7),
            "a third of a buffer is empty before it is filled again: {half:?}"
        );
    }

    #[test]
    fn where_the_buffer_may_be_far_larger_the_next_step_is_what_keeps_the_window_small() {
        let next = |settings: &[(&str, &str, &str)]| {
            let mut builder = small(4608);
            for (host, name, value) in settings {
                builder.run.hosts.get_mut(*host).unwrap().environment.note("sysctl", name, *value);
            }
            let step = builder.finding("receive-window").unwrap().next.unwrap();
            (step.command, step.on.unwrap())
        };
        let large = ("target", RMEM, "4096 131072 33554432");
        let shown = format!("sysctl {MODERATE_RCVBUF}; ip route get 198.18.0.1");
        assert_eq!(next(&[large]), (shown, "target".to_owned()));
        let moderate = (format!("sysctl -w {MODERATE_RCVBUF}=1"), "target".to_owned());
        assert_eq!(next(&[large, ("target", MODERATE_RCVBUF, "0")]), moderate);
        let tiny = next(&[("target", RMEM, "4096 8192 8192")]);
        assert!(tiny.0.starts_with("sysctl -w net.ipv4.tcp_rmem="), "{tiny:?}");
    }

    #[test]
    fn a_buffer_that_the_test_asks_for_is_enlarged_by_the_same_option() {
        let mut builder = small(4608);
        builder.run.command = "fathom tcp 198.18.0.2 --buffer 8KiB".to_owned();
        builder.run.tests[0].options.set("buffer", "8KiB");
        builder.run.hosts.get_mut("target").unwrap().environment.note("sysctl", RMEM, "4096 131072 131072");
        let step = builder.finding("receive-window").unwrap().next.unwrap();
        assert_eq!((step.command.as_str(), step.on), ("fathom tcp 198.18.0.2 --buffer 1MiB", None));
    }
}

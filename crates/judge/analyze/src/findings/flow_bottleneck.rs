//! The path or a configured rate held back the connections of a stream.
//!
//! Buffers, CPU and loss have their own rules, which see more than the connections.

use std::net::{IpAddr, SocketAddr};

use fathom_model::{
    Bottleneck, Evidence, Finding, FlowSummary, NextStep, Severity,
    names::tcp,
    record::FlowSample,
    units::{BitsPerSec, Nanos, approximate, percent},
};
use fathom_statistics::{mean, median};

use super::{
    FindingRule, device, latency_under_load::shorter_queue, other_programs::OTHER_PROGRAMS, rule::DEVICE_CORE_FULL,
};
use crate::{
    change::{Change, lower_stream_rate, more_flows},
    evidence::{TestEvidence, text_evidence},
    flows::{QUEUE_MIN, judged_samples, least_round_trip},
    resent::{LOSS_MATTERS, most_resent, path_overflows},
    same_way::carries_more,
};

/// Looks for one bottleneck, and reports it if it holds back at least half of the connections.
pub(crate) struct FlowBottleneck(pub(crate) Bottleneck);

/// With fewer samples, a window that did not change tells nothing.
const WINDOWS_MIN: usize = 5;
/// Fewer segments that were sent again keep no window small.
const RESENT_MIN: f64 = 1e-5;
/// With a smaller part of its congestion window under way, a sender is not bound by it.
const WINDOW_USED: f64 = 0.5;
/// A window that grew by less did not grow to the end.
const GROWN: f64 = 1.2;

/// The id of the finding that the kernel was told to pace.
pub(crate) const PACED: &str = "paced";

impl FindingRule for FlowBottleneck {
    fn id(&self) -> &'static str {
        match self.0 {
            Bottleneck::Queue => "path-full",
            Bottleneck::Pacing => PACED,
            Bottleneck::Application => "nothing-to-send",
            _ => "congestion-window",
        }
    }

    fn effect_of(&self) -> &'static [&'static str] {
        match self.0 {
            // A sender without a core has nothing to send either.
            Bottleneck::Application => {
                &["local-shaper", "cpu-quota", "receive-window", "send-buffer", OTHER_PROGRAMS, DEVICE_CORE_FULL]
            }
            // A full path is what a test of latency under load makes; what it does to the round trip is the finding.
            Bottleneck::Queue => &[
                "local-shaper",
                "cpu-quota",
                "receive-window",
                "send-buffer",
                "latency-under-load",
                "outage",
                // A segment whose ACK is lost is measured by the next one, or by what is sent after a timer.
                "acks-lost",
                DEVICE_CORE_FULL,
                OTHER_PROGRAMS,
            ],
            _ => &[
                "local-shaper",
                "cpu-quota",
                "receive-window",
                "send-buffer",
                "no-window-scaling",
                "congestion-marks",
                "acks-lost",
                DEVICE_CORE_FULL,
            ],
        }
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        // What waits for a device that waits for a core stands in a queue too.
        self.0 == Bottleneck::Queue && cause == OTHER_PROGRAMS && !device::waits_for_core(seen)
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let all = &seen.test.flows;
        // So few losses are no finding of their own, but keep the congestion window small all the same.
        let has_few_losses =
            self.0 == Bottleneck::CongestionWindow && most_resent(seen).is_none_or(|(_, share)| share <= LOSS_MATTERS);
        let is_held =
            |flow: &&FlowSummary| flow.held_by == self.0 || has_few_losses && flow.held_by == Bottleneck::Loss;
        let held: Vec<&FlowSummary> = all.iter().filter(is_held).collect();
        let Some(first) = held.first().filter(|_| 2 * held.len() >= all.len()) else { return Vec::new() };
        // A sender with a schedule has nothing to send between its times.
        let is_paced = self.0 == Bottleneck::Application && seen.test.options.text("rate").is_some();
        // What reached all that was asked, or the rate of the link, is not held back by its connections.
        if is_paced || seen.reached_target() {
            return Vec::new();
        }
        let who = match (held.len(), all.len()) {
            (1, 1) => "the connection".to_owned(),
            (held, all) if held == all => format!("the {all} connections"),
            (held, all) => format!("{held} of {all} connections"),
        };
        // A window of segments says nothing about a path that is as fast as the cores.
        if self.0 == Bottleneck::CongestionWindow && seen.is_limited_by_cores_of_machine(&first.sender) {
            return Vec::new();
        }
        let path = FlowPath::of(seen, &held);
        // A window of which half is not used keeps nobody waiting, and does not grow either (`tcp_is_cwnd_limited` of Linux).
        if self.0 == Bottleneck::CongestionWindow && path.window_used().is_some_and(|used| used < WINDOW_USED) {
            return Vec::new();
        }
        // Losses at random keep queues full of what has to be sent again, too.
        if self.0 == Bottleneck::Queue && path.rate.is_some_and(|rate| carries_more(seen, rate.get())) {
            return Vec::new();
        }
        let is_own_queue = self.0 == Bottleneck::Queue && path.rtt < path.rtt_min + QUEUE_MIN && !path_overflows(seen);
        let severity =
            if self.0 == Bottleneck::Pacing || is_own_queue { Severity::Remark } else { Severity::HoldsBack };
        vec![
            seen.finding(self.id(), severity, self.0.short(), self.title(seen, &who, &path))
                .evidence(path.evidence())
                .next(self.next(seen, &path)),
        ]
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        match self.0 {
            Bottleneck::CongestionWindow => more_flows(seen),
            // Below the rate of the path its queue is empty.
            Bottleneck::Queue => lower_stream_rate(seen, "rtt_ns_p50"),
            _ => None,
        }
    }
}

impl FlowBottleneck {
    fn title(&self, seen: &TestEvidence<'_>, who: &str, path: &FlowPath) -> String {
        let sender = &path.sender;
        match self.0 {
            Bottleneck::Queue => {
                let lost = most_resent(seen).filter(|(host, share)| *host == sender && *share > LOSS_MATTERS);
                let lost = lost.map_or_else(String::new, |(_, share)| {
                    format!(", and {} of the segments were retransmitted", percent(share))
                });
                format!(
                    "the path is full: of a round trip of {} that {who} of {sender} saw, {} were spent in a queue{lost}",
                    path.rtt,
                    path.rtt - path.rtt_min
                )
            }
            Bottleneck::Pacing => format!("{who} of {sender} went at the rate that the kernel was told to keep"),
            Bottleneck::Application => {
                format!("{who} of {sender} had nothing to send {} of the time", percent(path.idle))
            }
            _ => format!(
                "{who} of {sender} waited for acknowledgements: {} segments are allowed under way in each round trip of {}{}",
                path.cwnd,
                path.rtt,
                path.window.text(seen, sender)
            ),
        }
    }

    fn next(&self, seen: &TestEvidence<'_>, path: &FlowPath) -> Option<NextStep> {
        if self.0 == Bottleneck::CongestionWindow
            && path.window == WindowShape::Constant
            && let Some(peer) = &path.peer
        {
            let expected = "show whether the route locks the congestion window (cwnd lock)";
            return Some(NextStep::new(format!("ip route get {peer}")).on(&path.sender).expected(expected));
        }
        let (options, expected) = match self.0 {
            Bottleneck::CongestionWindow if path.window == WindowShape::Growing => {
                let seconds =
                    seen.measured_time().0.div_ceil(seen.trials().len().max(1) as u64).div_ceil(1_000_000_000);
                let longer = format!("--duration {}s", seconds.saturating_mul(3).max(30));
                (longer, "show the rate of a window that has had the time to grow")
            }
            Bottleneck::CongestionWindow => {
                let flows = seen.test.options.count("flows").unwrap_or(1).saturating_mul(2).max(4);
                let more = "show whether several connections get more: then each is held back and not the path";
                (format!("--flows {flows}"), more)
            }
            Bottleneck::Queue => return Some(shorter_queue(seen, &path.sender)),
            _ => return None,
        };
        Some(NextStep::new(seen.repeat_test_command(&options)?).on(&seen.test.from).expected(expected))
    }
}

/// What a congestion window did during a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WindowShape {
    /// It had one size all the time. Congestion control tries larger ones.
    Constant,
    /// It grew to the end.
    Growing,
    Other,
}

impl WindowShape {
    /// Judges the windows of a connection in the order of their times.
    fn of(windows: &[u64]) -> Self {
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return Self::Other };
        if windows.len() < WINDOWS_MIN {
            Self::Other
        } else if windows.iter().all(|window| window == first) {
            Self::Constant
        } else if windows.is_sorted() && approximate(*last) >= GROWN * approximate(*first) {
            Self::Growing
        } else {
            Self::Other
        }
    }

    /// Why the window is no larger, as the end of a sentence.
    fn text(self, seen: &TestEvidence<'_>, sender: &str) -> String {
        let resent = most_resent(seen).filter(|(host, share)| *host == sender && *share >= RESENT_MIN);
        match (self, resent) {
            (Self::Constant, _) => {
                ", which never changed: something keeps congestion control from a larger window".to_owned()
            }
            (Self::Growing, _) => ", and the window still grew at the end of the test".to_owned(),
            (Self::Other, Some((_, share))) => {
                format!(
                    ", and {} of the segments were retransmitted, for which congestion control may reduce the window",
                    percent(share)
                )
            }
            (Self::Other, None) => String::new(),
        }
    }
}

/// Path statistics of some connections: the medians of the samples of the last round, as a mean of the connections.
struct FlowPath {
    sender: String,
    rtt: Nanos,
    rtt_min: Nanos,
    cwnd: u64,
    mss: u64,
    n_flows: u64,
    rate: Option<BitsPerSec>,
    idle: f64,
    window: WindowShape,
    /// The address of the other end of the first connection.
    peer: Option<IpAddr>,
}

impl FlowPath {
    fn of(seen: &TestEvidence<'_>, held: &[&FlowSummary]) -> Self {
        let samples: Vec<_> = held.iter().filter_map(|flow| judged_samples(seen, flow)).collect();
        let value = |name: &str| {
            let of = |samples: &&[FlowSample]| {
                let values = samples.iter().filter_map(|sample| sample.values.get(name));
                median(&values.map(|value| approximate(*value)).collect::<Vec<_>>())
            };
            fathom_model::units::rounded(mean(&samples.iter().filter_map(of).collect::<Vec<_>>()).unwrap_or(0.0))
        };
        let least: Vec<f64> = samples.iter().filter_map(|samples| least_round_trip(samples)).map(approximate).collect();
        let idle: Vec<f64> = held.iter().map(|flow| flow.waits.application).collect();
        Self {
            sender: held.first().map_or_else(String::new, |flow| flow.sender.clone()),
            rtt: Nanos(value(tcp::RTT_NS)),
            rtt_min: Nanos(fathom_model::units::rounded(mean(&least).unwrap_or(0.0))),
            cwnd: value(tcp::CWND_SEGMENTS),
            mss: value(tcp::SND_MSS_BYTES),
            n_flows: held.len() as u64,
            rate: BitsPerSec::new(held.iter().map(|flow| flow.acknowledged_bps).sum()),
            idle: mean(&idle).unwrap_or(0.0),
            window: samples.first().map_or(WindowShape::Other, |samples| {
                let windows = samples.iter().filter_map(|sample| sample.values.get(tcp::CWND_SEGMENTS).copied());
                WindowShape::of(&windows.collect::<Vec<_>>())
            }),
            peer: held.first().and_then(|flow| Some(flow.id.split(' ').nth(1)?.parse::<SocketAddr>().ok()?.ip())),
        }
    }

    /// Returns the part of the congestion windows that was under way; `None` if it is not known how much they allow.
    fn window_used(&self) -> Option<f64> {
        let under_way = self.rate?.get() / 8.0 * self.rtt.as_secs_f64() / approximate(self.n_flows);
        let allowed = approximate(self.cwnd) * approximate(self.mss);
        (allowed > 0.0).then(|| under_way / allowed)
    }

    fn evidence(&self) -> Vec<Evidence> {
        let shown = |counter: &str, value: String| text_evidence(&self.sender, counter, value);
        let rate = self.rate.map(|rate| shown("acknowledged", rate.to_string()));
        let rest = [
            shown(tcp::RTT_NS, self.rtt.to_string()),
            shown(tcp::RTT_MIN_NS, self.rtt_min.to_string()),
            shown(tcp::CWND_SEGMENTS, fathom_model::units::grouped(self.cwnd)),
        ];
        rate.into_iter().chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_never_changes_is_told_from_one_that_grows() {
        assert_eq!(WindowShape::of(&[4; 8]), WindowShape::Constant);
        assert_eq!(WindowShape::of(&[10, 20, 40, 80, 90]), WindowShape::Growing);
        assert_eq!(WindowShape::of(&[80, 40, 60, 90, 50]), WindowShape::Other);
        assert_eq!(WindowShape::of(&[4, 4]), WindowShape::Other, "two samples tell nothing");
    }

    #[test]
    fn a_window_that_is_hardly_used_holds_nobody_back() {
        use fathom_model::names::tcp;
        let found = |cwnd: u64| {
            let mut builder = crate::run_builder::RunBuilder::new();
            builder.windowed_stream(200_000_000, &[(tcp::RTT_NS, 10_000_000), (tcp::CWND_SEGMENTS, cwnd)]);
            builder.cpu("client", "cpu0", [10, 10, 0, 0]);
            let flows = &mut builder.run.tests[0].trials[0].records.get_mut("client").unwrap().flows;
            flows[0].samples[0].values.insert(tcp::BUSY_NS.to_owned(), 1_000_000_000);
            builder.finding("congestion-window").is_some()
        };
        // 2 GB in a second are 20 MB in each round trip.
        assert!(found(13_000));
        assert!(!found(60_000));
    }
}

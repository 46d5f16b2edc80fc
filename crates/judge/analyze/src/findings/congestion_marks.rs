//! A device on the path marks packets instead of dropping them (ECN, RFC 3168), and senders slow down.

use fathom_model::{
    Finding, NextStep, Severity, Side,
    names::tcp,
    units::{percent, ratio},
};

use super::{FindingRule, flow_limited::growth};
use crate::evidence::{TestEvidence, counter_evidence};

/// Congestion control answers a mark as a loss (RFC 3168 section 6.1.2), and from this share of losses on these hold a stream back.
const HOLDS_BACK: f64 = 1e-3;
/// Fewer marks are single events.
const MARKS_MIN: u64 = 20;

/// Compares the segments whose acknowledgment had the echo of a mark with all that a host sent over its connections. A receiver repeats the echo
/// until the sender has answered it (RFC 3168 section 6.1.3), so that fewer were marked.
pub(crate) struct CongestionMarks;

impl FindingRule for CongestionMarks {
    fn id(&self) -> &'static str {
        "congestion-marks"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper", "receive-window", "send-buffer"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if seen.reached_target() {
            return Vec::new();
        }
        seen.hosts().filter_map(|host| self.of_sender(seen, host)).collect()
    }
}

impl CongestionMarks {
    fn of_sender(&self, seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
        let flows = || {
            let sides = [Side::Initiator, Side::Responder].into_iter().filter(|side| seen.host_of(*side) == Some(host));
            sides.flat_map(|side| seen.measured_flows(side))
        };
        let sum = |counter| flows().map(|(_, samples)| growth(samples, counter)).sum::<u64>();
        let (n_marked, n_sent) = (sum(tcp::DELIVERED_CE), sum(tcp::SEGMENTS_OUT));
        let share = ratio(n_marked, n_sent).filter(|share| n_marked >= MARKS_MIN && *share >= HOLDS_BACK)?;
        // BBR of Linux ignores them (`net/ipv4/tcp_bbr.c`).
        let is_answered = seen.congestion_control(host).is_none_or(|name| !name.starts_with("bbr"));
        let (severity, answer) = if is_answered {
            (Severity::HoldsBack, "its connections slowed down")
        } else {
            (Severity::Remark, "its congestion control (bbr) ignores them")
        };
        let title = format!(
            "a device on the path marked TCP segments of {host} as \"congestion experienced\" (ECN), and {answer}: {} of the \
             segments were acknowledged with the echo of a mark",
            percent(share)
        );
        Some(
            seen.finding(self.id(), severity, "ECN marks", title)
                .evidence([
                    counter_evidence(host, tcp::DELIVERED_CE, n_marked),
                    counter_evidence(host, tcp::SEGMENTS_OUT, n_sent),
                ])
                .next(
                    NextStep::new("tc -s qdisc show")
                        .on(host)
                        .expected("show the queue that marks (ecn_mark), if it is one of this host"),
                ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{
        record::{Flow, FlowSample},
        units::Nanos,
    };

    fn marked(n: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        let at = |tenth: u64| FlowSample {
            at_ns: Nanos::from_millis(100 * tenth),
            values: [(tcp::SEGMENTS_OUT, tenth * 1000), (tcp::DELIVERED_CE, tenth * n)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        };
        let flow = Flow { id: "a:1 b:2".to_owned(), samples: vec![at(0), at(9)] };
        builder.run.tests[0].trials[0].records.get_mut("client").unwrap().flows = vec![flow];
        builder
    }

    #[test]
    fn marks_of_a_device_are_told_with_their_share() {
        let finding = marked(250).finding("congestion-marks").unwrap();
        assert_eq!(
            finding.title,
            "a device on the path marked TCP segments of client as \"congestion experienced\" (ECN), and its connections slowed down: 25 % of the \
             segments were acknowledged with the echo of a mark"
        );
        assert_eq!(marked(0).finding("congestion-marks"), None);
        let mut builder = marked(250);
        builder.run.hosts.get_mut("client").unwrap().environment.note("tcp", "congestion_control", "bbr");
        let finding = builder.finding("congestion-marks").unwrap();
        assert!(finding.severity == Severity::Remark && finding.title.contains("(bbr) ignores them"), "{finding:?}");
    }
}

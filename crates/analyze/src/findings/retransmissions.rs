//! TCP sent segments again.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::host::{TCP_OUT_SEGMENTS, TCP_RETRANS_SEGMENTS, TCP_TIMEOUTS},
    units::{percent, ratio},
};

use super::{Cause, Evidenced, counted};

/// From one segment in a thousand on, loss bears on the rate.
const HOLDS_BACK: f64 = 1e-3;
/// Fewer segments than this are too few for a share.
const SEGMENTS_MIN: u64 = 1000;

/// Compares what was sent again with what was sent, on each host.
pub(crate) struct Retransmissions;

impl Cause for Retransmissions {
    fn id(&self) -> &'static str {
        "retransmissions"
    }

    fn look(&self, seen: &Evidenced<'_>) -> Vec<Finding> {
        if !matches!(seen.test.layer, Layer::Tcp | Layer::Http) {
            return Vec::new();
        }
        let share = |host: &&str| {
            let (again, all) =
                (seen.growth(host, TCP_RETRANS_SEGMENTS, None), seen.growth(host, TCP_OUT_SEGMENTS, None));
            ratio(again, all).filter(|_| all >= SEGMENTS_MIN)
        };
        let worst = seen.hosts().filter_map(|host| Some((host, share(&host)?))).max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((host, share)) = worst.filter(|(_, share)| *share > HOLDS_BACK) else { return Vec::new() };
        let counters = [TCP_RETRANS_SEGMENTS, TCP_OUT_SEGMENTS, TCP_TIMEOUTS];
        vec![Finding {
            id: self.id().to_owned(),
            short: "retransmissions".to_owned(),
            title: format!("{host} sent {} of its TCP segments again: the path loses or reorders them", percent(share)),
            severity: Severity::HoldsBack,
            tests: vec![seen.test.name.clone()],
            evidence: counters.map(|counter| counted(host, counter, seen.growth(host, counter, None))).to_vec(),
            explains: None,
            next: Some(NextStep {
                command: format!("tc -s qdisc show dev {0}; ip -s link show dev {0}", seen.interface(host)),
                on: Some(host.to_owned()),
                expected: Some("shows whether this host's own queue drops, or the network behind it".to_owned()),
            }),
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Story;

    fn with_retransmissions(n: u64) -> Story {
        let mut story = Story::new();
        story.tcp_stream(&[1000, 1000]);
        story.host_counter("client", (TCP_OUT_SEGMENTS, ""), 100_000);
        story.host_counter("client", (TCP_RETRANS_SEGMENTS, ""), n);
        story
    }

    #[test]
    fn a_path_that_loses_segments_is_found_at_its_sender() {
        let finding = with_retransmissions(500).finding("retransmissions").unwrap();
        assert!(finding.title.starts_with("client sent 0.50 % of its TCP segments again"), "{}", finding.title);
        assert_eq!(finding.evidence[0].value, "1,000");
    }

    #[test]
    fn one_segment_in_two_thousand_is_no_cause() {
        assert_eq!(with_retransmissions(50).finding("retransmissions"), None);
    }
}

//! TCP sent segments again.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::host::{
        DEV_RX_DROPPED, DEV_TX_DROPPED, SOFTNET_DROPPED, TCP_DSACK_SEGMENTS, TCP_IN_ERRORS, TCP_OUT_SEGMENTS,
        TCP_RETRANS_SEGMENTS, TCP_TIMEOUTS,
    },
    units::{approximate, grouped, percent, ratio},
};

use super::{Cause, Evidenced, counted};

/// From one segment in a thousand on, loss bears on the rate.
const HOLDS_BACK: f64 = 1e-3;
/// Fewer segments than this are too few for a share.
const SEGMENTS_MIN: u64 = 1000;
/// From this share of repeats that had arrived before on, order was lost and not segments.
const NEEDLESS: f64 = 0.5;
/// Every place of a host that may drop a segment and counts it.
const DROPS: [&str; 4] = [SOFTNET_DROPPED, DEV_RX_DROPPED, DEV_TX_DROPPED, TCP_IN_ERRORS];

/// Compares what was sent again with what was sent, on each host, and says what the counters know of the reason.
pub(crate) struct Retransmissions;

impl Cause for Retransmissions {
    fn id(&self) -> &'static str {
        "retransmissions"
    }

    fn look(&self, seen: &Evidenced<'_>) -> Vec<Finding> {
        if !matches!(seen.test.layer, Layer::App | Layer::Http | Layer::Tcp) {
            return Vec::new();
        }
        let share = |host: &&str| {
            let (again, all) =
                (seen.growth(host, TCP_RETRANS_SEGMENTS, None), seen.growth(host, TCP_OUT_SEGMENTS, None));
            ratio(again, all).filter(|_| all >= SEGMENTS_MIN)
        };
        let worst = seen.hosts().filter_map(|host| Some((host, share(&host)?))).max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((host, share)) = worst.filter(|(_, share)| *share > HOLDS_BACK) else { return Vec::new() };
        let counters = [TCP_RETRANS_SEGMENTS, TCP_OUT_SEGMENTS, TCP_TIMEOUTS, TCP_DSACK_SEGMENTS];
        let counters = counters.map(|counter| (counter, seen.growth(host, counter, None)));
        let told = counters.iter().filter(|(counter, n)| *n > 0 || *counter != TCP_DSACK_SEGMENTS);
        let (why, needless) = reason(seen, host);
        vec![Finding {
            id: self.id().to_owned(),
            short: "resent".to_owned(),
            title: format!("{} of the TCP segments of {host} were sent again: {why}", percent(share)),
            severity: if needless { Severity::Remark } else { Severity::HoldsBack },
            tests: vec![seen.test.name.clone()],
            evidence: told.map(|(counter, n)| counted(host, counter, *n)).collect(),
            explains: None,
            next: (!needless).then(|| NextStep {
                command: format!("tc -s qdisc show dev {0}; ip -s link show dev {0}", seen.interface(host)),
                on: Some(host.to_owned()),
                expected: Some("show whether this host's own queue drops, or the network behind it".to_owned()),
            }),
        }]
    }
}

/// What the counters say of the reason, and whether it was needless because the segments had arrived, out of order.
fn reason(seen: &Evidenced<'_>, host: &str) -> (String, bool) {
    let again = seen.growth(host, TCP_RETRANS_SEGMENTS, None);
    let known = seen.growth(host, TCP_DSACK_SEGMENTS, None);
    if approximate(known) >= NEEDLESS * approximate(again) {
        return (format!("{} of {} had arrived already, out of order", grouped(known), grouped(again)), true);
    }
    let of_host = |host| DROPS.iter().map(|counter| seen.growth(host, counter, None)).max().unwrap_or(0);
    let n_dropped = seen.hosts().map(of_host).max().unwrap_or(0);
    // Between two ends of one machine there is no place that drops and does not count.
    let all_counted = seen.one_machine() && seen.hosts().all(|host| seen.is_memory(host));
    match (n_dropped, all_counted) {
        (0, true) => ("nothing was dropped, they arrived out of order".to_owned(), true),
        (0, false) => ("these hosts dropped none, so the network between them loses or reorders".to_owned(), false),
        (n, _) => (format!("these hosts dropped {}", grouped(n)), false),
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
        assert!(finding.title.starts_with("0.50 % of the TCP segments of client were sent again"), "{}", finding.title);
        assert_eq!((finding.evidence[0].value.as_str(), finding.severity), ("1,000", Severity::HoldsBack));
    }

    #[test]
    fn what_had_arrived_already_was_sent_again_needlessly() {
        let mut story = with_retransmissions(500);
        story.host_counter("client", (TCP_DSACK_SEGMENTS, ""), 450);
        let finding = story.finding("retransmissions").unwrap();
        assert!(finding.title.ends_with("900 of 1,000 had arrived already, out of order"), "{}", finding.title);
        assert_eq!((finding.severity, finding.next), (Severity::Remark, None));
    }

    #[test]
    fn one_segment_in_two_thousand_is_no_cause() {
        assert_eq!(with_retransmissions(50).finding("retransmissions"), None);
    }
}

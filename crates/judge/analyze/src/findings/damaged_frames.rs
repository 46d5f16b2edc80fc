//! Frames reach a card damaged.

use fathom_model::{Finding, Layer, NextStep, names::host};

use super::{
    FindingRule,
    drops::{DropReport, packets_received},
};
use crate::{
    conservation,
    evidence::{TestEvidence, counter_evidence},
};

/// The id of these findings.
pub(super) const DAMAGED_FRAMES: &str = "damaged-frames";

/// Looks at the frames that a card dropped for a wrong checksum, length or alignment, which a cable, a transceiver or a port damaged.
///
/// Every frame that a card takes over a wire was checked, and a good link damages less than one in 10^12 bits (IEEE 802.3), so that any share that is
/// reported for other drops is one here too. Virtual cards have no wire and count none.
pub(crate) struct DamagedFrames;

impl FindingRule for DamagedFrames {
    fn id(&self) -> &'static str {
        DAMAGED_FRAMES
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["link-down"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // A test of the path sends little.
        if seen.test.layer == Layer::Path {
            return Vec::new();
        }
        let of_card = |(host, card): (&str, &str)| {
            let grown = |counter: &str| seen.growth(host, counter, Some(card));
            let n = conservation::damaged_frames(grown);
            let counted = [host::DEV_RX_DAMAGED, host::DEV_RX_ERRORS].into_iter().filter(|counter| grown(counter) > 0);
            let shown = |counter| counter_evidence(host, format!("{counter} {card}"), grown(counter));
            let report =
                DropReport {
                    id: self.id(),
                    short: "damaged frames",
                    host,
                    what: format!("frames reach {card} of {host} damaged: a cable, a transceiver or a port is bad"),
                    evidence: counted.map(shown).collect(),
                    n,
                    of: n + packets_received(seen, host),
                    next: Some(NextStep::new(format!("ethtool -S {card}; ethtool -m {card}")).expected(
                        "show which errors, and the light that arrives; replace the cable or the transceiver",
                    )),
                };
            report.into_finding_by_time(seen)
        };
        let cards = seen.hosts().flat_map(|host| seen.cards(host).into_iter().map(move |card| (host, card)));
        cards.filter_map(of_card).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::Severity;

    fn damaged(counter: &str, n: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 9_500)]);
        builder.wire("10000000000", "1500");
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 9_500);
        for known in [host::DEV_RX_DAMAGED, host::DEV_RX_ERRORS] {
            builder.host_counter("target", (known, "eth0"), if known == counter { n } else { 0 });
        }
        builder
    }

    #[test]
    fn a_bad_cable_is_the_cause_of_what_it_loses() {
        for counter in [host::DEV_RX_DAMAGED, host::DEV_RX_ERRORS] {
            let run = damaged(counter, 500).analyzed();
            let title = "frames reach eth0 of target damaged: a cable, a transceiver or a port is bad: 500 dropped of 10,000 (5.0 %)";
            assert_eq!((run.findings[0].id.as_str(), run.findings[0].title.as_str()), (DAMAGED_FRAMES, title));
            assert_eq!((run.findings[0].severity, run.findings[0].explains), (Severity::HoldsBack, Some(1.0)));
        }
    }

    #[test]
    fn frames_without_room_are_not_damaged() {
        let mut builder = damaged(host::DEV_RX_ERRORS, 500);
        builder.host_counter("target", (host::DEV_RX_MISSED, "eth0"), 500);
        assert_eq!(builder.finding(DAMAGED_FRAMES), None);
        assert_eq!(damaged(host::DEV_RX_DAMAGED, 0).finding(DAMAGED_FRAMES), None);
    }

    #[test]
    fn segments_that_are_sent_again_for_damaged_frames_are_their_effect() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[125_000_000]);
        builder.host_counter("client", (host::TCP_OUT_SEGMENTS, ""), 1_000);
        builder.host_counter("client", (host::TCP_RETRANS_SEGMENTS, ""), 40);
        builder.wire("10000000000", "1500");
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 960);
        builder.host_counter("target", (host::DEV_RX_DAMAGED, "eth0"), 40);
        let run = builder.analyzed();
        assert_eq!(run.findings[0].id, DAMAGED_FRAMES, "{:#?}", run.findings);
    }
}

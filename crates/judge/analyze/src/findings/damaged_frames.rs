//! Frames reach a card damaged.

use fathom_model::{Finding, Layer, NextStep, names::host};

use super::{
    FindingRule,
    drops::{DropReport, may_lose_at_arrival, packets_received},
};
use crate::evidence::{TestEvidence, counter_evidence};

/// The id of these findings.
pub(super) const DAMAGED_FRAMES: &str = "damaged-frames";

/// Looks at the frames that a card dropped for a wrong checksum or alignment, which a cable, a transceiver or a port damaged.
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
        // A test of the path sends little, and frames without a receiver are dropped on purpose.
        if seen.test.layer == Layer::Path || seen.test.layer == Layer::Frames && seen.test.to.is_none() {
            return Vec::new();
        }
        let hosts = seen.hosts().filter(|host| may_lose_at_arrival(seen, host));
        let cards = hosts.flat_map(|host| seen.cards(host).into_iter().map(move |card| (host, card)));
        cards.filter_map(|place| self.of_card(seen, place)).collect()
    }
}

impl DamagedFrames {
    fn of_card(&self, seen: &TestEvidence<'_>, (host, card): (&str, &str)) -> Option<Finding> {
        let n = seen.growth(host, host::DEV_RX_DAMAGED, Some(card));
        let next = NextStep::new(format!("ethtool -S {card}; ethtool -m {card}"))
            .expected("show which errors, and the light that arrives; replace the cable or the transceiver");
        let report = DropReport {
            id: self.id(),
            short: "damaged frames",
            host,
            what: format!("frames reach {card} of {host} damaged: a cable, a transceiver or a port is bad"),
            evidence: vec![counter_evidence(host, format!("{} {card}", host::DEV_RX_DAMAGED), n)],
            n,
            of: n + packets_received(seen, host),
            next: Some(next),
        };
        report.into_finding_by_time(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::Severity;

    fn damaged(host: &str, n: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 9_500)]);
        builder.wire("10000000000", "1500");
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 9_500);
        builder.host_counter(host, (host::DEV_RX_DAMAGED, "eth0"), n);
        builder
    }

    #[test]
    fn a_bad_cable_is_the_cause_of_what_it_loses() {
        let run = damaged("target", 500).analyzed();
        let title = "frames reach eth0 of target damaged: a cable, a transceiver or a port is bad: 500 dropped of 10,000 (5.0 %)";
        assert_eq!((run.findings[0].id.as_str(), run.findings[0].title.as_str()), (DAMAGED_FRAMES, title));
        assert_eq!((run.findings[0].severity, run.findings[0].explains), (Severity::HoldsBack, Some(1.0)));
        assert_eq!(damaged("target", 0).finding(DAMAGED_FRAMES), None);
        assert_eq!(damaged("client", 500).finding(DAMAGED_FRAMES), None, "it loses nothing of what it sends");
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

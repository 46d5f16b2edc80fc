//! The receive ring of a network card was full.

use fathom_model::{Finding, Layer, names::host};

use super::{
    FindingRule,
    drops::{DropReport, longer_ring, may_lose_at_arrival, packets_received, ring},
};
use crate::{
    change::{Change, lower_rate},
    evidence::{TestEvidence, counter_evidence},
};

/// The id of these findings.
pub(super) const RING_DROPS: &str = "ring-drops";

/// Looks at the frames that a card dropped because the kernel had not emptied its ring (`rx_missed_errors`).
///
/// The card has no other counter for them, and the kernel never saw them: the core that empties the ring came too late, or the ring is short.
/// Drops below one in a hundred thousand are silent, as for all devices, unless the test accounts for every packet; so are cards without the
/// counter.
pub(crate) struct RingDrops;

impl FindingRule for RingDrops {
    fn id(&self) -> &'static str {
        RING_DROPS
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["link-down", "receive-budget", "one-core-receives"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Frames without a receiver are dropped on purpose.
        if seen.test.layer == Layer::Frames && seen.test.to.is_none() {
            return Vec::new();
        }
        let hosts = seen.hosts().filter(|host| may_lose_at_arrival(seen, host));
        hosts
            .flat_map(|host| seen.cards(host).into_iter().filter_map(move |card| self.of_card(seen, (host, card))))
            .collect()
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        lower_rate(seen)
    }
}

impl RingDrops {
    fn of_card(&self, seen: &TestEvidence<'_>, (host, card): (&str, &str)) -> Option<Finding> {
        let n = seen.growth(host, host::DEV_RX_MISSED, Some(card));
        let dropped = DropReport {
            id: self.id(),
            short: "rx ring full",
            host,
            what: format!("the receive ring of {card} on {host} was full{}", ring_text(seen, (host, card))),
            evidence: vec![counter_evidence(host, format!("{} {card}", host::DEV_RX_MISSED), n)],
            n,
            of: n + packets_received(seen, host),
            next: Some(longer_ring(seen, (host, card))),
        };
        dropped.into_finding(seen)
    }
}

fn ring_text(seen: &TestEvidence<'_>, place: (&str, &str)) -> String {
    ring(seen, place).map_or_else(String::new, |(now, max)| format!(" ({now} of at most {max} frames)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::Severity;

    fn missed(n: u64, ring: Option<(&str, &str)>) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 10_000 - n)]);
        builder.wire("10000000000", "1500");
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 10_000 - n);
        builder.host_counter("target", (host::DEV_RX_MISSED, "eth0"), n);
        // `/proc/net/dev` counts them among the drops of the device.
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), n);
        if let Some((now, max)) = ring {
            let target = &mut builder.run.hosts.get_mut("target").unwrap().environment;
            target.note("eth0", "ring_rx", now);
            target.note("eth0", "ring_rx_max", max);
        }
        builder
    }

    #[test]
    fn a_short_ring_is_named_with_the_largest_that_the_card_has_and_told_once() {
        let builder = missed(500, Some(("512", "4096")));
        let finding = builder.finding("ring-drops").unwrap();
        assert_eq!(
            finding.title,
            "the receive ring of eth0 on target was full (512 of at most 4096 frames): 500 dropped of 10,000 (5.0 %)"
        );
        assert_eq!((finding.severity, finding.explains), (Severity::HoldsBack, Some(1.0)));
        assert_eq!(finding.next.unwrap().command, "ethtool -G eth0 rx 4096");
        assert_eq!(builder.finding("device-receive-drops"), None);
    }

    #[test]
    fn a_ring_of_full_size_cannot_be_lengthened() {
        let next = missed(500, Some(("4096", "4096"))).finding("ring-drops").unwrap().next.unwrap();
        assert_eq!(next.command, "ethtool -S eth0");
        assert!(missed(500, None).finding("ring-drops").is_some(), "without a known size");
    }

    #[test]
    fn the_ring_of_the_card_below_a_vlan_is_named() {
        let mut builder = missed(500, Some(("512", "4096")));
        let target = builder.run.hosts.get_mut("target").unwrap();
        target.interface = Some("eth0.7".to_owned());
        target.environment.note("eth0.7", "lower", "eth0");
        let finding = builder.finding("ring-drops").unwrap();
        assert!(finding.title.starts_with("the receive ring of eth0 on target was full"), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "ethtool -G eth0 rx 4096");
    }

    #[test]
    fn a_ring_that_held_all_is_silent() {
        assert_eq!(missed(0, Some(("512", "4096"))).finding("ring-drops"), None);
    }
}

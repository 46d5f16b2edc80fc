//! Frames reached a host for another Ethernet address than its own.

use fathom_model::{
    Finding, Layer, NextStep, Side,
    names::{count, host},
};

use super::{FindingRule, drops::DropReport, neighbor_changes::NEIGHBOR_CHANGES};
use crate::evidence::{TestEvidence, counter_evidence};

/// Fewer packets explain nothing.
const PACKETS_MIN: u64 = 10;

/// Looks for a wrong or stale neighbor entry: of the sender, or of the last router.
///
/// A switch floods frames for others to every port, so only about as many as the test lost are the test's. Only UDP counts what it lost in a
/// direction, and probes those without an answer. A card that is not promiscuous drops such frames itself, and nothing counts them there.
pub(crate) struct OtherMac;

impl FindingRule for OtherMac {
    fn id(&self) -> &'static str {
        "other-mac"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[NEIGHBOR_CHANGES]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let is_counted = seen.test.layer == Layer::Udp || seen.probes_lost().is_some();
        if !is_counted || !seen.test.links.is_empty() {
            return Vec::new();
        }
        seen.hosts().filter_map(|host| self.on_host(seen, host)).collect()
    }
}

impl OtherMac {
    fn on_host(&self, seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
        let counted = |interface| (interface, seen.growth(host, host::DEV_RX_OTHER_HOST, Some(interface)));
        let (interface, n) = seen.devices(host).into_iter().map(counted).max_by_key(|(_, n)| *n)?;
        let lost = lost_towards(seen, host).filter(|lost| (lost / 2..=lost.saturating_mul(2)).contains(&n))?;
        if n < PACKETS_MIN {
            return None;
        }
        let report = DropReport {
            id: self.id(),
            short: "other MAC",
            host,
            what: frames_for_others(host, interface),
            evidence: vec![counter_evidence(host, format!("{} {interface}", host::DEV_RX_OTHER_HOST), n)],
            n,
            of: seen.growth(host, host::DEV_RX_FRAMES, Some(interface)).max(lost),
            next: Some(compare_addresses(interface)),
        };
        report.into_finding(seen)
    }
}

/// Describes such frames.
pub(super) fn frames_for_others(host: &str, interface: &str) -> String {
    format!("frames with a destination Ethernet address other than its own reached {interface} of {host}")
}

/// Shows the address that the frames should have.
pub(super) fn compare_addresses(interface: &str) -> NextStep {
    NextStep::new(format!("ip link show {interface}"))
        .expected("show its Ethernet address; compare it with the entry in ip neigh on the sender or the last router")
}

/// Returns the packets that a test lost on the way to a host, or on either way of its transactions; `None` if nobody counts them.
fn lost_towards(seen: &TestEvidence<'_>, host: &str) -> Option<u64> {
    match seen.total(Side::Initiator, count::TRANSACTIONS_LOST) {
        0 => seen.packets_lost().filter(|_| seen.one_way().and_then(|(_, to)| seen.host_of(to)) == Some(host)),
        lost => Some(lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    fn stream(received: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, received)]);
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 10_010);
        builder
    }

    #[test]
    fn frames_for_another_ethernet_address_lead_where_as_many_packets_were_lost() {
        let mut builder = stream(0);
        builder.host_counter("target", (host::DEV_RX_OTHER_HOST, "eth0"), 10_000);
        let run = builder.analyzed();
        let first = &run.findings[0];
        assert_eq!((first.id.as_str(), first.explains), ("other-mac", Some(1.0)), "{:#?}", run.findings);
        let words = "frames with a destination Ethernet address other than its own reached eth0 of target: 10,000";
        assert!(first.title.starts_with(words), "{}", first.title);
        assert!(!run.findings.iter().any(|other| other.title.contains("a filter on")), "{:#?}", run.findings);
    }

    #[test]
    fn the_answers_of_transactions_may_be_for_another_address_too() {
        let mut builder = stream(0);
        builder.total("client", count::TRANSACTIONS_LOST, 10_000);
        builder.host_counter("client", (host::DEV_RX_OTHER_HOST, "eth0"), 10_000);
        let run = builder.analyzed();
        assert_eq!(run.findings[0].id, "other-mac", "{:#?}", run.findings);
        assert!(!run.findings.iter().any(|other| other.title.contains("a filter on")), "{:#?}", run.findings);
    }

    #[test]
    fn what_a_switch_floods_is_not_the_tests() {
        for (host, interface, n) in
            [("target", "eth0", 50_000), ("target", "eth0", 400), ("target", "eth1", 1_000), ("client", "eth0", 1_000)]
        {
            let mut builder = stream(9_000);
            builder.host_counter(host, (host::DEV_RX_OTHER_HOST, interface), n);
            assert_eq!(builder.finding("other-mac"), None, "{n} on {interface} of {host}, and 1,000 lost");
        }
    }
}

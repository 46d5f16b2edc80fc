//! Nobody answered for the next hop of a test that got nothing through.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::host::{NEIGHBOR_FAILED, NEIGHBOR_UNRESOLVED as UNRESOLVED_PACKETS},
};

use super::{
    FindingRule, drops::PACKETS_MIN, duplicate_address::DUPLICATE_ADDRESS, host_drops::NEIGHBOR_UNRESOLVED,
    link_down::LINK_DOWN, planned_event::PLANNED_EVENT,
};
use crate::evidence::{TestEvidence, counter_evidence};

/// Looks for the neighbor that a test is sent to and that nobody answered for, where the test got nothing through: one that waits for an answer
/// before it sends more loses so few packets that none of them is dropped for want of room, which has a rule of its own.
///
/// Silent if anything arrived, and if several neighbors of the test's interface do not answer and the other host of the test is none of them: hosts
/// look for neighbors that are gone all the time.
pub(crate) struct NoNeighbor;

impl FindingRule for NoNeighbor {
    fn id(&self) -> &'static str {
        NEIGHBOR_UNRESOLVED
    }

    fn effect_of(&self) -> &'static [&'static str] {
        // A host answers nobody to whom it has no route back.
        &[LINK_DOWN, DUPLICATE_ADDRESS, "reverse-path-filter", "martian-packets", PLANNED_EVENT]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let is_told = seen.machines().any(|host| seen.growth(host, UNRESOLVED_PACKETS, None) >= PACKETS_MIN);
        if !seen.got_nothing_through() || is_told || seen.test.layer == Layer::Frames || seen.provokes_losses() {
            return Vec::new();
        }
        seen.hosts().find_map(|host| self.on_host(seen, host)).into_iter().collect()
    }
}

impl NoNeighbor {
    fn on_host(&self, seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
        let interface = seen.interface(host);
        let failed: Vec<(&str, u64)> = seen
            .growth_by_instance(host, NEIGHBOR_FAILED)
            .into_iter()
            .filter_map(|(of, n)| {
                of.split_once(' ').filter(|(name, _)| *name == interface).map(|(_, address)| (address, n))
            })
            .collect();
        let is_peer = |address: &str| seen.run.hosts.values().any(|other| other.address.as_deref() == Some(address));
        let (address, n) = match failed.as_slice() {
            // It may be the gateway.
            [only] => *only,
            several => *several.iter().find(|(address, _)| is_peer(address))?,
        };
        let perhaps = if is_peer(address) { "" } else { " (perhaps the gateway)" };
        let title = format!(
            "nobody answers {host} for the Ethernet address of {address}{perhaps} on {interface} (ARP or neighbor discovery)"
        );
        Some(
            seen.finding(self.id(), Severity::HoldsBack, "no neighbor", title)
                .evidence([counter_evidence(host, format!("{NEIGHBOR_FAILED} {interface} {address}"), n)])
                .next(
                    NextStep::new("ip neigh show nud failed")
                        .on(host)
                        .expected("show the addresses that nobody answers for"),
                ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_next_hop_that_nobody_answers_for_is_why_nothing_came() {
        let asked = |per_second: u64, failed: &[&str]| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(per_second, 1);
            for of in failed {
                builder.host_counter("client", (NEIGHBOR_FAILED, of), 2);
            }
            builder
        };
        let title = |builder: &RunBuilder| builder.finding(NEIGHBOR_UNRESOLVED).map(|finding| finding.title);
        let told = "nobody answers client for the Ethernet address of 198.18.0.2 on eth0 (ARP or neighbor discovery)";
        assert_eq!(title(&asked(0, &["eth0 198.18.0.9", "eth0 198.18.0.2"])).as_deref(), Some(told));
        assert!(title(&asked(0, &["eth0 198.18.0.254"])).is_some(), "a gateway");
        assert_eq!(title(&asked(0, &["eth0 198.18.0.8", "eth0 198.18.0.9"])), None);
        assert_eq!(title(&asked(0, &["eth1 198.18.0.2"])), None, "another interface");
        assert_eq!(title(&asked(1_000, &["eth0 198.18.0.2"])), None, "it got something through");
        let mut dropped = asked(0, &["eth0 198.18.0.2"]);
        dropped.host_counter("client", (UNRESOLVED_PACKETS, ""), 40);
        assert_eq!(dropped.analyzed().findings.iter().filter(|found| found.id == NEIGHBOR_UNRESOLVED).count(), 1);
    }
}

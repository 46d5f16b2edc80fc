//! The Ethernet address of a neighbor changed during the test.

use fathom_model::{Finding, Layer, NextStep, Severity, names::host, units::grouped};

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence};

/// Looks for neighbors that were at one Ethernet address and then at another.
///
/// Two hosts with one address take turns, since the newest ARP answer wins (RFC 5227 section 1.1); a router that another one replaces does
/// so once. Packets went to two places meanwhile.
pub(crate) struct NeighborChanges;

impl FindingRule for NeighborChanges {
    fn id(&self) -> &'static str {
        "neighbor-changes"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if seen.test.layer == Layer::Frames {
            return Vec::new();
        }
        seen.hosts().filter_map(|host| self.on_host(seen, host)).collect()
    }
}

impl NeighborChanges {
    fn on_host(&self, seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
        let grown = seen.growth_by_instance(host, host::NEIGHBOR_CHANGES);
        let of_test = |of: &str| {
            seen.run.hosts.values().any(|other| other.address.as_deref() == of.split_once(' ').map(|(_, of)| of))
        };
        // The other end of the test says more than a neighbor that may be its router or no matter at all.
        let (of, n) = grown.iter().find(|(of, _)| of_test(of)).or(grown.first())?;
        let (interface, address) = of.split_once(' ')?;
        let is_of_test = of_test(of);
        let times = if *n == 1 { "once".to_owned() } else { format!("{} times", grouped(*n)) };
        // arping speaks IPv4 only.
        let command = if address.contains(':') {
            format!("ndisc6 -m {address} {interface}")
        } else {
            format!("arping -c 5 -I {interface} {address}")
        };
        let next = NextStep::new(command)
            .expected("show whether two Ethernet addresses answer; then two hosts have this address");
        let severity = if is_of_test { Severity::Disturbs } else { Severity::Remark };
        let title = format!(
            "the Ethernet address of {address} on {interface} of {host} changed {times}: two hosts have this address, or one took \
                 over from another"
        );
        Some(
            seen.finding(self.id(), severity, "mac changed", title)
                .evidence(
                    grown.iter().map(|(of, n)| counter_evidence(host, format!("{} {of}", host::NEIGHBOR_CHANGES), *n)),
                )
                .next(next.on(host)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn the_other_end_at_another_ethernet_address_disturbs() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.host_counter("client", (host::NEIGHBOR_CHANGES, "eth0 198.18.0.2"), 0);
        assert_eq!(builder.finding("neighbor-changes"), None);
        builder.host_counter("client", (host::NEIGHBOR_CHANGES, "eth0 198.18.0.9"), 7);
        let finding = builder.finding("neighbor-changes").unwrap();
        assert_eq!(finding.severity, Severity::Remark, "a neighbor that the test may not need");
        builder.host_counter("client", (host::NEIGHBOR_CHANGES, "eth0 198.18.0.2"), 2);
        let finding = builder.finding("neighbor-changes").unwrap();
        let title = "the Ethernet address of 198.18.0.2 on eth0 of client changed 2 times: two hosts have this address, or one took over \
                     from another";
        assert_eq!((finding.title.as_str(), finding.severity), (title, Severity::Disturbs));
        assert_eq!(finding.next.unwrap().command, "arping -c 5 -I eth0 198.18.0.2");
    }

    #[test]
    fn without_the_counter_nothing_is_claimed() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        assert_eq!(builder.finding("neighbor-changes"), None);
    }
}

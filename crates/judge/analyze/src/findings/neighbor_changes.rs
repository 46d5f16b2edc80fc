//! The Ethernet address of a neighbor changed during the test.

use fathom_model::{
    Finding, Layer, NextStep, Severity, Side,
    names::{count, host},
    units::grouped,
};

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence, explained_ratio};

/// The id of these findings.
pub(super) const NEIGHBOR_CHANGES: &str = "neighbor-changes";
/// An entry that changes and changes back: two hosts answer in turns. One change may be a router that takes over from another.
const IN_TURNS: u64 = 2;

/// Looks for neighbors that were at one Ethernet address and then at another.
///
/// Two hosts with one address take turns, since the newest ARP answer wins (RFC 5227 section 1.1); a router that another one replaces does
/// so once. Packets went to two places meanwhile.
pub(crate) struct NeighborChanges;

impl FindingRule for NeighborChanges {
    fn id(&self) -> &'static str {
        NEIGHBOR_CHANGES
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
        let severity = match *n {
            _ if !is_of_test || lost_from(seen, host) == 0 => Severity::Remark,
            ..IN_TURNS => Severity::Disturbs,
            _ => Severity::HoldsBack,
        };
        let title = format!(
            "the Ethernet address of {address} on {interface} of {host} changed {times}: two hosts have this address, or one took \
                 over from another"
        );
        Some(
            seen.finding(self.id(), severity, "mac changed", title)
                .evidence(
                    grown.iter().map(|(of, n)| counter_evidence(host, format!("{} {of}", host::NEIGHBOR_CHANGES), *n)),
                )
                .explains(explained_ratio(sent_elsewhere(seen, host), seen.packets_lost()).filter(|share| *share > 0.0))
                .next(next.on(host)),
        )
    }
}

/// Returns the number of packets of the test that a host sent in vain, or sent again.
fn lost_from(seen: &TestEvidence<'_>, host: &str) -> u64 {
    if seen.test.layer == Layer::Udp {
        let is_sender = seen.one_way().is_some_and(|(from, _)| seen.host_of(from) == Some(host));
        let in_one_way = seen.packets_lost().filter(|_| is_sender).unwrap_or(0);
        return in_one_way + seen.total(Side::Initiator, count::TRANSACTIONS_LOST);
    }
    [host::TCP_RETRANS_SEGMENTS, host::TCP_SYN_RETRANS]
        .into_iter()
        .map(|counter| seen.growth(host, counter, None))
        .sum()
}

/// Returns the number of frames that reached other hosts with the Ethernet address of somebody else, where they count that.
fn sent_elsewhere(seen: &TestEvidence<'_>, host: &str) -> u64 {
    let others = seen.hosts().filter(|other| *other != host);
    others.map(|other| seen.growth(other, host::DEV_RX_OTHER_HOST, Some(seen.interface(other)))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn the_other_end_at_two_ethernet_addresses_in_turns_holds_back() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.host_counter("client", (host::NEIGHBOR_CHANGES, "eth0 198.18.0.2"), 0);
        assert_eq!(builder.finding("neighbor-changes"), None);
        builder.host_counter("client", (host::NEIGHBOR_CHANGES, "eth0 198.18.0.9"), 7);
        let finding = builder.finding("neighbor-changes").unwrap();
        assert_eq!(finding.severity, Severity::Remark, "a neighbor that the test may not need");
        builder.host_counter("client", (host::NEIGHBOR_CHANGES, "eth0 198.18.0.2"), 2);
        let finding = builder.finding("neighbor-changes").unwrap();
        assert_eq!(finding.severity, Severity::Remark, "nothing was lost");
        builder.host_counter("client", (host::TCP_RETRANS_SEGMENTS, ""), 40);
        let finding = builder.finding("neighbor-changes").unwrap();
        let title = "the Ethernet address of 198.18.0.2 on eth0 of client changed 2 times: two hosts have this address, or one took over \
                     from another";
        assert_eq!((finding.title.as_str(), finding.severity), (title, Severity::HoldsBack));
        assert_eq!(finding.next.unwrap().command, "arping -c 5 -I eth0 198.18.0.2");
        builder.host_counter("client", (host::NEIGHBOR_CHANGES, "eth0 198.18.0.2"), 1);
        assert_eq!(builder.finding("neighbor-changes").unwrap().severity, Severity::Disturbs, "one may take over");
    }

    #[test]
    fn without_the_counter_nothing_is_claimed() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        assert_eq!(builder.finding("neighbor-changes"), None);
    }
}

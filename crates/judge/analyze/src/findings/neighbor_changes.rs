//! The Ethernet address of a neighbor changed during the test.

use fathom_model::{
    Finding, Layer, NextStep, Severity, Side,
    names::{count, host},
    units::{grouped, ratio},
};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, counter_evidence},
    path::place_on_path,
};

/// The id of these findings.
pub(super) const NEIGHBOR_CHANGES: &str = "neighbor-changes";
/// An entry that changes and changes back: two addresses answer in turns. One change may be a router that takes over from another.
const IN_TURNS: u64 = 2;
/// Fewer lost packets than one in a thousand hold nothing back.
const LOSS_MIN: f64 = 1e-3;

/// Looks for neighbors that were at one Ethernet address and then at another.
///
/// Two hosts with one address take turns, since the newest ARP answer wins (RFC 5227 section 1.1); a router that another one replaces does
/// so once. Packets went to two places meanwhile. A host with two interfaces in one network may answer on both, and lose nothing.
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
            let address = of.split_once(' ').map(|(_, address)| address);
            seen.hosts()
                .filter(|other| *other != host)
                .any(|other| place_on_path(seen.run, seen.test, other).0 == address)
        };
        // The other end of the test says more than a neighbor that may be its router or no matter at all.
        let (of, n) = grown.iter().find(|(of, _)| of_test(of)).or(grown.first())?;
        let (interface, address) = of.split_once(' ')?;
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
            _ if !of_test(of) => Severity::Remark,
            _ if seen.provokes_losses() => Severity::Disturbs,
            n if !costs(seen, host, n) => Severity::Remark,
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
                .next(next.on(host)),
        )
    }
}

/// Returns true if a test lost packets that a host sent, or its connections stood still about as often as the entry of the host was wrong.
fn costs(seen: &TestEvidence<'_>, host: &str, n_changes: u64) -> bool {
    if let Some(lost) = seen.probes_lost() {
        return ratio(lost, seen.total(Side::Initiator, count::SENT)).is_some_and(|share| share >= LOSS_MIN);
    }
    if seen.test.layer != Layer::Udp {
        // While the entry is wrong, nothing passes, ACKs included, until a timer sends again.
        let by_timers =
            |host| seen.growth(host, host::TCP_TIMEOUTS, None) + seen.growth(host, host::TCP_LOSS_PROBES, None);
        let most = seen.hosts().map(by_timers).max().unwrap_or(0);
        return most > 0 && 2 * most >= n_changes;
    }
    if let Some(loss) = seen.transaction_loss() {
        let share = ratio(loss.n, seen.total(Side::Initiator, count::SENT));
        return loss.holds_back() || share.is_some_and(|share| share >= LOSS_MIN);
    }
    let Some((from, _)) = seen.one_way().filter(|(from, _)| seen.host_of(*from) == Some(host)) else { return false };
    seen.packets_lost()
        .and_then(|lost| ratio(lost, seen.total(from, count::SENT)))
        .is_some_and(|share| share >= LOSS_MIN)
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
        builder.host_counter("target", (host::TCP_TIMEOUTS, ""), 1);
        let finding = builder.finding("neighbor-changes").unwrap();
        let title = "the Ethernet address of 198.18.0.2 on eth0 of client changed 2 times: two hosts have this address, or one took over \
                     from another";
        assert_eq!((finding.title.as_str(), finding.severity), (title, Severity::HoldsBack));
        assert_eq!(finding.next.unwrap().command, "arping -c 5 -I eth0 198.18.0.2");
        builder.host_counter("client", (host::NEIGHBOR_CHANGES, "eth0 198.18.0.2"), 1);
        assert_eq!(builder.finding("neighbor-changes").unwrap().severity, Severity::Disturbs, "one may take over");
    }

    #[test]
    fn what_only_the_other_end_sends_is_not_lost_by_the_entry() {
        let severity = |host: &str, of: &str, received: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(10_000, received)]);
            builder.host_counter(host, (host::NEIGHBOR_CHANGES, of), 4);
            builder.finding("neighbor-changes").unwrap().severity
        };
        assert_eq!(severity("client", "eth0 198.18.0.2", 8_000), Severity::HoldsBack);
        assert_eq!(severity("client", "eth0 198.18.0.2", 9_999), Severity::Remark, "one in ten thousand");
        assert_eq!(severity("target", "eth0 198.18.0.1", 8_000), Severity::Remark, "the target sends nothing");
    }

    #[test]
    fn without_the_counter_nothing_is_claimed() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        assert_eq!(builder.finding("neighbor-changes"), None);
    }
}

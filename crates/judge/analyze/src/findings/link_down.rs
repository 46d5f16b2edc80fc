//! The interface of a host was down.

use fathom_model::{
    Finding, NextStep, Severity,
    names::{
        host as counter,
        interface_state::{DOWN, NO_CARRIER},
    },
    units::counted,
};

use super::{FindingRule, planned_event::PLANNED_EVENT};
use crate::evidence::{TestEvidence, counter_evidence, text_evidence};

/// The id of these findings.
pub(super) const LINK_DOWN: &str = "link-down";

/// Looks at the state of the interface that a host was tested on.
pub(crate) struct LinkDown;

impl FindingRule for LinkDown {
    fn id(&self) -> &'static str {
        LINK_DOWN
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let told = |link: BrokenLink<'_>| {
            seen.finding(self.id(), Severity::HoldsBack, "link down", link.what())
                .evidence([text_evidence(link.host, format!("operstate {}", link.interface), link.state)])
                .next(link.next())
        };
        broken_links(seen).into_iter().map(told).collect()
    }
}

/// An interface that a host is tested on and that carries nothing.
pub(crate) struct BrokenLink<'a> {
    host: &'a str,
    interface: &'a str,
    state: &'static str,
}

/// Returns the interfaces of the hosts that carry nothing. Of two hosts, one that is down takes the carrier from the other, which is then not told.
pub(crate) fn broken_links<'a>(seen: &TestEvidence<'a>) -> Vec<BrokenLink<'a>> {
    let on_host = |host: &'a str| {
        let interface = seen.run.hosts.get(host)?.interface.as_deref()?;
        let state = seen.environment(host)?.get(interface, "operstate")?;
        let state = [DOWN, NO_CARRIER].into_iter().find(|broken| *broken == state)?;
        Some(BrokenLink { host, interface, state })
    };
    let mut links: Vec<BrokenLink<'a>> = seen.hosts().filter_map(on_host).collect();
    if seen.hosts().count() == 2 && links.iter().any(|link| link.state == DOWN) {
        links.retain(|link| link.state == DOWN);
    }
    links
}

impl BrokenLink<'_> {
    pub(crate) fn what(&self) -> String {
        let Self { host, interface, state } = self;
        let is = if *state == DOWN { "is down" } else { "has no carrier" };
        format!("the interface {interface} of {host} {is}")
    }

    pub(crate) fn next(&self) -> NextStep {
        let Self { host, interface, state } = self;
        if *state == DOWN {
            return NextStep::new(format!("ip link set {interface} up")).on(host).expected("bring it up");
        }
        NextStep::new(format!("ip link show dev {interface}"))
            .on(host)
            .expected("show NO-CARRIER; look at the cable, the transceiver and the port at the other end")
    }
}

/// Looks for a link that lost its carrier during the test and may have it again.
pub(crate) struct LinkFlaps;

impl FindingRule for LinkFlaps {
    fn id(&self) -> &'static str {
        LINK_DOWN
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[PLANNED_EVENT]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if seen.provokes_losses() {
            return Vec::new();
        }
        seen.hosts().filter_map(|host| flaps(seen, host)).collect()
    }
}

fn flaps(seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
    // A host that is watched may have no interface with traffic.
    let of_test = seen.run.hosts.get(host)?.interface.as_deref();
    let cards = seen.cards(host);
    let changes = seen.growth_by_instance(host, counter::DEV_CARRIER_CHANGES);
    // It counts both the loss of a carrier and its return.
    let (interface, n) =
        changes.into_iter().find(|(of, _)| of_test.is_none_or(|interface| interface == *of || cards.contains(of)))?;
    let is_broken = |link: &BrokenLink<'_>| link.host == host || seen.hosts().count() == 2;
    if broken_links(seen).iter().any(is_broken) {
        return None;
    }
    let times = match n.div_ceil(2) {
        1 => "once".to_owned(),
        n => counted(n, "time"),
    };
    let title = format!("the link of {interface} on {host} went down {times}");
    let next = NextStep::new(format!("ip -s -s link show dev {interface}"))
        .on(host)
        .expected("show its carrier errors; look at the cable, the transceiver and the port at the other end");
    Some(
        seen.finding(LINK_DOWN, Severity::HoldsBack, "link flaps", title)
            .evidence([counter_evidence(host, format!("{} {interface}", counter::DEV_CARRIER_CHANGES), n)])
            .next(next),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::VerdictState;

    #[test]
    fn an_interface_that_is_down_leads_what_nothing_passed() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 0)]);
        assert_eq!(builder.finding("link-down"), None);
        let note = |builder: &mut RunBuilder, host: &str, state| {
            builder.run.hosts.get_mut(host).unwrap().environment.note("eth0", "operstate", state);
        };
        note(&mut builder, "client", NO_CARRIER);
        let run = builder.analyzed();
        assert_eq!(run.findings[0].title, "the interface eth0 of client has no carrier");
        assert_eq!(run.findings[0].next.as_ref().unwrap().command, "ip link show dev eth0");
        // The other end is the reason.
        note(&mut builder, "target", DOWN);
        let run = builder.analyzed();
        assert_eq!(run.findings[0].title, "the interface eth0 of target is down");
        assert_eq!(run.findings.iter().filter(|finding| finding.id == "link-down").count(), 1);
        assert_eq!(run.findings[0].next.as_ref().unwrap().command, "ip link set eth0 up");
        assert_eq!(run.verdict.state, VerdictState::Invalid);
        assert!(run.verdict.reasons[0].contains("is down"), "{:?}", run.verdict.reasons);
    }

    #[test]
    fn a_link_that_came_back_is_told_with_how_often_it_was_gone() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 800)]);
        builder.host_counter("target", (counter::DEV_CARRIER_CHANGES, "eth1"), 2);
        assert_eq!(builder.finding("link-down"), None, "another link");
        builder.host_counter("target", (counter::DEV_CARRIER_CHANGES, "eth0"), 4);
        let run = builder.analyzed();
        assert_eq!(run.findings[0].title, "the link of eth0 on target went down 2 times");
    }
}

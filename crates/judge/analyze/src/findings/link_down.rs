//! The interface of a host was down.

use fathom_model::{Finding, Layer, NextStep, Severity, names::host as counter, units::counted};

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
        if seen.test.layer == Layer::Path {
            return Vec::new();
        }
        let on_host = |host: &str| {
            let interface = seen.run.hosts.get(host)?.interface.as_deref()?;
            let state = seen.environment(host)?.get(interface, "operstate").filter(|state| *state == "down")?;
            let title = format!("the interface {interface} of {host} is down or has no carrier");
            Some(
                seen.finding(self.id(), Severity::HoldsBack, "link down", title)
                    .evidence([text_evidence(host, format!("operstate {interface}"), state)])
                    .next(
                        NextStep::new(format!("ip link set {interface} up"))
                            .on(host)
                            .expected("bring it up; without a carrier look at the cable and the other end"),
                    ),
            )
        };
        seen.hosts().filter_map(on_host).collect()
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
        if seen.test.layer == Layer::Path {
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
    let is_down = seen.environment(host).and_then(|env| env.get(interface, "operstate")) == Some("down");
    if is_down {
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
        builder.run.hosts.get_mut("target").unwrap().environment.note("eth0", "operstate", "down");
        let run = builder.analyzed();
        assert_eq!(run.findings[0].title, "the interface eth0 of target is down or has no carrier");
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

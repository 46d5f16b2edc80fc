//! Nobody answered for the next hop of a test that got nothing through.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::host::{NEIGHBOR_FAILED, NEIGHBOR_UNRESOLVED as UNRESOLVED_PACKETS},
    units::counted,
};

use super::{FindingRule, host_drops::NEIGHBOR_UNRESOLVED, link_down::LINK_DOWN, planned_event::PLANNED_EVENT};
use crate::{
    evidence::{TestEvidence, counter_evidence},
    summaries::main_rate,
};

/// Looks for requests for an Ethernet address that nobody answered, where a test got nothing through: one that waits for an answer before it sends
/// more loses so few packets that none of them is dropped for want of room, which has a rule of its own.
///
/// Silent if anything arrived: hosts look for neighbors that are gone all the time, and the count is that of the whole machine.
pub(crate) struct NoNeighbor;

impl FindingRule for NoNeighbor {
    fn id(&self) -> &'static str {
        NEIGHBOR_UNRESOLVED
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[LINK_DOWN, PLANNED_EVENT]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let is_nothing = main_rate(seen.test).is_some_and(|rate| rate.value == Some(0.0));
        let is_told = seen.machines().any(|host| seen.growth(host, UNRESOLVED_PACKETS, None) > 0);
        if !is_nothing || is_told || matches!(seen.test.layer, Layer::Path | Layer::Frames) {
            return Vec::new();
        }
        let on_host = |host| {
            let n = Some(seen.growth(host, NEIGHBOR_FAILED, None)).filter(|n| *n > 0)?;
            let title = format!(
                "{host} asked {} for the Ethernet address of its next hop (ARP or neighbor discovery), and nobody answered",
                counted(n, "time")
            );
            Some(
                seen.finding(self.id(), Severity::HoldsBack, "no neighbor", title)
                    .evidence([counter_evidence(host, NEIGHBOR_FAILED, n)])
                    .next(
                        NextStep::new("ip neigh show nud failed")
                            .on(host)
                            .expected("show the addresses that nobody answers for"),
                    ),
            )
        };
        seen.machines().find_map(on_host).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_next_hop_that_nobody_answers_for_is_why_nothing_came() {
        let asked = |per_second: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(per_second, 1);
            builder.host_counter("client", (NEIGHBOR_FAILED, ""), 2);
            builder
        };
        let run = asked(0).analyzed();
        let title = "client asked 2 times for the Ethernet address of its next hop (ARP or neighbor discovery), and nobody answered";
        assert_eq!(run.findings[0].title, title, "{:#?}", run.findings);
        assert_eq!(asked(1_000).finding(NEIGHBOR_UNRESOLVED), None, "others look for neighbors too");
        let mut told = asked(0);
        told.host_counter("client", (UNRESOLVED_PACKETS, ""), 40);
        assert_eq!(told.analyzed().findings.iter().filter(|found| found.id == NEIGHBOR_UNRESOLVED).count(), 1);
    }
}

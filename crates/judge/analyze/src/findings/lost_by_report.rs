//! Datagrams were lost on the way to or from a server of another tool, as one end reports.

use fathom_model::{Finding, Layer, NextStep, Severity, units::percent};

use super::{
    FindingRule, link_down::LINK_DOWN, neighbor_changes::NEIGHBOR_CHANGES, planned_event::PLANNED_EVENT,
    unexplained_loss::LOSS,
};
use crate::evidence::{TestEvidence, ratio_evidence};

/// The metric with the share of the datagrams that were lost.
const LOST: &str = "loss_ratio";
/// The share from which on a loss is a finding: one datagram in a thousand, as for all tests of datagrams.
const HOLDS_BACK: f64 = 1e-3;

/// Looks at the loss that the protocol of another tool reports (iperf3, iperf, netperf): such a server counts datagrams, but no places, so that no
/// account of these is possible. The counters of its host are read only if that is a host of the run.
///
/// A remark where a place on a host counted drops; silent where nothing arrived, which is told otherwise.
pub(crate) struct LostByReport;

impl FindingRule for LostByReport {
    fn id(&self) -> &'static str {
        LOSS
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "filter-drops",
            "ingress-filter-drops",
            "reverse-path-filter",
            "conntrack-full",
            "backlog-overflow",
            "ring-drops",
            "damaged-frames",
            "device-receive-drops",
            "udp-receive-buffer",
            "device-send-drops",
            "qdisc-drops",
            "local-shaper",
            "neighbor-unresolved",
            LINK_DOWN,
            NEIGHBOR_CHANGES,
            PLANNED_EVENT,
        ]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let mut records = seen.trials().iter().flat_map(|trial| trial.records.values());
        // A test of targets judges what its events took.
        let is_of_targets = records.any(|record| record.targets.is_some());
        if seen.test.layer != Layer::Udp || seen.test.to.is_some() || seen.test.conservation.is_some() || is_of_targets
        {
            return Vec::new();
        }
        let reported = seen.test.summaries.iter().find(|summary| summary.metric.name == LOST);
        let reported = reported.and_then(|summary| summary.value).filter(|share| (HOLDS_BACK..1.0).contains(share));
        let Some(share) = reported else { return Vec::new() };
        let (lost, from) = (percent(share), seen.test.from.as_str());
        let (title, next) = match seen.test.server.as_deref() {
            None => (
                format!(
                    "{lost} of the datagrams were lost between {from} and the server; only the counters of {from} were read"
                ),
                NextStep::new("fathom serve")
                    .on("the server's host")
                    .expected("let `fathom udp` read the counters of both hosts, and say where packets are lost"),
            ),
            Some(server) => (
                format!("{lost} of the datagrams were lost between {from} and the server on {server}"),
                NextStep::new("ss -uam")
                    .on(if seen.test.options.text("direction").as_deref() == Some("down") { from } else { server })
                    .expected("show whether the receiving socket dropped them (d), and the size of its buffer (rb)"),
            ),
        };
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "lost", title)
                .evidence([ratio_evidence(from, "lost, as reported", share)])
                .next(next),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_loss_that_a_server_of_another_tool_reports_is_a_finding() {
        let told = |share: f64, server: Option<&str>| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(10_000, 10_000)]);
            let mut run = builder.analyzed();
            let mut lost = run.tests[0].summaries[0].clone();
            (lost.metric.name, lost.value) = (LOST.into(), Some(share));
            run.tests[0].summaries = vec![lost];
            (run.tests[0].to, run.tests[0].conservation) = (None, None);
            run.tests[0].server = server.map(str::to_owned);
            LostByReport.evaluate(&TestEvidence::new(&run, &run.tests[0], &builder.context)).pop()
        };
        let finding = told(0.2, None).unwrap();
        let title =
            "20 % of the datagrams were lost between client and the server; only the counters of client were read";
        assert_eq!((finding.id.as_str(), finding.title.as_str()), ("loss", title));
        assert_eq!((told(1e-4, None), told(1.0, None)), (None, None));
        let finding = told(0.2, Some("target")).unwrap();
        assert_eq!(finding.title, "20 % of the datagrams were lost between client and the server on target");
        assert_eq!(finding.next.unwrap().on.as_deref(), Some("target"));
    }
}

//! The interface of a host was down.

use fathom_model::{Finding, Layer, NextStep, Severity};

use super::FindingRule;
use crate::evidence::{TestEvidence, text_evidence};

/// Looks at the state of the interface that a host was tested on.
pub(crate) struct LinkDown;

impl FindingRule for LinkDown {
    fn id(&self) -> &'static str {
        "link-down"
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

#[cfg(test)]
mod tests {
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
}

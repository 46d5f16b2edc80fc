//! Answers of two kinds: some are fast and the others slow, with nothing in between. No request takes as long as their median says.

use fathom_model::{Finding, Layer, NextStep, Severity, Side, names::distribution, units::percent};

use super::{
    FindingRule,
    server_time::{SLOW, is_scheduled, load_option},
    slow_answers::SlowAnswers,
    stall::Stall,
};
use crate::{
    evidence::{TestEvidence, text_evidence},
    groups::Groups,
};

/// Looks for two groups in the times from a request to its answer.
pub(crate) struct TwoGroups;

impl FindingRule for TwoGroups {
    fn id(&self) -> &'static str {
        "two-groups"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Slow answers tell both groups, and those that waited for the end of a stall are no group of their own.
        let is_told = || !SlowAnswers.evaluate(seen).is_empty() || !Stall.evaluate(seen).is_empty();
        if !matches!(seen.test.layer, Layer::Http | Layer::App) || is_told() {
            return Vec::new();
        }
        let times = seen.distribution(Side::Initiator, distribution::SERVICE_TIME);
        let Some(Groups { fast, slow, share_slow }) = Groups::of(&times).filter(|groups| groups.slow >= SLOW) else {
            return Vec::new();
        };
        let share_fast = percent(1.0 - share_slow);
        let title = format!(
            "the answers fall into two groups: {share_fast} take about {fast}, and {} about {slow}; the median only says which are more",
            percent(share_slow)
        );
        let from = &seen.test.from;
        let evidence = [("fast ones, median", fast), ("slow ones, median", slow)];
        vec![
            seen.finding(self.id(), Severity::Remark, "two groups", title)
                .evidence(evidence.map(|(what, time)| text_evidence(from, what, time)))
                .next(next(seen)),
        ]
    }
}

/// Suggests the same requests over one connection, which reaches one server and waits for no other request.
fn next(seen: &TestEvidence<'_>) -> Option<NextStep> {
    let (option, _) = load_option(seen).filter(|(_, n)| *n > 1 && !is_scheduled(seen))?;
    Some(NextStep::new(seen.repeat_with_option(option, "1")?).expected(
        "show both groups if requests differ for the server (a cache), and one group if servers behind one address do, or if requests wait for each other",
    ))
}

#[cfg(test)]
mod tests {
    use fathom_model::Histogram;

    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_remark_names_both_groups_of_a_test_of_requests() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 10);
        let mut times = Histogram::new();
        times.record_n(200_000, 520);
        times.record_n(20_000_000, 480);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.distributions.insert(distribution::SERVICE_TIME.to_owned(), times);
        builder.run.command = "fathom http http://198.18.0.2/ --connections 10".to_owned();
        let finding = builder.finding("two-groups").unwrap();
        assert_eq!(finding.severity, Severity::Remark);
        assert_eq!(finding.next.as_ref().unwrap().command, "fathom http http://198.18.0.2/ --connections 1");
        assert!(finding.title.contains("52 % take about 200 µs, and 48 % about 20.0 ms"), "{}", finding.title);
    }
}

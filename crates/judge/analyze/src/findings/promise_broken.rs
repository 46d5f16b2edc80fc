//! A promise was not kept.

use fathom_model::{Finding, Severity, finding::PromiseOutcome};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, text_evidence},
    judged_promise::{PromiseResult, judge_promises},
};

/// The id of these findings.
pub(super) const PROMISE_BROKEN: &str = "promise-broken";

/// Points from a row to its broken promise. Where the numbers of the test say nothing, none is told.
pub(crate) struct PromiseBroken;

impl FindingRule for PromiseBroken {
    fn id(&self) -> &'static str {
        PROMISE_BROKEN
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let broken = judge_promises(seen.test).into_iter().filter(|judged| judged.outcome == PromiseOutcome::Broken);
        let finding = |judged: PromiseResult<'_>| {
            let summary = judged.summary?;
            let value = summary.metric.show(summary.value?);
            let evidence = text_evidence(&seen.test.from, judged.counter()?, value);
            Some(
                seen.finding(
                    self.id(),
                    Severity::Remark,
                    "not kept",
                    format!("a promise was not kept: {}", judged.reason),
                )
                .evidence([evidence]),
            )
        };
        broken.filter_map(finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_row_whose_promise_is_broken_points_at_it() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 990)]);
        builder.run.tests[0].expect.insert("loss".to_owned(), "<= 0.1 %".to_owned());
        let finding = builder.finding("promise-broken").unwrap();
        assert_eq!(finding.title, "a promise was not kept: udp_stream loss 1.0 % > 0.10 %");
        let mut untrusted = RunBuilder::new();
        untrusted.udp_stream(&[(1000, 990)]);
        untrusted.run.tests[0].expect.insert("loss".to_owned(), "<= 0.1 %".to_owned());
        untrusted.total("client", fathom_model::names::count::INTENDED, 2000);
        assert_eq!(untrusted.finding("promise-broken"), None, "a test that was not the one that was asked for");
        builder.run.tests[0].expect.insert("loss".to_owned(), "<= 5 %".to_owned());
        assert_eq!(builder.finding("promise-broken"), None);
    }
}

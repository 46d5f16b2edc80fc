//! The result of a search, as a finding.

use fathom_model::{Finding, NextStep, Severity, search};

use super::FindingRule;
use crate::{
    curve,
    evidence::{TestEvidence, text_evidence},
};

/// The id of the finding that tells the result of a search.
pub(super) const LIMIT: &str = "limit";

/// Reports the highest rate that keeps the objective.
pub(crate) struct LimitFound;

impl FindingRule for LimitFound {
    fn id(&self) -> &'static str {
        LIMIT
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some((curve, title)) = seen.test.curve.as_ref().zip(curve::sentence(seen.run, seen.test)) else {
            return Vec::new();
        };
        let own = curve.cause() == Some(search::MissReason::Generator);
        let shown = [("kept at", curve.kept), ("broken at", curve.broken)];
        let evidence = |(word, rate): (&str, Option<f64>)| {
            let counter = format!("{} {word}", curve.objective);
            Some(text_evidence(&seen.test.from, counter, curve.unit.show(rate?)))
        };
        vec![
            seen.finding(self.id(), Severity::HoldsBack, if own { "own limit" } else { "limit" }, title)
                .evidence(shown.into_iter().filter_map(evidence))
                .next(own.then(|| {
                    NextStep::new("fathom calibrate")
                        .on(&seen.test.from)
                        .expected("show the highest rate that this machine can offer")
                })),
        ]
    }
}

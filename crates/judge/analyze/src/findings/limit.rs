//! The result of a search, as a finding.

use fathom_model::{Evidence, Finding, NextStep, Severity, search};

use super::FindingRule;
use crate::{curve, evidence::TestEvidence};

/// Reports the highest rate that keeps the objective.
pub(crate) struct LimitFound;

impl FindingRule for LimitFound {
    fn id(&self) -> &'static str {
        "limit"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some((curve, title)) = seen.test.curve.as_ref().zip(curve::sentence(seen.run, seen.test)) else {
            return Vec::new();
        };
        let own = curve.cause() == Some(search::MissReason::Generator);
        let shown = [("kept at", curve.kept), ("broken at", curve.broken)];
        let evidence = |(word, rate): (&str, Option<f64>)| {
            let counter = format!("{} {word}", curve.objective);
            Some(Evidence { host: seen.test.from.clone(), counter, value: curve.unit.show(rate?) })
        };
        vec![Finding {
            id: self.id().to_owned(),
            short: if own { "own limit" } else { "limit" }.to_owned(),
            title,
            severity: Severity::HoldsBack,
            tests: vec![seen.test.name.clone()],
            evidence: shown.into_iter().filter_map(evidence).collect(),
            explains: None,
            proof: None,
            next: own.then(|| NextStep {
                command: "fathom calibrate".to_owned(),
                on: Some(seen.test.from.clone()),
                expected: Some("show the highest rate that this machine can offer".to_owned()),
            }),
        }]
    }
}

//! A comparison of paths whose preconditions do not hold.

use fathom_model::{Finding, NextStep, Severity};

use super::FindingRule;
use crate::{comparison::tests_of, evidence::TestEvidence, path::place_on_path};

/// Says why a comparison has no number. It is told once, with the test of the reference.
pub(crate) struct PathFault;

impl FindingRule for PathFault {
    fn id(&self) -> &'static str {
        "path-fault"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let of_test = seen.run.comparisons.iter().find(|comparison| comparison.test == seen.test.name);
        let Some((comparison, why)) = of_test.and_then(|comparison| Some((comparison, comparison.void.as_ref()?)))
        else {
            return Vec::new();
        };
        let tests = tests_of(seen.run, &comparison.name).into_iter().map(|test| test.name.clone());
        let address = seen.test.to.as_deref().and_then(|to| place_on_path(seen.run, seen.test, to).0);
        let next = NextStep::new(format!("ip route get {}", address.unwrap_or("ADDRESS")))
            .on(&seen.test.from)
            .expected("show which way the path takes");
        vec![
            seen.finding(self.id(), Severity::Invalidates, "path", format!("no number for {}: {why}", comparison.name))
                .tests(tests)
                .next(next),
        ]
    }
}

//! The result of a benchmark, as a finding.

use fathom_model::{Finding, Severity};

use super::FindingRule;
use crate::{
    benchmark,
    evidence::{TestEvidence, text_evidence},
};

/// Reports the first rate of the smallest frames, the single number that RFC 2544 section 26.1 asks for.
pub(crate) struct BenchmarkHeadline;

impl FindingRule for BenchmarkHeadline {
    fn id(&self) -> &'static str {
        "benchmark"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let all = || seen.run.tests.iter().filter_map(|test| Some((test, test.benchmark.as_ref()?)));
        let smallest = all().min_by_key(|(_, found)| found.size_bytes);
        let Some((test, found)) = smallest.filter(|(test, _)| test.name == seen.test.name) else { return Vec::new() };
        let Some(title) = benchmark::sentence(found) else { return Vec::new() };
        let evidence = found.results.iter().filter_map(|result| {
            let counter = result.metric.name.to_string();
            Some(text_evidence(&test.from, counter, result.metric.show(result.value?)))
        });
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "benchmark", title)
                .tests(all().map(|(test, _)| test.name.clone()))
                .evidence(evidence),
        ]
    }
}

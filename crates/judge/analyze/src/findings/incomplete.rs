//! Some trials did not run to their end.

use fathom_model::{Evidence, Finding, Severity};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, text_evidence},
    window::is_complete,
};

/// Counts the trials that ended early.
pub(crate) struct IncompleteTrials;

impl FindingRule for IncompleteTrials {
    fn id(&self) -> &'static str {
        "incomplete-trials"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["path-mtu-black-hole", "resets", "memory-pressure", "link-down"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let trials = &seen.test.trials;
        let broken: Vec<_> = trials.iter().filter(|trial| !is_complete(trial)).collect();
        if broken.is_empty() {
            return Vec::new();
        }
        let all = broken.len() == trials.len();
        let proof = |(host, _): (&String, _)| text_evidence(host, "complete", "ended early");
        let cut =
            broken.iter().flat_map(|trial| trial.records.iter().filter(|(_, record)| !record.complete).map(proof));
        let mut evidence: Vec<Evidence> = cut.collect();
        evidence.dedup();
        let what = if all { "the values cover the time before that" } else { "they are left out" };
        let severity = if all { Severity::Invalidates } else { Severity::Remark };
        let title = format!("{} of {} trials did not come to their end; {what}", broken.len(), trials.len());
        vec![seen.finding(self.id(), severity, "incomplete", title).evidence(evidence)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn one_broken_trial_is_remarked_and_none_complete_invalidates() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.run.tests[0].trials[1].records.get_mut("target").unwrap().complete = false;
        let finding = builder.finding("incomplete-trials").unwrap();
        assert_eq!((finding.severity, finding.evidence[0].host.as_str()), (Severity::Remark, "target"));
        builder.run.tests[0].trials[0].records.clear();
        assert_eq!(builder.finding("incomplete-trials").unwrap().severity, Severity::Invalidates);
    }
}

//! The hosts of a test did not start together.

use fathom_model::{Evidence, Finding, Layer, Severity, units::percent};

use super::FindingRule;
use crate::{evidence::TestEvidence, pairs::skew_share};

/// From this share of the time of a trial on, the difference is worth a word.
const REMARKABLE: f64 = 0.01;
/// From this share on, the hosts did not load the target together.
const INVALID: f64 = 0.05;

/// Compares the actual starts of all hosts of a test of several pairs.
pub(crate) struct StartSkew;

impl FindingRule for StartSkew {
    fn id(&self) -> &'static str {
        "start-skew"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let with_share = |trial: &&fathom_model::Trial| Some((trial.start_skew_ns, skew_share(trial)?));
        // Probes are no load that has to come from all hosts at once.
        let is_together = seen.test.layer != Layer::Path;
        let trials = seen.trials().iter().filter(|trial| is_together && !trial.links.is_empty());
        let worst = trials.filter_map(with_share).max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((skew, share)) = worst.filter(|(_, share)| *share >= REMARKABLE) else { return Vec::new() };
        let title = format!("the hosts started up to {skew} apart, {} of the duration of a round", percent(share));
        let severity = if share >= INVALID { Severity::Invalidates } else { Severity::Remark };
        let (host, counter) = (seen.test.from.clone(), "start_skew_ns".to_owned());
        let proof = Evidence { host, counter, value: skew.to_string() };
        vec![seen.finding(self.id(), severity, "start skew", title).evidence([proof])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::units::Nanos;

    #[test]
    fn starts_that_are_far_apart_are_remarked_and_then_invalidate() {
        // A trial of the builder lasts 1.2 s.
        for (skew_ms, severity) in [(11, None), (13, Some(Severity::Remark)), (61, Some(Severity::Invalidates))] {
            let mut builder = RunBuilder::new();
            builder.star(&[("c1", &[1_000]), ("c2", &[1_000])]);
            builder.run.tests[0].trials[0].start_skew_ns = Nanos::from_millis(skew_ms);
            assert_eq!(builder.finding("start-skew").map(|finding| finding.severity), severity, "{skew_ms} ms");
        }
        let mut pair = RunBuilder::new();
        pair.tcp_stream(&[1_000]);
        pair.run.tests[0].trials[0].start_skew_ns = Nanos::from_millis(500);
        assert!(pair.finding("start-skew").is_none(), "one pair waits for each other");
    }
}

//! Whether the companions or the tested host were the limit of a star.

use fathom_model::{Evidence, Finding, Severity, units::percent};

use super::FindingRule;
use crate::evidence::TestEvidence;

/// Reads the curve over the number of companions.
pub(crate) struct CompanionLimit;

impl FindingRule for CompanionLimit {
    fn id(&self) -> &'static str {
        "companions"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(growth) = seen.test.sharing.as_ref().and_then(|sharing| sharing.growth.as_ref()) else {
            return Vec::new();
        };
        let metric = seen
            .test
            .summaries
            .iter()
            .map(|summary| &summary.metric)
            .find(|metric| metric.name == growth.metric.as_str());
        let (Some(metric), [.., before, last]) = (metric, growth.points.as_slice()) else {
            return Vec::new();
        };
        let to = seen.test.answering().unwrap_or("the target");
        let grown = last.value / before.value - 1.0;
        let what = match growth.knee {
            Some(1) => {
                format!("one companion saturates {to}: more of them add nothing; the limit is {to} or the path to it")
            }
            Some(n) => {
                format!("{n} companions saturate {to}: more of them add nothing; the limit is {to} or the path to it")
            }
            None => format!(
                "the companions are the limit, not {to}: with {} instead of {} of them the rate still grows by {}",
                last.n_hosts,
                before.n_hosts,
                percent(grown)
            ),
        };
        let shared = if seen.is_one_machine() { "; all of them share the cores of one machine" } else { "" };
        let is_cause = growth.knee.is_none() && !seen.is_one_machine();
        let proof = |point: &fathom_model::GrowthPoint| Evidence {
            host: to.to_owned(),
            counter: format!(
                "{} from {}",
                metric.title,
                if point.n_hosts == 1 { "1 companion".to_owned() } else { format!("{} companions", point.n_hosts) }
            ),
            value: metric.show(point.value),
        };
        let severity = if is_cause { Severity::HoldsBack } else { Severity::Remark };
        let finding = seen.finding(self.id(), severity, "companions", format!("{what}{shared}"));
        vec![finding.evidence(growth.points.iter().map(proof))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    /// Stars of 2 and 4 companions with these bytes per second each.
    fn stars(each: [u64; 2]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        for (n, rate) in [(2, each[0]), (4, each[1])] {
            let rates = [rate];
            let companions: Vec<(&str, &[u64])> =
                ["c1", "c2", "c3", "c4"].iter().take(n).map(|host| (*host, rates.as_slice())).collect();
            builder.star(&companions);
            let test = builder.run.tests.last_mut().unwrap();
            test.name = format!("{n} companions");
            builder.plan_last_test(true);
        }
        builder
    }

    #[test]
    fn what_grows_with_the_companions_is_held_back_by_them() {
        let finding = stars([1_000, 1_000]).finding("companions").unwrap();
        assert_eq!((finding.severity, finding.tests), (Severity::HoldsBack, vec!["4 companions".to_owned()]));
        assert!(finding.title.starts_with("the companions are the limit, not target"), "{}", finding.title);
    }

    #[test]
    fn what_does_not_grow_any_more_is_held_back_by_the_tested_host() {
        let run = stars([1_000, 510]).analyzed();
        let growth = run.tests[1].sharing.as_ref().unwrap().growth.clone().unwrap();
        assert_eq!((growth.knee, growth.points.len()), (Some(2), 2));
        assert!(run.tests[0].sharing.as_ref().unwrap().growth.is_none(), "the last one tells it");
        let finding = run.findings.iter().find(|finding| finding.id == "companions").unwrap();
        assert!(finding.title.starts_with("2 companions saturate target"), "{}", finding.title);
        assert_eq!(finding.severity, Severity::Remark);
    }
}

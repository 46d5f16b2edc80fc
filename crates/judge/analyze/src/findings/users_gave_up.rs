//! Users do not finish their script.

use fathom_model::{Derivation, Finding, Severity, metric::UsersValue, units::percent};

use super::{FindingRule, step_errors::dominant_step};
use crate::evidence::{TestEvidence, counter_evidence};

/// If at least one user in a hundred gives up, the others did not produce the planned load.
const HOLDS_BACK: f64 = 0.01;

/// Compares visits that were given up with visits that finished.
pub(crate) struct UsersGaveUp;

impl FindingRule for UsersGaveUp {
    fn id(&self) -> &'static str {
        "users-gave-up"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(users) = &seen.test.users else { return Vec::new() };
        let is_share = |of: &Derivation| matches!(of, Derivation::Users { of: UsersValue::GaveUpShare });
        let share = users.summaries.iter().find(|summary| is_share(&summary.metric.from)).and_then(|s| s.value);
        let Some(share) = share.filter(|share| *share >= HOLDS_BACK) else { return Vec::new() };
        // The failing step has its own finding; users who give up are the consequence.
        let at = match dominant_step(seen) {
            Some(dominant) => format!(", most of them at step `{}`", dominant.step.name),
            None => ", at several steps".to_owned(),
        };
        let title = format!(
            "{} of the users gave up before the end of the script{at}: later steps got less load than planned",
            percent(share)
        );
        vec![seen.finding(self.id(), Severity::HoldsBack, "users give up", title).evidence([
            counter_evidence(&seen.test.from, "users who gave up", users.n_gave_up),
            counter_evidence(&seen.test.from, "users who came to the end", users.n_finished),
        ])]
    }
}

#[cfg(test)]
mod tests {
    use crate::run_builder::{RunBuilder, step, visits};

    fn shop(n_gave_up: u64, failed: [u64; 2]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        let steps = vec![step("login", (1_000, failed[0]), 10), step("buy", (900, failed[1]), 10)];
        builder.users(&[visits((1_000, n_gave_up), steps)]);
        builder
    }

    #[test]
    fn users_who_give_up_are_told_with_the_step() {
        let finding = shop(120, [110, 10]).finding("users-gave-up").unwrap();
        assert!(finding.title.starts_with("12 % of the users gave up"), "{}", finding.title);
        assert!(finding.title.contains("most of them at step `login`"), "{}", finding.title);
        assert_eq!(finding.evidence[0].value, "120");
        let spread = shop(120, [60, 60]).finding("users-gave-up").unwrap();
        assert!(spread.title.contains("at several steps"), "{}", spread.title);
    }

    #[test]
    fn one_in_a_thousand_is_no_finding() {
        assert_eq!(shop(1, [1, 0]).finding("users-gave-up"), None);
        assert_eq!(shop(0, [50, 0]).finding("users-gave-up"), None, "errors that users go on after");
    }
}

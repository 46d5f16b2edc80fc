//! Users came later than scheduled because the maximum number of users was active.

use fathom_model::{
    Finding, NextStep, Severity, Side,
    names::count,
    units::{percent, ratio},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence};

/// If at least one user in a hundred is late, fewer users than scheduled came at times.
const HOLDS_BACK: f64 = 0.01;

/// Compares the users who had to wait until another one left with all users.
pub(crate) struct UsersLate;

impl FindingRule for UsersLate {
    fn id(&self) -> &'static str {
        "users-late"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // For requests in an open loop, the same counters refer to connections, which have their own row.
        let Some(users) = &seen.test.users else { return Vec::new() };
        let total = |counter| seen.total(Side::Initiator, counter);
        let (late, intended) = (total(count::LATE_NO_CONNECTION), total(count::INTENDED));
        let Some(share) = ratio(late, intended).filter(|share| *share >= HOLDS_BACK) else { return Vec::new() };
        let host = &seen.test.from;
        let title = format!(
            "{} of the users came late because the maximum number of users was active: at this rate, visits last longer than that allows for",
            percent(share)
        );
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "max users", title)
                .evidence([
                    counter_evidence(host, count::LATE_NO_CONNECTION, late),
                    counter_evidence(host, count::INTENDED, intended),
                    counter_evidence(host, "users at once, at most", users.n_most),
                ])
                .next(seen.repeat_test_command(&format!("--max-users {}", users.n_most.saturating_mul(2))).map(
                    |command| {
                        NextStep::new(command)
                            .expected("show whether users come in time when more of them may be there at once")
                    },
                )),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::{RunBuilder, step, visits};

    #[test]
    fn users_who_wait_until_others_leave_are_told_with_the_most_that_were_there() {
        let mut builder = RunBuilder::new();
        builder.users(&[visits((1_000, 0), vec![step("home", (1_000, 0), 10)])]);
        builder.total("client", count::INTENDED, 1_000);
        builder.total("client", count::LATE_NO_CONNECTION, 5);
        assert_eq!(builder.finding("users-late"), None);
        builder.total("client", count::LATE_NO_CONNECTION, 300);
        let finding = builder.finding("users-late").unwrap();
        assert!(finding.title.starts_with("30 % of the users came late"), "{}", finding.title);
        assert_eq!(finding.evidence[2].value, "30");
    }
}

//! All users left before anything was measured.

use fathom_model::{Finding, NextStep, Severity, Side};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, counter_evidence},
    window::record_of,
};

/// Checks whether all users finished during the warm-up.
pub(crate) struct UsersLeftEarly;

impl FindingRule for UsersLeftEarly {
    fn id(&self) -> &'static str {
        "gone-early"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(users) = &seen.test.users else { return Vec::new() };
        let records = || seen.test.trials.iter().filter_map(|trial| record_of(trial, Side::Initiator));
        let is_empty = records().all(|(_, record)| record.measured_ns.0 >= record.measured_ns.1);
        if !is_empty || records().next().is_none() || users.n_started == 0 {
            return Vec::new();
        }
        let host = &seen.test.from;
        let title = "all users had left before the warm-up was over: nothing was measured";
        vec![
            seen.finding(self.id(), Severity::Invalidates, "gone early", title)
                .evidence([
                    counter_evidence(host, "users who came", users.n_started),
                    counter_evidence(host, "visits to the end", users.n_finished),
                ])
                .next(
                    seen.repeat_run_command("--warmup 0s")
                        .map(|command| NextStep::new(command).expected("measure from the first user on")),
                ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use crate::run_builder::{RunBuilder, step, visits};

    #[test]
    fn users_who_leave_during_the_warm_up_are_told_with_the_way_to_measure_them() {
        let mut builder = RunBuilder::new();
        builder.users(&[visits((3, 0), vec![step("home", (3, 0), 10)])]);
        assert_eq!(builder.finding("gone-early"), None);
        for record in builder.run.tests[0].trials[0].records.values_mut() {
            record.measured_ns.1 = record.measured_ns.0;
        }
        let finding = builder.finding("gone-early").unwrap();
        assert!(finding.next.unwrap().command.ends_with(" --warmup 0s"));
        assert_eq!(finding.evidence.len(), 2);
    }
}

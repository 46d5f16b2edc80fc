//! All users left before anything was measured.

use fathom_model::{Finding, NextStep, Record, Severity, Side};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, counter_evidence},
    summaries::main_rate,
    window::record_of,
};

/// The note that users left because a data set had no more rows (crate `scenario`).
const DATA_ENDED: &str = "data-ended";

/// Checks whether all users finished during the warm-up; the last of them may have left right behind it.
pub(crate) struct UsersLeftEarly;

impl FindingRule for UsersLeftEarly {
    fn id(&self) -> &'static str {
        "gone-early"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(users) = &seen.test.users else { return Vec::new() };
        let records = || seen.test.trials.iter().filter_map(|trial| record_of(trial, Side::Initiator));
        let is_empty = |record: &Record| record.measured_ns.0 >= record.measured_ns.1;
        let has_no_more = |record: &Record| record.notes.iter().any(|note| note.id == DATA_ENDED);
        let is_idle = users.n_finished > 0 && main_rate(seen.test).and_then(|rate| rate.value) == Some(0.0);
        let have_left = records().all(|(_, record)| is_empty(record) || (is_idle && has_no_more(record)));
        if !have_left || records().next().is_none() || users.n_started == 0 {
            return Vec::new();
        }
        let host = &seen.test.from;
        let title = "all users had left by the end of the warm-up: nothing was measured";
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
    use fathom_model::Note;

    use super::DATA_ENDED;
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

    #[test]
    fn users_whose_rows_ended_right_behind_the_warm_up_had_left_too() {
        for (rows_ended, is_told) in [(false, false), (true, true)] {
            let mut builder = RunBuilder::new();
            builder.users(&[visits((3, 0), vec![step("home", (0, 0), 0)])]);
            for record in builder.run.tests[0].trials[0].records.values_mut() {
                record.timeline.counters.values_mut().for_each(|counts| counts.fill(0));
                record.notes.extend(rows_ended.then(|| Note::new(DATA_ENDED, "users left")));
            }
            assert_eq!(builder.finding("gone-early").is_some(), is_told, "{rows_ended}");
        }
    }
}

//! Users came later than the schedule said because every seat was taken.

use fathom_model::{
    Finding, NextStep, Severity, Side,
    names::count,
    units::{percent, ratio},
};

use super::{Cause, Evidenced, counted};

/// From one user in a hundred on, fewer came than the schedule asked for at times.
const HOLDS_BACK: f64 = 0.01;

/// Compares those who had to wait for a seat with those who came.
pub(crate) struct UsersLate;

impl Cause for UsersLate {
    fn id(&self) -> &'static str {
        "users-late"
    }

    fn look(&self, seen: &Evidenced<'_>) -> Vec<Finding> {
        let total = |counter| seen.total(Side::Initiator, counter);
        let (late, intended) = (total(count::USERS_LATE_NO_SEAT), total(count::USERS_INTENDED));
        let Some(share) = ratio(late, intended).filter(|share| *share >= HOLDS_BACK) else { return Vec::new() };
        let most = seen.test.users.as_ref().map_or(0, |users| users.n_most);
        let host = &seen.test.from;
        vec![Finding {
            id: self.id().to_owned(),
            short: "no free seat".to_owned(),
            title: format!(
                "{} of the users came late because no seat was free: visits last longer than the seats allow for at this rate",
                percent(share)
            ),
            severity: Severity::HoldsBack,
            tests: vec![seen.test.name.clone()],
            evidence: vec![
                counted(host, count::USERS_LATE_NO_SEAT, late),
                counted(host, count::USERS_INTENDED, intended),
                counted(host, "users at once, at most", most),
            ],
            explains: None,
            next: Some(NextStep {
                command: "allow for more users at once in the script, or find out why visits take so long".to_owned(),
                on: None,
                expected: None,
            }),
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, step, visits};

    #[test]
    fn users_who_wait_for_a_seat_are_told_with_the_most_that_were_there() {
        let mut story = Story::new();
        story.users(&[visits((1_000, 0), vec![step("home", (1_000, 0), 10)])]);
        story.total("client", count::USERS_INTENDED, 1_000);
        story.total("client", count::USERS_LATE_NO_SEAT, 5);
        assert_eq!(story.finding("users-late"), None);
        story.total("client", count::USERS_LATE_NO_SEAT, 300);
        let finding = story.finding("users-late").unwrap();
        assert!(finding.title.starts_with("30 % of the users came late"), "{}", finding.title);
        assert_eq!(finding.evidence[2].value, "30");
    }
}

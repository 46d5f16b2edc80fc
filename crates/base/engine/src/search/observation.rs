//! What a trial saw, and what that says of its load.

use fathom_model::{
    search::{MissReason, Vote},
    units::Nanos,
};

/// Less than this share of what was intended, and the tool did not offer the load (the rule of CSIT).
const OFFERED_MIN: f64 = 0.99;
/// More starts than this share late by the tool's own doing, and a broken objective says nothing of the target.
const LATE_MAX: f64 = 0.01;
/// A target that achieves this much less than was sent does not keep up: what it leaves undone is not an edge of the window.
const BEHIND_MAX: f64 = 0.02;
/// Counts of random events differ by chance; beyond three standard deviations one in 700 trials would.
const DEVIATIONS: f64 = 3.0;

/// What became of what was offered in one trial: the output of the measurer of RFC 9971 (section 4.3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forwarded {
    /// What was lost, as a share of what was offered.
    pub loss_ratio: f64,
    /// How long the trial counts for.
    pub effective: Nanos,
    /// What was received per second, in the unit of the load.
    pub rate: Option<f64>,
}

/// What one trial saw.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observation {
    /// Whether the value of the objective keeps it; nothing when there is no value.
    pub keeps: Option<bool>,
    /// The share of what the schedule asked for that the tool sent; nothing when that is not counted.
    pub sent: Option<f64>,
    /// The share of what was offered that was achieved; nothing when the objective itself judges what is lost.
    pub achieved: Option<f64>,
    /// How many events that share was counted over, if they come at random.
    pub n_random: Option<f64>,
    /// The share of starts that were late because the tool's own threads were.
    pub late: Option<f64>,
    /// How long the trial took, preparation included.
    pub took: Nanos,
    /// What was forwarded and lost; nothing of a trial that says nothing, or of what cannot be lost.
    pub forwarded: Option<Forwarded>,
}

impl Observation {
    /// What the trial says of its load.
    #[must_use]
    pub fn vote(&self) -> Vote {
        if self.sent.is_some_and(|share| share < OFFERED_MIN) {
            return Vote::Broken(MissReason::Generator);
        }
        let chance = self.n_random.filter(|n| *n > 0.0).map_or(0.0, |n| DEVIATIONS / n.sqrt());
        let is_behind = self.achieved.is_some_and(|share| share < 1.0 - BEHIND_MAX.max(chance));
        let is_late = self.late.is_some_and(|share| share > LATE_MAX);
        match (self.keeps, is_behind) {
            (Some(true), false) => Vote::Kept,
            (None, false) => Vote::Void,
            // What the tool was late with arrived late, whoever else was late too.
            _ if is_late => Vote::Broken(MissReason::Generator),
            (_, true) => Vote::Broken(MissReason::FellBehind),
            (Some(false), false) => Vote::Broken(MissReason::Objective),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trial_says_follows_from_who_was_late() {
        let kept = Observation { keeps: Some(true), sent: Some(1.0), achieved: Some(1.0), ..Observation::default() };
        let slow = Observation { keeps: Some(false), ..kept };
        let cases = [
            (kept, Vote::Kept),
            (Observation { achieved: None, sent: None, ..kept }, Vote::Kept),
            (Observation { late: Some(0.3), ..kept }, Vote::Kept),
            (slow, Vote::Broken(MissReason::Objective)),
            (Observation { late: Some(0.3), ..slow }, Vote::Broken(MissReason::Generator)),
            (Observation { sent: Some(0.98), ..kept }, Vote::Broken(MissReason::Generator)),
            (Observation { achieved: Some(0.97), ..kept }, Vote::Broken(MissReason::FellBehind)),
            (Observation { achieved: Some(0.97), n_random: Some(1000.0), ..kept }, Vote::Kept),
            (Observation { achieved: Some(0.9), n_random: Some(1000.0), ..kept }, Vote::Broken(MissReason::FellBehind)),
            (Observation { keeps: None, achieved: Some(0.0), ..kept }, Vote::Broken(MissReason::FellBehind)),
            (Observation { keeps: None, ..kept }, Vote::Void),
        ];
        for (observation, vote) in cases {
            assert_eq!(observation.vote(), vote, "{observation:?}");
        }
    }
}

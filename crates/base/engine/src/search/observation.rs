//! The results of a trial and the vote that follows from them.

use fathom_model::{
    search::{MissReason, Vote},
    units::Nanos,
};

/// Below this share of the intended load, the tool did not offer the load (the rule of CSIT).
const OFFERED_MIN: f64 = 0.99;
/// Above this share of starts that are late because of the tool itself, a missed objective says nothing about the target.
const LATE_MAX: f64 = 0.01;
/// A target whose achieved load is lower than the sent load by more than this does not keep up; edge effects of the window are smaller.
const BEHIND_MAX: f64 = 0.02;
/// Counts of random events vary by chance; one trial in 700 exceeds three standard deviations.
const DEVIATIONS: f64 = 3.0;

/// What happened to the offered load in one trial: the output of the measurer of RFC 9971 (section 4.3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forwarded {
    /// The lost share of the offered load.
    pub loss_ratio: f64,
    /// The effective duration of the trial.
    pub effective: Nanos,
    /// The rate received per second, in the unit of the load.
    pub rate: Option<f64>,
}

/// The results of one trial.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observation {
    /// Whether the measured value meets the objective; `None` if there is no value.
    pub keeps: Option<bool>,
    /// The share of the scheduled load that the tool sent; `None` if that is not counted.
    pub sent: Option<f64>,
    /// The share of the offered load that was achieved; `None` if the objective itself accounts for the loss.
    pub achieved: Option<f64>,
    /// The number of events behind that share, if they arrive at random.
    pub n_random: Option<f64>,
    /// The share of starts that were late because of the tool's own threads.
    pub late: Option<f64>,
    /// The duration of the trial, including preparation.
    pub took: Nanos,
    /// The forwarding and loss result; `None` for a void trial or a test without packet loss.
    pub forwarded: Option<Forwarded>,
}

impl Observation {
    /// Returns the vote of the trial on its load.
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
            // If the tool itself was late, its lateness explains the result, no matter who else was late.
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

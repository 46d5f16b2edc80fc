//! How long an evaluation takes.

use fathom_model::TrialTimes;

/// The rounds and times of an evaluation.
pub(super) struct EvaluationLength {
    pub(super) rounds: u32,
    pub(super) times: TrialTimes,
}

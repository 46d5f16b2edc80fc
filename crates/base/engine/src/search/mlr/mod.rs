//! `MLRsearch` (RFC 9971): the highest loads for several loss ratios in one search.
//!
//! A [`SearchGoal`] says how long a load is measured and how much of that time may be lossy; [`classify`] says what the trials
//! at a load amount to, and [`mlrsearch`] decides which trial comes next. It knows no clock, no frame and no unit: what a load is,
//! and what is lost of it, is for the [`Measurer`](super::Measurer) to say.

mod classification;
mod controller;

#[cfg(test)]
mod simulated;

use fathom_model::units::Nanos;

pub use classification::{Estimate, LoadClass, classify, conditional_throughput, estimate};
pub use controller::mlrsearch;

use super::{LoadLevel, SearchEnd};

/// What is asked of a load (RFC 9971 section 4.6): how long it is measured, and how much may be lost in how many trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchGoal {
    /// A trial of at least this length is a full-length trial.
    pub final_duration: Nanos,
    /// So long is measured at a load that is not decided sooner.
    pub duration_sum: Nanos,
    /// A trial that loses more than this share is a high-loss trial; 0 up to less than 1.
    pub loss_ratio: f64,
    /// This share of the time may be lossy at a lower bound; 0 up to less than 1.
    pub exceed_ratio: f64,
    /// How far apart the bounds may be in the end, as a share of the upper one.
    pub width: f64,
    /// Trials are this long at first.
    pub initial_duration: Nanos,
}

/// Why a goal cannot be searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GoalError {
    /// A share of everything would let every load pass.
    #[error("the loss ratio and the exceed ratio must be at least 0 and less than 1")]
    Ratio,
    /// A width of nothing is never reached.
    #[error("the width must be more than 0 and less than 1")]
    Width,
    /// Nothing is measured in no time.
    #[error(
        "a trial must last longer than 0, its first length at most the final one, and the sum at least the final one"
    )]
    Duration,
}

impl SearchGoal {
    /// The goal of RFC 2544 with trials of a length: nothing may be lost, once.
    #[must_use]
    pub const fn rfc2544(duration: Nanos) -> Self {
        let (loss_ratio, exceed_ratio, width) = (0.0, 0.0, 0.005);
        let initial_duration = if duration.0 < INITIAL.0 { duration } else { INITIAL };
        Self { final_duration: duration, duration_sum: duration, loss_ratio, exceed_ratio, width, initial_duration }
    }

    /// The goal of the binary search with loss verification of ETSI TST009: a lossy trial is repeated once.
    #[must_use]
    pub const fn tst009(duration: Nanos) -> Self {
        let once = Self::rfc2544(duration);
        Self { duration_sum: Nanos(duration.0.saturating_mul(2)), exceed_ratio: 0.5, ..once }
    }

    /// Whether the numbers make a goal.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> Result<(), GoalError> {
        let is_share = |ratio: f64| (0.0..1.0).contains(&ratio);
        if !is_share(self.loss_ratio) || !is_share(self.exceed_ratio) {
            return Err(GoalError::Ratio);
        }
        if !(self.width > 0.0 && self.width < 1.0) {
            return Err(GoalError::Width);
        }
        let is_ordered = self.initial_duration <= self.final_duration && self.final_duration <= self.duration_sum;
        if self.initial_duration == Nanos::ZERO || !is_ordered { Err(GoalError::Duration) } else { Ok(()) }
    }
}

/// Long enough to see a loss of one in thousands at any rate that matters.
const INITIAL: Nanos = Nanos::from_secs(1);

/// One trial as it counts for the classification of its load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialResult {
    /// How long was asked for.
    pub duration: Nanos,
    /// How long it counts for.
    pub effective: Nanos,
    /// What was lost of what was offered.
    pub loss_ratio: f64,
    /// What was received per second.
    pub forwarding_rate: Option<f64>,
}

/// What is searched for, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct ControllerInput {
    /// The goals, each with a result of its own.
    pub goals: Vec<SearchGoal>,
    /// The lowest load that may be offered.
    pub min_load: LoadLevel,
    /// The highest.
    pub max_load: LoadLevel,
    /// What all trials may take together.
    pub time: Nanos,
}

/// How a goal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoalEnding {
    /// Both relevant bounds are known and as near to each other as was asked.
    Regular,
    /// The highest load that was allowed is a lower bound: the throughput lies above it.
    MaxLoad,
    /// The lowest load that was allowed is an upper bound: the throughput lies below it.
    MinLoad,
    /// The search ended before the bounds were near enough.
    Unfinished,
}

/// What is known of a goal in the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoalResult {
    /// The goal.
    pub goal: SearchGoal,
    /// Whether the result is regular, and if not, why.
    pub ending: GoalEnding,
    /// The largest lower bound below the relevant upper bound.
    pub lower: Option<LoadLevel>,
    /// The smallest upper bound.
    pub upper: Option<LoadLevel>,
    /// What is forwarded at the relevant lower bound by RFC 9971 appendix B.
    pub conditional_throughput: Option<f64>,
}

/// Everything that a search found.
#[derive(Debug)]
pub struct ControllerOutput<E> {
    /// One per goal, in the order of the input.
    pub goals: Vec<GoalResult>,
    /// Every load with its trials, ascending.
    pub loads: Vec<(LoadLevel, Vec<TrialResult>)>,
    /// How it ended.
    pub ended: SearchEnd<E>,
}

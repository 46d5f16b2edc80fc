//! `MLRsearch` (RFC 9971): finds the highest loads for several loss ratios in one search.
//!
//! A [`SearchGoal`] states how long a load is measured and how much of that time may be lossy. [`classify`] evaluates the trials at a load,
//! and [`mlrsearch`] chooses the next trial. This module knows no clock, no frame and no unit: the [`Measurer`](super::Measurer) defines
//! the load and the loss.

mod classification;
mod controller;

#[cfg(test)]
mod simulated;

use fathom_model::units::Nanos;

pub use classification::{Estimate, LoadClass, classify, conditional_throughput, estimate};
pub use controller::mlrsearch;

use super::{LoadLevel, SearchEnd};

/// A search goal (RFC 9971 section 4.6): how long a load is measured, and how much loss is allowed in how many trials.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchGoal {
    /// A trial of at least this length is a full-length trial.
    pub final_duration: Nanos,
    /// The total measuring time at a load, unless it is decided sooner.
    pub duration_sum: Nanos,
    /// A trial with a larger loss ratio is a high-loss trial; from 0 to less than 1.
    pub loss_ratio: f64,
    /// The share of the time that may be lossy at a lower bound; from 0 to less than 1.
    pub exceed_ratio: f64,
    /// The maximum distance between the bounds at the end, as a share of the upper one.
    pub width: f64,
    /// The length of the first trials.
    pub initial_duration: Nanos,
}

/// Why a goal is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GoalError {
    /// A ratio of 1 would let every load pass.
    #[error("the loss ratio and the exceed ratio must be at least 0 and less than 1")]
    Ratio,
    /// A width of zero is never reached.
    #[error("the width must be more than 0 and less than 1")]
    Width,
    /// A trial needs a duration above zero.
    #[error(
        "a trial must last longer than 0, its first length at most the final one, and the sum at least the final one"
    )]
    Duration,
}

impl SearchGoal {
    /// The goal of RFC 2544 with trials of this length: a single trial without loss.
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

    /// Checks that the values form a valid goal.
    ///
    /// # Errors
    /// Names the first invalid value.
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

/// Long enough to see a loss of one in several thousand at any relevant rate.
const INITIAL: Nanos = Nanos::from_secs(1);

/// One trial, as it counts for the classification of its load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialResult {
    /// The requested duration.
    pub duration: Nanos,
    /// The effective duration.
    pub effective: Nanos,
    /// The lost share of the offered load.
    pub loss_ratio: f64,
    /// The amount received per second.
    pub forwarding_rate: Option<f64>,
}

/// The goals and limits of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct ControllerInput {
    /// The goals; each has its own result.
    pub goals: Vec<SearchGoal>,
    /// The lowest load to offer.
    pub min_load: LoadLevel,
    /// The highest load to offer.
    pub max_load: LoadLevel,
    /// The time limit for all trials together.
    pub time: Nanos,
}

/// How the search for a goal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoalEnding {
    /// Both relevant bounds are known and as close as requested.
    Regular,
    /// The highest allowed load is a lower bound: the throughput is above it.
    MaxLoad,
    /// The lowest allowed load is an upper bound: the throughput is below it.
    MinLoad,
    /// The search ended before the bounds were close enough.
    Unfinished,
}

/// The result for a goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoalResult {
    /// The goal that was searched.
    pub goal: SearchGoal,
    /// Whether the result is regular, and if not, the reason.
    pub ending: GoalEnding,
    /// The largest lower bound below the relevant upper bound.
    pub lower: Option<LoadLevel>,
    /// The smallest upper bound.
    pub upper: Option<LoadLevel>,
    /// The throughput at the relevant lower bound by RFC 9971 appendix B.
    pub conditional_throughput: Option<f64>,
}

/// The complete result of a search.
#[derive(Debug)]
pub struct ControllerOutput<E> {
    /// One per goal, in the order of the input.
    pub goals: Vec<GoalResult>,
    /// Every load with its trials, ascending.
    pub loads: Vec<(LoadLevel, Vec<TrialResult>)>,
    /// How it ended.
    pub ended: SearchEnd<E>,
}

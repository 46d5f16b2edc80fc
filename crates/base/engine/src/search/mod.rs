//! The highest load that keeps an objective, searched over trials that may err.
//!
//! A [`Measurer`] makes one trial at one load for one time; a search decides which load comes next and what is known in the end. It
//! knows no clock, no test and no unit. For [`search()`] a load *keeps* the objective when most trials like these would keep it, so a
//! limit is the load at which one in two does (the exceed ratio of 0.5 that RFC 9971 recommends); `docs/methods/find_limit.md` says
//! why. [`mlr`] finds the loads of several loss ratios at once over the same measurer, and [`binary`] halves whole numbers.

pub mod binary;
mod limit_search;
pub mod mlr;
mod observation;

#[cfg(test)]
mod simulated;

use fathom_model::{
    search::{Ending, Purpose, Vote},
    units::Nanos,
};
use fathom_statistics::Votes;

pub use limit_search::search;
pub use observation::{Forwarded, Observation};

/// So many trials in turn that say nothing end a search.
const VOIDS_MAX: u32 = 5;

/// What is offered, in whatever unit the measurer sets it: bit/s, or events per second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct LoadLevel(f64);

impl LoadLevel {
    /// A load above zero, or nothing for what is not a number.
    #[must_use]
    pub fn new(per_second: f64) -> Option<Self> {
        (per_second.is_finite() && per_second > 0.0).then_some(Self(per_second))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// This load times a factor above zero, to four digits: enough for any precision, and short in a table.
    #[must_use]
    fn times(self, factor: f64) -> Self {
        let scaled = self.0 * factor;
        let digits = 10_f64.powf(3.0 - scaled.log10().floor());
        Self((scaled * digits).round() / digits)
    }

    /// How many times as much `self` is as `other`.
    fn per(self, other: Self) -> f64 {
        self.0 / other.0
    }
}

/// What bounds a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchBudget {
    /// The most trials.
    pub n_trials: u32,
    /// The most time that trials may take together.
    pub time: Nanos,
}

/// What is searched.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchAim {
    /// The first load.
    pub start: LoadLevel,
    /// The lowest load that may be offered.
    pub low: LoadLevel,
    /// The highest load that may be offered.
    pub high: LoadLevel,
    /// How far apart the two ends are brought: 0.02 is 2 %.
    pub precision: f64,
    /// The probability that the limit lies between the ends, at least: 0.95.
    pub confidence: f64,
    /// The loads that are measured for the curve when the limit is known, as shares of it.
    pub curve: Vec<f64>,
    /// What bounds the search.
    pub budget: SearchBudget,
}

/// One trial that is asked for, and what is known so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchTrialRequest {
    /// What to offer.
    pub load: LoadLevel,
    /// For how long; as long as the measurer likes, where it is not said.
    pub duration: Option<Nanos>,
    /// What it is good for.
    pub purpose: Purpose,
    /// How many trials there were before it.
    pub n_done: u32,
    /// The highest load that seems to keep the objective.
    pub kept: Option<LoadLevel>,
    /// The lowest load that seems to break it.
    pub broken: Option<LoadLevel>,
    /// About how long the search goes on, this trial included, where that can be told.
    pub left: Option<Nanos>,
}

/// Why no trial is made any more.
#[derive(Debug, PartialEq, Eq)]
pub enum SearchEnd<E> {
    /// Everything is known that was asked for.
    Done,
    /// The time that was allowed is used up.
    OutOfTime,
    /// Several trials in turn said nothing.
    Voids,
    /// A trial could not be made.
    Failed(E),
}

/// Makes trials for a search.
pub trait Measurer {
    /// Why no trial can be made any more.
    type Error;

    /// Makes one trial at the load of the step.
    ///
    /// # Errors
    /// Ends the search, which keeps what it knows.
    fn measure(&mut self, step: &SearchTrialRequest) -> Result<Observation, Self::Error>;
}

/// A load with what its trials said.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPoint {
    /// What was offered.
    pub load: LoadLevel,
    /// The votes that led the way.
    pub led: Votes,
    /// The votes that were asked for to be sure; no vote of the way is among them.
    pub confirmed: Votes,
    /// Each trial by its number, with what it said.
    pub trials: Vec<(u32, Vote)>,
}

/// What a search knows in the end.
#[derive(Debug)]
pub struct SearchResult<E> {
    /// How it ended.
    pub ending: Ending,
    /// The highest load that keeps the objective.
    pub kept: Option<LoadLevel>,
    /// The lowest load that breaks it.
    pub broken: Option<LoadLevel>,
    /// Whether each of the two was confirmed: kept, broken.
    pub sure: (Certainty, Certainty),
    /// Every load, ascending.
    pub points: Vec<LoadPoint>,
    /// Why no trial could be made any more.
    pub error: Option<E>,
}

/// What is known of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// Votes that were asked for this alone say so, with the confidence that was wanted.
    Confirmed,
    /// Only the votes on the way say so.
    Likely,
}

//! Searches for the highest load that meets an objective, over trials that may give wrong answers.
//!
//! A [`Measurer`] runs one trial at one load for one duration; a search chooses the next load and reports the result. It knows no clock, no
//! test and no unit. For [`search()`] a load *keeps* the objective if most trials like these would keep it, so a limit is the load at which
//! one in two does (the exceed ratio of 0.5 that RFC 9971 recommends); `docs/methods/find_limit.md` explains why. [`mlr`] finds the loads
//! for several loss ratios at once over the same measurer, and [`binary`] bisects whole numbers.

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

/// The number of void trials in a row that ends a search.
const VOIDS_MAX: u32 = 5;

/// The offered load, in the unit of the measurer: bit/s, or events per second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct LoadLevel(f64);

impl LoadLevel {
    /// A load above zero; `None` if the value is not finite and positive.
    #[must_use]
    pub fn new(per_second: f64) -> Option<Self> {
        (per_second.is_finite() && per_second > 0.0).then_some(Self(per_second))
    }

    /// The value.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// This load times a factor above zero, rounded to four digits: enough for any precision, and short in a table.
    #[must_use]
    fn times(self, factor: f64) -> Self {
        let scaled = self.0 * factor;
        let digits = 10_f64.powf(3.0 - scaled.log10().floor());
        Self((scaled * digits).round() / digits)
    }

    /// The ratio of `self` to `other`.
    fn per(self, other: Self) -> f64 {
        self.0 / other.0
    }
}

/// The limits of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchBudget {
    /// The maximum number of trials.
    pub n_trials: u32,
    /// The maximum total time of the trials.
    pub time: Nanos,
}

/// The parameters of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchAim {
    /// The first load.
    pub start: LoadLevel,
    /// The lowest load to offer.
    pub low: LoadLevel,
    /// The highest load to offer.
    pub high: LoadLevel,
    /// The target distance between the two ends: 0.02 is 2 %.
    pub precision: f64,
    /// The minimum probability that the limit lies between the ends, such as 0.95.
    pub confidence: f64,
    /// The loads to measure for the curve once the limit is known, as shares of the limit.
    pub curve: Vec<f64>,
    /// The limits of the search.
    pub budget: SearchBudget,
}

/// A request for one trial, with the knowledge so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchTrialRequest {
    /// The load to offer.
    pub load: LoadLevel,
    /// The duration; `None` lets the measurer choose.
    pub duration: Option<Nanos>,
    /// The purpose of the trial.
    pub purpose: Purpose,
    /// The number of trials before it.
    pub n_done: u32,
    /// The highest load that seems to keep the objective.
    pub kept: Option<LoadLevel>,
    /// The lowest load that seems to break it.
    pub broken: Option<LoadLevel>,
    /// The estimated remaining time of the search, including this trial, if known.
    pub left: Option<Nanos>,
}

/// The reason why the search stopped making trials.
#[derive(Debug, PartialEq, Eq)]
pub enum SearchEnd<E> {
    /// The search is complete.
    Done,
    /// The time limit is used up.
    OutOfTime,
    /// Several trials in a row were void.
    Voids,
    /// A trial could not be run.
    Failed(E),
}

/// Runs trials for a search.
pub trait Measurer {
    /// The reason why no further trial is possible.
    type Error;

    /// Runs one trial at the load of the step.
    ///
    /// # Errors
    /// Ends the search, which keeps its results so far.
    fn measure(&mut self, step: &SearchTrialRequest) -> Result<Observation, Self::Error>;
}

/// A load with the votes of its trials.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPoint {
    /// The offered load.
    pub load: LoadLevel,
    /// The votes from bracketing and narrowing.
    pub led: Votes,
    /// The votes from confirming; they include no vote from bracketing or narrowing.
    pub confirmed: Votes,
    /// The number of each trial and its vote.
    pub trials: Vec<(u32, Vote)>,
}

/// The result of a search.
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
    /// The reason why no further trial was possible.
    pub error: Option<E>,
}

/// The certainty about one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// Votes taken only to confirm this end agree, with the requested confidence.
    Confirmed,
    /// Only the votes from bracketing and narrowing agree.
    Likely,
}

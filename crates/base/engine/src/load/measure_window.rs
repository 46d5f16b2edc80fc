//! The measured part of a trial.

use fathom_model::units::Nanos;

use crate::{Phase, WorkerHandle};

/// The measured part of a trial as one worker saw it.
#[derive(Debug)]
pub struct MeasureWindow {
    /// True if the warm-up counts too, as in a trial that ends after a number of requests.
    counts_all: bool,
    is_measuring: bool,
    from: Option<Nanos>,
    over_at: Option<Nanos>,
}

impl MeasureWindow {
    /// Creates the window before the first request. Without a warm-up it begins at the start of the trial.
    #[must_use]
    pub fn new(worker: &WorkerHandle<'_>, counts_all: bool) -> Self {
        let is_measuring = counts_all || worker.phase() == Phase::Measure;
        Self { counts_all, is_measuring, from: is_measuring.then_some(worker.start), over_at: None }
    }

    /// Follows the phase of the trial.
    pub fn update(&mut self, phase: Phase, now: Nanos) {
        self.is_measuring = self.counts_all || phase == Phase::Measure;
        if self.is_measuring && self.from.is_none() {
            self.from = Some(now);
        }
        if phase == Phase::Over {
            self.end(now);
        }
    }

    /// Ends the window at `now`, unless it has ended before.
    pub(super) fn end(&mut self, now: Nanos) {
        self.over_at.get_or_insert(now);
    }

    /// Returns true if an answer of a closed load counts.
    #[inline]
    #[must_use]
    pub fn is_measuring(&self) -> bool {
        self.is_measuring
    }

    /// Returns true if a request of an open load with this intended time counts.
    #[inline]
    #[must_use]
    pub fn contains(&self, intended: Nanos) -> bool {
        self.from.is_some_and(|from| intended >= from) && self.over_at.is_none_or(|at| intended < at)
    }

    /// Returns the start of the measured part, or none before it.
    #[must_use]
    pub fn from(&self) -> Option<Nanos> {
        self.from
    }

    /// Returns true if no more requests may be started.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over_at.is_some()
    }

    /// Returns true if at least `drain` has passed since the end, the time allowed for the last answers.
    #[must_use]
    pub(super) fn has_drained(&self, now: Nanos, drain: Nanos) -> bool {
        self.over_at.is_some_and(|at| now >= at + drain)
    }
}

//! The measured part of a trial.

use fathom_model::units::Nanos;

use crate::{Phase, WorkerHandle};

/// The measured part of a trial as one worker saw it.
#[derive(Debug)]
pub struct MeasureWindow {
    /// Whether the warm-up counts too, as it does where a number of requests ends the trial.
    counts_all: bool,
    is_measuring: bool,
    from: Option<Nanos>,
    over_at: Option<Nanos>,
}

impl MeasureWindow {
    /// The window before the first request. Without a warm-up it begins at the start of the trial.
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
    pub fn end(&mut self, now: Nanos) {
        self.over_at.get_or_insert(now);
    }

    /// Whether an answer counts in a closed load.
    #[inline]
    #[must_use]
    pub fn is_measuring(&self) -> bool {
        self.is_measuring
    }

    /// Whether a request of an open load counts, by the time at which it was due.
    #[inline]
    #[must_use]
    pub fn contains(&self, intended: Nanos) -> bool {
        self.from.is_some_and(|from| intended >= from) && self.over_at.is_none_or(|at| intended < at)
    }

    /// When the measured part began; none before.
    #[must_use]
    pub fn from(&self) -> Option<Nanos> {
        self.from
    }

    /// Whether nothing more may be started.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over_at.is_some()
    }

    /// Whether the last answers have had `drain` to come since the end.
    #[must_use]
    pub fn has_drained(&self, now: Nanos, drain: Nanos) -> bool {
        self.over_at.is_some_and(|at| now >= at + drain)
    }
}

//! The clock that all events of a trial wait for.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use fathom_model::units::Nanos;
use fathom_sys::clock;

/// Whether a trial has started, and whether it is over.
#[derive(Debug, Default, Clone, Copy)]
struct TrialStage {
    start: Option<Nanos>,
    is_over: bool,
}

/// The clock that all events of a trial wait for.
#[derive(Debug, Default)]
pub(in crate::execute) struct EventClock {
    stage: Mutex<TrialStage>,
    changed: Condvar,
}

impl EventClock {
    fn stage(&self) -> MutexGuard<'_, TrialStage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The trial starts at this time of the clock.
    pub(in crate::execute) fn start(&self, at: Nanos) {
        self.stage().start = Some(at);
        self.changed.notify_all();
    }

    pub(super) fn end(&self) {
        self.stage().is_over = true;
        self.changed.notify_all();
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage().is_over
    }

    pub(super) fn has_started(&self) -> bool {
        self.stage().start.is_some()
    }

    pub(super) fn wait_for_end(&self) {
        let stage = self.stage();
        drop(self.changed.wait_while(stage, |stage| !stage.is_over).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until so long after the start. Returns the start, or `None` if the trial is over before.
    pub(super) fn wait_until(&self, at: Nanos) -> Option<Nanos> {
        let mut stage = self.stage();
        loop {
            if stage.is_over {
                return None;
            }
            let left = stage.start.map(|start| (start + at).since(clock::now()));
            stage = match left {
                Some(Nanos::ZERO) => return stage.start,
                Some(left) => {
                    self.changed.wait_timeout(stage, left.as_duration()).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(stage).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

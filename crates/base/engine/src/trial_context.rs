//! When a trial starts, how long it lasts and how to stop it.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use fathom_model::{PeerClock, Phases, units::Nanos};

/// The stop request to a running test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// No stop request.
    Continue,
    /// The other side has finished: drain, count and end.
    Finish,
    /// Stop sending at once; the measured data is kept as incomplete.
    Abort,
}

/// Tells a running test to stop, from another thread.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicU8>);

impl StopFlag {
    /// Requests an orderly end; an earlier abort remains in effect.
    pub fn finish(&self) {
        self.0.fetch_max(1, Ordering::Relaxed);
    }

    /// Requests an immediate end.
    pub fn abort(&self) {
        self.0.fetch_max(2, Ordering::Relaxed);
    }

    /// Returns the current request.
    #[must_use]
    pub fn state(&self) -> Stop {
        match self.0.load(Ordering::Relaxed) {
            0 => Stop::Continue,
            1 => Stop::Finish,
            _ => Stop::Abort,
        }
    }
}

/// The progress of a running test for a live view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveProgress {
    /// The time since the start.
    pub elapsed: Nanos,
    /// The growth of the test's first counter since the last update.
    pub growth: u64,
    /// The time since the last update.
    pub span: Nanos,
    /// Whether the warm-up is over.
    pub measuring: bool,
    /// The p99 latency since the last update, accurate to about 6 %, if the kind shows latencies.
    pub p99: Option<Nanos>,
}

/// One trial from the view of its test.
pub struct TrialContext {
    /// The agreed start, on this host's monotonic clock.
    pub start: Nanos,
    /// The lengths of its phases.
    pub phases: Phases,
    /// The flag that stops it.
    pub stop: StopFlag,
    /// The callback for the live view, called at most twice a second from the conducting thread.
    pub live: Option<Box<dyn Fn(LiveProgress) + Send + Sync>>,
    /// The clock of the host at the other end; `None` if it is unknown or if there are several.
    pub peer_clock: Option<PeerClock>,
}

impl TrialContext {
    /// Creates a context without a live view and without a peer clock.
    #[must_use]
    pub fn new(start: Nanos, phases: Phases) -> Self {
        Self { start, phases, stop: StopFlag::default(), live: None, peer_clock: None }
    }
}

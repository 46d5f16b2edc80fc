//! When a trial starts, how long it lasts, and how it is told to stop.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use fathom_model::{PeerClock, Phases, units::Nanos};

/// What a running test has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Nothing: go on.
    Continue,
    /// The other side has finished: drain, count, and come to an end.
    Finish,
    /// Stop sending at once; what was measured is kept as incomplete.
    Abort,
}

/// Tells a running test to stop, from another thread.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicU8>);

impl StopFlag {
    /// Asks for an orderly end; an abort stays an abort.
    pub fn finish(&self) {
        self.0.fetch_max(1, Ordering::Relaxed);
    }

    /// Asks for an immediate end.
    pub fn abort(&self) {
        self.0.fetch_max(2, Ordering::Relaxed);
    }

    /// What was asked so far.
    #[must_use]
    pub fn state(&self) -> Stop {
        match self.0.load(Ordering::Relaxed) {
            0 => Stop::Continue,
            1 => Stop::Finish,
            _ => Stop::Abort,
        }
    }
}

/// What a live view shows of a running test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveProgress {
    /// The time since the start.
    pub elapsed: Nanos,
    /// What the first counter of the test grew by since the last of these.
    pub growth: u64,
    /// The time since the last of these.
    pub span: Nanos,
    /// Whether the warm-up is over.
    pub measuring: bool,
    /// The latency that one in a hundred exceeded since the last of these, to about 6 %, where the kind shows latencies.
    pub p99: Option<Nanos>,
}

/// One trial as its test sees it.
pub struct TrialContext {
    /// The start that was agreed, on this host's monotonic clock.
    pub start: Nanos,
    /// How long its parts last.
    pub phases: Phases,
    /// How it is told to stop.
    pub stop: StopFlag,
    /// Where a live view is told, at most twice a second; called from the thread that conducts.
    pub live: Option<Box<dyn Fn(LiveProgress) + Send + Sync>>,
    /// The clock of the host at the other end; nothing when it is not known, or when there are several.
    pub peer_clock: Option<PeerClock>,
}

impl TrialContext {
    /// A session without a live view, against nobody's clock.
    #[must_use]
    pub fn new(start: Nanos, phases: Phases) -> Self {
        Self { start, phases, stop: StopFlag::default(), live: None, peer_clock: None }
    }
}

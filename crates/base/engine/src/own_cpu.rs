//! The processor time of a worker, for whoever looks on while it works.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock::{self, ThreadClock},
    process::affinity,
};

/// What a worker's thread used since its work began; written by the worker, read by the conductor.
#[derive(Debug)]
pub(crate) struct OwnCpu {
    /// The thread's clock; 0 before the work begins.
    clock: AtomicI32,
    /// The core that the thread is pinned to; -1 for none.
    core: AtomicI64,
    begun_ns: AtomicU64,
    /// What the clock showed at the end; 0 while the thread works.
    ended_ns: AtomicU64,
}

impl Default for OwnCpu {
    fn default() -> Self {
        Self {
            clock: AtomicI32::new(0),
            core: AtomicI64::new(-1),
            begun_ns: AtomicU64::new(0),
            ended_ns: AtomicU64::new(0),
        }
    }
}

impl OwnCpu {
    /// The calling thread begins its work.
    pub(crate) fn begin(&self) {
        let core = match affinity::allowed_cores().unwrap_or_default()[..] {
            [only] => i64::try_from(only).unwrap_or(-1),
            _ => -1,
        };
        self.core.store(core, Ordering::Relaxed);
        self.begun_ns.store(clock::thread_cpu().0, Ordering::Relaxed);
        self.clock.store(ThreadClock::of_this_thread().to_raw(), Ordering::Release);
    }

    /// The calling thread has done its work; what that took.
    pub(crate) fn end(&self) -> Nanos {
        self.ended_ns.store(clock::thread_cpu().0, Ordering::Release);
        self.spent()
    }

    /// What the work took so far.
    pub(crate) fn spent(&self) -> Nanos {
        let clock = self.clock.load(Ordering::Acquire);
        let now = || (clock != 0).then(|| ThreadClock::from_raw(clock).read()).flatten();
        let ended = || Nanos(self.ended_ns.load(Ordering::Acquire));
        // A thread that ends between the two reads has written its end before.
        let at = match ended() {
            Nanos::ZERO => now().unwrap_or_else(ended),
            ended => ended,
        };
        at - Nanos(self.begun_ns.load(Ordering::Relaxed))
    }

    /// The core that the worker is pinned to, by its name; empty for none.
    pub(crate) fn core(&self) -> String {
        let core = self.core.load(Ordering::Relaxed);
        if core < 0 { String::new() } else { format!("cpu{core}") }
    }
}

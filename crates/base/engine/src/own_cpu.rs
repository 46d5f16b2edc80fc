//! The CPU time of a worker, readable while it works.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock::{self, ThreadClock},
    process::affinity,
};

/// The CPU time of a worker's thread since its work began. The worker writes it, the conductor reads it.
#[derive(Debug)]
pub(crate) struct OwnCpu {
    /// The thread's CPU clock; 0 before the work begins.
    clock: AtomicI32,
    /// The core that the thread is pinned to; -1 for none.
    core: AtomicI64,
    begun_ns: AtomicU64,
    /// The value of the clock at the end; 0 while the thread works.
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
    /// Records that the calling thread begins its work.
    pub(crate) fn begin(&self) {
        let core = match affinity::allowed_cores().unwrap_or_default()[..] {
            [only] => i64::try_from(only).unwrap_or(-1),
            _ => -1,
        };
        self.core.store(core, Ordering::Relaxed);
        self.begun_ns.store(clock::thread_cpu().0, Ordering::Relaxed);
        self.clock.store(ThreadClock::of_this_thread().to_raw(), Ordering::Release);
    }

    /// Records that the calling thread has finished its work, and returns the CPU time used.
    pub(crate) fn end(&self) -> Nanos {
        self.ended_ns.store(clock::thread_cpu().0, Ordering::Release);
        self.spent()
    }

    /// Returns the CPU time used so far.
    pub(crate) fn spent(&self) -> Nanos {
        let clock = self.clock.load(Ordering::Acquire);
        let now = || (clock != 0).then(|| ThreadClock::from_raw(clock).read()).flatten();
        let ended = || Nanos(self.ended_ns.load(Ordering::Acquire));
        // A thread that ends between the two reads has written its end before that.
        let at = match ended() {
            Nanos::ZERO => now().unwrap_or_else(ended),
            ended => ended,
        };
        at - Nanos(self.begun_ns.load(Ordering::Relaxed))
    }

    /// The name of the core that the worker is pinned to; empty for none.
    pub(crate) fn core(&self) -> String {
        let core = self.core.load(Ordering::Relaxed);
        if core < 0 { String::new() } else { format!("cpu{core}") }
    }
}

//! The CPU time of a worker and its wait for a core, readable while it works.

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
    /// The number of the thread; 0 before the work begins.
    thread: AtomicI32,
    /// The run delay when the work began.
    waited_before_ns: AtomicU64,
    /// The run delay at the end; the greatest number while the thread works or if the kernel does not tell.
    waited_ns: AtomicU64,
}

impl Default for OwnCpu {
    fn default() -> Self {
        Self {
            clock: AtomicI32::new(0),
            core: AtomicI64::new(-1),
            begun_ns: AtomicU64::new(0),
            ended_ns: AtomicU64::new(0),
            thread: AtomicI32::new(0),
            waited_before_ns: AtomicU64::new(0),
            waited_ns: AtomicU64::new(u64::MAX),
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
        let thread = clock::this_thread();
        self.waited_before_ns.store(clock::run_delay(thread).map_or(0, |waited| waited.0), Ordering::Relaxed);
        self.thread.store(thread, Ordering::Release);
        self.begun_ns.store(clock::thread_cpu().0, Ordering::Relaxed);
        self.clock.store(ThreadClock::of_this_thread().to_raw(), Ordering::Release);
    }

    /// Records that the calling thread has finished its work, and returns the CPU time used.
    pub(crate) fn end(&self) -> Nanos {
        let waited = clock::run_delay(clock::this_thread());
        self.waited_ns.store(waited.map_or(u64::MAX, |waited| waited.0), Ordering::Release);
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

    /// Returns the time that the thread has had work and no core so far; `None` if the kernel does not tell.
    pub(crate) fn waited(&self) -> Option<Nanos> {
        let ended = || Some(self.waited_ns.load(Ordering::Acquire)).filter(|waited| *waited < u64::MAX).map(Nanos);
        match self.thread.load(Ordering::Acquire) {
            0 => Some(Nanos::ZERO),
            thread => {
                let all = ended().or_else(|| clock::run_delay(thread)).or_else(ended)?;
                Some(all - Nanos(self.waited_before_ns.load(Ordering::Relaxed)))
            }
        }
    }

    /// The name of the core that the worker is pinned to; empty for none.
    pub(crate) fn core(&self) -> String {
        let core = self.core.load(Ordering::Relaxed);
        if core < 0 { String::new() } else { format!("cpu{core}") }
    }
}

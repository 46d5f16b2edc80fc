//! The monitor of a worker that is in the kernel for the whole trial: reports its progress and ends it.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use fathom_engine::WorkerHandle;
use fathom_model::units::Nanos;
use fathom_sys::{Error, Result, clock, netlink::Netlink, process::affinity};

use super::super::counter;
use super::program::{ProgramMaps, ProgramState};

/// The second thread of a worker.
#[derive(Debug)]
pub(super) struct WorkerMonitor<'a> {
    pub(super) maps: &'a ProgramMaps,
    pub(super) netlink: &'a mut Netlink,
    pub(super) name: &'a str,
    pub(super) cores: &'a [usize],
    pub(super) gaps: &'a PollGaps,
}

/// The times in which a monitor did not run, for its worker to read.
#[derive(Debug)]
pub(super) struct PollGaps {
    last_ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl PollGaps {
    pub(super) const fn new(now: Nanos) -> Self {
        Self { last_ns: AtomicU64::new(now.0), longest_ns: AtomicU64::new(0) }
    }

    fn note(&self, now: Nanos) {
        let gap = now.since(Nanos(self.last_ns.swap(now.0, Ordering::Relaxed)));
        self.longest_ns.fetch_max(gap.0, Ordering::Relaxed);
    }

    /// Returns the longest gap since the last call, including one that lasts.
    pub(super) fn take_longest(&self, now: Nanos) -> Nanos {
        let lasting = now.since(Nanos(self.last_ns.load(Ordering::Relaxed)));
        lasting.max(Nanos(self.longest_ns.swap(0, Ordering::Relaxed)))
    }
}

/// Short enough that an interval of 100 ms is exact to 2 %.
const POLL_INTERVAL: Nanos = Nanos::from_millis(2);
/// The time between two checks of the link: frames for a device that is down vanish without an error.
const LINK_POLL_INTERVAL: Nanos = Nanos::from_millis(20);
/// The lead time for the end, so that the program sees it before it passes.
const AHEAD: Nanos = Nanos::from_millis(1);
/// How long the program may take to finish after it was told to end: twice the time that the schedule allows. A worker that loses
/// its core takes longer.
const STOP_TIMEOUT: Nanos = Nanos::from_secs(2);

impl WorkerMonitor<'_> {
    /// Reports the progress of the program until it has finished.
    pub(super) fn watch(&mut self, worker: &WorkerHandle<'_>) -> Result<()> {
        // The worker is bound to its core, and this thread inherited that. On the same core it would take time from the program.
        affinity::allow_cores(self.cores)?;
        let mut link_at = clock::now();
        let mut deadline = None;
        loop {
            let state = self.maps.state()?;
            count_progress(worker, &state);
            let now = clock::now();
            self.gaps.note(now);
            if state.done.is_some() || deadline.is_some_and(|deadline| now > deadline) {
                return Ok(());
            }
            if worker.is_over() && deadline.is_none() {
                self.maps.stop_at(now + AHEAD)?;
                deadline = Some(now + STOP_TIMEOUT);
            }
            if now >= link_at {
                self.require_link()?;
                link_at = now + LINK_POLL_INTERVAL;
            }
            clock::sleep_until(now + POLL_INTERVAL);
        }
    }

    fn require_link(&mut self) -> Result<()> {
        let link = self.netlink.link(self.name)?;
        if link.is_up && link.has_carrier {
            return Ok(());
        }
        Err(Error::new("live frames", io::Error::from(io::ErrorKind::NetworkDown)))
    }
}

/// Reports the progress of a program as the counters of its worker.
pub(super) fn count_progress(worker: &WorkerHandle<'_>, state: &ProgramState) {
    worker.raise(counter::SENT, state.n_sent);
    if state.is_paced {
        worker.raise(counter::UNSENT, state.n_unsent);
        worker.raise(counter::INTENDED, state.n_sent + state.n_unsent);
        worker.raise(counter::LAG, state.lag.0);
    }
}

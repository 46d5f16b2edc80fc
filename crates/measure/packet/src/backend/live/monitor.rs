//! What watches over a worker that is in the kernel for the whole trial: tells what it has done, and when to end.

use std::io;

use fathom_engine::WorkerHandle;
use fathom_model::units::Nanos;
use fathom_sys::{Error, Result, clock, netlink::Netlink, process::affinity};

use super::super::counter;
use super::program::{ProgramMaps, ProgramState};

/// The other thread of a worker.
#[derive(Debug)]
pub(super) struct WorkerMonitor<'a> {
    pub(super) maps: &'a ProgramMaps,
    pub(super) netlink: &'a mut Netlink,
    pub(super) name: &'a str,
    pub(super) cores: &'a [usize],
}

/// Often enough that an interval of 100 ms is exact to 2 %.
const POLL_INTERVAL: Nanos = Nanos::from_millis(2);
/// How often the device is looked at: frames for one that is down vanish without a word.
const LINK_POLL_INTERVAL: Nanos = Nanos::from_millis(20);
/// The end is set this far ahead, so that the program learns of it before it has come.
const AHEAD: Nanos = Nanos::from_millis(1);
/// How long the program may take to come to its end once it is told, twice what the schedule allows it; a worker whose core is taken
/// from it takes longer.
const STOP_TIMEOUT: Nanos = Nanos::from_secs(2);

impl WorkerMonitor<'_> {
    /// Tells what the program does until it has come to its end.
    pub(super) fn watch(&mut self, worker: &WorkerHandle<'_>) -> Result<()> {
        // The worker is bound to its core, and this thread with it; there it would take time from the program.
        affinity::allow_cores(self.cores)?;
        let mut link_at = clock::now();
        let mut deadline = None;
        loop {
            let state = self.maps.state()?;
            count_progress(worker, &state);
            let now = clock::now();
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

/// Shows what a program has done as the counts of its worker.
pub(super) fn count_progress(worker: &WorkerHandle<'_>, state: &ProgramState) {
    worker.raise(counter::SENT, state.n_sent);
    if state.is_paced {
        worker.raise(counter::UNSENT, state.n_unsent);
        worker.raise(counter::INTENDED, state.n_sent + state.n_unsent);
        worker.raise(counter::LAG, state.lag.0);
    }
}

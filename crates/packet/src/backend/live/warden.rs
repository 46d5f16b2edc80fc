//! What watches over a worker that is in the kernel for the whole trial: tells what it has done, and when to end.

use std::io;

use fathom_engine::Worker;
use fathom_model::units::Nanos;
use fathom_sys::{Error, Result, affinity, clock, netlink::Netlink};

use super::super::counter;
use super::program::{Maps, State};

/// The other thread of a worker.
#[derive(Debug)]
pub(super) struct Warden<'a> {
    pub(super) maps: &'a Maps,
    pub(super) netlink: &'a mut Netlink,
    pub(super) name: &'a str,
    pub(super) cores: &'a [usize],
}

/// Often enough that an interval of 100 ms is exact to 2 %.
const LOOK_EVERY: Nanos = Nanos::from_millis(2);
/// How often the device is looked at: frames for one that is down vanish without a word.
const LINK_EVERY: Nanos = Nanos::from_millis(20);
/// The end is set this far ahead, so that the program learns of it before it has come.
const AHEAD: Nanos = Nanos::from_millis(1);
/// How long the program may take to come to its end once it is told, twice what the schedule allows it; a worker whose core is taken
/// from it takes longer.
const PATIENCE: Nanos = Nanos::from_secs(2);

impl Warden<'_> {
    /// Tells what the program does until it has come to its end.
    pub(super) fn watch(&mut self, worker: &Worker<'_>) -> Result<()> {
        // The worker is bound to its core, and this thread with it; there it would take time from the program.
        affinity::allow_cores(self.cores)?;
        let mut link_at = clock::now();
        let mut deadline = None;
        loop {
            let state = self.maps.state()?;
            tell(worker, &state);
            let now = clock::now();
            if state.done.is_some() || deadline.is_some_and(|deadline| now > deadline) {
                return Ok(());
            }
            if worker.is_over() && deadline.is_none() {
                self.maps.stop_at(now + AHEAD)?;
                deadline = Some(now + PATIENCE);
            }
            if now >= link_at {
                self.require_link()?;
                link_at = now + LINK_EVERY;
            }
            clock::sleep_until(now + LOOK_EVERY);
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
pub(super) fn tell(worker: &Worker<'_>, state: &State) {
    worker.raise(counter::SENT, state.n_sent);
    if state.is_paced {
        worker.raise(counter::UNSENT, state.n_unsent);
        worker.raise(counter::INTENDED, state.n_sent + state.n_unsent);
        worker.raise(counter::LAG, state.lag.0);
    }
}

//! Requests that are due by a schedule, on whichever connection is free.

use fathom_engine::{
    Error, Phase, WorkerHandle,
    load::OpenSchedule,
    pace::{ConnectionAvailability, LateCause},
};
use fathom_model::{Histogram, units::Nanos};

use super::{outbox::Outbox, scan::Scan, tally::Tally};

/// How many connections are looked at for a free one.
const LOOKED_AT_MAX: u32 = 4096;
/// The time until the next look for a free connection while requests wait for one.
const LOOKS_AGAIN: Nanos = Nanos::from_micros(50);

/// The schedule of an open load.
pub(super) struct Starts {
    schedule: OpenSchedule,
    /// The connection to look at next.
    next: u32,
    /// From the intended to the actual starts in the measured window.
    pub(super) lag: Histogram,
}

impl Starts {
    pub(super) fn new(schedule: OpenSchedule) -> Self {
        Self { schedule, next: 0, lag: Histogram::new() }
    }

    /// Starts what is due. Returns when to look again; `None` if nothing more will be due.
    pub(super) fn start_due(
        &mut self,
        now: Nanos,
        worker: &WorkerHandle<'_>,
        scan: &mut Scan<'_>,
        outbox: &mut Outbox,
    ) -> Result<Option<Nanos>, Error> {
        let mut free = self.find_free(scan);
        let availability = if free.is_some() { ConnectionAvailability::Some } else { ConnectionAvailability::None };
        worker.add(Tally::Intended as usize, self.schedule.notice(0, now, availability));
        while let Some(slot) = free
            && let Some(start) = self.schedule.take(0, now)
        {
            scan.start(slot, (start.intended, now), outbox)?;
            worker.add(Tally::Sent as usize, 1);
            match start.late {
                None => {}
                Some(LateCause::NoConnection) => worker.add(Tally::LateNoConnection as usize, 1),
                Some(LateCause::OwnProcessor) => worker.add(Tally::LateOwnCpu as usize, 1),
            }
            if worker.phase() == Phase::Measure {
                self.lag.record(start.lag.0);
            }
            free = self.find_free(scan);
        }
        outbox.flush()?;
        if self.schedule.waiting(0) > 0 {
            return Ok(Some(now + LOOKS_AGAIN));
        }
        Ok(self.schedule.next_due().map(|due| self.schedule.wake_at(due, now)))
    }

    /// Learns from a sleep until a start was due.
    pub(super) fn learn(&mut self, until: Nanos, woke: Nanos) {
        self.schedule.learn(until, woke);
    }

    /// The requests that were due and never started.
    pub(super) fn n_not_started(&self) -> u64 {
        self.schedule.waiting(0)
    }

    fn find_free(&mut self, scan: &Scan<'_>) -> Option<u32> {
        let n = scan.program.rows.n_rows();
        for _ in 0..n.min(LOOKED_AT_MAX) {
            let slot = self.next;
            if scan.is_free(slot) {
                return Some(slot);
            }
            self.next = (slot + 1) % n;
        }
        None
    }
}

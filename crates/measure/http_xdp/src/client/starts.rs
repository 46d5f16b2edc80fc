//! Requests that are due by a schedule, on whichever connection is free.

use fathom_engine::{
    Error, WorkerHandle,
    load::{MeasureWindow, OpenSchedule},
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
    /// From the intended to the actual starts of measured requests.
    lag: Histogram,
}

/// What a schedule leaves behind.
#[derive(Debug, Default)]
pub(super) struct StartsOutcome {
    /// From the intended to the actual starts of measured requests; of those that never started, to the end.
    pub(super) lag: Histogram,
    /// The latter alone, which are lower bounds of their response times.
    pub(super) waited: Histogram,
    /// All requests that were due and never started.
    pub(super) n_not_started: u64,
}

impl Starts {
    pub(super) fn new(schedule: OpenSchedule) -> Self {
        Self { schedule, next: 0, lag: Histogram::new() }
    }

    /// Starts what is due; requests that are due in the window are measured. Returns when to look again; `None` if nothing more will be due.
    pub(super) fn start_due(
        &mut self,
        now: Nanos,
        (worker, window): (&WorkerHandle<'_>, &MeasureWindow),
        scan: &mut Scan<'_>,
        outbox: &mut Outbox,
    ) -> Result<Option<Nanos>, Error> {
        let mut free = self.find_free(scan);
        let availability = if free.is_some() { ConnectionAvailability::Some } else { ConnectionAvailability::None };
        worker.add(Tally::Intended as usize, self.schedule.notice(0, now, availability));
        while let Some(slot) = free
            && let Some(start) = self.schedule.take(0, now)
        {
            let is_measured = window.contains(start.intended);
            scan.start(slot, (start.intended, now), is_measured, outbox)?;
            worker.add(Tally::Sent as usize, 1);
            match start.late {
                None => {}
                Some(LateCause::NoConnection) => worker.add(Tally::LateNoConnection as usize, 1),
                Some(LateCause::OwnProcessor) => worker.add(Tally::LateOwnCpu as usize, 1),
            }
            if is_measured {
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

    /// Ends the schedule at `now`. What was due and never started has waited until then.
    pub(super) fn finish(self, now: Nanos, window: &MeasureWindow) -> StartsOutcome {
        let n_not_started = self.schedule.waiting(0);
        let (mut lag, mut waited) = (self.lag, Histogram::new());
        for intended in self.schedule.rest().filter(|intended| window.contains(*intended)) {
            waited.record(now.since(intended).0);
        }
        lag.merge(&waited);
        StartsOutcome { lag, waited, n_not_started }
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

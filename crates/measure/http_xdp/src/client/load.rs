//! The loop of a load: one thread looks after all connections while the program does the work.

use fathom_engine::{
    Error, Stop, StopFlag, WorkerHandle,
    load::{DRAIN_OPEN, MeasureWindow},
};
use fathom_model::{Histogram, units::Nanos};
use fathom_sys::clock;

use super::{
    claim::Claim,
    error::read_failed,
    outbox::Outbox,
    scan::{Aim, Census, OwnCounts, Scan},
    slow::SlowPath,
    starts::{Starts, StartsOutcome},
    tally::Shown,
    window::{Measured, Window},
};
use crate::{machine::Event, program::Counts};

/// The time from one look at the connections to the next while user space has something to do.
const STEP: Nanos = Nanos::from_millis(2);
/// The same while the program does all the work, and opens the next connection itself: a tick of a kernel with 100 Hz, by which its own
/// timers may be late too.
const STEP_QUIET: Nanos = Nanos::from_millis(10);
/// How long before a whole quiet step from the start such a look is. The engine reads the counters at these times, and is to find new ones.
const BEFORE_READING: Nanos = Nanos::from_millis(1);
/// How long the requests in flight of a closed load may take at the end.
const DRAIN_CLOSED: Nanos = Nanos::from_millis(100);
/// How long closing connections may take.
const CLOSING: Nanos = Nanos::from_millis(100);
/// How long the last answers of the server to our resets take.
const SETTLING: Nanos = Nanos::from_millis(20);

/// A load at work.
pub(super) struct Load<'a> {
    pub(super) scan: Scan<'a>,
    pub(super) slow: SlowPath,
    pub(super) outbox: Outbox,
    pub(super) claim: Option<Claim>,
    pub(super) starts: Option<Starts>,
    /// The server keeps nothing of a connection, so there is nothing to close.
    is_server_stateless: bool,
    shown: Shown,
    n_answered_before: u64,
    n_slow_dropped_before: u64,
}

/// What a load has counted besides the counters of its worker.
#[derive(Debug)]
pub(crate) struct LoadOutcome {
    pub(crate) measured: Measured,
    /// From the start of the load to its very end.
    pub(crate) counts: Counts,
    pub(crate) own: OwnCounts,
    /// Requests that were answered before the load.
    pub(crate) n_answered_before: u64,
    /// In an open load, latencies of measured requests that were given up, had no answer at the end, or were never started; the true ones are
    /// longer.
    pub(crate) lower_bounds: Histogram,
    /// Frames that found the queue of the device full.
    pub(crate) n_refused: u64,
    /// Frames for the slow path that found no room.
    pub(crate) n_slow_dropped: u64,
    /// Frames for the slow path that were longer than its sockets take.
    pub(crate) n_slow_too_long: u64,
    pub(crate) lag: Histogram,
    pub(crate) n_not_started: u64,
}

impl<'a> Load<'a> {
    pub(super) fn new(
        (scan, slow): (Scan<'a>, SlowPath),
        outbox: Outbox,
        claim: Option<Claim>,
        starts: Option<Starts>,
        is_server_stateless: bool,
    ) -> Result<Self, Error> {
        let (before, n_slow_before) = (slow.counts(scan.program)?, slow.n_answered());
        let n_slow_dropped_before = slow.n_dropped()?;
        Ok(Self {
            scan,
            slow,
            outbox,
            claim,
            starts,
            is_server_stateless,
            shown: Shown::after(&before, n_slow_before),
            n_answered_before: before.n(Event::Answered),
            n_slow_dropped_before,
        })
    }

    /// Works until the trial is over, and ends all connections.
    pub(super) fn run(mut self, worker: &WorkerHandle<'_>, stop: &StopFlag) -> Result<LoadOutcome, Error> {
        let (program, rules) = (self.scan.program, self.scan.setup.rules);
        let (mut window, mut books) = (MeasureWindow::new(worker, false), None);
        program.resume().map_err(read_failed)?;
        while !worker.is_over() {
            let began = clock::now();
            window.update(worker.phase(), began);
            if books.is_none() && window.is_measuring() && !rules.is_open_load {
                books = Some(Window::begin(program, &self.slow)?);
            }
            self.scan.look(began, Aim::Work, &mut self.outbox)?;
            self.tend(worker)?;
            self.start_until(self.next_look(began, worker.start), worker, &mut window)?;
        }
        window.update(worker.phase(), clock::now());
        self.tend(worker)?;
        let of_closed = books.map(|books| books.end(program, &self.slow, rules.closes)).transpose()?;
        program.stop().map_err(read_failed)?;
        let ended = self.abandon(stop)?;
        let measured =
            if rules.is_open_load { Measured::of_open(program, &self.slow)? } else { of_closed.unwrap_or_default() };
        let of_starts = self.starts.take().map(|starts| starts.finish(ended, &window)).unwrap_or_default();
        self.close(stop)?;
        self.tend(worker)?;
        self.outcome(measured, of_starts)
    }

    fn outcome(self, measured: Measured, of_starts: StartsOutcome) -> Result<LoadOutcome, Error> {
        let StartsOutcome { lag, waited, n_not_started } = of_starts;
        let mut lower_bounds = self.scan.given_up;
        lower_bounds.merge(&waited);
        Ok(LoadOutcome {
            measured,
            lower_bounds,
            counts: self.slow.counts(self.scan.program)?,
            own: self.scan.counts,
            n_answered_before: self.n_answered_before,
            n_refused: self.outbox.n_refused,
            n_slow_dropped: self.slow.n_dropped()?.saturating_sub(self.n_slow_dropped_before),
            n_slow_too_long: self.slow.n_too_long()?,
            lag,
            n_not_started,
        })
    }

    /// When to look at the connections again. Connections that stay may be closed by the server at any time, and wait for user space then.
    fn next_look(&self, began: Nanos, start: Nanos) -> Nanos {
        let is_quiet = self.scan.is_quiet && self.scan.setup.rules.closes && self.claim.is_none();
        if is_quiet { next_quiet_look(began, start) } else { began + STEP }
    }

    /// Shows the counters, and answers who asks for our addresses.
    fn tend(&mut self, worker: &WorkerHandle<'_>) -> Result<(), Error> {
        let counts = self.slow.counts(self.scan.program)?;
        self.shown.update(&counts, &self.scan.counts, self.slow.n_answered(), worker);
        self.claim.as_mut().map_or(Ok(()), |claim| claim.answer(&mut self.outbox))
    }

    /// Starts what is due until the next look.
    fn start_until(
        &mut self,
        until: Nanos,
        worker: &WorkerHandle<'_>,
        window: &mut MeasureWindow,
    ) -> Result<(), Error> {
        let load = (self.scan.program, self.scan.setup);
        let Some(starts) = &mut self.starts else {
            return self.slow.tend_until(until, load, &mut self.outbox).map(drop);
        };
        let mut now = clock::now();
        while now < until && !worker.is_over() {
            window.update(worker.phase(), now);
            let next = starts.start_due(now, (worker, window), &mut self.scan, &mut self.outbox)?;
            let wakes_for_start = next.filter(|next| *next < until);
            let wake_at = wakes_for_start.unwrap_or(until);
            now = self.slow.tend_until(wake_at, load, &mut self.outbox)?;
            if wakes_for_start.is_some() {
                starts.learn(wake_at, now);
            }
        }
        Ok(())
    }

    /// Waits for the answers to what is in flight, and gives up what has none by then. Returns the time after it.
    fn abandon(&mut self, stop: &StopFlag) -> Result<Nanos, Error> {
        let drain = if self.scan.setup.rules.is_open_load { DRAIN_OPEN.min(self.scan.timeout()) } else { DRAIN_CLOSED };
        let is_ended = |census: &Census| census.n_connecting + census.n_waiting == 0;
        self.pursue(Aim::Drain, drain, is_ended, stop)?;
        self.end_all(Aim::Abandon)?;
        Ok(clock::now())
    }

    /// Ends all connections: orderly if they are quick, and by a reset otherwise.
    fn close(&mut self, stop: &StopFlag) -> Result<(), Error> {
        if self.is_server_stateless {
            return Ok(());
        }
        self.pursue(Aim::Close, CLOSING, |census| census.n_open == 0, stop)?;
        self.end_all(Aim::Reset)?;
        clock::sleep_until(clock::now() + SETTLING);
        Ok(())
    }

    /// Ends connections at once. The first look takes them from the program, the second one ends them.
    fn end_all(&mut self, aim: Aim) -> Result<(), Error> {
        self.scan.look_at_all(aim, &mut self.outbox)?;
        clock::sleep_until(clock::now() + STEP);
        self.scan.look_at_all(aim, &mut self.outbox).map(drop)
    }

    /// Looks at all connections until they are as they should be, or the time is over.
    fn pursue(
        &mut self,
        aim: Aim,
        most: Nanos,
        is_reached: impl Fn(&Census) -> bool,
        stop: &StopFlag,
    ) -> Result<(), Error> {
        let deadline = clock::now() + most;
        loop {
            let census = self.scan.look_at_all(aim, &mut self.outbox)?;
            let now = clock::now();
            if is_reached(&census) || now >= deadline || stop.state() == Stop::Abort {
                return Ok(());
            }
            self.claim.as_mut().map_or(Ok(()), |claim| claim.answer(&mut self.outbox))?;
            self.slow.tend_until(now + STEP, (self.scan.program, self.scan.setup), &mut self.outbox)?;
        }
    }
}

fn next_quiet_look(began: Nanos, start: Nanos) -> Nanos {
    let n_steps = (began + BEFORE_READING).since(start).0 / STEP_QUIET.0;
    start + Nanos((n_steps + 1) * STEP_QUIET.0) - BEFORE_READING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_looks_are_just_before_the_counters_are_read() {
        let at = |micros: u64| Nanos::from_micros(micros);
        let start = at(5_000_000);
        let looks =
            [(0, 9_000), (8_999, 9_000), (9_000, 19_000), (9_040, 19_000), (18_000, 19_000), (100_500, 109_000)];
        for (began, next) in looks {
            assert_eq!(next_quiet_look(start + at(began), start), start + at(next), "{began}");
        }
    }
}

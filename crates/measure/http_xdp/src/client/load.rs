//! The loop of a load: one thread looks after all connections while the program does the work.

use fathom_engine::{Error, Phase, Stop, StopFlag, WorkerHandle};
use fathom_model::{Histogram, units::Nanos};
use fathom_sys::clock;

use super::{
    claim::Claim,
    error::read_failed,
    outbox::Outbox,
    scan::{Aim, Census, OwnCounts, Scan},
    slow::SlowPath,
    starts::Starts,
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
/// How long requests in flight may take at the end, and then closing connections.
const ENDING: Nanos = Nanos::from_millis(100);
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
    /// Requests in flight at the end.
    pub(crate) n_unfinished: u64,
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
        let program = self.scan.program;
        let mut window = None;
        program.resume().map_err(read_failed)?;
        while !worker.is_over() {
            if window.is_none() && worker.phase() == Phase::Measure {
                window = Some(Window::begin(program, &self.slow)?);
            }
            let began = clock::now();
            self.scan.look(began, Aim::Work, &mut self.outbox)?;
            self.tend(worker)?;
            self.start_until(self.next_look(began, worker.start), worker)?;
        }
        self.tend(worker)?;
        let closes = self.scan.setup.rules.closes;
        let measured = window.map(|window| window.end(program, &self.slow, closes)).transpose()?.unwrap_or_default();
        program.stop().map_err(read_failed)?;
        let n_answered_before = self.n_answered_before;
        let n_unfinished = self.end(stop)?;
        self.tend(worker)?;
        let (lag, n_not_started) =
            self.starts.map(|starts| (starts.lag.clone(), starts.n_not_started())).unwrap_or_default();
        let counts = self.slow.counts(program)?;
        let n_slow_dropped = self.slow.n_dropped()?.saturating_sub(self.n_slow_dropped_before);
        let n_slow_too_long = self.slow.n_too_long()?;
        let (own, n_refused) = (self.scan.counts, self.outbox.n_refused);
        Ok(LoadOutcome {
            measured,
            counts,
            own,
            n_answered_before,
            n_unfinished,
            n_refused,
            n_slow_dropped,
            n_slow_too_long,
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
    fn start_until(&mut self, until: Nanos, worker: &WorkerHandle<'_>) -> Result<(), Error> {
        let load = (self.scan.program, self.scan.setup);
        let Some(starts) = &mut self.starts else {
            return self.slow.tend_until(until, load, &mut self.outbox).map(drop);
        };
        let mut now = clock::now();
        while now < until && !worker.is_over() {
            let next = starts.start_due(now, worker, &mut self.scan, &mut self.outbox)?;
            let wakes_for_start = next.filter(|next| *next < until);
            let wake_at = wakes_for_start.unwrap_or(until);
            now = self.slow.tend_until(wake_at, load, &mut self.outbox)?;
            if wakes_for_start.is_some() {
                starts.learn(wake_at, now);
            }
        }
        Ok(())
    }

    /// Ends all connections: orderly if they are quick, and by a reset otherwise. Returns the number of requests without an answer.
    fn end(&mut self, stop: &StopFlag) -> Result<u64, Error> {
        let is_aborted = || stop.state() == Stop::Abort;
        let drained = self.pursue(Aim::Drain, |census| census.n_connecting + census.n_waiting == 0, is_aborted)?;
        let n_unfinished = (drained.n_connecting + drained.n_waiting).into();
        if self.is_server_stateless {
            return Ok(n_unfinished);
        }
        self.pursue(Aim::Close, |census| census.n_open == 0, is_aborted)?;
        // The first look takes what is left, the second one ends it.
        self.scan.look_at_all(Aim::Reset, &mut self.outbox)?;
        clock::sleep_until(clock::now() + STEP);
        self.scan.look_at_all(Aim::Reset, &mut self.outbox)?;
        clock::sleep_until(clock::now() + SETTLING);
        Ok(n_unfinished)
    }

    /// Looks at all connections until they are as they should be, or the time is over.
    fn pursue(
        &mut self,
        aim: Aim,
        is_reached: impl Fn(&Census) -> bool,
        is_aborted: impl Fn() -> bool,
    ) -> Result<Census, Error> {
        let deadline = clock::now() + ENDING;
        loop {
            let census = self.scan.look_at_all(aim, &mut self.outbox)?;
            let now = clock::now();
            if is_reached(&census) || now >= deadline || is_aborted() {
                return Ok(census);
            }
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

//! The due and the started requests of an open load, as two positions in the same sequence of arrivals.
//!
//! A waiting request costs no memory. The next request to start is the next element of the arrivals iterator that lags behind, and the
//! number of waiting requests is the difference of two counters. Nothing here reads a clock or knows a connection.

use std::{iter::Peekable, ops::Range};

use fathom_model::units::Nanos;

use super::{Arrivals, LATE, Pacing};

/// Whether a request can be started as soon as it becomes due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionAvailability {
    /// At least one connection is idle.
    Some,
    /// All connections are busy, or there is none yet.
    None,
}

/// The reason for a late start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateCause {
    /// The request waited for a connection.
    NoConnection,
    /// A connection was free, but the worker was late.
    OwnProcessor,
}

/// The start of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueStart {
    /// The intended start, since the start of the trial.
    pub intended: Nanos,
    /// The delay after the intended start.
    pub lag: Nanos,
    /// The cause of the delay if the start counts as late.
    pub late: Option<LateCause>,
}

/// The requests or users that are due and not yet started.
#[derive(Debug)]
pub(crate) struct StartQueue<I: Iterator<Item = Nanos> = Arrivals> {
    ahead: Peekable<I>,
    behind: I,
    /// A start with a larger lag than this is late.
    late_from: Nanos,
    n_due: u64,
    n_started: u64,
    /// The numbers of the requests that are late by the worker alone: a connection was free for them, or the worker was not awake.
    late_by_worker: Range<u64>,
}

impl<I: Iterator<Item = Nanos> + Clone> StartQueue<I> {
    /// Creates the queue before the first arrival.
    pub(crate) fn new(arrivals: I) -> Self {
        let (ahead, behind) = (arrivals.clone().peekable(), arrivals);
        Self { ahead, behind, late_from: LATE, n_due: 0, n_started: 0, late_by_worker: 0..0 }
    }

    /// Sets the allowed lag to that of the pacing mode.
    #[must_use]
    pub(crate) fn paced(self, pacing: Pacing) -> Self {
        Self { late_from: pacing.late_from(), ..self }
    }

    /// Returns when the next unnoticed request becomes due; `None` if there is none left.
    pub(crate) fn next_due(&mut self) -> Option<Nanos> {
        self.ahead.peek().copied()
    }

    /// Registers the requests that have become due by `elapsed`, and returns their number.
    pub(crate) fn notice(&mut self, elapsed: Nanos, free: ConnectionAvailability) -> u64 {
        let before = self.n_due;
        let is_ours = self.waiting() == 0 && free == ConnectionAvailability::Some;
        let mut n_late = 0;
        while let Some(at) = self.ahead.next_if(|at| *at <= elapsed) {
            self.n_due += 1;
            n_late += u64::from(elapsed - at > self.late_from);
        }
        // The requests with the largest lag come first. The first of all has a connection at once, so that it waits for nothing but the worker.
        if is_ours && self.n_due > before {
            self.late_by_worker = before..before + n_late.max(1);
        }
        self.n_due - before
    }

    /// The number of requests that are due and not started.
    pub(crate) fn waiting(&self) -> u64 {
        self.n_due - self.n_started
    }

    /// Starts the request that has been waiting longest.
    pub(crate) fn start(&mut self, elapsed: Nanos) -> Option<DueStart> {
        if self.waiting() == 0 {
            return None;
        }
        let intended = self.behind.next()?;
        let lag = elapsed - intended;
        let is_ours = self.late_by_worker.contains(&self.n_started);
        let late =
            (lag > self.late_from).then_some(if is_ours { LateCause::OwnProcessor } else { LateCause::NoConnection });
        self.n_started += 1;
        Some(DueStart { intended, lag, late })
    }

    /// Returns the intended starts of the waiting requests, which will never be started.
    pub(crate) fn rest(self) -> impl Iterator<Item = Nanos> {
        let n_waiting = usize::try_from(self.waiting()).unwrap_or(usize::MAX);
        self.behind.take(n_waiting)
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::units::PerSec;

    use super::*;
    use crate::pace::{ArrivalProcess, Profile, WorkShare};

    fn micros(n: u64) -> Nanos {
        Nanos::from_micros(n)
    }

    /// One request every 100 µs.
    fn arrivals() -> Arrivals {
        let profile = Profile::steady(PerSec::new(10_000.0).unwrap()).unwrap();
        Arrivals::new(profile, ArrivalProcess::Constant, WorkShare { idx: 0, of: 1 })
    }

    type First = std::iter::Take<Arrivals>;

    fn queue(n_max: Option<usize>) -> StartQueue<First> {
        StartQueue::new(arrivals().take(n_max.unwrap_or(usize::MAX)))
    }

    #[test]
    fn a_request_is_started_once_when_it_is_due() {
        let mut queue = queue(Some(2));
        assert_eq!(queue.start(micros(0)), None, "nothing was noticed yet");
        assert_eq!((queue.notice(micros(10), ConnectionAvailability::Some), queue.next_due()), (1, Some(micros(100))));
        let start = DueStart { intended: micros(0), lag: micros(10), late: None };
        assert_eq!((queue.start(micros(10)), queue.start(micros(10))), (Some(start), None));
        assert_eq!((queue.notice(micros(99), ConnectionAvailability::Some), queue.waiting()), (0, 0));
        assert_eq!((queue.notice(micros(100), ConnectionAvailability::Some), queue.next_due()), (1, None));
    }

    #[test]
    fn a_late_start_is_ours_when_a_connection_was_free_all_the_time() {
        let mut queue = queue(None);
        queue.notice(micros(0), ConnectionAvailability::Some);
        queue.start(micros(0));
        // The worker was away for a millisecond; of the ten requests only the last is not late.
        assert_eq!(queue.notice(micros(1020), ConnectionAvailability::Some), 10);
        let late: Vec<_> = std::iter::from_fn(|| queue.start(micros(1020))).map(|start| start.late).collect();
        assert_eq!(late[..9], [Some(LateCause::OwnProcessor); 9]);
        assert_eq!(late[9], None);
    }

    #[test]
    fn a_cheap_pacing_is_late_only_beyond_its_own_period() {
        let mut queue = queue(None).paced(Pacing::Cheap);
        queue.notice(micros(0), ConnectionAvailability::Some);
        queue.start(micros(0));
        // The first two of the 12 were due more than a period ago.
        assert_eq!(queue.notice(micros(1260), ConnectionAvailability::Some), 12);
        let late: Vec<_> = std::iter::from_fn(|| queue.start(micros(1260))).map(|start| start.late).collect();
        assert_eq!(late[..2], [Some(LateCause::OwnProcessor); 2]);
        assert_eq!(late[2..], [None; 10]);
    }

    #[test]
    fn a_late_start_is_the_servers_when_no_connection_was_free() {
        let mut queue = queue(None);
        queue.notice(micros(10), ConnectionAvailability::None);
        queue.notice(micros(1000), ConnectionAvailability::Some);
        for intended in 0..5 {
            let start = queue.start(micros(1000)).unwrap();
            assert_eq!((start.intended, start.late), (micros(intended * 100), Some(LateCause::NoConnection)));
            assert_eq!(start.lag, micros(1000 - intended * 100));
        }
    }

    #[test]
    fn a_start_is_the_workers_own_if_it_was_noticed_in_time_with_a_free_connection_and_made_late() {
        let mut queue = queue(None);
        queue.notice(micros(10), ConnectionAvailability::Some);
        assert_eq!(queue.start(micros(90)).unwrap().late, Some(LateCause::OwnProcessor));
        queue.notice(micros(110), ConnectionAvailability::None);
        assert_eq!(queue.start(micros(190)).unwrap().late, Some(LateCause::NoConnection));
    }

    #[test]
    fn a_worker_that_was_away_with_free_connections_is_to_blame_for_the_whole_jam() {
        let mut queue = queue(None);
        queue.notice(micros(1020), ConnectionAvailability::Some);
        assert_eq!(queue.start(micros(1020)).unwrap().late, Some(LateCause::OwnProcessor));
        // No connection is free now, and more requests become due.
        queue.notice(micros(2000), ConnectionAvailability::None);
        let late: Vec<_> = std::iter::from_fn(|| queue.start(micros(2000))).map(|start| start.late).collect();
        assert_eq!(late[..9], [Some(LateCause::OwnProcessor); 9]);
        assert_eq!(late[9..19], [Some(LateCause::NoConnection); 10]);
    }

    #[test]
    fn what_was_never_started_is_known_with_its_time() {
        let mut queue = queue(Some(5));
        queue.notice(micros(10_000), ConnectionAvailability::None);
        queue.start(micros(10_000));
        assert!(queue.rest().eq([100, 200, 300, 400].map(micros)));
    }

    #[test]
    fn a_million_requests_wait_without_memory() {
        let mut queue = queue(None);
        queue.notice(Nanos::from_secs(100), ConnectionAvailability::None);
        assert_eq!(queue.waiting(), 1_000_001);
        assert_eq!(queue.start(Nanos::from_secs(100)).unwrap().lag, Nanos::from_secs(100));
        assert!(size_of::<StartQueue>() < 512);
    }
}

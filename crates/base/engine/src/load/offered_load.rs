//! The load of one worker, apart from its protocol.

use fathom_model::units::Nanos;
use fathom_sys::reactor::{Batch, WaitLimit};

use super::{LoadTimes, MeasureWindow, OpenSchedule, free_connections::FreeConnections};
use crate::{
    Batching, LoadModel, Stop, StopFlag, WorkerHandle,
    pace::{Arrivals, ConnectionAvailability, LateCause},
};

/// How long a closed load waits at the end for answers in flight; these are a small part of all.
const DRAIN_CLOSED: Nanos = Nanos::from_millis(200);
/// How long an open load waits for answers. Without the wait, the response time is only a lower bound.
pub const DRAIN_OPEN: Nanos = Nanos::from_secs(1);

/// When a request is sent, and when it was due; the same in a closed load.
#[derive(Debug, Clone, Copy, Default)]
pub struct SendTimes {
    /// On the monotonic clock.
    pub sent_at: Nanos,
    /// On the monotonic clock.
    pub intended: Nanos,
}

impl SendTimes {
    /// The times of a request that is due when it is sent.
    #[inline]
    #[must_use]
    pub fn at(now: Nanos) -> Self {
        Self { sent_at: now, intended: now }
    }
}

/// The indices of the counters that every load has; those after the first only on a schedule.
#[derive(Debug, Clone, Copy)]
pub struct LoadCounters {
    /// Answers.
    pub answers: usize,
    /// Requests that became due.
    pub intended: usize,
    /// Requests that were due and were sent.
    pub sent: usize,
    /// Late starts because no connection was free.
    pub late_no_connection: usize,
    /// Late starts although a connection was free.
    pub late_own_cpu: usize,
}

/// The parameters of a load.
#[derive(Debug)]
pub struct LoadSpec<I: Iterator<Item = Nanos> = Arrivals> {
    /// Which requests count, by their end or by their intended start.
    pub model: LoadModel,
    /// The starts; `None` if each answer is followed by the next request.
    pub schedule: Option<OpenSchedule<I>>,
    /// The number of connections, which have the indices from 0.
    pub n_connections: usize,
    /// The indices of the counters.
    pub counters: LoadCounters,
    /// The answers to wait for at once.
    pub batching: Batching,
    /// True if the warm-up counts too.
    pub counts_all: bool,
}

/// The load that one worker offers: what is due, on which connection it may start, what is in flight, what counts, and when it is over.
pub struct OfferedLoad<'a, I: Iterator<Item = Nanos> = Arrivals> {
    worker: WorkerHandle<'a>,
    stop: StopFlag,
    model: LoadModel,
    schedule: Option<OpenSchedule<I>>,
    free: FreeConnections,
    counters: LoadCounters,
    batching: Batching,
    window: MeasureWindow,
    drain_max: Nanos,
    /// Whether requests may still be started.
    may_start: bool,
    /// Whether the last wait was for something that is due.
    waits_for_due: bool,
    /// Requests without an answer.
    pub n_in_flight: u64,
    /// When the newest answer ended; zero before the first.
    pub last_answer_at: Nanos,
    /// What is recorded.
    pub times: LoadTimes,
}

impl<'a, I: Iterator<Item = Nanos> + Clone> OfferedLoad<'a, I> {
    /// Creates the load before the first request; no connection is free.
    #[must_use]
    pub fn new(worker: WorkerHandle<'a>, stop: &StopFlag, spec: LoadSpec<I>) -> Self {
        let LoadSpec { model, schedule, n_connections, counters, batching, counts_all } = spec;
        let n_targets = schedule.as_ref().map_or(0, OpenSchedule::n_targets);
        Self {
            window: MeasureWindow::new(&worker, counts_all),
            worker,
            stop: stop.clone(),
            model,
            free: FreeConnections::new(n_targets, if n_targets > 0 { n_connections } else { 0 }),
            schedule,
            counters,
            batching,
            drain_max: if model == LoadModel::Open { DRAIN_OPEN } else { DRAIN_CLOSED },
            may_start: true,
            waits_for_due: false,
            n_in_flight: 0,
            last_answer_at: Nanos::ZERO,
            times: LoadTimes::default(),
        }
    }

    /// Bounds the wait for the last answers by a time after which none counts.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Nanos) -> Self {
        self.drain_max = timeout.min(DRAIN_OPEN);
        self
    }

    /// Lists all connections as free, the first on top; there is one target.
    #[must_use]
    pub fn with_all_free(mut self, n_connections: usize) -> Self {
        if self.schedule.is_some() {
            (0..n_connections).rev().for_each(|connection| self.free.push(0, connection));
        }
        self
    }

    /// Returns the worker that offers the load.
    #[inline]
    #[must_use]
    pub fn worker(&self) -> &WorkerHandle<'a> {
        &self.worker
    }

    /// Returns true if requests count by their intended start and not by their end.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.model == LoadModel::Open
    }

    /// Returns the measured part of the trial.
    #[must_use]
    pub fn window(&self) -> &MeasureWindow {
        &self.window
    }

    /// Returns true if the trial was ended at once, so that nothing can be said about missing answers.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.stop.state() == Stop::Abort
    }

    /// Returns true if requests may still be started.
    #[inline]
    #[must_use]
    pub fn may_start(&self) -> bool {
        self.may_start
    }

    /// Follows the phase of the trial.
    #[inline]
    pub fn follow_phase(&mut self, now: Nanos) {
        self.window.update(self.worker.phase(), now);
        self.may_start &= !self.window.is_over();
    }

    /// Ends the load at `now`, before the trial is over.
    pub fn end(&mut self, now: Nanos) {
        self.window.end(now);
        self.may_start = false;
    }

    /// Returns true once nothing is in flight and nothing will be, or the last answers have been waited for. `has_more` says whether the
    /// protocol has requests left.
    pub fn is_done(&mut self, now: Nanos, has_more: bool) -> bool {
        self.may_start = has_more && !self.window.is_over();
        let drain = if self.is_aborted() { Nanos::ZERO } else { self.drain_max };
        (!self.may_start && self.n_in_flight == 0) || self.window.has_drained(now, drain)
    }

    /// Returns true if a start waits or will become due.
    pub fn has_scheduled(&mut self) -> bool {
        self.schedule.as_mut().is_some_and(OpenSchedule::has_more)
    }

    /// Returns the number of due starts for a target that wait for a connection.
    #[inline]
    #[must_use]
    pub fn waiting(&self, target: usize) -> u64 {
        self.schedule.as_ref().map_or(0, |schedule| schedule.waiting(target))
    }

    /// Returns the time at which the next start becomes due, or none if there are no more.
    #[inline]
    pub fn next_due(&mut self) -> Option<Nanos> {
        let schedule = self.schedule.as_mut()?;
        if self.window.is_over() { None } else { schedule.next_due() }
    }

    /// Returns the number of targets with a schedule if it is time to check for due starts, and zero otherwise.
    #[must_use]
    pub fn n_targets_to_check(&self, now: Nanos) -> usize {
        let schedule = self.schedule.as_ref().filter(|schedule| !self.window.is_over() && schedule.looks(now));
        schedule.map_or(0, OpenSchedule::n_targets)
    }

    /// Notes that something else became due at `now`. It shares the wake-ups of the schedule.
    pub fn share_wake_up(&mut self, now: Nanos) {
        if let Some(schedule) = &mut self.schedule {
            schedule.started(now);
        }
    }

    /// Queues the starts that have become due for a target. A later start is the worker's fault if a connection is listed as free.
    pub fn notice(&mut self, target: usize, now: Nanos) {
        let Some(schedule) = &mut self.schedule else { return };
        let free = match self.free.last(target) {
            Some(_) => ConnectionAvailability::Some,
            None => ConnectionAvailability::None,
        };
        let n_due = schedule.notice(target, now, free);
        if n_due > 0 {
            self.worker.add(self.counters.intended, n_due);
        }
    }

    /// Takes the start that has been due longest for a target, and enters how late it is and why.
    pub fn take_start(&mut self, target: usize, now: Nanos) -> Option<SendTimes> {
        let start = self.schedule.as_mut()?.take(target, now)?;
        self.worker.add(self.counters.sent, 1);
        match start.late {
            None => {}
            Some(LateCause::NoConnection) => self.worker.add(self.counters.late_no_connection, 1),
            Some(LateCause::OwnProcessor) => self.worker.add(self.counters.late_own_cpu, 1),
        }
        if self.window.contains(start.intended) {
            self.times.lag.record(start.lag.0);
        }
        Some(SendTimes { sent_at: now, intended: start.intended })
    }

    /// Lists a connection as free for the next start of its target.
    pub fn list_free(&mut self, target: usize, connection: usize) {
        self.free.push(target, connection);
    }

    /// Returns the free connection that was used last.
    #[must_use]
    pub fn last_free(&self, target: usize) -> Option<usize> {
        self.free.last(target)
    }

    /// Removes the free connection that was used last.
    pub fn pop_free(&mut self, target: usize) {
        self.free.pop(target);
    }

    /// Returns the answers to wait for at once: several only while each of them is followed by a request.
    #[must_use]
    pub fn batch(&self) -> Option<Batch> {
        if self.may_start { self.batching.batch(self.n_in_flight) } else { None }
    }

    /// Returns the limit of a wait that ends at `latest`, or in time for an event that is due at `due`.
    pub fn wait_limit(&mut self, now: Nanos, latest: Nanos, due: Option<Nanos>) -> Nanos {
        let wake_at = self.schedule.as_ref().zip(due).map(|(schedule, due)| schedule.wake_at(due, now));
        let wake_at = wake_at.filter(|wake_at| *wake_at < latest);
        self.waits_for_due = wake_at.is_some();
        wake_at.unwrap_or(latest)
    }

    /// Returns true if the last wait was for something that is due, so that its end is worth a look at the clock.
    #[must_use]
    pub fn learns_from(&self, limit: WaitLimit, began: Nanos) -> bool {
        self.waits_for_due && limit.until > began
    }

    /// Learns how late a wait ended.
    pub fn learn(&mut self, limit: WaitLimit, woke: Nanos) {
        if let Some(schedule) = &mut self.schedule {
            schedule.learn(limit.until, woke);
        }
    }

    /// Returns true if a request is part of the result: in an open load by its intended start, in a closed load by its end, which is now.
    #[inline]
    #[must_use]
    pub fn counts(&self, intended: Nanos) -> bool {
        match self.model {
            LoadModel::Open => self.window.contains(intended),
            LoadModel::Closed => self.window.is_measuring(),
        }
    }

    /// Enters an answer whose last byte arrived at `at`. Returns true if it counts.
    #[inline]
    pub fn record_answer(&mut self, times: SendTimes, at: Nanos) -> bool {
        let service = at - times.sent_at;
        self.last_answer_at = at;
        self.worker.add(self.counters.answers, 1);
        self.batching.observe(service);
        let counts = self.counts(times.intended);
        if counts {
            self.times.service.record(service.0);
        }
        if self.model == LoadModel::Closed {
            self.worker.show_latency(service);
            return counts;
        }
        let response = at - times.intended;
        self.worker.show_latency(response);
        if counts {
            self.times.response.record(response.0);
        }
        counts
    }

    /// Enters a request that is given up at `now`: in an open load the time until then is a lower bound of its response time.
    pub fn record_given_up(&mut self, intended: Nanos, now: Nanos) {
        if self.model == LoadModel::Open && self.counts(intended) {
            self.times.response.record((now - intended).0);
            self.times.n_lower_bounds += 1;
        }
    }

    /// Enters a request that is given up at `now`, as if its answer had ended then.
    pub fn record_waited(&mut self, times: SendTimes, now: Nanos) {
        self.record_given_up(times.intended, now);
        if self.counts(times.intended) {
            self.times.service.record((now - times.sent_at).0);
            self.times.n_lower_bounds += u64::from(self.model == LoadModel::Closed);
        }
    }

    /// Ends the load. The time until now is a lower bound for the starts that were due and never taken.
    #[must_use]
    pub fn finish(mut self, now: Nanos) -> LoadTimes {
        for intended in self.schedule.into_iter().flat_map(OpenSchedule::rest) {
            self.times.n_not_started += 1;
            if !self.window.contains(intended) {
                continue;
            }
            self.times.lag.record((now - intended).0);
            if self.model == LoadModel::Open {
                self.times.response.record((now - intended).0);
                self.times.n_lower_bounds += 1;
            }
        }
        self.times
    }
}

#[cfg(test)]
mod tests {
    use std::iter::Take;

    use fathom_model::{Phases, units::PerSec};
    use fathom_sys::clock;

    use super::*;
    use crate::{
        EndCondition, Error, TrialContext, WorkerPool,
        load::LoadLoop,
        pace::{ArrivalProcess, Pacing, Profile, WorkShare},
    };

    const COUNTERS: LoadCounters =
        LoadCounters { answers: 0, intended: 1, sent: 2, late_no_connection: 3, late_own_cpu: 4 };
    const NAMES: &[&str] = &["answers", "intended", "sent", "late_no_connection", "late_own_cpu"];

    fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    /// Runs steps of a load in virtual time, which begins at 0, and returns its counters. `n` starts are due, one per millisecond.
    fn counters_of(
        model: LoadModel,
        n: Option<usize>,
        steps: impl Fn(OfferedLoad<'_, Take<Arrivals>>, &dyn Fn(u64) -> Nanos) + Sync,
    ) -> [u64; 5] {
        let phases = Phases {
            warmup_max_ns: Nanos::ZERO,
            is_warmup_whole: false,
            // A trial ends earlier if its steps do.
            measure_ns: ms(10_000),
            interval_ns: ms(1),
        };
        let session = TrialContext::new(clock::now(), phases);
        let pool = WorkerPool { states: vec![()], counters: NAMES, cores: &[], until: EndCondition::PhasesOver };
        let profile = Profile::steady(PerSec::new(1_000.0).unwrap()).unwrap();
        let arrivals = Arrivals::new(profile, ArrivalProcess::Constant, WorkShare { idx: 0, of: 1 });
        let results = pool.run(&session, &mut (), |worker, ()| {
            let schedule = n.map(|n| OpenSchedule::new(worker.start, [arrivals.clone().take(n)], Pacing::Precise));
            let (batching, counts_all) = (Batching::One, true);
            let spec = LoadSpec { model, schedule, n_connections: 2, counters: COUNTERS, batching, counts_all };
            let start = worker.start;
            steps(OfferedLoad::new(worker, &session.stop, spec), &|millis| start + ms(millis));
            Ok(())
        });
        let record = results.unwrap().record(fathom_model::Side::Initiator);
        NAMES.iter().map(|name| record.totals[*name]).collect::<Vec<_>>().try_into().unwrap()
    }

    #[test]
    fn a_start_is_late_for_want_of_a_connection_unless_one_was_free() {
        let counts = counters_of(LoadModel::Open, Some(10), |load, at| {
            let mut load = load.with_all_free(1);
            load.notice(0, at(0));
            load.pop_free(0);
            assert!(load.take_start(0, at(0)).is_some() && load.take_start(0, at(0)).is_none());
            // Nothing is free.
            load.notice(0, at(4));
            assert_eq!(load.waiting(0), 4);
            (0..4).for_each(|_| assert!(load.take_start(0, at(4)).is_some()));
            load.list_free(0, 0);
            // The worker was away for 5 ms.
            load.notice(0, at(9));
            (0..5).for_each(|_| assert!(load.take_start(0, at(9)).is_some()));
            assert!(!load.has_scheduled());
            assert_eq!(load.times.lag.count(), 10);
        });
        assert_eq!(counts, [0, 10, 10, 3, 4], "the last start of each group was on time");
    }

    #[test]
    fn times_of_requests_without_an_answer_are_lower_bounds() {
        let counts = counters_of(LoadModel::Open, Some(4), |mut load, at| {
            load.notice(0, at(3));
            let first = load.take_start(0, at(5)).unwrap();
            let second = load.take_start(0, at(5)).unwrap();
            assert!(load.record_answer(first, at(7)));
            load.record_given_up(second.intended, at(8));
            load.end(at(10));
            let times = load.finish(at(10));
            assert_eq!((times.n_not_started, times.n_lower_bounds), (2, 3));
            assert_eq!((times.service.min(), times.service.max()), (Some(ms(2).0), Some(ms(2).0)));
            assert_eq!((times.response.count(), times.lag.count()), (4, 4));
            assert!(times.response.max().is_some_and(|most| most >= ms(8).0), "the third waited from 2 to 10 ms");
        });
        assert_eq!(counts, [1, 4, 2, 2, 0]);
    }

    #[test]
    fn users_that_never_came_have_a_lag_and_no_response_time() {
        counters_of(LoadModel::Closed, Some(3), |mut load, at| {
            load.notice(0, at(2));
            let arrival = load.take_start(0, at(2)).unwrap();
            load.record_given_up(arrival.intended, at(3));
            load.record_waited(SendTimes::at(at(3)), at(9));
            let times = load.finish(at(10));
            assert_eq!((times.n_not_started, times.lag.count(), times.response.count()), (2, 3, 0));
            assert_eq!((times.service.count(), times.n_lower_bounds), (1, 1));
        });
    }

    #[test]
    fn a_load_is_done_when_nothing_is_in_flight_or_the_wait_was_long() {
        for (model, drain) in [(LoadModel::Closed, 200), (LoadModel::Open, 1_000)] {
            counters_of(model, None, |mut load, at| {
                load.n_in_flight = 1;
                assert!(!load.is_done(at(1), true) && load.may_start());
                assert!(!load.is_done(at(2), false) && !load.may_start(), "an answer is to come");
                load.end(at(10));
                assert!(!load.is_done(at(9 + drain), true) && !load.may_start(), "the trial is over");
                assert!(load.is_done(at(10 + drain), true));
                load.n_in_flight = 0;
                assert!(load.is_done(at(11), true));
            });
        }
    }

    #[test]
    fn a_wait_ends_at_the_next_start_and_never_after_the_latest_time() {
        counters_of(LoadModel::Open, Some(3), |mut load, at| {
            load.notice(0, at(0));
            let due = load.next_due();
            assert_eq!(due, Some(at(1)));
            let limit = |until| WaitLimit { until, batch: None };
            assert_eq!(load.wait_limit(at(0), at(10), due), at(1));
            assert!(load.learns_from(limit(at(1)), at(0)));
            assert_eq!(load.wait_limit(at(0), Nanos(at(1).0 - 1), due), Nanos(at(1).0 - 1));
            assert!(!load.learns_from(limit(at(1)), at(0)), "the wait was for something else");
            load.end(at(1));
            assert_eq!((load.next_due(), load.n_targets_to_check(at(2))), (None, 0));
        });
    }

    /// A protocol without a network: each wait answers all requests. The first connection is broken, though it is listed as free.
    struct Echo<'a> {
        load: OfferedLoad<'a, Take<Arrivals>>,
        asked: Vec<Option<SendTimes>>,
        answered: Vec<usize>,
    }

    impl<'a> LoadLoop<'a> for Echo<'a> {
        type Arrivals = Take<Arrivals>;
        type Event = usize;
        type Output = LoadTimes;

        fn load(&mut self) -> &mut OfferedLoad<'a, Take<Arrivals>> {
            &mut self.load
        }

        fn expire(&mut self, _: Nanos) {}

        fn has_more(&mut self) -> bool {
            self.load.has_scheduled()
        }

        fn before_wait(&mut self, now: Nanos) -> Result<Nanos, Error> {
            Ok(now + ms(1))
        }

        fn wait(&mut self, limit: WaitLimit) -> fathom_sys::Result<()> {
            clock::sleep_until(limit.until);
            self.answered = (0..self.asked.len()).filter(|connection| self.asked[*connection].is_some()).collect();
            Ok(())
        }

        fn next_event(&mut self) -> Option<usize> {
            self.answered.pop()
        }

        fn on_event(&mut self, connection: usize) {
            let times = self.asked[connection].take().unwrap();
            self.load.n_in_flight -= 1;
            assert!(self.load.record_answer(times, clock::now()));
            self.start_or_list(0, connection);
        }

        fn is_free(&self, connection: usize) -> bool {
            connection != 0
        }

        fn start(&mut self, connection: usize, times: SendTimes) {
            assert!(self.is_free(connection) && self.asked[connection].replace(times).is_none());
            self.load.n_in_flight += 1;
        }

        fn finish(self, now: Nanos) -> Result<LoadTimes, Error> {
            Ok(self.load.finish(now))
        }
    }

    #[test]
    fn each_start_has_one_answer_and_a_broken_connection_none() {
        let counts = counters_of(LoadModel::Open, Some(20), |load, _| {
            let echo = Echo { load: load.with_all_free(2), asked: vec![None; 2], answered: Vec::new() };
            let times = echo.run().unwrap();
            assert_eq!((times.service.count(), times.response.count(), times.lag.count()), (20, 20, 20));
            assert_eq!((times.n_not_started, times.n_lower_bounds), (0, 0));
        });
        assert_eq!(counts[..3], [20, 20, 20]);
    }
}

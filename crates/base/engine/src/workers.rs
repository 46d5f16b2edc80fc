//! The phases of a trial: start together, warm up, measure, stop, gather.

use std::{
    collections::BTreeMap,
    panic::resume_unwind,
    sync::atomic::{AtomicU8, AtomicUsize, Ordering},
    thread::{self, Thread},
};

use fathom_model::{
    Histogram, Note, Record, Side, Timeline,
    units::{Nanos, approximate, rounded},
};
use fathom_statistics::Steadiness;
use fathom_sys::{
    clock,
    process::{affinity, threads},
};

mod prepared_pool;

pub use prepared_pool::{PreparedPool, WorkerTask};

use crate::{
    Error, Stop, TrialContext, WorkerCounters,
    live_counters::{COUNTERS_MAX, LiveHistogram, LiveSnapshot},
    sample_schedule::SampleSchedule,
    trial_context::LiveProgress,
};

/// How long a responder continues after the longest possible time of its initiator, so that nothing runs forever.
const RESPONDER_GRACE: Nanos = Nanos::from_secs(10);
/// The minimum time between two updates of the live view.
const LIVE_EVERY: Nanos = Nanos::from_millis(500);

/// The current phase of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Current events are not part of the result.
    WarmUp,
    /// Current events count.
    Measure,
    /// The trial is over; workers must return.
    Over,
}

/// The condition that ends a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCondition {
    /// The phases of the trial are over: for an initiator.
    PhasesOver,
    /// The other side has finished: for a responder, which measures from the start.
    PeerFinished,
}

impl From<Side> for EndCondition {
    fn from(side: Side) -> Self {
        match side {
            Side::Initiator => Self::PhasesOver,
            Side::Responder => Self::PeerFinished,
        }
    }
}

/// The workers of a trial and their counters.
#[derive(Debug)]
pub struct WorkerPool<'a, T> {
    /// The input of each worker; there is one worker per element.
    pub states: Vec<T>,
    /// The names of the counters, in the order of their numbers; steadiness is judged by the first one.
    pub counters: &'static [&'static str],
    /// The cores to pin workers to, in turn; empty for no pinning.
    pub cores: &'a [usize],
    /// The condition that ends the trial.
    pub until: EndCondition,
}

/// Callbacks in the conducting thread during a trial.
pub trait TrialObserver {
    /// Called after each interval with the time since the start; the place to sample `TCP_INFO`.
    fn on_interval(&mut self, _elapsed: Nanos, _counts: WorkerCounts<'_>) {}

    /// Called once after the phases are over and before joining the workers; the place to shut sockets down.
    fn on_end(&mut self) {}
}

impl TrialObserver for () {}

/// The counts of each worker since the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerCounts<'a>(&'a [WorkerCounters]);

impl WorkerCounts<'_> {
    /// Returns a worker's count by its number and the counter's index in [`WorkerPool::counters`]; `None` if there is no such worker.
    #[must_use]
    pub fn of(self, worker: usize, counter: usize) -> Option<u64> {
        self.0.get(worker).map(|slot| slot.read(counter))
    }
}

struct TrialState {
    phase: AtomicU8,
    running: AtomicUsize,
    n_workers: usize,
    measure: Nanos,
    /// Unparked by the last worker that returns.
    controller: Thread,
}

impl TrialState {
    fn new(context: &TrialContext, until: EndCondition, n_workers: usize) -> Self {
        Self {
            phase: AtomicU8::new(first_phase(context, until) as u8),
            running: AtomicUsize::new(n_workers),
            n_workers,
            measure: context.phases.measure_ns,
            controller: thread::current(),
        }
    }

    fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }
}

/// A worker thread's access to its trial.
#[derive(Clone, Copy)]
pub struct WorkerHandle<'a> {
    /// The worker's number, from 0.
    pub idx: usize,
    /// The agreed start, on this host's monotonic clock.
    pub start: Nanos,
    counters: &'a WorkerCounters,
    latencies: &'a LiveHistogram,
    shared: &'a TrialState,
}

impl WorkerHandle<'_> {
    /// Which of this worker's units of work are sampled.
    #[must_use]
    pub fn sample_schedule(&self) -> SampleSchedule {
        SampleSchedule::new(self.shared.measure, self.shared.n_workers)
    }

    /// Adds to a counter, given by its index in [`WorkerPool::counters`].
    #[inline]
    pub fn add(&self, counter: usize, amount: u64) {
        self.counters.add(counter, amount);
    }

    /// Raises a counter to `value` if it is lower.
    #[inline]
    pub fn raise(&self, counter: usize, value: u64) {
        self.counters.raise(counter, value);
    }

    /// Shows a latency to the live view with one load and one store in this worker's own memory.
    ///
    /// The value goes into no result; workers record results in a histogram of their own.
    #[inline]
    pub fn show_latency(&self, latency: Nanos) {
        self.latencies.record(latency);
    }

    /// Returns the current phase of the trial.
    #[inline]
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.shared.phase.load(Ordering::Relaxed) {
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            _ => Phase::Over,
        }
    }

    /// Returns whether the worker must return.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase() == Phase::Over
    }
}

/// The results of a trial.
#[derive(Debug)]
pub struct TrialResults<W> {
    /// The output of each worker.
    pub workers: Vec<W>,
    start: Nanos,
    start_late: Nanos,
    measured: (Nanos, Nanos),
    steady: bool,
    complete: bool,
    cpu: Nanos,
    cpu_by_core: BTreeMap<String, Nanos>,
    run_delay: Option<Nanos>,
    ended: Nanos,
    rates: Histogram,
    timeline: Timeline,
    totals: BTreeMap<String, u64>,
    slots: Vec<WorkerCounters>,
}

impl<W> TrialResults<W> {
    /// Returns a record with times and counts filled in; the kind adds distributions, flows and errors.
    #[must_use]
    pub fn record(&self, side: Side) -> Record {
        let mut notes = Vec::new();
        if side == Side::Initiator && !self.steady && self.complete {
            notes.push(Note::new("no-steady-state", "the rate still varied after the warm-up"));
        }
        Record {
            start_ns: self.start,
            start_late_ns: self.start_late,
            measured_ns: self.measured,
            steady: self.steady,
            complete: self.complete,
            cpu_ns: self.cpu,
            cpu_ns_by_core: self.cpu_by_core.clone(),
            run_delay_ns: self.run_delay,
            n_threads: u64::try_from(self.slots.len()).ok(),
            timeline: self.timeline.clone(),
            totals: self.totals.clone(),
            notes,
            ..Record::empty(side)
        }
    }

    /// The measured time window.
    #[must_use]
    pub fn measured(&self) -> (Nanos, Nanos) {
        self.measured
    }

    /// The counts of each worker at its return.
    #[must_use]
    pub fn counts(&self) -> WorkerCounts<'_> {
        WorkerCounts(&self.slots)
    }

    /// The time since the start when the last worker finished; the conducting thread notices it only at its next tick.
    #[must_use]
    pub fn ended(&self) -> Nanos {
        self.ended
    }

    /// The rate of the first counter per second: one value for each worker and each tenth of a second of the measured phase.
    #[must_use]
    pub fn worker_rates(&self) -> &Histogram {
        &self.rates
    }
}

impl<T: Send> WorkerPool<'_, T> {
    /// Runs the workers from the agreed start to the end and reads their counters once per interval.
    ///
    /// Each worker is pinned to a core in turn. It must return soon after its phase is [`Phase::Over`]; every blocking call must have a
    /// timeout or be ended by [`TrialObserver::on_end`]. The trial is over when all workers have returned.
    ///
    /// # Errors
    /// The first error returned by a worker.
    ///
    /// # Panics
    /// If a worker panicked, with its message, or if there are more counters than a slot holds.
    pub fn run<W: Send>(
        self,
        context: &TrialContext,
        watcher: &mut dyn TrialObserver,
        work: impl Fn(WorkerHandle<'_>, T) -> Result<W, Error> + Sync,
    ) -> Result<TrialResults<W>, Error> {
        self.run_with_setup(context, watcher, Ok, work)
    }

    /// Like `run`, for workers that create something on their own thread before the start, such as a ring, which cannot change threads.
    ///
    /// # Errors
    /// The first error returned by a worker, before or after the start.
    ///
    /// # Panics
    /// As [`WorkerPool::run`].
    pub fn run_with_setup<E, W: Send>(
        self,
        context: &TrialContext,
        watcher: &mut dyn TrialObserver,
        set_up: impl Fn(T) -> Result<E, Error> + Sync,
        work: impl Fn(WorkerHandle<'_>, E) -> Result<W, Error> + Sync,
    ) -> Result<TrialResults<W>, Error> {
        assert!(self.counters.len() <= COUNTERS_MAX, "{} counters do not fit", self.counters.len());
        let slots: Vec<WorkerCounters> = self.states.iter().map(|_| WorkerCounters::default()).collect();
        let histograms: Vec<LiveHistogram> = self.states.iter().map(|_| LiveHistogram::default()).collect();
        let shared = TrialState::new(context, self.until, self.states.len());
        let mut runner = TrialRunner::new(context, self.counters, self.until, &slots, &histograms);
        let outcomes = thread::scope(|scope| {
            let start_worker = |(idx, state)| {
                let (slot, histogram) = (&slots[idx], &histograms[idx]);
                let worker =
                    WorkerHandle { idx, start: context.start, counters: slot, latencies: histogram, shared: &shared };
                let core = self.cores.get(idx % self.cores.len().max(1)).copied();
                let (set_up, work) = (&set_up, &work);
                let started =
                    threads::start_within(scope, "worker", move || run_worker(worker, core, || set_up(state), work));
                started.map_err(|cause| {
                    shared.running.fetch_sub(1, Ordering::Relaxed);
                    shared.set(Phase::Over);
                    thread_error(cause)
                })
            };
            let threads: Vec<_> = self.states.into_iter().enumerate().map(start_worker).collect();
            runner.run(&shared, watcher);
            shared.set(Phase::Over);
            watcher.on_end();
            let join =
                |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            threads.into_iter().map(|thread| thread.and_then(join)).collect::<Vec<_>>()
        });
        runner.last_interval();
        let concluded = runner.finish(outcomes.into_iter().collect::<Result<_, _>>()?);
        Ok(TrialResults { slots, ..concluded })
    }
}

/// The host cannot create another thread for a worker.
fn thread_error(cause: fathom_sys::Error) -> Error {
    Error::System { what: "start a worker".to_owned(), cause }
}

/// A responder does not know when its initiator is warm. An initiator without warm-up time measures at once.
fn first_phase(context: &TrialContext, until: EndCondition) -> Phase {
    match until {
        EndCondition::PeerFinished => Phase::Measure,
        _ if context.phases.warmup_max_ns > Nanos::ZERO => Phase::WarmUp,
        EndCondition::PhasesOver => Phase::Measure,
    }
}

/// A worker's output, the delay of its start, its return time and its CPU time.
struct WorkerResult<W> {
    outcome: W,
    late: Nanos,
    ended: Nanos,
    cpu: Nanos,
}

/// Counts a worker as running until it returns or panics. The last one wakes the conductor.
struct RunningGuard<'a>(&'a TrialState);

impl Drop for RunningGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.set(Phase::Over);
        }
        if self.0.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.controller.unpark();
        }
    }
}

fn run_worker<'a, E, W>(
    worker: WorkerHandle<'a>,
    core: Option<usize>,
    set_up: impl FnOnce() -> Result<E, Error>,
    work: impl FnOnce(WorkerHandle<'a>, E) -> Result<W, Error>,
) -> Result<WorkerResult<W>, Error> {
    let shared = worker.shared;
    let _running = RunningGuard(shared);
    pin_thread(core)?;
    let prepared = set_up().inspect_err(|_| shared.set(Phase::Over))?;
    work_from_start(worker, || work(worker, prepared))
}

/// Prepares the calling thread to be a worker: pins it to its core and sets precise timers.
fn pin_thread(core: Option<usize>) -> Result<(), Error> {
    if let Some(core) = core {
        affinity::pin_thread(core)
            .map_err(|cause| Error::System { what: format!("pin a worker to core {core}"), cause })?;
    }
    clock::sleep_finely();
    Ok(())
}

/// Waits for the start, runs the work and returns its timing.
fn work_from_start<W>(
    worker: WorkerHandle<'_>,
    work: impl FnOnce() -> Result<W, Error>,
) -> Result<WorkerResult<W>, Error> {
    let (shared, start) = (worker.shared, worker.start);
    while clock::sleep_until(start) < start && !worker.is_over() {}
    let late = clock::now() - start;
    worker.latencies.cpu.begin();
    let outcome = work().inspect_err(|_| shared.set(Phase::Over))?;
    Ok(WorkerResult { outcome, late, ended: clock::now() - start, cpu: worker.latencies.cpu.end() })
}

/// The conducting thread's view of a running trial.
struct TrialRunner<'a> {
    context: &'a TrialContext,
    counters: &'static [&'static str],
    until: EndCondition,
    slots: &'a [WorkerCounters],
    histograms: &'a [LiveHistogram],
    timeline: Timeline,
    seen: Vec<u64>,
    steadiness: Steadiness,
    steady: bool,
    measure_from: Option<Nanos>,
    measure_to: Nanos,
    complete: bool,
    elapsed: Nanos,
    live_seen: (Nanos, u64),
    latencies_seen: LiveSnapshot,
    rates: WorkerRates,
    cpu: MeasuredCpu,
}

/// The CPU time of the workers in the measured phase, and their wait for a core.
#[derive(Default)]
struct MeasuredCpu {
    /// The CPU time of each worker when the measured phase began; empty if the phase began with the work.
    before: Vec<Nanos>,
    by_core: BTreeMap<String, Nanos>,
    /// The wait of each worker for a core when the measured phase began.
    waited_before: Vec<Option<Nanos>>,
    /// The wait of all workers in the measured phase; `None` if the kernel does not tell.
    waited: Option<Nanos>,
}

impl MeasuredCpu {
    fn begin(&mut self, histograms: &[LiveHistogram]) {
        self.before = histograms.iter().map(|histogram| histogram.cpu.spent()).collect();
        self.waited_before = histograms.iter().map(|histogram| histogram.cpu.waited()).collect();
    }

    fn end(&mut self, histograms: &[LiveHistogram]) {
        let before = self.before.iter().copied().chain(std::iter::repeat(Nanos::ZERO));
        for (histogram, before) in histograms.iter().zip(before) {
            let spent = histogram.cpu.spent() - before;
            let of_core = self.by_core.entry(histogram.cpu.core()).or_insert(Nanos::ZERO);
            *of_core += spent;
        }
        let before = self.waited_before.iter().copied().chain(std::iter::repeat(Some(Nanos::ZERO)));
        let waited =
            histograms.iter().zip(before).map(|(histogram, before)| Some((histogram.cpu.waited()? - before?).0));
        self.waited = waited.sum::<Option<u64>>().map(Nanos);
    }
}

/// The variation of each worker's rate over time.
struct WorkerRates {
    /// The time of the last sample and each worker's count at that time.
    seen: (Nanos, Vec<u64>),
    histogram: Histogram,
}

impl WorkerRates {
    /// Long enough for a meaningful rate, short enough to show its variation; wrk samples its threads at the same interval.
    const SPAN: Nanos = Nanos::from_millis(100);

    fn of(n_workers: usize) -> Self {
        Self { seen: (Nanos::ZERO, vec![0; n_workers]), histogram: Histogram::new() }
    }

    /// Samples each worker's count. During warm-up this only moves the start of the sample.
    fn take(&mut self, elapsed: Nanos, slots: &[WorkerCounters], is_measured: bool) {
        let span = elapsed - self.seen.0;
        if is_measured && span < Self::SPAN {
            return;
        }
        for (seen, slot) in self.seen.1.iter_mut().zip(slots) {
            let count = slot.read(0);
            if is_measured {
                let rate = approximate(count.saturating_sub(*seen)) / span.as_secs_f64();
                self.histogram.record(rounded(rate));
            }
            *seen = count;
        }
        self.seen.0 = elapsed;
    }
}

impl<'a> TrialRunner<'a> {
    fn new(
        context: &'a TrialContext,
        counters: &'static [&'static str],
        until: EndCondition,
        slots: &'a [WorkerCounters],
        histograms: &'a [LiveHistogram],
    ) -> Self {
        let warms_up = first_phase(context, until) == Phase::WarmUp;
        Self {
            context,
            counters,
            until,
            slots,
            histograms,
            timeline: Timeline::of(counters),
            seen: vec![0; counters.len()],
            steadiness: Steadiness::default(),
            steady: !warms_up,
            measure_from: (!warms_up).then_some(Nanos::ZERO),
            measure_to: Nanos::ZERO,
            complete: false,
            elapsed: Nanos::ZERO,
            live_seen: (Nanos::ZERO, 0),
            latencies_seen: LiveSnapshot::default(),
            rates: WorkerRates::of(slots.len()),
            cpu: MeasuredCpu::default(),
        }
    }

    fn run(&mut self, shared: &TrialState, watcher: &mut dyn TrialObserver) {
        let phases = self.context.phases;
        // An initiator needs no bound: its warm-up ends no later than its maximum warm-up time.
        let bound = match self.until {
            EndCondition::PhasesOver => Nanos::MAX,
            EndCondition::PeerFinished => phases.longest() + RESPONDER_GRACE,
        };
        let mut tick = self.context.start;
        loop {
            tick += phases.interval_ns;
            self.elapsed = sleep_watchfully(tick, self.context, shared) - self.context.start;
            let rate = self.interval();
            self.rates.take(self.elapsed, self.slots, self.measure_from.is_some());
            watcher.on_interval(self.elapsed, WorkerCounts(self.slots));
            self.update_live_view();
            let stop = self.context.stop.state();
            let all_returned = shared.running.load(Ordering::Relaxed) == 0;
            let failed = shared.phase.load(Ordering::Relaxed) == Phase::Over as u8;
            let measured_all = self.measure_from.is_some_and(|from| self.elapsed >= from + phases.measure_ns);
            let finished = match self.until {
                EndCondition::PhasesOver => measured_all || all_returned,
                EndCondition::PeerFinished => stop == Stop::Finish || all_returned,
            };
            if finished || failed || stop == Stop::Abort || self.elapsed >= bound {
                self.complete = finished && !failed && stop != Stop::Abort;
                self.measure_to = self.elapsed;
                self.cpu.end(self.histograms);
                return;
            }
            if self.measure_from.is_none() {
                self.steady |= rate.is_some_and(|rate| self.steadiness.push(rate));
                let is_warm = self.steady && !phases.is_warmup_whole;
                if is_warm || self.elapsed >= phases.warmup_max_ns {
                    self.measure_from = Some(self.elapsed);
                    self.cpu.begin(self.histograms);
                    shared.set(Phase::Measure);
                }
            }
        }
    }

    /// Reads all slots into the timeline and returns the rate of the first counter in this interval.
    fn interval(&mut self) -> Option<f64> {
        let n = self.counters.len();
        let sums: Vec<u64> = (0..n).map(|counter| self.slots.iter().map(|slot| slot.read(counter)).sum()).collect();
        let growth: Vec<u64> = sums.iter().zip(&self.seen).map(|(now, before)| now.saturating_sub(*before)).collect();
        let span = self.elapsed - self.timeline.end_ns.last().copied().unwrap_or(Nanos::ZERO);
        self.timeline.push(self.elapsed, self.counters, &growth);
        self.seen = sums;
        let first = growth.first().copied()?;
        (span > Nanos::ZERO).then(|| approximate(first) / span.as_secs_f64())
    }

    /// Records the counts between the end of the phases and the return of the last worker, such as a drain.
    fn last_interval(&mut self) {
        self.elapsed = clock::now() - self.context.start;
        self.interval();
    }

    fn update_live_view(&mut self) {
        let Some(live) = &self.context.live else { return };
        let (at, count) = self.live_seen;
        let span = self.elapsed - at;
        if span >= LIVE_EVERY {
            let total = self.seen.first().copied().unwrap_or(0);
            let growth = total.saturating_sub(count);
            let p99 = self.latencies_seen.quantile_since_last(self.histograms, 0.99);
            live(LiveProgress { elapsed: self.elapsed, growth, span, measuring: self.measure_from.is_some(), p99 });
            self.live_seen = (self.elapsed, total);
        }
    }

    fn finish<W>(self, employed: Vec<WorkerResult<W>>) -> TrialResults<W> {
        let names = self.counters.iter().map(|name| (*name).to_owned());
        TrialResults {
            start: self.context.start,
            start_late: employed.iter().map(|worker| worker.late).min().unwrap_or(Nanos::ZERO),
            measured: (self.measure_from.unwrap_or(self.measure_to), self.measure_to),
            steady: self.steady,
            complete: self.complete,
            cpu: Nanos(employed.iter().map(|worker| worker.cpu.0).sum()),
            cpu_by_core: self.cpu.by_core,
            run_delay: self.cpu.waited,
            ended: employed.iter().map(|worker| worker.ended).max().unwrap_or(Nanos::ZERO),
            rates: self.rates.histogram,
            timeline: self.timeline,
            totals: names.zip(self.seen).collect(),
            slots: Vec::new(),
            workers: employed.into_iter().map(|worker| worker.outcome).collect(),
        }
    }
}

/// Sleeps until `tick` or the return of the last worker, in steps short enough to notice an abort or a failure within 20 ms.
fn sleep_watchfully(tick: Nanos, context: &TrialContext, shared: &TrialState) -> Nanos {
    const STEP: Nanos = Nanos::from_millis(20);
    loop {
        let now = clock::now();
        let over =
            shared.phase.load(Ordering::Relaxed) == Phase::Over as u8 || shared.running.load(Ordering::Relaxed) == 0;
        if now >= tick || context.stop.state() == Stop::Abort || (over && now >= context.start) {
            return now;
        }
        thread::park_timeout(tick.min(now + STEP).since(now).as_duration());
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::Phases;

    use super::*;

    fn context() -> TrialContext {
        let phases = Phases {
            warmup_max_ns: Nanos::from_millis(40),
            is_warmup_whole: false,
            measure_ns: Nanos::from_millis(60),
            interval_ns: Nanos::from_millis(10),
        };
        TrialContext::new(clock::now() + Nanos::from_millis(5), phases)
    }

    fn pool(n_workers: usize, until: EndCondition) -> WorkerPool<'static, ()> {
        WorkerPool { states: vec![(); n_workers], counters: &["steps"], cores: &[], until }
    }

    fn count_until_over(worker: &WorkerHandle<'_>) -> u64 {
        let mut n = 0;
        while !worker.is_over() {
            worker.add(0, 1);
            n += 1;
        }
        n
    }

    #[test]
    fn the_return_of_the_last_worker_ends_an_interval() {
        let mut context = context();
        let hour = Nanos::from_secs(3600);
        (context.phases.interval_ns, context.phases.measure_ns) = (hour, hour);
        let results = pool(2, EndCondition::PhasesOver).run(&context, &mut (), |_, ()| Ok(())).unwrap();
        assert!(results.record(Side::Initiator).complete);
    }

    #[test]
    fn the_timeline_holds_what_all_workers_counted() {
        let results = pool(2, EndCondition::PhasesOver)
            .run(&context(), &mut (), |worker, ()| Ok(count_until_over(&worker)))
            .unwrap();
        let record = results.record(Side::Initiator);
        assert_eq!(record.totals["steps"], results.workers.iter().sum::<u64>());
        assert_eq!(record.timeline.counters["steps"].iter().sum::<u64>(), record.totals["steps"]);
        let (from, to) = record.measured_ns;
        assert!(record.complete && to - from >= Nanos::from_millis(60), "{from} to {to}");
    }

    #[test]
    fn what_the_workers_used_of_each_core_is_known_for_the_measured_part_alone() {
        let cores = affinity::allowed_cores().unwrap();
        let pool = WorkerPool { cores: &cores[..1], ..pool(2, EndCondition::PhasesOver) };
        let results = pool.run(&context(), &mut (), |worker, ()| Ok(count_until_over(&worker))).unwrap();
        let record = results.record(Side::Initiator);
        let of_core = record.cpu_ns_by_core[&format!("cpu{}", cores[0])];
        assert_eq!(record.cpu_ns_by_core.len(), 1, "{:?}", record.cpu_ns_by_core);
        assert!(of_core > Nanos::ZERO && of_core < record.cpu_ns, "{of_core} of {}", record.cpu_ns);
    }

    #[test]
    fn who_watches_sees_what_each_worker_has_counted() {
        struct Seen(Vec<[Option<u64>; 3]>);
        impl TrialObserver for Seen {
            fn on_interval(&mut self, _elapsed: Nanos, counts: WorkerCounts<'_>) {
                self.0.push([0, 1, 2].map(|worker| counts.of(worker, 0)));
            }
        }
        let mut seen = Seen(Vec::new());
        let results = pool(2, EndCondition::PhasesOver)
            .run(&context(), &mut seen, |worker, ()| {
                while !worker.is_over() {
                    worker.add(0, if worker.idx == 0 { 1 } else { 2 });
                    thread::yield_now();
                }
                Ok(())
            })
            .unwrap();
        let grows = |idx: usize| seen.0.windows(2).all(|pair| pair[0][idx] <= pair[1][idx]);
        assert!(seen.0.len() > 2 && grows(0) && grows(1) && seen.0.iter().all(|row| row[2].is_none()), "{:?}", seen.0);
        let counted = [0, 1].map(|worker| results.counts().of(worker, 0).unwrap());
        assert!(counted[0] > 0 && counted[1] > 0 && counted[1].is_multiple_of(2), "{counted:?}");
        assert_eq!(counted.iter().sum::<u64>(), results.record(Side::Initiator).totals["steps"]);
    }

    #[test]
    fn without_a_warm_up_everything_is_measured() {
        let mut context = context();
        context.phases.warmup_max_ns = Nanos::ZERO;
        let results = pool(1, EndCondition::PhasesOver)
            .run(&context, &mut (), |worker, ()| Ok(count_until_over(&worker)))
            .unwrap();
        let record = results.record(Side::Initiator);
        assert_eq!((record.measured_ns.0, record.steady, record.notes), (Nanos::ZERO, true, Vec::new()));
    }

    #[test]
    fn a_warm_up_that_is_to_be_left_out_in_full_is_not_shortened_by_a_steady_rate() {
        let mut context = context();
        context.phases.warmup_max_ns = Nanos::from_millis(400);
        let measured_from = |is_warmup_whole| {
            let context = TrialContext::new(clock::now(), Phases { is_warmup_whole, ..context.phases });
            let results = pool(1, EndCondition::PhasesOver).run(&context, &mut (), |worker, ()| {
                let mut n = 0;
                while !worker.is_over() {
                    // As steady as possible: one count per 10 µs.
                    let due = (clock::now() - worker.start).0 / 10_000;
                    worker.add(0, due - n);
                    n = due;
                    thread::yield_now();
                }
                Ok(())
            });
            results.unwrap().measured().0
        };
        assert!(measured_from(true) >= Nanos::from_millis(400));
        assert!(measured_from(false) < Nanos::from_millis(400));
    }

    #[test]
    fn a_live_view_is_shown_the_rate_and_the_latency_of_all_workers() {
        let shown = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut context = context();
        context.phases.measure_ns = Nanos::from_millis(550);
        context.live = Some({
            let shown = std::sync::Arc::clone(&shown);
            Box::new(move |live| shown.lock().unwrap().push(live))
        });
        let results = pool(2, EndCondition::PhasesOver).run(&context, &mut (), |worker, ()| {
            while !worker.is_over() {
                worker.add(0, 1);
                worker.show_latency(Nanos::from_micros(250));
            }
            Ok(())
        });
        assert!(results.unwrap().record(Side::Initiator).distributions.is_empty(), "what is shown is no result");
        let first = shown.lock().unwrap()[0];
        let p99 = first.p99.unwrap();
        assert!(first.growth > 0 && p99 > Nanos::from_micros(230) && p99 < Nanos::from_micros(270), "{first:?}");
    }

    #[test]
    fn workers_that_have_done_their_count_end_the_trial() {
        let results = pool(3, EndCondition::PhasesOver).run(&context(), &mut (), |worker, ()| {
            worker.add(0, 7);
            Ok(())
        });
        assert_eq!(results.unwrap().record(Side::Initiator).totals["steps"], 21);
    }

    #[test]
    fn the_end_of_the_work_is_known_better_than_the_tick_that_notices_it() {
        let mut context = context();
        context.phases.interval_ns = Nanos::from_millis(200);
        let results = pool(2, EndCondition::PhasesOver).run(&context, &mut (), |worker, ()| {
            worker.add(0, 1);
            Ok(())
        });
        let results = results.unwrap();
        let tick = results.record(Side::Initiator).timeline.end_ns[0];
        assert!(results.ended() < tick, "{} is not before {tick}", results.ended());
    }

    #[test]
    fn each_worker_has_a_rate_for_each_tenth_of_a_second() {
        let mut context = context();
        context.phases.measure_ns = Nanos::from_millis(330);
        let results = pool(2, EndCondition::PhasesOver)
            .run(&context, &mut (), |worker, ()| {
                worker.add(0, 1_000);
                while !worker.is_over() {
                    std::thread::yield_now();
                }
                Ok(())
            })
            .unwrap();
        let rates = results.worker_rates();
        // A loaded machine may skip a tick, and a tenth of a second with it, but it never adds one.
        assert!(rates.count().is_multiple_of(2) && (2..=6).contains(&rates.count()), "{} rates", rates.count());
        // Everything was counted at once, so only the first rate can be other than zero, and only without a warm-up.
        assert_eq!(rates.quantile(0.5), Some(0));
    }

    #[test]
    fn a_responder_goes_on_until_it_is_told() {
        let context = context();
        let stop = context.stop.clone();
        let results = pool(1, EndCondition::PeerFinished).run(&context, &mut (), |worker, ()| {
            stop.finish();
            Ok(count_until_over(&worker))
        });
        assert!(results.unwrap().record(Side::Responder).complete);
    }

    #[test]
    fn an_abort_leaves_an_incomplete_record() {
        let context = context();
        context.stop.abort();
        let results =
            pool(1, EndCondition::PhasesOver).run(&context, &mut (), |worker, ()| Ok(count_until_over(&worker)));
        assert!(!results.unwrap().record(Side::Initiator).complete);
    }

    #[test]
    fn what_a_worker_needs_is_made_on_its_thread_before_the_start() {
        let soon = context();
        // Long enough for threads that wait for a core.
        let context = TrialContext::new(clock::now() + Nanos::from_millis(500), soon.phases);
        let results = pool(2, EndCondition::PhasesOver).run_with_setup(
            &context,
            &mut (),
            |()| Ok((thread::current().id(), clock::now())),
            |worker, (thread, made)| Ok(thread == thread::current().id() && made <= worker.start),
        );
        assert_eq!(results.unwrap().workers, [true, true]);
        let refused = |()| Err::<(), _>(Error::Peer { what: "gave nothing".to_owned() });
        let outcome = pool(2, EndCondition::PhasesOver).run_with_setup(&context, &mut (), refused, |_, ()| Ok(()));
        assert!(matches!(outcome, Err(Error::Peer { .. })));
    }

    #[test]
    fn the_error_of_one_worker_ends_all() {
        let outcome = pool(2, EndCondition::PhasesOver).run(&context(), &mut (), |worker, ()| {
            if worker.idx == 0 {
                return Err(Error::Peer { what: "closed the connection".to_owned() });
            }
            Ok(count_until_over(&worker))
        });
        assert!(matches!(outcome, Err(Error::Peer { .. })));
    }
}

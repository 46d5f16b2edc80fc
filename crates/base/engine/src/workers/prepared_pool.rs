//! Workers whose threads exist while a trial is prepared, so that their resources stay on the thread that uses them.
//!
//! A ring belongs to one thread, and so may a descriptor table. Connections opened during the preparation are opened, used and closed by
//! the same worker.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread::JoinHandle,
};

use fathom_model::units::Nanos;
use fathom_sys::process::threads;

use super::{
    EndCondition, Phase, RunningGuard, TrialObserver, TrialResults, TrialRunner, TrialState, WorkerHandle,
    WorkerResult, pin_thread, thread_error, work_from_start,
};
use crate::{
    Error, StopFlag, TrialContext, WorkerCounters,
    live_counters::{COUNTERS_MAX, LiveHistogram},
};

/// The work of each worker, from preparation to the end, all on its own thread.
pub trait WorkerTask: Send + Sync + 'static {
    /// The input of the preparation.
    type Input: Send + 'static;
    /// The result of the preparation.
    type State;
    /// The output of the work.
    type Output: Send + 'static;

    /// Prepares the worker; must return on its own.
    ///
    /// # Errors
    /// Says what is missing. The trial is not started in that case.
    fn set_up(&self, given: Self::Input) -> Result<Self::State, Error>;

    /// Runs one step, of at most a few milliseconds, of the work before the start, such as accepting connections.
    ///
    /// # Errors
    /// The reason why the trial cannot start.
    fn poll_before_start(&self, state: &mut Self::State) -> Result<(), Error>;

    /// Does the work of the trial, as a worker of a [`super::WorkerPool`] does.
    ///
    /// # Errors
    /// If nothing can be recorded.
    fn work(&self, worker: WorkerHandle<'_>, state: Self::State, stop: &StopFlag) -> Result<Self::Output, Error>;
}

/// The state shared by all workers of a trial and its conductor.
struct SharedTrial {
    slots: Vec<WorkerCounters>,
    histograms: Vec<LiveHistogram>,
    shared: TrialState,
}

/// The order to start the trial.
struct StartOrder {
    trial: Arc<SharedTrial>,
    start: Nanos,
    stop: StopFlag,
}

struct WorkerThread<W> {
    /// Dropped if there will be no trial.
    orders: Option<Sender<StartOrder>>,
    thread: Option<JoinHandle<Result<Option<WorkerResult<W>>, Error>>>,
}

impl<W> WorkerThread<W> {
    fn join(&mut self) -> Result<Option<WorkerResult<W>>, Error> {
        self.orders = None;
        let ended = self.thread.take().map_or(Ok(Ok(None)), JoinHandle::join);
        ended.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Workers that are prepared and wait for a trial. Dropping the pool ends them.
pub struct PreparedPool<S: WorkerTask> {
    threads: Vec<WorkerThread<S::Output>>,
}

impl<S: WorkerTask> PreparedPool<S> {
    /// Starts a thread for each element of `given`, pinned to the cores in turn, and waits until all are prepared.
    ///
    /// # Errors
    /// The first error of a worker. All workers have ended by then.
    ///
    /// # Panics
    /// If a worker panicked, with its message.
    pub fn start(shift: S, given: Vec<S::Input>, cores: &[usize]) -> Result<Self, Error> {
        let shift = Arc::new(shift);
        let (ready, readiness) = mpsc::channel();
        let start_worker = |(idx, given): (usize, S::Input)| {
            let (orders, ordered) = mpsc::channel();
            let core = cores.get(idx % cores.len().max(1)).copied();
            let (shift, ready) = (Arc::clone(&shift), ready.clone());
            let thread = threads::start("worker", move || run_thread(&*shift, given, idx, core, ready, &ordered));
            thread.map(|thread| WorkerThread { orders: Some(orders), thread: Some(thread) }).map_err(thread_error)
        };
        // On an error, the threads already started end because their order channels close.
        let hands = given.into_iter().enumerate().map(start_worker).collect::<Result<Vec<_>, _>>()?;
        drop(ready);
        let mut prepared_pool = Self { threads: hands };
        let n_ready = readiness.iter().take(prepared_pool.threads.len()).count();
        if n_ready == prepared_pool.threads.len() {
            return Ok(prepared_pool);
        }
        prepared_pool.threads.iter_mut().for_each(|hand| hand.orders = None);
        let ended: Vec<_> = prepared_pool.threads.iter_mut().map(WorkerThread::join).collect();
        let refused = ended.into_iter().find_map(Result::err);
        Err(refused.expect("a worker that did not become ready said why"))
    }

    /// Runs the workers from the agreed start to the end, as [`super::WorkerPool::run`] does.
    ///
    /// # Errors
    /// The first error returned by a worker, while it waited or afterwards.
    ///
    /// # Panics
    /// If a worker panicked, with its message, or if there are more counters than a slot holds.
    pub fn run(
        mut self,
        context: &TrialContext,
        watcher: &mut dyn TrialObserver,
        counters: &'static [&'static str],
        until: EndCondition,
    ) -> Result<TrialResults<S::Output>, Error> {
        assert!(counters.len() <= COUNTERS_MAX, "{} counters do not fit", counters.len());
        let trial = Arc::new(SharedTrial {
            slots: self.threads.iter().map(|_| WorkerCounters::default()).collect(),
            histograms: self.threads.iter().map(|_| LiveHistogram::default()).collect(),
            shared: TrialState::new(context, until, self.threads.len()),
        });
        for hand in &self.threads {
            let order = StartOrder { trial: Arc::clone(&trial), start: context.start, stop: context.stop.clone() };
            if hand.orders.as_ref().is_none_or(|orders| orders.send(order).is_err()) {
                trial.shared.running.fetch_sub(1, Ordering::Relaxed);
                trial.shared.set(Phase::Over);
            }
        }
        let mut runner = TrialRunner::new(context, counters, until, &trial.slots, &trial.histograms);
        runner.run(&trial.shared, watcher);
        trial.shared.set(Phase::Over);
        watcher.on_end();
        let ended: Vec<_> = self.threads.iter_mut().map(WorkerThread::join).collect();
        runner.last_interval();
        let employed = |ended: Option<_>| ended.expect("a worker that was given its order has worked");
        let outcomes = ended.into_iter().map(|ended| ended.map(employed)).collect::<Result<_, _>>()?;
        let concluded = runner.finish(outcomes);
        let trial = Arc::into_inner(trial).expect("the workers have returned, and nobody else has it");
        Ok(TrialResults { slots: trial.slots, ..concluded })
    }
}

impl<S: WorkerTask> Drop for PreparedPool<S> {
    fn drop(&mut self) {
        self.threads.iter_mut().for_each(|hand| hand.orders = None);
        for hand in &mut self.threads {
            // No trial follows, so the error of a waiting worker does not matter.
            let _ = hand.thread.take().map(JoinHandle::join);
        }
    }
}

/// Runs a worker's thread. Returns `None` if there was no trial.
fn run_thread<S: WorkerTask>(
    shift: &S,
    given: S::Input,
    idx: usize,
    core: Option<usize>,
    ready: Sender<()>,
    ordered: &Receiver<StartOrder>,
) -> Result<Option<WorkerResult<S::Output>>, Error> {
    pin_thread(core)?;
    let mut state = shift.set_up(given)?;
    // Nobody listens if another worker has already failed; the closed order channel shows that.
    let _ = ready.send(());
    // Dropping the sender lets the starting thread notice workers that ended before they were ready.
    drop(ready);
    let order = loop {
        match ordered.try_recv() {
            Ok(order) => break order,
            Err(TryRecvError::Empty) => shift.poll_before_start(&mut state)?,
            Err(TryRecvError::Disconnected) => return Ok(None),
        }
    };
    let StartOrder { trial, start, stop } = order;
    let _running = RunningGuard(&trial.shared);
    let (slot, histogram, shared) = (&trial.slots[idx], &trial.histograms[idx], &trial.shared);
    let worker = WorkerHandle { idx, start, counters: slot, latencies: histogram, shared };
    work_from_start(worker, || shift.work(worker, state, &stop)).map(Some)
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use fathom_model::{Phases, Side};
    use fathom_sys::clock;

    use super::*;

    /// Each worker counts its steps before the start, and then counts up to its input.
    struct Counting {
        refuses: Option<u64>,
    }

    impl WorkerTask for Counting {
        type Input = u64;
        type State = (ThreadId, u64, u64);
        type Output = (bool, u64);

        fn set_up(&self, given: u64) -> Result<Self::State, Error> {
            if self.refuses == Some(given) {
                return Err(Error::Peer { what: "gave nothing".to_owned() });
            }
            Ok((thread::current().id(), given, 0))
        }

        fn poll_before_start(&self, state: &mut Self::State) -> Result<(), Error> {
            state.2 += 1;
            thread::yield_now();
            Ok(())
        }

        fn work(
            &self,
            worker: WorkerHandle<'_>,
            (thread, given, stood_by): Self::State,
            _: &StopFlag,
        ) -> Result<(bool, u64), Error> {
            worker.add(0, given);
            while !worker.is_over() {
                thread::yield_now();
            }
            Ok((thread == thread::current().id() && clock::now() >= worker.start, stood_by))
        }
    }

    fn context() -> TrialContext {
        let phases = Phases {
            warmup_max_ns: Nanos::from_millis(20),
            is_warmup_whole: false,
            measure_ns: Nanos::from_millis(40),
            interval_ns: Nanos::from_millis(10),
        };
        TrialContext::new(clock::now() + Nanos::from_millis(10), phases)
    }

    #[test]
    fn a_worker_works_on_the_thread_that_equipped_it_and_stands_by_until_then() {
        let prepared_pool = PreparedPool::start(Counting { refuses: None }, vec![3, 4], &[]).unwrap();
        thread::sleep(Nanos::from_millis(5).as_duration());
        let results = prepared_pool.run(&context(), &mut (), &["steps"], EndCondition::PhasesOver).unwrap();
        assert!(results.workers.iter().all(|(is_same, stood_by)| *is_same && *stood_by > 0));
        let record = results.record(Side::Initiator);
        assert!(record.complete && record.totals["steps"] == 7, "{record:?}");
    }

    #[test]
    fn a_worker_that_cannot_be_equipped_sends_all_home_with_its_reason() {
        let refused = PreparedPool::start(Counting { refuses: Some(2) }, vec![1, 2, 3], &[]).err().unwrap();
        assert!(matches!(refused, Error::Peer { .. }), "{refused}");
    }

    #[test]
    fn workers_without_a_trial_go_home() {
        let shift = Counting { refuses: None };
        let prepared_pool = PreparedPool::start(shift, vec![1, 2], &[]).unwrap();
        drop(prepared_pool);
    }
}

//! The virtual users of a trial, from the settings to the record.

use std::sync::Arc;

use fathom_engine::{
    Batching, EndCondition, Error, IoBackend, LoadModel, ReactorKind, Stop, StopFlag, TrialContext, TrialResults,
    WorkerHandle, WorkerPool,
    load::LoadLoop as _,
    pace::{Pacing, WorkShare},
};
use fathom_model::{
    Record, Role,
    names::{count, distribution},
    units::Nanos,
};
use fathom_sys::policy::Policy;
use fathom_sys::reactor::{Epoll, Reactor, StampedEpoll, Uring};

use super::{
    UserArrivals, Users,
    user_loop::UserLoop,
    user_pool::{PoolResources, UserPool},
};
use crate::{
    conn::{Connector, LoadConfig, allow_connections, select_io_backend, unreachable_error},
    kinds::options::pacing,
    metrics::{CLOSED_COUNTERS, COUNTERS, LoadRecorder, LoadResults, TotalsRecorder, pacing_note, record},
    names,
    target::Upstream,
};

/// Users that are ready to arrive, with the destinations of their connections.
#[derive(Debug)]
pub struct VirtualUsers {
    config: Arc<LoadConfig>,
    io_backend: IoBackend,
    arrivals: UserArrivals,
    pacing: Pacing,
    n_workers: u64,
    cores: Vec<usize>,
}

/// The slots of one worker, for the creation of its [`Users`].
#[derive(Debug, Clone, Copy)]
pub struct WorkerShare {
    /// The index of the worker, from 0.
    pub idx: usize,
    pub n_workers: usize,
    /// Slots are numbered from 0 to one less than this.
    pub n_slots: u32,
    /// When the trial starts, on the monotonic clock.
    pub start: Nanos,
}

/// The work of one worker.
struct UserWorkerSpec {
    share: WorkerShare,
    config: Arc<LoadConfig>,
    arrivals: UserArrivals,
    pacing: Pacing,
    batching: Batching,
    stop: StopFlag,
}

/// The resources of a worker, prepared before the start on its own thread.
struct PreparedUsers<R, U> {
    users: U,
    totals: TotalsRecorder,
    resources: PoolResources<R>,
}

impl VirtualUsers {
    /// Reads the servers, connections and threads from a role; the servers are the lines of its `url`.
    ///
    /// A kind of scripted users has the rows of [`OPTIONS`](super::OPTIONS) among its options.
    ///
    /// # Errors
    /// A part of the role cannot be done; the error names it.
    pub fn prepare(kind: &'static str, role: &Role, policy: &Policy, arrivals: UserArrivals) -> Result<Self, Error> {
        let settings = &role.settings;
        let mut target = LoadConfig::of(role, policy, kind)?;
        target.is_counted = arrivals.has_end();
        if settings.text("proxy").is_some() && target.target.upstreams.iter().any(Upstream::is_plain) {
            return Err(Error::Unsupported {
                what: "requests of scripted users name no server, so a proxy would not know where http:// requests go"
                    .to_owned(),
                hint: Some("leave out proxy, or ask over https:// through its tunnels".to_owned()),
            });
        }
        let pacing = pacing(settings);
        let is_precise = arrivals.is_scheduled() && pacing == Pacing::Precise;
        let way = select_io_backend(settings, if is_precise { LoadModel::Open } else { LoadModel::Closed })?;
        let n_slots = arrivals.n_slots();
        allow_connections(n_slots)?;
        let n_cores = u64::try_from(role.cores.len().max(1)).unwrap_or(1);
        Ok(Self {
            config: Arc::new(target),
            io_backend: way,
            n_workers: settings.count("threads").unwrap_or(n_cores).min(n_slots).max(1),
            arrivals,
            pacing,
            cores: role.cores.clone(),
        })
    }

    /// Counts everything from the start to the end, whatever the phases: for users that end by themselves.
    #[must_use]
    pub fn count_everything(mut self) -> Self {
        // There is no other owner: it is shared only while the users run.
        if let Some(target) = Arc::get_mut(&mut self.config) {
            target.is_counted = true;
        }
        self
    }

    /// The number of threads.
    #[must_use]
    pub fn n_workers(&self) -> usize {
        usize::try_from(self.n_workers).unwrap_or(usize::MAX)
    }

    /// Runs the users through the phases of a trial. Returns the record of their requests, and the result of each worker's users.
    ///
    /// `make` is called on each worker's own thread, before the start.
    ///
    /// # Errors
    /// Nothing could be recorded, or users could not be created.
    pub fn run<U: Users>(
        &self,
        context: &TrialContext,
        make: impl Fn(&WorkerShare) -> Result<U, Error> + Sync,
    ) -> Result<(Record, Vec<U::Outcome>), Error> {
        let trial_results = match self.io_backend.reactor {
            ReactorKind::Uring => self.run_over::<Uring, U>(context, &make),
            ReactorKind::Epoll => self.run_over::<Epoll, U>(context, &make),
            ReactorKind::Stamped => self.run_over::<StampedEpoll, U>(context, &make),
        }?;
        let record = self.record(&trial_results, context)?;
        Ok((record, trial_results.workers.into_iter().map(|(_, users)| users).collect()))
    }

    fn run_over<R: Reactor, U: Users>(
        &self,
        context: &TrialContext,
        make: &(impl Fn(&WorkerShare) -> Result<U, Error> + Sync),
    ) -> Result<TrialResults<(LoadResults, U::Outcome)>, Error> {
        let counters = if self.arrivals.is_scheduled() { COUNTERS } else { &COUNTERS[..CLOSED_COUNTERS] };
        let states = (0..self.n_workers).map(|idx| self.worker_spec(idx, context)).collect();
        let pool = WorkerPool { states, counters, cores: &self.cores, until: EndCondition::PhasesOver };
        let prepare = |spec: UserWorkerSpec| spec.prepare::<R, U>(make);
        let work = |worker: WorkerHandle<'_>, prepared: PreparedUsers<R, U>| {
            let PreparedUsers { users, totals, resources } = prepared;
            UserLoop::new(users, UserPool::new(LoadRecorder::new(&worker, totals), resources)).run()
        };
        pool.run_with_setup(context, &mut (), prepare, work)
    }

    /// The work of one worker; slots are distributed evenly.
    fn worker_spec(&self, idx: u64, context: &TrialContext) -> UserWorkerSpec {
        let n_slots = self.arrivals.n_slots();
        let share = n_slots / self.n_workers + u64::from(idx < n_slots % self.n_workers);
        UserWorkerSpec {
            share: WorkerShare {
                idx: usize::try_from(idx).unwrap_or(usize::MAX),
                n_workers: self.n_workers(),
                n_slots: u32::try_from(share).unwrap_or(u32::MAX),
                start: context.start,
            },
            config: Arc::clone(&self.config),
            arrivals: self.arrivals.clone(),
            pacing: self.pacing,
            batching: self.io_backend.batching,
            stop: context.stop.clone(),
        }
    }

    fn record<W>(
        &self,
        trial_results: &TrialResults<(LoadResults, W)>,
        context: &TrialContext,
    ) -> Result<Record, Error> {
        let mut all = LoadResults::merged(trial_results.workers.iter().map(|(outcome, _)| outcome));
        let (lag, n_not_started) = (std::mem::take(&mut all.times.lag), all.times.n_not_started);
        let unreached = unreachable_error(&self.config.name, &all.faults);
        let mut record = record(trial_results, all, &self.config, &self.io_backend);
        let has_none = record.totals[count::CONNECTIONS] == 0 && context.stop.state() != Stop::Abort;
        if let Some(error) = unreached.filter(|_| has_none) {
            return Err(error);
        }
        if self.arrivals.is_scheduled() {
            record.totals.insert(names::NOT_STARTED.to_owned(), n_not_started);
            record.notes.extend(pacing_note(self.pacing, &lag));
            record.distributions.insert(distribution::SCHEDULE_LAG.to_owned(), lag);
        }
        Ok(record)
    }
}

impl UserWorkerSpec {
    /// Creates the users, the reactor and the state of each slot.
    fn prepare<R: Reactor, U>(
        self,
        make: impl Fn(&WorkerShare) -> Result<U, Error>,
    ) -> Result<PreparedUsers<R, U>, Error> {
        let Self { share: row, config: target, arrivals, pacing, batching, stop } = self;
        let share = WorkShare { idx: row.idx, of: row.n_workers };
        Ok(PreparedUsers {
            users: make(&row)?,
            totals: TotalsRecorder::open(&target.recorder_config, row.idx)?,
            resources: PoolResources {
                connector: Connector::new(&target, (row.idx, row.n_workers), row.n_slots as usize)?,
                n_slots: row.n_slots,
                arrivals: arrivals.times_of(share),
                pacing,
                is_shared: arrivals.is_scheduled(),
                config: target,
                batching,
                stop,
            },
        })
    }
}

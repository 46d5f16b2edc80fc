//! The client engine: connections kept busy in a closed loop, or requests on a schedule.
//!
//! Each worker has its own reactor, connections and histograms; workers share nothing while they run. [`h1`] parses answers, the
//! reactor moves bytes. The engine knows no kind of test and no metric.
//!
//! [`h1`]: crate::h1

mod client_connection;
mod upstream_arrivals;
mod worker;

use std::{mem, sync::Arc};

use fathom_engine::{
    EndCondition, Error, IoBackend, LoadModel, ReactorKind, Stop, TrialContext, TrialResults, WorkerHandle, WorkerPool,
    load::LoadLoop as _,
    pace::{ArrivalProcess, Arrivals, Pacing, Profile, WorkShare},
};
use fathom_model::{
    Record, Role,
    names::{count, distribution},
};
use fathom_sys::policy::Policy;
use fathom_sys::reactor::{Epoll, Reactor, StampedEpoll, Uring};
use worker::{ClientWorker, ClientWorkerSpec};

use crate::{
    conn::{LoadConfig, allow_connections, select_io_backend, unreachable_error},
    metrics::{CLOSED_COUNTERS, COUNTERS, LoadResults, pacing_note, record},
    names,
};

/// The schedule of requests of all workers together.
#[derive(Debug, Clone)]
pub(crate) struct RequestSchedule {
    pub(crate) profile: Profile,
    pub(crate) process: ArrivalProcess,
    pub(crate) pacing: Pacing,
}

/// A load, ready to start.
#[derive(Debug)]
pub(crate) struct HttpLoad {
    config: Arc<LoadConfig>,
    io_backend: IoBackend,
    schedule: Option<RequestSchedule>,
    n_connections: u64,
    n_workers: u64,
    requests: Option<u64>,
    cores: Vec<usize>,
}

impl HttpLoad {
    /// Reads a role; without a schedule the load is closed.
    ///
    /// # Errors
    /// A part of the role cannot be done; the error names it.
    pub(crate) fn prepare(
        kind: &'static str,
        role: &Role,
        policy: &Policy,
        schedule: Option<RequestSchedule>,
    ) -> Result<Self, Error> {
        let settings = &role.settings;
        let mut target = LoadConfig::of(role, policy, kind)?;
        // A profile runs once from its start to its end, like a fixed number of requests.
        target.is_counted |= schedule.as_ref().is_some_and(|schedule| schedule.profile.length().is_some());
        let way = select_io_backend(settings, load_model(schedule.as_ref()))?;
        let n_connections = settings.count("connections").unwrap_or(1);
        allow_connections(n_connections)?;
        let n_cores = u64::try_from(role.cores.len().max(1)).unwrap_or(1);
        Ok(Self {
            config: Arc::new(target),
            io_backend: way,
            schedule,
            n_connections,
            n_workers: settings.count("threads").unwrap_or(n_cores).min(n_connections),
            requests: settings.count("count"),
            cores: role.cores.clone(),
        })
    }

    /// Runs the load through the phases of a trial.
    ///
    /// # Errors
    /// Nothing could be recorded.
    pub(crate) fn run(&self, context: &TrialContext) -> Result<Record, Error> {
        match self.io_backend.reactor {
            ReactorKind::Uring => self.run_over::<Uring>(context),
            ReactorKind::Epoll => self.run_over::<Epoll>(context),
            ReactorKind::Stamped => self.run_over::<StampedEpoll>(context),
        }
    }

    fn run_over<R: Reactor>(&self, context: &TrialContext) -> Result<Record, Error> {
        let counters = if self.schedule.is_some() { COUNTERS } else { &COUNTERS[..CLOSED_COUNTERS] };
        let states = self.worker_specs(context);
        let pool = WorkerPool { states, counters, cores: &self.cores, until: EndCondition::PhasesOver };
        let work = |worker: WorkerHandle<'_>, prepared| ClientWorker::new(prepared, &worker).run();
        let trial_results = pool.run_with_setup(context, &mut (), ClientWorkerSpec::prepare::<R>, work)?;
        self.record(&trial_results, context)
    }

    /// The work of each worker.
    fn worker_specs(&self, context: &TrialContext) -> Vec<ClientWorkerSpec> {
        let place = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let n_workers = place(self.n_workers);
        let share = |whole: u64, idx: u64| whole / self.n_workers + u64::from(idx < whole % self.n_workers);
        let connections = self.config.assign_connections(self.n_connections, self.n_workers);
        let spec = |(number, connections): (u64, Vec<u16>)| {
            let idx = place(number);
            let schedule = self.schedule.clone();
            let arrivals =
                schedule.map(|all| Arrivals::new(all.profile, all.process, WorkShare { idx, of: n_workers }));
            ClientWorkerSpec {
                config: Arc::clone(&self.config),
                idx,
                n_workers,
                connections,
                requests_left: self.requests.map(|requests| share(requests, number)),
                arrivals,
                pacing: self.schedule.as_ref().map(|all| all.pacing).unwrap_or_default(),
                batching: self.io_backend.batching,
                stop: context.stop.clone(),
            }
        };
        (0..).zip(connections).map(spec).collect()
    }

    fn record(&self, trial_results: &TrialResults<LoadResults>, context: &TrialContext) -> Result<Record, Error> {
        let mut all = LoadResults::merged(&trial_results.workers);
        let (response, lag) = (mem::take(&mut all.times.response), mem::take(&mut all.times.lag));
        let n_not_started = all.times.n_not_started;
        let unreached = unreachable_error(&self.config.name, &all.faults);
        let mut record = record(trial_results, all, &self.config, &self.io_backend);
        let has_none = record.totals[count::CONNECTIONS] == 0 && context.stop.state() != Stop::Abort;
        if let Some(error) = unreached.filter(|_| has_none) {
            return Err(error);
        }
        if let Some(schedule) = &self.schedule {
            record.totals.insert(names::NOT_STARTED.to_owned(), n_not_started);
            record.notes.extend(pacing_note(schedule.pacing, &lag));
            let times = [(distribution::RESPONSE_TIME, response), (distribution::SCHEDULE_LAG, lag)];
            record.distributions.extend(times.map(|(name, times)| (name.to_owned(), times)));
        }
        Ok(record)
    }
}

/// Answers may be collected in batches only if that does not delay the next scheduled start.
fn load_model(schedule: Option<&RequestSchedule>) -> LoadModel {
    match schedule.map(|schedule| schedule.pacing) {
        Some(Pacing::Precise) => LoadModel::Open,
        Some(Pacing::Cheap) | None => LoadModel::Closed,
    }
}

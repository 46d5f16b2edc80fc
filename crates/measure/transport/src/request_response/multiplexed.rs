//! Many flows per worker over a reactor: the test of one side.

use std::{mem, net::SocketAddr, sync::Arc};

use fathom_engine::{
    Error, LoadModel, PreparedPool, ReactorKind, Stop, Test, TrialContext, TrialObserver, WorkerCounts, WorkerTask,
};
use fathom_model::{Endpoints, Record, Side, units::Nanos};
use fathom_sys::reactor::{Epoll, Reactor, Uring};

use super::{
    RrConfig,
    initiator::RrInitiator,
    responder::RrResponder,
    results::{self, RrResults, counters},
    worker_setup::{SetupState, locked},
};
use crate::{
    connection_setup::{self, ConnectTargets, ListenAddresses},
    tcp_sampler::TcpInfoSampler,
};

/// A prepared side: its connections or its listeners are open.
struct MultiplexedRr<S: WorkerTask> {
    config: Arc<RrConfig>,
    /// Declared before `setup`, so that the workers end first: `setup` must be dropped on the thread whose table has its descriptors.
    pool: PreparedPool<S>,
    setup: Arc<SetupState>,
    addresses: Vec<SocketAddr>,
}

pub(super) fn prepare(kind: &'static str, config: RrConfig) -> Result<Box<dyn Test>, Error> {
    match config.io_backend.reactor {
        ReactorKind::Uring => prepare_on::<Uring>(kind, config),
        ReactorKind::Epoll | ReactorKind::Stamped => prepare_on::<Epoll>(kind, config),
    }
}

fn prepare_on<R: Reactor + 'static>(kind: &'static str, config: RrConfig) -> Result<Box<dyn Test>, Error> {
    let setup = Arc::new(SetupState::new(config.spread.tables)?);
    let config = Arc::new(config);
    let (task_config, task_setup) = (Arc::clone(&config), Arc::clone(&setup));
    Ok(match config.role.side {
        Side::Initiator => {
            let targets = ConnectTargets::of(&config.role, kind, &config.options)?;
            targets.check_ports(config.spread.n_flows)?;
            let task = RrInitiator::<R>::new(task_config, task_setup, targets);
            prepare_pool(task, config, setup)?
        }
        Side::Responder => {
            let addresses = ListenAddresses::of(&config.role, config.spread)?;
            let task = RrResponder::<R>::new(task_config, task_setup, addresses);
            prepare_pool(task, config, setup)?
        }
    })
}

fn prepare_pool<S>(task: S, config: Arc<RrConfig>, setup: Arc<SetupState>) -> Result<Box<dyn Test>, Error>
where
    S: WorkerTask<Input = usize, Output = RrResults>,
{
    let workers = (0..config.spread.n_workers).collect();
    let pool = PreparedPool::start(task, workers, &config.role.cores)?;
    let addresses = setup.addresses();
    Ok(Box::new(MultiplexedRr { config, pool, setup, addresses }))
}

/// Samples the flows that are open, and those that a busy responder accepts only while the trial runs.
struct FlowSampler<'a> {
    sampler: TcpInfoSampler,
    setup: &'a SetupState,
}

impl TrialObserver for FlowSampler<'_> {
    fn on_interval(&mut self, elapsed: Nanos, counts: WorkerCounts<'_>) {
        self.sampler.add(&self.setup.take_sampled());
        self.sampler.on_interval(elapsed, counts);
    }
}

impl<S: WorkerTask<Output = RrResults>> Test for MultiplexedRr<S> {
    fn endpoints(&self) -> Endpoints {
        if self.addresses.is_empty() { Endpoints::new() } else { connection_setup::endpoints_of(&self.addresses) }
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let Self { config, setup, pool, .. } = *self;
        let side = config.role.side;
        let (counters, model) = match (side, &config.open_load) {
            (Side::Initiator, Some(_)) => (counters::OPEN, LoadModel::Open),
            _ => (counters::CLOSED, LoadModel::Closed),
        };
        let mut watch = FlowSampler { sampler: TcpInfoSampler::new(&setup.take_sampled()), setup: &setup };
        let trial_results = pool.run(context, &mut watch, counters, side.into())?;
        let n_connections: u64 = trial_results.workers.iter().map(|tally| tally.n_connections).sum();
        if side == Side::Responder && n_connections == 0 && context.stop.state() != Stop::Abort {
            return Err(Error::Peer { what: format!("opened 0 of {} connections", config.spread.n_flows) });
        }
        let mut record = results::record(trial_results, side, model);
        // A connection with an error carries no more transactions.
        record.complete &= record.errors.is_empty();
        watch.sampler.finish(&mut record, WorkerCounts::default());
        setup.note_missing();
        let mut notes = mem::take(&mut *locked(&setup.notes));
        record.notes.push(config.io_backend.note.clone());
        record.notes.append(&mut notes);
        Ok(record)
    }
}

//! Many flows per worker over a reactor: the test of one side.

use std::{mem, net::SocketAddr, sync::Arc};

use fathom_engine::{Error, LoadModel, PreparedPool, ReactorKind, Stop, Test, TrialContext, WorkerCounts, WorkerTask};
use fathom_model::{Endpoints, Record, Side};
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
    let (shared_terms, shared_lobby) = (Arc::clone(&config), Arc::clone(&setup));
    Ok(match config.role.side {
        Side::Initiator => {
            let targets = ConnectTargets::of(&config.role, kind, &config.options)?;
            targets.check_ports(config.spread.n_flows)?;
            let shift = RrInitiator::<R>::new(shared_terms, shared_lobby, targets);
            prepare_pool(shift, config, setup)?
        }
        Side::Responder => {
            let doors = ListenAddresses::of(&config.role, config.spread)?;
            let shift = RrResponder::<R>::new(shared_terms, shared_lobby, doors);
            prepare_pool(shift, config, setup)?
        }
    })
}

fn prepare_pool<S>(shift: S, config: Arc<RrConfig>, setup: Arc<SetupState>) -> Result<Box<dyn Test>, Error>
where
    S: WorkerTask<Input = usize, Output = RrResults>,
{
    let workers = (0..config.spread.n_workers).collect();
    let enlisted = PreparedPool::start(shift, workers, &config.role.cores)?;
    let addresses = setup.addresses();
    Ok(Box::new(MultiplexedRr { config, pool: enlisted, setup, addresses }))
}

impl<S: WorkerTask<Output = RrResults>> Test for MultiplexedRr<S> {
    fn endpoints(&self) -> Endpoints {
        if self.addresses.is_empty() { Endpoints::new() } else { connection_setup::endpoints_of(&self.addresses) }
    }

    fn run(self: Box<Self>, session: &TrialContext) -> Result<Record, Error> {
        let Self { config, setup, pool: enlisted, .. } = *self;
        let side = config.role.side;
        let (counters, model) = match (side, &config.open_load) {
            (Side::Initiator, Some(_)) => (counters::OPEN, LoadModel::Open),
            _ => (counters::CLOSED, LoadModel::Closed),
        };
        let mut watch = TcpInfoSampler::new(&setup.take_sampled());
        let trial_results = enlisted.run(session, &mut watch, (counters, side.into()))?;
        let n_connections: u64 = trial_results.workers.iter().map(|tally| tally.n_connections).sum();
        if side == Side::Responder && n_connections == 0 && session.stop.state() != Stop::Abort {
            return Err(Error::Peer { what: format!("opened 0 of {} connections", config.spread.n_flows) });
        }
        let mut record = results::record(trial_results, (side, model));
        let mut notes = mem::take(&mut *locked(&setup.notes));
        watch.finish(&mut record, WorkerCounts::default());
        record.notes.push(config.io_backend.note.clone());
        record.notes.append(&mut notes);
        Ok(record)
    }
}

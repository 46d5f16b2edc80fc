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

pub(super) fn prepare(kind: &'static str, terms: RrConfig) -> Result<Box<dyn Test>, Error> {
    match terms.io_backend.reactor {
        ReactorKind::Uring => prepare_on::<Uring>(kind, terms),
        ReactorKind::Epoll | ReactorKind::Stamped => prepare_on::<Epoll>(kind, terms),
    }
}

fn prepare_on<R: Reactor + 'static>(kind: &'static str, terms: RrConfig) -> Result<Box<dyn Test>, Error> {
    let lobby = Arc::new(SetupState::new(terms.spread.tables)?);
    let terms = Arc::new(terms);
    let (shared_terms, shared_lobby) = (Arc::clone(&terms), Arc::clone(&lobby));
    Ok(match terms.role.side {
        Side::Initiator => {
            let targets = ConnectTargets::of(&terms.role, kind, &terms.options)?;
            targets.check_ports(terms.spread.n_flows)?;
            let shift = RrInitiator::<R>::new(shared_terms, shared_lobby, targets);
            prepare_pool(shift, terms, lobby)?
        }
        Side::Responder => {
            let doors = ListenAddresses::of(&terms.role, terms.spread)?;
            let shift = RrResponder::<R>::new(shared_terms, shared_lobby, doors);
            prepare_pool(shift, terms, lobby)?
        }
    })
}

fn prepare_pool<S>(shift: S, terms: Arc<RrConfig>, lobby: Arc<SetupState>) -> Result<Box<dyn Test>, Error>
where
    S: WorkerTask<Input = usize, Output = RrResults>,
{
    let workers = (0..terms.spread.n_workers).collect();
    let enlisted = PreparedPool::start(shift, workers, &terms.role.cores)?;
    let addresses = lobby.addresses();
    Ok(Box::new(MultiplexedRr { config: terms, pool: enlisted, setup: lobby, addresses }))
}

impl<S: WorkerTask<Output = RrResults>> Test for MultiplexedRr<S> {
    fn endpoints(&self) -> Endpoints {
        if self.addresses.is_empty() { Endpoints::new() } else { connection_setup::endpoints_of(&self.addresses) }
    }

    fn run(self: Box<Self>, session: &TrialContext) -> Result<Record, Error> {
        let Self { config: terms, setup: lobby, pool: enlisted, .. } = *self;
        let side = terms.role.side;
        let (counters, model) = match (side, &terms.open_load) {
            (Side::Initiator, Some(_)) => (counters::OPEN, LoadModel::Open),
            _ => (counters::CLOSED, LoadModel::Closed),
        };
        let mut watch = TcpInfoSampler::new(&lobby.take_sampled());
        let trial_results = enlisted.run(session, &mut watch, (counters, side.into()))?;
        let n_connections: u64 = trial_results.workers.iter().map(|tally| tally.n_connections).sum();
        if side == Side::Responder && n_connections == 0 && session.stop.state() != Stop::Abort {
            return Err(Error::Peer { what: format!("opened 0 of {} connections", terms.spread.n_flows) });
        }
        let mut record = results::record(trial_results, (side, model));
        let mut notes = mem::take(&mut *locked(&lobby.notes));
        watch.finish(&mut record, WorkerCounts::default());
        record.notes.push(terms.io_backend.note.clone());
        record.notes.append(&mut notes);
        Ok(record)
    }
}

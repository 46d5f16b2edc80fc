//! The responder of every kind of this layer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fathom_engine::{EndCondition, Error, Test, TrialContext, WorkerHandle, WorkerPool};
use fathom_model::{Endpoints, Record, Role, Side, names::count};
use fathom_sys::policy::Policy;

use crate::{
    conn::{ADDRESS, allow_connections},
    names,
    responder::{self, Responder, ResponderCounter, ResponderOptions, ResponderWorker, WorkerControl},
};

/// The counters of the responder, in the order of [`ResponderCounter`].
const RESPONDER_COUNTERS: &[&str] =
    &[count::REQUESTS, count::BYTES_SENT, count::CONNECTIONS, names::REJECTED, names::TIMED_OUT];

pub(super) struct ResponderTest {
    address: SocketAddr,
    workers: Vec<ResponderWorker>,
    cores: Vec<usize>,
}

impl ResponderTest {
    /// Opens the listeners that the role asks for.
    pub(super) fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let own = role.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let connections = role.settings.count("connections").unwrap_or(1);
        allow_connections(connections * 2)?;
        let options = ResponderOptions {
            workers: role.cores.len().max(1),
            ..ResponderOptions::read(&role.settings, role.seed).map_err(Error::Setting)?
        };
        // The kernel spreads connections unevenly over the workers, and a worker may see the end of one only after the next has arrived.
        let connections_max = usize::try_from(connections * 2).unwrap_or(usize::MAX).max(options.connections_max);
        let options = ResponderOptions { connections_max, ..options };
        let responder = Responder::bind(
            (own, responder::port(&role.settings)).into(),
            &fathom_engine::guests(role, policy),
            options,
        )?;
        Ok(Self { address: responder.address(), workers: responder.into_workers()?, cores: role.cores.clone() })
    }
}

impl Test for ResponderTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::from([(ADDRESS.to_owned(), self.address.to_string())])
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let pool = WorkerPool {
            states: self.workers,
            counters: RESPONDER_COUNTERS,
            cores: &self.cores,
            until: EndCondition::PeerFinished,
        };
        let results = pool.run(context, &mut (), |worker, attendant: ResponderWorker| attendant.serve(&worker))?;
        Ok(results.record(Side::Responder))
    }
}

impl WorkerControl for WorkerHandle<'_> {
    fn add(&self, counter: ResponderCounter, amount: u64) {
        WorkerHandle::add(self, counter as usize, amount);
    }

    fn is_over(&self) -> bool {
        WorkerHandle::is_over(self)
    }
}

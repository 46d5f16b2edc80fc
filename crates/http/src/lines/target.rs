//! What the requests are for, shared by the workers.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
};

use fathom_engine::Error;
use fathom_model::{Role, units::Nanos};

use crate::books::Bookkeeping;
use crate::dial::{Dialing, Rota};

/// The key under which a responder tells where it listens.
pub(crate) const ADDRESS: &str = "address";

/// What all workers share; nothing of it changes but the flag.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) dialing: Arc<Dialing>,
    /// The servers, for people.
    pub(crate) name: String,
    pub(crate) timeout: Nanos,
    /// The most requests under way on a connection.
    pub(crate) pipeline: u16,
    /// Whether everything counts from the start on.
    pub(crate) is_counted: bool,
    /// Whether any worker has had a connection.
    pub(crate) reached: AtomicBool,
    pub(crate) keeping: Arc<Bookkeeping>,
}

impl Target {
    /// What a role asks for.
    pub(crate) fn of(role: &Role, kind: &'static str) -> Result<Self, Error> {
        let settings = &role.settings;
        let ours = role.peer.get(ADDRESS).and_then(|address| address.parse::<SocketAddr>().ok());
        if settings.text("url").is_none() && ours.is_none() {
            return Err(Error::Endpoint { kind, what: ADDRESS });
        }
        let dialing = Dialing::prepare(settings, ours, role.address)?;
        let names: Vec<&str> = dialing.routes.iter().map(|route| route.name.as_str()).collect();
        let pipeline = settings.count("pipeline").and_then(|depth| u16::try_from(depth).ok());
        Ok(Self {
            name: names.join(", "),
            dialing: Arc::new(dialing),
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
            pipeline: pipeline.unwrap_or(1),
            is_counted: settings.count("requests").is_some(),
            reached: AtomicBool::new(false),
            keeping: Bookkeeping::of(settings),
        })
    }

    /// The servers' connections dealt out to the workers in turn: for each worker, the server of each of its connections.
    pub(crate) fn deal(&self, n_connections: u64, n_workers: u64) -> Vec<Vec<u16>> {
        let mut rota: Rota = self.dialing.rota.clone();
        let mut lane = || u16::try_from(rota.turn()).expect("there are fewer servers than turns of a rota");
        let share = |idx: u64| n_connections / n_workers + u64::from(idx < n_connections % n_workers);
        (0..n_workers).map(|idx| (0..share(idx)).map(|_| lane()).collect()).collect()
    }
}

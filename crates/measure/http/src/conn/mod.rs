//! Connections on their way from a name to HTTP, as every engine of this layer needs them.
//!
//! A [`Connection`] is one connection; the [`Connector`] of a worker opens and closes them, decrypts what comes on them, and says
//! what became of it to the engine that is its [`ConnectionHandler`]. When to connect and what to ask is that engine's business. Knows no request and no user.

mod connection;
mod connector;
mod fault;
mod handler;
mod io_backend;
mod load_config;
mod timeout_sweep;
mod unanswered;

use std::cmp;

use fathom_engine::Error;
use fathom_model::units::Nanos;
use fathom_sys::{process::limits, reactor::Token};

pub(crate) use self::{
    connection::Connection,
    connector::{ConnectProgress, ConnectTimes, Connector},
    fault::{FaultCause, FaultCounts, RequestFault, RequestStage, unreachable_error},
    handler::ConnectionHandler,
    io_backend::select_io_backend,
    load_config::{ADDRESS, LoadConfig},
    timeout_sweep::TimeoutSweep,
    unanswered::UnansweredCheck,
};

/// More connects of a worker at once would overflow the accept queue of a server with the usual backlog.
pub(crate) const CONNECTING_MAX: usize = 128;
/// How long answers under way are waited for at the end where each asks for the next: they are a small part of the requests.
pub(crate) const DRAIN: Nanos = Nanos::from_millis(100);
/// So much of a body left is worth a receive of its own that discards it; less comes with the next receive anyway.
pub(crate) const DISCARD_MIN: u64 = 32 * 1024;
/// The pause before a connect that follows a failure; it doubles with each …
const RETRY_DELAY_MIN: Nanos = Nanos::from_millis(10);
/// … this many times.
const RETRY_DELAY_DOUBLINGS: u32 = 6;
/// Descriptors beside those of connections: rings, epolls and bells of the workers, files, standard streams.
const DESCRIPTORS_RESERVED: u64 = 256;

/// How long a connection rests after that many failures in a row, of which the first that was open needs no rest.
pub(crate) fn retry_delay(n_failures: u32) -> Nanos {
    RETRY_DELAY_MIN * (1 << cmp::min(n_failures.saturating_sub(1), RETRY_DELAY_DOUBLINGS))
}

/// The place of a connection in the reactor is its place in its engine.
pub(crate) fn token(idx: usize) -> Token {
    Token(u32::try_from(idx).expect("there are fewer than 2^32 connections"))
}

/// Lets this process have that many connections.
///
/// # Errors
/// The limit of open descriptors is lower and must not be raised.
pub(crate) fn allow_connections(count: u64) -> Result<(), Error> {
    let n_descriptors = count + DESCRIPTORS_RESERVED;
    limits::allow_descriptors(n_descriptors).map_err(|cause| Error::Unsupported {
        what: format!("{count} connections are more than this process may have open: {cause}: {}", cause.source),
        hint: Some(format!("raise the limit (ulimit -n {n_descriptors}, with CAP_SYS_RESOURCE), or ask for fewer")),
    })
}

//! Connections on their way from a name to HTTP, for every engine of this layer.
//!
//! A [`Connection`] is one connection. The [`Connector`] of a worker opens and closes them, decrypts the bytes they receive, and
//! reports events to the engine, which is its [`ConnectionHandler`]. The engine decides when to connect and what to request. This
//! module knows neither requests nor users.

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

/// The most connects in progress per worker. More would overflow the accept queue of a server with the usual backlog.
pub(crate) const CONNECTING_MAX: usize = 128;
/// The least remaining length of a body that gets a receive of its own to discard it. Less arrives with the next receive anyway.
pub(crate) const DISCARD_MIN: u64 = 32 * 1024;
/// The pause before the connect that follows a failure. It doubles with each further failure …
const RETRY_DELAY_MIN: Nanos = Nanos::from_millis(10);
/// … at most this many times.
const RETRY_DELAY_DOUBLINGS: u32 = 6;
/// Descriptors besides those of connections: rings, epoll instances and wakers of the workers, files, standard streams.
const DESCRIPTORS_RESERVED: u64 = 256;

/// How long a connection rests after that many failures in a row. The caller skips the pause after the first failure of an open connection.
pub(crate) fn retry_delay(n_failures: u32) -> Nanos {
    RETRY_DELAY_MIN * (1 << cmp::min(n_failures.saturating_sub(1), RETRY_DELAY_DOUBLINGS))
}

/// The reactor's token of a connection, which is its index in the engine.
pub(crate) fn token(idx: usize) -> Token {
    Token(u32::try_from(idx).expect("there are fewer than 2^32 connections"))
}

/// Raises the descriptor limit of this process to allow that many connections.
///
/// # Errors
/// The limit is lower and cannot be raised.
pub(crate) fn allow_connections(count: u64) -> Result<(), Error> {
    let n_descriptors = count + DESCRIPTORS_RESERVED;
    limits::allow_descriptors(n_descriptors).map_err(|cause| Error::Unsupported {
        what: format!("{count} connections are more than this process may have open: {cause}: {}", cause.source),
        hint: Some(format!("raise the limit (ulimit -n {n_descriptors}, with CAP_SYS_RESOURCE), or ask for fewer")),
    })
}

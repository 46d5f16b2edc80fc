//! From options to a channel that is ready, against servers in memory.
#![expect(clippy::unwrap_used, reason = "tests")]

mod refusals;
mod routes;
mod server;
mod sockets;
mod tunnels;
mod verified;

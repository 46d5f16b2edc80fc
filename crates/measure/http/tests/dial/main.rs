//! From options to a ready channel, against servers in memory.
#![expect(clippy::unwrap_used, reason = "tests")]

mod refusals;
mod routes;
mod server;
mod sockets;
mod tunnels;
mod verified;

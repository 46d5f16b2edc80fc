//! The kinds of HTTP tests, over loopback and over both reactors.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

mod closed;
#[path = "../common/mod.rs"]
mod common;
mod faulty_servers;
mod harness;
mod io_backends;
mod open;
mod request_log;

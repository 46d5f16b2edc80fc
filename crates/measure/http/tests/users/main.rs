//! Scripted users against small servers on loopback, over both reactors.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

mod arrivals;
#[path = "../common/mod.rs"]
mod common;
mod conversation;
mod faults;
mod fixed_requests;
mod harness;
mod scripted_users;

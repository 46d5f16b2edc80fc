//! Hosts: a host is a byte stream to an agent.
//!
//! A [`launcher`] delivers the stream, an [`agent`] plays roles at its far end, and a [`Fleet`] makes several agents start
//! together, notices the loss of one, and gathers what they recorded. Threads and blocking I/O throughout. This crate knows no
//! kinds of tests (the binary hands them over in [`agent::AgentConfig`]), decides nothing about results, and prints nothing.

#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

pub mod agent;
mod agent_failure;
mod connection;
pub mod controller;
mod error;
pub mod launcher;
mod option_precheck;
pub mod protocol;
mod threads;
pub mod tls;

pub use agent_failure::{AgentFailure, ErrorClass};
pub use controller::{Assignment, Fleet, TestRoles, TrialCallbacks, TrialOutcome, TrialPlan};
pub use error::{Disconnected, Error};
pub use launcher::{AgentStream, Liveness};

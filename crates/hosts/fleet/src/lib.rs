//! Hosts: a host is a byte stream to an agent.
//!
//! A [`launcher`] provides the stream, an [`agent`] runs roles at its far end, and a [`Fleet`] starts several agents together, notices
//! disconnected ones, and collects the records. It uses threads and blocking I/O throughout. This crate knows no test kinds (the binary
//! supplies them in [`agent::AgentConfig`]), makes no decisions about results, and prints nothing.

#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

pub mod agent;
mod agent_failure;
mod connection;
pub mod controller;
mod error;
mod head;
pub mod launcher;
mod option_precheck;
pub mod protocol;
mod threads;
pub mod tls;

pub use agent_failure::{AgentFailure, ErrorClass};
pub use controller::{
    Assignment, EXACT_PAIRS_MAX, Fleet, HostClaims, HostLink, LostHost, MemberLink, TestRoles, TrialCallbacks,
    TrialOutcome, TrialPlan,
};
pub use error::{Disconnected, Error, ProcessEnd};
pub use launcher::{AgentStream, Liveness, Opening};
pub use threads::TASK_LIMIT_HINT;

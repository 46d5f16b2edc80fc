//! Hosts: a host is a byte stream to an agent.
//!
//! A [`launcher`] provides the stream, an [`agent`] runs roles at its far end, and a [`Fleet`] starts several agents together, notices
//! disconnected ones, and collects the records. It uses threads and blocking I/O throughout. This crate knows no test kinds (the binary
//! supplies them in [`agent::AgentConfig`]), makes no decisions about results, and prints nothing.
//!
//! # Words
//!
//! - `Inventory`: the user's hosts and groups by name.
//! - `HostReach`: how a host is reached.
//! - `Opening`: what the bytes of an agent begin with.
//! - `PodRequest`, `Pods`: the pods that a run asks for; its Jobs, which are deleted with it.
//! - `HostHold`: the right of one run to a host, and who has it.
//! - head, member: an agent that connects to other hosts for its controller; one of these hosts.
//! - `MergedRecord`, row: the records of one side, merged where they meet; what is told of each of them beside it.

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

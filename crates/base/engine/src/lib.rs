//! How a plan runs: what a test is ([`TestKind`]), how its phases follow each other ([`WorkerPool`]), how it is paced ([`pace`]),
//! and how a limit is found over many of its trials ([`search`]).
//!
//! Worker threads are pinned and share nothing: each writes its own padded [`WorkerCounters`], read once per interval, and its own
//! histograms, merged after the run. This crate knows no protocol, no output and no way to reach a host.

#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod abandon;
mod command_doc;
mod error;
mod io_backend;
mod kind;
mod live_counters;
pub mod load;
mod observe;
mod own_cpu;
pub mod pace;
pub mod search;
mod trial_context;
mod workers;

pub use abandon::abandon;
pub use command_doc::{CeilingSetup, CommandDoc, DataDirection, EvaluationRow, OptionTexts};
pub use error::Error;
pub use io_backend::{Batching, IoBackend, LoadModel, ReactorKind};
pub use kind::{Consent, NamedTarget, Test, TestKind, find, guests};
pub use live_counters::WorkerCounters;
pub use observe::Observer;
pub use trial_context::{LiveProgress, Stop, StopFlag, TrialContext};
pub use workers::{
    EndCondition, Phase, PreparedPool, TrialObserver, TrialResults, WorkerCounts, WorkerHandle, WorkerPool, WorkerTask,
};

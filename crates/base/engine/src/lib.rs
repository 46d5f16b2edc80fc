//! Runs plans: defines a test ([`TestKind`]), runs its phases ([`WorkerPool`]), paces it ([`pace`]) and finds a limit over many trials
//! ([`search`]).
//!
//! Worker threads are pinned and share nothing. Each writes its own padded [`WorkerCounters`], which are read once per interval, and its
//! own histograms, which are merged after the run. This crate contains no protocols, no output and no way to reach a host.

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
mod reception;
mod sample_schedule;
pub mod search;
mod trial_context;
mod workers;

pub use abandon::abandon;
pub use command_doc::{CeilingSetup, CommandDoc, DataDirection, EvaluationRow, OptionTexts};
pub use error::Error;
pub use io_backend::{Batching, IoBackend, LoadModel, ReactorKind};
pub use kind::{Consent, MethodSupport, NamedTarget, Test, TestKind, find, guests};
pub use live_counters::WorkerCounters;
pub use observe::{CounterFeed, Observer};
pub use reception::{EarlierSample, Reception, ReceptionSampler};
pub use sample_schedule::SampleSchedule;
pub use trial_context::{LiveProgress, Stop, StopFlag, TrialContext};
pub use workers::{
    EndCondition, Phase, PreparedPool, TrialObserver, TrialResults, WorkerCounts, WorkerHandle, WorkerPool, WorkerTask,
};

//! Topologies in network namespaces.
//!
//! A [`Lab`] is a handful of [`Host`]s joined by wires that exist in memory only. It lives in one of two ways: held by the process
//! that built it, or `up`, held by a process of its own with a bounded life, which others find by name. Without root it is built
//! inside a user namespace. Everything is anonymous: what no process holds any more is gone, even after a SIGKILL.
//!
//! A [`Device`] may stand between two hosts: a router, a bridge, a filter, a program that redirects or polices. What runs in such a
//! program is brought by whoever builds the lab ([`device::ProgramLoader`]).
//!
//! The [`Journal`] writes down what has to be undone besides. This crate knows nothing of tests, nor what its hosts are measured for.

#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod access;
pub mod device;
mod error;
mod family;
pub mod holder;
mod host;
mod journal;
mod lab;
mod name;
mod options;
pub mod preset;
mod record;
mod state;
mod wire;

pub use access::{down, list};
pub use device::{Device, DeviceRecord};
pub use error::{Error, Result};
pub use host::{Host, Interface};
pub use journal::{Entry, Journal, StoredJournal, stale, undo_stale};
pub use lab::Lab;
pub use name::LabName;
pub use options::Options;
pub use preset::{PRESETS, Preset};
pub use record::{HostRecord, LabRecord, LabState, MissingFeature, SettingDifference};
pub use state::StateFolder;

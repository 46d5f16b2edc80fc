//! Topologies in network namespaces.
//!
//! A [`Lab`] is a small set of [`Host`]s connected by virtual wires. It is held either by the process that built it or, if it is `up`, by a
//! separate process with a limited lifetime, which others find by name. Without root it is built inside a user namespace. Everything is
//! anonymous: when no process holds it any more, it is gone, even after SIGKILL.
//!
//! A [`Device`] may connect two hosts: a router, a bridge, a filter, or a program that redirects or polices. The code that builds the lab
//! supplies the programs ([`device::ProgramLoader`]).
//!
//! The [`Journal`] records everything else that must be undone. This crate knows nothing about tests or the purpose of its hosts.

#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod access;
mod bound_holder;
mod control_group;
pub mod device;
mod error;
mod family;
pub mod fault;
pub mod guard;
pub mod holder;
mod host;
mod journal;
mod lab;
mod members;
mod name;
mod options;
pub mod preset;
mod record;
mod state;
mod uplink;
mod wire;

pub use access::{down, list, undo_stale};
pub use device::{Device, DeviceRecord};
pub use error::{Error, Result};
pub use host::{Host, Interface};
pub use journal::{Entry, Journal, StoredJournal, forget_ended, stale};
pub use lab::Lab;
pub use members::EndedProgram;
pub use name::LabName;
pub use options::Options;
pub use preset::{PRESETS, Preset};
pub use record::{HostRecord, LabRecord, LabState, MissingFeature, SettingDifference};
pub use state::StateFolder;
pub use uplink::{UPLINK, Uplink};

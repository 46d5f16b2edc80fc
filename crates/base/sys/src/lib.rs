//! Linux, as the rest of fathom sees it: safe wrappers around system calls.
//!
//! This is the only crate with `unsafe` code and with `libc`. It knows nothing of tests, metrics and plans.
//! A wrapper says what it needs (capability, kernel version, man page), returns an [`Error`] that names the call, and hands out
//! guards: what was acquired is undone when the guard is dropped.

#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

pub mod bpf;
pub mod clock;
mod error;
mod mapping;
pub mod netlink;
pub mod packet;
pub mod policy;
pub mod process;
pub mod reactor;
pub mod socket;

pub use error::{Error, ExhaustedResource, Result};

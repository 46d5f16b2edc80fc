//! Safe wrappers around Linux system calls for the rest of fathom.
//!
//! This is the only crate with `unsafe` code and with `libc`. It knows nothing about tests, metrics and plans. A wrapper documents its
//! requirements (capability, kernel version, man page), returns an [`Error`] that names the call, and returns guards: dropping a guard
//! releases the resource.

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

//! Threads that may be refused: a host with too many tasks gets an error, not a panic.

use std::{
    io,
    thread::{self, JoinHandle},
};

/// Starts a thread, or says that the host has no room for one more.
pub(crate) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().spawn(work).map_err(|cause| io::Error::new(cause.kind(), format!("no thread left: {cause}")))
}

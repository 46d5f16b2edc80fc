//! Threads for connections, refused in words that a person reads.

use std::{io, thread::JoinHandle};

/// Starts a thread, or says that the host has no room for one more.
pub(crate) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    let words = |cause: io::Error| io::Error::new(cause.kind(), format!("no thread left: {cause}"));
    fathom_sys::process::threads::start(work).map_err(|error| words(error.source))
}

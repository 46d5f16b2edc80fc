//! Threads for connections, with a readable error if one cannot be started.

use std::{any::Any, io, thread::JoinHandle};

/// Starts a thread, or returns an error if the host cannot create one.
pub(crate) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    let words = |cause: io::Error| io::Error::new(cause.kind(), format!("no thread left: {cause}"));
    fathom_sys::process::threads::start(work).map_err(|error| words(error.source))
}

/// Returns the message of a thread's panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}

//! Threads for connections, refused in words that a person reads.

use std::{any::Any, io, thread::JoinHandle};

/// Starts a thread, or says that the host has no room for one more.
pub(crate) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    let words = |cause: io::Error| io::Error::new(cause.kind(), format!("no thread left: {cause}"));
    fathom_sys::process::threads::start(work).map_err(|error| words(error.source))
}

/// What a thread said when it panicked.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}

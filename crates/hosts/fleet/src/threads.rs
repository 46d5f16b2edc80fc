//! Threads for connections, with a readable error if one cannot be started, and the texts of their panics.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    thread::JoinHandle,
};

/// The way out for a host that cannot start another thread.
pub const TASK_LIMIT_HINT: &str = "raise the limit of tasks: ulimit -u, or pids.max of the container";

/// Starts a named thread, or returns an error if the host cannot create one.
pub(crate) fn start<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let words = |cause: io::Error| io::Error::new(cause.kind(), format!("no thread left: {cause}"));
    fathom_sys::process::threads::start(name, work).map_err(|error| words(error.source))
}

/// Returns the message of a thread's panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}

/// Returns the value, or the text of a panic.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // Everything that the work owns is dropped with it, so no partial state remains visible.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(panic.as_ref()))
}

//! Threads that may be refused: a host with too many tasks gets an error where std's `spawn` would panic.

use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use crate::{Error, Result};

/// Starts a thread.
///
/// # Errors
/// `clone`: `EAGAIN` at the limit of tasks of the user, the container or the host.
pub fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    Builder::new().spawn(work).map_err(|cause| Error::new("clone(thread)", cause))
}

/// Starts a thread that ends within a scope.
///
/// # Errors
/// As [`start`].
pub fn start_within<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().spawn_scoped(scope, work).map_err(|cause| Error::new("clone(thread)", cause))
}

//! Thread creation that can fail: on a host with too many tasks, std's `spawn` would panic; these functions return an error.

use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use crate::{Error, Result};

/// Starts a thread. Its name is the one that `top -H` and `ps -L` show, of at most 15 bytes.
///
/// # Errors
/// `clone`: `EAGAIN` at the task limit of the user, the container or the host.
pub fn start<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(work).map_err(|cause| Error::new("clone(thread)", cause))
}

/// Starts a scoped thread.
///
/// # Errors
/// As [`start`].
pub fn start_within<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().name(name.to_owned()).spawn_scoped(scope, work).map_err(|cause| Error::new("clone(thread)", cause))
}

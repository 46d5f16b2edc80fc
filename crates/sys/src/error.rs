//! What a system call answered when it did not do what was asked.

use std::io;

/// A system call that failed, by its name, with what it was asked to do.
#[derive(Debug, thiserror::Error)]
#[error("{call}")]
pub struct Error {
    /// The call and its subject, such as `setsockopt(SO_RCVBUF)` or `open(/proc/net/dev)`.
    pub call: String,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

/// The outcome of a call into the kernel.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Names the call that `source` came from.
    pub fn new(call: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { call: call.into(), source: source.into() }
    }

    /// The error of the last system call of this thread (`errno`).
    pub fn last(call: impl Into<String>) -> Self {
        Self::new(call, io::Error::last_os_error())
    }

    /// Whether a privilege is missing (`EPERM` or `EACCES`).
    #[must_use]
    pub fn is_permission(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }

    /// The kernel's number of the error, when it came from the kernel.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

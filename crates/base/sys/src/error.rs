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

    /// Whether the peer has gone away without a word (`ECONNRESET` or `EPIPE`).
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        matches!(self.errno(), Some(libc::ECONNRESET | libc::EPIPE))
    }

    /// What the kernel has run out of, when that is why it refused.
    #[must_use]
    pub fn shortage(&self) -> Option<ExhaustedResource> {
        match self.errno()? {
            libc::EADDRNOTAVAIL => Some(ExhaustedResource::Address),
            libc::EMFILE => Some(ExhaustedResource::Descriptors),
            libc::ENFILE => Some(ExhaustedResource::DescriptorsOfHost),
            _ => None,
        }
    }
}

/// What the kernel has none left of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExhaustedResource {
    /// Local ports of a connect, or an address that this host does not have at all (`EADDRNOTAVAIL`).
    Address,
    /// Descriptors of this table (`EMFILE`).
    Descriptors,
    /// Descriptors of the whole host (`ENFILE`).
    DescriptorsOfHost,
}

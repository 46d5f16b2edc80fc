//! Errors of system calls.

use std::io;

use fathom_model::{Cause, Failure};

/// A failed system call with its name and its purpose.
#[derive(Debug, thiserror::Error)]
#[error("{call}")]
pub struct Error {
    /// The call and its subject, such as `setsockopt(SO_RCVBUF)` or `open(/proc/net/dev)`.
    pub call: String,
    /// The error from the kernel.
    #[source]
    pub source: io::Error,
}

/// The result of a system call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an error for the call that returned `source`.
    pub fn new(call: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { call: call.into(), source: source.into() }
    }

    /// The error of the last system call of this thread (`errno`).
    pub fn last(call: impl Into<String>) -> Self {
        Self::new(call, io::Error::last_os_error())
    }

    /// Returns whether a privilege is missing (`EPERM` or `EACCES`).
    #[must_use]
    pub fn is_permission(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }

    /// Returns the kernel's error number, if the error came from the kernel.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Returns whether the peer closed the connection abruptly (`ECONNRESET` or `EPIPE`).
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        matches!(self.errno(), Some(libc::ECONNRESET | libc::EPIPE))
    }

    /// Returns whether the way to the peer is broken: no route, no answer of a neighbor, an interface that is down, or no answer in time.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
        matches!(self.source.kind(), HostUnreachable | NetworkDown | NetworkUnreachable | TimedOut)
    }

    /// Returns the exhausted resource, if that is the reason for the error.
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

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let cause = match error.shortage() {
            // A bind fails with the same number if the address does not belong to this host.
            Some(ExhaustedResource::Address) if error.call.starts_with("connect") => Cause::NoPort,
            Some(ExhaustedResource::Descriptors | ExhaustedResource::DescriptorsOfHost) => Cause::NoDescriptor,
            _ if error.source.kind() == io::ErrorKind::ConnectionReset => Cause::Reset,
            _ => error.source.kind().to_string().as_str().into(),
        };
        Self::of_call(&error.call, cause)
    }
}

/// A resource that the kernel has run out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExhaustedResource {
    /// Local ports for a connect, or an address that this host does not have (`EADDRNOTAVAIL`).
    Address,
    /// Descriptors of this process (`EMFILE`).
    Descriptors,
    /// Descriptors of the whole host (`ENFILE`).
    DescriptorsOfHost,
}

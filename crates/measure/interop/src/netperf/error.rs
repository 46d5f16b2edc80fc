//! Errors of a netperf test, for the person who started one of its ends.

use std::io;

use fathom_model::units::Nanos;

use crate::sockets::os_error_text;

/// The status of an answer to a test that the server does not know (`netserver.c`).
pub(crate) const UNKNOWN_TEST: i32 = 998;

/// Why a test failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The control connection could not be opened.
    #[error("unable to connect to the netserver: {}", os_error_text(cause))]
    Connect {
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The data connection could not be opened.
    #[error("unable to open the data connection: {}", os_error_text(cause))]
    Data {
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The server cannot listen.
    #[error("unable to listen: {}", os_error_text(cause))]
    Listen {
        /// The error of the kernel.
        cause: io::Error,
    },
    /// A socket refuses an option.
    #[error("unable to set {what}: {}", os_error_text(cause))]
    SocketOption {
        /// The option, such as `SO_SNDBUF`.
        what: &'static str,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The other side closed the control connection.
    #[error("the other side closed the control connection while {awaited} was due")]
    Closed {
        /// The expected message.
        awaited: &'static str,
    },
    /// The other side sent nothing for too long.
    #[error("{awaited} did not come within {waited}")]
    Silent {
        /// The expected message.
        awaited: &'static str,
        /// How long this side waited.
        waited: Nanos,
    },
    /// The other side sent bytes that are no message of netperf.
    #[error("the other side does not speak the protocol of netperf: {why}")]
    NotNetperf {
        /// What it sent.
        why: String,
    },
    /// The server reports an error.
    #[error("remote error {errno}: {}", os_error_text(&io::Error::from_raw_os_error(*errno)))]
    Remote {
        /// The error number of the server's kernel, or 998 for an unknown test.
        errno: i32,
    },
    /// The data connection failed during the test.
    #[error("the data connection failed: {}", os_error_text(cause))]
    Transfer {
        /// The error of the kernel.
        cause: io::Error,
    },
    /// A system call failed unexpectedly.
    #[error("{call}: {}", os_error_text(cause))]
    System {
        /// The name of the call.
        call: String,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The server refused what the client requested.
    #[error("refused: {why}")]
    Refused {
        /// The request.
        why: &'static str,
        /// The error number that the client gets.
        errno: i32,
    },
    /// The client is gone.
    #[error("the client is gone")]
    ClientGone,
    /// The user ended the test.
    #[error("interrupted")]
    Interrupted,
}

impl From<fathom_sys::Error> for Error {
    fn from(error: fathom_sys::Error) -> Self {
        Self::System { call: error.call, cause: error.source }
    }
}

impl Error {
    /// What to do about it, if that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Connect { .. } => Some("start `netserver` on the other host, or name its port with -p"),
            Self::NotNetperf { .. } | Self::Closed { .. } => {
                Some("check the port: netserver listens on 12865; one with a passphrase (-Z) needs the same here")
            }
            Self::Silent { .. } => Some("check the port, and whether a firewall drops the packets of the test"),
            Self::Data { .. } => {
                Some("the data connection goes to another port than 12865: open one and name it with -- -P ,PORT")
            }
            Self::Remote { errno: UNKNOWN_TEST } => {
                Some("this netserver does not know the test: it is older than 2.5, or was built without OMNI")
            }
            _ => None,
        }
    }
}

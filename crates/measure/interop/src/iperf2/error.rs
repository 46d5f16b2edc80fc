//! Errors of an iperf 2 test, in the words that its users know.

use std::io;

use crate::sockets::os_error_text;

/// Why a test failed. iperf prints the failed call and the error of the kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flow could not be opened.
    #[error("{call} failed: {}", os_error_text(cause))]
    Connect {
        /// The operation in iperf's words: `tcp connect`.
        call: &'static str,
        cause: io::Error,
    },
    /// The server cannot listen.
    #[error("bind failed: {}", os_error_text(cause))]
    Listen { cause: io::Error },
    /// A socket rejects a requested option.
    #[error("{what} failed: {}", os_error_text(cause))]
    SocketOption {
        /// The option in words: `set TCP window size`.
        what: &'static str,
        cause: io::Error,
    },
    /// The data of a flow could not be sent.
    #[error("write failed: {}", os_error_text(cause))]
    Write { cause: io::Error },
    /// The data of a flow could not be received.
    #[error("read failed: {}", os_error_text(cause))]
    Read { cause: io::Error },
    /// The target did not answer as an iperf server.
    #[error("no iperf server answered at {target}: {why}")]
    NoServer {
        /// The address and the port.
        target: String,
        why: String,
    },
    /// The server did not report on a UDP flow.
    #[error("did not receive ack of last datagram after {n_tries} tries")]
    NoReport { n_tries: u32 },
    /// The server sent nothing although it was asked to.
    #[error("the server sent nothing within {seconds} s")]
    NoData { seconds: u64 },
    /// The other side opened no flow although it was asked to.
    #[error("expected reverse connect did not occur")]
    NoBackFlow,
    /// The other side sent nothing for too long.
    #[error("nothing was received for {seconds} s")]
    Silent { seconds: u64 },
    /// The client asked for something that this server does not do.
    #[error("a request of {from} was refused: {why}")]
    Refused {
        /// The client's address.
        from: String,
        why: String,
    },
    /// A test took longer than the server allows.
    #[error("a test took longer than {seconds} s")]
    TooLong { seconds: u64 },
    /// A system call failed unexpectedly.
    #[error("{call} failed: {}", os_error_text(source))]
    System { call: String, source: io::Error },
    /// The user ended the test.
    #[error("interrupted")]
    Interrupted,
}

impl From<fathom_sys::Error> for Error {
    fn from(error: fathom_sys::Error) -> Self {
        Self::System { call: error.call, source: error.source }
    }
}

impl Error {
    /// Whether the other host says that nobody listens.
    pub(crate) fn is_refusal(&self) -> bool {
        let (Self::Write { cause } | Self::Read { cause }) = self else { return false };
        cause.kind() == io::ErrorKind::ConnectionRefused
    }

    /// Returns what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::NoServer { .. } => {
                "an iperf server from 2.0.10 on answers at once; check the port, or allow the target with --allow"
            }
            Self::Listen { cause } if cause.kind() == io::ErrorKind::AddrInUse => {
                "choose another port with -p; the port for connections of the server with -L"
            }
            Self::NoData { .. } => {
                "a server of fathom sends datagrams only to addresses that were proven over TCP or allowed: see docs/iperf.md"
            }
            Self::NoBackFlow => "a firewall may hold the server's connection back; -R uses the client's own",
            _ => return None,
        })
    }
}

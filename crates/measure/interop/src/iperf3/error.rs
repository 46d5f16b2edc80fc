//! Errors of an iperf3 test, in the words that its users know.

use std::io;

use crate::sockets::os_error_text;

/// Why a test failed. Shown in the form of iperf3, after `iperf3: error - `.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The control connection could not be opened.
    #[error("unable to connect to server: {}", os_error_text(cause))]
    Connect {
        /// The error of the kernel or the resolver.
        cause: io::Error,
    },
    /// A stream could not be opened.
    #[error("unable to connect stream: {}", os_error_text(cause))]
    Stream {
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The server cannot listen.
    #[error("unable to start listener for connections: {}", os_error_text(cause))]
    Listen {
        /// The error of the kernel.
        cause: io::Error,
    },
    /// A socket rejects a requested option.
    #[error("{what}: {}", os_error_text(cause))]
    SocketOption {
        /// The option, in iperf3's words: `unable to set TCP/SCTP MSS`.
        what: &'static str,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The file of a stream cannot be opened, read or written.
    #[error("{what}: {}", os_error_text(cause))]
    File {
        /// The operation, in iperf3's words if there are any: `unable to open -F file`.
        what: &'static str,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The control connection failed during a read.
    #[error("unable to receive control message: {}", os_error_text(cause))]
    Receive {
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The control connection failed during a write.
    #[error("unable to send control message: {}", os_error_text(cause))]
    Send {
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The other side closed the control connection.
    #[error("control socket has closed unexpectedly")]
    Closed,
    /// The other side sent nothing for too long.
    #[error("unable to receive control message: {awaited} did not come within {seconds} s")]
    Silent {
        /// The expected message.
        awaited: &'static str,
        /// How long the wait lasted.
        seconds: u64,
    },
    /// The other side sent a message that the protocol does not allow at this point.
    #[error("received an unknown control message: {got} instead of {awaited}")]
    Unexpected {
        /// The received message, as far as it can be named.
        got: String,
        /// The expected message.
        awaited: &'static str,
    },
    /// The received message is not the expected JSON.
    #[error("unable to receive {what}: {why}")]
    Malformed {
        /// The message: `parameters` or `results`.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The server is running another test.
    #[error("the server is busy running a test. try again later")]
    Busy,
    /// The server terminated during the test.
    #[error("the server has terminated")]
    ServerTerminated,
    /// The client terminated during the test.
    #[error("the client has terminated")]
    ClientTerminated,
    /// The other side reported an error by number.
    #[error("{}", refusal(*code, *errno))]
    Refused {
        /// iperf3's error number.
        code: i32,
        /// The error number of the other side's kernel, zero for none.
        errno: i32,
    },
    /// The client requested something that this server does not do.
    #[error("{}", refusal(*code, 0))]
    Denied {
        /// iperf3's error number.
        code: i32,
    },
    /// No more data arrived.
    #[error("idle timeout for receiving data")]
    Idle,
    /// The user is not authorized.
    #[error("test authorization failed")]
    Authorization,
    /// A login cannot be created or checked.
    #[error("{0}")]
    Login(#[from] super::login::LoginError),
    /// A system call failed unexpectedly.
    #[error("{call}: {}", os_error_text(source))]
    System {
        call: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The user ended the test.
    #[error("interrupt - the client has terminated")]
    Interrupted,
}

impl From<fathom_sys::Error> for Error {
    fn from(error: fathom_sys::Error) -> Self {
        Self::System { call: error.call, source: error.source }
    }
}

impl Error {
    /// Returns what to do about it, in a test with or without both directions.
    #[must_use]
    pub fn hint_of(&self, is_both_ways: bool) -> Option<&'static str> {
        match self {
            Self::Closed | Self::Stream { .. } if is_both_ways => Some(
                "an iperf3 server before 3.7 does not know --bidir: run once with -R and once without it, or use a newer server",
            ),
            _ => self.hint(),
        }
    }

    /// Returns what to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Unexpected { .. } | Self::Malformed { .. } => {
                "the program that listens there does not speak iperf3: check the port"
            }
            Self::Busy => "iperf3 runs one test at a time; `fathom serve --iperf3` takes many",
            Self::Listen { cause } if cause.kind() == io::ErrorKind::AddrInUse => "choose another port with -p",
            Self::Authorization | Self::Refused { code: code::AUTHORIZATION, .. } => {
                "the name, the password, the key and both clocks must be right"
            }
            _ => return None,
        })
    }
}

/// Error numbers on the wire (`iperf_api.h`).
pub(crate) mod code {
    pub(crate) const DURATION: i32 = 5;
    pub(crate) const STREAMS: i32 = 6;
    pub(crate) const BLOCK: i32 = 7;
    pub(crate) const BUFFER: i32 = 8;
    pub(crate) const MSS: i32 = 10;
    pub(crate) const OMIT: i32 = 12;
    pub(crate) const UNIMPLEMENTED: i32 = 13;
    pub(crate) const FILE: i32 = 14;
    pub(crate) const BURST: i32 = 15;
    pub(crate) const NO_SCTP: i32 = 18;
    pub(crate) const UDP_BLOCK: i32 = 20;
    pub(crate) const TOS: i32 = 21;
    pub(crate) const BOTH_WAYS: i32 = 25;
    pub(crate) const TOTAL_RATE: i32 = 27;
    /// Since 3.20; older versions show the number.
    pub(crate) const DURATION_ALLOWED: i32 = 37;
    pub(crate) const PARAMETERS: i32 = 114;
    pub(crate) const RESULTS: i32 = 117;
    pub(crate) const PROTOCOL: i32 = 131;
    pub(crate) const AFFINITY: i32 = 132;
    pub(crate) const CONGESTION: i32 = 134;
    pub(crate) const AUTHORIZATION: i32 = 142;
    pub(crate) const IDLE: i32 = 144;
    /// Since 3.18.
    pub(crate) const DURATION_EXPIRED: i32 = 160;
    pub(crate) const ACCEPT_STREAM: i32 = 204;
}

/// iperf3's texts for its numbers. Those with `true` are followed by the text of the kernel's error.
const REFUSALS: &[(i32, &str, bool)] = &[
    (5, "test duration too long (maximum = 86400 seconds)", false),
    (6, "number of parallel streams too large (maximum = 128)", false),
    (7, "block size too large (maximum = 1048576 bytes)", false),
    (8, "socket buffer size too large (maximum = 536870912 bytes)", false),
    (10, "TCP MSS too large (maximum = 9216 bytes)", false),
    (12, "bogus value for --omit", false),
    (13, "an option you are trying to set is not implemented yet", false),
    (14, "unable to open -F file", true),
    (15, "invalid burst count (maximum = 1000)", false),
    (18, "no SCTP support available", false),
    (20, "block size invalid (minimum = 16 bytes, maximum = 65507 bytes)", false),
    (21, "bad TOS value (must be between 0 and 255 inclusive)", false),
    (25, "cannot be both reverse and bidirectional", false),
    (27, "total required bandwidth is larger than server limit", false),
    (37, "client's requested duration exceeds the server's maximum permitted limit", false),
    (100, "unable to create a new test", true),
    (101, "test initialization failed", true),
    (102, "unable to start listener for connections", true),
    (104, "unable to accept connection from client", true),
    (106, "unable to receive cookie at server", true),
    (107, "unable to write to the control socket", true),
    (108, "unable to read from the control socket", true),
    (109, "control socket has closed unexpectedly", false),
    (110, "received an unknown control message", false),
    (111, "unable to send control message", true),
    (112, "unable to receive control message", true),
    (114, "unable to receive parameters from client", true),
    (115, "unable to package results", true),
    (116, "unable to send results", true),
    (117, "unable to receive results", true),
    (118, "select failed", true),
    (119, "the client has terminated", false),
    (120, "the server has terminated", false),
    (121, "the server is busy running a test. try again later", false),
    (122, "unable to set TCP/SCTP NODELAY", true),
    (123, "unable to set TCP/SCTP MSS", true),
    (124, "unable to set socket buffer size", true),
    (125, "unable to set IP TOS", true),
    (126, "unable to set IPv6 traffic class", true),
    (127, "unable to set IPv6 flow label", false),
    (128, "unable to reuse address on socket", true),
    (130, "unable to set socket window size", true),
    (131, "protocol does not exist", false),
    (132, "unable to set CPU affinity", true),
    (134, "unable to set TCP_CONGESTION: Supplied congestion control algorithm not supported on this host", false),
    (140, "unable to set socket pacing", true),
    (141, "socket buffer size not set correctly", false),
    (142, "test authorization failed", false),
    (144, "idle timeout for receiving data", false),
    (145, "unable to set IP Do-Not-Fragment flag", false),
    (160, "server test duration expired", false),
    (200, "unable to create a new stream", true),
    (201, "unable to initialize stream", true),
    (202, "unable to start stream listener", true),
    (203, "unable to connect stream", true),
    (204, "unable to accept stream connection", true),
    (205, "unable to write to stream socket", true),
    (206, "unable to read from stream socket", true),
    (207, "stream socket has closed unexpectedly", false),
    (208, "stream has an invalid id", false),
];

fn refusal(code: i32, errno: i32) -> String {
    match REFUSALS.iter().find(|(known, ..)| *known == code) {
        Some((_, words, true)) if errno > 0 => {
            format!("{words}: {}", os_error_text(&io::Error::from_raw_os_error(errno)))
        }
        Some((_, words, _)) => (*words).to_owned(),
        None => format!("int_errno={code}"),
    }
}

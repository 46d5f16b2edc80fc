//! Why a host cannot be used, or was lost.

use std::{fmt, io};

use crate::{
    AgentFailure, ErrorClass,
    agent_failure::causes,
    protocol::{FrameError, VERSION},
};
use fathom_sys::policy::NetworkError;

/// How a connection between controller and agent ended before its time.
#[derive(Debug)]
pub enum Disconnected {
    /// The other side closed it.
    Closed,
    /// Nothing was heard of the other side for 3 s.
    HeartbeatTimeout,
    /// It takes nothing of what it is told.
    SendQueueFull,
    /// The other side did not do its next step in time: the step.
    StepTimeout(&'static str),
    /// The stream broke.
    Io(io::Error),
    /// What came was not the protocol.
    Protocol(FrameError),
}

impl fmt::Display for Disconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection was closed"),
            Self::HeartbeatTimeout => f.write_str("nothing was heard for 3 s"),
            Self::SendQueueFull => f.write_str("it does not read its messages"),
            Self::StepTimeout(step) => write!(f, "it did not {step} in time"),
            Self::Io(cause) => write!(f, "the connection broke: {cause}"),
            Self::Protocol(cause) => write!(f, "it sent {cause}"),
        }
    }
}

impl std::error::Error for Disconnected {}

/// What keeps a host from being used, for the person who must act.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key is not one.
    #[error("`{given}` is not a key: {reason}")]
    Key {
        /// What was given, without the secret part.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An address range is not one.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A trial names a host that was never connected.
    #[error("there is no host `{name}`; there are {known}")]
    UnknownHost {
        /// The name that was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A certificate or key cannot be made or used.
    #[error("cannot {what}")]
    Certificate {
        /// What was attempted.
        what: &'static str,
        /// What the library said.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel refused something on this side.
    #[error("cannot {what}")]
    System {
        /// What was attempted, on what: `start an agent with /usr/bin/fathom`.
        what: String,
        /// What the kernel answered.
        #[source]
        cause: io::Error,
    },
    /// Nobody listens at the address, or nobody answers.
    #[error("cannot reach {address}")]
    Unreachable {
        /// Where a `fathom serve` was expected.
        address: String,
        /// What the kernel answered.
        #[source]
        cause: io::Error,
    },
    /// Something listens at the address, but it does not speak our protocol.
    #[error("{address} is not a fathom server")]
    NotAFathomServer {
        /// Where a `fathom serve` was expected.
        address: String,
        /// What it did instead.
        #[source]
        cause: io::Error,
    },
    /// The server's certificate is not the one of the key.
    #[error("{address} is not the server that the key belongs to")]
    WrongFingerprint {
        /// Where it listens.
        address: String,
    },
    /// The server knows its certificate but not the token.
    #[error("{address} does not accept the token of the key")]
    WrongToken {
        /// Where it listens.
        address: String,
    },
    /// The server accepts the key but has as many controllers as it may.
    #[error("{address} serves as many controllers as it may")]
    Busy {
        /// Where it listens.
        address: String,
    },
    /// Others keep knocking, and the server turned this connection away for theirs.
    #[error("{address} turned this connection away: too many knock without its key")]
    TooManyConnections {
        /// Where it listens.
        address: String,
    },
    /// The agent is of another major version.
    #[error("host `{host}` runs {theirs_tool} with protocol {theirs}; this is {ours_tool} with protocol {VERSION}")]
    Version {
        /// The host's name.
        host: String,
        /// Its protocol.
        theirs: u8,
        /// Its program.
        theirs_tool: String,
        /// Our program.
        ours_tool: String,
    },
    /// What was started on the host is not an agent.
    #[error("no agent answers on host `{host}`: {loss}{}", lines(exit.as_deref(), stderr))]
    NoAgent {
        /// The host's name.
        host: String,
        /// What came instead of its greeting.
        loss: Disconnected,
        /// How its process ended, if it was a child and has ended.
        exit: Option<String>,
        /// The last that it wrote to its standard error.
        stderr: String,
    },
    /// An agent died, hung or was cut off.
    #[error("host `{host}` was lost: {loss}{}", lines(exit.as_deref(), stderr))]
    Disconnected {
        /// The host's name.
        host: String,
        /// How it showed.
        loss: Disconnected,
        /// How its process ended, if it was a child and has ended.
        exit: Option<String>,
        /// The last that it wrote to its standard error.
        stderr: String,
    },
    /// An agent could not or would not play its role.
    #[error("host `{host}`: {}", failure.message)]
    RoleFailed {
        /// The host's name.
        host: String,
        /// Why.
        failure: AgentFailure,
    },
    /// The trial was told to stop.
    #[error("interrupted")]
    Interrupted,
}

/// How a child ended and what it said last, to go behind a message.
fn lines(exit: Option<&str>, stderr: &str) -> String {
    let exit = exit.map_or(String::new(), |exit| format!("; it ended with {exit}"));
    let stderr = stderr.trim_end();
    if stderr.is_empty() { exit } else { format!("{exit}\n{stderr}") }
}

impl Error {
    /// What it means for the run.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Key { .. } | Self::Network(_) | Self::UnknownHost { .. } => ErrorClass::Usage,
            Self::Disconnected { .. } | Self::Interrupted => ErrorClass::Incomplete,
            Self::RoleFailed { failure, .. } => failure.class,
            Self::Certificate { .. }
            | Self::System { .. }
            | Self::Unreachable { .. }
            | Self::NotAFathomServer { .. }
            | Self::WrongFingerprint { .. }
            | Self::WrongToken { .. }
            | Self::Busy { .. }
            | Self::TooManyConnections { .. }
            | Self::Version { .. }
            | Self::NoAgent { .. } => ErrorClass::Preflight,
        }
    }

    /// What to do about it, where it is known.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Key { .. } => Some("copy the whole key that `fathom serve` printed"),
            Self::Unreachable { .. } => Some("start `fathom serve` there, and let its port through the firewall"),
            Self::NotAFathomServer { .. } => {
                Some("name the port that `fathom serve` printed; it is 7700 unless told otherwise")
            }
            Self::WrongFingerprint { .. } | Self::WrongToken { .. } => Some(
                "copy the key that this `fathom serve` printed; without a key file it makes a new one at each start",
            ),
            Self::Busy { .. } => Some("wait until another run has ended"),
            Self::TooManyConnections { .. } => {
                Some("try again, and let the firewall there admit only controllers to this port")
            }
            Self::Disconnected { loss: Disconnected::HeartbeatTimeout, .. } => {
                Some("see what the path loses: fathom probe HOST, and fathom probe HOST --test mtu for large packets")
            }
            Self::Version { .. } => Some("run the same version of fathom on both hosts"),
            Self::RoleFailed { failure, .. } => failure.hint.as_deref(),
            _ => None,
        }
    }

    /// What lies behind it, the nearest first; an agent's causes are told as if they were ours.
    #[must_use]
    pub fn causes(&self) -> Vec<String> {
        match self {
            Self::RoleFailed { failure, .. } => failure.causes.clone(),
            error => causes(error),
        }
    }
}

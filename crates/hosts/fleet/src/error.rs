//! The reasons why a host cannot be used, or was disconnected.

use std::{fmt, io, os::unix::process::ExitStatusExt as _, process::ExitStatus};

use crate::{
    AgentFailure, ErrorClass,
    agent_failure::causes,
    protocol::{FrameError, VERSION},
};
use fathom_model::reach::WordError;
use fathom_sys::policy::NetworkError;

/// How a connection between controller and agent ended early.
#[derive(Debug)]
pub enum Disconnected {
    /// The other side closed it.
    Closed,
    /// Nothing was heard of the other side for 3 s.
    HeartbeatTimeout,
    /// It does not read its messages.
    SendQueueFull,
    /// The other side did not complete this step in time.
    StepTimeout(&'static str),
    /// The stream broke.
    Io(io::Error),
    /// The received data does not follow the protocol.
    Protocol(FrameError),
    /// The head of the host says so.
    ToldByHead {
        /// The head.
        head: String,
        /// How the host was lost there.
        failure: Box<AgentFailure>,
    },
    /// The head of the host was lost, and every host behind it with it.
    WithHead {
        /// The head.
        head: String,
    },
    /// The host is a head, so the hosts behind it were lost with it.
    Head {
        /// How it was lost.
        loss: Box<Self>,
        /// The hosts behind it.
        members: Vec<String>,
    },
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
            Self::ToldByHead { head, failure } => write!(f, "{} (its head `{head}` says so)", failure.message),
            Self::WithHead { head } => write!(f, "its head `{head}` was lost"),
            Self::Head { loss, members } => {
                let (n, hosts) = (members.len(), if members.len() == 1 { "host" } else { "hosts" });
                write!(f, "{loss}, and with it the {n} {hosts} behind it: {}", members.join(", "))
            }
        }
    }
}

impl std::error::Error for Disconnected {}

/// An error that prevents the use of a host, worded for the operator.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a valid key. No part of it is told: it may be another secret, in a file that was given by mistake.
    #[error("this is not a key: {reason}")]
    Key {
        /// The problem.
        reason: &'static str,
    },
    /// The text is not a valid address range.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A trial names a host that was never connected.
    #[error("there is no host `{name}`; there are {known}")]
    UnknownHost {
        /// The requested name.
        name: String,
        /// The known names.
        known: String,
    },
    /// A certificate or key cannot be created or used.
    #[error("cannot {what}")]
    Certificate {
        /// The attempted action.
        what: &'static str,
        /// The error from the library.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel on this side rejected a system call.
    #[error("cannot {what}")]
    System {
        /// The attempted action and its object, such as `start an agent with /usr/bin/fathom`.
        what: String,
        /// The error from the kernel.
        #[source]
        cause: io::Error,
    },
    /// This machine does not have the program that starts agents elsewhere.
    #[error("cannot start `{program}` here")]
    NoLauncher {
        /// The program, such as `ssh`.
        program: String,
        /// The error from the kernel.
        #[source]
        cause: io::Error,
    },
    /// Nothing listens at the address, or there is no reply.
    #[error("cannot reach {address}")]
    Unreachable {
        /// The expected address of a `fathom serve`.
        address: String,
        /// The error from the kernel.
        #[source]
        cause: io::Error,
    },
    /// A server listens at the address, but it does not speak our protocol.
    #[error("{address} is not a fathom server")]
    NotAFathomServer {
        /// The expected address of a `fathom serve`.
        address: String,
        /// The actual response.
        #[source]
        cause: io::Error,
    },
    /// The server's certificate does not match the key.
    #[error("{address} is not the server that the key belongs to")]
    WrongFingerprint {
        /// The address of the server.
        address: String,
    },
    /// The server's certificate matches, but it rejects the token.
    #[error("{address} does not accept the token of the key")]
    WrongToken {
        /// The address of the server.
        address: String,
    },
    /// The server accepts the key, but already has the maximum number of controllers.
    #[error("{address} already serves its maximum number of controllers")]
    Busy {
        /// The address of the server.
        address: String,
    },
    /// The server has too many unauthenticated connections and closed this one in favor of newer ones.
    #[error("{address} turned this connection away: too many knock without its key")]
    TooManyConnections {
        /// The address of the server.
        address: String,
    },
    /// The agent has a different major version.
    #[error("host `{host}` runs {theirs_tool} with protocol {theirs}; this is {ours_tool} with protocol {VERSION}")]
    Version {
        /// The host's name.
        host: String,
        /// The version of its protocol.
        theirs: u8,
        /// Its program.
        theirs_tool: String,
        /// Our program.
        ours_tool: String,
    },
    /// The agent speaks our protocol, but its program is of another version, which may measure in another way.
    #[error("host `{host}` runs {theirs_tool}, and this is {ours_tool}")]
    OtherProgram {
        /// The host's name.
        host: String,
        /// Its program.
        theirs_tool: String,
        /// Our program.
        ours_tool: String,
    },
    /// The command on the host did not start an agent.
    #[error("no agent answers on host `{host}`: {loss}{end}")]
    NoAgent {
        /// The host's name.
        host: String,
        /// The event that came instead of its greeting.
        loss: Disconnected,
        /// How its process ended.
        end: Box<ProcessEnd>,
    },
    /// The words for the command line of a launcher are not safe.
    #[error("cannot reach {reached}: {cause}")]
    Word {
        /// The host.
        reached: String,
        /// The word.
        cause: WordError,
    },
    /// The program could not be copied to a host.
    #[error("cannot copy fathom to {reached}: {reason}")]
    Push {
        /// The host.
        reached: String,
        /// The problem.
        reason: String,
        /// How to fix it.
        hint: String,
    },
    /// An agent died, hung or was disconnected.
    #[error("host `{host}` was lost: {loss}{}", lines(*exit, stderr))]
    Disconnected {
        /// The host's name.
        host: String,
        /// The kind of disconnect.
        loss: Disconnected,
        /// The exit status of its process, if it was a child and has exited.
        exit: Option<ExitStatus>,
        /// The end of its standard error.
        stderr: String,
    },
    /// An agent could not or would not run its role.
    #[error("host `{host}`: {}", failure.message)]
    RoleFailed {
        /// The host's name.
        host: String,
        /// The reason.
        failure: AgentFailure,
    },
    /// The head of a host could not connect to it.
    #[error("host `{host}`, behind its head `{head}`: {}", failure.message)]
    BehindHead {
        /// The host's name.
        host: String,
        /// The head's name.
        head: String,
        /// The reason.
        failure: Box<AgentFailure>,
    },
    /// The trial was interrupted.
    #[error("interrupted")]
    Interrupted,
}

/// The signal that nobody can handle (signal(7)). The kernel sends it where memory runs out.
const SIGKILL: i32 = 9;

/// The exit status and the last output of a child, as a suffix of a message.
fn lines(exit: Option<ExitStatus>, stderr: &str) -> String {
    let exit = exit.map_or(String::new(), |exit| format!("; it ended with {exit}"));
    let stderr = stderr.trim_end();
    if stderr.is_empty() { exit } else { format!("{exit}\n{stderr}") }
}

/// How the process of a launcher ended before an agent greeted.
#[derive(Debug, Default)]
pub struct ProcessEnd {
    /// Its exit status, if it was a child and has exited.
    pub exit: Option<ExitStatus>,
    /// The end of its standard error.
    pub stderr: String,
    /// What it printed in place of a greeting.
    pub printed: String,
}

impl fmt::Display for ProcessEnd {
    /// Writes it as a suffix of a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&lines(self.exit, &self.stderr))?;
        if self.printed.is_empty() { Ok(()) } else { write!(f, "\nit printed: {}", self.printed) }
    }
}

impl Error {
    /// Converts an error about a member for the controller of its head.
    pub(crate) fn to_failure(&self) -> AgentFailure {
        let (message, hint) = (self.without_host(), self.hint().map(str::to_owned));
        AgentFailure { hint, causes: self.causes(), ..AgentFailure::new(self.class(), message) }
    }

    /// Returns the text of an error about a host without the name of that host, which the reader adds.
    fn without_host(&self) -> String {
        match self {
            Self::Disconnected { loss, exit, stderr, .. } => format!("{loss}{}", lines(*exit, stderr)),
            Self::NoAgent { loss, end, .. } => format!("no agent answers: {loss}{end}"),
            Self::RoleFailed { failure, .. } => failure.message.clone(),
            Self::NoLauncher { program, .. } => format!("cannot start `{program}`"),
            Self::OtherProgram { theirs_tool, ours_tool, .. } => {
                format!("it runs {theirs_tool}, and this is {ours_tool}")
            }
            other => other.to_string(),
        }
    }

    /// Returns the effect on the run.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Key { .. } | Self::Network(_) | Self::UnknownHost { .. } | Self::Word { .. } => ErrorClass::Usage,
            Self::Disconnected { .. } | Self::Interrupted => ErrorClass::Incomplete,
            Self::RoleFailed { failure, .. } => failure.class,
            // Nothing was started yet, whatever the head met.
            Self::BehindHead { .. }
            | Self::Certificate { .. }
            | Self::System { .. }
            | Self::NoLauncher { .. }
            | Self::Unreachable { .. }
            | Self::NotAFathomServer { .. }
            | Self::WrongFingerprint { .. }
            | Self::WrongToken { .. }
            | Self::Busy { .. }
            | Self::TooManyConnections { .. }
            | Self::Version { .. }
            | Self::OtherProgram { .. }
            | Self::Push { .. }
            | Self::NoAgent { .. } => ErrorClass::Preflight,
        }
    }

    /// Returns a hint about how to fix the problem, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Key { .. } => Some("copy the whole key that `fathom serve` printed"),
            Self::Unreachable { .. } => Some("start `fathom serve` there, and let its port through the firewall"),
            Self::NotAFathomServer { .. } => Some("name the port that `fathom serve` printed; the default is 7700"),
            Self::WrongFingerprint { .. } | Self::WrongToken { .. } => Some(
                "copy the key that this `fathom serve` printed; without a key file it makes a new one at each start",
            ),
            Self::Busy { .. } => Some("wait until another run has ended"),
            Self::TooManyConnections { .. } => {
                Some("try again, and let the firewall there admit only controllers to this port")
            }
            Self::Disconnected { loss: Disconnected::HeartbeatTimeout, .. } => Some(
                "look for losses on the path: fathom probe HOST, and fathom probe HOST --test mtu for large packets",
            ),
            Self::Disconnected { exit: Some(exit), .. } if exit.signal() == Some(SIGKILL) => {
                Some("if nobody killed it, look for the OOM killer in `dmesg` on the machine that it ran on")
            }
            Self::Version { .. } | Self::OtherProgram { .. } => Some("run the same version of fathom on both hosts"),
            Self::RoleFailed { failure, .. } => failure.hint.as_deref(),
            Self::BehindHead { failure, .. } => failure.hint.as_deref(),
            Self::Push { hint, .. } => Some(hint),
            _ => None,
        }
    }

    /// Whether a role failed because the other side could not be reached, or did not do its part.
    #[must_use]
    pub fn is_between_hosts(&self) -> bool {
        matches!(self, Self::RoleFailed { failure, .. } if failure.is_between_hosts)
    }

    /// Returns the underlying causes, nearest first; an agent's causes are treated like our own.
    #[must_use]
    pub fn causes(&self) -> Vec<String> {
        match self {
            Self::RoleFailed { failure, .. } => failure.causes.clone(),
            Self::BehindHead { failure, .. } => failure.causes.clone(),
            error => causes(error),
        }
    }
}

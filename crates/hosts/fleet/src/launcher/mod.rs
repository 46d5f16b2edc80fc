//! Ways to reach a host: each one provides a byte stream to an agent there, and does not know the messages on it.
//!
//! | a host is | by |
//! |---|---|
//! | this machine | [`self_exec`] |
//! | a network namespace of a lab | [`namespace`] |
//! | behind any command that runs an agent | [`command`], [`exec`] |
//! | behind the system's `ssh` | [`ssh`] |
//! | a node of a Kubernetes cluster | [`kubernetes`] |
//! | a `fathom serve` | [`tls`] |

mod child;
pub mod kubernetes;
mod serve;
pub mod ssh;

use std::os::unix::net::UnixStream;

pub(crate) use child::END_TIMEOUT;
pub use child::{AgentProcess, command, exec, namespace, self_exec};
pub use serve::tls;

/// How a disconnect of the other side is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Liveness {
    /// By silence: there is a network in between, which may drop the end of the stream.
    #[default]
    Heartbeats,
    /// By the end of the stream: both are processes on one machine, and a busy process may be silent.
    EndOfStream,
}

/// What the bytes from an agent begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Opening {
    /// Its first frame.
    #[default]
    Frame,
    /// Possibly text: a login shell or a batch system may print something before it starts the agent.
    TextThenFrame,
}

/// A byte stream to an agent, with information about its far end.
#[derive(Debug)]
pub struct AgentStream {
    /// The stream; the agent exits when it is closed.
    pub stream: UnixStream,
    /// How the host was reached, for reports, such as `namespace a of lab pair`.
    pub reached: String,
    /// The agent's process, if it is a child of this one.
    pub process: Option<AgentProcess>,
    /// How its disconnect is detected.
    pub liveness: Liveness,
    /// What the bytes from the agent begin with.
    pub opening: Opening,
}

//! Ways to reach a host: each delivers a byte stream to an agent there, and knows nothing of what is said on it.
//!
//! | a host is | by |
//! |---|---|
//! | this machine | [`self_exec`] |
//! | a network namespace of a lab | [`namespace`] |
//! | behind any command that runs an agent | [`command`] |
//! | a `fathom serve` | [`tls`] |

mod child;
mod serve;

use std::os::unix::net::UnixStream;

pub(crate) use child::END_TIMEOUT;
pub use child::{AgentProcess, command, namespace, self_exec};
pub use serve::tls;

/// How the end of the other side shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Liveness {
    /// By silence: a network lies between, which may lose the news.
    #[default]
    Heartbeats,
    /// By the end of the stream: both are processes of one machine, and a busy one may be silent.
    EndOfStream,
}

/// A byte stream to an agent, and what is known of its far end.
#[derive(Debug)]
pub struct AgentStream {
    /// The stream; the agent ends when it is closed.
    pub stream: UnixStream,
    /// How the host was reached, for reports: `namespace a of lab pair`.
    pub reached: String,
    /// The agent's process, when it is a child of this one.
    pub process: Option<AgentProcess>,
    /// How its end shows.
    pub liveness: Liveness,
}

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

use std::os::{fd::AsFd as _, unix::net::UnixStream};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::Nanos;
use fathom_sys::{clock, process::signal};

pub(crate) use child::END_TIMEOUT;
pub use child::{AgentProcess, command, exec, namespace, self_exec};
pub use serve::tls;

use crate::{Disconnected, Error, ProcessEnd};

/// The wait for the first bytes of an agent elsewhere: ssh takes a few seconds, and reports a host that does not answer after 10 s.
const LOGIN_TIMEOUT: Nanos = Nanos::from_secs(15);
/// The interval for checking whether the agent is still wanted.
const STOP_CHECK_EVERY: Nanos = Nanos::from_millis(100);

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

impl AgentStream {
    /// Waits until the agent or the way to it has written something or has ended: the login is over then.
    ///
    /// # Errors
    /// [`Error::NoAgent`] if nothing is written within 15 s, [`Error::Interrupted`] if `stop` is set meanwhile, [`Error::System`] for
    /// an error of the kernel.
    pub fn logged_in(mut self, stop: &StopFlag) -> Result<Self, Error> {
        let deadline = clock::now() + LOGIN_TIMEOUT;
        loop {
            let left = deadline.since(clock::now());
            let has_come = signal::poll_readable(&[self.stream.as_fd()], left.min(STOP_CHECK_EVERY));
            let what = || format!("wait for the agent behind {}", self.reached);
            if has_come.map_err(|error| Error::System { what: what(), cause: error.source })? {
                return Ok(self);
            }
            if stop.state() != Stop::Continue {
                self.give_up();
                return Err(Error::Interrupted);
            }
            if left == Nanos::ZERO {
                let (exit, stderr) = self.process.as_mut().map(|process| process.end(Nanos::ZERO)).unwrap_or_default();
                let end = Box::new(ProcessEnd { exit, stderr, printed: String::new() });
                return Err(Error::NoAgent { host: self.reached, loss: Disconnected::StepTimeout("greet"), end });
            }
        }
    }

    /// Ends the process without the time that an agent gets to end its tests.
    pub(crate) fn give_up(mut self) {
        if let Some(process) = &mut self.process {
            process.end(Nanos::ZERO);
        }
    }
}

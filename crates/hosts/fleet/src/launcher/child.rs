//! An agent in a child process, with a socket pair for its standard streams.

use std::{
    collections::VecDeque,
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver},
    },
};

use fathom_model::units::Nanos;
use fathom_sys::{
    netlink::namespace::Namespaces,
    process::{ParentBond, Pidfd, ProcessPlace, ProcessSpec},
};

use super::{AgentStream, Liveness};
use crate::{Error, threads};

/// How much of what an agent wrote to its standard error is kept: a panic with its place, or a page of a shell's complaints.
const STDERR_KEPT: usize = 4 << 10;
/// How long the last of the standard error may take after the end; longer only when a grandchild holds it open.
const STDERR_TIMEOUT: Nanos = Nanos::from_millis(500);
/// How long an agent may take to end by itself when its stream is closed: longer than it gives its tests.
pub(crate) const END_TIMEOUT: Nanos = Nanos::from_secs(3);

/// An agent that is a child of this process; ended when dropped.
#[derive(Debug)]
pub struct AgentProcess {
    child: Child,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    stderr_closed: Receiver<()>,
    ended: Option<String>,
}

/// Starts `program agent --stdio --local` on this machine.
///
/// # Errors
/// When the program cannot be started.
pub fn self_exec(program: &Path) -> Result<AgentStream, Error> {
    let link = command(agent_command(program), None, "this machine".to_owned())?;
    Ok(AgentStream { liveness: Liveness::EndOfStream, ..link })
}

/// Starts `program agent --stdio --local` inside namespaces; `place` says which, for reports.
///
/// # Errors
/// When the program cannot be started or the namespaces may not be entered.
pub fn namespace(program: &Path, namespaces: &Namespaces, place: impl Into<String>) -> Result<AgentStream, Error> {
    let link = command(agent_command(program), Some(namespaces), place.into())?;
    Ok(AgentStream { liveness: Liveness::EndOfStream, ..link })
}

/// Starts any command that speaks as an agent on its standard streams: `ssh host fathom agent --stdio`.
///
/// The child dies with this process, and is out of reach of a Ctrl-C on the terminal: the controller decides how a run ends.
///
/// # Errors
/// When it cannot be started.
pub fn command(mut command: Command, namespaces: Option<&Namespaces>, reached: String) -> Result<AgentStream, Error> {
    let what = format!("start an agent with {}", command.get_program().display());
    let system = |cause| Error::System { what: what.clone(), cause };
    let (near, far) = UnixStream::pair().map_err(system)?;
    let far_output = far.try_clone().map_err(system)?;
    command.stdin(OwnedFd::from(far)).stdout(OwnedFd::from(far_output)).stderr(Stdio::piped()).process_group(0);
    let place = namespaces.map_or(ProcessPlace::Here, ProcessPlace::In);
    let start = ProcessSpec { command, place, bond: ParentBond::DiesWithParent };
    let mut child = start.spawn().map_err(|error| system(error.source))?;
    let stderr = child.stderr.take();
    let process = AgentProcess::new(child, stderr).map_err(system)?;
    Ok(AgentStream { stream: near, reached, process: Some(process), liveness: Liveness::Heartbeats })
}

fn agent_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["agent", "--stdio", "--local"]);
    command
}

impl AgentProcess {
    fn new(mut child: Child, stderr: Option<ChildStderr>) -> io::Result<Self> {
        let kept = Arc::new(Mutex::new(VecDeque::with_capacity(STDERR_KEPT)));
        let (closing, stderr_closed) = mpsc::channel();
        let keep = Arc::clone(&kept);
        let reading = threads::start(move || {
            let Some(mut stderr) = stderr else { return };
            let mut chunk = [0; 1024];
            while let Ok(n @ 1..) = read_available(&mut stderr, &mut chunk) {
                let mut kept = keep.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(&chunk[..n]);
                let excess = kept.len().saturating_sub(STDERR_KEPT);
                kept.drain(..excess);
            }
            drop(closing);
        });
        if let Err(cause) = reading {
            // It is not reaped yet, so its number is still its own.
            let _ = child.kill();
            let _ = child.wait();
            return Err(cause);
        }
        Ok(Self { child, stderr: kept, stderr_closed, ended: None })
    }

    /// The number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, or ends it after `patience`; how it ended and the last 4 KiB of its standard error.
    ///
    /// Its stream should be closed before, so that it ends by itself.
    pub fn end(&mut self, patience: Nanos) -> (String, String) {
        if self.ended.is_none() {
            self.ended = Some(self.wait_or_kill(patience));
        }
        // Either the end of the stream or the end of the patience: what is there is taken.
        let _ = self.stderr_closed.recv_timeout(STDERR_TIMEOUT.as_duration());
        let kept = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let stderr = String::from_utf8_lossy(&kept.iter().copied().collect::<Vec<_>>()).into_owned();
        (self.ended.clone().unwrap_or_default(), stderr)
    }

    fn wait_or_kill(&mut self, patience: Nanos) -> String {
        let has_ended = Pidfd::open(self.child.id()).and_then(|process| process.wait(patience));
        if !matches!(has_ended, Ok(true)) {
            // The child is not reaped yet, so its number is still its own.
            let _ = self.child.kill();
        }
        self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.ended = Some(self.wait_or_kill(END_TIMEOUT));
        }
    }
}

fn read_available(stderr: &mut ChildStderr, chunk: &mut [u8]) -> io::Result<usize> {
    loop {
        match stderr.read(chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

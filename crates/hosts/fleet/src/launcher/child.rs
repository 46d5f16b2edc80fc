//! An agent in a child process, with a socket pair as its standard streams.

use std::{
    collections::VecDeque,
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver},
    },
};

use fathom_model::units::Nanos;
use fathom_sys::{
    netlink::namespace::Namespaces,
    process::{ParentBond, Pidfd, ProcessPlace, ProcessSpec, kill_group, signal::Signal},
};

use super::{AgentStream, Liveness, Opening};
use crate::{Error, threads};

/// The amount of an agent's standard error that is kept: a panic with its location, or a page of shell errors.
const STDERR_KEPT: usize = 4 << 10;
/// The wait for the end of standard error after the exit; it takes longer only if a grandchild holds it open.
const STDERR_TIMEOUT: Nanos = Nanos::from_millis(500);
/// The time that an agent gets to exit after its stream is closed: longer than the time that it gives its tests.
pub(crate) const END_TIMEOUT: Nanos = Nanos::from_secs(3);

/// The time to exit after SIGTERM: a launcher tells the other end, and a process that is stopped does nothing.
const TERMINATE_TIMEOUT: Nanos = Nanos::from_millis(500);

/// An agent that is a child of this process; dropping it ends the process.
#[derive(Debug)]
pub struct AgentProcess {
    child: Child,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    stderr_closed: Receiver<()>,
    is_over: bool,
    /// Absent if it did not exit on its own.
    exit: Option<ExitStatus>,
}

/// Starts `program agent --stdio --local` on this machine.
///
/// # Errors
/// If the program cannot be started.
pub fn self_exec(program: &Path) -> Result<AgentStream, Error> {
    let link = command(agent_command(program), None, "this machine".to_owned())?;
    Ok(AgentStream { liveness: Liveness::EndOfStream, ..link })
}

/// Starts `program agent --stdio --local` inside namespaces; `place` names them for reports.
///
/// # Errors
/// If the program cannot be started or the namespaces may not be entered.
pub fn namespace(program: &Path, namespaces: &Namespaces, place: impl Into<String>) -> Result<AgentStream, Error> {
    let link = command(agent_command(program), Some(namespaces), place.into())?;
    Ok(AgentStream { liveness: Liveness::EndOfStream, ..link })
}

/// Starts any command that acts as an agent on its standard streams, such as `ssh host fathom agent --stdio`.
///
/// The child dies with this process, and a Ctrl-C on the terminal does not reach it: the controller decides how a run ends.
///
/// # Errors
/// [`Error::NoLauncher`] if there is no such program, [`Error::System`] if it cannot be started.
pub fn command(mut command: Command, namespaces: Option<&Namespaces>, reached: String) -> Result<AgentStream, Error> {
    let program = command.get_program().display().to_string();
    let what = format!("start an agent with {program}");
    let system = |cause| Error::System { what: what.clone(), cause };
    let (near, far) = UnixStream::pair().map_err(system)?;
    let far_output = far.try_clone().map_err(system)?;
    command.stdin(OwnedFd::from(far)).stdout(OwnedFd::from(far_output)).stderr(Stdio::piped()).process_group(0);
    let place = namespaces.map_or(ProcessPlace::Here, ProcessPlace::In);
    let start = ProcessSpec { command, place, bond: ParentBond::DiesWithParent };
    let mut child = start.spawn().map_err(|error| match error.source {
        cause if cause.kind() == io::ErrorKind::NotFound => Error::NoLauncher { program, cause },
        cause => system(cause),
    })?;
    let stderr = child.stderr.take();
    let process = AgentProcess::new(child, stderr).map_err(system)?;
    let (liveness, opening) = (Liveness::Heartbeats, Opening::Frame);
    Ok(AgentStream { stream: near, reached, process: Some(process), liveness, opening })
}

/// Starts a command such as `srun -N1 -w node1 fathom agent --stdio`, which may print text before it starts the agent.
///
/// # Errors
/// If it is empty or cannot be started.
pub fn exec(words: &[String]) -> Result<AgentStream, Error> {
    let Some((program, arguments)) = words.split_first() else {
        let cause = io::Error::new(io::ErrorKind::InvalidInput, "the command has no words");
        return Err(Error::System { what: "start an agent".to_owned(), cause });
    };
    let mut start = Command::new(program);
    start.args(arguments);
    let link = command(start, None, words.join(" "))?;
    Ok(AgentStream { opening: Opening::TextThenFrame, ..link })
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
        let reading = threads::start("stderr", move || {
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
            // It is not reaped yet, so the pid is still its own.
            let _ = child.kill();
            let _ = child.wait();
            return Err(cause);
        }
        Ok(Self { child, stderr: kept, stderr_closed, is_over: false, exit: None })
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for it to exit, or ends it after `patience`; returns its exit status, if it exited on its own, and the last 4 KiB of its
    /// standard error.
    ///
    /// The stream should be closed first, so that the agent exits on its own.
    pub fn end(&mut self, patience: Nanos) -> (Option<ExitStatus>, String) {
        self.wait_or_kill(patience);
        // Takes the available output at the end of the stream or at the timeout.
        let _ = self.stderr_closed.recv_timeout(STDERR_TIMEOUT.as_duration());
        let kept = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let stderr = String::from_utf8_lossy(&kept.iter().copied().collect::<Vec<_>>()).into_owned();
        (self.exit, stderr)
    }

    fn wait_or_kill(&mut self, patience: Nanos) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        let has_ended = Pidfd::open(self.child.id()).and_then(|process| {
            let has_ended = process.wait(patience)?;
            if !has_ended {
                // A launcher that is asked takes what it started with it: `srun` cancels its job.
                process.send(Signal::Terminate).and_then(|()| process.wait(TERMINATE_TIMEOUT))?;
            }
            Ok(has_ended)
        });
        // Others leave it behind, such as `ssh` its ProxyCommand. The child is not reaped yet, so the number is still its own.
        let has_ended = matches!(has_ended, Ok(true));
        if !has_ended && kill_group(&self.child).is_err() {
            let _ = self.child.kill();
        }
        self.exit = self.child.wait().ok().filter(|_| has_ended);
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.wait_or_kill(END_TIMEOUT);
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use super::*;

    #[test]
    fn what_a_launcher_started_ends_with_it() {
        for first in ["", "trap '' TERM; "] {
            let script = format!("{first}sleep 600 & echo $!; wait; wait");
            let link = exec(&["sh".to_owned(), "-c".to_owned(), script]).unwrap();
            let mut line = String::new();
            BufReader::new(&link.stream).read_line(&mut line).unwrap();
            let started = Pidfd::open(line.trim().parse().unwrap()).unwrap();
            assert!(!started.wait(Nanos::ZERO).unwrap(), "it runs");
            let (exit, _) = link.process.unwrap().end(Nanos::ZERO);
            assert_eq!(exit, None, "it did not exit on its own");
            assert!(started.wait(Nanos::from_secs(10)).unwrap(), "{first}");
        }
    }
}

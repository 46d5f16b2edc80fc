//! How a running balancer is asked and changed: a line of JSON each way over an abstract UNIX socket of its network namespace.
//!
//! Everybody in the namespace may ask; only the balancer's own user and root may change it.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    num::NonZeroU16,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::Duration,
};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::{Pidfd, effective_user},
    socket::{PeerProcess, peer_process},
};
use serde::{Deserialize, Serialize};

use super::{DeviceError, settings::DeviceTarget};

/// What the names of all control sockets begin with.
const PREFIX: &str = "fathom-balancer-";
/// The longest request: as many flow rules as there may be, each with a few networks.
const REQUEST_MAX: u64 = 4 << 20;
/// The longest answer: all counters of thousands of rules.
const ANSWER_MAX: u64 = 64 << 20;
/// One who has not asked, or not taken the answer, within this time is let go: the control has one thread.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// The device answers as soon as it has made the routes of a target.
const ANSWER_PATIENCE: Nanos = Nanos::from_secs(10);

/// What is asked of a running balancer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlRequest {
    /// Tells all counters.
    Counters,
    /// Tells the targets by group.
    Targets,
    /// Adds a target to a group.
    AddTarget {
        /// The group.
        group: String,
        /// The target.
        target: DeviceTarget,
    },
    /// Removes a target from a group.
    RemoveTarget {
        /// The group.
        group: String,
        /// Its name.
        name: String,
    },
    /// Changes the weight of a target of a group.
    SetWeight {
        /// The group.
        group: String,
        /// Its name.
        name: String,
        /// Its share of the flows, in proportion to the weights of the others, from 1 to 1000.
        weight: u32,
    },
    /// Divides packets among the first so many of its queues.
    UseQueues(NonZeroU16),
    /// Tells the flow rules.
    Flows,
    /// Adds a flow rule, as text, or replaces the one of its name.
    SetFlow(String),
    /// Replaces all flow rules at once by these, as text.
    SetFlows(Vec<String>),
    /// Removes a flow rule by its name.
    RemoveFlow(String),
}

impl ControlRequest {
    /// Whether it changes the balancer.
    pub(super) const fn is_change(&self) -> bool {
        !matches!(self, Self::Counters | Self::Targets | Self::Flows)
    }

    /// Whether it gives a balancer targets, or rules by which it chooses among them.
    pub(super) const fn is_of_targets(&self) -> bool {
        matches!(self, Self::AddTarget { .. } | Self::SetFlow(_) | Self::SetFlows(_))
    }
}

/// The answer of a balancer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlAnswer {
    /// The change is made, or this is what was asked for.
    Done(serde_json::Value),
    /// Nothing was changed.
    Refused {
        /// Why.
        what: String,
        /// The way out.
        fix: Option<String>,
    },
}

/// A stream that is read and written until a time, however many calls that takes.
struct UntilEnd<'a> {
    stream: &'a UnixStream,
    end: Nanos,
}

impl<'a> UntilEnd<'a> {
    fn new(stream: &'a UnixStream, patience: Nanos) -> Self {
        Self { stream, end: clock::now() + patience }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.since(clock::now());
        if left == Nanos::ZERO { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left.as_duration())) }
    }
}

/// The kernel says `EAGAIN` when the time of a socket is over.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl io::Read for UntilEnd<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(room).map_err(timed_out)
    }
}

impl io::Write for UntilEnd<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{name}"))
}

/// Takes the name of a balancer in the network namespace of the calling thread.
pub(super) fn listen(name: &str) -> Result<UnixListener, DeviceError> {
    let bound = address(name).and_then(|address| UnixListener::bind_addr(&address));
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let stream = address(name).and_then(|address| UnixStream::connect_addr(&address));
            let by = stream.ok().and_then(|stream| peer_process(&stream).ok());
            DeviceError::Running { name: name.to_owned(), by }
        }
        _ => DeviceError::Control { attempt: "open the control socket", source: error },
    })
}

/// Returns the names of the other balancers that run in this network namespace.
pub(super) fn others_running(name: &str) -> Vec<String> {
    let sockets = fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let names =
        sockets.lines().filter_map(|line| line.split_once(&format!("@{PREFIX}")).map(|(_, name)| name.to_owned()));
    let mut names: Vec<String> = names.filter(|other| other != name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Asks the balancer of this name in the network namespace of the calling thread.
///
/// # Errors
/// If none runs, if another user has its name, or if it refuses.
///
/// # Panics
/// Never: a request is plain data.
pub fn ask(name: &str, request: &ControlRequest) -> Result<serde_json::Value, DeviceError> {
    let (stream, _) = reach(name)?;
    exchange(&stream, request, ANSWER_PATIENCE)
}

/// Kills the balancer of this name in the network namespace of the calling thread, as `kill -9` does, and waits for its end.
///
/// # Errors
/// If none runs, if it belongs to another user, or if it does not end.
pub fn kill(name: &str) -> Result<PeerProcess, DeviceError> {
    let (_stream, process) = reach(name)?;
    let failed = |source: fathom_sys::Error| {
        if source.is_permission() {
            return DeviceError::OtherUser;
        }
        DeviceError::Kernel { attempt: "kill the balancer", source }
    };
    let handle = Pidfd::open(process.pid).map_err(failed)?;
    handle.kill().map_err(failed)?;
    if handle.wait(ANSWER_PATIENCE).map_err(failed)? {
        Ok(process)
    } else {
        Err(DeviceError::NoAnswer { after: ANSWER_PATIENCE, is_change: true })
    }
}

/// Connects to the balancer of this name, and tells its process.
fn reach(name: &str) -> Result<(UnixStream, PeerProcess), DeviceError> {
    let failed = |attempt: &'static str| move |source| DeviceError::Control { attempt, source };
    let stream =
        address(name).and_then(|address| UnixStream::connect_addr(&address)).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                DeviceError::NotRunning { name: name.to_owned(), others: others_running(name) }
            }
            _ => failed("reach the control socket")(error),
        })?;
    // Anybody may take a name in this namespace.
    let by = peer_process(&stream).map_err(|error| DeviceError::kernel("look who answers", error))?;
    if !is_trusted(by) {
        return Err(DeviceError::NameTaken { name: name.to_owned(), by });
    }
    Ok((stream, by))
}

/// Whether a process at the other end may change this one, or answer it.
fn is_trusted(peer: PeerProcess) -> bool {
    peer.user == 0 || peer.user == effective_user()
}

/// Sends a request and reads the answer.
fn exchange(stream: &UnixStream, request: &ControlRequest, patience: Nanos) -> Result<serde_json::Value, DeviceError> {
    let failed = |attempt: &'static str| {
        move |error: io::Error| match error.kind() {
            io::ErrorKind::TimedOut => DeviceError::NoAnswer { after: patience, is_change: request.is_change() },
            _ => DeviceError::Control { attempt, source: error },
        }
    };
    let mut stream = UntilEnd::new(stream, patience);
    let line = serde_json::to_string(request).expect("a request is plain data");
    stream.write_all(format!("{line}\n").as_bytes()).map_err(failed("ask the balancer"))?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer).map_err(failed("read the balancer's answer"))?;
    let unreadable = |error: serde_json::Error| failed("read the balancer's answer")(error.into());
    match serde_json::from_str(&answer).map_err(unreadable)? {
        ControlAnswer::Done(value) => Ok(value),
        ControlAnswer::Refused { what, fix } => Err(DeviceError::Refused { what, fix }),
    }
}

/// Answers one connection.
pub(super) fn serve(
    stream: &UnixStream,
    answer: impl FnOnce(ControlRequest) -> Result<serde_json::Value, DeviceError>,
) {
    let exchange = || -> io::Result<()> {
        let mut line = String::new();
        BufReader::new(UntilEnd::new(stream, PATIENCE).take(REQUEST_MAX)).read_line(&mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let outcome = serde_json::from_str::<ControlRequest>(&line)
            .map_err(|error| DeviceError::Refused { what: format!("the request cannot be read: {error}"), fix: None })
            .and_then(|request| may(stream, &request).and_then(|()| answer(request)));
        let answer = match outcome {
            Ok(value) => ControlAnswer::Done(value),
            Err(error) => ControlAnswer::Refused { what: error.full_text(), fix: error.hint() },
        };
        let text = serde_json::to_string(&answer).expect("an answer is plain data");
        UntilEnd::new(stream, PATIENCE).write_all(text.as_bytes())
    };
    // Whoever asked may be gone.
    let _ = exchange();
}

/// Refuses changes by other users.
fn may(stream: &UnixStream, request: &ControlRequest) -> Result<(), DeviceError> {
    if !request.is_change() {
        return Ok(());
    }
    let peer = peer_process(stream).map_err(|error| DeviceError::kernel("look who asks", error))?;
    if is_trusted(peer) { Ok(()) } else { Err(DeviceError::OtherUser) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Writes a byte and again one, until the other end is gone.
    fn drip(mut stream: &UnixStream) -> usize {
        let mut n_written = 0;
        while stream.write_all(b" ").is_ok() {
            n_written += 1;
            thread::park_timeout(Duration::from_millis(20));
        }
        n_written
    }

    #[test]
    fn root_and_the_own_user_are_believed_and_others_are_named() {
        let by = |user| PeerProcess { pid: 7, user };
        assert!(is_trusted(by(0)) && is_trusted(by(effective_user())));
        let other = by(effective_user() + 1000);
        assert!(!is_trusted(other));
        let error = DeviceError::NameTaken { name: "balancer".to_owned(), by: other };
        assert_eq!(error.to_string(), format!("process 7 of user {} has the name `balancer`", other.user));
    }

    #[test]
    fn one_who_asks_by_drops_is_let_go_when_the_time_is_over() {
        let (near, far) = UnixStream::pair().unwrap();
        let dripping = thread::spawn(move || drip(&far));
        let mut text = String::new();
        let read = UntilEnd::new(&near, Nanos::from_millis(200)).read_to_string(&mut text);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(near);
        assert!(dripping.join().unwrap() > 1);
    }

    #[test]
    fn one_who_does_not_take_the_answer_is_let_go_too() {
        let (near, _far) = UnixStream::pair().unwrap();
        let written = UntilEnd::new(&near, Nanos::from_millis(200)).write_all(&vec![0; 16 << 20]);
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn an_answer_by_drops_is_none_and_a_change_may_still_be_made() {
        let remove = ControlRequest::RemoveFlow("web".to_owned());
        for (request, expected) in [
            (ControlRequest::Counters, "no answer within 200 ms"),
            (remove, "no answer within 200 ms; the change may still be made"),
        ] {
            let (near, far) = UnixStream::pair().unwrap();
            let dripping = thread::spawn(move || drip(&far));
            let error = exchange(&near, &request, Nanos::from_millis(200)).unwrap_err();
            assert_eq!(error.to_string(), expected);
            drop(near);
            assert!(dripping.join().unwrap() > 1);
        }
    }
}

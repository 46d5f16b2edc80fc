//! How a running balancer is asked and changed: a line of JSON each way over an abstract UNIX socket of its network namespace.
//!
//! Everybody in the namespace may ask; only the balancer's own user and root may change it.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::Duration,
};

use fathom_sys::socket::peer_process;
use serde::{Deserialize, Serialize};

use super::{DeviceError, settings::DeviceTarget};

/// What the names of all control sockets begin with.
const PREFIX: &str = "fathom-balancer-";
/// The longest request: as many flow rules as there may be, each with a few networks.
const REQUEST_MAX: u64 = 4 << 20;
/// The longest answer: all counters of thousands of rules.
const ANSWER_MAX: u64 = 64 << 20;
/// One who asks and does not go on within this time is let go: the control has one thread.
const PATIENCE: Duration = Duration::from_secs(2);
/// The device answers as soon as it has made the routes of a target.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

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

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{name}"))
}

/// Takes the name of a balancer in the network namespace of the calling thread.
pub(super) fn listen(name: &str) -> Result<UnixListener, DeviceError> {
    let bound = address(name).and_then(|address| UnixListener::bind_addr(&address));
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let pid = address(name).and_then(|address| UnixStream::connect_addr(&address));
            let pid = pid.ok().and_then(|stream| peer_process(&stream).ok()).map(|peer| peer.pid);
            DeviceError::Running { name: name.to_owned(), pid }
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
/// If none runs, or if it refuses.
///
/// # Panics
/// Never: a request is plain data.
pub fn ask(name: &str, request: &ControlRequest) -> Result<serde_json::Value, DeviceError> {
    let failed = |attempt: &'static str| move |source| DeviceError::Control { attempt, source };
    let stream =
        address(name).and_then(|address| UnixStream::connect_addr(&address)).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                DeviceError::NotRunning { name: name.to_owned(), others: others_running(name) }
            }
            _ => failed("reach the control socket")(error),
        })?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE)).map_err(failed("ask the balancer"))?;
    let line = serde_json::to_string(request).expect("a request is plain data");
    (&stream).write_all(format!("{line}\n").as_bytes()).map_err(failed("ask the balancer"))?;
    let mut answer = String::new();
    (&stream).take(ANSWER_MAX).read_to_string(&mut answer).map_err(failed("read the balancer's answer"))?;
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
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        BufReader::new(stream.take(REQUEST_MAX)).read_line(&mut line)?;
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
        let mut stream = stream;
        stream.write_all(text.as_bytes())
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
    if peer.user == 0 || peer.user == fathom_sys::process::effective_user() {
        Ok(())
    } else {
        Err(DeviceError::OtherUser)
    }
}

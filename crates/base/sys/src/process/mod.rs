//! Processes by pidfd: starting them in a namespace, ending them by identity.
//!
//! A process is never named by its number alone, because the kernel uses numbers again: it is a pid and a start time.

pub mod affinity;
pub mod interrupt;
pub mod limits;
pub mod lua;
pub mod signal;
pub mod streams;
pub mod threads;

use crate::{
    Error, Result, clock,
    netlink::namespace::{self, Namespaces, NetNs, RootMap},
    process::signal::{Signal, poll_readable},
};
use fathom_model::units::Nanos;
use rustix::{
    io::{Errno, FdFlags, fcntl_setfd},
    process::{
        Pid, PidfdFlags, Signal as Number, getpid, getppid, pidfd_open, pidfd_send_signal,
        set_parent_process_death_signal,
    },
    thread::{CapabilitySet, capabilities, sched_getaffinity, sched_setaffinity},
};
use std::{
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command},
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

/// How long a killed process may take to be gone; only one stuck in the kernel takes longer.
const KILL_PATIENCE: Nanos = Nanos::from_secs(5);

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// The number, as seen from the pid namespace of this process.
    pub pid: u32,
    /// The start in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}

/// How a process was brought to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCause {
    /// It was gone before anything was sent.
    Already,
    /// It followed SIGTERM.
    Terminated,
    /// It had to be killed.
    Killed,
}

impl ProcessIdentity {
    /// Looks up who has the number now.
    ///
    /// # Errors
    /// `ENOENT` when no process has it.
    pub fn of(pid: u32) -> Result<Self> {
        let (_, start_ticks) = state_and_start(pid)?;
        Ok(Self { pid, start_ticks })
    }

    /// The calling process.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn current() -> Result<Self> {
        Self::of(std::process::id())
    }

    /// Whether it still runs: a zombie does not, nor a successor with its number.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        state_and_start(self.pid).is_ok_and(|(state, start)| start == self.start_ticks && !matches!(state, 'Z' | 'X'))
    }

    /// Ends it: SIGTERM, then SIGKILL when it outlives `patience`.
    ///
    /// It need not be a child. A successor with the same number is left alone.
    ///
    /// # Errors
    /// `EPERM` when it belongs to someone else, `ETIMEDOUT` when not even SIGKILL ended it.
    pub fn end(&self, patience: Nanos) -> Result<ExitCause> {
        let pidfd = match Pidfd::open(self.pid) {
            Ok(pidfd) => pidfd,
            Err(error) if error.errno() == Some(libc::ESRCH) => return Ok(ExitCause::Already),
            Err(error) => return Err(error),
        };
        // Checked after the pidfd is open: from here on it refers to this process or to one that is gone.
        if !self.is_alive() {
            return Ok(ExitCause::Already);
        }
        pidfd.send(Signal::Terminate)?;
        if pidfd.wait(patience)? {
            return Ok(ExitCause::Terminated);
        }
        pidfd.kill()?;
        if pidfd.wait(KILL_PATIENCE)? {
            Ok(ExitCause::Killed)
        } else {
            Err(Error::new(self.call("kill"), Errno::TIMEDOUT))
        }
    }

    fn call(&self, name: &str) -> String {
        format!("{name}(process {})", self.pid)
    }
}

/// The state letter and the start time of a process: `proc_pid_stat(5)`, fields 3 and 22.
fn state_and_start(pid: u32) -> Result<(char, u64)> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(|error| Error::new(format!("read({path})"), error))?;
    parse_stat(&text).ok_or_else(|| Error::new(format!("parse({path})"), io::Error::from(io::ErrorKind::InvalidData)))
}

fn parse_stat(text: &str) -> Option<(char, u64)> {
    // The name (field 2) is in parentheses and may itself hold parentheses and spaces, so fields are counted behind the last.
    let (_, behind_name) = text.rsplit_once(')')?;
    let mut fields = behind_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

/// A process held by a descriptor, so that signals cannot reach a successor.
#[derive(Debug)]
pub struct Pidfd {
    fd: OwnedFd,
    pid: u32,
}

impl Pidfd {
    /// Takes hold of the process that has the number now: `pidfd_open(2)`.
    ///
    /// # Errors
    /// `ESRCH` when there is none.
    pub fn open(pid: u32) -> Result<Self> {
        let call = || format!("pidfd_open({pid})");
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| Error::new(call(), Errno::SRCH))?;
        let fd = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| Error::new(call(), errno))?;
        Ok(Self { fd, pid })
    }

    /// Sends a signal; a process that is gone already is no error.
    ///
    /// # Errors
    /// `EPERM` when the process belongs to someone else.
    pub fn send(&self, signal: Signal) -> Result<()> {
        self.send_number(match signal {
            Signal::Interrupt => Number::INT,
            Signal::Terminate => Number::TERM,
            Signal::Hangup => Number::HUP,
        })
    }

    /// Sends SIGKILL; a process that is gone already is no error.
    ///
    /// # Errors
    /// `EPERM` when the process belongs to someone else.
    pub fn kill(&self) -> Result<()> {
        self.send_number(Number::KILL)
    }

    /// Waits for the end, for at most `patience`; true when it has ended.
    ///
    /// The process is not reaped: that is for its parent.
    ///
    /// # Errors
    /// Whatever `poll` answers.
    pub fn wait(&self, patience: Nanos) -> Result<bool> {
        let deadline = clock::now() + patience;
        loop {
            let left = deadline.since(clock::now());
            if poll_readable(&[self.fd.as_fd()], left)? {
                return Ok(true);
            }
            if left == Nanos::ZERO {
                return Ok(false);
            }
        }
    }

    fn send_number(&self, number: Number) -> Result<()> {
        match pidfd_send_signal(&self.fd, number) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(Error::new(format!("pidfd_send_signal({}, {number:?})", self.pid), errno)),
        }
    }
}

/// Readable once the process has ended.
impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What becomes of a child when this process ends without saying so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentBond {
    /// The kernel kills it (`PR_SET_PDEATHSIG`), even after a SIGKILL of this process.
    DiesWithParent,
    /// It goes on, in a session of its own.
    Detached,
}

/// Where a child runs.
#[derive(Debug, Clone, Copy)]
pub enum ProcessPlace<'a> {
    /// In the network namespace of the calling thread.
    Here,
    /// In existing namespaces.
    In(&'a Namespaces),
    /// As root of a new user namespace, which is no more than its user outside, with a network namespace below it.
    NewUserNamespace,
}

/// A [`ProcessPlace`] with everything that the child needs to get there without allocating.
enum PreparedPlace {
    Here(NetNs),
    In(Namespaces),
    NewUserNamespace(RootMap),
}

impl ProcessPlace<'_> {
    fn prepare(self) -> Result<PreparedPlace> {
        Ok(match self {
            Self::Here => PreparedPlace::Here(NetNs::current()?),
            Self::In(namespaces) => PreparedPlace::In(namespaces.try_clone()?),
            Self::NewUserNamespace => PreparedPlace::NewUserNamespace(RootMap::of_this_user()),
        })
    }
}

impl PreparedPlace {
    fn enter(&self) -> io::Result<()> {
        match self {
            Self::Here(net) => namespace::join_net(net),
            Self::In(namespaces) => namespace::join(namespaces),
            Self::NewUserNamespace(map) => namespace::become_root(map),
        }
    }
}

/// A child to be started, perhaps in other namespaces.
#[derive(Debug)]
pub struct ProcessSpec<'a> {
    /// The program, its arguments and its standard streams.
    pub command: Command,
    /// Where it runs.
    pub place: ProcessPlace<'a>,
    /// Whether it outlives this process.
    pub bond: ParentBond,
}

impl ProcessSpec<'_> {
    /// Starts the child.
    ///
    /// The parent of `PR_SET_PDEATHSIG` is a *thread*: a child started by a worker would be killed when that worker ends. So all such
    /// children are started by one thread, which lives as long as the process. Namespace and cores are those of the caller all the same.
    ///
    /// # Errors
    /// When the program does not exist, or the namespaces may not be entered or made (`EPERM`, `ENOSPC`).
    pub fn spawn(self) -> Result<Child> {
        let Self { mut command, place, bond } = self;
        let call = format!("start({})", command.get_program().display());
        let destination = place.prepare()?;
        let cores = sched_getaffinity(None).map_err(|errno| Error::new("sched_getaffinity", errno))?;
        let parent = getpid();
        let before_exec = move || {
            sched_setaffinity(None, &cores)?;
            // A change of user may clear the death signal, so it is set behind.
            destination.enter()?;
            match bond {
                ParentBond::DiesWithParent => die_with(parent)?,
                ParentBond::Detached => drop(rustix::process::setsid()?),
            }
            Ok(())
        };
        // SAFETY: between fork and exec it only makes system calls (sched_setaffinity, open, fstat, setns, unshare,
        // write, prctl, getppid, setsid); it allocates nothing, takes no
        // lock, and its error values are plain numbers.
        unsafe { command.pre_exec(before_exec) };
        let child = match bond {
            ParentBond::DiesWithParent => spawn_on_lasting_thread(command),
            ParentBond::Detached => command.spawn(),
        };
        child.map_err(|error| Error::new(call, error))
    }
}

/// Ties the calling process to its parent, unless that is gone already.
fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Number::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

type Order = (Command, mpsc::SyncSender<io::Result<Child>>);

fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    static ORDERS: Mutex<Option<mpsc::Sender<Order>>> = Mutex::new(None);
    let (answer, answered) = mpsc::sync_channel(1);
    {
        let mut started = ORDERS.lock().unwrap_or_else(PoisonError::into_inner);
        let orders = match started.take() {
            Some(orders) => orders,
            None => starting_thread()?,
        };
        started.insert(orders).send((command, answer)).expect("the starting thread lives as long as the process");
    }
    answered.recv().expect("the starting thread answers every order")
}

/// The thread from which children start; it ends with the process, because what it listens to is a static.
fn starting_thread() -> io::Result<mpsc::Sender<Order>> {
    let (sender, orders) = mpsc::channel::<Order>();
    thread::Builder::new().spawn(move || {
        // Whoever came first may have been in a namespace for a moment only, which this thread must not keep alive.
        if let Ok(main) = NetNs::open("/proc/self/ns/net") {
            let _ = namespace::join_net(&main);
        }
        for (mut command, answer) in orders {
            // Whoever asked waits for the answer.
            let _ = answer.send(command.spawn());
        }
    })?;
    Ok(sender)
}

/// An empty file without a name, which processes that are started from now on find as `/dev/fd/N`.
///
/// # Errors
/// `memfd_create`: no memory, or too many descriptors.
pub fn shared_file() -> Result<fs::File> {
    let file = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::empty());
    file.map(fs::File::from).map_err(|errno| Error::new("memfd_create", errno))
}

/// Leaves a descriptor open in processes that are started from now on; they find it as `/dev/fd/N`.
///
/// # Errors
/// What the kernel says against it, which it does for a descriptor that is not open only.
pub fn hand_down(file: impl AsFd) -> Result<()> {
    fcntl_setfd(file, FdFlags::empty()).map_err(|cause| Error::new("fcntl(F_SETFD)", cause))
}

/// Whether this process may make network namespaces and links (`CAP_SYS_ADMIN`, `CAP_NET_ADMIN`).
#[must_use]
pub fn may_administer_network() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// The effective user number of this process.
#[must_use]
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::fd::AsRawFd, process::Stdio};

    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null());
        command
    }

    #[test]
    fn the_start_time_is_found_behind_a_hostile_process_name() {
        let numbers: Vec<String> = (4..=30).map(|field| field.to_string()).collect();
        let line = format!("7 (a) Z 1 (b)) S {}\n", numbers.join(" "));
        assert_eq!(parse_stat(&line), Some(('S', 22)));
        assert_eq!(parse_stat("7 (cut"), None);
    }

    #[test]
    fn a_process_is_ended_once_and_a_zombie_is_not_alive() {
        let mut child =
            ProcessSpec { command: sleeper(), place: ProcessPlace::Here, bond: ParentBond::Detached }.spawn().unwrap();
        let identity = ProcessIdentity::of(child.id()).unwrap();
        assert!(identity.is_alive());
        assert_eq!(identity.end(Nanos::from_secs(10)).unwrap(), ExitCause::Terminated);
        assert!(!identity.is_alive(), "a zombie has ended");
        assert_eq!(identity.end(Nanos::from_secs(10)).unwrap(), ExitCause::Already);
        child.wait().unwrap();
        assert_eq!(identity.end(Nanos::from_secs(10)).unwrap(), ExitCause::Already);
    }

    #[test]
    fn a_successor_with_the_same_number_is_left_alone() {
        let mut child = ProcessSpec { command: sleeper(), place: ProcessPlace::Here, bond: ParentBond::DiesWithParent }
            .spawn()
            .unwrap();
        let actual = ProcessIdentity::of(child.id()).unwrap();
        let predecessor = ProcessIdentity { start_ticks: actual.start_ticks - 1, ..actual };
        assert_eq!(predecessor.end(Nanos::ZERO).unwrap(), ExitCause::Already);
        assert!(actual.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_ignores_sigterm_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; while :; do sleep 60; done"]).stdout(Stdio::piped());
        let mut child =
            ProcessSpec { command, place: ProcessPlace::Here, bond: ParentBond::DiesWithParent }.spawn().unwrap();
        let mut ready = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(child.stdout.take().unwrap()), &mut ready).unwrap();
        let ended = ProcessIdentity::of(child.id()).unwrap().end(Nanos::from_millis(50)).unwrap();
        assert_eq!(ended, ExitCause::Killed);
        child.wait().unwrap();
    }

    #[test]
    fn a_child_survives_the_thread_that_asked_for_it() {
        let start = || {
            ProcessSpec { command: sleeper(), place: ProcessPlace::Here, bond: ParentBond::DiesWithParent }
                .spawn()
                .unwrap()
        };
        let mut child = thread::spawn(start).join().unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        assert!(!pidfd.wait(Nanos::from_millis(100)).unwrap());
        pidfd.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_child_finds_what_was_handed_down_to_it() {
        let (kept, handed) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        hand_down(&handed).unwrap();
        let is_open = |file: &fs::File| {
            let mut command = Command::new("test");
            command.args(["-e".to_owned(), format!("/dev/fd/{}", file.as_raw_fd())]);
            let start = ProcessSpec { command, place: ProcessPlace::Here, bond: ParentBond::DiesWithParent };
            start.spawn().unwrap().wait().unwrap().success()
        };
        assert_eq!([&kept, &handed].map(is_open), [false, true]);
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let command = Command::new("/no/such/program");
        let error =
            ProcessSpec { command, place: ProcessPlace::Here, bond: ParentBond::DiesWithParent }.spawn().unwrap_err();
        assert_eq!(error.call, "start(/no/such/program)");
    }
}

//! Processes by pidfd: starts them in a namespace and ends them by identity.
//!
//! A process is never identified by its pid alone, because the kernel reuses pids, but by pid and start time.

pub mod affinity;
pub mod confinement;
pub mod interrupt;
pub mod limits;
pub mod lua;
pub mod own_program;
pub mod signal;
pub mod streams;
pub mod threads;

use crate::{
    Error, Result, clock,
    netlink::namespace::{self, Namespaces, NetNs, RootMap},
    process::signal::{Signal, poll_readable},
};
use confinement::PreparedConfinement;
use fathom_model::units::Nanos;
use rustix::{
    io::{Errno, FdFlags, fcntl_setfd},
    process::{
        Pid, PidfdFlags, Signal as Number, getpid, getppid, kill_process_group, pidfd_open, pidfd_send_signal,
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

/// The maximum time for a killed process to exit; only one stuck in the kernel takes longer.
const KILL_PATIENCE: Nanos = Nanos::from_secs(5);

/// A process identity that cannot match a later process with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// The pid, as seen from the pid namespace of this process.
    pub pid: u32,
    /// The start time in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCause {
    /// It had already exited before any signal.
    Already,
    /// It exited on SIGTERM.
    Terminated,
    /// It had to be killed.
    Killed,
}

impl ProcessIdentity {
    /// Looks up the current process with this pid.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
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

    /// Returns whether it still runs; false for a zombie and for a later process with the same pid.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        state_and_start(self.pid).is_ok_and(|(state, start)| start == self.start_ticks && !matches!(state, 'Z' | 'X'))
    }

    /// Ends it: sends SIGTERM, then SIGKILL if it still runs after `patience`.
    ///
    /// It need not be a child. A later process with the same pid is not affected.
    ///
    /// # Errors
    /// `EPERM` if it belongs to another user, `ETIMEDOUT` if even SIGKILL does not end it.
    pub fn end(&self, patience: Nanos) -> Result<ExitCause> {
        let pidfd = match Pidfd::open(self.pid) {
            Ok(pidfd) => pidfd,
            Err(error) if error.errno() == Some(libc::ESRCH) => return Ok(ExitCause::Already),
            Err(error) => return Err(error),
        };
        // Checked after the pidfd is open: from here on it refers to this process or to an exited one.
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
    // The name (field 2) is in parentheses and may itself contain parentheses and spaces, so fields are counted after the last one.
    let (_, behind_name) = text.rsplit_once(')')?;
    let mut fields = behind_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

/// A process held by a descriptor, so that signals cannot reach a later process with the same pid.
#[derive(Debug)]
pub struct Pidfd {
    fd: OwnedFd,
    pid: u32,
}

impl Pidfd {
    /// Opens the current process with this pid: `pidfd_open(2)`.
    ///
    /// # Errors
    /// `ESRCH` if there is none.
    pub fn open(pid: u32) -> Result<Self> {
        let call = || format!("pidfd_open({pid})");
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| Error::new(call(), Errno::SRCH))?;
        let fd = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| Error::new(call(), errno))?;
        Ok(Self { fd, pid })
    }

    /// Sends a signal; a process that has already exited is not an error.
    ///
    /// # Errors
    /// `EPERM` if the process belongs to another user.
    pub fn send(&self, signal: Signal) -> Result<()> {
        self.send_number(match signal {
            Signal::Interrupt => Number::INT,
            Signal::Terminate => Number::TERM,
            Signal::Hangup => Number::HUP,
        })
    }

    /// Sends SIGKILL; a process that has already exited is not an error.
    ///
    /// # Errors
    /// `EPERM` if the process belongs to another user.
    pub fn kill(&self) -> Result<()> {
        self.send_number(Number::KILL)
    }

    /// Waits at most `patience` for the process to exit; returns whether it has.
    ///
    /// The process is not reaped: that is up to its parent.
    ///
    /// # Errors
    /// Any error of `poll`.
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

impl From<Pidfd> for OwnedFd {
    fn from(process: Pidfd) -> Self {
        process.fd
    }
}

/// Readable once the process has exited.
impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The fate of a child when this process exits unexpectedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentBond {
    /// The kernel kills it (`PR_SET_PDEATHSIG`), even after a SIGKILL of this process.
    DiesWithParent,
    /// It continues in its own process group of this session. The scheduler divides the cores among sessions first
    /// (sched(7), autogroup): on a busy machine a new one may wait for more than a second for its first turn.
    Outlives,
    /// It continues in its own session, so that the end of a terminal does not reach it.
    Detached,
}

/// The namespaces in which a child runs.
#[derive(Debug, Clone, Copy)]
pub enum ProcessPlace<'a> {
    /// In the network namespace of the calling thread.
    Here,
    /// In existing namespaces, with their confinement.
    In(&'a Namespaces),
    /// As root of a new user namespace, without more rights outside than its user, and with a network namespace below it.
    NewUserNamespace,
}

/// A [`ProcessPlace`] with all resources that the child needs to get there without allocating.
enum PreparedPlace {
    Here(NetNs),
    In(Namespaces, PreparedConfinement),
    NewUserNamespace(RootMap),
}

impl ProcessPlace<'_> {
    fn prepare(self) -> Result<PreparedPlace> {
        Ok(match self {
            Self::Here => PreparedPlace::Here(NetNs::current()?),
            Self::In(namespaces) => PreparedPlace::In(namespaces.try_clone()?, namespaces.confinement.prepare()?),
            Self::NewUserNamespace => PreparedPlace::NewUserNamespace(RootMap::of_this_user()),
        })
    }
}

impl PreparedPlace {
    fn enter(&self) -> io::Result<()> {
        match self {
            Self::Here(net) => namespace::join_net(net),
            // Control groups belong to the machine, so they are joined before the user namespace.
            Self::In(namespaces, confinement) => confinement.apply().and_then(|()| namespace::join(namespaces)),
            Self::NewUserNamespace(map) => namespace::become_root(map),
        }
    }
}

/// A child to start, possibly in other namespaces.
#[derive(Debug)]
pub struct ProcessSpec<'a> {
    /// The program, its arguments and its standard streams.
    pub command: Command,
    /// The namespaces in which it runs.
    pub place: ProcessPlace<'a>,
    /// Whether it outlives this process.
    pub bond: ParentBond,
}

impl ProcessSpec<'_> {
    /// Starts the child.
    ///
    /// The parent for `PR_SET_PDEATHSIG` is a *thread*: a child started by a worker would be killed when that worker ends. Therefore one
    /// thread that lives as long as the process starts all such children. They still get the caller's namespace and cores.
    ///
    /// # Errors
    /// If the program does not exist, if the namespaces may not be entered or created (`EPERM`, `ENOSPC`), or if a limit of the
    /// confinement cannot be set (`ENOENT` for a control group that is gone).
    pub fn spawn(self) -> Result<Child> {
        let Self { mut command, place, bond } = self;
        let call = format!("start({})", command.get_program().display());
        let destination = place.prepare()?;
        let cores = sched_getaffinity(None).map_err(|errno| Error::new("sched_getaffinity", errno))?;
        let parent = getpid();
        let before_exec = move || {
            sched_setaffinity(None, &cores)?;
            // A change of user may clear the death signal, so it is set afterwards.
            destination.enter()?;
            match bond {
                ParentBond::DiesWithParent => die_with(parent)?,
                ParentBond::Outlives => rustix::process::setpgid(None, None)?,
                ParentBond::Detached => drop(rustix::process::setsid()?),
            }
            Ok(())
        };
        // SAFETY: between fork and exec it only makes system calls (sched_setaffinity, setrlimit, capget, open, fstat, setns, unshare, write,
        // prctl, getppid, setpgid, setsid); it allocates nothing, takes no lock, and its error values are plain numbers.
        unsafe { command.pre_exec(before_exec) };
        let child = match bond {
            ParentBond::DiesWithParent => spawn_on_lasting_thread(command),
            ParentBond::Outlives | ParentBond::Detached => command.spawn(),
        };
        child.map_err(|error| Error::new(call, error))
    }
}

/// Ties the calling process to its parent, or fails if the parent has already exited.
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

/// The thread that starts children; it ends with the process, because its channel is a static.
fn starting_thread() -> io::Result<mpsc::Sender<Order>> {
    let (sender, orders) = mpsc::channel::<Order>();
    thread::Builder::new().spawn(move || {
        // The first caller may be in a temporary namespace, which this thread must not keep alive.
        if let Ok(main) = NetNs::open("/proc/self/ns/net") {
            let _ = namespace::join_net(&main);
        }
        for (mut command, answer) in orders {
            // The caller waits for the answer.
            let _ = answer.send(command.spawn());
        }
    })?;
    Ok(sender)
}

/// Kills a child that leads a process group of its own, with all that is left of the group. The child is not waited for.
///
/// The caller has not waited for the child yet, so that its number still belongs to it.
///
/// # Errors
/// `EPERM` if all of the group belongs to other users; a group that is gone is no error.
pub fn kill_group(leader: &Child) -> Result<()> {
    let Some(number) = i32::try_from(leader.id()).ok().and_then(Pid::from_raw) else { return Ok(()) };
    match kill_process_group(number, Number::KILL) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(Error::new(format!("kill(group {})", leader.id()), errno)),
    }
}

/// Creates an empty unnamed file that processes started from now on find as `/dev/fd/N`.
///
/// # Errors
/// `memfd_create`: out of memory, or too many descriptors.
pub fn shared_file() -> Result<fs::File> {
    let file = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::empty());
    file.map(fs::File::from).map_err(|errno| Error::new("memfd_create", errno))
}

/// Leaves a descriptor open in processes started from now on; they find it as `/dev/fd/N`.
///
/// # Errors
/// Any error of the kernel, which only occurs for a descriptor that is not open.
pub fn hand_down(file: impl AsFd) -> Result<()> {
    fcntl_setfd(file, FdFlags::empty()).map_err(|cause| Error::new("fcntl(F_SETFD)", cause))
}

/// Returns whether this process may create network namespaces and links (`CAP_SYS_ADMIN`, `CAP_NET_ADMIN`).
#[must_use]
pub fn may_administer_network() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// What this process may do that other users may not, as far as tests need it: names of capabilities(7) without `CAP_`, in lower case.
#[must_use]
pub fn effective_capabilities() -> Vec<&'static str> {
    let known = [
        (CapabilitySet::NET_RAW, "net_raw"),
        (CapabilitySet::NET_ADMIN, "net_admin"),
        (CapabilitySet::BPF, "bpf"),
        (CapabilitySet::SYS_ADMIN, "sys_admin"),
        (CapabilitySet::SYS_NICE, "sys_nice"),
        (CapabilitySet::NET_BIND_SERVICE, "net_bind_service"),
    ];
    let Ok(sets) = capabilities(None) else { return Vec::new() };
    known.into_iter().filter(|(one, _)| sets.effective.contains(*one)).map(|(_, name)| name).collect()
}

/// The effective user id of this process.
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

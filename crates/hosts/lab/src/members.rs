//! The programs that run on the hosts of a lab, which end with it.
//!
//! A program is on a host if its main thread is in the network namespace of that host. Threads of other processes that entered a host, such as
//! those of a controller, are none.

use std::{
    collections::BTreeSet,
    fmt,
    fs::{self, File},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::{ExitCause, Pidfd, signal::Signal},
};

use crate::{Host, Lab};

/// The time that programs get to exit cleanly before they are killed.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// The time that the kernel gets to end a killed program.
const KILL_PATIENCE: Nanos = Nanos::from_secs(1);
/// How often it looks: a program that ends may leave others that it had started.
const LOOKS: usize = 3;

/// A program that was ended with its lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedProgram {
    /// Its name, as the kernel knows it (at most 15 bytes).
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// How it ended.
    pub cause: ExitCause,
}

impl fmt::Display for EndedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.cause == ExitCause::Killed { "killed, because it did not end" } else { "ended" };
        write!(f, "{} (process {}): {how}", self.name, self.pid)
    }
}

impl Lab {
    /// Ends all programs on its hosts, except those of the process that holds it, which end with it. Takes up to 3 s for each look, if a program
    /// does not end by itself.
    ///
    /// A program of another user that may not be signalled is left alone.
    #[must_use]
    pub fn end_programs(&self) -> Vec<EndedProgram> {
        let Ok(holder) = self.holder() else { return Vec::new() };
        let namespaces: BTreeSet<_> = self.hosts().iter().filter_map(identity_of_host).collect();
        let mut ended = Vec::new();
        for _ in 0..LOOKS {
            let found = programs(holder.pid, &namespaces);
            if found.is_empty() {
                break;
            }
            ended.extend(end(found));
        }
        ended
    }

    /// The host whose network this process is in, if there is one.
    pub(crate) fn own_host(&self) -> Option<&Host> {
        let own = identity(&File::open("/proc/self/ns/net").ok()?)?;
        self.hosts().iter().find(|host| identity_of_host(host) == Some(own))
    }
}

/// The device and the inode of a namespace, which no other has while it lives.
type NamespaceIdentity = (u64, u64);

fn identity_of_host(host: &Host) -> Option<NamespaceIdentity> {
    identity(&File::from(host.namespaces.net.as_fd().try_clone_to_owned().ok()?))
}

fn identity(namespace: &File) -> Option<NamespaceIdentity> {
    namespace.metadata().ok().map(|file| (file.dev(), file.ino()))
}

/// The programs on hosts, each held by a descriptor.
fn programs(holder: u32, namespaces: &BTreeSet<NamespaceIdentity>) -> Vec<(String, u32, Pidfd)> {
    let pids =
        fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let program = |pid: u32| {
        // Opened first: what is found out below is then about the process that is signalled.
        let process = Pidfd::open(pid).ok()?;
        let namespace = identity(&File::open(format!("/proc/{pid}/ns/net")).ok()?)?;
        let is_other = ![std::process::id(), holder].contains(&pid) && parent(pid)? != holder;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned();
        (namespaces.contains(&namespace) && is_other).then_some((name, pid, process))
    };
    pids.filter_map(program).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn end(programs: Vec<(String, u32, Pidfd)>) -> Vec<EndedProgram> {
    let told: Vec<_> = programs.into_iter().filter(|(.., process)| process.send(Signal::Terminate).is_ok()).collect();
    let deadline = clock::now() + PATIENCE;
    let outcome = |(name, pid, process): (String, u32, Pidfd)| {
        let has_ended = |patience| process.wait(patience).unwrap_or(false);
        if has_ended(deadline.since(clock::now())) {
            return Some(EndedProgram { name, pid, cause: ExitCause::Terminated });
        }
        process.kill().ok().filter(|()| has_ended(KILL_PATIENCE))?;
        Some(EndedProgram { name, pid, cause: ExitCause::Killed })
    };
    told.into_iter().filter_map(outcome).collect()
}

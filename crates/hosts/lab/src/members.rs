//! The programs that run on the hosts of a lab, which end with it.
//!
//! A program is on a host if its main thread is in the network namespace of that host. Threads of other processes that entered a host, such as
//! those of a controller, are none.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, path::Path};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::{ExitCause, Pidfd, signal::Signal},
};

use crate::record::LabRecord;

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

/// Ends all programs on the hosts of a lab, except those of its holder, which end with it.
///
/// A program of another user that may not be signalled is left alone.
pub(crate) fn end_programs(lab: &LabRecord) -> Vec<EndedProgram> {
    let namespaces = namespaces(lab);
    let mut ended = Vec::new();
    for _ in 0..LOOKS {
        let found = programs(lab, &namespaces);
        if found.is_empty() {
            break;
        }
        ended.extend(end(found));
    }
    ended
}

/// The namespaces of all hosts; none if the holder is gone, and never that of this process.
fn namespaces(lab: &LabRecord) -> BTreeSet<(u64, u64)> {
    let of_host = |descriptor: i32| identity(Path::new(&format!("/proc/{}/fd/{descriptor}", lab.holder.pid)));
    let mut found: BTreeSet<_> = lab.hosts.iter().filter_map(|host| of_host(host.descriptor)).collect();
    // Checked last: otherwise the descriptors may have been those of a later process with the pid of the holder.
    if !lab.holder.is_alive() {
        found.clear();
    }
    if let Some(own) = identity(Path::new("/proc/self/ns/net")) {
        found.remove(&own);
    }
    found
}

fn identity(namespace: &Path) -> Option<(u64, u64)> {
    fs::metadata(namespace).ok().map(|file| (file.dev(), file.ino()))
}

/// The programs on hosts, each held by a descriptor.
fn programs(lab: &LabRecord, namespaces: &BTreeSet<(u64, u64)>) -> Vec<(String, u32, Pidfd)> {
    let pids =
        fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let program = |pid: u32| {
        // Opened first: what is found out below is then about the process that is signalled.
        let process = Pidfd::open(pid).ok()?;
        let is_on_a_host =
            identity(Path::new(&format!("/proc/{pid}/ns/net"))).is_some_and(|it| namespaces.contains(&it));
        let is_other = pid != std::process::id() && pid != lab.holder.pid && parent(pid)? != lab.holder.pid;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned();
        (is_on_a_host && is_other).then_some((name, pid, process))
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

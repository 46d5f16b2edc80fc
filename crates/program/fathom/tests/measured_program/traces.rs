//! The traces of a run on the machine, to check that none remain.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::Path,
};

use fathom_sys::{bpf, process::ProcessIdentity};

use crate::test_bed::{TestBed, until};

/// Processes, network namespaces and XDP programs of one test bed.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    processes: Vec<ProcessIdentity>,
    namespaces: BTreeSet<u64>,
    programs: BTreeSet<u32>,
    devices: BTreeSet<String>,
}

impl Traces {
    /// Returns the state before anything was started.
    pub(crate) fn none() -> Self {
        Self { devices: devices(), ..Self::default() }
    }

    /// Adds the current traces.
    pub(crate) fn gather(&mut self, stage: &TestBed) {
        let ours = namespace("self");
        for pid in processes(stage) {
            // A process that has ended meanwhile is skipped.
            self.processes.extend(ProcessIdentity::of(pid));
            self.namespaces.extend(namespace(&pid.to_string()).filter(|found| Some(*found) != ours));
            self.programs.extend(programs(pid));
        }
    }

    /// Returns true if the two hosts and a program that counts frames exist, as in the last test of an evaluation in a lab.
    pub(crate) fn are_complete(&self, n_namespaces: usize) -> bool {
        self.namespaces.len() >= n_namespaces && !self.programs.is_empty()
    }

    /// Waits until the kernel has released everything, which it does in the background.
    pub(crate) fn are_gone(&self, stage: &TestBed) {
        assert!(!self.processes.is_empty(), "nothing was gathered");
        until(|| processes(stage).is_empty().then_some(()));
        until(|| (!self.processes.iter().any(ProcessIdentity::is_alive)).then_some(()));
        until(|| (!self.programs.iter().any(|id| bpf::is_loaded(*id).unwrap())).then_some(()));
        let (held, mounts) = (namespaces_in_use(), fs::read_to_string("/proc/self/mountinfo").unwrap());
        for namespace in &self.namespaces {
            assert!(!held.contains(namespace), "a process is still in network namespace {namespace}");
            assert!(!mounts.contains(&format!("net:[{namespace}]")), "network namespace {namespace} is still mounted");
        }
        assert_eq!(devices(), self.devices, "the devices of the machine");
        assert_eq!(stage.journals(), Vec::<String>::new());
    }
}

fn numbers() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns the processes that were started with the state folder of this test bed.
pub(crate) fn processes(stage: &TestBed) -> Vec<u32> {
    let state = stage.state();
    let own = [b"FATHOM_STATE=", state.as_os_str().as_bytes()].concat();
    let is_own = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == own)
    };
    numbers().filter(is_own).collect()
}

/// Returns the agents among the processes of this test bed.
pub(crate) fn agents(stage: &TestBed) -> Vec<u32> {
    let is_agent = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(b"agent")
    };
    processes(stage).into_iter().filter(is_agent).collect()
}

fn namespace(pid: &str) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino())
}

fn namespaces_in_use() -> BTreeSet<u64> {
    numbers().filter_map(|pid| namespace(&pid.to_string())).collect()
}

/// Returns the programs that a process holds by descriptor, directly or through an attachment to a device.
fn programs(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/fdinfo");
    let entries = fs::read_dir(Path::new(&path)).into_iter().flatten().flatten();
    let texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts.filter_map(|text| text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok())).collect()
}

fn devices() -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/self/net/dev").unwrap();
    table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

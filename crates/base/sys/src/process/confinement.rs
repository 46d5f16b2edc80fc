//! Limits that a process is started with: few descriptors, control groups.

use std::{
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
};

use rustix::{
    process::{Resource, Rlimit, setrlimit},
    thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set},
};

use crate::{Error, Result};

/// The limits of the processes of a host; without any by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Confinement {
    /// The descriptors that each may have open (`RLIMIT_NOFILE`, soft and hard).
    pub descriptors: Option<u64>,
    /// The folders of the control groups that they belong to.
    pub groups: Vec<PathBuf>,
}

/// A confinement whose files are open, so that a child can apply it without allocating.
pub(super) struct PreparedConfinement {
    descriptors: Option<u64>,
    groups: Vec<OwnedFd>,
}

impl Confinement {
    pub(super) fn prepare(&self) -> Result<PreparedConfinement> {
        let open = |group: &PathBuf| {
            let file = group.join("cgroup.procs");
            let opened = fs::OpenOptions::new().write(true).open(&file);
            opened.map(OwnedFd::from).map_err(|error| Error::new(format!("open({})", file.display()), error))
        };
        let groups = self.groups.iter().map(open).collect::<Result<_>>()?;
        Ok(PreparedConfinement { descriptors: self.descriptors, groups })
    }
}

impl PreparedConfinement {
    /// Confines the calling process; only makes system calls.
    pub(super) fn apply(&self) -> io::Result<()> {
        if let Some(count) = self.descriptors {
            setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: Some(count) })?;
            // Root would raise the limit again; what the bounding set lacks is gone with the next exec (capabilities(7)).
            if capabilities(None)?.effective.contains(CapabilitySet::SYS_RESOURCE) {
                remove_capability_from_bounding_set(CapabilitySet::SYS_RESOURCE)?;
            }
        }
        for group in &self.groups {
            // The kernel takes 0 for the process that writes (cgroups(7)).
            rustix::io::write(group.as_fd(), b"0")?;
        }
        Ok(())
    }
}

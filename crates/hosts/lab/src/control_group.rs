//! Control groups with a CPU quota, with one core or with little memory, of both versions (Documentation/scheduler/sched-bwc.rst,
//! Documentation/admin-guide/cgroup-v1/cpusets.rst and memory.rst, and Documentation/admin-guide/cgroup-v2.rst).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use fathom_model::units::{Bytes, rounded};

use crate::{Error, Result};

/// Where both versions are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// What the name of each of our groups begins with; nothing else is ever removed.
const PREFIX: &str = "fathom-";
/// The period of a quota, in microseconds: the kernel's default.
const PERIOD_MICROS: f64 = 100_000.0;

/// What a group limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum GroupLimit {
    /// The number of cores that its processes together may use.
    Quota(f64),
    /// The only core that its processes may use. They cannot give themselves another one, as they could with an affinity.
    Core(usize),
    /// The memory that its processes together may use.
    Memory(Bytes),
}

impl GroupLimit {
    /// The controller, and a file that its root group has in version 1.
    const fn controller(self) -> (&'static str, &'static str) {
        match self {
            Self::Quota(_) => ("cpu", "cpu.shares"),
            Self::Core(_) => ("cpuset", "cpuset.cpus"),
            Self::Memory(_) => ("memory", "memory.limit_in_bytes"),
        }
    }

    /// Returns the folder of a group with this limit and this name, which does not exist yet.
    pub(crate) fn folder(self, name: &str) -> PathBuf {
        self.parent(Path::new(MOUNT)).join(format!("{PREFIX}{name}"))
    }

    /// Returns the root group of the controller: version 1 has a folder of its own for it.
    fn parent(self, mount: &Path) -> PathBuf {
        let (controller, file) = self.controller();
        let first = mount.join(controller);
        if first.join(file).exists() { first } else { mount.to_owned() }
    }

    /// Returns the files that set it, with their contents.
    fn settings(self, folder: &Path) -> Vec<(&'static str, String)> {
        match self {
            Self::Quota(cores) => {
                let quota = rounded(cores * PERIOD_MICROS);
                if folder.join("cpu.cfs_quota_us").exists() {
                    vec![("cpu.cfs_quota_us", quota.to_string())]
                } else {
                    vec![("cpu.max", format!("{quota} {PERIOD_MICROS}"))]
                }
            }
            Self::Core(core) => {
                // A group of version 1 has no memory of its own to begin with, and takes no process without.
                let nodes = fs::read_to_string(folder.join("../cpuset.mems")).ok();
                let nodes = nodes.map(|nodes| ("cpuset.mems", nodes.trim().to_owned()));
                nodes.into_iter().chain([("cpuset.cpus", core.to_string())]).collect()
            }
            Self::Memory(most) => {
                // Without a limit of its own, swap would hold what the memory does not.
                let is_first = folder.join("memory.limit_in_bytes").exists();
                let (file, swap, in_swap) = if is_first {
                    ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", most)
                } else {
                    ("memory.max", "memory.swap.max", Bytes(0))
                };
                let swap = Some((swap, in_swap)).filter(|(swap, _)| folder.join(swap).exists());
                [(file, most)].into_iter().chain(swap).map(|(file, bytes)| (file, bytes.0.to_string())).collect()
            }
        }
    }
}

/// Makes a group.
///
/// # Errors
/// Without root, where the file system is read-only, where the controller is not enabled for groups, and for a core that does not exist.
pub(crate) fn make(folder: &Path, limit: GroupLimit) -> Result<()> {
    fs::create_dir(folder).map_err(Error::file("make the control group", folder))?;
    for (file, value) in limit.settings(folder) {
        let file = folder.join(file);
        // Opened as it is: a missing file means that the controller is not enabled.
        let written = fs::OpenOptions::new().write(true).open(&file);
        let written = written.and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
        written.map_err(Error::file("set the limit of a control group in", file))?;
    }
    Ok(())
}

/// Removes a group; processes that are still in it go to the group above. A group that is gone is none to remove.
///
/// # Errors
/// If a process cannot be moved.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    let is_ours = folder.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX));
    if !is_ours || !folder.starts_with(MOUNT) {
        let reason = "it is not a control group of fathom".to_owned();
        return Err(Error::CorruptJournal { path: folder.to_owned(), reason });
    }
    let above = folder.parent().unwrap_or(folder).join("cgroup.procs");
    for process in fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default().lines() {
        // A process that has ended since leaves nothing to move.
        let _ = fs::write(&above, process);
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::file("remove the control group", folder)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_group_of_fathom_is_ever_removed() {
        for other in ["/sys/fs/cgroup/system.slice", "/tmp/fathom-x"] {
            assert!(matches!(remove(Path::new(other)), Err(Error::CorruptJournal { .. })), "{other}");
        }
        assert!(remove(&GroupLimit::Quota(1.0).folder("of-no-lab")).is_ok(), "it is gone already");
    }

    #[test]
    fn the_first_version_has_a_folder_for_each_controller() {
        let mount = tempfile::tempdir().unwrap();
        let (quota, core) = (GroupLimit::Quota(0.5), GroupLimit::Core(1));
        assert_eq!(quota.parent(mount.path()), mount.path());
        for (folder, file) in [("cpu", "cpu.shares"), ("cpuset", "cpuset.cpus")] {
            fs::create_dir(mount.path().join(folder)).unwrap();
            fs::write(mount.path().join(folder).join(file), "").unwrap();
        }
        assert_eq!(quota.parent(mount.path()), mount.path().join("cpu"));
        assert_eq!(core.parent(mount.path()), mount.path().join("cpuset"));
        let group = mount.path().join("cpuset/one");
        fs::create_dir(&group).unwrap();
        assert_eq!(core.settings(&group), [("cpuset.cpus", "1".to_owned())]);
        fs::write(mount.path().join("cpuset/cpuset.mems"), "0-1\n").unwrap();
        let expected = [("cpuset.mems", "0-1".to_owned()), ("cpuset.cpus", "1".to_owned())];
        assert_eq!(core.settings(&group), expected);
        assert_eq!(quota.settings(&group), [("cpu.max", "50000 100000".to_owned())]);
        let memory = GroupLimit::Memory(Bytes(4096));
        assert_eq!(memory.settings(&group), [("memory.max", "4096".to_owned())]);
        fs::write(group.join("memory.swap.max"), "").unwrap();
        assert_eq!(memory.settings(&group)[1], ("memory.swap.max", "0".to_owned()));
        fs::write(group.join("memory.limit_in_bytes"), "").unwrap();
        assert_eq!(memory.settings(&group), [("memory.limit_in_bytes", "4096".to_owned())]);
        fs::write(group.join("memory.memsw.limit_in_bytes"), "").unwrap();
        assert_eq!(memory.settings(&group)[1], ("memory.memsw.limit_in_bytes", "4096".to_owned()));
    }
}

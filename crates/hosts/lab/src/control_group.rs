//! Control groups with a CPU quota, of both versions (Documentation/scheduler/sched-bwc.rst, Documentation/admin-guide/cgroup-v2.rst).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use fathom_model::units::rounded;

use crate::{Error, Result};

/// Where both versions are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// What the name of each of our groups begins with; nothing else is ever removed.
const PREFIX: &str = "fathom-";
/// The period of a quota, in microseconds: the kernel's default.
const PERIOD_MICROS: f64 = 100_000.0;

/// Returns the folder of a group with this name, which does not exist yet.
pub(crate) fn folder(name: &str) -> PathBuf {
    parent(Path::new(MOUNT)).join(format!("{PREFIX}{name}"))
}

/// Returns the root group of the controller `cpu`: version 1 has a folder of its own for it.
fn parent(mount: &Path) -> PathBuf {
    let first = mount.join("cpu");
    if first.join("cpu.shares").exists() { first } else { mount.to_owned() }
}

/// Makes a group whose processes together may use this many cores.
///
/// # Errors
/// Without root, where the file system is read-only, and where the controller `cpu` is not enabled for groups.
pub(crate) fn make(folder: &Path, cores: f64) -> Result<()> {
    fs::create_dir(folder).map_err(Error::file("make the control group", folder))?;
    let quota = rounded(cores * PERIOD_MICROS);
    let first = folder.join("cpu.cfs_quota_us");
    let (file, value) = if first.exists() {
        (first, quota.to_string())
    } else {
        (folder.join("cpu.max"), format!("{quota} {PERIOD_MICROS}"))
    };
    fs::write(&file, value).map_err(Error::file("set the CPU quota in", file))
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
        assert!(remove(&folder("of-no-lab")).is_ok(), "it is gone already");
    }

    #[test]
    fn the_first_version_has_a_folder_for_the_controller() {
        let mount = tempfile::tempdir().unwrap();
        assert_eq!(parent(mount.path()), mount.path());
        fs::create_dir(mount.path().join("cpu")).unwrap();
        fs::write(mount.path().join("cpu/cpu.shares"), "1024").unwrap();
        assert_eq!(parent(mount.path()), mount.path().join("cpu"));
    }
}

//! The CPU limit that this process has from its control groups.
//!
//! Supports both versions: `cpu.max` of cgroup v2, `cpu.cfs_*_us` of v1 (Documentation/admin-guide/cgroup-v2.rst and
//! Documentation/scheduler/sched-bwc.rst).

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use fathom_model::units::ratio;
use rustix::io::Errno;

use super::content;

/// Returns the smallest limit up to the root group, in cores, with the directory of the group that has it; `none` without a directory if a group
/// can be read and none has a limit.
pub(super) fn limit_cores(root: &Path) -> Option<(String, Option<PathBuf>)> {
    let limits = cpu_groups(root).filter_map(|group| Some((limit_v2(&group).or_else(|| limit_v1(&group))?, group)));
    let (smallest, group) = limits.min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(if smallest.is_finite() { (format!("{smallest:.2}"), Some(group)) } else { ("none".to_owned(), None) })
}

/// Returns the directories of the process's groups that may limit its CPU time, each up to the root group.
pub(crate) fn cpu_groups(root: &Path) -> impl Iterator<Item = PathBuf> {
    groups(root, "cpu")
}

/// Returns the directories of the process's groups that may limit its memory, each up to the root group.
pub(crate) fn memory_groups(root: &Path) -> impl Iterator<Item = PathBuf> {
    groups(root, "memory")
}

/// Returns an error of reading an open file of a group, with the reason if the group was removed: the process is in another one then, whose counts
/// do not go on from these.
pub(crate) fn reading_error(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) {
        io::Error::other("the control group in which this program started was removed")
    } else {
        error
    }
}

/// Returns the directories of the groups that limit the CPU time of another process, the innermost first.
///
/// # Errors
/// With the reason, if the groups are outside of what this process sees, such as those of another container.
pub(crate) fn cpu_groups_of(root: &Path, groups: &str) -> Result<Vec<PathBuf>, String> {
    let is_first =
        |line: &&str| line.split(':').nth(1).is_some_and(|controllers| controllers.split(',').any(|one| one == "cpu"));
    // Where both versions are in use, only one of them has the controller.
    let line = groups.lines().find(is_first).or_else(|| groups.lines().find(|line| line.starts_with("0::")));
    let line = line.ok_or("no control group of it has the controller `cpu`")?;
    let group = line.splitn(3, ':').nth(2).unwrap_or_default();
    let hidden = || format!("its control group {group} is outside of what fathom sees");
    if Path::new(group).components().any(|part| part == Component::ParentDir) {
        return Err(hidden());
    }
    let below = group.trim_start_matches('/');
    let all: Vec<PathBuf> = groups_of(root, line, "cpu").into_iter().filter(|directory| directory.is_dir()).collect();
    // In a container, the group of another one has no directory, and those above it are the container's own.
    if all.iter().any(|directory| directory.ends_with(below)) { Ok(all) } else { Err(hidden()) }
}

/// Returns the quota of a group and its period in microseconds; `None` without a quota.
pub(crate) fn quota_micros(group: &Path) -> Option<(u64, u64)> {
    if let Some(text) = content(&group.join("cpu.max")) {
        let (quota, period) = text.split_once(' ')?;
        return Some((quota.parse().ok()?, period.parse().ok()?));
    }
    let micros = |file| content(&group.join(file))?.parse().ok();
    Some((micros("cpu.cfs_quota_us")?, micros("cpu.cfs_period_us")?))
}

fn groups(root: &Path, asked: &str) -> impl Iterator<Item = PathBuf> {
    let groups = content(&root.join("proc/self/cgroup")).unwrap_or_default();
    let directories: Vec<PathBuf> = groups.lines().flat_map(|line| groups_of(root, line, asked)).collect();
    directories.into_iter().filter(|directory| directory.is_dir())
}

/// Returns the directories for one line of `/proc/self/cgroup`, such as `4:cpu,cpuacct:/a/b`, if it is about a controller.
fn groups_of(root: &Path, line: &str, asked: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { return Vec::new() };
    if !controllers.is_empty() && controllers.split(',').all(|controller| controller != asked) {
        return Vec::new();
    }
    // If both versions are in use, v2 is mounted below v1.
    let mounts = if controllers.is_empty() { ["", "unified"] } else { [controllers, asked] };
    let mounts = mounts.map(|mount| root.join("sys/fs/cgroup").join(mount));
    // The path of a group outside the cgroup namespace starts with `..`, and the group is not visible from here.
    let group: PathBuf = Path::new(group).components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let mut all: Vec<PathBuf> = Vec::new();
    // A group that is counted twice has twice the throttled time.
    for mount in mounts {
        let directories = group.ancestors().map(|group| mount.join(group));
        let new: Vec<PathBuf> = directories.filter(|directory| !all.contains(directory)).collect();
        all.extend(new);
    }
    all
}

/// `200000 100000` is two cores. `max 100000` is no limit, expressed as infinity.
fn limit_v2(group: &Path) -> Option<f64> {
    let text = content(&group.join("cpu.max"))?;
    let (quota, period) = text.split_once(' ')?;
    if quota == "max" { Some(f64::INFINITY) } else { ratio(quota.parse().ok()?, period.parse().ok()?) }
}

/// A quota of −1 is no limit.
fn limit_v1(group: &Path) -> Option<f64> {
    let quota = content(&group.join("cpu.cfs_quota_us"))?;
    let period = content(&group.join("cpu.cfs_period_us"))?;
    if quota == "-1" { Some(f64::INFINITY) } else { ratio(quota.parse().ok()?, period.parse().ok()?) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_smallest_limit_on_the_way_to_the_root_counts() {
        let root = root(&[
            ("proc/self/cgroup", "0::/pod/web\n"),
            ("sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/pod/web/cpu.max", "400000 100000\n"),
        ]);
        let group = root.path().join("sys/fs/cgroup/pod");
        assert_eq!(limit_cores(root.path()), Some(("1.50".to_owned(), Some(group))));
    }

    #[test]
    fn the_first_generation_of_groups_is_understood() {
        let root = root(&[
            ("proc/self/cgroup", "4:memory:/a\n2:cpu,cpuacct:/a\n0::/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(limit_cores(root.path()).unwrap().0, "0.50");
    }

    #[test]
    fn the_groups_of_another_container_are_not_taken_for_those_above_them() {
        let root = root(&[
            ("sys/fs/cgroup/cpu/web/one/cpu.cfs_quota_us", "20000\n"),
            ("sys/fs/cgroup/cpu/web/one/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/unified/cpu.stat", ""),
        ]);
        let of = |text| cpu_groups_of(root.path(), text);
        let (first, at) = (of("3:memory:/m\n2:cpu:/web/one\n0::/\n").unwrap(), root.path().join("sys/fs/cgroup/cpu"));
        assert_eq!(first, [at.join("web/one"), at.join("web"), at.clone()]);
        assert_eq!((quota_micros(&first[0]), quota_micros(&first[1])), (Some((20_000, 100_000)), None));
        for elsewhere in ["2:cpu:/docker/other\n", "0::/../other\n"] {
            assert!(of(elsewhere).unwrap_err().contains("other is outside of what fathom sees"), "{elsewhere}");
        }
        assert!(of("3:memory:/m\n").is_err());
        assert!(of("0::/\n").is_ok_and(|groups| !groups.is_empty()));
    }

    #[test]
    fn no_limit_is_not_the_same_as_not_knowing() {
        let unlimited = root(&[("proc/self/cgroup", "0::/../a\n"), ("sys/fs/cgroup/a/cpu.max", "max 100000\n")]);
        assert_eq!(limit_cores(unlimited.path()), Some(("none".to_owned(), None)));
        let unknown = root(&[("proc/self/cgroup", "0::/a\nnonsense\n"), ("sys/fs/cgroup/a/cpu.max", "soon\n")]);
        assert_eq!(limit_cores(unknown.path()), None);
    }
}

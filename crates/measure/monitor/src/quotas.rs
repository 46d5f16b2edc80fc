//! The programs of a host that a record names, with what CPU quotas of their control groups took from them (`cpu.stat`,
//! Documentation/scheduler/sched-bwc.rst).
//!
//! Programs and groups are read at the first and at the last sample of a test. Groups that this process is in too are left out: their counts
//! are among those of the host.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use fathom_model::{
    record::{ProgramQuota, ProgramTime},
    units::Nanos,
};

use crate::{
    environment::cgroup,
    procfs::read_short,
    programs::{CORE_SHARE_MIN, ProgramReader, ProgramTimes, add_listeners},
    sources::throttling::{n_throttled, throttled_ns},
};

/// The most programs that a record names beside the busiest ones: servers that a quota stopped use little CPU time.
const STOPPED_MAX: usize = 3;
/// The most stopped programs whose descriptors are read to see whether they listen.
const LOOKED_AT_MAX: usize = 16;

/// The CPU times of all programs, and the counts of their control groups, at one time.
pub(crate) struct ProgramsAtOnce {
    times: ProgramTimes,
    quotas: Quotas,
}

impl ProgramsAtOnce {
    pub(crate) fn read(root: &Path) -> Self {
        let times = ProgramReader::new(root).read();
        Self { quotas: Quotas::read(root, times.pids()), times }
    }

    /// Returns the CPU time of kernel threads since an earlier reading, without those of softirqs; `None` if they cannot be seen.
    pub(crate) fn kernel_threads_since(&self, earlier: &Self) -> Option<Nanos> {
        self.times.kernel_threads_since(&earlier.times)
    }

    /// Returns the programs with the most CPU time since an earlier reading, the greatest first, and then servers that a quota stopped.
    pub(crate) fn told_since(&self, earlier: &Self, span: Nanos, root: &Path) -> Vec<ProgramTime> {
        let mut told = self.times.busiest_since(&earlier.times, span);
        for program in &mut told {
            add_listeners(root, program);
            // Of a program that serves nobody, nobody asks.
            if !program.listens.is_empty() {
                self.quotas.add(&earlier.quotas, program);
            }
        }
        let least = span.as_secs_f64() * CORE_SHARE_MIN;
        let mut others = self.times.others_since(&earlier.times, span);
        others.retain(|other| told.iter().all(|program| program.pid != other.pid));
        for other in &mut others {
            self.quotas.add(&earlier.quotas, other);
        }
        others.retain(|other| other.quota.as_ref().is_some_and(|quota| quota.throttled_ns.as_secs_f64() > least));
        others.truncate(LOOKED_AT_MAX);
        for other in &mut others {
            add_listeners(root, other);
        }
        told.extend(others.into_iter().filter(|other| !other.listens.is_empty()).take(STOPPED_MAX));
        told
    }
}

/// How often a group was stopped since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GroupCounts {
    n_throttled: u64,
    throttled_ns: u64,
}

/// The groups of the processes of a host, without those that this process is in.
#[derive(Debug, Default)]
struct Quotas {
    /// The groups of each process, or why they are not known.
    of_process: BTreeMap<u32, Result<Vec<PathBuf>, String>>,
    /// The counts of each group that can have a quota.
    counts: BTreeMap<PathBuf, GroupCounts>,
}

impl Quotas {
    fn read(root: &Path, pids: impl Iterator<Item = u32>) -> Self {
        let own: BTreeSet<PathBuf> = cgroup::cpu_groups(root).collect();
        let mut known: BTreeMap<Vec<u8>, Result<Vec<PathBuf>, String>> = BTreeMap::new();
        let mut read = Self::default();
        for pid in pids {
            let groups = match read_short(&root.join(format!("proc/{pid}/cgroup"))) {
                Ok(text) => known.entry(text).or_insert_with_key(|text| groups_beside(root, text, &own)).clone(),
                Err(error) => Err(format!("its control groups cannot be read: {error}")),
            };
            read.of_process.insert(pid, groups);
        }
        for group in known.into_values().flatten().flatten() {
            let counts = || {
                let text = read_short(&group.join("cpu.stat")).ok()?;
                Some(GroupCounts { n_throttled: n_throttled(&text)?, throttled_ns: throttled_ns(&text)? })
            };
            if !read.counts.contains_key(&group)
                && let Some(counts) = counts()
            {
                read.counts.insert(group, counts);
            }
        }
        read
    }

    /// Adds the quota that stopped a program most since an earlier reading, or why it is not known.
    fn add(&self, earlier: &Self, program: &mut ProgramTime) {
        match self.of_process.get(&program.pid) {
            Some(Err(reason)) => program.quota_unknown = Some(reason.clone()),
            // Only a process that stayed where it was had to wait with its group.
            Some(Ok(groups)) if earlier.of_process.get(&program.pid) == Some(&Ok(groups.clone())) => {
                let quotas = groups.iter().filter_map(|group| self.quota_since(earlier, group));
                program.quota = quotas.max_by_key(|quota| quota.throttled_ns);
            }
            _ => {}
        }
    }

    fn quota_since(&self, earlier: &Self, group: &Path) -> Option<ProgramQuota> {
        let (now, before) = (self.counts.get(group)?, earlier.counts.get(group)?);
        let (quota, period) = cgroup::quota_micros(group)?;
        Some(ProgramQuota {
            group: group.display().to_string(),
            quota_ns: Nanos::from_micros(quota),
            period_ns: Nanos::from_micros(period),
            n_throttled: now.n_throttled.saturating_sub(before.n_throttled),
            throttled_ns: Nanos(now.throttled_ns.saturating_sub(before.throttled_ns)),
        })
    }
}

/// Returns the groups in the text of a process's `/proc/PID/cgroup` without those that are this process's own.
fn groups_beside(root: &Path, text: &[u8], own: &BTreeSet<PathBuf>) -> Result<Vec<PathBuf>, String> {
    let mut groups = cgroup::cpu_groups_of(root, &String::from_utf8_lossy(text))?;
    groups.retain(|group| !own.contains(group));
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn quota(root: &Path, change: impl Fn(&Path), pid: u32) -> ProgramTime {
        let before = Quotas::read(root, [pid].into_iter());
        change(root);
        let mut program = ProgramTime { pid, ..ProgramTime::default() };
        Quotas::read(root, [pid].into_iter()).add(&before, &mut program);
        program
    }

    #[test]
    fn the_quota_of_a_servers_group_is_told_in_both_versions_of_groups() {
        let first = "nr_periods 9\nnr_throttled 3\nthrottled_time 300000000\n";
        let second = "usage_usec 7\nnr_periods 9\nnr_throttled 3\nthrottled_usec 300000\n";
        let cases = [
            ("2:cpu,cpuacct:/web\n0::/\n", "cpu,cpuacct/web", first, "throttled_time 900000000"),
            ("0::/web\n", "web", second, "throttled_usec 900000"),
        ];
        for (groups, folder, before, after) in cases {
            let root = tempfile::tempdir().unwrap();
            write(root.path(), "proc/self/cgroup", "2:cpu,cpuacct:/\n0::/\n");
            write(root.path(), "proc/7/cgroup", groups);
            let file = |name: &str| format!("sys/fs/cgroup/{folder}/{name}");
            write(root.path(), &file("cpu.stat"), before);
            if folder == "web" {
                write(root.path(), &file("cpu.max"), "20000 100000\n");
            } else {
                write(root.path(), &file("cpu.cfs_quota_us"), "20000\n");
                write(root.path(), &file("cpu.cfs_period_us"), "100000\n");
            }
            let grow = |root: &Path| write(root, &file("cpu.stat"), &format!("nr_throttled 10\n{after}\n"));
            let quota = quota(root.path(), grow, 7).quota.unwrap();
            assert_eq!((quota.n_throttled, quota.throttled_ns), (7, Nanos::from_millis(600)), "{folder}");
            assert_eq!(
                (quota.quota_ns, quota.period_ns),
                (Nanos::from_millis(20), Nanos::from_millis(100)),
                "{folder}"
            );
            assert!(quota.group.ends_with(&format!("sys/fs/cgroup/{folder}")), "{}", quota.group);
        }
    }

    #[test]
    fn a_group_of_fathom_itself_one_without_a_quota_and_one_out_of_sight_have_none_to_tell() {
        let root = tempfile::tempdir().unwrap();
        let stat = "nr_throttled 3\nthrottled_usec 300000\n";
        write(root.path(), "proc/self/cgroup", "0::/ours/agent\n");
        for folder in ["ours", "free"] {
            write(root.path(), &format!("sys/fs/cgroup/{folder}/cpu.stat"), stat);
            write(root.path(), &format!("sys/fs/cgroup/{folder}/cpu.max"), "20000 100000\n");
        }
        write(root.path(), "sys/fs/cgroup/free/cpu.max", "max 100000\n");
        for (group, is_unknown) in [("/ours", false), ("/free", false), ("/../web", true), ("/gone", true)] {
            write(root.path(), "proc/7/cgroup", &format!("0::{group}\n"));
            let program = quota(root.path(), |_| (), 7);
            assert_eq!((program.quota, program.quota_unknown.is_some()), (None, is_unknown), "{group}");
        }
        let moved = |root: &Path| write(root, "proc/7/cgroup", "0::/ours\n");
        assert_eq!(quota(root.path(), moved, 7).quota, None, "it was elsewhere before");
    }
}

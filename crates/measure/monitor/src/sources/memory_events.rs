//! How often the control group of this process met its memory limits.
//!
//! Version 2 of control groups counts in `memory.events` (Documentation/admin-guide/cgroup-v2.rst). Version 1 has no count of the
//! soft limit; it counts allocations at the limit in `memory.failcnt`, and killed tasks in `memory.oom_control` since Linux 4.13
//! (Documentation/admin-guide/cgroup-v1/memory.rst).

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use fathom_model::names::host;

use super::{CounterSink, Source};
use crate::{
    environment::cgroup,
    procfs::{fields, lines, number},
};

/// Each file with its keys and the counters of these; an empty key is a file with a single number.
const FILES: [(&str, &[(&str, &str)]); 3] = [
    (
        "memory.events",
        &[("high", host::CGROUP_MEMORY_HIGH), ("max", host::CGROUP_MEMORY_MAX), ("oom_kill", host::CGROUP_OOM_KILLS)],
    ),
    ("memory.failcnt", &[("", host::CGROUP_MEMORY_MAX)]),
    ("memory.oom_control", &[("oom_kill", host::CGROUP_OOM_KILLS)]),
];
/// More than any of these files has.
const ROOM: usize = 1024;

/// A file of the group with what is read from it.
struct EventFile {
    file: File,
    keys: &'static [(&'static str, &'static str)],
}

pub(super) struct MemoryEvents {
    /// The files of the process's group; `None` before the first sample.
    files: Option<Vec<EventFile>>,
}

impl MemoryEvents {
    pub(super) const fn new() -> Self {
        Self { files: None }
    }
}

impl Source for MemoryEvents {
    fn name(&self) -> &'static str {
        "memory events"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::CGROUP_MEMORY_HIGH, host::CGROUP_MEMORY_MAX, host::CGROUP_OOM_KILLS]
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn is_below_sys(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let files = self.files.get_or_insert_with(|| files_of(cgroup::memory_groups(root)));
        for EventFile { file, keys } in files {
            let mut text = [0; ROOM];
            let size = file.read_at(&mut text, 0).map_err(cgroup::reading_error)?;
            for line in lines(&text[..size]) {
                let mut words = fields(line);
                let (Some(first), second) = (words.next(), words.next()) else { continue };
                let (key, value) = second.map_or((&b""[..], first), |second| (first, second));
                let asked = keys.iter().find(|(wanted, _)| wanted.as_bytes() == key);
                if let (Some((_, counter)), Some(value)) = (asked, number(value)) {
                    out.value(counter, "", value);
                }
            }
        }
        Ok(())
    }
}

/// Returns the files of the first group that has some: a group counts what happens in the groups below it too.
fn files_of(groups: impl Iterator<Item = PathBuf>) -> Vec<EventFile> {
    let of_group = |group: PathBuf| -> Vec<EventFile> {
        let open =
            |(name, keys): (&str, &'static [_])| Some(EventFile { file: File::open(group.join(name)).ok()?, keys });
        FILES.into_iter().filter_map(open).collect()
    };
    groups.map(of_group).find(|files| !files.is_empty()).unwrap_or_default()
}

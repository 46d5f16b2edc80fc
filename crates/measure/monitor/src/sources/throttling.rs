//! Time that a quota of a control group took from this process: `cpu.stat` of its groups (Documentation/scheduler/sched-bwc.rst).

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use fathom_model::names::host;

use super::{CounterSink, Source};
use crate::{
    environment::cgroup,
    procfs::{fields, lines, number},
};

/// More than any of these files has.
const ROOM: usize = 4096;

pub(super) struct Throttling {
    /// The files of the process's groups; `None` before the first sample.
    files: Option<Vec<File>>,
}

impl Throttling {
    pub(super) const fn new() -> Self {
        Self { files: None }
    }
}

impl Source for Throttling {
    fn name(&self) -> &'static str {
        "throttling"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::CGROUP_THROTTLED_NS]
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn is_below_sys(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let files = match &self.files {
            Some(files) => files,
            None => self.files.insert(files_of_groups(root)?),
        };
        let mut text = [0; ROOM];
        let mut all: Option<u64> = None;
        for file in files {
            let size = file.read_at(&mut text, 0).map_err(cgroup::reading_error)?;
            // A group without a quota has no such line, and nothing was taken.
            *all.get_or_insert(0) += throttled_ns(&text[..size]).unwrap_or(0);
        }
        if let Some(all) = all {
            out.value(host::CGROUP_THROTTLED_NS, "", all);
        }
        Ok(())
    }
}

/// Opens the files of the groups that have one.
fn files_of_groups(root: &Path) -> io::Result<Vec<File>> {
    let opened = cgroup::cpu_groups(root).map(|group| File::open(group.join("cpu.stat")));
    let is_there =
        |opened: &io::Result<File>| !opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    opened.filter(is_there).collect()
}

/// Returns the periods in which a group was throttled.
pub(crate) fn n_throttled(text: &[u8]) -> Option<u64> {
    lines(text).find_map(|line| {
        let mut fields = fields(line);
        (fields.next()? == b"nr_throttled").then_some(number(fields.next()?)?)
    })
}

/// Returns the throttled time: microseconds in version 2 of control groups, nanoseconds in version 1.
pub(crate) fn throttled_ns(text: &[u8]) -> Option<u64> {
    lines(text).find_map(|line| {
        let mut fields = fields(line);
        let factor = match fields.next()? {
            b"throttled_usec" => 1_000,
            b"throttled_time" => 1,
            _ => return None,
        };
        number::<u64>(fields.next()?)?.checked_mul(factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_generations_of_groups_tell_how_long_they_were_throttled() {
        assert_eq!(throttled_ns(b"usage_usec 7\nnr_throttled 2\nthrottled_usec 150\n"), Some(150_000));
        assert_eq!(throttled_ns(b"nr_periods 102\nnr_throttled 96\nthrottled_time 6700000000\n"), Some(6_700_000_000));
        assert_eq!(n_throttled(b"nr_periods 102\nnr_throttled 96\nthrottled_time 6700000000\n"), Some(96));
        assert_eq!(throttled_ns(b"usage_usec 7\n"), None);
    }
}

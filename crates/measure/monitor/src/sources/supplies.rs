//! Supplies of this process and its namespace that can run out: file descriptors, and local ports for connections.
//!
//! The kernel tells the number of open descriptors since Linux 6.2, as the size of `/proc/self/fd`; on older ones it would have to be
//! counted, which takes longer than a sample may with many sockets open.

use std::{fs, io, path::Path};

use fathom_model::names::host;

use super::{CounterSink, Source};
use crate::procfs::{ProcFile, fields, lines, number};

pub(super) struct Supplies {
    limits: ProcFile,
    ports: ProcFile,
}

impl Supplies {
    pub(super) const fn new() -> Self {
        Self {
            limits: ProcFile::new("proc/self/limits"),
            ports: ProcFile::new("proc/sys/net/ipv4/ip_local_port_range"),
        }
    }
}

impl Source for Supplies {
    fn name(&self) -> &'static str {
        "supplies"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::DESCRIPTORS_OPEN, host::DESCRIPTORS_MAX, host::LOCAL_PORTS_MAX]
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        // A recorded tree has a folder of files in this place, whose size has another meaning.
        let n_open = if root == Path::new("/") { fs::metadata("/proc/self/fd").map_or(0, |all| all.len()) } else { 0 };
        if n_open > 0 {
            out.value(host::DESCRIPTORS_OPEN, "", n_open);
        }
        let limit = self.limits.read(root).map(descriptors_max);
        if let Ok(Some(max)) = limit {
            out.value(host::DESCRIPTORS_MAX, "", max);
        }
        let n_ports = self.ports.read(root).map(n_ports);
        if let Ok(Some(n)) = n_ports {
            out.value(host::LOCAL_PORTS_MAX, "", n);
        }
        limit.and(n_ports).map(drop)
    }
}

/// Returns the soft limit; `None` if it is `unlimited`.
fn descriptors_max(limits: &[u8]) -> Option<u64> {
    let limit = lines(limits).find_map(|line| line.strip_prefix(b"Max open files"))?;
    number(fields(limit).next()?)
}

/// Returns how many ports the range has, both ends included.
fn n_ports(range: &[u8]) -> Option<u64> {
    let mut ends = fields(range);
    let (first, last): (u64, u64) = (number(ends.next()?)?, number(ends.next()?)?);
    last.checked_sub(first).map(|distance| distance + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Values(Vec<(&'static str, u64)>);

    impl CounterSink for Values {
        fn value(&mut self, name: &'static str, _: &str, value: u64) {
            self.0.push((name, value));
        }
    }

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let text = b"Limit                     Soft Limit           Hard Limit           Units     \n\
            Max processes             95977                95977                processes \n\
            Max open files            1024                 524288               files     \n";
        assert_eq!(descriptors_max(text), Some(1024));
        assert_eq!(
            descriptors_max(b"Max open files            unlimited            unlimited            files     \n"),
            None
        );
        assert_eq!(
            (n_ports(b"32768\t60999\n"), n_ports(b"60999\t32768\n"), n_ports(b"32768")),
            (Some(28_232), None, None)
        );
    }

    #[test]
    fn this_process_has_open_descriptors_and_a_limit() {
        let mut seen = Values::default();
        Supplies::new().sample(Path::new("/"), &mut seen).unwrap();
        let of = |name| seen.0.iter().find(|(seen, _)| *seen == name).map(|(_, value)| *value);
        assert!(of(host::DESCRIPTORS_MAX) >= Some(3), "{:?}", seen.0);
        assert!(of(host::DESCRIPTORS_OPEN).is_none_or(|n| n >= 3), "{:?}", seen.0);
    }
}

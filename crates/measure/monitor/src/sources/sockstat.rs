//! Sockets in use and their memory: `/proc/net/sockstat` and `sockstat6`, written by `net/ipv4/proc.c` and `net/ipv6/proc.c`. These are
//! levels, which also fall.
//!
//! The socket counts are those of the namespace, over IPv4 and IPv6 together; the memory is that of the whole host.

use std::{io, path::Path};

use fathom_model::names::host;

use super::{CounterSink, Source, counters_of};
use crate::procfs::{ProcFile, fields, lines, number};

/// The unit of a level.
#[derive(Clone, Copy)]
enum SockstatLevel {
    One,
    Page,
}

/// Each counter with its group, its key in the group, and its unit. The group of IPv6 adds to that of IPv4.
const LEVELS: [(&str, (&str, &str, SockstatLevel)); 4] = [
    (host::SOCK_TCP_IN_USE, ("TCP", "inuse", SockstatLevel::One)),
    (host::SOCK_TCP_TIME_WAIT, ("TCP", "tw", SockstatLevel::One)),
    (host::SOCK_TCP_MEMORY_BYTES, ("TCP", "mem", SockstatLevel::Page)),
    (host::SOCK_UDP_IN_USE, ("UDP", "inuse", SockstatLevel::One)),
];

pub(super) struct Sockstat {
    file: ProcFile,
    /// Absent where the kernel has no IPv6.
    file_v6: ProcFile,
    page_bytes: u64,
}

impl Sockstat {
    /// Assumes the page size of this machine.
    pub(super) fn new() -> Self {
        let page_bytes = u64::try_from(rustix::param::page_size()).expect("a page fits into 64 bits");
        Self { file: ProcFile::new("proc/net/sockstat"), file_v6: ProcFile::new("proc/net/sockstat6"), page_bytes }
    }
}

impl Source for Sockstat {
    fn name(&self) -> &'static str {
        "sockstat"
    }

    fn counters(&self) -> &'static [&'static str] {
        const { &counters_of(&LEVELS) }
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let mut levels = [None; LEVELS.len()];
        add(&mut levels, self.file.read(root)?);
        if let Ok(text) = self.file_v6.read(root) {
            add(&mut levels, text);
        }
        for ((counter, (_, _, of)), level) in LEVELS.iter().zip(levels) {
            let unit = match of {
                SockstatLevel::One => 1,
                SockstatLevel::Page => self.page_bytes,
            };
            if let Some(level) = level.and_then(|level: u64| level.checked_mul(unit)) {
                out.value(counter, "", level);
            }
        }
        Ok(())
    }
}

/// Adds the levels of a file, whose groups are called `TCP6:` and `UDP6:` in that of IPv6.
fn add(levels: &mut [Option<u64>; LEVELS.len()], text: &[u8]) {
    for line in lines(text) {
        let mut fields = fields(line);
        let Some(group) = fields.next().and_then(|group| group.strip_suffix(b":")) else { continue };
        let group = group.strip_suffix(b"6").unwrap_or(group);
        while let (Some(key), Some(value)) = (fields.next(), fields.next()) {
            let is_asked =
                |(_, (g, k, _)): &(&str, (&str, &str, SockstatLevel))| g.as_bytes() == group && k.as_bytes() == key;
            let Some(at) = LEVELS.iter().position(is_asked) else { continue };
            if let Some(value) = number::<u64>(value) {
                levels[at] = Some(levels[at].unwrap_or(0).saturating_add(value));
            }
        }
    }
}

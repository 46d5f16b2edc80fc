//! Sockets in use and their memory: `/proc/net/sockstat`, written by `net/ipv4/proc.c`. These are levels, which also fall.
//!
//! The socket counts are those of the namespace over IPv4; the memory is that of the whole host.

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

/// Each counter with its group, its key in the group, and its unit.
const LEVELS: [(&str, (&str, &str, SockstatLevel)); 4] = [
    (host::SOCK_TCP_IN_USE, ("TCP:", "inuse", SockstatLevel::One)),
    (host::SOCK_TCP_TIME_WAIT, ("TCP:", "tw", SockstatLevel::One)),
    (host::SOCK_TCP_MEMORY_BYTES, ("TCP:", "mem", SockstatLevel::Page)),
    (host::SOCK_UDP_IN_USE, ("UDP:", "inuse", SockstatLevel::One)),
];

pub(super) struct Sockstat {
    file: ProcFile,
    page_bytes: u64,
}

impl Sockstat {
    /// Assumes the page size of this machine.
    pub(super) fn new() -> Self {
        let page_bytes = u64::try_from(rustix::param::page_size()).expect("a page fits into 64 bits");
        Self { file: ProcFile::new("proc/net/sockstat"), page_bytes }
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
        for line in lines(self.file.read(root)?) {
            let mut fields = fields(line);
            let Some(group) = fields.next() else { continue };
            while let (Some(key), Some(value)) = (fields.next(), fields.next()) {
                let is_asked = |(g, k, _): &(&str, &str, SockstatLevel)| g.as_bytes() == group && k.as_bytes() == key;
                let Some((counter, (_, _, of))) = LEVELS.iter().find(|(_, level)| is_asked(level)) else { continue };
                let unit = match of {
                    SockstatLevel::One => 1,
                    SockstatLevel::Page => self.page_bytes,
                };
                if let Some(level) = number(value).and_then(|value: u64| value.checked_mul(unit)) {
                    out.value(counter, "", level);
                }
            }
        }
        Ok(())
    }
}

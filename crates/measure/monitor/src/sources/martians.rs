//! IPv4 packets whose addresses cannot be those of the interface they came from: `/proc/net/stat/rt_cache`, by `net/ipv4/route.c`.
//!
//! The counts are those of the whole machine. A source that the reverse path filter refuses is among them.

use std::{io, path::Path};

use fathom_model::names::host;

use super::{CounterSink, Source, counters_of, tables::sum_of};
use crate::procfs::ProcFile;

/// Each counter with its column.
const COLUMNS: [(&str, &str); 2] =
    [(host::IP_MARTIAN_SOURCE, "in_martian_src"), (host::IP_MARTIAN_DESTINATION, "in_martian_dst")];

pub(super) struct Martians(ProcFile);

impl Martians {
    pub(super) const fn new() -> Self {
        Self(ProcFile::new("proc/net/stat/rt_cache"))
    }
}

impl Source for Martians {
    fn name(&self) -> &'static str {
        "martians"
    }

    fn counters(&self) -> &'static [&'static str] {
        const { &counters_of(&COLUMNS) }
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let text = self.0.read(root)?;
        for (counter, column) in COLUMNS {
            if let Some(sum) = sum_of(text, column) {
                out.value(counter, "", sum);
            }
        }
        Ok(())
    }
}

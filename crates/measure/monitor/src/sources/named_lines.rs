//! Files with pairs of lines, names above values: `/proc/net/snmp` and `/proc/net/netstat`.
//!
//! The names differ between kernels, so values are found by name. Names that are not wanted are skipped, and wanted names that
//! are missing yield no value.

use std::{io, path::Path};

use super::{CounterSink, Source};
use crate::procfs::{ProcFile, fields, lines, number};

/// A counter with its group and name in the file, such as `Udp:` and `NoPorts`.
pub(super) type NamedCounter = (&'static str, (&'static str, &'static str));

/// The source for one such file.
pub(super) struct NamedLines {
    pub(super) name: &'static str,
    pub(super) file: ProcFile,
    pub(super) counters: &'static [NamedCounter],
    /// Our names of these counters.
    pub(super) counter_names: &'static [&'static str],
}

impl Source for NamedLines {
    fn name(&self) -> &'static str {
        self.name
    }

    fn counters(&self) -> &'static [&'static str] {
        self.counter_names
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let mut above: Option<&[u8]> = None;
        for line in lines(self.file.read(root)?) {
            match above.take() {
                Some(names) if pair(names, line) => record(names, line, self.counters, out),
                _ => above = Some(line),
            }
        }
        Ok(())
    }
}

/// Whether two lines belong together: the same group, and as many values as names, so that no value gets the wrong name.
fn pair(names: &[u8], values: &[u8]) -> bool {
    fields(names).next() == fields(values).next() && fields(names).count() == fields(values).count()
}

fn record(names: &[u8], values: &[u8], counters: &[NamedCounter], out: &mut dyn CounterSink) {
    let Some(group) = fields(names).next() else { return };
    for (name, value) in fields(names).zip(fields(values)).skip(1) {
        let known = counters.iter().find(|(_, (g, n))| g.as_bytes() == group && n.as_bytes() == name);
        if let (Some((counter, _)), Some(value)) = (known, number(value)) {
            out.value(counter, "", value);
        }
    }
}

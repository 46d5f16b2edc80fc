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
    name: &'static str,
    file: ProcFile,
    counters: &'static [NamedCounter],
    /// Our names of these counters.
    counter_names: &'static [&'static str],
    /// The columns of each line of names, in their order.
    layouts: Vec<Columns>,
}

impl NamedLines {
    pub(super) const fn new(
        name: &'static str,
        file: ProcFile,
        counters: &'static [NamedCounter],
        counter_names: &'static [&'static str],
    ) -> Self {
        Self { name, file, counters, counter_names, layouts: Vec::new() }
    }
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
        let mut n_pairs = 0;
        for line in lines(self.file.read(root)?) {
            let Some(names) = above.replace(line) else { continue };
            if self.layouts.get(n_pairs).is_none_or(|columns| columns.names != names) {
                self.layouts.truncate(n_pairs);
                self.layouts.push(Columns::of(names, self.counters));
            }
            let columns = &self.layouts[n_pairs];
            if columns.fit(line) {
                columns.record(line, out);
                above = None;
                n_pairs += 1;
            }
        }
        Ok(())
    }
}

/// A line of names, and which counter stands in each column below it. A kernel's names stay the same, so they are looked up once.
struct Columns {
    names: Vec<u8>,
    /// The first column has the name of the group, and no counter.
    counters: Vec<Option<&'static str>>,
}

impl Columns {
    fn of(names: &[u8], known: &[NamedCounter]) -> Self {
        let group = fields(names).next().unwrap_or_default();
        let counter = |name: &[u8]| {
            known.iter().find(|(_, (g, n))| g.as_bytes() == group && n.as_bytes() == name).map(|(counter, _)| *counter)
        };
        Self { names: names.to_owned(), counters: fields(names).map(counter).collect() }
    }

    /// Whether a line has the values of these names: the same group, and as many values as names, so that no value gets the wrong name.
    fn fit(&self, values: &[u8]) -> bool {
        fields(values).next() == fields(&self.names).next() && fields(values).count() == self.counters.len()
    }

    fn record(&self, values: &[u8], out: &mut dyn CounterSink) {
        for (counter, value) in self.counters.iter().zip(fields(values)) {
            if let (Some(counter), Some(value)) = (counter, number(value)) {
                out.value(counter, "", value);
            }
        }
    }
}

//! Tables of the kernel that can be full: connection tracking and neighbors (`/proc/net/stat/*`, by
//! `net/netfilter/nf_conntrack_standalone.c` and `net/core/neighbour.c`).
//!
//! A namespace without connection tracking has no such file, and its table is empty. The neighbor tables are those of the whole
//! machine: only its first namespace shows them, so they are read as the first process sees them, and are absent for a user who may
//! not look there.

use std::{io, path::Path, str};

use fathom_model::names::host;

use super::{CounterSink, Source};
use crate::procfs::{ProcFile, fields, lines, number};

/// A table with its failures: each counter with its column.
struct StatTable {
    file: ProcFile,
    /// The instance of the counters.
    of: &'static str,
    columns: &'static [(&'static str, &'static str)],
}

const CONNTRACK: &[(&str, &str)] = &[
    (host::CONNTRACK_INSERT_FAILED, "insert_failed"),
    (host::CONNTRACK_DROPPED, "drop"),
    (host::CONNTRACK_EVICTED, "early_drop"),
];
const NEIGHBORS: &[(&str, &str)] =
    &[(host::NEIGHBOR_TABLE_FULL, "table_fulls"), (host::NEIGHBOR_UNRESOLVED, "unresolved_discards")];

pub(super) struct Tables {
    failures: [StatTable; 3],
    sizes: [(&'static str, ProcFile); 2],
}

impl Tables {
    pub(super) const fn new() -> Self {
        Self {
            failures: [
                StatTable { file: ProcFile::new("proc/net/stat/nf_conntrack"), of: "", columns: CONNTRACK },
                StatTable { file: ProcFile::new("proc/1/net/stat/arp_cache"), of: "", columns: NEIGHBORS },
                StatTable { file: ProcFile::new("proc/1/net/stat/ndisc_cache"), of: "ipv6", columns: NEIGHBORS },
            ],
            sizes: [
                (host::CONNTRACK_ENTRIES, ProcFile::new("proc/sys/net/netfilter/nf_conntrack_count")),
                (host::CONNTRACK_ENTRIES_MAX, ProcFile::new("proc/sys/net/netfilter/nf_conntrack_max")),
            ],
        }
    }
}

impl Source for Tables {
    fn name(&self) -> &'static str {
        "tables"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[
            host::CONNTRACK_INSERT_FAILED,
            host::CONNTRACK_DROPPED,
            host::CONNTRACK_EVICTED,
            host::CONNTRACK_ENTRIES,
            host::CONNTRACK_ENTRIES_MAX,
            host::NEIGHBOR_TABLE_FULL,
            host::NEIGHBOR_UNRESOLVED,
        ]
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        for table in &mut self.failures {
            let Ok(text) = table.file.read(root) else { continue };
            for (counter, column) in table.columns {
                if let Some(sum) = sum_of(text, column) {
                    out.value(counter, table.of, sum);
                }
            }
        }
        for (counter, file) in &mut self.sizes {
            match file.read(root).map(|text| number(text.trim_ascii())) {
                Ok(Some(size)) => out.value(counter, "", size),
                // A kernel or namespace that tracks no connections has no such file.
                Err(error) if error.kind() == io::ErrorKind::NotFound && *counter == host::CONNTRACK_ENTRIES => {
                    out.value(counter, "", 0);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the sum of a column over all cores, each of which has a line; `None` if no column has this name.
pub(super) fn sum_of(text: &[u8], column: &str) -> Option<u64> {
    let mut all = lines(text);
    let place = fields(all.next()?).position(|name| name == column.as_bytes())?;
    let of_core = |line| hexadecimal(fields(line).nth(place)?);
    all.filter(|line| !line.is_empty()).try_fold(0_u64, |sum, line| sum.checked_add(of_core(line)?))
}

fn hexadecimal(field: &[u8]) -> Option<u64> {
    u64::from_str_radix(str::from_utf8(field).ok().filter(|text| !text.starts_with('+'))?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_found_by_its_name_and_summed_over_the_cores() {
        let text = b"entries  table_fulls\n00000004 0000000a\n00000004 00000010\n";
        assert_eq!((sum_of(text, "table_fulls"), sum_of(text, "drop")), (Some(26), None));
        assert_eq!(sum_of(b"entries table_fulls\n00000004\n", "table_fulls"), None, "a cut line is not summed");
    }
}

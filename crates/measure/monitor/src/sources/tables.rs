//! Tables of the kernel that can be full: connection tracking and neighbors (`/proc/net/stat/*`, by
//! `net/netfilter/nf_conntrack_standalone.c` and `net/core/neighbour.c`).
//!
//! A kernel or a namespace that tracks no connections shows neither of the two files about them, and its table is empty. The neighbor tables are those
//! of the whole machine: only its first namespace shows them, so they are read as the first process sees them, and are absent for a user who may
//! not look there.

use std::{io, path::Path, str};

use fathom_model::names::host;

use super::{CounterSink, SampleLosses, Source};
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

/// Folders that every kernel with a network has, whatever it tracks. Where one is hidden, so may be the files of connection tracking.
const ALWAYS_THERE: [&str; 2] = ["proc/net/stat", "proc/sys/net"];
/// A file that every kernel with IPv6 has.
const OF_IPV6: &str = "proc/net/snmp6";

pub(super) struct Tables {
    connections: StatTable,
    entries: ProcFile,
    entries_max: ProcFile,
    /// The tables of ARP and of neighbor discovery.
    neighbors: [StatTable; 2],
}

impl Tables {
    pub(super) const fn new() -> Self {
        Self {
            connections: StatTable { file: ProcFile::new("proc/net/stat/nf_conntrack"), of: "", columns: CONNTRACK },
            entries: ProcFile::new("proc/sys/net/netfilter/nf_conntrack_count"),
            entries_max: ProcFile::new("proc/sys/net/netfilter/nf_conntrack_max"),
            neighbors: [
                StatTable { file: ProcFile::new("proc/1/net/stat/arp_cache"), of: "", columns: NEIGHBORS },
                StatTable { file: ProcFile::new("proc/1/net/stat/ndisc_cache"), of: "ipv6", columns: NEIGHBORS },
            ],
        }
    }

    fn sample_connections(&mut self, root: &Path, out: &mut dyn CounterSink, losses: &mut SampleLosses) {
        let failures = self.connections.sample(root, out);
        let entries = size(&mut self.entries, root);
        if is_missing(&failures) && is_missing(&entries) && ALWAYS_THERE.iter().all(|folder| root.join(folder).exists())
        {
            out.value(host::CONNTRACK_ENTRIES, "", 0);
            return;
        }
        if let Err(error) = failures {
            losses.add(error);
        }
        match entries {
            Ok(entries) => {
                out.value(host::CONNTRACK_ENTRIES, "", entries);
                match size(&mut self.entries_max, root) {
                    Ok(max) => out.value(host::CONNTRACK_ENTRIES_MAX, "", max),
                    Err(error) => losses.add(error),
                }
            }
            Err(error) => losses.add(error),
        }
    }

    fn sample_neighbors(&mut self, root: &Path, out: &mut dyn CounterSink, losses: &mut SampleLosses) {
        let [arp, discovery] = &mut self.neighbors;
        let (arp, discovery) = (arp.sample(root, out), discovery.sample(root, out));
        match (arp, discovery) {
            // What hides one table hides the other.
            (Err(arp), Err(discovery)) if arp.kind() == discovery.kind() => losses.add(unseen(root, &arp)),
            (arp, discovery) => {
                // A kernel without IPv6 has no such table.
                let lacks_ipv6 = is_missing(&discovery) && !root.join(OF_IPV6).exists();
                let discovery = discovery.err().filter(|_| !lacks_ipv6);
                arp.err().iter().chain(&discovery).for_each(|error| losses.add(unseen(root, error)));
            }
        }
    }
}

impl StatTable {
    /// Records the counters whose columns are there.
    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let path = self.file.path();
        let text = self.file.read(root)?;
        let mut missing = None;
        for (counter, column) in self.columns {
            match sum_of(text, column) {
                Some(sum) => out.value(counter, self.of, sum),
                None => missing = missing.or(Some(column)),
            }
        }
        missing.map_or(Ok(()), |column| Err(io::Error::other(format!("/{path} has no column {column}"))))
    }
}

/// Reads a file with a single number.
fn size(file: &mut ProcFile, root: &Path) -> io::Result<u64> {
    let path = file.path();
    let size = number(file.read(root)?.trim_ascii());
    size.ok_or_else(|| io::Error::other(format!("/{path} has no number")))
}

fn is_missing<T>(read: &io::Result<T>) -> bool {
    read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns why a table of neighbors was not read.
fn unseen(root: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if !root.join("proc/1").exists() => format!("{error}: /proc hides the first process"),
        io::ErrorKind::NotFound => {
            format!("{error}: only the first network namespace of a machine shows its neighbor tables")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{error}: /proc shows the first process to root only (hidepid)")
        }
        _ => error.to_string(),
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
        let mut losses = SampleLosses::default();
        self.sample_connections(root, out, &mut losses);
        self.sample_neighbors(root, out, &mut losses);
        losses.told()
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
    use std::fs;

    use super::*;

    #[derive(Default)]
    struct Values(Vec<(&'static str, u64)>);

    impl CounterSink for Values {
        fn value(&mut self, name: &'static str, of: &str, value: u64) {
            if of.is_empty() {
                self.0.push((name, value));
            }
        }
    }

    const ARP: (&str, &str) = ("proc/1/net/stat/arp_cache", "table_fulls unresolved_discards\n00000002 0000000b\n");
    const TRACKED: (&str, &str) =
        ("proc/net/stat/nf_conntrack", "insert_failed drop early_drop\n00000004 00000010 00000001\n");
    const COUNT: (&str, &str) = ("proc/sys/net/netfilter/nf_conntrack_count", "7\n");
    const MAX: (&str, &str) = ("proc/sys/net/netfilter/nf_conntrack_max", "262144\n");
    const OTHER_STAT: (&str, &str) = ("proc/net/stat/rt_cache", "");
    const OTHER_SETTING: (&str, &str) = ("proc/sys/net/core/somaxconn", "4096\n");

    /// Returns the reason of a sample of these files, and the entries of the connection table.
    fn sampled(files: &[(&str, &str)]) -> (Option<String>, Option<u64>) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut values = Values::default();
        let why = Tables::new().sample(root.path(), &mut values).err().map(|error| error.to_string());
        (why, values.0.iter().find(|(name, _)| *name == host::CONNTRACK_ENTRIES).map(|(_, n)| *n))
    }

    #[test]
    fn a_kernel_that_tracks_no_connections_has_an_empty_table_and_a_hidden_one_is_unknown() {
        let missing = |path: &str| format!("cannot read /{path}: No such file or directory (os error 2)");
        let both = format!("{}; {}", missing(TRACKED.0), missing(COUNT.0));
        for (files, expected) in [
            (&[ARP, OTHER_STAT, OTHER_SETTING][..], (None, Some(0))),
            (&[ARP, OTHER_STAT], (Some(both.clone()), None)),
            (&[ARP, OTHER_SETTING], (Some(both), None)),
            (&[ARP, TRACKED, OTHER_SETTING], (Some(missing(COUNT.0)), None)),
            (&[ARP, OTHER_STAT, COUNT, MAX], (Some(missing(TRACKED.0)), Some(7))),
            (&[ARP, TRACKED, COUNT], (Some(missing(MAX.0)), Some(7))),
            (&[ARP, TRACKED, COUNT, MAX], (None, Some(7))),
            (&[ARP, TRACKED, (COUNT.0, ""), MAX], (Some(format!("/{} has no number", COUNT.0)), None)),
        ] {
            assert_eq!(sampled(files), expected, "{files:?}");
        }
    }

    #[test]
    fn neighbor_tables_that_are_not_shown_are_told_once_and_a_kernel_without_ipv6_has_one() {
        let tracking = [TRACKED, COUNT, MAX];
        let why = |more: &[(&str, &str)]| sampled(&[&tracking, more].concat()).0;
        let missing = "cannot read /proc/1/net/stat/arp_cache: No such file or directory (os error 2)";
        assert_eq!(why(&[]).unwrap(), format!("{missing}: /proc hides the first process"));
        let of_container = ("proc/1/net/dev", "");
        let only = "only the first network namespace of a machine shows its neighbor tables";
        assert_eq!(why(&[of_container]).unwrap(), format!("{missing}: {only}"));
        assert_eq!(why(&[ARP]), None);
        assert!(why(&[ARP, (OF_IPV6, "")]).unwrap().starts_with("cannot read /proc/1/net/stat/ndisc_cache: "));
        let old = (ARP.0, "unresolved_discards\n0000000b\n");
        assert_eq!(why(&[old]).unwrap(), "/proc/1/net/stat/arp_cache has no column table_fulls");
    }

    #[test]
    fn a_column_is_found_by_its_name_and_summed_over_the_cores() {
        let text = b"entries  table_fulls\n00000004 0000000a\n00000004 00000010\n";
        assert_eq!((sum_of(text, "table_fulls"), sum_of(text, "drop")), (Some(26), None));
        assert_eq!(sum_of(b"entries table_fulls\n00000004\n", "table_fulls"), None, "a cut line is not summed");
    }
}

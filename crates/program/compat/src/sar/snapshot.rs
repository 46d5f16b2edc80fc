//! The counters that sar reports, as the kernel shows them at one time.

use std::{collections::BTreeMap, fs, path::Path};

use fathom_model::units::Nanos;

use super::reports::{Report, RowsOf};

/// The columns of an interface in `/proc/net/dev`, in the order of the file.
const DEVICE_KEYS: [&str; 16] = [
    "rx_bytes",
    "rx_packets",
    "rx_errors",
    "rx_dropped",
    "rx_fifo",
    "rx_frame",
    "rx_compressed",
    "rx_multicast",
    "tx_bytes",
    "tx_packets",
    "tx_errors",
    "tx_dropped",
    "tx_fifo",
    "tx_collisions",
    "tx_carrier",
    "tx_compressed",
];
/// The columns of a core in `/proc/stat`, in ticks.
const CORE_KEYS: [&str; 10] =
    ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"];
/// The columns of a core in `/proc/net/softnet_stat`: what is not reported has no name.
const SOFTNET_KEYS: [&str; 13] =
    ["processed", "dropped", "squeezed", "", "", "", "", "", "", "rps", "flow_limit", "backlog", "core"];

/// The row of all cores.
pub(super) const ALL: &str = "all";

/// The values of one kind of row, by row and key.
pub(super) type Rows = BTreeMap<String, BTreeMap<String, u64>>;

/// All counters at one time.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    /// The monotonic time.
    pub(super) at: Nanos,
    /// The interfaces in the order of the kernel.
    pub(super) order: Vec<String>,
    pub(super) interfaces: Rows,
    /// `all`, then cores by number.
    pub(super) cores: Rows,
    pub(super) softnet: Rows,
    /// The whole host, under an empty name: `Tcp.InSegs`, `Ip6InReceives`, `TCP.inuse`.
    pub(super) host: Rows,
    /// Why a file could not be read, by its path below `/proc`.
    failures: BTreeMap<&'static str, String>,
}

impl Snapshot {
    /// Reads the files under a root. What cannot be read is missing, with the reason.
    pub(super) fn read(root: &Path, at: Nanos) -> Self {
        let mut failures = BTreeMap::new();
        let mut text = |path: &'static str| {
            fs::read_to_string(root.join("proc").join(path)).unwrap_or_else(|error| {
                failures.insert(path, os_words(&error.to_string()));
                String::new()
            })
        };
        let mut host = pairs(&text("net/snmp"));
        host.extend(named_lines(&text("net/snmp6")));
        host.extend(key_values(&text("net/sockstat")));
        host.extend(key_values(&text("net/sockstat6")));
        let (order, interfaces) = devices(&text("net/dev"));
        let (cores, softnet) = (cores(&text("stat")), softnet(&text("net/softnet_stat")));
        Self { at, order, interfaces, cores, softnet, host: Rows::from([(String::new(), host)]), failures }
    }

    /// Returns the rows of this kind.
    pub(super) fn of(&self, rows: RowsOf) -> &Rows {
        match rows {
            RowsOf::Host => &self.host,
            RowsOf::Interfaces => &self.interfaces,
            RowsOf::Cores => &self.cores,
            RowsOf::Softnet => &self.softnet,
        }
    }

    /// Returns why a report has no values, in the words of sar; `None` if it has some.
    pub(super) fn failure(&self, report: &Report) -> Option<String> {
        let path = report.file;
        if let Some(why) = self.failures.get(path) {
            return Some(format!("Cannot open /proc/{path}: {why}"));
        }
        let is_known = self.of(report.rows).values().any(|row| report.keys().any(|key| row.contains_key(key)));
        // A container may put an empty file in the place of one of the kernel.
        (!is_known).then(|| format!("Cannot read /proc/{path}: none of its counters was found"))
    }

    /// Returns the same rows as they were when the system started: at time zero, with all counters at zero.
    pub(super) fn at_start(&self) -> Self {
        let mut zeroed = Self { at: Nanos::ZERO, ..self.clone() };
        for rows in [&mut zeroed.interfaces, &mut zeroed.cores, &mut zeroed.softnet, &mut zeroed.host] {
            rows.values_mut().flat_map(BTreeMap::values_mut).for_each(|value| *value = 0);
        }
        zeroed
    }
}

/// Returns the number of cores as sysstat counts them: the folders of `/sys`, those that are offline among them, or without it the lines of
/// `/proc/stat`.
pub(super) fn core_count(root: &Path) -> usize {
    let is_core = |name: &str| name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok());
    let entries = fs::read_dir(root.join("sys/devices/system/cpu")).into_iter().flatten().flatten();
    match entries.filter(|entry| entry.file_name().to_str().is_some_and(is_core)).count() {
        0 => {
            let stat = fs::read_to_string(root.join("proc/stat")).unwrap_or_default();
            stat.lines().filter(|line| line.split(' ').next().is_some_and(is_core)).count()
        }
        n => n,
    }
}

/// Removes the number from an error of the system, which sar does not tell.
fn os_words(text: &str) -> String {
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Parses pairs of lines, names above values, as in `/proc/net/snmp`.
fn pairs(text: &str) -> BTreeMap<String, u64> {
    let lines: Vec<&str> = text.lines().collect();
    let of_pair = |pair: &[&str]| {
        let (group, names) = pair[0].split_once(':')?;
        let values = pair[1].strip_prefix(group)?.strip_prefix(':')?.to_owned();
        let named: Vec<(String, u64)> = names
            .split_whitespace()
            .zip(values.split_whitespace())
            .filter_map(|(name, value)| Some((format!("{group}.{name}"), value.parse().ok()?)))
            .collect();
        Some(named)
    };
    lines.chunks_exact(2).filter_map(of_pair).flatten().collect()
}

/// Parses a name and a value per line, as in `/proc/net/snmp6`.
fn named_lines(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Parses `TCP: inuse 3 orphan 0 tw 1`.
fn key_values(text: &str) -> BTreeMap<String, u64> {
    let of_line = |line: &str| {
        let (group, rest) = line.split_once(':')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let named =
            words.chunks_exact(2).filter_map(|pair| Some((format!("{group}.{}", pair[0]), pair[1].parse().ok()?)));
        Some(named.collect::<Vec<_>>())
    };
    text.lines().filter_map(of_line).flatten().collect()
}

fn devices(text: &str) -> (Vec<String>, Rows) {
    let mut order = Vec::new();
    let mut rows = Rows::new();
    for (name, values) in text.lines().filter_map(|line| line.rsplit_once(':')) {
        let name = name.trim().to_owned();
        rows.insert(name.clone(), by_key(&DEVICE_KEYS, values.split_whitespace().map(|value| value.parse().ok())));
        order.push(name);
    }
    (order, rows)
}

fn by_key(keys: &[&str], values: impl Iterator<Item = Option<u64>>) -> BTreeMap<String, u64> {
    let known = keys.iter().zip(values).filter(|(key, _)| !key.is_empty());
    known.filter_map(|(key, value)| Some(((*key).to_owned(), value?))).collect()
}

fn cores(text: &str) -> Rows {
    let row = |line: &str| {
        let (name, values) = line.strip_prefix("cpu")?.split_once(' ')?;
        let name = if name.is_empty() { ALL } else { name };
        let values = values.split_whitespace().map(|value| value.parse().ok());
        Some((name.to_owned(), by_key(&CORE_KEYS, values)))
    };
    text.lines().filter_map(row).collect()
}

fn softnet(text: &str) -> Rows {
    let mut rows = Rows::new();
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    for (nth, line) in text.lines().enumerate() {
        let values = line.split_whitespace().map(|value| u64::from_str_radix(value, 16).ok());
        let mut row = by_key(&SOFTNET_KEYS, values);
        // Kernels before 5.10 do not write the number of the core.
        let core = row.remove("core").map_or_else(|| nth.to_string(), |core| core.to_string());
        for (key, value) in &row {
            *all.entry(key.clone()).or_default() += value;
        }
        rows.insert(core, row);
    }
    rows.insert(ALL.to_owned(), all);
    rows
}

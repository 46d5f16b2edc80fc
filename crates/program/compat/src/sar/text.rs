//! Intervals and averages in sar's text.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use fathom_model::units::{approximate, rounded};

use super::{
    options::{Cores, Options},
    reports::{Column, Report, RowsOf, Value},
    snapshot::{ALL, Snapshot},
};

/// An interval with the times at which it began and ended.
pub(super) struct Interval<'a> {
    pub(super) earlier: &'a Snapshot,
    pub(super) later: &'a Snapshot,
    pub(super) from: &'a str,
    pub(super) to: &'a str,
}

impl Interval<'_> {
    /// Returns the value that a counter grew from; `None` if it counts from now.
    ///
    /// As in sysstat, an interface that appeared counts from zero. If one of its counters fell, it was made anew, and does so too.
    fn before(&self, report: &Report, row: &str, key: &str) -> Option<u64> {
        let [earlier, later] = [self.earlier, self.later].map(|sample| sample.of(report.rows).get(row));
        if report.rows != RowsOf::Interfaces {
            return earlier?.get(key).copied();
        }
        let fell = |earlier: &BTreeMap<String, u64>, key: &str| later.and_then(|row| row.get(key)) < earlier.get(key);
        let is_same = |earlier: &&BTreeMap<String, u64>| !report.keys().any(|key| fell(earlier, key));
        Some(earlier.filter(is_same).and_then(|row| row.get(key)).copied().unwrap_or(0))
    }
}

/// Writes the reports of one command line.
pub(super) struct Page<'a> {
    options: &'a Options,
    root: &'a Path,
    /// A single report with a single row has its titles once.
    is_plain: bool,
}

impl<'a> Page<'a> {
    pub(super) fn new(options: &'a Options, root: &'a Path) -> Self {
        let is_plain = matches!(options.reports[..], [only] if options.has_one_row(only));
        Self { options, root, is_plain }
    }

    /// Returns why a report has no values in a sample; `None` if all have some.
    pub(super) fn failure(&self, sample: &Snapshot) -> Option<String> {
        self.options.reports.iter().find_map(|report| sample.failure(report))
    }

    /// Returns the text of an interval.
    pub(super) fn interval(&self, interval: &Interval<'_>, is_first: bool) -> String {
        self.text(interval, !self.is_plain || is_first)
    }

    /// Returns the averages from the first sample to the last, whose gauges are means already.
    pub(super) fn average(&self, first: &Snapshot, last: &Snapshot) -> String {
        self.text(&Interval { earlier: first, later: last, from: "Average:", to: "Average:" }, !self.is_plain)
    }

    fn text(&self, interval: &Interval<'_>, has_titles: bool) -> String {
        let mut text = String::new();
        for report in &self.options.reports {
            if has_titles {
                let _ = writeln!(
                    text,
                    "\n{}",
                    line(interval.from, report, report.row_title, |column| column.title.to_owned())
                );
            }
            for row in self.rows(report, interval.later) {
                let cell = |column: &Column| self.cell(column, report, interval, &row);
                let _ = writeln!(text, "{}", line(interval.to, report, &row, cell));
            }
        }
        text
    }

    /// Returns the names of the rows of a report.
    fn rows(&self, report: &Report, later: &Snapshot) -> Vec<String> {
        let known = later.of(report.rows);
        match (report.rows, &self.options.cores) {
            (RowsOf::Host, _) => vec![String::new()],
            (RowsOf::Interfaces, _) => {
                let asked = &self.options.interfaces;
                later.order.iter().filter(|name| asked.is_empty() || asked.contains(name)).cloned().collect()
            }
            (_, Cores::Together) => vec![ALL.to_owned()],
            (_, Cores::Every) => {
                let mut cores: Vec<(u32, &String)> =
                    known.keys().filter_map(|name| Some((name.parse().ok()?, name))).collect();
                cores.sort_unstable();
                std::iter::once(ALL.to_owned()).chain(cores.into_iter().map(|(_, name)| name.clone())).collect()
            }
            (_, Cores::Named(names)) => names.iter().filter(|name| known.contains_key(*name)).cloned().collect(),
        }
    }

    fn cell(&self, column: &Column, report: &Report, interval: &Interval<'_>, row: &str) -> String {
        let later = interval.later.of(report.rows).get(row);
        let decimals = self.options.decimals;
        let growth = |keys: &[&str]| -> f64 {
            let of_key = |key: &&str| {
                let now = later?.get(*key)?;
                Some(approximate(now.saturating_sub(interval.before(report, row, key).unwrap_or(*now))))
            };
            keys.iter().filter_map(of_key).fold(0.0, |sum, growth| sum + growth)
        };
        let seconds = interval.later.at.since(interval.earlier.at).as_secs_f64();
        let per_second = |growth: f64| if seconds > 0.0 { growth / seconds } else { 0.0 };
        match column.value {
            Value::Rate(keys) => format!("{:.decimals$}", per_second(growth(keys))),
            Value::Kilobytes(keys) => format!("{:.decimals$}", per_second(growth(keys)) / 1024.0),
            Value::Gauge(keys) => {
                let value = |key: &&str| later?.get(*key).copied();
                keys.iter().filter_map(value).sum::<u64>().to_string()
            }
            Value::Share(keys, less) => {
                let ticks = growth(&ALL_TICKS);
                let share = if ticks > 0.0 { 100.0 * (growth(keys) - growth(less)).max(0.0) / ticks } else { 0.0 };
                format!("{share:.decimals$}")
            }
            Value::Utilization => {
                let (rx, tx) = (per_second(growth(&["rx_bytes"])), per_second(growth(&["tx_bytes"])));
                format!("{:.decimals$}", self.utilization(row, rx, tx))
            }
        }
    }

    /// Returns the percentage of the link's speed: of the busier direction, or of both where they share it.
    fn utilization(&self, interface: &str, rx: f64, tx: f64) -> f64 {
        let fact = |name: &str| fs::read_to_string(self.root.join("sys/class/net").join(interface).join(name)).ok();
        let speed = fact("speed").and_then(|text| text.trim().parse::<f64>().ok()).filter(|megabits| *megabits > 0.0);
        let is_half = fact("duplex").is_some_and(|text| text.trim() == "half");
        let used = if is_half { rx + tx } else { rx.max(tx) };
        speed.map_or(0.0, |megabits| 100.0 * used * 8.0 / (megabits * 1e6))
    }
}

/// The ticks of a core; those of guests are in user and nice.
const ALL_TICKS: [&str; 8] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];

/// Returns a line: the time, the row, then a cell per column, each as wide as sar makes it.
fn line(time: &str, report: &Report, row: &str, cell: impl Fn(&Column) -> String) -> String {
    let mut line = format!("{time:<11}");
    let _ = match report.row_title {
        "" => Ok(()),
        "CPU" => write!(line, " {row:>7}"),
        _ => write!(line, " {row:>9}"),
    };
    for column in report.columns {
        let _ = write!(line, " {:>9}", cell(column));
    }
    line
}

/// The sums of all gauges over the samples, for their means.
#[derive(Debug, Default)]
pub(super) struct GaugeMeans {
    n: u64,
    sums: BTreeMap<(String, String), u64>,
}

impl GaugeMeans {
    pub(super) fn add(&mut self, sample: &Snapshot) {
        self.n += 1;
        for (row, values) in sample.host.iter().chain(&sample.softnet) {
            for (key, value) in values.iter().filter(|(key, _)| is_gauge(key)) {
                let sum = self.sums.entry((row.clone(), key.clone())).or_default();
                *sum = sum.saturating_add(*value);
            }
        }
    }

    /// Returns the last sample with means in place of its gauges.
    pub(super) fn means(&self, mut last: Snapshot) -> Snapshot {
        for ((row, key), sum) in &self.sums {
            for rows in [&mut last.host, &mut last.softnet] {
                if let Some(value) = rows.get_mut(row).and_then(|values| values.get_mut(key)) {
                    // C's `%.0f` of the mean.
                    let mean = approximate(*sum) / approximate(self.n.max(1));
                    *value = rounded(mean.round_ties_even());
                }
            }
        }
        last
    }
}

/// Whether a value is no count: sockets and fragments in use, and the length of a backlog.
fn is_gauge(key: &str) -> bool {
    key == "backlog" || [".inuse", ".used", ".tw"].iter().any(|end| key.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sar::options;
    use fathom_model::units::Nanos;

    const DEV: &str = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n";

    /// Writes files of /proc with these contents, and reads them.
    fn sample(second: u64, files: &[(&str, &str)]) -> Snapshot {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/net")).unwrap();
        for (path, text) in files {
            fs::write(root.path().join("proc").join(path), text).unwrap();
        }
        Snapshot::read(root.path(), Nanos::from_secs(second))
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn shown(command: &str, earlier: &Snapshot, later: &Snapshot) -> String {
        let options = options::parse(&words(command)).unwrap();
        let interval = Interval { earlier, later, from: "10:00:00", to: "10:00:02" };
        Page::new(&options, Path::new("/nowhere")).interval(&interval, true)
    }

    #[test]
    fn interfaces_have_the_columns_and_widths_of_sar() {
        let of = |second, bytes, packets| {
            sample(second, &[("net/dev", &format!("{DEV}  eth0: {bytes} {packets} 0 4 0 0 0 2 0 0 0 0 0 0 0 0\n"))])
        };
        let text = shown("-n DEV,EDEV 2 1", &of(0, 0, 0), &of(2, 4096, 10));
        assert_eq!(
            text,
            "
10:00:00        IFACE   rxpck/s   txpck/s    rxkB/s    txkB/s   rxcmp/s   txcmp/s  rxmcst/s   %ifutil
10:00:02         eth0      5.00      0.00      2.00      0.00      0.00      0.00      0.00      0.00

10:00:00        IFACE   rxerr/s   txerr/s    coll/s  rxdrop/s  txdrop/s  txcarr/s  rxfram/s  rxfifo/s  txfifo/s
10:00:02         eth0      0.00      0.00      0.00      0.00      0.00      0.00      0.00      0.00      0.00
"
        );
    }

    #[test]
    fn an_interface_that_appears_or_is_made_anew_counts_from_zero() {
        let of = |second, name: &str, bytes| {
            sample(second, &[("net/dev", &format!("{DEV}{name}: {bytes} 400 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"))])
        };
        for (earlier, later) in
            [(of(0, "eth0", 10), of(2, "late0", 8_192)), (of(0, "eth0", 9_000), of(2, "eth0", 8_192))]
        {
            let text = shown("-n DEV --dec=0 2", &earlier, &later);
            let row = "200         0         4         0         0         0         0         0";
            assert!(text.trim_end().ends_with(row), "{text}");
        }
    }

    #[test]
    fn a_report_without_its_counters_is_an_error_with_the_path_and_the_reason() {
        let of = |command: &str, files: &[(&str, &str)]| {
            let options = options::parse(&words(command)).unwrap();
            Page::new(&options, Path::new("/nowhere")).failure(&sample(1, files))
        };
        let stat = ("stat", "cpu  1 0 0 9 0 0 0 0 0 0\ncpu0 1 0 0 9 0 0 0 0 0 0\n");
        assert_eq!(of("-u 1", &[stat]), None);
        for command in ["-u 1", "-u ALL 1"] {
            let missing = "Cannot open /proc/stat: No such file or directory";
            assert_eq!(of(command, &[]).as_deref(), Some(missing));
            let empty = "Cannot read /proc/stat: none of its counters was found";
            assert_eq!(of(command, &[("stat", "")]).as_deref(), Some(empty));
        }
        for (keyword, path) in
            [("DEV", "dev"), ("TCP", "snmp"), ("SOCK", "sockstat"), ("SOFT", "softnet_stat"), ("UDP6", "snmp6")]
        {
            let why = of(&format!("-n {keyword} 1"), &[stat]).unwrap();
            assert!(why.starts_with(&format!("Cannot open /proc/net/{path}: ")), "{why}");
        }
    }

    #[test]
    fn cores_are_shares_of_their_ticks_and_guests_count_once() {
        let of = |second, stat: &str| sample(second, &[("stat", stat)]);
        let before = of(0, "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n");
        let after = of(2, "cpu  50 10 10 100 5 5 10 10 20 0\ncpu0 50 10 10 100 5 5 10 10 20 0\n");
        let text = shown("-u 2", &before, &after);
        assert!(
            text.ends_with("10:00:02        all     25.00      5.00     12.50      2.50      5.00     50.00\n"),
            "{text}"
        );
        let text = shown("-u ALL -P ALL 2", &before, &after);
        let row =
            "     15.00      5.00      5.00      2.50      5.00      2.50      5.00     10.00      0.00     50.00\n";
        assert!(text.ends_with(&format!("all{row}10:00:02          0{row}")), "{text}");
    }

    #[test]
    fn sockets_are_told_as_they_are_and_as_their_mean() {
        let of = |second, n| {
            sample(
                second,
                &[("net/sockstat", &format!("sockets: used {n}\nTCP: inuse {n} orphan 0 tw 3 alloc 1 mem 0\n"))],
            )
        };
        let (first, second) = (of(0, 10), of(2, 20));
        let mut means = GaugeMeans::default();
        means.add(&first);
        means.add(&second);
        let options = options::parse(&words("-n SOCK 2")).unwrap();
        let average = Page::new(&options, Path::new("/nowhere")).average(&first, &means.means(second));
        assert_eq!(average, "Average:           15        15         0         0         0         3\n");
    }

    #[test]
    fn what_is_not_here_is_refused_with_what_is() {
        for (command, said) in [
            ("-r 1", "-u and -n"),
            ("-f x 1", "watch --record"),
            ("-n NOPE 1", "the keywords are DEV"),
            ("-P x 1", "-P x"),
            ("-P0-1 1", "-P0-1: -P and its list are two words"),
            ("-nDEV 1", "-nDEV: -n and its list are two words"),
            ("-uP ALL 1", "-uP: each option is a word of its own"),
            ("--dec=5 1", "--dec=5: 0, 1 or 2"),
            ("-1", "-1: the interval is a number of seconds, from 0"),
            ("-u FOO", "FOO: not an option, and not a number"),
            ("1 0", "1 0: the count is at least 1"),
            ("1 1 1", "1: nothing follows the interval and the count"),
            ("-u", "without an interval"),
            ("one", "one: not an option, and not a number"),
        ] {
            let options::Answer::Wrong(text) = options::parse(&words(command)).unwrap_err() else {
                panic!("{command}")
            };
            assert!(text.contains(said), "{command}: {text}");
        }
    }
}

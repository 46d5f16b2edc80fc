//! Samples from the JSON that sysstat's `sadf -j` writes of a file of `sar -o`.
//!
//! sysstat writes rates per second and shares of an interval. They become counters again: each grows by its rate times the
//! interval. Activities that this program does not know are ignored, and those that the file lacks are missing.

use std::{collections::BTreeMap, io::Read, vec::IntoIter};

use fathom_model::{
    Environment,
    names::host::{
        CPU_IDLE_NS, CPU_IRQ_NS, CPU_SOFTIRQ_NS, CPU_STEAL_NS, CPU_SYSTEM_NS, CPU_USER_NS, DEV_RX_BYTES,
        DEV_RX_DROPPED, DEV_RX_ERRORS, DEV_RX_FIFO, DEV_RX_FRAMES, DEV_TX_BYTES, DEV_TX_DROPPED, DEV_TX_ERRORS,
        DEV_TX_FRAMES, ICMP_IN_UNREACHABLE, IP_FRAGMENTATION_FAILS, IP_FRAGMENTS_CREATED, IP_IN_ADDRESS_ERRORS,
        IP_IN_DISCARDS, IP_IN_HEADER_ERRORS, IP_OUT_DISCARDS, IP_OUT_NO_ROUTES, IP_REASSEMBLY_FAILS, SOCK_TCP_IN_USE,
        SOCK_TCP_TIME_WAIT, SOCK_UDP_IN_USE, SOFTNET_DROPPED, SOFTNET_PROCESSED, SOFTNET_SQUEEZED, TCP_IN_ERRORS,
        TCP_IN_SEGMENTS, TCP_OUT_RESETS, TCP_OUT_SEGMENTS, TCP_RETRANS_SEGMENTS, UDP_IN_DATAGRAMS, UDP_NO_PORTS,
        UDP_OUT_DATAGRAMS,
    },
    units::{Nanos, rounded},
};
use jiff::civil::DateTime;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    samples::{Key, Samples},
    stream::{RecordingError, SampleStream},
};

/// A day of samples each second, with the activities of a large host.
const FILE_MAX: u64 = 512 << 20;
/// The longest interval that is believed: a week.
const INTERVAL_MAX: f64 = 7.0 * 86_400.0;

#[derive(Deserialize)]
struct File {
    sysstat: Sysstat,
}

#[derive(Deserialize)]
struct Sysstat {
    hosts: Vec<Host>,
}

#[derive(Deserialize)]
struct Host {
    #[serde(default)]
    nodename: String,
    #[serde(default)]
    release: String,
    #[serde(rename = "number-of-cpus")]
    n_cpus: Option<u64>,
    #[serde(default)]
    statistics: Vec<Statistics>,
}

#[derive(Deserialize)]
struct Statistics {
    timestamp: Timestamp,
    #[serde(rename = "cpu-load", default)]
    cpus: Vec<Fields>,
    /// The name of the same table in older versions, with all fields.
    #[serde(rename = "cpu-load-all", default)]
    cpus_all: Vec<Fields>,
    #[serde(default)]
    network: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Timestamp {
    date: String,
    time: String,
    #[serde(default)]
    utc: u8,
    /// Seconds, rounded.
    interval: f64,
}

/// The fields of a row, of which only numbers and the name of the instance are used.
type Fields = BTreeMap<String, Value>;

/// A counter, with the fields of which its growth is the sum.
type CounterField = (&'static str, &'static [&'static str]);

/// Shares of an interval in percent. `system` includes the interrupts where they have no field of their own.
const CPU: &[CounterField] = &[
    (CPU_USER_NS, &["user", "usr", "nice", "guest", "gnice"]),
    (CPU_SYSTEM_NS, &["system", "sys"]),
    (CPU_IRQ_NS, &["irq"]),
    (CPU_SOFTIRQ_NS, &["soft"]),
    (CPU_STEAL_NS, &["steal"]),
    (CPU_IDLE_NS, &["idle", "iowait"]),
];

/// The tables of the network: the name, the field of the instance, what is put before it, and the rates per second.
const RATES: &[(&str, &str, &str, &[CounterField])] = &[
    ("net-dev", "iface", "", &[(DEV_RX_FRAMES, &["rxpck"]), (DEV_TX_FRAMES, &["txpck"])]),
    (
        "net-edev",
        "iface",
        "",
        &[
            (DEV_RX_ERRORS, &["rxerr"]),
            (DEV_TX_ERRORS, &["txerr"]),
            (DEV_RX_DROPPED, &["rxdrop"]),
            (DEV_TX_DROPPED, &["txdrop"]),
            (DEV_RX_FIFO, &["rxfifo"]),
        ],
    ),
    (
        "softnet",
        "cpu",
        "cpu",
        &[(SOFTNET_PROCESSED, &["total"]), (SOFTNET_DROPPED, &["dropd"]), (SOFTNET_SQUEEZED, &["squeezd"])],
    ),
    ("net-ip", "", "", &[(IP_FRAGMENTS_CREATED, &["fragcrt"])]),
    (
        "net-eip",
        "",
        "",
        &[
            (IP_IN_HEADER_ERRORS, &["ihdrerr"]),
            (IP_IN_ADDRESS_ERRORS, &["iadrerr"]),
            (IP_IN_DISCARDS, &["idisc"]),
            (IP_OUT_DISCARDS, &["odisc"]),
            (IP_OUT_NO_ROUTES, &["onort"]),
            (IP_REASSEMBLY_FAILS, &["asmf"]),
            (IP_FRAGMENTATION_FAILS, &["fragf"]),
        ],
    ),
    ("net-eicmp", "", "", &[(ICMP_IN_UNREACHABLE, &["idstunr"])]),
    ("net-tcp", "", "", &[(TCP_IN_SEGMENTS, &["iseg"]), (TCP_OUT_SEGMENTS, &["oseg"])]),
    (
        "net-etcp",
        "",
        "",
        &[(TCP_RETRANS_SEGMENTS, &["retrans"]), (TCP_IN_ERRORS, &["isegerr"]), (TCP_OUT_RESETS, &["orsts"])],
    ),
    ("net-udp", "", "", &[(UDP_IN_DATAGRAMS, &["idgm"]), (UDP_OUT_DATAGRAMS, &["odgm"]), (UDP_NO_PORTS, &["noport"])]),
];

/// Rates of volumes in KiB per second, which sysstat writes as `kB`.
const VOLUMES: &[CounterField] = &[(DEV_RX_BYTES, &["rxkB"]), (DEV_TX_BYTES, &["txkB"])];

/// The greatest rate that is believed: more packets or kilobytes per second than any host moves.
const RATE_MAX: f64 = 1e12;
/// The greatest sum of the shares of a core: they are rounded.
const PERCENT_MAX: f64 = 101.0;

/// Values that rise and fall.
const GAUGES: &[CounterField] =
    &[(SOCK_TCP_IN_USE, &["tcpsck"]), (SOCK_UDP_IN_USE, &["udpsck"]), (SOCK_TCP_TIME_WAIT, &["tcp-tw"])];

/// Reads the samples of the first host of a file.
pub(crate) struct SadfReplay {
    host: String,
    environment: Environment,
    losses: Vec<String>,
    statistics: IntoIter<Statistics>,
    /// The number of the entry that comes next.
    n_read: usize,
    /// The time of the newest sample; absent before the first.
    now: Option<Nanos>,
    /// What each counter would be without fractions left out.
    sums: BTreeMap<Key, f64>,
    /// The first entry, whose beginning was given out as a sample.
    begun: Option<Statistics>,
}

impl SadfReplay {
    /// Reads the whole file.
    pub(crate) fn new(input: impl Read) -> Result<Self, RecordingError> {
        let file: File = serde_json::from_reader(input.take(FILE_MAX)).map_err(|error| {
            let text = error.to_string();
            let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
            let place = format!("line {}, column {}", error.line(), error.column());
            RecordingError::new(place, format!("it is no file of sadf -j: {what}"))
        })?;
        let host = file.sysstat.hosts.into_iter().next();
        let host = host.ok_or_else(|| RecordingError::new("sysstat", "there is no host"))?;
        let mut environment = Environment::default();
        if !host.release.is_empty() {
            environment.note("kernel", "release", host.release);
        }
        if let Some(n_cpus) = host.n_cpus {
            environment.note("cpu", "count", n_cpus.to_string());
        }
        let name = if host.nodename.is_empty() { "the host".to_owned() } else { host.nodename };
        Ok(Self {
            host: name,
            environment,
            losses: missing(&host.statistics).into_iter().collect(),
            statistics: host.statistics.into_iter(),
            n_read: 0,
            now: None,
            sums: BTreeMap::new(),
            begun: None,
        })
    }

    /// Gives out the beginning of the first interval, at which all counters are zero.
    fn begin(&mut self, first: Statistics, samples: &mut Samples) -> Result<String, RecordingError> {
        let start = Nanos::from_secs(1);
        let mut values = BTreeMap::new();
        self.add(&first, 0.0, &mut values)?;
        let (end, interval) = (self.moment(&first)?, self.interval(&first)?);
        let seconds = i64::try_from(rounded(interval)).unwrap_or(i64::MAX);
        let began = end.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap_or(end);
        let at = first.timestamp.text(began);
        self.begun = Some(first);
        self.now = Some(start);
        put(samples, start, values);
        Ok(at)
    }

    fn interval(&self, statistics: &Statistics) -> Result<f64, RecordingError> {
        let interval = statistics.timestamp.interval;
        if interval > 0.0 && interval <= INTERVAL_MAX {
            return Ok(interval);
        }
        Err(self.wrong(format!("the interval is {interval} s")))
    }

    fn moment(&self, statistics: &Statistics) -> Result<DateTime, RecordingError> {
        let Timestamp { date, time, .. } = &statistics.timestamp;
        format!("{date}T{time}").parse().map_err(|_| self.wrong(format!("{date} {time} is no time")))
    }

    fn wrong(&self, what: String) -> RecordingError {
        RecordingError::new(format!("entry {} of the statistics", self.n_read), what)
    }

    /// Adds what the counters of an entry grew by in this many seconds.
    fn add(&mut self, of: &Statistics, seconds: f64, values: &mut BTreeMap<Key, u64>) -> Result<(), RecordingError> {
        let cpus = if of.cpus_all.is_empty() { &of.cpus } else { &of.cpus_all };
        for row in rows_of(cpus.iter(), "cpu") {
            let all: Vec<&str> = CPU.iter().flat_map(|(_, fields)| fields.iter().copied()).collect();
            if let Some(whole) = self.sum(row, &all)?.filter(|whole| *whole > PERCENT_MAX) {
                return Err(self.wrong(format!("the shares of a core are {whole} % together")));
            }
            // A percent of an interval in nanoseconds.
            self.add_row(row, ("cpu", "cpu"), CPU, seconds * 1e7, values)?;
        }
        for (table, instance, before, fields) in RATES {
            for row in self.table(of, table)? {
                self.add_row(&row, (instance, before), fields, seconds, values)?;
                if *table == "net-dev" {
                    self.add_row(&row, (instance, before), VOLUMES, seconds * 1024.0, values)?;
                }
            }
        }
        for row in self.table(of, "net-sock")? {
            for (counter, fields) in GAUGES {
                if let Some(value) = self.sum(&row, fields)? {
                    values.insert(Key { name: (*counter).to_owned(), of: String::new() }, rounded(value));
                }
            }
        }
        Ok(())
    }

    /// Returns the rows of a table of the network; none if the file does not have it.
    fn table(&self, of: &Statistics, name: &str) -> Result<Vec<Fields>, RecordingError> {
        let Some(value) = of.network.get(name) else { return Ok(Vec::new()) };
        let row = |value: &Value| value.as_object().map(|fields| fields.clone().into_iter().collect::<Fields>());
        let rows: Option<Vec<Fields>> = match value {
            Value::Array(rows) => rows.iter().map(row).collect(),
            value => row(value).map(|row| vec![row]),
        };
        let rows = rows.ok_or_else(|| self.wrong(format!("{name} is no table")))?;
        let key = if name == "softnet" { "cpu" } else { "iface" };
        Ok(rows_of(rows.iter(), key).into_iter().cloned().collect())
    }

    fn add_row(
        &mut self,
        row: &Fields,
        (instance, before): (&str, &str),
        fields: &[CounterField],
        factor: f64,
        values: &mut BTreeMap<Key, u64>,
    ) -> Result<(), RecordingError> {
        let name = row.get(instance).and_then(Value::as_str).unwrap_or_default();
        for (counter, fields) in fields {
            let Some(rate) = self.sum(row, fields)? else { continue };
            let of = if instance.is_empty() { String::new() } else { format!("{before}{name}") };
            let key = Key { name: (*counter).to_owned(), of };
            let sum = self.sums.entry(key.clone()).or_default();
            *sum += rate * factor;
            values.insert(key, rounded(*sum));
        }
        Ok(())
    }

    /// Returns the sum of those of the fields that a row has; `None` if it has none.
    fn sum(&self, row: &Fields, fields: &[&str]) -> Result<Option<f64>, RecordingError> {
        let mut sum = None;
        for field in fields {
            let Some(value) = row.get(*field) else { continue };
            let number = value.as_f64().filter(|number| (0.0..=RATE_MAX).contains(number));
            let number = number.ok_or_else(|| self.wrong(format!("{field} is {value}, which is not a count")))?;
            sum = Some(sum.unwrap_or(0.0) + number);
        }
        Ok(sum)
    }
}

impl SampleStream for SadfReplay {
    fn host(&self) -> &str {
        &self.host
    }

    fn environment(&self) -> &Environment {
        &self.environment
    }

    fn losses(&self) -> Vec<String> {
        self.losses.clone()
    }

    fn next(&mut self, samples: &mut Samples) -> Result<Option<String>, RecordingError> {
        let Some(entry) = self.begun.take().or_else(|| self.statistics.next()) else { return Ok(None) };
        let Some(now) = self.now else {
            self.n_read = 1;
            return self.begin(entry, samples).map(Some);
        };
        let interval = self.interval(&entry)?;
        let mut values = BTreeMap::new();
        self.add(&entry, interval, &mut values)?;
        let now = now + Nanos(rounded(interval * 1e9));
        put(samples, now, values);
        self.now = Some(now);
        let at = entry.timestamp.text(self.moment(&entry)?);
        self.n_read += 1;
        Ok(Some(at))
    }
}

/// Returns a sentence about the activities that no entry of a file has; `None` if it has all.
fn missing(statistics: &[Statistics]) -> Option<String> {
    let has_cores = statistics.iter().any(|entry| !entry.cpus.is_empty() || !entry.cpus_all.is_empty());
    let has_table = |name: &str| statistics.iter().any(|entry| entry.network.contains_key(name));
    let tables = RATES.iter().map(|(table, ..)| *table).chain(["net-sock"]).filter(|name| !has_table(name));
    let missing: Vec<&str> = (!has_cores).then_some("cpu-load").into_iter().chain(tables).collect();
    let how = "sar -A collects all activities, and sadf -j FILE -- -A writes them";
    (!missing.is_empty()).then(|| format!("the file does not have {}: {how}", missing.join(", ")))
}

impl Timestamp {
    /// Returns a time as RFC 3339 writes it; without an offset if it is local.
    fn text(&self, moment: DateTime) -> String {
        format!("{moment}{}", if self.utc == 1 { "Z" } else { "" })
    }
}

/// Returns the rows of instances; that of all together only if there is no other.
fn rows_of<'a>(rows: impl Iterator<Item = &'a Fields>, key: &str) -> Vec<&'a Fields> {
    let all: Vec<&Fields> = rows.collect();
    let is_sum = |row: &&Fields| row.get(key).and_then(Value::as_str) == Some("all");
    let single: Vec<&Fields> = all.iter().copied().filter(|row| !is_sum(row)).collect();
    if single.is_empty() { all } else { single }
}

fn put(samples: &mut Samples, at: Nanos, values: BTreeMap<Key, u64>) {
    samples.begin(at);
    for (key, value) in values {
        let place = samples.place(key);
        samples.set(place, Some(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What sadf 12.6.1 wrote, shortened.
    const TEXT: &str = include_str!("../tests/sadf.json");

    fn read(text: &str) -> Result<(Samples, Vec<String>), RecordingError> {
        let mut replay = SadfReplay::new(text.as_bytes())?;
        let (mut samples, mut times) = (Samples::new(10), Vec::new());
        while let Some(at) = replay.next(&mut samples)? {
            times.push(at);
        }
        Ok((samples, times))
    }

    #[test]
    fn rates_and_shares_become_counters_again() {
        let (samples, times) = read(TEXT).unwrap();
        assert_eq!(times, ["2026-11-25T08:46:03Z", "2026-11-25T08:46:04Z", "2026-11-25T08:46:06Z"]);
        let record = samples.record();
        assert_eq!(record.span(), Nanos::from_secs(3));
        let grown = |name: &str, of: &str| record.growth(name, of);
        // 100 frames in the first second, and 50 per second in the two after it.
        assert_eq!(grown(DEV_RX_FRAMES, "eth0"), Some(200));
        assert_eq!(grown(DEV_RX_BYTES, "eth0"), Some(10 * 1024 + 2 * 5 * 1024));
        assert_eq!(grown(TCP_RETRANS_SEGMENTS, ""), Some(4));
        // 25 % and 80 % of a core in programs, of which a part is nice.
        assert_eq!(grown(CPU_USER_NS, "cpu0"), Some(250_000_000 + 1_600_000_000));
        assert_eq!(grown(CPU_USER_NS, "cpuall"), None, "the sum of the cores is no core");
        assert_eq!(grown(SOFTNET_PROCESSED, "cpu1"), Some(30));
        assert_eq!(grown(UDP_IN_DATAGRAMS, ""), None, "the file does not have it");
        let in_use = record.series_of(SOCK_TCP_IN_USE).next().unwrap();
        assert_eq!(in_use.values, [4, 4, 6]);
    }

    #[test]
    fn what_a_file_does_not_have_is_named_with_the_way_to_have_it() {
        let told = SadfReplay::new(TEXT.as_bytes()).unwrap().losses();
        let [told] = &told[..] else { panic!("{told:?}") };
        assert!(told.starts_with("the file does not have net-edev, net-ip, net-eip, net-eicmp, net-udp: "), "{told}");
        let bare = r#"{"sysstat": {"hosts": [{"statistics": []}]}}"#;
        let told = SadfReplay::new(bare.as_bytes()).unwrap().losses();
        assert!(told[0].contains("cpu-load, net-dev") && told[0].contains("net-sock: sar -A"), "{told:?}");
    }

    #[test]
    fn damage_is_told_with_its_place() {
        let told = |from: &str, to: &str| read(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(told("\"hosts\"", "\"guests\"").starts_with("line "));
        assert!(told("\"hosts\"", "\"guests\"").contains("no file of sadf -j: missing field `hosts`"));
        assert_eq!(
            told("\"rxpck\": 50.0", "\"rxpck\": -1"),
            "entry 2 of the statistics: rxpck is -1, which is not a count"
        );
        assert_eq!(
            told("\"rxpck\": 100.0", "\"rxpck\": \"x\""),
            "entry 1 of the statistics: rxpck is \"x\", which is not a count"
        );
        assert!(told("\"rxkB\": 10.0", "\"rxkB\": 1e300").contains("rxkB is 1e"));
        assert!(told("\"idle\": 68.0", "\"idle\": 680").ends_with("the shares of a core are 712 % together"));
        assert_eq!(told("\"interval\": 2", "\"interval\": 0"), "entry 2 of the statistics: the interval is 0 s");
        assert_eq!(told("08:46:04", "48:46:04"), "entry 1 of the statistics: 2026-11-25 48:46:04 is no time");
        assert!(told("\"cpu-load\": [", "\"cpu-load\": [7, ").contains("no file of sadf -j: invalid type"));
        assert_eq!(read("{\"sysstat\": {\"hosts\": []}}").unwrap_err().to_string(), "sysstat: there is no host");
        assert!(read(&TEXT[..TEXT.len() / 2]).unwrap_err().to_string().contains("EOF"));
    }
}

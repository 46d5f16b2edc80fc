//! What one interval shows: tables of rates, and findings about the last seconds.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use fathom_analyze::WatchedHost;
use fathom_model::{
    Environment, Finding, HostRecord,
    names::host::{DEV_RX_BYTES, DEV_TX_BYTES},
    record::Series,
    units::{Nanos, approximate},
};
use serde::Serialize;

use crate::{
    live_tables::LiveTables,
    programs::ProgramReadings,
    queue_shares::{QueueReadings, QueueShare},
    samples::{Fell, Interval, Samples},
    sockets::{BusySockets, Sockets, WaitingListener},
    tables::{Column, Quantity, TABLES, TableShape},
};

/// The tables and findings of one interval; serialized, it is a line of `--ndjson`.
#[derive(Debug, Clone, Serialize)]
pub struct View {
    /// `fathom.watch/1`.
    pub schema: &'static str,
    /// The name of the host.
    pub host: String,
    /// The time of the sample: RFC 3339.
    pub at: String,
    /// The length of the interval.
    pub interval_ns: Nanos,
    /// Table, row and column of every known value: rates per second, shares from 0 to 1.
    pub tables: BTreeMap<&'static str, BTreeMap<String, BTreeMap<&'static str, f64>>>,
    /// The queues of interfaces with several whose drivers count packets by queue; absent if there are none, and in a replay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueShare>,
    /// The connections that moved the most bytes; absent if they cannot be read, and in a replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<BusySockets>,
    /// The listeners with connections that wait for accept; absent if they cannot be read, and in a replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listeners: Option<Vec<WaitingListener>>,
    /// The findings about the samples that are kept, the most important first.
    pub findings: Vec<Finding>,
    /// What could not be read or counted, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<String>,
}

impl View {
    /// Returns the view as one line of JSON. A view is written many times a second, and this crate is compiled with optimization.
    ///
    /// # Errors
    /// None is known: all keys are texts.
    pub fn to_line(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// The version of the documents.
pub(crate) const SCHEMA: &str = "fathom.watch/1";

/// The time that findings are about: long enough for a share, short enough to be news.
pub const JUDGED: Nanos = Nanos::from_secs(10);
/// How often findings are looked for anew: a person does not read faster. It is the time between two samples of slow counters.
const JUDGED_EVERY: Nanos = Nanos::from_millis(950);

/// A core that is busy for this share of an interval may be full in the time that findings are about.
const BUSY_CORE: f64 = 0.5;

/// Readings of a live host beside its counters, which are not recorded.
pub struct LiveReadings {
    programs: ProgramReadings,
    sockets: Sockets,
    queues: QueueReadings,
}

impl LiveReadings {
    /// Creates readings of this host that keep programs for this long; `cpu` is the clock of this thread's CPU time.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, kept: Nanos, cpu: fn() -> Nanos) -> Self {
        Self {
            programs: ProgramReadings::new(root, kept, cpu),
            sockets: Sockets::new(cpu),
            queues: QueueReadings::new(cpu),
        }
    }

    /// Makes the readings that are due; `now` is the monotonic clock, at which the newest sample was taken.
    pub fn read(&mut self, now: Nanos, samples: &Samples) {
        // Programs are named where a core is full, and as the owners of busy connections.
        let is_busy = samples.busiest_core().is_some_and(|busy| busy >= BUSY_CORE);
        self.programs.read(now, is_busy || self.sockets.lacks_owners());
        self.sockets.read(now, &self.programs, samples.tcp_segments());
        self.queues.read(now, samples);
    }

    /// Returns the newest readings, with the programs since about the oldest of these samples.
    #[must_use]
    pub fn tables(&self, samples: &Samples) -> LiveTables {
        self.tables_since(samples.rows().front().map_or(Nanos::ZERO, |row| row.at))
    }

    pub(crate) fn tables_since(&self, time: Nanos) -> LiveTables {
        let (programs, programs_span_ns) = self.programs.busiest_since(time);
        LiveTables {
            queues: self.queues.shares().to_vec(),
            sockets: self.sockets.busy().cloned(),
            listeners: self.sockets.listeners().cloned(),
            programs,
            programs_span_ns,
            losses: self.sockets.loss().cloned().into_iter().collect(),
        }
    }
}

/// Makes views of one host.
pub struct Viewer {
    watched: WatchedHost,
    findings: Vec<Finding>,
    judged_at: Option<Nanos>,
}

impl Viewer {
    /// Creates a viewer of a host with this name and these properties.
    #[must_use]
    pub fn new(host: impl Into<String>, environment: Environment) -> Self {
        Self { watched: WatchedHost::new(host, environment), findings: Vec::new(), judged_at: None }
    }

    /// Returns the view of the newest interval; `at` is its end, RFC 3339. `None` before the second sample.
    pub fn view(&mut self, samples: &Samples, live: Option<LiveTables>, at: String) -> Option<View> {
        let interval = samples.interval()?;
        let now = interval.end();
        // The rules compare counters with each other, so they see samples in which all were read.
        if interval.is_whole() && self.judged_at.is_none_or(|judged| now.since(judged) >= JUDGED_EVERY) {
            let mut record = samples.record();
            record.programs = live.as_ref().map_or_else(Vec::new, |live| live.programs_in(record.span()));
            self.findings = self.judge(record);
            self.judged_at = Some(now);
        }
        let live = live.unwrap_or_default();
        let mut fallen = Fallen::new();
        let tables = TABLES.iter().map(|shape| (shape.id, rows(&interval, shape, &mut fallen))).collect();
        Some(View {
            schema: SCHEMA,
            host: self.watched.host().to_owned(),
            at,
            interval_ns: interval.span(),
            tables,
            findings: self.findings.clone(),
            queues: live.queues,
            sockets: live.sockets,
            listeners: live.listeners,
            losses: live.losses.into_iter().chain(interruptions(&interval, fallen)).collect(),
        })
    }

    fn judge(&mut self, record: HostRecord) -> Vec<Finding> {
        let traffic = |series: &Series| {
            let growth = |name| record.growth(name, &series.of).unwrap_or(0);
            growth(DEV_RX_BYTES).saturating_add(growth(DEV_TX_BYTES))
        };
        let mut busy: Vec<(u64, String)> = record
            .series_of(DEV_RX_BYTES)
            .map(|series| (traffic(series), series.of.clone()))
            .filter(|(traffic, _)| *traffic > 0)
            .collect();
        // A rule about the whole host compares with the traffic of one interface: the busiest.
        busy.sort_by_key(|(traffic, _)| std::cmp::Reverse(*traffic));
        self.watched.judge(record, busy.into_iter().map(|(_, interface)| interface).collect())
    }
}

/// Counters that fell, by instance.
type Fallen = BTreeMap<String, BTreeSet<&'static str>>;

/// Returns the interfaces that disappeared, and the counters that began anew, a sentence each.
fn interruptions(interval: &Interval<'_>, fallen: Fallen) -> Vec<String> {
    let gone = interval.gone(DEV_RX_BYTES).into_iter().map(|name| format!("the interface {name} disappeared"));
    let fell = fallen.into_iter().map(|(of, counters)| {
        let of = if of.is_empty() { of } else { format!(" of {of}") };
        let counters = counters.into_iter().collect::<Vec<_>>().join(", ");
        format!("{counters}{of} fell: counted anew, so this interval has no rate")
    });
    gone.chain(fell).collect()
}

fn rows(
    interval: &Interval<'_>,
    shape: &TableShape,
    fallen: &mut Fallen,
) -> BTreeMap<String, BTreeMap<&'static str, f64>> {
    let mut row = |of: &str| {
        let value = |column: &Column| Some((column.id, value(interval, column.quantity, of, fallen)?));
        shape.columns.iter().filter_map(value).collect()
    };
    interval.instances(shape.rows_of).into_iter().map(|of| (of.to_owned(), row(of))).collect()
}

/// Returns a quantity of one instance; `None` if the host does not report it, or a counter of it fell.
fn value(interval: &Interval<'_>, quantity: Quantity, of: &str, fallen: &mut Fallen) -> Option<f64> {
    let growth = |growth: u64, _: Nanos| approximate(growth);
    let rate = |growth: u64, span: Nanos| approximate(growth) / span.as_secs_f64();
    let mut sum = |names: &[&'static str], part: fn(u64, Nanos) -> f64| sum(interval, names, of, part, fallen);
    match quantity {
        Quantity::BitRate(name) => Some(sum(&[name], rate)? * 8.0),
        Quantity::Rate(names) => sum(names, rate),
        Quantity::Share(part, whole) => {
            let whole = sum(whole, growth)?;
            Some(if whole > 0.0 { sum(part, growth)? / whole } else { 0.0 })
        }
        Quantity::Count(name) | Quantity::Bytes(name) => interval.newest(name, of).map(approximate),
    }
}

/// Returns the sum of a part for each counter that the host reports; `None` if it reports none, or one fell: the sum of the others is too little.
fn sum(
    interval: &Interval<'_>,
    names: &[&'static str],
    of: &str,
    part: fn(u64, Nanos) -> f64,
    fallen: &mut Fallen,
) -> Option<f64> {
    let (mut sum, mut is_whole) = (None, true);
    for name in names {
        match interval.change(name, of) {
            Some(Ok((growth, span))) => sum = Some(sum.unwrap_or(0.0) + part(growth, span)),
            Some(Err(Fell)) => {
                fallen.entry(of.to_owned()).or_default().insert(*name);
                is_whole = false;
            }
            None => {}
        }
    }
    sum.filter(|_| is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lines::{Width, lines},
        samples::Key,
    };

    /// Returns the view of two samples of these counters of interfaces.
    fn view(samples_of: [&[(&str, &str, u64)]; 2]) -> View {
        let mut samples = Samples::new(2);
        for (second, values) in (1..).zip(samples_of) {
            samples.begin(Nanos::from_secs(second));
            for (name, of, value) in values {
                let place = samples.place(Key { name: (*name).to_owned(), of: (*of).to_owned() });
                samples.set(place, Some(*value));
            }
        }
        let mut viewer = Viewer::new("gen-1", Environment::default());
        viewer.view(&samples, None, "2026-11-25T10:00:03Z".to_owned()).unwrap()
    }

    fn text(view: &View) -> String {
        lines(view, Width::Any).into_iter().map(|line| line.text + "\n").collect()
    }

    #[test]
    fn a_counter_that_fell_is_absent_and_a_note_says_why() {
        let view = view([
            &[("dev_rx_bytes", "lo", 900), ("dev_tx_bytes", "lo", 900), ("dev_rx_bytes", "vv0", 7)],
            &[("dev_rx_bytes", "lo", 25), ("dev_tx_bytes", "lo", 1_000)],
        ]);
        let row = &view.tables["interfaces"]["lo"];
        assert_eq!(row.keys().copied().collect::<Vec<_>>(), ["tx_bps"]);
        let fell = "dev_rx_bytes of lo fell: counted anew, so this interval has no rate";
        assert_eq!(view.losses, ["the interface vv0 disappeared", fell]);
    }

    #[test]
    fn a_view_without_findings_says_what_could_not_be_looked_at() {
        let nothing = text(&view([&[], &[]]));
        assert!(nothing.contains("nothing could be looked at: there are no counters of interfaces, cores, tcp, udp"));
        let some = text(&view([&[("dev_rx_bytes", "lo", 1)], &[("dev_rx_bytes", "lo", 1)]]));
        assert!(some.contains("holds this host back, but these could not be looked at: cores, tcp, udp"), "{some}");
    }
}

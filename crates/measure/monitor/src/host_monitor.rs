//! Samples of all sources, in constant memory whatever the length of the test.
//!
//! When the rows are full, every second row is removed. Counters only grow, so only resolution is lost. The first and the newest
//! sample are always kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use fathom_model::{
    names::host::{CPU_IDLE_NS, DEV_RX_BYTES, GAUGES},
    record::{CounterBreak, HostRecord, Series},
    units::Nanos,
};

use crate::{
    quotas::ProgramsAtOnce,
    sources::{CounterSink, Source, silence},
};

/// The row limit at which every second row is removed. A record therefore keeps at least half as many rows: enough for a plot.
const SAMPLES_MAX: usize = 240;
/// The number of counters of a host with 512 cores and 1000 interfaces. It limits the record if interfaces come and go all the
/// time.
const SERIES_MAX: usize = 16_384;
/// The most interfaces that disappeared, and the most instances whose counters fell, that a record names. An interface that is made anew is one
/// instance with all its counters.
const BREAKS_MAX: usize = 64;
/// The kernel may take back some ticks of idle time while a core sleeps, so that this counter falls without a new beginning.
const IDLE_TAKEN_BACK: Nanos = Nanos::from_millis(100);
/// The most reasons of a source that are told: it may fail in another way later, and must not fill the memory if it has no end of reasons.
const LOSSES_MAX: usize = 4;
/// The message if there are more counters.
const OVERFULL: &str = "watch: more than 16384 counters, of which the later ones are not recorded";

/// Samples the counters of a host at the times that its caller passes.
///
/// An interface or a core that appears later starts from its first value: it is recorded as if it had that value from the
/// beginning. One that disappears keeps its last value, and a counter that falls goes on from there: neither shows in the growth, so that the
/// record has a break there.
pub struct HostMonitor {
    root: PathBuf,
    sources: Vec<MonitoredSource>,
    /// The times of the samples that are kept.
    at: Vec<Nanos>,
    /// The total number of samples taken.
    n_taken: u64,
    /// The distance between kept samples. The newest sample is kept in addition.
    stride: u64,
    columns: Columns,
    programs: ProgramNames,
    /// The programs at the first sample.
    programs_before: Option<ProgramsAtOnce>,
    unavailable: Vec<String>,
}

/// Whether a record names the programs with the most CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramNames {
    /// It does.
    Told,
    /// It does not: who asks is not the owner of the host.
    Hidden,
}

struct MonitoredSource {
    source: Box<dyn Source>,
    /// The number of its losses that were told.
    n_told: usize,
}

impl HostMonitor {
    /// Creates a monitor without samples; `/` is the root of the host itself.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, sources: Vec<Box<dyn Source>>, programs: ProgramNames) -> Self {
        let watched = |source| MonitoredSource { source, n_told: 0 };
        Self {
            root: root.into(),
            sources: sources.into_iter().map(watched).collect(),
            at: Vec::with_capacity(SAMPLES_MAX + 1),
            n_taken: 0,
            stride: 1,
            columns: Columns::default(),
            programs,
            programs_before: None,
            unavailable: Vec::new(),
        }
    }

    /// Takes a sample of all sources; `now` is the host's monotonic clock.
    ///
    /// A source that fails does not stop the others, and each reason is reported once among what is [unavailable](Self::unavailable).
    pub fn sample(&mut self, now: Nanos) {
        if self.n_taken == 0 && self.programs == ProgramNames::Told {
            self.programs_before = Some(ProgramsAtOnce::read(&self.root));
        }
        self.make_room();
        self.at.push(now);
        self.columns.begin(self.at.len() - 1);
        for watched in &mut self.sources {
            self.columns.n_recorded = 0;
            let failed = match watched.source.sample(&self.root, &mut self.columns) {
                Err(error) => Some(error.to_string()),
                Ok(()) if self.columns.n_recorded == 0 => silence(&*watched.source, &self.root).map(str::to_owned),
                Ok(()) => None,
            };
            if let Some(failed) = failed.filter(|_| watched.n_told < LOSSES_MAX) {
                let loss = format!("{}: {failed}", watched.source.name());
                if !self.unavailable.contains(&loss) {
                    self.unavailable.push(loss);
                    watched.n_told += 1;
                }
            }
        }
        self.columns.note_gone();
        if self.columns.is_overfull && !self.unavailable.iter().any(|loss| loss == OVERFULL) {
            self.unavailable.push(OVERFULL.to_owned());
        }
        self.n_taken += 1;
    }

    /// Sampling failures, a sentence for each reason of a source.
    #[must_use]
    pub fn unavailable(&self) -> &[String] {
        &self.unavailable
    }

    /// Returns the recorded counters. A counter that never changed has a single value.
    #[must_use]
    pub fn finish(self) -> HostRecord {
        let n_rows = self.at.len();
        let breaks = self.columns.breaks();
        let series = self.columns.all.into_iter().map(|column| column.finish(n_rows)).collect();
        let mut record = HostRecord { at_ns: self.at, series, breaks, ..HostRecord::default() };
        if let Some(before) = self.programs_before {
            let now = ProgramsAtOnce::read(&self.root);
            record.kernel_threads_ns = now.kernel_threads_since(&before);
            record.programs = now.told_since(&before, record.span(), &self.root);
        }
        record
    }

    /// Removes the rows that the next row replaces: a newest sample that is not to be kept, and every second row if the rows are
    /// full.
    fn make_room(&mut self) {
        let n_rows = self.at.len();
        if n_rows > 0 && !(self.n_taken - 1).is_multiple_of(self.stride) {
            self.at.truncate(n_rows - 1);
            self.columns.all.iter_mut().for_each(|column| column.values.truncate(n_rows - 1));
        } else if n_rows > SAMPLES_MAX {
            self.stride *= 2;
            keep_every_second(&mut self.at);
            self.columns.all.iter_mut().for_each(|column| column.fold(n_rows));
        }
    }
}

/// Keeps the first, the third, the fifth, ….
fn keep_every_second<T>(row: &mut Vec<T>) {
    let mut is_kept = false;
    row.retain(|_| {
        is_kept = !is_kept;
        is_kept
    });
}

/// Returns true if a counter that fell began anew: a gauge rises and falls, and the kernel takes back a little idle time.
#[must_use]
pub fn begins_anew(counter: &str, before: u64, now: u64) -> bool {
    let is_taken_back = counter == CPU_IDLE_NS && before.saturating_sub(now) <= IDLE_TAKEN_BACK.0;
    now < before && !is_taken_back && !GAUGES.contains(&counter)
}

/// All counters seen so far, and the row that is being written.
#[derive(Default)]
struct Columns {
    all: Vec<Column>,
    row: usize,
    /// The number of this sample, from 1.
    n_samples: u64,
    /// The likely position of the next value: sources record in the same order each time.
    next: usize,
    n_recorded: usize,
    is_overfull: bool,
    /// The columns that each interface has one of.
    interfaces: Vec<usize>,
    /// The interfaces that disappeared.
    gone: BTreeSet<String>,
    /// The counters that began anew, by instance.
    fallen: BTreeMap<String, BTreeSet<&'static str>>,
}

impl Columns {
    /// Begins a sample.
    fn begin(&mut self, row: usize) {
        self.row = row;
        self.n_samples += 1;
        self.next = 0;
    }

    /// Notes the interfaces that this sample has no longer. Without any interface their source could not be read, which is another matter.
    fn note_gone(&mut self) {
        let is_here = |column: &Column| column.seen == self.n_samples;
        if !self.interfaces.iter().any(|place| is_here(&self.all[*place])) {
            return;
        }
        for place in &self.interfaces {
            let column = &self.all[*place];
            if !is_here(column) && !self.gone.contains(&column.of) {
                self.gone.insert(column.of.clone());
            }
        }
    }

    /// Returns where the growth of counters is too little.
    fn breaks(&self) -> Vec<CounterBreak> {
        let gone = self.gone.iter().map(|of| CounterBreak { of: of.clone(), fell: Vec::new() });
        let fallen = self.fallen.iter().map(|(of, counters)| CounterBreak {
            of: of.clone(),
            fell: counters.iter().map(|counter| (*counter).to_owned()).collect(),
        });
        gone.take(BREAKS_MAX).chain(fallen.take(BREAKS_MAX)).collect()
    }
}

impl CounterSink for Columns {
    fn value(&mut self, name: &'static str, of: &str, value: u64) {
        self.n_recorded += 1;
        let is_it = |column: &Column| column.name == name && column.of == of;
        let place = match self.all.get(self.next) {
            Some(column) if is_it(column) => Some(self.next),
            _ => self.all.iter().position(is_it),
        };
        if let Some(place) = place {
            let column = &mut self.all[place];
            // Of two values in one sample the last counts.
            if column.seen < self.n_samples && begins_anew(name, column.newest, value) {
                self.fallen.entry(of.to_owned()).or_default().insert(name);
            }
            column.show(self.row, value);
            column.seen = self.n_samples;
            self.next = place + 1;
        } else if self.all.len() < SERIES_MAX {
            if name == DEV_RX_BYTES {
                self.interfaces.push(self.all.len());
            }
            let seen = self.n_samples;
            self.all.push(Column { name, of: of.to_owned(), values: vec![value], newest: value, seen });
            self.next = self.all.len();
        } else {
            self.is_overfull = true;
        }
    }
}

/// One counter. It has a single value until it changes, then one per row. The last rows are missing while it is not seen.
struct Column {
    name: &'static str,
    of: String,
    values: Vec<u64>,
    /// The newest value, whose row may be gone.
    newest: u64,
    /// The number of the newest sample that has it.
    seen: u64,
}

impl Column {
    /// Records the value in a row. A second value for the same row replaces the first.
    fn show(&mut self, row: usize, value: u64) {
        self.newest = value;
        if self.values == [value] {
            return;
        }
        self.values.reserve_exact((SAMPLES_MAX + 1).saturating_sub(self.values.len()));
        self.fill(row);
        self.values.push(value);
    }

    /// Extends the values to this many rows, with the last value in the missing rows.
    fn fill(&mut self, n_rows: usize) {
        let last = self.values.last().copied();
        self.values.resize(n_rows, last.expect("a column begins with its first value"));
    }

    /// Keeps every second of `n_rows` rows.
    fn fold(&mut self, n_rows: usize) {
        if self.values.len() > 1 {
            self.fill(n_rows);
            keep_every_second(&mut self.values);
        }
    }

    fn finish(mut self, n_rows: usize) -> Series {
        if self.values.iter().all(|value| *value == self.values[0]) {
            self.values.truncate(1);
        } else {
            self.fill(n_rows);
        }
        Series { name: self.name.to_owned(), of: self.of, values: self.values }
    }
}

#[cfg(test)]
mod tests {
    use std::{io, path::Path};

    use super::*;

    /// Returns the value of a function of the sample number.
    struct Played<F> {
        n_samples: u64,
        show: F,
    }

    impl<F: FnMut(u64, &mut dyn CounterSink) -> io::Result<()> + Send> Source for Played<F> {
        fn name(&self) -> &'static str {
            "played"
        }

        fn counters(&self) -> &'static [&'static str] {
            &["count", "still"]
        }

        fn sample(&mut self, _: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
            self.n_samples += 1;
            (self.show)(self.n_samples - 1, out)
        }
    }

    fn watch<F>(show: F) -> HostMonitor
    where
        F: FnMut(u64, &mut dyn CounterSink) -> io::Result<()> + Send + 'static,
    {
        HostMonitor::new("/nowhere", vec![Box::new(Played { n_samples: 0, show })], ProgramNames::Hidden)
    }

    fn watched<F>(n_samples: u64, show: F) -> HostRecord
    where
        F: FnMut(u64, &mut dyn CounterSink) -> io::Result<()> + Send + 'static,
    {
        let mut watch = watch(show);
        (0..n_samples).for_each(|i| watch.sample(Nanos(i)));
        watch.finish()
    }

    #[test]
    fn a_watch_of_any_length_is_small_and_has_the_first_and_the_last_sample() {
        for n_samples in [1, 2, 239, 240, 241, 242, 243, 480, 481, 482, 1_000, 99_999] {
            let record = watched(n_samples, |i, out| {
                out.value("count", "", i);
                out.value("still", "", 7);
                Ok(())
            });
            assert!(record.at_ns.len() <= SAMPLES_MAX + 1);
            assert!(record.at_ns.len() >= (SAMPLES_MAX / 2).min(usize::try_from(n_samples).unwrap()));
            assert_eq!((record.at_ns[0], record.span()), (Nanos(0), Nanos(n_samples - 1)));
            assert_eq!(record.growth("count", ""), Some(n_samples - 1));
            let count = &record.series[0];
            for (row, at) in record.at_ns.iter().enumerate() {
                assert_eq!(count.at(row), Some(at.0), "sample {row} of {n_samples}");
            }
            assert_eq!(record.series[1].values, [7]);
        }
    }

    #[test]
    fn the_samples_of_a_long_watch_lie_evenly() {
        let record = watched(5_000, |_, _| Ok(()));
        let (last, even) = record.at_ns.split_last().unwrap();
        assert!(even.windows(2).all(|pair| pair[1] - pair[0] == Nanos(32)), "{even:?}");
        assert_eq!(*last, Nanos(4_999));
    }

    #[test]
    fn an_interface_that_appears_later_counts_from_its_first_sight() {
        let record = watched(4, |i, out| {
            if i >= 2 {
                out.value("count", "late0", 100 + i);
            }
            Ok(())
        });
        assert_eq!(record.series[0].values, [102, 102, 102, 103]);
        assert_eq!(record.growth("count", "late0"), Some(1));
    }

    #[test]
    fn an_interface_that_disappears_stays_at_its_last_value() {
        for n_samples in [6, 2_000] {
            let record = watched(n_samples, |i, out| {
                if i < 3 {
                    out.value("count", "gone0", 5 + i);
                }
                out.value("count", "", i);
                Ok(())
            });
            assert_eq!(record.growth("count", "gone0"), Some(2), "after {n_samples}");
            assert_eq!(record.series[0].values.len(), record.at_ns.len());
        }
    }

    /// Returns the breaks of a record, with the counters that fell.
    fn breaks(record: &HostRecord) -> Vec<(&str, Vec<&str>)> {
        record.breaks.iter().map(|one| (one.of.as_str(), one.fell.iter().map(String::as_str).collect())).collect()
    }

    #[test]
    fn a_counter_that_fell_is_told_however_long_the_watch_is() {
        for n_samples in [6, 2_000] {
            let record = watched(n_samples, |i, out| {
                out.value("count", "eth0", if i < 3 { 1_000 + i } else { 7 + i });
                out.value("still", "eth0", 5 - i.min(5));
                out.value("grows", "eth0", i);
                out.value("only", "", 3_u64.saturating_sub(i));
                out.value(GAUGES[0], "queue0", 9 - i % 9);
                out.value(CPU_IDLE_NS, "cpu0", 20_000_000 * (i % 2));
                Ok(())
            });
            let expected = [("", vec!["only"]), ("eth0", vec!["count", "still"])];
            assert_eq!(breaks(&record), expected, "after {n_samples}");
        }
        let grown = watched(500, |i, out| {
            out.value("count", "", 1_000);
            out.value("count", "", i);
            Ok(())
        });
        assert!(grown.breaks.is_empty(), "{:?}", grown.breaks);
    }

    #[test]
    fn an_interface_that_disappears_is_told_and_one_whose_source_fails_is_not() {
        let record = watched(6, |i, out| {
            if i == 4 {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            out.value(DEV_RX_BYTES, "lo", i);
            if i != 2 {
                out.value(DEV_RX_BYTES, "back0", i);
            }
            if i < 3 {
                out.value(DEV_RX_BYTES, "gone0", i);
                out.value("count", "rule 7", i);
            }
            Ok(())
        });
        assert_eq!(breaks(&record), [("back0", vec![]), ("gone0", vec![])]);
        let failed = watched(4, |i, out| {
            if i > 1 {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            out.value(DEV_RX_BYTES, "lo", i);
            Ok(())
        });
        assert!(failed.breaks.is_empty(), "{:?}", failed.breaks);
    }

    #[test]
    fn a_record_has_so_many_breaks_and_no_more() {
        let record = watched(2, |i, out| {
            (0..200).for_each(|n| out.value("count", &format!("veth{n:03}"), 9 - i));
            Ok(())
        });
        assert_eq!(record.breaks.len(), BREAKS_MAX);
    }

    #[test]
    fn a_source_that_fails_in_another_way_later_tells_that_too_but_not_without_end() {
        let told = |reasons: &'static [&'static str]| {
            let mut monitor = watch(move |i, _| Err(io::Error::other(reasons[usize::try_from(i).unwrap()])));
            (0..reasons.len()).for_each(|i| monitor.sample(Nanos(i.try_into().unwrap())));
            monitor.unavailable().to_vec()
        };
        assert_eq!(told(&["a", "b", "a", "b"]), ["played: a", "played: b"]);
        assert_eq!(told(&["a", "b", "c", "d", "e", "f"]).len(), LOSSES_MAX);
    }

    #[test]
    fn interfaces_without_end_do_not_fill_the_memory() {
        let mut watch = watch(|i, out| {
            (0..1_000).for_each(|n| out.value("count", &format!("veth{}", i * 1_000 + n), 1));
            Ok(())
        });
        (0..18).for_each(|i| watch.sample(Nanos(i)));
        assert_eq!(watch.unavailable(), [OVERFULL]);
        assert_eq!(watch.finish().series.len(), SERIES_MAX);
    }
}

//! Samples of all sources, in constant memory whatever the length of the test.
//!
//! When the rows are full, every second row is removed. Counters only grow, so only resolution is lost. The first and the newest
//! sample are always kept.

use std::path::PathBuf;

use fathom_model::{
    record::{HostRecord, Series},
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
/// The most reasons of a source that are told: it may fail in another way later, and must not fill the memory if it has no end of reasons.
const LOSSES_MAX: usize = 4;
/// The message if there are more counters.
const OVERFULL: &str = "watch: more than 16384 counters, of which the later ones are not recorded";

/// Samples the counters of a host at the times that its caller passes.
///
/// An interface or a core that appears later starts from its first value: it is recorded as if it had that value from the
/// beginning. One that disappears keeps its last value.
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
        self.columns.row = self.at.len() - 1;
        self.columns.next = 0;
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
        let series = self.columns.all.into_iter().map(|column| column.finish(n_rows)).collect();
        let mut record = HostRecord { at_ns: self.at, series, programs: Vec::new(), sampling_cpu_ns: None };
        if let Some(before) = self.programs_before {
            record.programs = ProgramsAtOnce::read(&self.root).told_since(&before, record.span(), &self.root);
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

/// All counters seen so far, and the row that is being written.
#[derive(Default)]
struct Columns {
    all: Vec<Column>,
    row: usize,
    /// The likely position of the next value: sources record in the same order each time.
    next: usize,
    n_recorded: usize,
    is_overfull: bool,
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
            self.all[place].show(self.row, value);
            self.next = place + 1;
        } else if self.all.len() < SERIES_MAX {
            self.all.push(Column { name, of: of.to_owned(), values: vec![value] });
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
}

impl Column {
    /// Records the value in a row. A second value for the same row replaces the first.
    fn show(&mut self, row: usize, value: u64) {
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

    #[test]
    fn a_counter_that_comes_and_goes_keeps_its_place_in_time() {
        let record = watched(5, |i, out| {
            if i != 2 {
                out.value("count", "", [1, 2, 0, 4, 5][usize::try_from(i).unwrap()]);
            }
            Ok(())
        });
        assert_eq!(record.series[0].values, [1, 2, 2, 4, 5]);
    }

    #[test]
    fn of_two_values_for_one_counter_in_one_sample_the_last_counts() {
        let record = watched(3, |i, out| {
            out.value("count", "", 1000);
            out.value("count", "", i);
            Ok(())
        });
        assert_eq!(record.series[0].values, [0, 1, 2]);
    }

    #[test]
    fn a_source_that_fails_is_mentioned_once_and_stops_no_other() {
        let failing = |_: u64, _: &mut dyn CounterSink| -> io::Result<()> { Err(io::ErrorKind::NotFound.into()) };
        let counting = |i: u64, out: &mut dyn CounterSink| {
            out.value("count", "", i);
            Ok(())
        };
        let sources: Vec<Box<dyn Source>> =
            vec![Box::new(Played { n_samples: 0, show: failing }), Box::new(Played { n_samples: 0, show: counting })];
        let mut watch = HostMonitor::new("/nowhere", sources, ProgramNames::Hidden);
        (0..3).for_each(|i| watch.sample(Nanos(i)));
        assert_eq!(watch.unavailable(), ["played: entity not found"]);
        assert_eq!(watch.finish().growth("count", ""), Some(2));
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

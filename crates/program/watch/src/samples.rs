//! The newest samples of a host's counters.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
};

use fathom_model::{
    record::{HostRecord, Series},
    units::Nanos,
};
use fathom_monitor::{CounterSink, Source, every_source};

/// A counter and one of its instances, such as `cpu_idle_ns` of `cpu1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) name: String,
    /// The instance; empty for the whole host.
    pub(crate) of: String,
}

/// The values of all keys at one time; missing for an instance that was not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) at: Nanos,
    pub(crate) values: Vec<Option<u64>>,
}

/// The last samples, in constant memory.
#[derive(Debug, Clone)]
pub struct Samples {
    keys: Vec<Key>,
    places: BTreeMap<Key, usize>,
    rows: VecDeque<Row>,
    rows_max: usize,
}

impl Samples {
    /// Creates room for this many samples, at least two.
    #[must_use]
    pub fn new(rows_max: usize) -> Self {
        Self { keys: Vec::new(), places: BTreeMap::new(), rows: VecDeque::new(), rows_max: rows_max.max(2) }
    }

    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }

    pub(crate) fn rows(&self) -> &VecDeque<Row> {
        &self.rows
    }

    /// Returns the place of a key, which is made for a new one.
    pub(crate) fn place(&mut self, key: Key) -> usize {
        let next = self.keys.len();
        let place = *self.places.entry(key.clone()).or_insert(next);
        if place == next {
            self.keys.push(key);
        }
        place
    }

    /// Begins a sample. The oldest gives way if there is no room.
    pub(crate) fn begin(&mut self, at: Nanos) {
        if self.rows.len() == self.rows_max {
            self.rows.pop_front();
        }
        self.rows.push_back(Row { at, values: Vec::with_capacity(self.keys.len()) });
    }

    /// Removes samples from longer ago than this, apart from the last two.
    pub fn keep(&mut self, span: Nanos) {
        let Some(newest) = self.rows.back().map(|row| row.at) else { return };
        while self.rows.len() > 2 && self.rows.front().is_some_and(|row| newest - row.at > span) {
            self.rows.pop_front();
        }
    }

    /// Sets a value of the sample that was begun last.
    pub(crate) fn set(&mut self, place: usize, value: Option<u64>) {
        let Some(row) = self.rows.back_mut() else { return };
        if row.values.len() <= place {
            row.values.resize(place + 1, None);
        }
        row.values[place] = value;
    }

    /// Returns the samples as the record of a host, from the oldest kept one or from the last but one.
    pub(crate) fn record(&self, span: Span) -> HostRecord {
        let n_rows = self.rows.len();
        let (skipped, stride) = match span {
            Span::All => (0, n_rows.div_ceil(JUDGED_ROWS_MAX).max(1)),
            Span::LastInterval => (n_rows.saturating_sub(2), 1),
        };
        // Counted from the newest, which must be there.
        let mut rows: Vec<&Row> = self.rows.iter().skip(skipped).rev().step_by(stride).collect();
        rows.reverse();
        let value = |row: &Row, place: usize| row.values.get(place).copied().flatten();
        let series = self.keys.iter().enumerate().filter_map(|(place, key)| {
            let last = value(rows.last()?, place)?;
            // An instance that appeared meanwhile counts from its first value, and so does one whose counter fell back.
            let mut known = last;
            let mut values: Vec<u64> = rows
                .iter()
                .rev()
                .map(|row| {
                    known = value(row, place).unwrap_or(known);
                    known
                })
                .collect();
            values.reverse();
            Some(Series { name: key.name.clone(), of: key.of.clone(), values })
        });
        HostRecord {
            at_ns: rows.iter().map(|row| row.at).collect(),
            series: series.collect(),
            programs: Vec::new(),
            sampling_cpu_ns: None,
        }
    }
}

/// The most rows of a record that is judged: enough to see how often a counter grew.
const JUDGED_ROWS_MAX: usize = 12;

/// Which samples a record is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    /// The whole time that is kept, as a few rows.
    All,
    /// The last two.
    LastInterval,
}

/// Takes samples of a host.
pub struct Sampler {
    root: PathBuf,
    sources: Vec<Box<dyn Source>>,
    losses: BTreeMap<&'static str, String>,
}

impl Sampler {
    /// Creates a sampler of all sources; `/` is the root of this host.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), sources: every_source(), losses: BTreeMap::new() }
    }

    /// Takes a sample; `now` is the monotonic clock. A source that cannot be read leaves its values out.
    pub fn sample(&mut self, samples: &mut Samples, now: Nanos) {
        samples.begin(now);
        let mut writer = RowWriter { samples, next: 0, n_recorded: 0 };
        for source in &mut self.sources {
            writer.n_recorded = 0;
            let lost = match source.sample(&self.root, &mut writer) {
                Err(error) => Some(error.to_string()),
                // A container may put an empty file in the place of one of the kernel.
                Ok(()) if writer.n_recorded == 0 => Some("none of its counters was found".to_owned()),
                Ok(()) => None,
            };
            match lost {
                Some(lost) => drop(self.losses.insert(source.name(), lost)),
                None => drop(self.losses.remove(source.name())),
            }
        }
    }

    /// The sources that could not be read the last time, each with the reason.
    pub fn losses(&self) -> impl Iterator<Item = String> {
        self.losses.iter().map(|(source, reason)| format!("{source}: {reason}"))
    }
}

struct RowWriter<'a> {
    samples: &'a mut Samples,
    /// The likely place of the next value: sources record in the same order each time.
    next: usize,
    /// The values of the current source.
    n_recorded: usize,
}

impl CounterSink for RowWriter<'_> {
    fn value(&mut self, name: &'static str, of: &str, value: u64) {
        let is_next = self.samples.keys.get(self.next).is_some_and(|key| key.name == name && key.of == of);
        let place =
            if is_next { self.next } else { self.samples.place(Key { name: name.to_owned(), of: of.to_owned() }) };
        self.samples.set(place, Some(value));
        self.next = place + 1;
        self.n_recorded += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter with its instance and its value.
    type Shown<'a> = (&'a str, &'a str, u64);

    fn samples(rows: &[(u64, &[Shown<'_>])]) -> Samples {
        let mut samples = Samples::new(3);
        for (second, values) in rows {
            samples.begin(Nanos::from_secs(*second));
            for (name, of, value) in *values {
                let place = samples.place(Key { name: (*name).to_owned(), of: (*of).to_owned() });
                samples.set(place, Some(*value));
            }
        }
        samples
    }

    #[test]
    fn an_interface_that_appears_counts_from_its_first_value_and_one_that_is_gone_is_not_told() {
        let samples = samples(&[
            (1, &[("dev_rx_bytes", "old0", 5)]),
            (2, &[("dev_rx_bytes", "old0", 9), ("dev_rx_bytes", "new0", 700)]),
            (3, &[("dev_rx_bytes", "new0", 800)]),
        ]);
        let record = samples.record(Span::All);
        assert_eq!(record.series.len(), 1, "{record:?}");
        assert_eq!(record.growth("dev_rx_bytes", "new0"), Some(100));
    }

    #[test]
    fn a_root_without_files_has_no_values_but_a_reason_for_each_source() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/net")).unwrap();
        std::fs::write(root.path().join("proc/stat"), "").unwrap();
        let (mut sampler, mut samples) = (Sampler::new(root.path()), Samples::new(2));
        sampler.sample(&mut samples, Nanos::from_secs(1));
        // A host without the file tracks no connections, which is known.
        let from_files = samples.keys().iter().find(|key| key.name != "conntrack_entries");
        assert_eq!(from_files, None);
        let losses: Vec<String> = sampler.losses().collect();
        assert!(losses.contains(&"cpu: none of its counters was found".to_owned()), "{losses:?}");
        assert!(losses.iter().any(|loss| loss.starts_with("snmp: ")), "{losses:?}");
    }

    #[test]
    fn only_the_newest_samples_are_kept() {
        let samples =
            samples(&[(1, &[("x", "", 1)]), (2, &[("x", "", 2)]), (3, &[("x", "", 4)]), (4, &[("x", "", 8)])]);
        assert_eq!(samples.record(Span::All).growth("x", ""), Some(6));
        assert_eq!(samples.record(Span::LastInterval).growth("x", ""), Some(4));
    }
}

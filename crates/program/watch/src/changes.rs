//! Samples as changes to the sample before, for a file and for a view on another host.

use std::{fmt, path::PathBuf};

use fathom_engine::CounterFeed;
use fathom_model::{record::CounterChanges, units::Nanos};

use crate::{
    live_tables::Onlooker,
    samples::{Key, Sampler, Samples},
    view::{JUDGED, LiveReadings},
};

/// More counters than a host with 512 cores and 1,000 interfaces has.
const KEYS_MAX: usize = 1 << 16;

/// Finds what changed since the sample before.
#[derive(Debug, Default)]
pub(crate) struct ChangeFinder {
    n_keys: usize,
    last: Vec<Option<u64>>,
}

impl ChangeFinder {
    /// Returns the changes of the newest sample; `None` if there is no sample.
    pub(crate) fn newest(&mut self, samples: &Samples) -> Option<CounterChanges> {
        let row = samples.rows().back()?;
        let keys = samples.keys()[self.n_keys..].iter().map(|key| (key.name.clone(), key.of.clone())).collect();
        self.n_keys = samples.keys().len();
        self.last.resize(self.n_keys, None);
        let mut values = Vec::new();
        for (place, last) in self.last.iter_mut().enumerate() {
            let value = row.values.get(place).copied().flatten();
            if value != *last {
                values.push((place, value));
                *last = value;
            }
        }
        Some(CounterChanges { at_ns: row.at, keys, values, is_carried: row.is_carried, ..CounterChanges::default() })
    }
}

/// Why changes do not fit the samples before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeError {
    /// There are more counters than any host has.
    TooManyCounters,
    /// There is no counter with this place.
    NoCounter(usize),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyCounters => write!(f, "there are more than {KEYS_MAX} counters"),
            Self::NoCounter(place) => write!(f, "there is no counter {place}"),
        }
    }
}

impl std::error::Error for ChangeError {}

/// Makes samples of changes.
#[derive(Debug, Default)]
pub struct ChangeReader {
    values: Vec<Option<u64>>,
}

impl ChangeReader {
    /// Adds a sample.
    ///
    /// # Errors
    /// If the changes are not those of a whole stream of changes.
    pub fn add(&mut self, changes: CounterChanges, samples: &mut Samples) -> Result<(), ChangeError> {
        for (name, of) in changes.keys {
            if samples.keys().len() >= KEYS_MAX {
                return Err(ChangeError::TooManyCounters);
            }
            samples.place(Key { name, of });
        }
        self.values.resize(samples.keys().len(), None);
        for (place, value) in changes.values {
            *self.values.get_mut(place).ok_or(ChangeError::NoCounter(place))? = value;
        }
        samples.begin(changes.at_ns);
        if changes.is_carried {
            samples.mark_carried();
        }
        for (place, value) in self.values.iter().enumerate() {
            samples.set(place, *value);
        }
        Ok(())
    }
}

/// The counters of this host and the readings beside them, for a view on another one.
pub struct HostFeed {
    sampler: Sampler,
    samples: Samples,
    changes: ChangeFinder,
    readings: LiveReadings,
    onlooker: Onlooker,
}

impl HostFeed {
    /// Creates a feed of all sources; `/` is the root of this host, and `cpu` the clock of the CPU time of the thread that feeds.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, onlooker: Onlooker, cpu: fn() -> Nanos) -> Self {
        let root = root.into();
        let readings = LiveReadings::new(root.clone(), JUDGED, cpu);
        let (samples, changes) = (Samples::new(2), ChangeFinder::default());
        Self { sampler: Sampler::new(root), samples, changes, readings, onlooker }
    }
}

impl CounterFeed for HostFeed {
    fn changes(&mut self, now: Nanos) -> CounterChanges {
        self.sampler.sample(&mut self.samples, now);
        self.readings.read(now, &self.samples);
        let tables = self.readings.tables_since(now - JUDGED).shown_to(self.onlooker);
        let changes = self.changes.newest(&self.samples).unwrap_or_default();
        CounterChanges {
            losses: self.sampler.losses().collect(),
            beside: serde_json::to_string(&tables).ok(),
            ..changes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the newest sample by name.
    fn newest(samples: &Samples) -> Vec<(String, Option<u64>)> {
        let row = samples.rows().back().unwrap();
        let value = |place: usize| row.values.get(place).copied().flatten();
        samples.keys().iter().enumerate().map(|(place, key)| (key.of.clone(), value(place))).collect()
    }

    #[test]
    fn samples_made_of_changes_are_those_that_were_taken() {
        let (mut taken, mut made) = (Samples::new(2), Samples::new(2));
        let (mut finder, mut reader) = (ChangeFinder::default(), ChangeReader::default());
        let all: [&[(&str, u64)]; 4] = [&[("a", 1)], &[("a", 1), ("b", 7)], &[("b", 7)], &[("b", 9), ("a", 2)]];
        for (second, values) in (1..).zip(all) {
            taken.begin(Nanos::from_secs(second));
            for (of, value) in values {
                let place = taken.place(Key { name: "dev_rx_bytes".to_owned(), of: (*of).to_owned() });
                taken.set(place, Some(*value));
            }
            let changes = finder.newest(&taken).unwrap();
            assert!(changes.values.len() <= 2 && (second != 2 || changes.values == [(1, Some(7))]), "{changes:?}");
            reader.add(changes, &mut made).unwrap();
            assert_eq!(newest(&made), newest(&taken), "sample {second}");
        }
    }

    #[test]
    fn changes_without_their_counters_are_refused() {
        let (mut samples, mut reader) = (Samples::new(2), ChangeReader::default());
        let changes = CounterChanges { values: vec![(3, Some(1))], ..CounterChanges::default() };
        assert_eq!(reader.add(changes, &mut samples), Err(ChangeError::NoCounter(3)));
        let keys = (0..=KEYS_MAX).map(|number| ("x".to_owned(), number.to_string())).collect();
        let changes = CounterChanges { keys, ..CounterChanges::default() };
        assert_eq!(reader.add(changes, &mut samples), Err(ChangeError::TooManyCounters));
    }

    #[test]
    fn a_feed_of_this_host_begins_with_all_counters_and_goes_on_with_the_changed_ones() {
        let mut feed = HostFeed::new("/", Onlooker::Guest, || Nanos::ZERO);
        let first = feed.changes(Nanos::from_secs(1));
        let second = feed.changes(Nanos::from_secs(2));
        assert!(first.keys.iter().any(|(name, _)| name == "cpu_idle_ns"), "{first:?}");
        assert_eq!(first.values.len(), first.keys.len());
        assert!(second.values.len() < first.values.len(), "{second:?}");
        assert!(second.beside.is_some_and(|beside| beside.contains("withheld")));
    }
}

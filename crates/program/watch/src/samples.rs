//! The newest samples of a host's counters.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
};

use fathom_model::{
    names::host,
    record::{HostRecord, Series},
    units::{Nanos, ratio},
};
use fathom_monitor::{CounterSink, Source, begins_anew, every_source, is_slow, silence};

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
    /// Whether the counters of slow sources were not read, and are those of the last row in which they were.
    pub(crate) is_carried: bool,
}

impl Row {
    pub(crate) fn value(&self, place: usize) -> Option<u64> {
        self.values.get(place).copied().flatten()
    }
}

/// The last samples, in constant memory.
#[derive(Debug, Clone)]
pub struct Samples {
    keys: Vec<Key>,
    /// Whether the counter of each key belongs to a slow source.
    is_slow: Vec<bool>,
    /// The place of each instance by the name of its counter.
    places: BTreeMap<String, BTreeMap<String, usize>>,
    rows: VecDeque<Row>,
    rows_max: usize,
}

impl Samples {
    /// Creates room for this many samples, at least two.
    #[must_use]
    pub fn new(rows_max: usize) -> Self {
        let rows_max = rows_max.max(2);
        Self { keys: Vec::new(), is_slow: Vec::new(), places: BTreeMap::new(), rows: VecDeque::new(), rows_max }
    }

    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }

    pub(crate) fn rows(&self) -> &VecDeque<Row> {
        &self.rows
    }

    /// Returns the place of a key, which is made for a new one.
    pub(crate) fn place(&mut self, key: Key) -> usize {
        if let Some(place) = self.found(&key.name, &key.of) {
            return place;
        }
        let place = self.keys.len();
        self.places.entry(key.name.clone()).or_default().insert(key.of.clone(), place);
        self.is_slow.push(is_slow(&key.name));
        self.keys.push(key);
        place
    }

    fn found(&self, name: &str, of: &str) -> Option<usize> {
        self.places.get(name)?.get(of).copied()
    }

    /// Returns the last interval; `None` before the second sample.
    pub(crate) fn interval(&self) -> Option<Interval<'_>> {
        let newest = self.rows.back()?;
        let before = self.rows.iter().rev().nth(1).filter(|before| newest.at > before.at)?;
        let mut whole = self.rows.iter().rev().filter(|row| !row.is_carried);
        let slow = whole.next().and_then(|newest| Some((whole.next()?, newest)));
        Some(Interval { samples: self, fast: (before, newest), slow })
    }

    /// Returns the busy share of the busiest core in the last interval; `None` before the second sample, or if the host does not tell.
    pub(crate) fn busiest_core(&self) -> Option<f64> {
        let interval = self.interval()?;
        let idle = |core: &str| {
            let (idle, span) = interval.growth(host::CPU_IDLE_NS, core)?;
            ratio(idle, span.0)
        };
        let cores = self.places.get(host::CPU_IDLE_NS).into_iter().flatten().filter_map(|(core, _)| idle(core));
        cores.reduce(f64::min).map(|idle| 1.0 - idle)
    }

    /// Returns the TCP segments that the host has received and sent; `None` if it does not tell.
    pub(crate) fn tcp_segments(&self) -> Option<u64> {
        let newest = |name| self.rows.back()?.value(self.found(name, "")?);
        Some(newest(host::TCP_IN_SEGMENTS)?.wrapping_add(newest(host::TCP_OUT_SEGMENTS)?))
    }

    /// Begins a sample. The oldest gives way if there is no room.
    pub(crate) fn begin(&mut self, at: Nanos) {
        if self.rows.len() == self.rows_max {
            self.rows.pop_front();
        }
        self.rows.push_back(Row { at, values: Vec::with_capacity(self.keys.len()), is_carried: false });
    }

    /// Gives the sample that was begun last the slow counters of the one before.
    pub(crate) fn carry(&mut self) {
        let n_rows = self.rows.len();
        let Some(before) = n_rows.checked_sub(2).map(|place| self.rows[place].values.clone()) else { return };
        let row = &mut self.rows[n_rows - 1];
        row.is_carried = true;
        row.values = before.into_iter().zip(&self.is_slow).map(|(value, slow)| value.filter(|_| *slow)).collect();
    }

    /// Notes that the slow counters of the sample that was begun last are those of an earlier one.
    pub(crate) fn mark_carried(&mut self) {
        if let Some(row) = self.rows.back_mut() {
            row.is_carried = true;
        }
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

    /// Returns the samples in which all counters were read as the record of a host, a few rows of the whole time that is kept. Of most hosts, most
    /// counters are zero all the time: no rule finds anything there, and the record is without them.
    pub(crate) fn record(&self) -> HostRecord {
        let whole = || self.rows.iter().filter(|row| !row.is_carried);
        let stride = whole().count().div_ceil(JUDGED_ROWS_MAX).max(1);
        // Counted from the newest, which must be there.
        let mut rows: Vec<&Row> = whole().rev().step_by(stride).collect();
        rows.reverse();
        let series = self.keys.iter().enumerate().filter_map(|(place, key)| {
            let last = rows.last()?.value(place)?;
            rows.iter().any(|row| row.value(place).is_some_and(|value| value > 0)).then_some(())?;
            // An instance that appeared meanwhile counts from its first value, and so does one whose counter fell back.
            let mut known = last;
            let mut values: Vec<u64> = rows
                .iter()
                .rev()
                .map(|row| {
                    known = row.value(place).unwrap_or(known);
                    known
                })
                .collect();
            values.reverse();
            Some(Series { name: key.name.clone(), of: key.of.clone(), values })
        });
        HostRecord { at_ns: rows.iter().map(|row| row.at).collect(), series: series.collect(), ..HostRecord::default() }
    }
}

/// The most rows of a record that is judged: enough to see how often a counter grew.
const JUDGED_ROWS_MAX: usize = 12;

/// A counter is less than it was, so that its growth is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fell;

/// The last interval: between the two newest samples, and for slow counters between the two newest in which they were read.
pub(crate) struct Interval<'a> {
    samples: &'a Samples,
    fast: (&'a Row, &'a Row),
    slow: Option<(&'a Row, &'a Row)>,
}

impl<'a> Interval<'a> {
    /// The time between the two newest samples.
    pub(crate) fn span(&self) -> Nanos {
        self.fast.1.at.since(self.fast.0.at)
    }

    /// Returns true if all counters were read in the newest sample.
    pub(crate) fn is_whole(&self) -> bool {
        !self.fast.1.is_carried
    }

    /// The end of the interval.
    pub(crate) fn end(&self) -> Nanos {
        self.fast.1.at
    }

    /// The instances of a counter that are there now, in the order in which they appeared.
    pub(crate) fn instances(&self, name: &str) -> Vec<&'a str> {
        let known = self.samples.places.get(name).into_iter().flatten();
        let mut now: Vec<(usize, &str)> = known
            .filter(|(_, place)| self.fast.1.value(**place).is_some())
            .map(|(of, place)| (*place, of.as_str()))
            .collect();
        now.sort_unstable();
        now.into_iter().map(|(_, of)| of).collect()
    }

    /// Returns the growth of a counter and the time in which it grew; `None` if it is not there now, or fell.
    ///
    /// One that appeared meanwhile has not grown.
    pub(crate) fn growth(&self, name: &str, of: &str) -> Option<(u64, Nanos)> {
        self.change(name, of)?.ok()
    }

    /// Like [`Self::growth`], but tells a counter that fell from one that is not there.
    pub(crate) fn change(&self, name: &str, of: &str) -> Option<Result<(u64, Nanos), Fell>> {
        let place = self.samples.found(name, of)?;
        let (before, after) = if self.samples.is_slow[place] { self.slow? } else { self.fast };
        let (value, span) = (after.value(place)?, after.at.since(before.at));
        let past = before.value(place).unwrap_or(value);
        let has_fallen = begins_anew(name, past, value);
        Some(if has_fallen { Err(Fell) } else { Ok((value.saturating_sub(past), span)) })
    }

    /// The instances of a counter that were there in the samples that are kept, and are not now; none if the counter itself is not there.
    pub(crate) fn gone(&self, name: &str) -> Vec<&'a str> {
        let known = || self.samples.places.get(name).into_iter().flatten();
        let is_there = |place: usize| self.fast.1.value(place).is_some();
        if !known().any(|(_, place)| is_there(*place)) {
            return Vec::new();
        }
        let was_there = |place: usize| self.samples.rows.iter().any(|row| row.value(place).is_some());
        let gone = known().filter(|(_, place)| !is_there(**place) && was_there(**place));
        gone.map(|(of, _)| of.as_str()).collect()
    }

    /// Returns the newest value of a counter; `None` if it is not there now.
    pub(crate) fn newest(&self, name: &str, of: &str) -> Option<u64> {
        self.fast.1.value(self.samples.found(name, of)?)
    }
}

/// Slow sources are read this often at most. It is a little less than a second, so that an interval of 1 s that ends early has them.
const SLOW_EVERY: Nanos = Nanos::from_millis(950);

/// Takes samples of a host.
pub struct Sampler {
    root: PathBuf,
    sources: Vec<Box<dyn Source>>,
    losses: BTreeMap<&'static str, String>,
    /// When slow sources were read last, and how often they were.
    slow_at: Nanos,
    n_slow: u64,
}

impl Sampler {
    /// Creates a sampler of all sources; `/` is the root of this host.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let (sources, losses) = (every_source(), BTreeMap::new());
        Self { root: root.into(), sources, losses, slow_at: Nanos::ZERO, n_slow: 0 }
    }

    /// Takes a sample; `now` is the monotonic clock. A source that cannot be read leaves its values out.
    ///
    /// Slow sources are read about once per second. Samples in between have the values of the one before, and say so.
    pub fn sample(&mut self, samples: &mut Samples, now: Nanos) {
        samples.begin(now);
        // The first two are always whole, because a rate needs them.
        let is_whole = self.n_slow < 2 || now.since(self.slow_at) >= SLOW_EVERY;
        if is_whole {
            (self.slow_at, self.n_slow) = (now, self.n_slow + 1);
        } else {
            samples.carry();
        }
        let mut writer = RowWriter { samples, next: 0, n_recorded: 0 };
        for source in self.sources.iter_mut().filter(|source| is_whole || !source.is_slow()) {
            writer.n_recorded = 0;
            let lost = match source.sample(&self.root, &mut writer) {
                Err(error) => Some(error.to_string()),
                // A container may put an empty file in the place of one of the kernel.
                Ok(()) if writer.n_recorded == 0 => silence(&**source, &self.root).map(str::to_owned),
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
        let known = if is_next { Some(self.next) } else { self.samples.found(name, of) };
        let place = known.unwrap_or_else(|| self.samples.place(Key { name: name.to_owned(), of: of.to_owned() }));
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
        let record = samples.record();
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
        assert_eq!(samples.keys(), []);
        let losses: Vec<String> = sampler.losses().collect();
        assert!(losses.contains(&"cpu: none of its counters was found".to_owned()), "{losses:?}");
        assert!(losses.iter().any(|loss| loss.starts_with("snmp: ")), "{losses:?}");
        // That a host tracks no connections is known only where it would show them.
        assert!(losses.iter().any(|loss| loss.starts_with("tables: ")), "{losses:?}");
    }

    #[test]
    fn a_counter_that_fell_has_no_growth_and_an_instance_that_is_gone_is_known() {
        let seen = |counter, values: [u64; 2]| {
            let samples = samples(&[(1, &[(counter, "x", values[0])]), (2, &[(counter, "x", values[1])])]);
            let interval = samples.interval().unwrap();
            interval.change(counter, "x").unwrap().map(|(growth, _)| growth)
        };
        assert_eq!(seen("dev_rx_bytes", [700, 800]), Ok(100));
        assert_eq!(seen("dev_rx_bytes", [700, 25]), Err(Fell));
        assert_eq!(seen(host::CPU_IDLE_NS, [70_000_000, 50_000_000]), Ok(0), "some ticks are taken back");
        let gone = |newest: &[Shown<'_>]| {
            let samples = samples(&[(1, &[("dev_rx_bytes", "a", 1), ("dev_rx_bytes", "b", 1)]), (2, newest)]);
            samples.interval().unwrap().gone("dev_rx_bytes").into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(gone(&[("dev_rx_bytes", "b", 1)]), ["a"]);
        assert!(gone(&[]).is_empty(), "the source could not be read, which is another matter");
    }

    #[test]
    fn only_the_newest_samples_are_kept() {
        let samples =
            samples(&[(1, &[("x", "", 1)]), (2, &[("x", "", 2)]), (3, &[("x", "", 4)]), (4, &[("x", "", 8)])]);
        assert_eq!(samples.record().growth("x", ""), Some(6));
        assert_eq!(samples.interval().unwrap().growth("x", ""), Some((4, Nanos::from_secs(1))));
    }

    #[test]
    fn a_slow_counter_grows_between_the_samples_in_which_it_was_read() {
        let mut samples = Samples::new(100);
        for tenth in 0..=24 {
            samples.begin(Nanos::from_millis(100 * tenth));
            if tenth % 10 != 0 {
                samples.carry();
            }
            let mut set = |name: &str, value| {
                let place = samples.place(Key { name: name.to_owned(), of: "eth0".to_owned() });
                samples.set(place, Some(value));
            };
            set("dev_rx_bytes", 7 * tenth);
            if tenth % 10 == 0 {
                set("qdisc_dropped", 3 * tenth);
            }
        }
        let interval = samples.interval().unwrap();
        assert_eq!(interval.growth("dev_rx_bytes", "eth0"), Some((7, Nanos::from_millis(100))));
        assert_eq!(interval.growth("qdisc_dropped", "eth0"), Some((30, Nanos::from_secs(1))));
        assert_eq!(interval.newest("qdisc_dropped", "eth0"), Some(60), "the value is carried");
        assert!(!interval.is_whole());
        let record = samples.record();
        assert_eq!(record.span(), Nanos::from_secs(2), "findings are about samples in which all was read");
        assert_eq!(
            (record.growth("dev_rx_bytes", "eth0"), record.growth("qdisc_dropped", "eth0")),
            (Some(140), Some(60))
        );
    }

    #[test]
    fn slow_sources_are_read_once_per_second_and_at_both_of_the_first_samples() {
        let (mut sampler, mut samples) = (Sampler::new("/nowhere"), Samples::new(100));
        for tenth in 0..=30 {
            sampler.sample(&mut samples, Nanos::from_millis(100 * tenth));
        }
        let whole: Vec<usize> =
            samples.rows().iter().enumerate().filter(|(_, row)| !row.is_carried).map(|(n, _)| n).collect();
        assert_eq!(whole, [0, 1, 11, 21]);
    }
}

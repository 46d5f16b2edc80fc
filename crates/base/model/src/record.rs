//! What happened: counts, times and distributions, never a rate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{histogram::Histogram, probe::ProbeRecord, role::Side, steps::UsersRecord, units::Nanos};

/// Counters over time: one column per counter, one row per interval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Timeline {
    /// When each interval ended, counted from the start of the trial on this host.
    pub end_ns: Vec<Nanos>,
    /// What each counter grew by in each interval.
    pub counters: BTreeMap<String, Vec<u64>>,
}

/// The most intervals that a timeline holds: beyond it, neighbours are joined, so memory is constant in time.
const INTERVALS_MAX: usize = 512;

impl Timeline {
    /// A timeline without intervals for these counters.
    #[must_use]
    pub fn of(counters: &[&str]) -> Self {
        Self { end_ns: Vec::new(), counters: counters.iter().map(|name| ((*name).to_owned(), Vec::new())).collect() }
    }

    /// Adds an interval: what each counter grew by, in the order of their names given to [`Timeline::of`] and `names`.
    ///
    /// # Panics
    /// If a name is not one of this timeline's.
    pub fn push(&mut self, end: Nanos, names: &[&str], growth: &[u64]) {
        if self.end_ns.len() >= INTERVALS_MAX {
            self.join_neighbours();
        }
        self.end_ns.push(end);
        for (name, growth) in names.iter().zip(growth) {
            self.counters.get_mut(*name).expect("a timeline knows its counters").push(*growth);
        }
    }

    fn join_neighbours(&mut self) {
        self.end_ns = self.end_ns.chunks(2).map(|pair| pair[pair.len() - 1]).collect();
        for column in self.counters.values_mut() {
            *column = column.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
    }

    /// What a counter grew by between two times, whole intervals only, with the span that they really cover.
    ///
    /// Nothing when the counter is unknown or no whole interval lies within.
    #[must_use]
    pub fn growth(&self, counter: &str, from: Nanos, to: Nanos) -> Option<(u64, Nanos)> {
        let column = self.counters.get(counter)?;
        let begin_of = |row: usize| row.checked_sub(1).map_or(Nanos::ZERO, |before| self.end_ns[before]);
        let inside = |row: &usize| begin_of(*row) >= from && self.end_ns[*row] <= to;
        let first = (0..self.end_ns.len()).find(inside)?;
        let last = (first..self.end_ns.len()).rev().find(inside)?;
        Some((column[first..=last].iter().sum(), self.end_ns[last] - begin_of(first)))
    }
}

/// A departure from what was asked, or from the best way of doing it, to be printed beside the number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Note {
    /// A stable name: `xdp-generic`, `no-steady-state`.
    pub id: String,
    /// What happened, and what it means for the number, in a sentence.
    pub text: String,
}

/// What the kernel said of one flow at one time; names are those of `names::tcp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FlowSample {
    /// Counted from the start of the trial.
    pub at_ns: Nanos,
    /// Values of `TCP_INFO` by name.
    pub values: BTreeMap<String, u64>,
}

/// One connection of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Flow {
    /// Local and remote address.
    pub id: String,
    /// What the kernel said of it, over time.
    pub samples: Vec<FlowSample>,
}

/// What one side of one trial recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Record {
    /// Which end this is.
    pub side: Side,
    /// The host's monotonic clock at the start that was agreed.
    pub start_ns: Nanos,
    /// How much later than agreed the first worker began.
    pub start_late_ns: Nanos,
    /// Where the measured part begins and ends, counted from the start.
    pub measured_ns: (Nanos, Nanos),
    /// Whether the warm-up ended because the rate had become steady, and not because its time was over.
    pub steady: bool,
    /// Whether the trial ran to its end.
    pub complete: bool,
    /// Processor time of the test's own threads over the whole trial.
    pub cpu_ns: Nanos,
    /// Processor time of those threads in the measured part, by the core that they are pinned to; the key is empty for others.
    ///
    /// Empty where a test does not know it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_ns_by_core: BTreeMap<String, Nanos>,
    /// Counters over time, from the start on.
    pub timeline: Timeline,
    /// Totals over the whole trial, warm-up included.
    pub totals: BTreeMap<String, u64>,
    /// Distributions of the measured part, in nanoseconds unless the name says otherwise.
    pub distributions: BTreeMap<String, Histogram>,
    /// The connections, as far as they were sampled.
    #[serde(default)]
    pub flows: Vec<Flow>,
    /// What the other side said of itself, in its own words: `first_head`, `tls_version`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
    /// What scripted users did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<UsersRecord>,
    /// What single packets found out about the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeRecord>,
    /// Errors by cause, such as `connect: connection refused`, with how often each came.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
    /// Departures to be told.
    #[serde(default)]
    pub notes: Vec<Note>,
}

impl Record {
    /// Measures all work up to its end: a count ended the trial, and not the time.
    ///
    /// Ticks that noticed the end later would make every rate too low, and a last tick before the end of the last turn too high.
    pub fn measure_until(&mut self, end: Nanos) {
        self.measured_ns = (Nanos::ZERO, end);
        for tick in self.timeline.end_ns.iter_mut().rev().take_while(|tick| **tick > end) {
            *tick = end;
        }
        if let Some(last) = self.timeline.end_ns.last_mut() {
            *last = end;
        }
        // Without a warm-up there is no steady state to be missed.
        self.notes.retain(|note| note.id != "no-steady-state");
    }

    /// The span in which everything was counted, if nothing was counted before or after the measured part.
    #[must_use]
    pub fn whole_span(&self) -> Option<Nanos> {
        let is_whole = self.measured_ns.0 == Nanos::ZERO && self.timeline.end_ns.last()? <= &self.measured_ns.1;
        (is_whole && self.measured_ns.1 > Nanos::ZERO).then_some(self.measured_ns.1)
    }
}

/// One counter of a host over time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Series {
    /// A constant of `names`: `cpu_softirq_ns`.
    pub name: String,
    /// Whose: `cpu1`, `eth0`; empty for the whole host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// Its value at each sample; a single one when it never changed.
    pub values: Vec<u64>,
}

/// What a host's counters showed before, during and after a trial.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HostRecord {
    /// When the samples were taken, on the host's monotonic clock.
    pub at_ns: Vec<Nanos>,
    /// The counters.
    pub series: Vec<Series>,
}

impl Series {
    /// The value at a sample.
    #[must_use]
    pub fn at(&self, sample: usize) -> Option<u64> {
        if self.values.len() == 1 { self.values.first().copied() } else { self.values.get(sample).copied() }
    }

    /// What it grew by from the first to the last sample; zero when it fell.
    #[must_use]
    pub fn growth(&self) -> u64 {
        match (self.values.first(), self.values.last()) {
            (Some(first), Some(last)) => last.saturating_sub(*first),
            _ => 0,
        }
    }
}

impl HostRecord {
    /// The series of this name, one per instance.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Series> {
        self.series.iter().filter(move |series| series.name == name)
    }

    /// The growth of one series, or nothing when it was not sampled.
    #[must_use]
    pub fn growth(&self, name: &str, of: &str) -> Option<u64> {
        self.named(name).find(|series| series.of == of).map(Series::growth)
    }

    /// The time from the first to the last sample.
    #[must_use]
    pub fn span(&self) -> Nanos {
        match (self.at_ns.first(), self.at_ns.last()) {
            (Some(first), Some(last)) => *last - *first,
            _ => Nanos::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_intervals_count_in_a_window() {
        let mut timeline = Timeline::of(&["sent"]);
        for i in 1..=10 {
            timeline.push(Nanos(i * 100), &["sent"], &[i]);
        }
        assert_eq!(timeline.growth("sent", Nanos(150), Nanos(550)), Some((3 + 4 + 5, Nanos(300))));
        assert_eq!(timeline.growth("sent", Nanos(101), Nanos(199)), None);
        assert_eq!(timeline.growth("received", Nanos(0), Nanos(1000)), None);
    }

    #[test]
    fn a_long_timeline_joins_its_intervals_and_loses_no_count() {
        let mut timeline = Timeline::of(&["sent"]);
        for i in 1..=5_000 {
            timeline.push(Nanos(i), &["sent"], &[1]);
        }
        assert!(timeline.end_ns.len() <= INTERVALS_MAX);
        assert_eq!(timeline.growth("sent", Nanos::ZERO, Nanos(5_000)), Some((5_000, Nanos(5_000))));
    }
}

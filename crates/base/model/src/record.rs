//! The measured data: counts, times and distributions, never a rate.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

use crate::{
    anatomy::SampledConnection,
    failure::FailureCounts,
    histogram::Histogram,
    probe::ProbeRecord,
    replay::ReplayRecord,
    role::Side,
    steps::UsersRecord,
    targets::{EventRecord, TargetsRecord},
    units::Nanos,
};

/// Counters over time: one column per counter, one row per interval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Timeline {
    /// The end of each interval, since the start of the trial on this host.
    pub end_ns: Vec<Nanos>,
    /// The growth of each counter in each interval.
    pub counters: BTreeMap<String, Vec<u64>>,
}

/// The maximum number of intervals in a timeline. Beyond it, adjacent intervals are merged, so the memory stays constant over time.
const INTERVALS_MAX: usize = 512;

impl Timeline {
    /// Creates a timeline without intervals for these counters.
    #[must_use]
    pub fn of(counters: &[&str]) -> Self {
        Self { end_ns: Vec::new(), counters: counters.iter().map(|name| ((*name).to_owned(), Vec::new())).collect() }
    }

    /// Adds an interval with the growth of each counter, in the order of `names`.
    ///
    /// # Panics
    /// If a name is not among those given to [`Timeline::of`].
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

    /// Returns the growth of a counter between two times, over whole intervals only, and the span that they actually cover.
    ///
    /// Returns `None` if the counter is unknown or if there is no whole interval between the two times.
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

/// A deviation from the request, or from the best way to measure it, that is printed next to the number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Note {
    /// A stable name, such as `xdp-generic`, `no-steady-state`.
    pub id: String,
    /// The event and its effect on the number, in one sentence.
    pub text: String,
}

impl Note {
    /// Makes a note with a stable name and its sentence.
    #[must_use]
    pub fn new(id: impl Into<String>, text: impl Into<String>) -> Self {
        Self { id: id.into(), text: text.into() }
    }
}

/// The kernel's values of one flow at one time; the names are those of `names::tcp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FlowSample {
    /// The time since the start of the trial.
    pub at_ns: Nanos,
    /// Values of `TCP_INFO` by name.
    pub values: BTreeMap<String, u64>,
}

/// One connection of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Flow {
    /// The local and remote address.
    pub id: String,
    /// The kernel's values over time.
    pub samples: Vec<FlowSample>,
}

/// The record of one side of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Record {
    /// The side that recorded it.
    pub side: Side,
    /// The host's monotonic clock at the agreed start.
    pub start_ns: Nanos,
    /// The delay of the first worker after the agreed start.
    pub start_late_ns: Nanos,
    /// The beginning and the end of the measured phase, since the start.
    pub measured_ns: (Nanos, Nanos),
    /// Whether the warm-up ended because the rate was steady, and not because its time was over.
    pub steady: bool,
    /// Whether the trial ran to its end.
    pub complete: bool,
    /// CPU time of the test's own threads over the whole trial.
    pub cpu_ns: Nanos,
    /// CPU time of those threads in the measured phase, by the core that they are pinned to; the key is empty for unpinned threads.
    ///
    /// Empty if a test does not know it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_ns_by_core: BTreeMap<String, Nanos>,
    /// The time in the measured phase that those threads had work and no core to run on; absent if the kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_delay_ns: Option<Nanos>,
    /// The number of those threads; absent if the time of each is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_threads: Option<u64>,
    /// Counters over time, beginning at the start.
    pub timeline: Timeline,
    /// Totals over the whole trial, including the warm-up.
    pub totals: BTreeMap<String, u64>,
    /// Distributions of the measured phase, in nanoseconds unless the name says otherwise.
    pub distributions: BTreeMap<String, Histogram>,
    /// The connections that were sampled.
    #[serde(default)]
    pub flows: Vec<Flow>,
    /// A sample of the units of work with the parts of their time; an analyzed run has the anatomy of its tests instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sampled: Vec<SampledConnection>,
    /// Facts that the other side reported about itself, verbatim: `first_head`, `tls_version`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
    /// The activity of scripted users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<UsersRecord>,
    /// The results of single packets about the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeRecord>,
    /// Who answered for one address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<TargetsRecord>,
    /// What became of the requests of a recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayRecord>,
    /// The failures with their number, such as `connect: connection refused`.
    #[serde(default)]
    pub errors: FailureCounts,
    /// Deviations to report.
    #[serde(default)]
    pub notes: Vec<Note>,
}

impl Record {
    /// A record of one side that measured nothing.
    #[must_use]
    pub fn empty(side: Side) -> Self {
        Self {
            side,
            start_ns: Nanos::ZERO,
            start_late_ns: Nanos::ZERO,
            measured_ns: (Nanos::ZERO, Nanos::ZERO),
            steady: true,
            complete: true,
            cpu_ns: Nanos::ZERO,
            cpu_ns_by_core: BTreeMap::new(),
            run_delay_ns: None,
            n_threads: None,
            timeline: Timeline::default(),
            totals: BTreeMap::new(),
            distributions: BTreeMap::new(),
            flows: Vec::new(),
            sampled: Vec::new(),
            facts: BTreeMap::new(),
            users: None,
            probe: None,
            targets: None,
            replay: None,
            errors: FailureCounts::default(),
            notes: Vec::new(),
        }
    }

    /// Moves the end of the measurement to the end of all work, for a trial that is ended by a count and not by time.
    ///
    /// Ticks that noticed the end later would make every rate too low; a last tick before the end of the last turn would make it too high.
    pub fn measure_until(&mut self, end: Nanos) {
        self.measured_ns = (Nanos::ZERO, end);
        for tick in self.timeline.end_ns.iter_mut().rev().take_while(|tick| **tick > end) {
            *tick = end;
        }
        if let Some(last) = self.timeline.end_ns.last_mut() {
            *last = end;
        }
        // Without a warm-up, a steady state cannot be missed.
        self.notes.retain(|note| note.id != "no-steady-state");
    }

    /// Returns the span that contains all counts, if nothing was counted before or after the measured phase.
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
    /// The instance: `cpu1`, `eth0`; empty for the whole host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// Its value at each sample; a single value if it never changed.
    pub values: Vec<u64>,
}

/// A host's counters before, during and after a trial.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HostRecord {
    /// The times of the samples, on the host's monotonic clock.
    pub at_ns: Vec<Nanos>,
    /// The counters.
    pub series: Vec<Series>,
    /// The programs with the most CPU time beside the test, the greatest first; empty on a served host, which does not tell them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramTime>,
    /// The CPU time of kernel threads without those of softirqs; absent where programs are not told, or where they cannot be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_threads_ns: Option<Nanos>,
    /// Where the growth of its counters is too little, by instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breaks: Vec<CounterBreak>,
    /// The CPU time that reading the counters took; absent where it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_cpu_ns: Option<Nanos>,
}

/// The counters of a host at one time, as changes to its sample before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterChanges {
    /// The time of the sample, on the host's monotonic clock.
    pub at_ns: Nanos,
    /// Counters that no sample before had, each with its instance. Places count from 0 in this order.
    pub keys: Vec<(String, String)>,
    /// The places of the values that differ, with the new value; absent if it can no longer be read.
    pub values: Vec<(usize, Option<u64>)>,
    /// Why values are missing, a sentence each.
    pub losses: Vec<String>,
    /// Whether slow counters are those of an earlier sample, because they are read only about once per second.
    #[serde(default)]
    pub is_carried: bool,
    /// Readings beside the counters, such as the busiest connections: JSON that the feed writes and the view reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
}

/// A program of a host that is not the test's, and its CPU time from the first to the last sample.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ProgramTime {
    /// The name of its process, at most 15 bytes.
    pub name: String,
    /// The number of its process on its host.
    pub pid: u32,
    /// The CPU time of all of its threads, in steps of 10 ms, with that of its children that ended.
    pub cpu_ns: Nanos,
    /// The number of its threads at the end.
    pub n_threads: u32,
    /// The CPU time of its other threads and of its children that ended, since it began, in steps of 10 ms: all but that of its first thread.
    /// Absent if it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others_ns: Option<Nanos>,
    /// The time that its threads that are left had work and no core to run on, since they began. Known of programs that listen; absent if it cannot
    /// be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ns: Option<Nanos>,
    /// The TCP ports that it listens on, as far as they can be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listens: Vec<u16>,
    /// The addresses of its network namespace, if it listens; none if there are very many, or if they cannot be read. A loopback address is
    /// among them only if fathom is in the same namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The CPU quota of one of its control groups that fathom is not in itself; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<ProgramQuota>,
    /// Why it is not known whether there is such a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_unknown: Option<String>,
}

/// A CPU quota of a control group, and how often it stopped the group's programs from the first to the last sample.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ProgramQuota {
    /// The folder of the group.
    pub group: String,
    /// The CPU time that the group may use in a period.
    pub quota_ns: Nanos,
    /// The length of a period.
    pub period_ns: Nanos,
    /// The periods whose quota was used up.
    pub n_throttled: u64,
    /// The time in which the group had work and was stopped, summed over the cores.
    pub throttled_ns: Nanos,
}

/// Counters of one instance that did not go on from one sample to the next, so that they grew by more than the record shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CounterBreak {
    /// The instance: `eth0`, `cpu1`, or an empty name for the whole host.
    pub of: String,
    /// The counters that fell and were counted anew; none if it is an interface that disappeared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fell: Vec<String>,
}

impl Series {
    /// Returns the value at a sample.
    #[must_use]
    pub fn at(&self, sample: usize) -> Option<u64> {
        if self.values.len() == 1 { self.values.first().copied() } else { self.values.get(sample).copied() }
    }

    /// Returns the growth from the first to the last sample.
    ///
    /// A value that falls is a counter that restarted, as that of an interface that was removed and came back: its growth from
    /// there on is added, and what it counted between its last sample and its restart is unknown and left out. A [break](HostRecord::breaks) of
    /// its host says so.
    #[must_use]
    pub fn growth(&self) -> u64 {
        self.values.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).sum()
    }
}

impl HostRecord {
    /// Returns the series with this name, one per instance.
    pub fn series_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Series> {
        self.series.iter().filter(move |series| series.name == name)
    }

    /// Returns the growth of one series; `None` if it was not sampled.
    #[must_use]
    pub fn growth(&self, name: &str, of: &str) -> Option<u64> {
        self.series_of(name).find(|series| series.of == of).map(Series::growth)
    }

    /// The most programs that a record names: a server may have a process for each core. Where it names fewer, all others used less than a
    /// hundredth of a core each.
    pub const PROGRAMS_MAX: usize = 16;

    /// Returns the time from the first to the last sample.
    #[must_use]
    pub fn span(&self) -> Nanos {
        match (self.at_ns.first(), self.at_ns.last()) {
            (Some(first), Some(last)) => *last - *first,
            _ => Nanos::ZERO,
        }
    }
}

/// The records of one pair of hosts in one trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LinkTrial {
    /// The initiating host.
    pub from: String,
    /// The responding host; absent if the target runs no fathom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The record of each side, by host; a host that plays both sides appears as `host` and `host/responder`.
    pub records: BTreeMap<String, Record>,
}

impl LinkTrial {
    /// Returns true if both sides told their results: no host was lost.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.records.len() == 1 + usize::from(self.to.is_some())
    }
}

/// The record of one side of several pairs, merged where their results meet. It is in no document.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedRecord {
    /// The host on whose clock its times are.
    pub clock_of: String,
    /// The hosts whose records of this side are in it.
    pub hosts: BTreeSet<String>,
    /// The record.
    pub record: Record,
}

/// One round of one test.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Trial {
    /// The round, from 0.
    pub round: u32,
    /// The record of each side, by host; a host that plays both sides appears as `host` and `host/responder`. In a test of several
    /// pairs, the sum of all records of a side, by the group of its hosts.
    pub records: BTreeMap<String, Record>,
    /// The records of each pair of hosts; empty in a test of one pair.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkTrial>,
    /// The hosts that were lost, so that their pairs are not in the sums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// What the plan let happen during the trial.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventRecord>,
    /// The hosts' counters during the trial.
    pub hosts: BTreeMap<String, HostRecord>,
    /// The latest start minus the earliest, to the accuracy of the clock comparison.
    pub start_skew_ns: Nanos,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_restarts_grows_by_what_it_counts_from_there_on() {
        let growth =
            |values: &[u64]| Series { name: String::new(), of: String::new(), values: values.to_vec() }.growth();
        assert_eq!(growth(&[10, 15, 40]), 30);
        assert_eq!(growth(&[1_000, 1_005, 0, 7, 9]), 5 + 9);
        assert_eq!((growth(&[3]), growth(&[])), (0, 0));
    }

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

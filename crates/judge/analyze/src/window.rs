//! Which side recorded what, and the time in which all sides measured.
//!
//! Times of different hosts are compared on the controller's clock, with the offsets measured at the start.

use std::collections::{BTreeMap, BTreeSet};

use fathom_model::{
    HostRecord, Record, Side, Timeline, Trial,
    record::{Flow, FlowSample},
    run::Host,
    units::{Nanos, approximate},
};

/// Returns the host of a record. A host that plays both roles is recorded as `host` and `host/responder`.
pub(crate) fn host_of(key: &str) -> &str {
    key.strip_suffix("/responder").unwrap_or(key)
}

/// Returns the record of one side of a trial, with its host.
pub(crate) fn record_of(trial: &Trial, side: Side) -> Option<(&str, &Record)> {
    trial.records.iter().find(|(_, record)| record.side == side).map(|(key, record)| (host_of(key), record))
}

/// Returns every record of a trial with its host: those of its pairs, or else its own.
pub(crate) fn host_records(trial: &Trial) -> impl Iterator<Item = (&str, &Record)> {
    let own = trial.records.iter().filter(|_| trial.links.is_empty());
    let of_pairs = trial.links.iter().filter(|link| link.is_whole()).flat_map(|link| &link.records);
    own.chain(of_pairs).map(|(key, record)| (host_of(key), record))
}

/// Returns the hosts that played one side of a trial, each once.
pub(crate) fn hosts_of_side(trial: &Trial, side: Side) -> Vec<&str> {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    let of_side = host_records(trial).filter(|(_, record)| record.side == side).map(|(host, _)| host);
    of_side.filter(|host| known.insert(host)).collect()
}

/// Returns the hosts behind a name in a trial: those of a group, or the host itself.
pub(crate) fn members<'a>(trial: &'a Trial, name: &'a str) -> Vec<&'a str> {
    let side = trial.records.iter().find(|(key, _)| host_of(key) == name).map(|(_, record)| record.side);
    match side.filter(|_| !trial.links.is_empty() && !trial.hosts.contains_key(name)) {
        Some(side) => hosts_of_side(trial, side),
        None => vec![name],
    }
}

/// Returns the trials that values are computed from: the complete ones, or all if none is complete.
pub(crate) fn usable_trials(trials: &[Trial]) -> Vec<&Trial> {
    let complete: Vec<&Trial> = trials.iter().filter(|trial| is_complete(trial)).collect();
    if complete.is_empty() { trials.iter().collect() } else { complete }
}

/// Returns true if every side of a trial ran to its end.
pub(crate) fn is_complete(trial: &Trial) -> bool {
    !trial.records.is_empty() && trial.records.values().all(|record| record.complete)
}

/// A span on the controller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MeasuredWindow {
    from: i128,
    to: i128,
}

fn clamped(time: i128) -> Nanos {
    Nanos(u64::try_from(time.max(0)).unwrap_or(u64::MAX))
}

fn offset_of(hosts: &BTreeMap<String, Host>, host: &str) -> i128 {
    hosts.get(host).map_or(0, |host| i128::from(host.clock_offset_ns))
}

impl MeasuredWindow {
    /// Returns the time in which every side of a trial measured, or `None` if there is no such time.
    pub(crate) fn common(trial: &Trial, hosts: &BTreeMap<String, Host>) -> Option<Self> {
        let of_each = trial.records.iter().map(|(key, record)| {
            let start = i128::from(record.start_ns.0) - offset_of(hosts, host_of(key));
            let (from, to) = record.measured_ns;
            Self { from: start + i128::from(from.0), to: start + i128::from(to.0) }
        });
        of_each
            .reduce(|all, one| Self { from: all.from.max(one.from), to: all.to.min(one.to) })
            .filter(|window| window.from < window.to)
    }

    /// Returns its length.
    pub(crate) fn span(self) -> Nanos {
        clamped(self.to - self.from)
    }

    /// Returns the same span on the clock of a host.
    pub(crate) fn on_host(self, hosts: &BTreeMap<String, Host>, host: &str) -> (Nanos, Nanos) {
        let offset = offset_of(hosts, host);
        (clamped(self.from + offset), clamped(self.to + offset))
    }

    /// Returns the same span relative to the start of a host's record.
    pub(crate) fn in_record(self, hosts: &BTreeMap<String, Host>, host: &str, record: &Record) -> (Nanos, Nanos) {
        let (from, to) = self.on_host(hosts, host);
        (from - record.start_ns, to - record.start_ns)
    }
}

/// Returns the part of a record in which all sides measured, or its own measured part if there is no such time: a sender's goes on until the
/// last of its data has arrived.
pub(crate) fn measured_part(
    trial: &Trial,
    hosts: &BTreeMap<String, Host>,
    host: &str,
    record: &Record,
) -> (Nanos, Nanos) {
    MeasuredWindow::common(trial, hosts).map_or(record.measured_ns, |window| window.in_record(hosts, host, record))
}

/// Returns the samples of a connection within a span.
pub(crate) fn flow_samples(flow: &Flow, (from, to): (Nanos, Nanos)) -> &[FlowSample] {
    let first = flow.samples.partition_point(|sample| sample.at_ns < from);
    let end = flow.samples.partition_point(|sample| sample.at_ns <= to);
    flow.samples.get(first..end).unwrap_or(&[])
}

/// Widens a span by a tenth of an interval at both ends.
///
/// The intervals of two hosts end some microseconds apart. Without this tolerance, a whole interval would be lost at each end.
pub(crate) fn widened(timeline: &Timeline, (from, to): (Nanos, Nanos)) -> (Nanos, Nanos) {
    let n = u64::try_from(timeline.end_ns.len()).unwrap_or(u64::MAX).max(1);
    let tenth = timeline.end_ns.last().map_or(Nanos::ZERO, |end| *end / n / 10);
    (from - tenth, to + tenth)
}

/// Returns a counter's growth per second in each whole interval between two times.
pub(crate) fn rates(timeline: &Timeline, counter: &str, span: (Nanos, Nanos)) -> Vec<f64> {
    let (from, to) = widened(timeline, span);
    let Some(column) = timeline.counters.get(counter) else { return Vec::new() };
    let begins = std::iter::once(&Nanos::ZERO).chain(&timeline.end_ns);
    let intervals = begins.zip(&timeline.end_ns).zip(column);
    let inside = intervals.filter(|((begin, end), _)| **begin >= from && **end <= to && end > begin);
    inside.map(|((begin, end), growth)| approximate(*growth) / (*end - *begin).as_secs_f64()).collect()
}

/// Returns the first and the last sample of a host's counters within a span, or the samples around it if it is too short.
pub(crate) fn samples_within(record: &HostRecord, (from, to): (Nanos, Nanos)) -> Option<(usize, usize)> {
    let at = &record.at_ns;
    let first = at.iter().position(|time| *time >= from);
    let last = at.iter().rposition(|time| *time <= to);
    match (first, last) {
        (Some(first), Some(last)) if first < last => Some((first, last)),
        _ => {
            let before = at.iter().rposition(|time| *time <= from).unwrap_or(0);
            let after = at.iter().position(|time| *time >= to).unwrap_or(at.len().checked_sub(1)?);
            (before < after).then_some((before, after))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::{RunBuilder, record};

    #[test]
    fn the_common_window_is_where_both_sides_measured_on_one_clock() {
        let mut builder = RunBuilder::new();
        builder.run.hosts.get_mut("target").unwrap().clock_offset_ns = -500;
        let mut trial = Trial::default();
        let early = Record { start_ns: Nanos(1000), measured_ns: (Nanos(100), Nanos(900)), ..record(Side::Initiator) };
        let late = Record { start_ns: Nanos(600), measured_ns: (Nanos(50), Nanos(950)), ..record(Side::Responder) };
        trial.records = [("client".to_owned(), early), ("target".to_owned(), late)].into();
        let window = MeasuredWindow::common(&trial, &builder.run.hosts).unwrap();
        assert_eq!(window, MeasuredWindow { from: 1150, to: 1900 });
        let local = window.in_record(&builder.run.hosts, "target", &trial.records["target"]);
        assert_eq!(local, (Nanos(50), Nanos(800)));
    }

    #[test]
    fn sides_that_never_measured_together_have_no_window() {
        let mut trial = Trial::default();
        let early = Record { measured_ns: (Nanos(0), Nanos(10)), ..record(Side::Initiator) };
        let late = Record { measured_ns: (Nanos(10), Nanos(20)), ..record(Side::Responder) };
        trial.records = [("client".to_owned(), early), ("target".to_owned(), late)].into();
        assert_eq!(MeasuredWindow::common(&trial, &BTreeMap::new()), None);
    }

    #[test]
    fn intervals_that_end_microseconds_apart_are_the_same_intervals() {
        let mut timeline = Timeline::of(&["sent"]);
        for interval in 1..=10 {
            timeline.push(Nanos::from_millis(50 * interval) + Nanos::from_micros(interval), &["sent"], &[interval]);
        }
        let span = (Nanos::from_millis(100), Nanos::from_millis(200));
        assert_eq!(rates(&timeline, "sent", span).len(), 2);
        let (from, to) = widened(&timeline, span);
        assert_eq!(timeline.growth("sent", from, to).unwrap().0, 3 + 4);
    }

    #[test]
    fn samples_around_a_short_span_are_better_than_none() {
        let record = HostRecord { at_ns: vec![Nanos(0), Nanos(100), Nanos(200), Nanos(300)], ..HostRecord::default() };
        assert_eq!(samples_within(&record, (Nanos(50), Nanos(250))), Some((1, 2)));
        assert_eq!(samples_within(&record, (Nanos(110), Nanos(190))), Some((1, 2)));
        assert_eq!(samples_within(&HostRecord::default(), (Nanos(0), Nanos(1))), None);
    }
}

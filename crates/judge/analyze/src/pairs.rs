//! Joins the records of the pairs of a trial to one record per side: counters are added on one clock and distributions are merged.
//!
//! Percentiles come from merged distributions, never from averages. The joined measured phase is the time in which all pairs measured.

use std::collections::{BTreeMap, BTreeSet};

use fathom_model::{
    LinkTrial, MergedRecord, Note, Record, Side, StepRecord, Timeline, Trial, UsersRecord, Visits,
    names::count::{HOPS, PATH_MTU, is_maximum},
    units::{Nanos, approximate},
};

use crate::window::host_of;

/// The offset of each host's clock from the controller's, in nanoseconds: theirs minus ours.
pub type ClockOffsets = BTreeMap<String, i64>;

/// Fills in the records of a trial from those of its pairs. Pairs of which a side is missing do not count.
///
/// `from` and `to` name the sides: a host, or a group of hosts, whose record is on the controller's clock. Records that were merged on
/// the way stand for those of their hosts, of which the trial has rows.
pub fn join_pairs(trial: &mut Trial, (from, to): (&str, Option<&str>), clocks: &ClockOffsets, merged: &[MergedRecord]) {
    let whole: Vec<&LinkTrial> = trial.links.iter().filter(|link| link.is_whole()).collect();
    let of_side = |side: Side| -> SideRecords<'_> {
        let merged = merged.iter().filter(|one| one.record.side == side);
        let in_merged: BTreeSet<&str> = merged.clone().flat_map(|one| &one.hosts).map(String::as_str).collect();
        let records = whole.iter().flat_map(|link| &link.records).filter(|(_, record)| record.side == side);
        let single = records.clone().filter(|(key, _)| !in_merged.contains(host_of(key)));
        let single = single.map(|(key, record)| ClockedRecord::of(record, offset(clocks, host_of(key))));
        let merged = merged.map(|one| ClockedRecord::of(&one.record, offset(clocks, &one.clock_of)));
        SideRecords { parts: merged.chain(single).collect(), rows: records.map(|(_, record)| record).collect() }
    };
    let responder = match to {
        Some(to) if to == from => format!("{to}/responder"),
        to => to.unwrap_or_default().to_owned(),
    };
    let sides = [(Side::Initiator, from.to_owned()), (Side::Responder, responder)];
    let joined = sides.map(|(side, key)| {
        let own = offset(clocks, host_of(&key));
        Some((key, join(side, &of_side(side), own)?))
    });
    trial.records = joined.into_iter().flatten().collect();
    // The sums have them all; a document needs them once.
    for record in trial.links.iter_mut().flat_map(|link| link.records.values_mut()) {
        (record.flows, record.sampled) = (Vec::new(), Vec::new());
    }
}

fn offset(clocks: &ClockOffsets, host: &str) -> i128 {
    clocks.get(host).map_or(0, |offset| i128::from(*offset))
}

/// Merges the records of one side, each with the offset of its clock from that of the result, in nanoseconds. `None` without records.
#[must_use]
pub fn merge_records(records: &[(Record, i64)]) -> Option<Record> {
    let parts = records.iter().map(|(record, ahead_ns)| ClockedRecord::of(record, i128::from(*ahead_ns))).collect();
    let all = SideRecords { parts, rows: records.iter().map(|(record, _)| record).collect() };
    let mut merged = join(records.first()?.0.side, &all, 0)?;
    merged.sampled.truncate(FLOWS_MAX);
    Some(merged)
}

/// The records of one side of all pairs.
struct SideRecords<'a> {
    /// What is added up: the records of single pairs, and those that were merged on the way.
    parts: Vec<ClockedRecord<'a>>,
    /// One record for each pair; those that were merged on the way are only rows.
    rows: Vec<&'a Record>,
}

/// The most connections whose samples are kept of all pairs together: as many as a pair alone has. Thousands would be most of a document.
const FLOWS_MAX: usize = 64;

/// A record whose start is known on the controller's clock.
#[derive(Clone, Copy)]
struct ClockedRecord<'a> {
    record: &'a Record,
    start: i128,
}

impl<'a> ClockedRecord<'a> {
    fn of(record: &'a Record, offset: i128) -> Self {
        Self { record, start: i128::from(record.start_ns.0) - offset }
    }

    /// The time of its start after another one.
    fn after(&self, start: i128) -> Nanos {
        nanos(self.start - start)
    }
}

fn nanos(time: i128) -> Nanos {
    Nanos(u64::try_from(time.max(0)).unwrap_or(u64::MAX))
}

/// Joins the records of one side. The result is on a clock with this offset from the controller's.
fn join(side: Side, SideRecords { parts, rows }: &SideRecords<'_>, own_offset: i128) -> Option<Record> {
    let start = parts.iter().map(|part| part.start).min()?;
    let mut joined = Record::empty(side);
    joined.start_ns = nanos(start + own_offset);
    joined.timeline =
        timeline(&parts.iter().map(|part| (part.after(start), &part.record.timeline)).collect::<Vec<_>>());
    joined.measured_ns = if rows.iter().any(|row| row.probe.is_some()) {
        time_of_all(parts, start)
    } else {
        common_window(parts, start)
    };
    for part in parts {
        add(&mut joined, part.record, part.after(start));
        let room = FLOWS_MAX.saturating_sub(joined.flows.len()).min((FLOWS_MAX / parts.len()).max(1));
        joined.flows.extend(part.record.flows.iter().take(room).cloned());
    }
    let all = |of: fn(&Record) -> Option<u64>| parts.iter().map(|part| of(part.record)).sum::<Option<u64>>();
    joined.run_delay_ns = all(|record| record.run_delay_ns.map(|delay| delay.0)).map(Nanos);
    joined.n_threads = all(|record| record.n_threads);
    let is_same = |fact: &(String, String)| rows.iter().all(|row| row.facts.get(&fact.0) == Some(&fact.1));
    joined.facts = rows.first()?.facts.clone().into_iter().filter(is_same).collect();
    joined.notes = notes(rows);
    joined.users = users(parts);
    Some(joined)
}

/// The time in which all parts measured, after a start on the controller's clock; empty if there is none.
fn common_window(parts: &[ClockedRecord<'_>], start: i128) -> (Nanos, Nanos) {
    let ends = |part: &ClockedRecord<'_>| {
        let (from, to) = part.record.measured_ns;
        (part.after(start) + from, part.after(start) + to)
    };
    let from = parts.iter().map(|part| ends(part).0).max().unwrap_or_default();
    let to = parts.iter().map(|part| ends(part).1).min().unwrap_or_default();
    (from, to.max(from))
}

/// The time from the first start to the last end: probes of several pairs need not be sent together.
fn time_of_all(parts: &[ClockedRecord<'_>], start: i128) -> (Nanos, Nanos) {
    let ends = parts.iter().map(|part| part.after(start) + part.record.measured_ns.1);
    (Nanos::ZERO, ends.max().unwrap_or_default())
}

/// Adds what is counted over a whole record.
fn add(joined: &mut Record, part: &Record, after: Nanos) {
    joined.start_late_ns = joined.start_late_ns.max(after + part.start_late_ns);
    joined.steady &= part.steady;
    joined.complete &= part.complete;
    joined.cpu_ns += part.cpu_ns;
    for (core, spent) in &part.cpu_ns_by_core {
        *joined.cpu_ns_by_core.entry(core.clone()).or_default() += *spent;
    }
    for (counter, total) in &part.totals {
        let join = |sum: &mut u64| *sum = joined_total(counter, *sum, *total);
        joined.totals.entry(counter.clone()).and_modify(join).or_insert(*total);
    }
    for (name, distribution) in &part.distributions {
        joined.distributions.entry(name.clone()).or_default().merge(distribution);
    }
    joined.sampled.extend(part.sampled.iter().cloned());
    joined.errors.extend(part.errors.clone());
}

/// Adds a total of a pair to those of others. A delay, a maximum or the length of a path is no sum: the worst one stands for all.
fn joined_total(counter: &str, sum: u64, total: u64) -> u64 {
    match counter {
        PATH_MTU => sum.min(total),
        HOPS => sum.max(total),
        _ if is_maximum(counter) || counter.ends_with("_ns") => sum.max(total),
        _ => sum.saturating_add(total),
    }
}

/// Adds timelines, each of which starts so long after the common start, in the intervals of the one with the most of them.
///
/// Within an interval of another part, its count is taken as evenly spread; the sums lose no count.
fn timeline(parts: &[(Nanos, &Timeline)]) -> Timeline {
    let Some((shift, finest)) = parts.iter().max_by_key(|(_, timeline)| timeline.end_ns.len()) else {
        return Timeline::default();
    };
    let mut ends: Vec<Nanos> = finest.end_ns.iter().map(|end| *shift + *end).collect();
    let last = parts.iter().filter_map(|(shift, timeline)| Some(*shift + *timeline.end_ns.last()?)).max();
    if let (Some(end), Some(last)) = (ends.last_mut(), last) {
        *end = last;
    }
    let mut counters: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (shift, part) in parts {
        for (name, growth) in &part.counters {
            let sums = counters.entry(name.clone()).or_insert_with(|| vec![0; ends.len()]);
            let mut before = 0;
            for (sum, end) in sums.iter_mut().zip(&ends) {
                let counted = counted_until(&part.end_ns, growth, end.since(*shift));
                *sum += counted - before;
                before = counted;
            }
        }
    }
    Timeline { end_ns: ends, counters }
}

/// The count of a timeline until a time since its start.
fn counted_until(ends: &[Nanos], growth: &[u64], time: Nanos) -> u64 {
    let row = ends.partition_point(|end| *end <= time);
    let before: u64 = growth.iter().take(row).sum();
    let (Some(grown), Some(end)) = (growth.get(row), ends.get(row)) else { return before };
    let begin = row.checked_sub(1).map_or(Nanos::ZERO, |row| ends[row]);
    let part = u128::from(*grown) * u128::from((time - begin).0) / u128::from((*end - begin).0.max(1));
    before + u64::try_from(part).unwrap_or(*grown)
}

/// A note that says how many there were of something, and the same of several pairs, which have one each.
const OF_EACH: (&str, (&str, &str)) = ("one-target", ("one target answered", "each pair has one target"));

/// Returns the notes of all parts, each once, with how many parts have it unless all do.
fn notes(parts: &[&Record]) -> Vec<Note> {
    let mut all: Vec<(Note, usize)> = Vec::new();
    for note in parts.iter().flat_map(|part| &part.notes) {
        match all.iter_mut().find(|(known, _)| known.id == note.id) {
            Some((_, n)) => *n += 1,
            None => all.push((note.clone(), 1)),
        }
    }
    let told = |(note, n): (Note, usize)| {
        let (counted, (of_one, of_each)) = OF_EACH;
        let text = match n {
            n if n < parts.len() => format!("{n} of {} pairs: {}", parts.len(), note.text),
            2.. if note.id == counted => note.text.replacen(of_one, of_each, 1),
            _ => note.text,
        };
        Note { text, ..note }
    };
    all.into_iter().map(told).collect()
}

/// Adds the users of all parts; `None` if no part has any.
fn users(parts: &[ClockedRecord<'_>]) -> Option<UsersRecord> {
    let mut all = parts.iter().filter_map(|part| part.record.users.as_ref());
    let mut joined = all.next()?.clone();
    for users in all {
        joined.n_started += users.n_started;
        joined.n_finished += users.n_finished;
        joined.n_gave_up += users.n_gave_up;
        // Not all parts need to have the most at the same time, so this is an upper bound.
        joined.n_most += users.n_most;
        joined.measured = joined.measured.zip(users.measured).map(|(sum, one)| Visits {
            n_begun: sum.n_begun + one.n_begun,
            n_finished: sum.n_finished + one.n_finished,
            n_gave_up: sum.n_gave_up + one.n_gave_up,
        });
        for step in &users.steps {
            match joined.steps.iter_mut().find(|known| known.name == step.name) {
                Some(sum) => add_step(sum, step),
                None => joined.steps.push(step.clone()),
            }
        }
    }
    Some(joined)
}

fn add_step(sum: &mut StepRecord, one: &StepRecord) {
    sum.n_reached += one.n_reached;
    sum.n_passed += one.n_passed;
    for (cause, n) in &one.errors {
        *sum.errors.entry(cause.clone()).or_default() += n;
    }
    let is_new = |cause: &str| sum.examples.iter().all(|known| known.cause != cause);
    let new: Vec<_> = one.examples.iter().filter(|example| is_new(&example.cause)).cloned().collect();
    sum.examples.extend(new);
    sum.times.merge(&one.times);
}

/// The part of the time of a trial, with its warm-up, by which the starts were apart.
pub(crate) fn skew_share(trial: &Trial) -> Option<f64> {
    let of_record = |record: &Record| record.measured_ns.1;
    let measured = trial.records.values().map(of_record).min().filter(|span| *span > Nanos::ZERO)?;
    Some(approximate(trial.start_skew_ns.0) / approximate(measured.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fathom_model::Histogram;

    const MS: u64 = 1_000_000;

    /// A record that begins at a time of its own clock and counts so much in each of ten intervals of 100 ms.
    fn record(side: Side, start_ms: u64, per_interval: u64) -> Record {
        let mut timeline = Timeline::of(&["sent"]);
        (1..=10).for_each(|n| timeline.push(Nanos(n * 100 * MS), &["sent"], &[per_interval]));
        let mut times = Histogram::new();
        times.record_n(per_interval, 100);
        Record {
            start_ns: Nanos(start_ms * MS),
            measured_ns: (Nanos(200 * MS), Nanos(1_000 * MS)),
            timeline,
            totals: [("sent".to_owned(), 10 * per_interval), ("lag_ns_max".to_owned(), per_interval)].into(),
            distributions: [("service_time_ns".to_owned(), times)].into(),
            cpu_ns: Nanos(5),
            ..Record::empty(side)
        }
    }

    fn link(from: &str, records: Vec<(&str, Record)>) -> LinkTrial {
        let records = records.into_iter().map(|(key, record)| (key.to_owned(), record)).collect();
        LinkTrial { from: from.to_owned(), to: Some("sut".to_owned()), records }
    }

    /// Three companions whose clocks are 0, 7 and −3 s from the controller's, and the tested host 100 s.
    fn star() -> (Trial, ClockOffsets) {
        let of = |from: &str, start_s: u64, n: u64| {
            let asks = record(Side::Initiator, start_s * 1_000, n);
            link(from, vec![(from, asks), ("sut", record(Side::Responder, 110_000, n))])
        };
        let links = vec![of("c1", 10, 10), of("c2", 17, 20), of("c3", 7, 40)];
        let clocks =
            [("c1", 0), ("c2", 7), ("c3", -3), ("sut", 100)].map(|(host, s)| (host.to_owned(), s * 1_000_000_000));
        (Trial { links, ..Trial::default() }, clocks.into())
    }

    #[test]
    fn counts_of_hosts_with_different_clocks_are_added_and_none_is_lost() {
        let (mut trial, clocks) = star();
        join_pairs(&mut trial, ("companions", Some("sut")), &clocks, &[]);
        let (asking, answering) = (&trial.records["companions"], &trial.records["sut"]);
        assert_eq!((asking.start_ns, answering.start_ns), (Nanos::from_secs(10), Nanos::from_secs(110)));
        assert_eq!(asking.timeline.counters["sent"], [70; 10]);
        assert_eq!((asking.totals["sent"], asking.totals["lag_ns_max"], asking.cpu_ns), (700, 40, Nanos(15)));
        assert_eq!(asking.measured_ns, (Nanos(200 * MS), Nanos(1_000 * MS)));
        let times = &asking.distributions["service_time_ns"];
        assert_eq!((times.count(), times.min(), times.max()), (300, Some(10), Some(40)));
        assert_eq!(times.quantile(0.5), Some(20), "of all samples, and no mean of three medians");
    }

    #[test]
    fn the_common_window_ends_with_the_first_and_begins_with_the_last() {
        let (mut trial, clocks) = star();
        // c2 starts 30 ms late, and c3 measures until 900 ms only.
        trial.links[1].records.get_mut("c2").unwrap().start_ns += Nanos(30 * MS);
        trial.links[2].records.get_mut("c3").unwrap().measured_ns.1 = Nanos(900 * MS);
        join_pairs(&mut trial, ("companions", Some("sut")), &clocks, &[]);
        let asking = &trial.records["companions"];
        assert_eq!(asking.measured_ns, (Nanos(230 * MS), Nanos(900 * MS)));
        assert_eq!(asking.timeline.end_ns.last(), Some(&Nanos(1_030 * MS)));
        assert_eq!(asking.timeline.counters["sent"].iter().sum::<u64>(), 700);
        // A third of the first interval of c2 is missing.
        assert_eq!(asking.timeline.counters["sent"][0], 10 + 14 + 40);
    }

    #[test]
    fn probes_of_pairs_count_from_the_first_to_the_last_and_the_shortest_path_mtu_is_that_of_all() {
        let of = |from: &str, start_ms: u64, mtu: u64, hops: u64| {
            let totals = [("sent", 3), (PATH_MTU, mtu), (HOPS, hops)].map(|(name, n)| (name.to_owned(), n)).into();
            let (probe, span) = (Some(fathom_model::probe::ProbeRecord::default()), (Nanos::ZERO, Nanos(10 * MS)));
            let start_ns = Nanos(start_ms * MS);
            let asks = Record { totals, probe, start_ns, measured_ns: span, ..Record::empty(Side::Initiator) };
            link(from, vec![(from, asks), ("sut", Record::empty(Side::Responder))])
        };
        let mut trial = Trial { links: vec![of("c1", 0, 1_400, 2), of("c2", 30, 1_500, 3)], ..Trial::default() };
        join_pairs(&mut trial, ("companions", Some("sut")), &ClockOffsets::new(), &[]);
        let asking = &trial.records["companions"];
        assert_eq!((asking.totals["sent"], asking.totals[PATH_MTU], asking.totals[HOPS]), (6, 1_400, 3));
        assert_eq!(asking.measured_ns, (Nanos::ZERO, Nanos(40 * MS)), "although none of them probed together");
    }

    #[test]
    fn a_pair_whose_host_was_lost_does_not_count() {
        let (mut trial, clocks) = star();
        trial.links[2].records.remove("c3");
        join_pairs(&mut trial, ("companions", Some("sut")), &clocks, &[]);
        assert_eq!(trial.records["companions"].totals["sent"], 300);
        assert_eq!(trial.records["sut"].totals["sent"], 300);
        trial.links.iter_mut().for_each(|link| link.records.clear());
        join_pairs(&mut trial, ("companions", Some("sut")), &clocks, &[]);
        assert!(trial.records.is_empty());
    }

    #[test]
    fn hosts_that_play_both_sides_have_two_records_of_their_group() {
        let both = |from: &str, to: &str| LinkTrial {
            to: Some(to.to_owned()),
            ..link(from, vec![(from, record(Side::Initiator, 1, 1)), (to, record(Side::Responder, 1, 1))])
        };
        let mut trial = Trial { links: vec![both("a", "b"), both("b", "a")], ..Trial::default() };
        join_pairs(&mut trial, ("all", Some("all")), &ClockOffsets::new(), &[]);
        let sides: Vec<(&str, Side)> = trial.records.iter().map(|(key, record)| (key.as_str(), record.side)).collect();
        assert_eq!(sides, [("all", Side::Initiator), ("all/responder", Side::Responder)]);
    }

    #[test]
    fn records_that_were_merged_on_the_way_make_the_same_sums_as_single_ones() {
        let (mut flat, clocks) = star();
        let (mut tree, _) = star();
        // c2 is the head of c3, whose clock is 10 s behind that of c2; the tested host merges all of its own.
        let take = |trial: &Trial, host: &str, ahead_ns: i64| -> Vec<(Record, i64)> {
            let records = trial.links.iter().flat_map(|link| &link.records).filter(|(key, _)| key.as_str() == host);
            records.map(|(_, record)| (record.clone(), ahead_ns)).collect()
        };
        let of_head = [take(&tree, "c2", 0), take(&tree, "c3", -10_000_000_000)].concat();
        let merged = [("c2", vec!["c2", "c3"], of_head), ("sut", vec!["sut"], take(&tree, "sut", 0))].map(
            |(clock_of, hosts, records)| MergedRecord {
                clock_of: clock_of.to_owned(),
                hosts: hosts.into_iter().map(str::to_owned).collect(),
                record: merge_records(&records).unwrap(),
            },
        );
        for link in &mut tree.links {
            for (key, record) in &mut link.records {
                record.distributions.retain(|_, _| key == "c1");
            }
        }
        join_pairs(&mut flat, ("companions", Some("sut")), &clocks, &[]);
        join_pairs(&mut tree, ("companions", Some("sut")), &clocks, &merged);
        assert_eq!(tree.records, flat.records);
        assert_eq!(tree.records["companions"].distributions["service_time_ns"].count(), 300);
    }

    #[test]
    fn a_note_says_how_many_pairs_have_it() {
        let (mut trial, clocks) = star();
        let note = Note { id: "x".to_owned(), text: "so it is".to_owned() };
        trial.links[0].records.get_mut("c1").unwrap().notes = vec![note.clone()];
        join_pairs(&mut trial, ("companions", Some("sut")), &clocks, &[]);
        assert_eq!(trial.records["companions"].notes[0].text, "1 of 3 pairs: so it is");
        for link in &mut trial.links {
            link.records.get_mut(&link.from).unwrap().notes = vec![note.clone()];
        }
        join_pairs(&mut trial, ("companions", Some("sut")), &clocks, &[]);
        assert_eq!(trial.records["companions"].notes, [note]);
    }

    #[test]
    fn pairs_with_one_target_each_are_not_said_to_have_one_together() {
        let (mut trial, clocks) = star();
        let text = "one target answered, so the test cannot show where they went";
        for link in &mut trial.links {
            link.records.get_mut(&link.from).unwrap().notes = vec![Note::new("one-target", text)];
        }
        join_pairs(&mut trial, ("companions", Some("sut")), &clocks, &[]);
        let told = "each pair has one target, so the test cannot show where they went";
        assert_eq!(trial.records["companions"].notes[0].text, told);
        trial.links.truncate(1);
        join_pairs(&mut trial, ("companions", Some("sut")), &clocks, &[]);
        assert_eq!(trial.records["companions"].notes[0].text, text, "of one pair");
    }
}

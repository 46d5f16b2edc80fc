//! The anatomy of a test: the parts of the time of a unit of work, from the units that both ends sampled.

use std::collections::BTreeMap;

use fathom_model::{
    Anatomy, AnatomyPart, Histogram, Part, Record, SampledConnection, Side, TestRun, Trial,
    names::distribution::SERVICE_TIME, units::Nanos,
};

/// Fewer units have no middle tenth.
const UNITS_MIN: usize = 20;
/// The slowest hundredth must have this many units.
const SLOW_MIN: usize = 10;

/// A unit: its parts, in the order of time.
type Unit = Vec<Nanos>;

/// A part and the end that it is at.
type Place = (Part, Option<Side>);

/// Computes the anatomy of a test; `None` if too few units were sampled.
///
/// Units of which only the initiator tells its parts are used only if there are none that both ends tell.
pub(crate) fn anatomy(test: &TestRun) -> Option<Anatomy> {
    let mut by_places: BTreeMap<Vec<Place>, Vec<Unit>> = BTreeMap::new();
    for (places, unit) in test.trials.iter().flat_map(units) {
        by_places.entry(places).or_default().push(unit);
    }
    let (places, units) =
        by_places.into_iter().max_by_key(|(places, units)| (units.len() >= UNITS_MIN, places.len()))?;
    let costs_time = places.iter().any(|(part, _)| *part == Part::SendCall);
    let all_median_ns = costs_time.then(|| median_of_all(test)).flatten();
    (units.len() >= UNITS_MIN).then(|| Anatomy { all_median_ns, ..summary(&places, units) })
}

/// The median of all units of the initiator, sampled or not.
fn median_of_all(test: &TestRun) -> Option<Nanos> {
    let mut all = Histogram::new();
    let records = test.trials.iter().flat_map(|trial| trial.records.values());
    let sampling = records.filter(|record| record.side == Side::Initiator && !record.sampled.is_empty());
    sampling.filter_map(|record| record.distributions.get(SERVICE_TIME)).for_each(|times| all.merge(times));
    all.quantile(0.5).map(Nanos)
}

/// The units of a trial with the places of their parts.
fn units(trial: &Trial) -> Vec<(Vec<Place>, Unit)> {
    let of_side = |side: Side| {
        let records = trial.records.values().filter(move |record: &&Record| record.side == side);
        records.flat_map(|record| &record.sampled).collect::<Vec<_>>()
    };
    let (near, far) = (of_side(Side::Initiator), of_side(Side::Responder));
    let mut all = Vec::new();
    for connection in &near {
        let others = match (near.as_slice(), far.as_slice()) {
            // Whatever a device between them made of the addresses.
            ([_], [other]) => Some(*other),
            _ => far.iter().find(|other| other.remote == connection.local).copied(),
        };
        let units: BTreeMap<u64, &Unit> =
            others.iter().flat_map(|other| &other.units).map(|unit| (unit.number, &unit.spans_ns)).collect();
        for unit in &connection.units {
            all.extend(match others.zip(units.get(&unit.number)) {
                Some((other, spans)) => joined(connection, &unit.spans_ns, other, spans),
                None => Some((at(connection, Side::Initiator).collect(), unit.spans_ns.clone())),
            });
        }
    }
    all
}

fn at(connection: &SampledConnection, side: Side) -> impl Iterator<Item = Place> {
    connection.parts.iter().map(move |part| (*part, Some(side).filter(|_| part.is_at_one_end())))
}

/// Puts the parts of the other end into the time that a unit was away; `None` if they take longer, since a clock was set meanwhile.
fn joined(
    connection: &SampledConnection,
    spans: &[Nanos],
    other: &SampledConnection,
    other_spans: &[Nanos],
) -> Option<(Vec<Place>, Unit)> {
    let (mut places, mut unit) = (Vec::new(), Unit::new());
    for ((part, side), span) in at(connection, Side::Initiator).zip(spans) {
        if part != Part::Away {
            places.push((part, side));
            unit.push(*span);
            continue;
        }
        let there = other_spans.iter().fold(Nanos::ZERO, |sum, span| sum + *span);
        if there > *span {
            return None;
        }
        places.push((Part::Path, None));
        unit.push(*span - there);
        places.extend(at(other, Side::Responder));
        unit.extend(other_spans);
    }
    Some((places, unit))
}

fn summary(places: &[Place], mut units: Vec<Unit>) -> Anatomy {
    let length = |unit: &Unit| unit.iter().fold(Nanos::ZERO, |sum, span| sum + *span);
    units.sort_by_key(length);
    let n = units.len();
    // Where units are of two kinds, a mean of both is the time of none.
    let usual = length(&units[n / 2]);
    let is_usual = |unit: &&Unit| (usual / 2..=usual * 2).contains(&length(unit));
    let middle: Vec<Unit> = units[n * 9 / 20..=n * 11 / 20].iter().filter(is_usual).cloned().collect();
    let slow = Some(&units[n - n / 100..]).filter(|slow| slow.len() >= SLOW_MIN);
    let mean = |units: &[Unit], idx: usize| {
        let sum = units.iter().fold(Nanos::ZERO, |sum, unit| sum + unit[idx]);
        sum / u64::try_from(units.len()).unwrap_or(1).max(1)
    };
    let part = |(idx, (part, side)): (usize, &Place)| AnatomyPart {
        part: *part,
        side: *side,
        median_ns: mean(&middle, idx),
        slow_ns: slow.map(|slow| mean(slow, idx)),
    };
    // A schedule that there is none of, or connections that were open already.
    let is_used = |(idx, _): &(usize, &Place)| units.iter().any(|unit| unit[*idx] > Nanos::ZERO);
    let parts = places.iter().enumerate().filter(is_used).map(part).collect();
    Anatomy { n_units: u64::try_from(n).unwrap_or(u64::MAX), parts, all_median_ns: None }
}

#[cfg(test)]
mod tests {
    use fathom_model::SampledUnit;

    use super::*;
    use crate::run_builder::RunBuilder;

    fn connection(ends: (&str, &str), parts: &[Part], units: &[(u64, &[u64])]) -> SampledConnection {
        let unit = |(number, spans): &(u64, &[u64])| SampledUnit {
            number: *number,
            spans_ns: spans.iter().map(|span| Nanos(*span)).collect(),
        };
        SampledConnection {
            local: ends.0.to_owned(),
            remote: ends.1.to_owned(),
            parts: parts.to_vec(),
            units: units.iter().map(unit).collect(),
            n_incomplete: 0,
        }
    }

    const NEAR: &[Part] = &[Part::SendCall, Part::LocalQueue, Part::Away, Part::WakeUp];
    const FAR: &[Part] = &[Part::WakeUp, Part::Program, Part::SendCall, Part::LocalQueue];

    /// A test with these connections at its ends.
    fn test(near: Vec<SampledConnection>, far: Vec<SampledConnection>) -> TestRun {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        let mut test = builder.run.tests.remove(0);
        for (host, sampled) in [("client", near), ("target", far)] {
            test.trials[0].records.get_mut(host).unwrap().sampled = sampled;
        }
        test
    }

    #[test]
    fn the_parts_of_both_ends_and_the_path_between_them_add_up_to_the_whole() {
        let near: Vec<(u64, Vec<u64>)> = (0..2000).map(|n| (n, vec![2, 1, 40 + n, 20])).collect();
        let near: Vec<(u64, &[u64])> = near.iter().map(|(n, spans)| (*n, spans.as_slice())).collect();
        let far: Vec<(u64, &[u64])> = (0..2000).rev().map(|n| (n, &[10, 5, 3, 1][..])).collect();
        let test = test(
            vec![connection(("10.0.0.1:5", "10.0.0.2:1"), NEAR, &near)],
            // Behind address translation.
            vec![connection(("192.168.0.1:1", "192.168.0.9:77"), FAR, &far)],
        );
        let anatomy = anatomy(&test).unwrap();
        assert_eq!(anatomy.n_units, 2000);
        let parts: Vec<_> = anatomy.parts.iter().map(|part| (part.part, part.side, part.median_ns.0)).collect();
        let (here, there) = (Some(Side::Initiator), Some(Side::Responder));
        assert_eq!(
            parts,
            [
                (Part::SendCall, here, 2),
                (Part::LocalQueue, here, 1),
                (Part::Path, None, 21 + 1000),
                (Part::WakeUp, there, 10),
                (Part::Program, there, 5),
                (Part::SendCall, there, 3),
                (Part::LocalQueue, there, 1),
                (Part::WakeUp, here, 20),
            ]
        );
        assert_eq!(anatomy.median(), Nanos(1063));
        // The mean of the last twenty.
        assert_eq!(anatomy.slow(), Some(Nanos(63 + 1989)));
    }

    #[test]
    fn connections_meet_by_their_addresses_and_units_by_their_numbers() {
        let near = |port: &str, away: u64| {
            let spans = [1, 1, away, 1];
            let units: Vec<(u64, &[u64])> = (0..30).map(|n| (n, &spans[..])).collect();
            connection((port, "b:1"), NEAR, &units)
        };
        let far = |port: &str, program: u64, numbers: std::ops::Range<u64>| {
            let spans = [1, program, 1, 1];
            let units: Vec<(u64, &[u64])> = numbers.map(|n| (n, &spans[..])).collect();
            connection(("b:1", port), FAR, &units)
        };
        let both = test(vec![near("a:1", 100), near("a:2", 200)], vec![far("a:2", 150, 0..30), far("a:1", 50, 20..90)]);
        let anatomy = anatomy(&both).unwrap();
        assert_eq!(anatomy.n_units, 40, "ten of the first connection have a number that both ends know");
        assert!(anatomy.parts.iter().all(|part| part.slow_ns.is_none()), "too few");
    }

    #[test]
    fn an_end_that_tells_nothing_leaves_the_whole_time_away() {
        let spans: &[u64] = &[1, 2, 30, 4];
        let units: Vec<(u64, &[u64])> = (0..25).map(|n| (n, spans)).collect();
        let alone = anatomy(&test(vec![connection(("a:1", "b:1"), NEAR, &units)], Vec::new())).unwrap();
        let parts: Vec<_> = alone.parts.iter().map(|part| (part.part, part.side)).collect();
        assert_eq!(parts[2], (Part::Away, None));
        assert_eq!(alone.median(), Nanos(37));
        assert_eq!(anatomy(&test(vec![connection(("a:1", "b:1"), NEAR, &units[..19])], Vec::new())), None);
    }

    #[test]
    fn a_unit_that_was_away_for_less_than_the_other_end_took_is_left_out() {
        let (near, far): (&[u64], &[u64]) = (&[1, 1, 10, 1], &[5, 5, 5, 5]);
        let [near, far] = [near, far].map(|spans| (0..30).map(|n| (n, spans)).collect::<Vec<_>>());
        let test = test(vec![connection(("a:1", "b:1"), NEAR, &near)], vec![connection(("b:1", "a:1"), FAR, &far)]);
        assert_eq!(anatomy(&test), None);
    }
}

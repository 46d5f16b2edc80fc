//! What the records about targets mean: how even the spread is, and which flows had to suffer from an event.

use std::collections::{BTreeMap, BTreeSet};

use fathom_model::{
    EventEffect, EventRecord, Record, ShareFit, TargetFlow, TargetShare, TargetSpell, TargetsRecord, TargetsSummary,
    Trial,
    metric::TargetsValue,
    names::distribution::RESPONSE_TIME,
    run::TestRun,
    targets::target_name,
    units::{Nanos, approximate, ratio},
};
use fathom_statistics::{ChiSquare, chi_square, mean, variation};

/// A target that answers nobody from so long after an event on is lost by it; what was sent just before may still be answered.
const SETTLING: Nanos = Nanos::from_millis(100);
/// A message that was due at most so long before an event may meet it on its way, or longer where answers take longer.
const ON_THE_WAY_MIN: Nanos = Nanos::from_millis(50);

/// Returns the records about targets of some trials.
pub(crate) fn records<'a>(trials: impl IntoIterator<Item = &'a Trial>) -> Vec<&'a TargetsRecord> {
    let records = trials.into_iter().flat_map(|trial| trial.records.values());
    records.filter_map(|record| record.targets.as_ref()).collect()
}

/// Returns what the trials of a test say about the targets; `None` if it is not about targets.
pub(crate) fn summary(test: &TestRun) -> Option<TargetsSummary> {
    let effects = test.trials.iter().flat_map(event_effects).collect();
    Some(TargetsSummary { effects, ..shares_of(&records(&test.trials))? })
}

fn shares_of(records: &[&TargetsRecord]) -> Option<TargetsSummary> {
    let first = records.first()?;
    let answers = TargetsRecord::sum_of(records.iter().copied());
    let mut n_of_name: BTreeMap<&str, u64> = BTreeMap::new();
    for target in answers.keys() {
        *n_of_name.entry(target_name(target)).or_default() += 1;
    }
    let missing = first.missing(&answers);
    let n_unnamed = first.n_expected.filter(|_| first.weights.is_empty());
    let n_unnamed = n_unnamed.map_or(0, |n| n.saturating_sub(u64::try_from(answers.len()).unwrap_or(u64::MAX)));
    // Flows that stay open are few, and show no spread unless shares are asked for.
    let is_spread = first.flows.is_empty();
    let is_named = !first.weights.is_empty();
    let weight = |name: &str| if is_named { first.weights.get(name).copied() } else { is_spread.then_some(1.0) };
    let row = |(target, n): (&&str, &u64)| {
        let name = target_name(target);
        let shown = if n_of_name.get(name).is_some_and(|n| *n > 1) { *target } else { name };
        (shown.to_owned(), *n, weight(name))
    };
    let mut rows: Vec<(String, u64, Option<f64>)> = answers.iter().map(row).collect();
    rows.extend(missing.iter().map(|name| ((*name).to_owned(), 0, weight(name))));
    rows.extend((1..=n_unnamed).map(|n| (format!("missing {n}"), 0, Some(1.0))));
    let of_weight: f64 = rows.iter().filter_map(|row| row.2).sum();
    let is_expected = !rows.is_empty() && rows.iter().all(|row| row.2.is_some());
    let (counts, weights): (Vec<u64>, Vec<f64>) = rows.iter().map(|row| (row.1, row.2.unwrap_or(0.0))).unzip();
    let is_named_twice = |name: &&String| n_of_name.get(name.as_str()).is_some_and(|n| *n > 1);
    let compared = if is_expected { chi_square(&counts, &weights) } else { None };
    Some(TargetsSummary {
        fit: compared.map(|ChiSquare { statistic, degrees, p }| ShareFit { chi_square: statistic, degrees, p }),
        ambiguous: first.weights.keys().filter(is_named_twice).cloned().collect(),
        targets: rows
            .into_iter()
            .map(|(name, n, weight)| TargetShare { name, n, expected: weight.map(|weight| weight / of_weight) })
            .collect(),
        effects: Vec::new(),
    })
}

/// Returns what each event of a trial did to its flows.
fn event_effects(trial: &Trial) -> Vec<EventEffect> {
    let with_flows = |record: &&Record| record.targets.as_ref().is_some_and(|targets| !targets.flows.is_empty());
    let Some(record) = trial.records.values().find(with_flows) else { return Vec::new() };
    let mut events: Vec<(Nanos, &EventRecord)> =
        trial.events.iter().filter_map(|event| Some((event.began_ns?, event))).collect();
    events.sort_by_key(|(began, _)| *began);
    let ends: Vec<Nanos> = events.iter().skip(1).map(|(next, _)| *next).chain([Nanos::MAX]).collect();
    let effect = |((began, event), end): (&(Nanos, &EventRecord), Nanos)| EventEffect {
        round: trial.round,
        ..effect_of(record, event, (*began, end))
    };
    events.iter().zip(ends).map(effect).collect()
}

/// Returns what flows lost from the beginning of an event to that of the next one.
fn effect_of(record: &Record, event: &EventRecord, (from, end): (Nanos, Nanos)) -> EventEffect {
    let (flows, n_unlisted) =
        record.targets.as_ref().map_or((&[][..], 0), |targets| (&targets.flows[..], targets.n_flows_unlisted));
    let on_the_way = on_the_way(record);
    let begins = |at: Nanos| at + on_the_way >= from && at < end;
    // A repeated event has its effect from its first run on.
    let takes = event.took_ns.filter(|_| event.n_runs.is_none()).unwrap_or_default();
    let settled = from + takes.max(SETTLING);
    // One that goes on when the next begins leaves no time of its own after it.
    let settled = if settled < end { settled } else { from + SETTLING };
    let goes_on = |spell: &&TargetSpell| spell.to_ns > settled && spell.from_ns < end;
    let spells = flows.iter().flat_map(|flow| &flow.spells);
    let answers_on: BTreeSet<&str> = spells.filter(goes_on).map(|spell| spell.target.as_str()).collect();
    let before: BTreeSet<&str> = flows.iter().filter_map(|flow| flow.target_before(from)).collect();
    // Near the end of a trial, nobody answers on. A flow that is connected anew before its next message is due loses none.
    let is_left = |target: &&str| {
        let goes = |spell: &TargetSpell| begins(spell.from_ns) && spell.target != *target;
        let breaks = |flow: &TargetFlow| {
            flow.outages.iter().any(|outage| begins(outage.from_ns)) || flow.spells.iter().any(goes)
        };
        flows.iter().any(|flow| flow.target_before(from) == Some(*target) && breaks(flow))
    };
    let lost: BTreeSet<&str> = before.difference(&answers_on).copied().filter(is_left).collect();
    let mut effect = EventEffect {
        round: 0,
        event: event.clone(),
        n_flows: u64::try_from(flows.len()).unwrap_or(u64::MAX) + n_unlisted,
        lost_targets: lost.iter().map(|target| (*target).to_owned()).collect(),
        n_own: 0,
        n_collateral: 0,
        longest_ns: None,
        n_unrecovered: 0,
        n_lost: 0,
    };
    for flow in flows {
        let is_own = flow.target_before(from).is_some_and(|target| lost.contains(target));
        effect.n_own += u64::from(is_own);
        let is_hurt = add_harm(flow, begins, &mut effect);
        effect.n_collateral += u64::from(is_hurt && !is_own);
    }
    effect
}

/// Returns how long before an event a message may have been due that meets it on its way: as long as a usual answer takes, which an outage does not
/// change.
fn on_the_way(record: &Record) -> Nanos {
    let usual = record.distributions.get(RESPONSE_TIME).and_then(|times| times.quantile(0.5));
    ON_THE_WAY_MIN.max(Nanos(usual.unwrap_or(0)))
}

/// Returns whether an outage of a flow began or it moved at such a time, and adds its outages.
fn add_harm(flow: &TargetFlow, begins: impl Fn(Nanos) -> bool, effect: &mut EventEffect) -> bool {
    let mut is_hurt = flow.moves().any(|(_, after)| begins(after.from_ns));
    for outage in flow.outages.iter().filter(|outage| begins(outage.from_ns)) {
        is_hurt = true;
        effect.n_lost += outage.n_lost;
        effect.n_unrecovered += u64::from(outage.to_ns.is_none());
        effect.longest_ns = effect.longest_ns.max(outage.to_ns.map(|to| to.since(outage.from_ns)));
    }
    is_hurt
}

/// Returns a value of the targets in some trials, or the reason why there is none.
pub(crate) fn value(trials: &[&Trial], of: TargetsValue) -> Result<f64, String> {
    let records = records(trials.iter().copied());
    let shares = || shares_of(&records).ok_or_else(|| "not recorded".to_owned());
    let missing = || "not recorded".to_owned();
    match of {
        TargetsValue::Variation => variation(&weighted(&shares()?)).ok_or_else(missing),
        TargetsValue::ChiSquareP => shares()?.fit.map(|fit| fit.p).ok_or_else(missing),
        TargetsValue::MostToMean => {
            let counts = weighted(&shares()?);
            let mean = mean(&counts).filter(|mean| *mean > 0.0 && counts.len() > 1).ok_or_else(missing)?;
            Ok(counts.iter().copied().fold(0.0, f64::max) / mean)
        }
        TargetsValue::Answering => {
            let n = shares()?.targets.iter().filter(|row| row.n > 0).count();
            Ok(approximate(u64::try_from(n).unwrap_or(u64::MAX)))
        }
        TargetsValue::Missing => {
            let is_expected = records.first().is_some_and(|record| record.n_expected.is_some());
            let n = shares()?.targets.iter().filter(|row| row.n == 0).count();
            is_expected.then(|| approximate(u64::try_from(n).unwrap_or(u64::MAX))).ok_or_else(missing)
        }
        TargetsValue::Own | TargetsValue::Collateral => {
            let effects: Vec<EventEffect> = trials.iter().flat_map(|trial| event_effects(trial)).collect();
            let part = |effect: &EventEffect| {
                if of == TargetsValue::Own { effect.n_own } else { effect.n_collateral }
            };
            let n_flows = effects.iter().map(|effect| effect.n_flows).sum();
            ratio(effects.iter().map(part).sum(), n_flows).ok_or_else(missing)
        }
    }
}

/// Returns the counts divided by their expected shares, of the expected targets.
fn weighted(shares: &TargetsSummary) -> Vec<f64> {
    let of_row = |row: &TargetShare| Some(approximate(row.n) / row.expected.filter(|share| *share > 0.0)?);
    shares.targets.iter().filter_map(of_row).collect()
}

#[cfg(test)]
mod tests {
    use fathom_model::{FlowOutage, Histogram, OutageCause, Side};

    use super::*;

    fn answers(counts: &[(&str, u64)]) -> TargetsRecord {
        let answers = counts.iter().map(|(target, n)| ((*target).to_owned(), *n)).collect();
        TargetsRecord { answers, ..TargetsRecord::default() }
    }

    #[test]
    fn a_missing_target_makes_the_spread_uneven() {
        let even = answers(&[("t1#1", 500), ("t2#2", 500)]);
        let shares = shares_of(&[&even]).unwrap();
        assert!(shares.fit.unwrap().p > 0.99);
        assert_eq!(shares.targets[0].name, "t1");
        let three = TargetsRecord { n_expected: Some(3), ..even.clone() };
        assert!(shares_of(&[&three]).unwrap().fit.unwrap().p < 1e-9);
        let weights = [("t1".to_owned(), 1.0), ("t2".to_owned(), 1.0), ("t3".to_owned(), 1.0)].into();
        let named = TargetsRecord { weights, n_expected: Some(3), ..even };
        assert_eq!(shares_of(&[&named]).unwrap().targets[2].name, "t3");
    }

    #[test]
    fn two_targets_of_one_name_are_two() {
        let twins = answers(&[("t1#1", 10), ("t1#2", 10)]);
        let shares = shares_of(&[&twins]).unwrap();
        assert_eq!(shares.targets.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["t1#1", "t1#2"]);
        assert_eq!(shares.ambiguous, Vec::<String>::new());
        let named = TargetsRecord { weights: [("t1".to_owned(), 1.0)].into(), ..twins };
        assert_eq!(shares_of(&[&named]).unwrap().ambiguous, ["t1"]);
    }

    const MS: u64 = 1_000_000;

    fn flow(spells: &[(&str, u64, u64)], outage: Option<(u64, u64)>) -> TargetFlow {
        let spell = |(connection, (target, from, to)): (usize, &(&str, u64, u64))| TargetSpell {
            target: (*target).to_owned(),
            from_ns: Nanos(from * MS),
            to_ns: Nanos(to * MS),
            connection: u32::try_from(connection).unwrap(),
        };
        let outage = outage.map(|(from, to)| FlowOutage {
            from_ns: Nanos(from * MS),
            to_ns: Some(Nanos(to * MS)),
            n_lost: (to - from) / 10,
            n_late: 0,
            cause: OutageCause::Reset,
            reconnect_ns: None,
        });
        TargetFlow {
            spells: spells.iter().enumerate().map(spell).collect(),
            outages: outage.into_iter().collect(),
            ..TargetFlow::default()
        }
    }

    fn recorded(flows: Vec<TargetFlow>) -> Record {
        Record { targets: Some(TargetsRecord { flows, ..TargetsRecord::default() }), ..Record::empty(Side::Initiator) }
    }

    fn after_a_second() -> EventRecord {
        EventRecord {
            event: "1s x".to_owned(),
            n_runs: None,
            due_ns: Nanos(1000 * MS),
            began_ns: Some(Nanos(1001 * MS)),
            took_ns: Some(Nanos(5 * MS)),
            status: Some(0),
            failure: None,
        }
    }

    #[test]
    fn flows_of_a_lost_target_are_own_and_others_that_are_hurt_are_collateral() {
        let flows = vec![
            flow(&[("t1", 0, 990), ("t2", 1050, 2000)], Some((1000, 1050))),
            flow(&[("t2", 0, 2000)], None),
            flow(&[("t2", 0, 990), ("t3", 1020, 2000)], Some((1000, 1020))),
            flow(&[("t3", 0, 2000)], None),
        ];
        let record = recorded(flows);
        let event = after_a_second();
        let effect = effect_of(&record, &event, (Nanos(1001 * MS), Nanos::MAX));
        assert_eq!((effect.n_flows, effect.n_own, effect.n_collateral), (4, 1, 1));
        let repeated = EventRecord { n_runs: Some(50), took_ns: Some(Nanos(1000 * MS)), ..event.clone() };
        let effect_of_repeated = effect_of(&record, &repeated, (Nanos(1001 * MS), Nanos::MAX));
        assert_eq!(effect_of_repeated.lost_targets, effect.lost_targets, "those that answer meanwhile are not lost");
        assert_eq!((effect.lost_targets, effect.n_lost), (vec!["t1".to_owned()], 7));
        assert_eq!(effect.longest_ns, Some(Nanos(50 * MS)));
    }

    #[test]
    fn a_message_meets_an_event_as_long_as_answers_take() {
        let mut record = recorded(vec![flow(&[("t1", 0, 850)], Some((860, 2000)))]);
        let effect = |record: &Record| effect_of(record, &after_a_second(), (Nanos(1001 * MS), Nanos::MAX));
        assert_eq!(effect(&record).n_own, 0, "its outage began before");
        let mut response = Histogram::new();
        response.record_n(200 * MS, 80);
        record.distributions.insert(RESPONSE_TIME.to_owned(), response);
        assert_eq!((effect(&record).n_own, effect(&record).lost_targets), (1, vec!["t1".to_owned()]));
    }

    #[test]
    fn a_target_is_lost_although_its_flows_were_connected_anew_before_their_next_message() {
        let flows = vec![flow(&[("t1", 0, 990), ("t2", 1010, 2000)], None), flow(&[("t2", 0, 2000)], None)];
        let record = recorded(flows);
        let effect = effect_of(&record, &after_a_second(), (Nanos(1001 * MS), Nanos::MAX));
        assert_eq!(effect.lost_targets, ["t1"]);
        assert_eq!((effect.n_own, effect.n_collateral, effect.n_lost), (1, 0, 0));
    }
}

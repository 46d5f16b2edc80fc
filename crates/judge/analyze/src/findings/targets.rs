//! What a device that spreads does wrong: targets that nobody reaches, a spread that is not that of the weights, flows that move, and
//! flows that are hurt although their target is well.

use fathom_model::{
    Finding, NextStep, Severity, TargetsSummary,
    units::{grouped, percent},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, text_evidence};

/// A spread that chance alone makes less often than this is not that of the weights.
const P_MIN: f64 = 0.001;
/// The most targets that are listed.
const LISTED: usize = 8;

fn host<'a>(seen: &TestEvidence<'a>) -> &'a str {
    seen.hosts().next().unwrap_or("")
}

fn list(names: &[String]) -> String {
    match names.len().checked_sub(LISTED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..LISTED].join(", ")),
    }
}

fn summary<'a>(seen: &TestEvidence<'a>) -> Option<&'a TargetsSummary> {
    seen.test.targets.as_ref()
}

/// Reports names that several targets have, so that shares by name mean nothing.
pub(crate) struct SameName;

impl FindingRule for SameName {
    fn id(&self) -> &'static str {
        "same-target-name"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(targets) = summary(seen).filter(|targets| !targets.ambiguous.is_empty()) else { return Vec::new() };
        let names = list(&targets.ambiguous);
        let title = format!("more than one target calls itself {names}, so the expected shares by name mean nothing");
        let counts = targets.targets.iter().filter(|target| target.name.contains('#')).take(LISTED);
        vec![
            seen.finding(self.id(), Severity::Invalidates, "same name", title)
                .evidence(counts.map(|target| text_evidence(host(seen), target.name.clone(), grouped(target.n))))
                .next(
                    NextStep::new("fathom serve --only identity --identity-name NAME")
                        .expected("give each target its own name"),
                ),
        ]
    }
}

/// Reports expected targets that gave no answer.
pub(crate) struct MissingTargets;

impl FindingRule for MissingTargets {
    fn id(&self) -> &'static str {
        "targets-missing"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(targets) = summary(seen) else { return Vec::new() };
        let missing: Vec<String> =
            targets.targets.iter().filter(|target| target.n == 0).map(|target| target.name.clone()).collect();
        let n_answers: u64 = targets.targets.iter().map(|target| target.n).sum();
        if missing.is_empty() || n_answers == 0 {
            return Vec::new();
        }
        let title = format!(
            "{} of {} expected targets never answered: {}",
            missing.len(),
            targets.targets.len(),
            list(&missing)
        );
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "targets missing", title)
                .evidence([text_evidence(host(seen), "answers of the others", grouped(n_answers))])
                .next(NextStep::new("nft list ruleset").expected(
                    "show, on the device, whether it knows all targets; another device has a command of its own",
                )),
        ]
    }
}

/// Reports a spread that is unlikely under the expected shares.
pub(crate) struct UnevenSpread;

impl FindingRule for UnevenSpread {
    fn id(&self) -> &'static str {
        "uneven-spread"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Flows that stay open are few, and are no sample of how new ones are spread.
        let is_spread = seen.test.summaries.iter().any(|summary| summary.metric.name == "chi_square_p");
        let Some((targets, fit)) = summary(seen).filter(|_| is_spread).and_then(|all| Some((all, all.fit?))) else {
            return Vec::new();
        };
        if fit.p >= P_MIN || !targets.ambiguous.is_empty() {
            return Vec::new();
        }
        let n: u64 = targets.targets.iter().map(|target| target.n).sum();
        let share = |n_of: u64| fathom_model::units::ratio(n_of, n).unwrap_or(0.0);
        let deviation = |target: &&fathom_model::TargetShare| {
            let expected = target.expected.unwrap_or(0.0);
            if expected > 0.0 { (share(target.n) / expected - 1.0).abs() } else { 0.0 }
        };
        let most = targets.targets.iter().max_by(|a, b| deviation(a).total_cmp(&deviation(b)));
        let Some(most) = most else { return Vec::new() };
        let title = format!(
            "the spread is not that of the weights: {} answered {} instead of {}",
            most.name,
            percent(share(most.n)),
            percent(most.expected.unwrap_or(0.0))
        );
        let again = seen.repeat_test_command("--source 10.0.0.0/16 --local-sources");
        let degrees = if fit.degrees == 1 { "degree" } else { "degrees" };
        let statistic = format!("{:.1} on {} {degrees} of freedom", fit.chi_square, fit.degrees);
        let expected = "show whether the device spreads by addresses alone, so that few sources reach few targets";
        let found = seen.finding(self.id(), Severity::HoldsBack, "uneven spread", title).evidence([
            text_evidence(host(seen), "chi-square", statistic),
            text_evidence(host(seen), "p", format!("{:.1e}", fit.p)),
        ]);
        vec![match again {
            Some(again) => found.next(NextStep::new(again).expected(expected)),
            None => found,
        }]
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["targets-missing"]
    }
}

/// Reports flows that another target answered although their connection went on.
pub(crate) struct MovedFlows;

impl FindingRule for MovedFlows {
    fn id(&self) -> &'static str {
        "flows-moved"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let flows = || {
            let records = seen.trials().iter().flat_map(|trial| trial.records.values());
            records.filter_map(|record| record.targets.as_ref()).flat_map(|targets| &targets.flows)
        };
        let n_moved = flows().filter(|flow| flow.moves().next().is_some()).count();
        let Some((flow, (before, after))) = flows().find_map(|flow| Some((flow, flow.moves().next()?))) else {
            return Vec::new();
        };
        // With events, their effects tell which flows had to move.
        let has_events = summary(seen).is_some_and(|targets| !targets.effects.is_empty());
        let without = if has_events { "" } else { " without any event" };
        let title = format!("{n_moved} flows were answered by another target in the middle{without}");
        let example = format!("{} at {} after {}", after.target, after.from_ns, before.target);
        vec![
            seen.finding(
                self.id(),
                if has_events { Severity::Remark } else { Severity::HoldsBack },
                "flows moved",
                title,
            )
            .evidence([text_evidence(host(seen), flow.id.clone(), example)])
            .next(NextStep::new("conntrack -S").expected("show, on the device, whether its table of flows is full")),
        ]
    }
}

/// Reports flows that an event hurt although their target went on answering others.
pub(crate) struct CollateralLoss;

impl FindingRule for CollateralLoss {
    fn id(&self) -> &'static str {
        "collateral-loss"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let effects = || summary(seen).into_iter().flat_map(|targets| &targets.effects);
        let Some(worst) = effects().max_by_key(|effect| effect.n_collateral).filter(|effect| effect.n_collateral > 0)
        else {
            return Vec::new();
        };
        let title = format!(
            "{} of {} flows were hurt by `{}` although their targets went on answering; {} flows of lost targets is the least",
            grouped(worst.n_collateral),
            grouped(worst.n_flows),
            worst.event.event,
            grouped(worst.n_own)
        );
        let evidence = effects().filter(|effect| effect.n_collateral > 0).take(LISTED).map(|effect| {
            let text = format!("{} own, {} others", grouped(effect.n_own), grouped(effect.n_collateral));
            text_evidence(host(seen), effect.event.event.clone(), text)
        });
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "others hurt", title)
                .evidence(evidence.collect::<Vec<_>>())
                .next(
                    NextStep::new("conntrack -S")
                        .expected("show, on the device, whether it keeps flows when its targets change"),
                ),
        ]
    }
}

/// Reports an event that did not do what it should.
pub(crate) struct FailedEvent;

impl FindingRule for FailedEvent {
    fn id(&self) -> &'static str {
        "event-failed"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let events = seen.test.trials.iter().flat_map(|trial| &trial.events);
        let failed: Vec<_> = events.filter(|event| event.failure.is_some()).collect();
        let Some(first) = failed.first() else { return Vec::new() };
        let why = first.failure.as_deref().unwrap_or_default();
        let title = format!("the event `{}` failed: {why}", first.event);
        let rows = failed
            .iter()
            .take(LISTED)
            .map(|event| text_evidence(host(seen), event.event.clone(), event.failure.clone().unwrap_or_default()));
        vec![seen.finding(self.id(), Severity::Invalidates, "event failed", title).evidence(rows.collect::<Vec<_>>())]
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{EventRecord, TargetFlow, TargetSpell, TargetsRecord, units::Nanos};

    use crate::run_builder::RunBuilder;

    fn answers(counts: &[(&str, u64)], n_expected: u64) -> TargetsRecord {
        let answers = counts.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        TargetsRecord { answers, n_expected: Some(n_expected), ..TargetsRecord::default() }
    }

    #[test]
    fn an_even_spread_over_all_targets_has_no_finding() {
        let mut builder = RunBuilder::new();
        builder.targets(answers(&[("t1#1", 498), ("t2#2", 502)], 2), Vec::new());
        assert_eq!((builder.finding("uneven-spread"), builder.finding("targets-missing")), (None, None));
    }

    #[test]
    fn an_uneven_spread_is_an_effect_of_a_missing_target() {
        let mut builder = RunBuilder::new();
        builder.targets(answers(&[("t1#1", 900), ("t2#2", 100)], 2), Vec::new());
        let found = builder.finding("uneven-spread").unwrap();
        assert!(found.title.contains("instead of 50"), "{}", found.title);
        let mut builder = RunBuilder::new();
        builder.targets(answers(&[("t1#1", 500), ("t2#2", 500)], 3), Vec::new());
        let missing = builder.finding("targets-missing").unwrap();
        assert_eq!(missing.title, "1 of 3 expected targets never answered: missing 1");
        assert_eq!(builder.finding("uneven-spread").unwrap().severity, fathom_model::Severity::Remark);
    }

    #[test]
    fn a_flow_that_moves_without_an_event_is_named() {
        let spell = |target: &str, at: u64| TargetSpell {
            target: target.to_owned(),
            from_ns: Nanos(at),
            to_ns: Nanos(at + 5),
            connection: 0,
        };
        let flow = TargetFlow {
            id: "10.0.0.1:5".to_owned(),
            spells: vec![spell("t1", 0), spell("t2", 10)],
            ..TargetFlow::default()
        };
        let mut builder = RunBuilder::new();
        builder.targets(TargetsRecord { flows: vec![flow], ..TargetsRecord::default() }, Vec::new());
        let found = builder.finding("flows-moved").unwrap();
        assert_eq!(found.title, "1 flows were answered by another target in the middle without any event");
    }

    #[test]
    fn an_event_that_failed_makes_the_numbers_worthless() {
        let event = EventRecord {
            event: "1s false".to_owned(),
            n_runs: None,
            due_ns: Nanos(0),
            began_ns: Some(Nanos(0)),
            took_ns: Some(Nanos(1)),
            status: Some(1),
            failure: Some("exit status 1".to_owned()),
        };
        let mut builder = RunBuilder::new();
        builder.targets(answers(&[("t1#1", 5)], 1), vec![event]);
        assert!(builder.finding("event-failed").unwrap().title.ends_with("failed: exit status 1"));
    }
}

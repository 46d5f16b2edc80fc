//! What a device that spreads does wrong: targets that nobody reaches, a spread that is not that of the weights, flows that move, and
//! flows that are hurt although their target is well.

use fathom_model::{
    EventEffect, Finding, NextStep, Severity, TargetsSummary,
    targets::target_name,
    units::{grouped, percent},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, text_evidence};

/// A spread that chance alone makes less often than this is not that of the weights.
const P_MIN: f64 = 0.001;
/// Of many connections, a hash shows shares that differ by less than this from the weights, and no target feels it.
const UNEVEN_MIN: f64 = 0.05;
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

    fn effect_of(&self) -> &'static [&'static str] {
        // A target that has the name of another one has none of its own.
        &["same-target-name"]
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
        let severity = if deviation(&most) >= UNEVEN_MIN { Severity::HoldsBack } else { Severity::Remark };
        let title = format!(
            "the spread is not that of the weights: {} answered {} instead of {}",
            most.name,
            percent(share(most.n)),
            percent(most.expected.unwrap_or(0.0))
        );
        let again = seen.repeat_test_command("--source 10.0.0.0/16 --local-sources");
        let degrees = if fit.degrees == 1 { "degree" } else { "degrees" };
        let statistic = format!("{:.1} on {} {degrees} of freedom", fit.chi_square, fit.degrees);
        let expected = "show whether the device spreads by addresses alone, so that few sources reach few targets; give a --source that is routed to this host";
        let found = seen.finding(self.id(), severity, "uneven spread", title).evidence([
            text_evidence(host(seen), "chi-square", statistic),
            text_evidence(host(seen), "p", format!("{:.1e}", fit.p)),
        ]);
        vec![match again {
            Some(again) => found.next(NextStep::new(again).expected(expected)),
            None => found,
        }]
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["targets-missing", "same-target-name"]
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

/// Returns the effects of events that hurt flows although their target went on answering others.
fn collateral<'a>(seen: &TestEvidence<'a>) -> impl Iterator<Item = &'a EventEffect> {
    let effects = summary(seen).into_iter().flat_map(|targets| &targets.effects);
    effects.filter(|effect| effect.n_collateral > 0)
}

/// Reports flows that an event hurt although their target went on answering others.
pub(crate) struct CollateralLoss;

impl FindingRule for CollateralLoss {
    fn id(&self) -> &'static str {
        "collateral-loss"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["other-programs"]
    }

    fn stands_beside(&self, _cause: &str, seen: &TestEvidence<'_>) -> bool {
        // What begins within moments of a single event is its work. A repeated one goes on for seconds, in which senders that wait for a core
        // make outages without it.
        collateral(seen).any(|effect| effect.event.n_runs.is_none())
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(worst) = collateral(seen).max_by_key(|effect| effect.n_collateral) else { return Vec::new() };
        let title = format!(
            "{} of {} flows were hurt by `{}` although their targets went on answering; {} flows of lost targets is the least",
            grouped(worst.n_collateral),
            grouped(worst.n_flows),
            worst.event.event,
            grouped(worst.n_own)
        );
        let evidence = collateral(seen).take(LISTED).map(|effect| {
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

/// Reports targets that answered nobody any more after an event.
pub(crate) struct TargetsLostByEvent;

impl FindingRule for TargetsLostByEvent {
    fn id(&self) -> &'static str {
        "targets-lost-by-event"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let effects = || summary(seen).into_iter().flat_map(|targets| &targets.effects);
        let losing = || effects().filter(|effect| !effect.lost_targets.is_empty());
        let Some(worst) = losing().max_by_key(|effect| effect.n_own) else { return Vec::new() };
        let event = &worst.event.event;
        let n_lost = grouped(worst.n_lost);
        let when = if worst.n_unrecovered == 0 { "for a time after" } else { "after" };
        let title = if worst.n_own == worst.n_flows {
            format!("no target answered {when} `{event}`: all {} flows lost {n_lost} messages", grouped(worst.n_flows))
        } else {
            let rows: Vec<&str> =
                summary(seen).into_iter().flat_map(|all| &all.targets).map(|row| &*row.name).collect();
            // A name that several targets have is shown with its token, as in the table.
            let shown = |target: &String| {
                let name = if rows.contains(&target.as_str()) { target } else { target_name(target) };
                name.to_owned()
            };
            let names: Vec<String> = worst.lost_targets.iter().map(shown).collect();
            let (own, all) = (grouped(worst.n_own), grouped(worst.n_flows));
            format!("{} answered nobody {when} `{event}`: {own} of {all} flows were theirs", list(&names))
        };
        let evidence = losing().take(LISTED).map(|effect| {
            let text = format!("{} of {} flows", grouped(effect.n_own), grouped(effect.n_flows));
            text_evidence(host(seen), effect.event.event.clone(), text)
        });
        vec![seen.finding(self.id(), Severity::HoldsBack, "lost targets", title).evidence(evidence.collect::<Vec<_>>())]
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
    use fathom_model::{
        EventRecord, FlowOutage, OutageCause, Severity, TargetFlow, TargetSpell, TargetsRecord, units::Nanos,
    };

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

    /// An event that began at 1 s and took so long.
    fn event(text: &str, took: Nanos) -> EventRecord {
        EventRecord {
            event: text.to_owned(),
            n_runs: None,
            due_ns: Nanos::from_secs(1),
            began_ns: Some(Nanos::from_secs(1)),
            took_ns: Some(took),
            status: Some(0),
            failure: None,
        }
    }

    /// A test of two flows, to `t1` and `t2`, that are answered until these times, with an event at 1 s.
    fn with_event(until: [u64; 2]) -> RunBuilder {
        let outage = |from| FlowOutage {
            from_ns: Nanos::from_millis(from),
            to_ns: None,
            n_lost: 4,
            n_late: 0,
            cause: OutageCause::Silent,
            reconnect_ns: None,
        };
        let flow = |(target, until): (&str, u64)| TargetFlow {
            id: target.to_owned(),
            spells: vec![TargetSpell {
                target: target.to_owned(),
                from_ns: Nanos(0),
                to_ns: Nanos::from_millis(until),
                connection: 0,
            }],
            outages: (until < 2000).then(|| outage(until)).into_iter().collect(),
            ..TargetFlow::default()
        };
        let event = event("1s kill-device=dut", Nanos(1));
        let flows = ["t1#1", "t2#2"].into_iter().zip(until).map(flow).collect();
        let mut builder = RunBuilder::new();
        builder.targets(TargetsRecord { flows, ..answers(&[("t1#1", 5), ("t2#2", 5)], 2) }, vec![event]);
        builder
    }

    #[test]
    fn what_is_lost_by_an_event_is_told_as_its_effect() {
        let title = |until| with_event(until).finding("targets-lost-by-event").map(|finding| finding.title);
        assert_eq!(title([2000, 2000]), None);
        let one = "t2 answered nobody after `1s kill-device=dut`: 1 of 2 flows were theirs";
        assert_eq!(title([2000, 1000]).as_deref(), Some(one));
        let all = "no target answered after `1s kill-device=dut`: all 2 flows lost 8 messages";
        assert_eq!(title([1000, 1000]).as_deref(), Some(all));
    }

    #[test]
    fn on_a_busy_machine_outages_while_an_event_is_repeated_are_not_blamed_on_it() {
        let severity = |n_runs, is_busy: bool| {
            let flow = |outages: Vec<FlowOutage>| TargetFlow {
                spells: vec![TargetSpell {
                    target: "t1".to_owned(),
                    from_ns: Nanos(0),
                    to_ns: Nanos::from_secs(8),
                    connection: 0,
                }],
                outages,
                ..TargetFlow::default()
            };
            let outage = FlowOutage {
                from_ns: Nanos::from_secs(3),
                to_ns: Some(Nanos::from_millis(3_050)),
                n_lost: 0,
                n_late: 5,
                cause: OutageCause::Silent,
                reconnect_ns: None,
            };
            let event = EventRecord { n_runs, ..event("1s-7s/50ms true", Nanos::from_secs(6)) };
            let flows = vec![flow(vec![outage]), flow(Vec::new())];
            let mut builder = RunBuilder::new();
            builder.targets(TargetsRecord { flows, ..TargetsRecord::default() }, vec![event]);
            if is_busy {
                builder.cpu("client", "cpu0", [60, 30, 5, 0]);
                for host in ["client", "target"] {
                    builder.own_cpu(host, &[("cpu0", 100)]);
                }
                assert_eq!(builder.finding("other-programs").unwrap().severity, Severity::Disturbs);
            }
            builder.finding("collateral-loss").unwrap().severity
        };
        assert_eq!(severity(Some(120), false), Severity::HoldsBack);
        assert_eq!(severity(None, true), Severity::HoldsBack);
        assert_eq!(severity(Some(120), true), Severity::Remark);
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

    #[test]
    fn shares_that_hardly_differ_are_a_remark_however_sure_that_is() {
        let severity = |first: u64| {
            let mut builder = RunBuilder::new();
            builder.targets(answers(&[("t1#1", first), ("t2#2", 1_000_000 - first)], 2), Vec::new());
            builder.finding("uneven-spread").map(|finding| finding.severity)
        };
        assert_eq!([severity(505_000), severity(560_000)], [Some(Severity::Remark), Some(Severity::HoldsBack)]);
    }
}

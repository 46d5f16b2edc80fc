//! The end of the page: the hosts beside each other, and how to repeat the run.

use std::collections::BTreeSet;

use fathom_model::{Run, run::Host, units::Nanos};
use maud::{Markup, html};

use super::scrolling;
use crate::view::MISSING;

/// A fact by topic and name, with the value of each host.
struct HostFact<'a> {
    topic: &'a str,
    name: &'a str,
    values: Vec<Option<&'a str>>,
}

impl HostFact<'_> {
    fn differs(&self) -> bool {
        self.values.iter().any(|value| *value != self.values[0])
    }
}

fn facts(run: &Run) -> Vec<HostFact<'_>> {
    let all = run.hosts.values().flat_map(|host| &host.environment.0);
    let keys: BTreeSet<(&str, &str)> =
        all.flat_map(|(topic, facts)| facts.keys().map(move |name| (topic.as_str(), name.as_str()))).collect();
    let fact = |(topic, name)| {
        let values = run.hosts.values().map(|host| host.environment.get(topic, name)).collect();
        HostFact { topic, name, values }
    };
    keys.into_iter().map(fact).collect()
}

pub(super) fn section(run: &Run) -> Markup {
    if run.hosts.is_empty() {
        return html! {};
    }
    let (different, same): (Vec<HostFact>, Vec<HostFact>) = facts(run).into_iter().partition(HostFact::differs);
    html! {
        section #hosts {
            h2 { "Hosts" }
            (scrolling(&reached(run)))
            @if run.hosts.len() > 1 {
                @if different.is_empty() { p.none { "The hosts do not differ in any fact that was read." } }
                @else {
                    h3 { "What differs" }
                    (scrolling(&fact_table(run, &different)))
                }
            }
            @if !same.is_empty() {
                details { summary { (if run.hosts.len() > 1 { "what is the same" } else { "environment" }) }
                    (scrolling(&fact_table(run, &same)))
                }
            }
            @for (name, host) in &run.hosts { (unavailable_and_changed(name, host)) }
        }
    }
}

fn reached(run: &Run) -> Markup {
    html! {
        table {
            thead { tr { th { "host" } th { "address" } th { "interface" } th { "reached by" } th.n { "clock against ours" } } }
            tbody {
                @for (name, host) in &run.hosts {
                    tr {
                        td { b { (name) } }
                        td { (host.address.as_deref().unwrap_or(MISSING)) }
                        td { (host.interface.as_deref().unwrap_or(MISSING)) }
                        td { (host.reached) }
                        td.n { (clock(host)) }
                    }
                }
            }
        }
    }
}

fn clock(host: &Host) -> String {
    let sign = if host.clock_offset_ns < 0 { "−" } else { "+" };
    format!("{sign}{} ± {}", Nanos(host.clock_offset_ns.unsigned_abs()), host.clock_error_ns)
}

fn fact_table(run: &Run, facts: &[HostFact]) -> Markup {
    html! {
        table.environment {
            thead { tr { th {} th {} @for name in run.hosts.keys() { th { (name) } } } }
            tbody {
                @for (index, fact) in facts.iter().enumerate() {
                    @let begins = index == 0 || facts[index - 1].topic != fact.topic;
                    tr.begins[begins] .differs[fact.differs()] {
                        td.layer { @if begins { (fact.topic) } }
                        td { (fact.name) }
                        @for value in &fact.values { td { (value.unwrap_or(MISSING)) } }
                    }
                }
            }
        }
    }
}

/// What a host could not do, and what was different there afterwards.
fn unavailable_and_changed(name: &str, host: &Host) -> Markup {
    html! {
        @if !host.losses.is_empty() || !host.changed.0.is_empty() {
            ul.notes {
                @for loss in &host.losses { li { b { (name) } " " (loss) } }
                @for (topic, facts) in &host.changed.0 {
                    @for (fact, value) in facts {
                        li { b { (name) } " " (topic) " " (fact) " changed during the run, to " (value) }
                    }
                }
            }
        }
    }
}

pub(super) fn repeat(run: &Run) -> Markup {
    let plan = serde_json::to_string_pretty(&run.plan).unwrap_or_default();
    html! {
        section #repeat {
            h2 { "Repeat it" }
            pre.repeat { code { (crate::view::command(run)) } }
            details { summary { "the plan, complete" } pre { code { (plan) } } }
            footer {
                (run.tool) " · run " (run.id) " · document " (run.schema) " · seed " (run.plan.seed)
            }
        }
    }
}

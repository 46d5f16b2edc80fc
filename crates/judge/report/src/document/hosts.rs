//! The end of a page: the hosts beside each other, and how to repeat the run.

use std::collections::BTreeSet;

use fathom_model::{Run, run::Host, units::Nanos};

use super::{Block, Cell, Column, List, Row, Sentence, Table, folded, overview};
use crate::words::MISSING;

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

/// The hosts of a run, if there are any.
pub(super) fn section(run: &Run) -> Option<Block<'_>> {
    let (different, same): (Vec<HostFact>, Vec<HostFact>) = facts(run).into_iter().partition(HostFact::differs);
    let mut blocks = vec![reached(run)];
    if run.hosts.len() > 1 && different.is_empty() {
        blocks.push(Block::aside("The hosts do not differ in any fact that was read."));
    } else if run.hosts.len() > 1 {
        blocks.extend([Block::Heading("What differs".to_owned()), fact_table(run, &different)]);
    }
    if !same.is_empty() {
        let summary = if run.hosts.len() > 1 { "what is the same" } else { "environment" };
        blocks.push(folded(summary, vec![fact_table(run, &same)]));
    }
    let items = run.hosts.iter().flat_map(|(name, host)| unavailable_and_changed(name, host)).collect();
    blocks.push(Block::List(List { items, ..List::default() }));
    (!run.hosts.is_empty()).then(|| super::section("hosts", "Hosts", blocks))
}

fn reached(run: &Run) -> Block<'_> {
    let row = |(name, host): (&String, &Host)| {
        let sign = if host.clock_offset_ns < 0 { "−" } else { "+" };
        let clock = format!("{sign}{} ± {}", Nanos(host.clock_offset_ns.unsigned_abs()), host.clock_error_ns);
        let [address, interface] = [&host.address, &host.interface].map(|text| text.as_deref().unwrap_or(MISSING));
        Row::new([Cell::from(name).strong(), address.into(), interface.into(), (&host.reached).into(), clock.into()])
    };
    let mut columns = ["host", "address", "interface", "reached by"].map(Column::text).to_vec();
    columns.push(Column::number("clock against ours"));
    Block::Table(Table { columns, rows: run.hosts.iter().map(row).collect(), ..Table::default() })
}

fn fact_table<'a>(run: &Run, facts: &[HostFact<'a>]) -> Block<'a> {
    let row = |(index, fact): (usize, &HostFact<'_>)| {
        let begins = index == 0 || facts[index - 1].topic != fact.topic;
        let values = fact.values.iter().map(|value| value.unwrap_or(MISSING));
        let class = match (begins, fact.differs()) {
            (true, true) => "begins differs",
            (true, false) => "begins",
            (false, true) => "differs",
            (false, false) => "",
        };
        let cells = [if begins { fact.topic } else { "" }, fact.name].into_iter().chain(values);
        Row { class, ..Row::new(cells) }
    };
    let columns = ["", ""].into_iter().chain(run.hosts.keys().map(String::as_str)).map(Column::text).collect();
    Block::Table(Table {
        class: "environment",
        columns,
        rows: facts.iter().enumerate().map(row).collect(),
        flows: false,
    })
}

/// What a host could not do, and what was different there afterwards.
fn unavailable_and_changed(name: &str, host: &Host) -> impl Iterator<Item = Sentence> {
    let facts = host.changed.0.iter().flat_map(|(topic, facts)| facts.iter().map(move |fact| (topic, fact)));
    let changed = facts.map(|(topic, (fact, value))| format!("{topic} {fact} changed during the run, to {value}"));
    let all: Vec<String> = host.losses.iter().cloned().chain(changed).collect();
    let name = name.to_owned();
    all.into_iter().map(move |text| Sentence { of: name.clone(), text, ..Sentence::default() })
}

/// How to repeat a run, and what made it.
pub(super) fn repeat(run: &Run) -> Block<'_> {
    let plan = serde_json::to_string_pretty(&run.plan).unwrap_or_default();
    let made = format!("{} · run {} · document {} · seed {}", run.tool, run.id, run.schema, run.plan.seed);
    let blocks = vec![
        Block::Code(overview::command(run)),
        folded("the plan, complete", vec![Block::Code(plan)]),
        Block::aside(made),
    ];
    super::section("repeat", "Repeat it", blocks)
}

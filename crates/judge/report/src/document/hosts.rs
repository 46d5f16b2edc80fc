//! The hosts of a run, in short and with all facts, and how to repeat the run.

use std::collections::BTreeSet;

use fathom_model::{
    HostRecord, Layer, Run, TestRun,
    plan::HostReach,
    run::Host,
    units::{BitsPerSec, Nanos, counted, percent, ratio},
};

use super::{
    block::{Block, Cell, Column, List, Row, Sentence, Table, folded},
    probe,
};
use crate::{plot::core_heatmap::cores, words::MISSING};

/// A fact with its topic and name, and its value on each host.
struct HostFact<'a> {
    topic: &'a str,
    name: &'a str,
    values: Vec<Option<&'a str>>,
}

/// Facts in which no two hosts can be the same.
const OF_ONE_HOST: [&str; 3] = ["addresses", "mac", "boot_id"];

impl HostFact<'_> {
    /// Whether the hosts differ in a fact in which they could be the same.
    fn differs(&self) -> bool {
        !OF_ONE_HOST.contains(&self.name) && self.values.iter().any(|value| *value != self.values[0])
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

/// Returns the section about the hosts of a run, if there are any.
pub(super) fn section(run: &Run) -> Option<Block<'_>> {
    let (different, same): (Vec<HostFact>, Vec<HostFact>) = facts(run).into_iter().partition(HostFact::differs);
    let mut blocks = vec![reached(run)];
    if run.hosts.len() > 1 && different.is_empty() {
        blocks.push(Block::aside("Apart from their addresses, the hosts do not differ in any fact that was read."));
    } else if run.hosts.len() > 1 {
        blocks.extend([Block::Heading("Differences".to_owned()), fact_table(run, &different)]);
    }
    if !same.is_empty() {
        let summary = match (run.hosts.len() > 1, different.is_empty()) {
            (true, false) => "all other facts",
            (true, true) => "all facts",
            (false, _) => "environment",
        };
        blocks.push(folded(summary, vec![fact_table(run, &same)]));
    }
    let items = run.hosts.iter().flat_map(|(name, host)| unavailable_and_changed(name, host)).collect();
    blocks.push(Block::List(List { items, ..List::default() }));
    (!run.hosts.is_empty()).then(|| super::block::section("hosts", "Hosts", blocks))
}

fn reached(run: &Run) -> Block<'_> {
    let row = |(name, host): (&String, &Host)| {
        let sign = if host.clock_offset_ns < 0 { "−" } else { "+" };
        let clock = format!("{sign}{} ± {}", Nanos(host.clock_offset_ns.unsigned_abs()), host.clock_error_ns);
        let [address, interface] = [&host.address, &host.interface].map(|text| text.as_deref().unwrap_or(MISSING));
        let sampling = sampling_cost(run, name).map_or_else(|| MISSING.to_owned(), percent);
        let [reached, clock, sampling] = [&host.reached, &clock, &sampling].map(Cell::from);
        Row::new([Cell::from(name).strong(), address.into(), interface.into(), reached, clock, sampling])
    };
    let mut columns = ["host", "address", "interface", "reached by"].map(Column::text).to_vec();
    columns.extend(["clock against ours", "reading counters, of a core"].map(Column::number));
    Block::Table(Table { columns, rows: run.hosts.iter().map(row).collect(), ..Table::default() })
}

/// The share of a core that reading the counters of a host took during the tests.
fn sampling_cost(run: &Run, host: &str) -> Option<f64> {
    let records: Vec<_> =
        run.tests.iter().flat_map(|test| &test.trials).filter_map(|trial| trial.hosts.get(host)).collect();
    let spent = records.iter().filter_map(|record| record.sampling_cpu_ns).reduce(|sum, one| sum + one)?;
    let span = |record: &HostRecord| Some(*record.at_ns.last()? - *record.at_ns.first()?);
    let watched = records.iter().filter_map(|record| span(record)).fold(Nanos::ZERO, |sum, one| sum + one);
    ratio(spent.0, watched.0)
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

/// Returns the limitations of a host, and the facts that changed there during the run.
fn unavailable_and_changed(name: &str, host: &Host) -> impl Iterator<Item = Sentence> {
    let facts = host.changed.0.iter().flat_map(|(topic, facts)| facts.iter().map(move |fact| (topic, fact)));
    let changed = facts.map(|(topic, (fact, value))| format!("{topic} {fact} changed during the run, to {value}"));
    let all: Vec<String> = host.unavailable.iter().cloned().chain(changed).collect();
    let name = name.to_owned();
    all.into_iter().map(move |text| Sentence { of: name.clone(), text, ..Sentence::default() })
}

/// Returns the section on how to repeat a run and which program made it.
pub(super) fn repeat(run: &Run) -> Block<'_> {
    let plan = serde_json::to_string_pretty(&run.plan).unwrap_or_default();
    let made = format!("{} · run {} · document {} · seed {}", run.tool, run.id, run.schema, run.plan.seed);
    let blocks =
        vec![Block::Code(command(run)), folded("the plan, complete", vec![Block::Code(plan)]), Block::aside(made)];
    super::block::section("repeat", "Repeat it", blocks)
}

/// Returns the command without the directory of the program.
pub(super) fn command(run: &Run) -> String {
    let (program, rest) = run.command.split_once(' ').unwrap_or((&run.command, ""));
    format!("{} {rest}", program.rsplit('/').next().unwrap_or(program)).trim_end().to_owned()
}

/// Returns true if all hosts of a run are one machine, so that they have the same cores.
pub(super) fn is_one_machine(run: &Run) -> bool {
    let here = |name: &String| run.plan.hosts.get(name).is_some_and(HostReach::is_on_this_machine);
    let boots: Vec<Option<&str>> = run.hosts.values().map(|host| host.environment.get("kernel", "boot_id")).collect();
    run.hosts.keys().all(here) || (boots.iter().all(Option::is_some) && boots.windows(2).all(|two| two[0] == two[1]))
}

fn cores_words(run: &Run, name: &str) -> Option<String> {
    let n = run.tests.iter().map(|test| cores(test, name).len()).max().filter(|n| *n > 0)?;
    Some(counted(n as u64, "core"))
}

/// Returns the interface of a host, with its speed if it is a wire.
fn interface_words(run: &Run, name: &str) -> Option<String> {
    let host = run.hosts.get(name)?;
    let interface = host.interface.as_deref()?;
    let fact = |name: &str| host.environment.get(interface, name);
    let speed = fact("speed_bps").filter(|_| fact("line_rate") == Some("real"));
    let speed = speed.and_then(|speed| speed.parse::<BitsPerSec>().ok());
    Some(speed.map_or(interface.to_owned(), |speed| format!("{interface} {speed}")))
}

/// Describes a host: `gen-1 (16 cores, ens5 25 Gbit/s)`. Cores that several hosts share are listed elsewhere.
pub(super) fn host_words(run: &Run, name: &str) -> String {
    if let Some(group) = run.plan.groups.get(name) {
        return format!("{name} ({})", counted(group.len() as u64, "host"));
    }
    let cores = cores_words(run, name).filter(|_| shared_cores(run).is_none());
    // In a run of probes, the bare interface would look like the measured object.
    let by = if probe::target(run).is_some() { "by " } else { "" };
    let interface = interface_words(run, name).map(|interface| format!("{by}{interface}"));
    let facts: Vec<String> = cores.into_iter().chain(interface).collect();
    if facts.is_empty() { name.to_owned() } else { format!("{name} ({})", facts.join(", ")) }
}

/// Describes what the hosts of a run share if they are one machine: `one machine with 2 cores`.
pub(super) fn shared_cores(run: &Run) -> Option<String> {
    let several = roles_of_hosts(run).iter().any(|(_, name)| Some(*name) != run.tests.first().map(|test| &*test.from));
    let name = run.hosts.keys().find_map(|name| cores_words(run, name)).filter(|_| several && is_one_machine(run))?;
    Some(format!("one machine with {name}"))
}

/// Returns each participating host with its role.
pub(super) fn roles_of_hosts(run: &Run) -> Vec<(&'static str, &str)> {
    let from = run.tests.first().map(|test| test.from.as_str());
    let to = run.tests.iter().find_map(TestRun::answering);
    let in_pairs = |name: &str| {
        let mut links = run.tests.iter().flat_map(|test| &test.links);
        links.any(|link| link.from == name || link.to.as_deref() == Some(name))
    };
    let known = |name: &&str| Some(*name) != from && Some(*name) != to && !in_pairs(name);
    let others = run.hosts.keys().map(String::as_str).filter(known).map(|name| ("host", name));
    // One-way frames do not necessarily go from the client to the target.
    let is_one_way = |test: &TestRun| Some(test.from.as_str()) == from && test.to.is_some();
    let go_one_way = run.tests.iter().all(|test| test.layer == Layer::Frames && is_one_way(test));
    let [both, first, second] = if go_one_way {
        ["sender and receiver", "sender", "receiver"]
    } else {
        ["client and target", "client", "target"]
    };
    if from.is_some() && from == to {
        return from.map(|name| (both, name)).into_iter().chain(others).collect();
    }
    from.map(|name| (first, name)).into_iter().chain(to.map(|name| (second, name))).chain(others).collect()
}

//! Where the time of a unit of work goes: a sentence, a bar, and its parts as a table.

use std::collections::BTreeSet;

use fathom_model::{
    Anatomy, AnatomyPart, Layer, Link, Part, Side, TestRun,
    names::{count, distribution},
    units::{Nanos, approximate, grouped, percent, rounded},
};

use super::block::{Block, Cell, Column, Figure, Medium, Row, Table, columns};
use crate::{
    plot::anatomy::{bars, key},
    words::MISSING,
};

/// The length of the longest bar on a terminal.
const BAR_MAX: f64 = 24.0;

/// Returns the anatomy of a test as a sentence and a drawing.
pub(super) fn blocks(test: &TestRun) -> Vec<Block<'_>> {
    let Some(anatomy) = divided(test) else { return Vec::new() };
    let slow = if anatomy.slow().is_some() { "; slow: the slowest hundredth of them" } else { "" };
    let about = format!("a sample of {} {}{slow}", grouped(anatomy.n_units), unit(test, anatomy.n_units));
    let title = format!("Where the time of a {} goes", unit(test, 1));
    let figure = Figure {
        is_wide: true,
        table: Some(table(test, anatomy)),
        on_screen: true,
        ..Figure::new(title, about, move || bars(anatomy, &|part| part_name(test, part)))
    };
    let cost = cost(test, anatomy).map(Block::aside);
    [Block::sentence(sentence(test, anatomy)), Block::Figure(figure)].into_iter().chain(cost).collect()
}

/// Returns the sentence about one of several tests.
pub(super) fn line(test: &TestRun) -> Option<Block<'_>> {
    let anatomy = divided(test)?;
    Some(Block::sentence(format!("{}: {}", test.full_name(), sentence(test, anatomy))))
}

/// The anatomy of a test whose time has more than one part.
fn divided(test: &TestRun) -> Option<&Anatomy> {
    test.anatomy.as_ref().filter(|anatomy| anatomy.parts.len() > 1)
}

/// The word for a unit of work of a test.
fn unit(test: &TestRun, n: u64) -> &'static str {
    match (test.layer, n) {
        (Layer::Http | Layer::App, 1) => "request",
        (Layer::Http | Layer::App, _) => "requests",
        (_, 1) => "transaction",
        _ => "transactions",
    }
}

fn share(part: Nanos, whole: Nanos) -> f64 {
    if whole == Nanos::ZERO { 0.0 } else { approximate(part.0) / approximate(whole.0) }
}

/// Names the largest part of a usual unit, and that of a slow one if it is another.
fn sentence(test: &TestRun, anatomy: &Anatomy) -> String {
    let Some((largest, time)) = anatomy.largest() else { return String::new() };
    let of = |unit: &str, went: &str, time: Nanos, whole: Nanos| {
        format!("{} of a {unit} ({time} of {whole}) {went}", percent(share(time, whole)))
    };
    let usual = of(&format!("usual {}", unit(test, 1)), &went(test, &largest), time, anatomy.median());
    let slowest = anatomy.parts.iter().max_by_key(|part| part.slow_ns);
    match slowest.filter(|slowest| !largest.contains(slowest)).zip(anatomy.slow()) {
        Some((slowest, whole)) => {
            format!("{usual}; {}", of("slow one", &went(test, &[slowest]), slowest.slow_ns.unwrap_or_default(), whole))
        }
        None => usual,
    }
}

/// What taking the times cost.
fn cost(test: &TestRun, anatomy: &Anatomy) -> Option<String> {
    let all = anatomy.all_median_ns.filter(|all| *all < anatomy.median())?;
    let more = anatomy.median() - all;
    Some(format!(
        "the median of all {} is {all}: taking the times made one of them {more} ({}) longer",
        unit(test, 2),
        percent(share(more, all))
    ))
}

/// What a part went into, as the end of a sentence. There are several if it is one of both ends.
fn went(test: &TestRun, parts: &[&AnatomyPart]) -> String {
    let Some(part) = parts.first() else { return String::new() };
    let of_both = match parts {
        [one, other] if host(test, one.side) != host(test, other.side) => Some((one.side, other.side)),
        _ => None,
    };
    let host = match of_both {
        Some((one, other)) if test.links.is_empty() => format!("hosts {} and {}", host(test, one), host(test, other)),
        Some((one, other)) => format!("{} and {}", host_in_sentence(test, one), host_in_sentence(test, other)),
        None => host_in_sentence(test, part.side),
    };
    let to = several(test, Side::Responder).or(test.answering()).unwrap_or("the server");
    match part.part {
        Part::SendCall => format!("is the send call on {host}, up to the queue of the interface"),
        Part::LocalQueue if of_both.is_some() => format!("is spent in the queues of the interfaces of {host}"),
        Part::LocalQueue => format!("is spent in the queue of {host}'s interface"),
        Part::Away => format!("is spent on the path and on {to}"),
        Part::Path => "is spent on the path, there and back".to_owned(),
        Part::WakeUp => format!("is spent on {host}, from a packet's arrival to the program that waits for it"),
        Part::CoreWait => {
            format!("is spent on {host}, where the program is ready to run and another one has its core")
        }
        Part::Program if of_both.is_some() => format!("is spent in the programs on {host}"),
        Part::Program => format!("is spent in the program on {host}"),
        Part::Late if waits_for_connection(test) => {
            format!("is spent before it is sent: no connection of {host} is free")
        }
        Part::Late => format!("is spent before it is sent: {host} is late"),
        Part::Connect if has_tls(test) => "is the connect with its TLS handshake".to_owned(),
        Part::Connect => "is the connect".to_owned(),
        Part::FirstByte => "is spent on the path and in the server, until the first byte of the answer".to_owned(),
        Part::BaselineRtt => "is the baseline round trip of the path".to_owned(),
        Part::Server => format!("is spent in the server, or waiting on the way or for a core of {}", test.from),
        Part::Download => "is spent on the rest of the answer after its first byte".to_owned(),
    }
}

/// Whether most late requests of a test had to wait for a connection, and not for the program that sends them.
fn waits_for_connection(test: &TestRun) -> bool {
    let records = || test.trials.iter().flat_map(|trial| trial.records.values());
    let total = |name: &str| records().filter_map(|record| record.totals.get(name)).sum::<u64>();
    total(count::LATE_NO_CONNECTION) > total(count::LATE_OWN_CPU)
}

/// Whether the connections of a test have TLS, whose handshake is a part of the connect here.
fn has_tls(test: &TestRun) -> bool {
    let mut records = test.trials.iter().flat_map(|trial| trial.records.values());
    records.any(|record| record.distributions.contains_key(distribution::TLS_TIME))
}

/// The length of the bar of a part on a terminal, by its share of the longest.
fn bar_length(share: f64) -> usize {
    usize::try_from(rounded(share * BAR_MAX)).unwrap_or(0)
}

/// The name of a part with its host.
fn part_name(test: &TestRun, part: &AnatomyPart) -> String {
    let (name, host) = (name(test, part.part), host(test, part.side));
    if host.is_empty() { name.to_owned() } else { format!("{name}, {host}") }
}

fn name(test: &TestRun, part: Part) -> &'static str {
    match part {
        Part::SendCall => "send call",
        Part::LocalQueue => "interface queue",
        Part::Away => "path and other host",
        Part::Path => "path, there and back",
        Part::WakeUp => "arrival to program",
        Part::CoreWait => "wait for a core",
        Part::Program => "program",
        Part::Late => "late start",
        Part::Connect if has_tls(test) => "connect with TLS",
        Part::Connect => "connect",
        Part::FirstByte => "to the first byte",
        Part::BaselineRtt => "baseline RTT",
        Part::Server => "server and waiting",
        Part::Download => "rest of the answer",
    }
}

fn host(test: &TestRun, side: Option<Side>) -> &str {
    match side {
        Some(side @ Side::Initiator) => several(test, side).unwrap_or(&test.from),
        Some(side @ Side::Responder) => several(test, side).or(test.to.as_deref()).unwrap_or_default(),
        None => "",
    }
}

/// The words for the hosts of a side that has several, of which a group has the name.
fn several(test: &TestRun, side: Side) -> Option<&'static str> {
    let (words, host): (_, fn(&Link) -> Option<&str>) = match side {
        Side::Initiator => ("a client", |link| Some(&link.from)),
        Side::Responder => ("a target", |link| link.to.as_deref()),
    };
    let hosts: BTreeSet<_> = test.links.iter().map(host).collect();
    (hosts.len() > 1).then_some(words)
}

/// A host within a sentence.
fn host_in_sentence(test: &TestRun, side: Option<Side>) -> String {
    match side.and_then(|side| several(test, side)) {
        Some(words) => words.to_owned(),
        None => format!("host {}", host(test, side)),
    }
}

fn table(test: &TestRun, anatomy: &Anatomy) -> Table {
    let (median, slow) = (anatomy.median(), anatomy.slow());
    let longest = anatomy.parts.iter().map(|part| part.median_ns).max().unwrap_or_default();
    let shared = |part: Nanos, whole: Nanos| format!("{:.0} %", share(part, whole) * 100.0);
    let row = |(index, part): (usize, &AnatomyPart)| {
        let bar = "█".repeat(bar_length(share(part.median_ns, longest)));
        let slow = part.slow_ns.zip(slow);
        Row::new([
            Cell { key: Some(key(index, part)), ..Cell::from(name(test, part.part)) },
            host(test, part.side).into(),
            part.median_ns.to_string().into(),
            shared(part.median_ns, median).into(),
            bar.into(),
            slow.map_or(MISSING.to_owned(), |(part, _)| part.to_string()).into(),
            slow.map(|(part, whole)| shared(part, whole)).unwrap_or_default().into(),
        ])
    };
    let mut rows: Vec<Row> = anatomy.parts.iter().enumerate().map(row).collect();
    let whole = slow.map_or(MISSING.to_owned(), |slow| slow.to_string());
    let last = ["whole".to_owned(), String::new(), median.to_string(), String::new(), String::new(), whole];
    rows.push(Row::new(last.into_iter().map(|text| Cell::from(text).strong()).chain([Cell::default()])));
    let mut titles = columns(["time", "", "median", "share", "", "slow", "share"]);
    titles[1] = Column::text("on");
    titles[4] = Column { gives_way: 1, ..Column::text("").only(Medium::Screen) };
    Table { columns: titles, rows, ..Table::default() }
}

//! The section of one test: its values, and what the hosts recorded during it.

use fathom_model::{
    Conservation, Derivation, Histogram, PacketQueueShare, Run, Side, Summary, TestRun, Trial,
    plan::HostReach,
    summary::Drops,
    units::{Nanos, approximate, grouped, percent, ratio},
};

use super::{
    anatomy, benchmark,
    block::{Block, Cell, Column, Figure, Fold, Headline, Medium, Row, Section, Table, anchor, columns, folded},
    curve, events, flow,
    hosts::is_one_machine,
    intervention, notes,
    overview::{held_back_by, promises, sum, why_not},
    probe, replay, sharing, steps, targets, time_division,
};
use crate::{
    plot::{
        conservation::{balance, parts},
        core_heatmap::{BUSY, CORES_MAX, core_heatmap, cores, drawn, uses},
        percentiles::{display_name, merged, percentiles},
        throughput::{ROUNDS_MAX, rate_of, throughput},
    },
    words::{self, MISSING, Mark, quantile_value, quantiles, rounds_missing, value_words},
};

/// The quantiles in the table of latencies.
const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)];
/// A smaller share of what was lost is only in the table.
const LOST_MIN: f64 = 0.001;
/// A quantile with fewer values above it is shown faintly.
const ABOVE_MIN: u64 = 10;

/// Returns the section with everything about one test.
pub(super) fn section<'a>(run: &'a Run, test: &'a TestRun) -> Block<'a> {
    let mut blocks = vec![headline(run, test)];
    if test.unavailable.is_none() {
        blocks.push(Block::Heading(test.full_name()).on_screen());
        blocks.extend(values(run, test));
        blocks.extend(sharing::blocks(test));
        blocks.extend(intervention::blocks(test));
        blocks.extend(curve::blocks(test));
        blocks.extend(benchmark::section(test));
        blocks.extend(steps::blocks(run, test));
        blocks.extend(probe::with_heading(test).into_iter().take(1).map(Block::on_page));
        blocks.extend(probe::blocks(test));
        blocks.extend(replay::blocks(test));
        blocks.extend(targets::blocks(test));
        blocks.extend(events::blocks(test));
        blocks.extend(targets::hurt_flows(test));
        blocks.extend(anatomy::blocks(test));
        blocks.extend(time_division::block(test));
        blocks.extend(rate(test).map(Block::Figure));
        blocks.push(plots(run, test));
        blocks.extend(flow::block(test));
        blocks.extend(notes::of_test(run, test));
    }
    Block::Section(Section {
        id: anchor(&test.name),
        layer: Some(if test.title.starts_with(test.layer.name()) { "" } else { test.layer.name() }),
        title: test.title.clone(),
        blocks,
    })
}

/// Returns the most important value, or the reason why there is none.
fn headline<'a>(run: &Run, test: &TestRun) -> Block<'a> {
    let Some(first) = test.first_value().filter(|_| test.unavailable.is_none()) else {
        return Block::marked(why_not(test), Mark::Missing);
    };
    let quantile = |summary: &Summary| Some((summary.metric.title.to_string(), quantile_value(summary)?));
    let to = test.answering().map(|to| format!(" → {to}")).unwrap_or_default();
    Block::Headline(Headline {
        value: value_words(run, test, first, ""),
        beside: quantiles(test, first).into_iter().filter_map(quantile).chain(lost(test, first)).collect(),
        promises: promises(run, test, Some(first.metric.name.as_ref())),
        way: format!("{}{to}", test.from),
        missing: rounds_missing(run, test),
        marker: held_back_by(run, test),
    })
    .on_page()
}

/// Returns a share of what was lost that matters, unless it has a promise, which has a line of its own.
fn lost<'a>(test: &'a TestRun, headline: &'a Summary) -> impl Iterator<Item = (String, String)> + 'a {
    let lost = |summary: &&Summary| {
        matches!(summary.metric.from, Derivation::Missing { .. })
            && summary.metric.name != headline.metric.name
            && words::limit_of(test, summary).is_none()
    };
    let shown = |summary: &Summary| {
        let share = summary.value.filter(|share| *share > LOST_MIN)?;
        Some((summary.metric.title.to_string(), words::show(&summary.metric, share)))
    };
    test.summaries.iter().filter(lost).filter_map(shown)
}

/// Returns every value with its interval, its limit, and its value in each round.
fn values<'a>(run: &Run, test: &TestRun) -> Vec<Block<'a>> {
    // The value that the test is about stands first.
    let first = test.first_value();
    let is_first = |summary: &Summary| first.is_some_and(|first| first.metric.name == summary.metric.name);
    let others = || test.summaries.iter().filter(|summary| !is_first(summary));
    let shown = || first.into_iter().chain(others()).filter(|summary| summary.applies());
    if shown().next().is_none() {
        return Vec::new();
    }
    // The rounds of a search are its trials at the limit.
    let title = if test.curve.is_some() { "at the limit" } else { "value" };
    let of_rounds = || shown().filter(|summary| summary.trials.len() > 1);
    let n = of_rounds().map(|summary| summary.trials.len()).max().unwrap_or(0).min(ROUNDS_MAX);
    let round_titles = || (1..=n).map(|round| format!("round {round}"));
    let mut titles = columns([title, "result", "95 % interval", "limit", "used"]);
    let further = round_titles().chain(["samples".to_owned()]);
    titles.extend(further.map(|title| Column::number(title).only(Medium::Page)));
    let rows = shown().map(|summary| value(run, test, summary, n)).collect();
    let mut blocks = vec![Block::Table(Table { columns: titles, rows, ..Table::default() })];
    blocks.extend(rounds_missing(run, test).map(|missing| Block::caution(missing, Mark::Open)));
    let titles = columns(std::iter::once("by round".to_owned()).chain(round_titles()));
    let row = |summary| Row::new(std::iter::once(Cell::from(title_of(summary))).chain(by_round(summary, n)));
    blocks.push(
        Block::Table(Table { columns: titles, rows: of_rounds().map(row).collect(), ..Table::default() }).on_screen(),
    );
    let mut sources: Vec<&str> = test.summaries.iter().map(|summary| summary.metric.source.as_ref()).collect();
    sources.sort_unstable();
    sources.dedup();
    let about = format!("defined in {}; the name of the test is {}", sources.join(", "), test.name);
    blocks.push(Block::aside(about).on_page());
    let is_told_otherwise = test.curve.is_some() || test.benchmark.is_some() || test.users.is_some();
    let is_open = run.tests.len() == 1 && !is_told_otherwise;
    vec![Block::Fold(Fold { summary: "every value of every round".to_owned(), is_open, blocks })]
}

fn title_of(summary: &Summary) -> &str {
    &summary.metric.title
}

/// Returns a value in each of the first rounds.
fn by_round(summary: &Summary, n: usize) -> impl Iterator<Item = Cell> {
    let shown = |value: &f64| words::show(&summary.metric, *value);
    (0..n).map(move |round| summary.trials.get(round).map(shown).unwrap_or_default().into())
}

fn value(run: &Run, test: &TestRun, summary: &Summary, n_rounds: usize) -> Row {
    let value = value_words(run, test, summary, title_of(summary));
    // The reason for a missing value is in the notes, which have enough space for it.
    let result = if summary.value.is_some() { value.result } else { MISSING.to_owned() };
    let cells = [
        Cell::from(title_of(summary)),
        Cell::from(result).strong().marked(if value.mark == Mark::Missing { value.mark } else { Mark::Plain }),
        value.interval.into(),
        value.limit.into(),
        Cell::from(value.used).marked(value.mark),
    ];
    let n_samples = Cell::from(summary.n_samples.map(grouped).unwrap_or_default());
    Row::new(cells.into_iter().chain(by_round(summary, n_rounds)).chain([n_samples]))
}

/// Draws a rate over the time of each round, with a table of how each round was measured.
fn rate(test: &TestRun) -> Option<Figure<'_>> {
    let (metric, ..) = rate_of(test)?;
    let beyond = test.trials.len().saturating_sub(ROUNDS_MAX);
    let about = if beyond > 0 {
        format!("over time; the shaded part was measured; the first {ROUNDS_MAX} rounds, {beyond} more in the document")
    } else {
        "over time; the shaded part of each round was measured, the rest is warm-up".to_owned()
    };
    let titles = ["round", &metric.title, "warm-up ended", "measured from", "to", "started apart"];
    let table = test.summaries.iter().find(|summary| summary.metric.name == metric.name).map(|summary| Table {
        columns: columns(titles),
        rows: test.trials.iter().enumerate().map(|(index, trial)| round(summary, index, trial)).collect(),
        ..Table::default()
    });
    Some(Figure { is_wide: true, table, ..Figure::new(metric.title.as_ref(), about, move || throughput(test)) })
}

/// Returns one round of a rate: its value, and how it was measured.
fn round(summary: &Summary, index: usize, trial: &Trial) -> Row {
    let value = summary.trials.get(index).map(|value| words::show(&summary.metric, *value));
    let initiator = trial.records.values().find(|record| record.side == Side::Initiator);
    let of_record = |record: &fathom_model::Record| {
        let warm_up = if record.steady { "steady" } else { "by its time limit" };
        [warm_up.to_owned(), record.measured_ns.0.to_string(), record.measured_ns.1.to_string()]
    };
    let [warm_up, from, to] = initiator.map_or_else(|| [(); 3].map(|()| MISSING.to_owned()), of_record);
    let value = value.unwrap_or_else(|| MISSING.to_owned());
    Row::new([(trial.round + 1).to_string(), value, warm_up, from, to, trial.start_skew_ns.to_string()])
}

/// Places the results of the test on the left and the hosts on the right, or the hosts next to each other.
fn plots<'a>(run: &'a Run, test: &'a TestRun) -> Block<'a> {
    let mut left: Vec<Block<'a>> = latency(test).map(Block::Figure).into_iter().collect();
    if let Some(conservation) = &test.conservation {
        left.extend(account(conservation).into_iter().map(Block::on_page));
        left.push(Block::sentence(sum(conservation)).on_screen());
    }
    if !test.queues.is_empty() {
        left.push(queue_table(&test.queues).on_page());
    }
    let loads = hosts_of(run, test).into_iter().map(|(host, title)| Block::Figure(core_load(test, host, title)));
    if left.is_empty() {
        return Block::Columns(loads.map(|load| vec![load]).collect());
    }
    Block::Columns(vec![left, loads.collect()])
}

/// Returns the hosts whose cores are drawn, with a title. Hosts on one machine have the same cores.
fn hosts_of<'a>(run: &Run, test: &'a TestRun) -> Vec<(&'a str, String)> {
    let of_pairs = test.links.iter().flat_map(|link| std::iter::once(link.from.as_str()).chain(link.to.as_deref()));
    let of_two = std::iter::once(test.from.as_str()).chain(test.to.as_deref()).filter(|_| test.links.is_empty());
    let of_two = of_two.chain(test.server.as_deref());
    let mut hosts: Vec<&str> = Vec::new();
    for host in of_pairs.chain(of_two) {
        if !hosts.contains(&host) && !cores(test, host).is_empty() {
            hosts.push(host);
        }
    }
    let is_here = |name: &str| run.plan.hosts.get(name).is_some_and(HostReach::is_on_this_machine);
    if (hosts.len() > 1 && is_one_machine(run)) || (hosts.len() == 1 && is_here(hosts[0])) {
        return vec![(hosts[0], "CPU load of this machine".to_owned())];
    }
    hosts.into_iter().map(|host| (host, format!("CPU load of {host}"))).collect()
}

fn latency(test: &TestRun) -> Option<Figure<'_>> {
    let about = "all rounds; dotted: fewer than 10 samples above";
    let titles = std::iter::once("latency").chain(QUANTILES.map(|(title, _)| title)).chain(["samples"]);
    let row = |(name, histogram): (&&str, &Histogram)| {
        let name = Cell::from(display_name(name));
        let quantiles = QUANTILES.map(|(_, q)| quantile(histogram, q));
        Row::new(std::iter::once(name).chain(quantiles).chain([grouped(histogram.count()).into()]))
    };
    let rows: Vec<Row> = merged(test).iter().map(row).collect();
    (!rows.is_empty()).then(|| Figure {
        table: Some(Table { columns: columns(titles), rows, ..Table::default() }),
        on_screen: true,
        ..Figure::new("Latency by percentile", about, move || percentiles(test))
    })
}

/// Returns a quantile. It is omitted if no sample is above it, because it would be the maximum.
fn quantile(histogram: &Histogram, q: f64) -> Cell {
    let is_known = q >= 1.0 || approximate(histogram.count()) * (1.0 - q) >= 1.0;
    let Some(value) = histogram.quantile(q).filter(|_| is_known) else { return Cell::from(MISSING) };
    let cell = Cell::from(Nanos(value).to_string());
    if q < 1.0 && histogram.count_above(value) < ABOVE_MIN { cell.faint() } else { cell }
}

/// Draws where all packets went, or says that all arrived, and lists all places that count.
fn account(conservation: &Conservation) -> Vec<Block<'_>> {
    let Conservation { what, n_sent, n_received, n_unexplained, drops, .. } = conservation;
    let title = format!("Where the {what} went");
    let n_clean = drops.iter().filter(|drop| drop.n_dropped == 0).count();
    let is_whole = n_clean == drops.len() && *n_unexplained == 0;
    let mut blocks = if is_whole {
        vec![
            Block::Heading(title),
            Block::sentence(match n_sent {
                0 => format!("No {what} were sent."),
                _ => format!("All {} {what} that were sent arrived.", grouped(*n_received)),
            }),
        ]
    } else {
        let about = format!("{} sent", grouped(*n_sent));
        vec![Block::Figure(Figure::new(title, about, move || balance(conservation))), places(conservation)]
    };
    let others = if is_whole { "" } else { " other" };
    let counted = match n_clean {
        0 => None,
        1 => Some(format!("Nothing was lost at the one{others} place that counts.")),
        n => Some(format!("Nothing was lost at the {n}{others} places that count.")),
    };
    blocks.extend(counted.map(Block::aside));
    if !drops.is_empty() {
        blocks.push(folded("every place that counts, with its counter", vec![counters(conservation)]));
    }
    blocks
}

/// Returns each place that counts what it drops, with the name of its counter.
fn counters(conservation: &Conservation) -> Block<'_> {
    let row = |drop: &Drops| {
        Row::new([Cell::from(&drop.place), grouped(drop.n_dropped).into(), Cell::from(&drop.counter).faint()])
    };
    let titles = vec![Column::text("place"), Column::number("lost"), Column::text("counter")];
    let rows = conservation.drops.iter().map(row).collect();
    Block::Table(Table { class: "counters", columns: titles, rows, flows: false })
}

/// Returns the parts as numbers, in the colors of the drawing.
fn places(conservation: &Conservation) -> Block<'_> {
    let share = |n: i64| {
        let share = match ratio(n.unsigned_abs(), conservation.n_sent) {
            // A share close to 100 % keeps the digits that show how much is missing.
            Some(share) if (0.99..1.0).contains(&share) => format!("{:.3} %", share * 100.0),
            share => share.map(percent).unwrap_or_default(),
        };
        if n < 0 { format!("−{share}") } else { share }
    };
    let rows = parts(conservation).into_iter().map(|part| {
        let sign = if part.n < 0 { "−" } else { "" };
        Row::new([
            Cell { key: Some(part.key), hint: part.counter.to_owned(), ..Cell::from(part.place) },
            format!("{sign}{}", grouped(part.n.unsigned_abs())).into(),
            share(part.n).into(),
        ])
    });
    Block::Table(Table { class: "places", columns: columns([""; 3]), rows: rows.collect(), flows: false })
}

/// Returns what each queue of the device had.
fn queue_table<'a>(queues: &[PacketQueueShare]) -> Block<'a> {
    let row = |queue: &PacketQueueShare| {
        Row::new([
            queue.queue.clone(),
            grouped(queue.n_packets),
            queue.share.map(percent).unwrap_or_default(),
            grouped(queue.n_dropped),
            grouped(queue.n_user_dropped),
        ])
    };
    let titles = columns(["queue of the device", "packets", "share", "dropped, queue full", "dropped, buffer full"]);
    Block::Table(Table { columns: titles, rows: queues.iter().map(row).collect(), ..Table::default() })
}

fn core_load<'a>(test: &'a TestRun, host: &'a str, title: String) -> Figure<'a> {
    let all = uses(test, host);
    let row = |key: (u64, &str)| {
        let shares = all[&key].shares.iter().map(|share| percent(*share).into());
        let busy = Cell::from(percent(all[&key].busy)).strong();
        Row::new(std::iter::once(Cell::from(key.1)).chain(shares).chain([busy]))
    };
    let about = if all.len() > CORES_MAX {
        format!("the {CORES_MAX} busiest of {} cores", all.len())
    } else {
        "each row is a core".to_owned()
    };
    let titles = std::iter::once("core").chain(BUSY.map(|(_, name)| name)).chain(["busy"]);
    let rows = drawn(&all).into_iter().map(row).collect();
    Figure {
        table: Some(Table { columns: columns(titles), rows, ..Table::default() }),
        ..Figure::new(title, about, move || core_heatmap(test, host))
    }
}

//! The hosts of a test of several hosts: their parts of a rate, and all pairs as a matrix.

use std::collections::BTreeSet;

use fathom_model::{
    Better, CoreShare, Derivation, Growth, GrowthPoint, Link, Metric, QueueShare, Run, Sharing, Spread, TestRun,
    TestedHost, Unit, units::percent,
};

use super::block::{Block, Cell, Column, Figure, Medium, Row, Table, columns};
use crate::{
    plot::matrix::{Matrix, heat_map},
    words::{self, MISSING, Mark},
};

/// The busiest queues and cores that a line has room for.
const SHARES_MAX: usize = 2;
/// The most hosts whose lines a terminal has room for.
pub(super) const LINES_MAX: usize = 64;

/// Returns the blocks about the hosts of a test, or none for a test of one pair.
pub(super) fn blocks(test: &TestRun) -> Vec<Block<'_>> {
    let Some((sharing, main)) =
        test.sharing.as_ref().and_then(|sharing| Some((sharing, metric(test, &sharing.metric)?)))
    else {
        return Vec::new();
    };
    let mut blocks: Vec<Block<'_>> = matrices(test, std::iter::once(main).chain(further(test)));
    if blocks.is_empty() {
        blocks.push(Block::Heading("Hosts".to_owned()).on_page());
        blocks.push(Block::Table(of_hosts(test, sharing, main)));
    }
    if let Some(hosts) = &sharing.hosts {
        blocks.push(Block::aside(spread_words("hosts", hosts, |value| words::show(main, value))));
    }
    if let Some(flows) = &sharing.flows {
        blocks.push(Block::aside(spread_words("flows", flows, |value| Unit::BitsPerSec.show(value))));
    }
    if !sharing.lost.is_empty() {
        blocks.push(Block::caution(format!("lost: {}", sharing.lost.join(", ")), Mark::Open));
    }
    if let Some(tested) = &sharing.tested {
        blocks.push(Block::Table(interface_table(&[(test, tested)])));
    }
    blocks.extend(sharing.growth.as_ref().map(|growth| Block::Table(growth_table(test, growth))));
    blocks
}

/// Returns what all tests of a run say about a tested host and its companions, for a terminal.
pub(super) fn of_run(run: &Run) -> Vec<Block<'_>> {
    let of_tests = || run.tests.iter().filter_map(|test| Some((test, test.sharing.as_ref()?)));
    let tested: Vec<(&TestRun, &TestedHost)> =
        of_tests().filter_map(|(test, sharing)| Some((test, sharing.tested.as_ref()?))).collect();
    let mut blocks = Vec::new();
    if !tested.is_empty() {
        blocks.push(Block::Table(interface_table(&tested)));
    }
    for (test, sharing) in of_tests() {
        if let Some(growth) = &sharing.growth {
            blocks.push(Block::Table(growth_table(test, growth)));
        }
        if !sharing.lost.is_empty() {
            blocks.push(Block::caution(format!("{}: lost: {}", test.full_name(), sharing.lost.join(", ")), Mark::Open));
        }
    }
    blocks
}

/// What passed the interface of the tested host in each test, and which cores took its packets.
fn interface_table(tested: &[(&TestRun, &TestedHost)]) -> Table {
    let host = tested.first().map(|(_, tested)| format!("{} {}", tested.host, tested.interface)).unwrap_or_default();
    let has_queues = tested.iter().any(|(_, tested)| !tested.queues.is_empty());
    let row = |(test, tested): &(&TestRun, &TestedHost)| {
        let frames = |per_sec: f64| Unit::FramesPerSec.show(per_sec);
        let bits = |bytes_per_sec: f64| Unit::BitsPerSec.show(bytes_per_sec * 8.0);
        let mut cells = vec![
            of_one_pair(&test.full_name()).to_owned(),
            frames(tested.rx_frames_per_sec),
            frames(tested.tx_frames_per_sec),
            bits(tested.rx_bytes_per_sec),
            bits(tested.tx_bytes_per_sec),
            list(tested.cores.iter().take(SHARES_MAX).map(|core| format!("{} {}", core.core, percent(core.packets)))),
            list(tested.cores.iter().map(core_words)),
        ];
        cells.extend(has_queues.then(|| list(tested.queues.iter().take(SHARES_MAX).map(queue_words))));
        Row::new(cells)
    };
    let mut columns = columns([host.as_str(), "packets in", "packets out", "data in", "data out"]);
    columns.push(Column::text("packets by core").only(Medium::Screen));
    columns.push(Column::text("packets by core").only(Medium::Page));
    columns.extend(has_queues.then(|| Column { gives_way: 1, ..Column::text("interrupts by queue") }));
    Table { columns, rows: tested.iter().map(row).collect(), ..Table::default() }
}

/// Returns the name of a test without the words for its pairs, which all tests of the table share.
fn of_one_pair(name: &str) -> &str {
    let end = [" in all, on ", ", on each of "].into_iter().find_map(|words| name.find(words));
    &name[..end.unwrap_or(name.len())]
}

fn list(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

fn core_words(core: &CoreShare) -> String {
    let busy = core.busy.map(|busy| format!(" ({} busy)", percent(busy))).unwrap_or_default();
    format!("{} {}{busy}", core.core, percent(core.packets))
}

fn queue_words(queue: &QueueShare) -> String {
    let core = queue.core.map(|core| format!(" on cpu{core}")).unwrap_or_default();
    format!("{} {}{core}", queue.name, percent(queue.share))
}

/// The rate over the number of companions.
fn growth_table(test: &TestRun, growth: &Growth) -> Table {
    let metric = metric(test, &growth.metric);
    let show = |value: f64| metric.map_or_else(|| value.to_string(), |metric| words::show(metric, value));
    let row = |place: usize, point: &GrowthPoint| {
        let before = place.checked_sub(1).map(|before| growth.points[before].value).filter(|before| *before > 0.0);
        let grown = before.map(|before| change_words(point.value / before - 1.0));
        let interval = point.confidence.map(|interval| format!("{} – {}", show(interval.low), show(interval.high)));
        let is_knee = growth.knee == Some(point.n_hosts);
        Row::new([
            Cell::from(point.n_hosts.to_string()),
            show(point.value).into(),
            interval.unwrap_or_default().into(),
            grown.unwrap_or_default().into(),
            Cell::from(if is_knee { "◂ knee" } else { "" }).strong(),
        ])
    };
    let title = metric.map_or(growth.metric.as_str(), |metric| &metric.title);
    Table {
        columns: columns(["companions", title, "95 % interval", "more", ""]),
        rows: growth.points.iter().enumerate().map(|(place, point)| row(place, point)).collect(),
        ..Table::default()
    }
}

/// A change with its sign: `+46 %`, `−3.0 %`.
fn change_words(change: f64) -> String {
    let sign = if change < 0.0 { '−' } else { '+' };
    format!("{sign}{}", percent(change.abs()))
}

fn metric<'a>(test: &'a TestRun, name: &str) -> Option<&'a Metric> {
    test.summaries.iter().map(|summary| &summary.metric).find(|metric| metric.name == name)
}

fn spread_words(what: &str, spread: &Spread, show: impl Fn(f64) -> String) -> String {
    let Spread { n, min, median, max, jain } = spread;
    format!(
        "{n} {what}: min {}, median {}, max {}; Jain's fairness index {jain:.3}",
        show(*min),
        show(*median),
        show(*max)
    )
}

/// The metrics beside the main rate that say most about a host: a time and a share, the first of each.
pub(super) fn further(test: &TestRun) -> impl Iterator<Item = &Metric> {
    let first = |is: fn(&Metric) -> bool| {
        let known = |metric: &&Metric| test.links.iter().any(|link| link.values.contains_key(metric.name.as_ref()));
        test.summaries.iter().map(|summary| &summary.metric).filter(|metric| is(metric)).find(known)
    };
    let time = first(|metric| metric.unit == Unit::Nanos && matches!(metric.from, Derivation::Quantile { .. }));
    let share = first(|metric| metric.unit == Unit::Ratio && metric.better == Better::Lower);
    [time, share].into_iter().flatten()
}

/// Returns one row per pair, with the host at the end that differs.
fn of_hosts(test: &TestRun, sharing: &Sharing, main: &Metric) -> Table {
    let further: Vec<&Metric> = further(test).collect();
    let titles = ["host", &main.title, "of the sum"].into_iter().map(str::to_owned);
    let titles = titles.chain(further.iter().map(|metric| metric.title.to_string())).chain([String::new()]);
    let all: f64 = sharing.by_host.values().sum();
    let is_outward = test.links.iter().all(|link| link.from == test.links[0].from);
    let row = |link: &Link| {
        let host = link.to.as_ref().filter(|_| is_outward).unwrap_or(&link.from);
        let rate = link.values.get(&sharing.metric);
        let part = rate.filter(|_| all > 0.0).map(|rate| percent(rate / all));
        let value = |metric: &&Metric| link.values.get(metric.name.as_ref()).map(|value| words::show(metric, *value));
        let is_lost = sharing.lost.contains(host);
        let cells =
            [Cell::from(host.as_str()), rate.map(|rate| words::show(main, *rate)).into_cell(), part.into_cell()];
        let remark =
            Cell::from(if is_lost { "lost" } else { "" }).marked(if is_lost { Mark::Open } else { Mark::Plain });
        Row::new(cells.into_iter().chain(further.iter().map(|metric| value(metric).into_cell())).chain([remark]))
    };
    Table { columns: columns(titles), rows: test.links.iter().take(LINES_MAX).map(row).collect(), ..Table::default() }
}

/// A text that may be missing.
trait IntoCell {
    fn into_cell(self) -> Cell;
}

impl IntoCell for Option<String> {
    fn into_cell(self) -> Cell {
        Cell::from(self.unwrap_or_else(|| MISSING.to_owned()))
    }
}

/// Returns a matrix of all pairs for each of the metrics, as table and heat map. None for a star.
pub(super) fn matrices<'a>(test: &'a TestRun, metrics: impl Iterator<Item = &'a Metric>) -> Vec<Block<'a>> {
    let froms: BTreeSet<&str> = test.links.iter().map(|link| link.from.as_str()).collect();
    let tos: BTreeSet<&str> = test.links.iter().filter_map(|link| link.to.as_deref()).collect();
    if froms.len() < 2 || tos.len() < 2 {
        return Vec::new();
    }
    metrics.map(|metric| Block::Figure(matrix(test, metric, (&froms, &tos)))).collect()
}

fn matrix<'a>(
    test: &'a TestRun,
    metric: &'a Metric,
    (froms, tos): (&BTreeSet<&'a str>, &BTreeSet<&'a str>),
) -> Figure<'a> {
    let value = |from: &str, to: &str| {
        let is_it = |link: &&Link| link.from == from && link.to.as_deref() == Some(to);
        test.links.iter().find(is_it).and_then(|link| link.values.get(metric.name.as_ref()).copied())
    };
    let matrix = Matrix {
        rows: froms.iter().map(|from| (*from).to_owned()).collect(),
        columns: tos.iter().map(|to| (*to).to_owned()).collect(),
        values: froms.iter().map(|from| tos.iter().map(|to| value(from, to)).collect()).collect(),
        is_more_better: metric.better == Better::Higher,
    };
    let row = |(from, values): (&String, &Vec<Option<f64>>)| {
        let cells =
            values.iter().map(|value| Cell::from(value.map(|value| words::show(metric, value)).unwrap_or_default()));
        Row::new(std::iter::once(Cell::from(format!("{from} →"))).chain(cells))
    };
    let titles = std::iter::once(metric.title.to_string()).chain(matrix.columns.iter().map(|to| format!("→ {to}")));
    let table = Table {
        columns: columns(titles),
        rows: matrix.rows.iter().zip(&matrix.values).map(row).collect(),
        ..Table::default()
    };
    Figure {
        is_wide: true,
        table: Some(table),
        on_screen: true,
        ..Figure::new(
            format!("{} of all pairs", metric.title),
            "each row is a sender, each column a receiver; dark is worse",
            move || heat_map(&matrix, |value| words::show(metric, value)),
        )
    }
}

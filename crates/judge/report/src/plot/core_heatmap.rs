//! Draws how busy each core of a host was, over time and rounds.

use std::collections::BTreeMap;

use fathom_model::{
    HostRecord, TestRun,
    names::host as counter,
    record::Series,
    units::{approximate, ratio, rounded},
};
use maud::{Markup, html};

use super::{Plot, float, px};

/// The core states that count as work, in the order of the table.
pub(crate) const BUSY: [(&str, &str); 5] = [
    (counter::CPU_USER_NS, "user"),
    (counter::CPU_SYSTEM_NS, "system"),
    (counter::CPU_IRQ_NS, "irq"),
    (counter::CPU_SOFTIRQ_NS, "softirq"),
    (counter::CPU_STEAL_NS, "steal"),
];
/// The maximum number of cores in a drawing. With more, rows would be thinner than a line of text.
pub(crate) const CORES_MAX: usize = 32;
/// The number of cells in a row over all rounds together. More could not be told apart.
const CELLS: usize = 60;
const LEVELS: f64 = 7.0;
const WIDTH: f64 = 510.0;
const LEFT: f64 = 52.0;
const GAP: f64 = 5.0;
const TOP: f64 = 6.0;
/// If rows are thinner than this, only every other core is named.
const LABEL_HEIGHT: f64 = 13.0;

/// The load of a core over all rounds of a test.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CoreLoad {
    /// The share of time in each state of [`BUSY`].
    pub(crate) shares: Vec<f64>,
    /// The sum of the shares.
    pub(crate) busy: f64,
    /// The load in each cell of each round. `None` where it was not sampled.
    rounds: Vec<Vec<Option<f64>>>,
}

fn number_of(core: &str) -> (u64, &str) {
    (core.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(u64::MAX), core)
}

/// Returns the names of a host's cores that any round sampled.
pub(crate) fn cores<'a>(test: &'a TestRun, host: &str) -> Vec<&'a str> {
    let records = test.trials.iter().filter_map(|trial| trial.hosts.get(host));
    let mut names: Vec<&str> = records
        .flat_map(|record| &record.series)
        .filter(|series| series.name == counter::CPU_IDLE_NS && !series.of.is_empty())
        .map(|series| series.of.as_str())
        .collect();
    names.sort_by_key(|core| number_of(core));
    names.dedup();
    names
}

/// The series of one core in one round: those of [`BUSY`] and the idle one.
struct CoreSeries<'a> {
    busy: [Option<&'a Series>; BUSY.len()],
    idle: &'a Series,
}

impl<'a> CoreSeries<'a> {
    fn of(record: &'a HostRecord, core: &str) -> Option<Self> {
        let find = |name: &str| record.series.iter().find(|series| series.name == name && series.of == core);
        Some(Self { busy: BUSY.map(|(name, _)| find(name)), idle: find(counter::CPU_IDLE_NS)? })
    }

    /// Returns the share of work between two samples.
    fn share(&self, (from, to): (usize, usize)) -> Option<f64> {
        let grown = |series: &Series| Some(series.at(to)?.saturating_sub(series.at(from)?));
        let work: u64 = self.busy.iter().flatten().filter_map(|series| grown(series)).sum();
        ratio(work, work + grown(self.idle)?)
    }
}

/// Returns the load of every core of a host, in the order of core numbers.
pub(crate) fn uses<'a>(test: &'a TestRun, host: &str) -> BTreeMap<(u64, &'a str), CoreLoad> {
    let cells = (CELLS / test.trials.len().max(1)).max(4);
    let mut all = BTreeMap::new();
    for core in cores(test, host) {
        let mut growth = [0_u64; BUSY.len()];
        let mut idle = 0;
        let mut core_use = CoreLoad::default();
        for record in test.trials.iter().filter_map(|trial| trial.hosts.get(host)) {
            let Some(series) = CoreSeries::of(record, core) else { continue };
            for (sum, series) in growth.iter_mut().zip(series.busy) {
                *sum += series.map_or(0, Series::growth);
            }
            idle += series.idle.growth();
            let intervals = record.at_ns.len().saturating_sub(1);
            let n = cells.min(intervals);
            let edge = |cell: usize| cell * intervals / n.max(1);
            core_use.rounds.push((0..n).map(|cell| series.share((edge(cell), edge(cell + 1)))).collect());
        }
        let total = growth.iter().sum::<u64>() + idle;
        core_use.shares = growth.iter().map(|part| ratio(*part, total).unwrap_or(0.0)).collect();
        core_use.busy = core_use.shares.iter().sum();
        if total > 0 {
            all.insert(number_of(core), core_use);
        }
    }
    all
}

/// Returns the cores that are drawn: all, or the busiest if there are too many.
pub(crate) fn drawn<'a>(all: &BTreeMap<(u64, &'a str), CoreLoad>) -> Vec<(u64, &'a str)> {
    let mut names: Vec<(u64, &str)> = all.keys().copied().collect();
    names.sort_by(|a, b| all[b].busy.total_cmp(&all[a].busy));
    names.truncate(CORES_MAX);
    names.sort_unstable();
    names
}

/// Draws the cores of a host as rows and time as columns.
pub(crate) fn core_heatmap(test: &TestRun, host: &str) -> Plot {
    let all = uses(test, host);
    let names = drawn(&all);
    let rounds = all.values().next().map_or(0, |core| core.rounds.len());
    if rounds == 0 || all.values().all(|core| core.rounds.iter().all(Vec::is_empty)) {
        return Err("The cores of this host were not sampled during this test.");
    }
    // Few cores get tall rows, many cores thin ones.
    let row = (150.0 / float(names.len())).clamp(8.0, 28.0);
    let height = TOP + row * float(names.len()) + 24.0;
    let width = (WIDTH - LEFT - GAP * (float(rounds) - 1.0)) / float(rounds);
    let bottom = TOP + row * float(names.len());
    let edges = names.first().map(|name| layout(&all[name], width)).unwrap_or_default();
    let edges: Vec<String> = edges.into_iter().map(|(x, _)| px(x)).collect();
    Ok(html! {
        svg.plot.heat viewBox={ "0 0 " (px(WIDTH)) " " (px(height)) } data-at=(edges.join(" ")) role="img" aria-label={ "load of the cores of " (host) } {
            @for (index, name) in names.iter().enumerate() {
                @let top = TOP + row * float(index);
                @if row >= LABEL_HEIGHT || index % 2 == 0 {
                    text.tick x=(px(LEFT - 8.0)) y=(px(top + row / 2.0 + 4.0)) text-anchor="end" { (name.1) }
                }
                (cells(&all[name], name.1, (top, row - 1.5), width))
            }
            @for round in 0..rounds {
                text.tick x=(px(LEFT + float(round) * (width + GAP) + width / 2.0)) y=(px(bottom + 16.0)) text-anchor="middle" {
                    (if rounds <= 10 { format!("round {}", round + 1) } else { (round + 1).to_string() })
                }
            }
        }
        (legend())
    })
}

/// Returns the left edge and the width of every cell of a row.
fn layout(core: &CoreLoad, width: f64) -> Vec<(f64, f64)> {
    let rounds = core.rounds.iter().enumerate();
    rounds
        .flat_map(|(round, cells)| {
            let each = width / float(cells.len().max(1));
            let left = LEFT + float(round) * (width + GAP);
            (0..cells.len()).map(move |index| (left + float(index) * each, each))
        })
        .collect()
}

/// Draws one row. Neighboring cells of the same level are joined into one path per level, to keep a page with many cores small.
fn cells(core: &CoreLoad, name: &str, (top, height): (f64, f64), width: f64) -> Markup {
    let shares = || core.rounds.iter().flatten();
    let mut runs: Vec<(u64, f64, f64)> = Vec::new();
    for (share, (x, each)) in shares().zip(layout(core, width)) {
        let Some(level) = share.map(|share| rounded(share * LEVELS)) else { continue };
        match runs.last_mut() {
            Some((same, _, end)) if *same == level && (x - *end).abs() < 0.01 => *end = x + each,
            _ => runs.push((level, x, x + each)),
        }
    }
    let mut levels: BTreeMap<u64, String> = BTreeMap::new();
    for (level, from, to) in runs {
        let d = format!("M{} {}H{}v{}H{}z", px(from), px(top), px(to), px(height), px(from));
        levels.entry(level).or_default().push_str(&d);
    }
    let percents = shares().map(|share| share.map_or("–".to_owned(), |share| rounded(share * 100.0).to_string()));
    html! {
        g.cells data-title=(name) data-v=(percents.collect::<Vec<_>>().join(" ")) {
            title { (name) ": " (rounded(core.busy * 100.0)) " % busy on average" }
            @for (level, d) in &levels { path class={ "h" (level) } d=(d) {} }
        }
    }
}

fn legend() -> Markup {
    html! {
        p.scale {
            span { "idle" }
            svg viewBox="0 0 80 10" aria-hidden="true" {
                @for level in 0..8_u64 {
                    rect class={ "h" (level) } x=(px(approximate(level) * 10.0)) y="0" width="9" height="10" {}
                }
            }
            span { "busy" }
        }
    }
}

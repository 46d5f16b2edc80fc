//! How busy each core of a host was, over time and rounds.

use std::collections::BTreeMap;

use fathom_model::{
    HostRecord, TestRun,
    names::host as counter,
    units::{approximate, ratio, rounded},
};
use maud::{Markup, html};

use super::{Plot, float, px};

/// The states of a core that are work, in the order of the table.
pub(crate) const BUSY: [(&str, &str); 5] = [
    (counter::CPU_USER_NS, "user"),
    (counter::CPU_SYSTEM_NS, "system"),
    (counter::CPU_IRQ_NS, "irq"),
    (counter::CPU_SOFTIRQ_NS, "softirq"),
    (counter::CPU_STEAL_NS, "steal"),
];
/// The most cores that are drawn: more would be thinner than a line of text.
pub(crate) const CORES_MAX: usize = 32;
/// The cells of a row over all rounds together; more could not be told apart.
const CELLS: usize = 60;
const LEVELS: f64 = 7.0;
const WIDTH: f64 = 510.0;
const LEFT: f64 = 52.0;
const GAP: f64 = 5.0;
const TOP: f64 = 6.0;
/// In thinner rows only every other core is named.
const LABEL_HEIGHT: f64 = 13.0;

/// What a core did over all rounds of a test.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CoreUse {
    /// The share of time in each state of [`BUSY`].
    pub(crate) shares: Vec<f64>,
    /// The sum of them.
    pub(crate) busy: f64,
    /// How busy it was in each cell of each round; nothing where it was not sampled.
    rounds: Vec<Vec<Option<f64>>>,
}

fn number_of(core: &str) -> (u64, &str) {
    (core.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(u64::MAX), core)
}

/// The names of the cores of a host, as far as any round sampled them.
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

/// Nanoseconds of work, and of work and idleness together, between two samples.
fn busy(record: &HostRecord, core: &str, (from, to): (usize, usize)) -> Option<f64> {
    let grown = |name: &str| {
        let series = record.series.iter().find(|series| series.name == name && series.of == core)?;
        Some(series.at(to)?.saturating_sub(series.at(from)?))
    };
    let work: u64 = BUSY.iter().filter_map(|(name, _)| grown(name)).sum();
    ratio(work, work + grown(counter::CPU_IDLE_NS)?)
}

/// What every core of a host did, in the order of their numbers.
pub(crate) fn uses<'a>(test: &'a TestRun, host: &str) -> BTreeMap<(u64, &'a str), CoreUse> {
    let cells = (CELLS / test.trials.len().max(1)).max(4);
    let mut all = BTreeMap::new();
    for core in cores(test, host) {
        let mut growth = [0_u64; BUSY.len()];
        let mut idle = 0;
        let mut core_use = CoreUse::default();
        for record in test.trials.iter().filter_map(|trial| trial.hosts.get(host)) {
            for (sum, (name, _)) in growth.iter_mut().zip(BUSY) {
                *sum += record.growth(name, core).unwrap_or(0);
            }
            idle += record.growth(counter::CPU_IDLE_NS, core).unwrap_or(0);
            let intervals = record.at_ns.len().saturating_sub(1);
            let n = cells.min(intervals);
            let edge = |cell: usize| cell * intervals / n.max(1);
            core_use.rounds.push((0..n).map(|cell| busy(record, core, (edge(cell), edge(cell + 1)))).collect());
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

/// The cores that are drawn: all, or the busiest when there are too many.
fn drawn<'a>(all: &BTreeMap<(u64, &'a str), CoreUse>) -> Vec<(u64, &'a str)> {
    let mut names: Vec<(u64, &str)> = all.keys().copied().collect();
    names.sort_by(|a, b| all[b].busy.total_cmp(&all[a].busy));
    names.truncate(CORES_MAX);
    names.sort_unstable();
    names
}

/// Draws the cores of a host as rows and time as columns.
pub(crate) fn heat(test: &TestRun, host: &str) -> Plot {
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
    Ok(html! {
        svg.plot.heat viewBox={ "0 0 " (px(WIDTH)) " " (px(height)) } role="img" aria-label={ "load of the cores of " (host) } {
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

/// One row: one path per level of load, so that a page with many cores stays small.
fn cells(core: &CoreUse, name: &str, (top, height): (f64, f64), width: f64) -> Markup {
    let mut levels: BTreeMap<u64, String> = BTreeMap::new();
    let mut values = Vec::new();
    let mut edges = Vec::new();
    for (round, cells) in core.rounds.iter().enumerate() {
        let left = LEFT + float(round) * (width + GAP);
        let each = width / float(cells.len().max(1));
        for (index, share) in cells.iter().enumerate() {
            let Some(share) = share else { continue };
            let x = left + float(index) * each;
            let level = rounded(share * LEVELS);
            let d = format!("M{} {}h{}v{}h-{}z", px(x), px(top), px(each), px(height), px(each));
            levels.entry(level).or_default().push_str(&d);
            values.push(rounded(share * 100.0).to_string());
            edges.push(px(x));
        }
    }
    html! {
        g.cells data-title=(name) data-v=(values.join(" ")) data-at=(edges.join(" ")) {
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

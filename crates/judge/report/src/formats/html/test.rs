//! The section of one test: its plots, each with its table.

use fathom_model::{
    Conservation, Histogram, Run, Side, Summary, TestRun, Trial,
    search::LoadCurve,
    units::{Nanos, approximate, grouped, percent, ratio},
};
use maud::{Markup, Render, html};

use super::{anchor, overview::mark_class, scrolling};
use crate::{
    flow,
    plot::{
        Plot,
        conservation::{balance, parts},
        core_heatmap::{BUSY, CORES_MAX, core_heatmap, cores, drawn, uses},
        curve::load_curve,
        percentiles::{display_name, merged, percentiles},
        throughput::{ROUNDS_MAX, rate_of, throughput},
    },
    view::{self, MISSING},
};

/// The quantiles of the table below the plot.
const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("max", 1.0)];
/// A quantile with fewer values above it is shown faintly.
const ABOVE_MIN: u64 = 10;

pub(super) fn section(run: &Run, test: &TestRun) -> Markup {
    html! {
        section.one id=(anchor(&test.name)) {
            h2 { span.layer { (test.layer.name()) } " " (test.title) }
            (headline(run, test))
            @if test.unavailable.is_none() {
                @if let Some(found) = &test.curve { (curve(test, found)) }
                (super::benchmark::section(run, test))
                (super::steps::section(test))
                (super::probe::section(test))
                (values(run, test))
                @if rate_of(test).is_some() { (rate(test)) }
                (plots(run, test))
                (flows(test))
                (errors(test))
                (notes(run, test))
            }
        }
    }
}

/// What the test saw to the left, what the hosts did meanwhile to the right; or the hosts side by side.
fn plots(run: &Run, test: &TestRun) -> Markup {
    let timed = !merged(test).is_empty();
    let loads = html! { @for (host, title) in hosts_of(run, test) { (core_load(test, host, &title)) } };
    if !timed && test.conservation.is_none() {
        return html! { div.pair { (loads) } };
    }
    html! {
        div.pair {
            div {
                @if timed { (latency(test)) }
                @if let Some(conservation) = &test.conservation { (drop_balance(conservation)) }
            }
            div { (loads) }
        }
    }
}

/// The hosts whose cores are drawn, with what the drawing is called: hosts of one machine have the same cores.
fn hosts_of<'a>(run: &Run, test: &'a TestRun) -> Vec<(&'a str, String)> {
    let all = std::iter::once(test.from.as_str()).chain(test.to.as_deref());
    let mut hosts: Vec<&str> = Vec::new();
    for host in all {
        if !hosts.contains(&host) && !cores(test, host).is_empty() {
            hosts.push(host);
        }
    }
    if hosts.len() > 1 && view::is_one_machine(run) {
        return vec![(hosts[0], "CPU load of this machine".to_owned())];
    }
    hosts.into_iter().map(|host| (host, format!("CPU load of {host}"))).collect()
}

fn headline(run: &Run, test: &TestRun) -> Markup {
    if let Some(reason) = &test.unavailable {
        return html! { p.big.missing { (MISSING) " " (reason) } };
    }
    let Some(first) = test.summaries.first() else {
        return html! { p.big.missing { (MISSING) " no round was completed" } };
    };
    let row = view::value_row(test, first, String::new());
    html! {
        p.big {
            b { (row.result) }
            @if !row.interval.is_empty() { span { (row.interval) } }
            @if !row.limit.is_empty() {
                span class=(mark_class(row.mark)) {
                    @if row.used.is_empty() { (row.limit) } @else { (row.used) " · " (row.limit) }
                }
            }
        }
        @let quantiles = view::quantiles(test, first);
        @if !quantiles.is_empty() {
            p.quantiles {
                @for summary in quantiles {
                    span { (summary.metric.title) b { (view::quantile_value(summary).unwrap_or_default()) } }
                }
            }
        }
        p.way {
            (test.from) @if let Some(to) = &test.to { " → " (to) }
            " · " (test.kind)
            @if let Some(missing) = view::rounds_missing(run, test) { " · " b.open { (missing) } }
            @if let Some(finding) = view::finding_of(run, test) {
                " · " a.marker href={ "#finding-" (finding.id) } { "◂ " (finding.short) }
            }
        }
    }
}

/// A plot with its title and its table.
pub(super) struct PlotFigure<'a> {
    /// How it is laid out: `wide`, or as it comes.
    pub(super) class: &'static str,
    /// What is drawn.
    pub(super) title: &'a str,
    /// How it is to be read.
    pub(super) about: &'a str,
    /// The drawing.
    pub(super) plot: Plot,
    /// The same as numbers, if they do not stand elsewhere.
    pub(super) table: Option<Markup>,
}

impl Render for PlotFigure<'_> {
    fn render(&self) -> Markup {
        html! {
            figure class=(self.class) {
                figcaption { b { (self.title) } @if !self.about.is_empty() { span { (self.about) } } }
                @match &self.plot {
                    Ok(drawing) => div.drawing { (drawing) },
                    Err(why) => p.none { (why) },
                }
                @if let Some(table) = &self.table {
                    details { summary { "as a table" } (scrolling(table)) }
                }
            }
        }
    }
}

/// Every value with its interval, its source and each round.
fn values(run: &Run, test: &TestRun) -> Markup {
    let rounds = test.summaries.iter().map(|summary| summary.trials.len()).max().unwrap_or(0).min(ROUNDS_MAX);
    let table = html! {
        table {
            thead {
                tr {
                    th { "value" } th.n { "result" } th.n { "95 % interval" }
                    @for round in 1..=rounds { th.n { "round " (round) } }
                    th.n { "samples" }
                }
            }
            tbody {
                @for summary in test.summaries.iter().filter(|summary| summary.applies()) {
                    @let row = view::value_row(test, summary, summary.metric.title.to_string());
                    tr {
                        td { (row.label) }
                        // Why there is no value stands among the notes.
                        td.n.result { @if summary.value.is_some() { (row.result) } @else { (MISSING) } }
                        td.n { (row.interval) }
                        @for round in 0..rounds {
                            td.n { @if let Some(value) = summary.trials.get(round) { (view::show(&summary.metric, *value)) } }
                        }
                        td.n { (summary.n_samples.map(grouped).unwrap_or_default()) }
                    }
                }
            }
        }
    };
    let open = run.tests.len() == 1;
    let mut sources: Vec<&str> = test.summaries.iter().map(|summary| summary.metric.source.as_ref()).collect();
    sources.sort_unstable();
    sources.dedup();
    html! {
        details.values open[open] {
            summary { "every value of every round" }
            (scrolling(&table))
            p.faint { "defined in " (sources.join(", ")) }
        }
    }
}

/// The load curve of a search.
fn curve(test: &TestRun, found: &LoadCurve) -> Markup {
    let [offered, achieved, value, median] = crate::curve::titles(test, found);
    let lines = crate::curve::curve_lines(test, found);
    let has_median = lines.iter().any(|line| !line.values[3].is_empty());
    let table = html! {
        table {
            thead {
                tr {
                    th.n { (offered) } th.n { (achieved) } th.n { (value) } @if has_median { th.n { (median) } }
                    th.n { "trials" } th { (crate::curve::objective(test, found)) } th {}
                }
            }
            tbody {
                @for line in &lines {
                    tr {
                        @for cell in line.values.iter().take(if has_median { 4 } else { 3 }) { td.n { (cell) } }
                        td.n { (line.trials) } td class=(mark_class(line.mark)) { (line.assessment) } td { b { (line.marker) } }
                    }
                }
            }
        }
    };
    let objective = crate::curve::objective(test, found);
    let remark = crate::curve::remark(found).map(|remark| format!("; {remark}")).unwrap_or_default();
    let about =
        format!("each point is a rate that was tried; the band holds the highest that keeps {objective}{remark}");
    PlotFigure { class: "wide", title: "load curve", about: &about, plot: load_curve(test, found), table: Some(table) }
        .render()
}

fn rate(test: &TestRun) -> Markup {
    let title = rate_of(test).map_or("rate", |(metric, ..)| metric.title.as_ref());
    let beyond = test.trials.len().saturating_sub(ROUNDS_MAX);
    let about = if beyond > 0 {
        format!("over time; the shaded part was measured; the first {ROUNDS_MAX} rounds, {beyond} more in the document")
    } else {
        "over time; the shaded part of each round was measured, the rest is warm-up".to_owned()
    };
    let summary =
        test.summaries.iter().find(|s| rate_of(test).is_some_and(|(metric, ..)| s.metric.name == metric.name));
    let table = summary.map(|summary| {
        html! {
            table {
                thead {
                    tr {
                        th { "round" } th.n { (summary.metric.title) } th { "warm-up ended" } th.n { "measured from" }
                        th.n { "to" } th.n { "started apart" }
                    }
                }
                tbody {
                    @for (index, trial) in test.trials.iter().enumerate() { (round(summary, index, trial)) }
                }
            }
        }
    });
    PlotFigure { class: "wide", title, about: &about, plot: throughput(test), table }.render()
}

/// One round of a rate: its value, and how it was measured.
fn round(summary: &Summary, index: usize, trial: &Trial) -> Markup {
    let value = summary.trials.get(index).map(|value| view::show(&summary.metric, *value));
    let initiator = trial.records.values().find(|record| record.side == Side::Initiator);
    html! {
        tr {
            td { (trial.round + 1) }
            td.n.result { (value.as_deref().unwrap_or(MISSING)) }
            @match initiator {
                Some(record) => {
                    td { (if record.steady { "steady" } else { "by its time limit" }) }
                    td.n { (record.measured_ns.0) }
                    td.n { (record.measured_ns.1) }
                }
                None => { td { (MISSING) } td.n { (MISSING) } td.n { (MISSING) } }
            }
            td.n { (trial.start_skew_ns) }
        }
    }
}

fn latency(test: &TestRun) -> Markup {
    let all = merged(test);
    let table = html! {
        table {
            thead { tr { th {} @for (title, _) in QUANTILES { th.n { (title) } } th.n { "samples" } } }
            tbody {
                @for (name, histogram) in &all {
                    tr {
                        td { (display_name(name)) }
                        @for (_, q) in QUANTILES { (quantile(histogram, q)) }
                        td.n { (grouped(histogram.count())) }
                    }
                }
            }
        }
    };
    let about = "all rounds; dotted: fewer than 10 samples above";
    let figure =
        PlotFigure { class: "", title: "Latency by percentile", about, plot: percentiles(test), table: Some(table) };
    figure.render()
}

fn quantile(histogram: &Histogram, q: f64) -> Markup {
    let value = histogram.quantile(q);
    let unsure = q < 1.0 && value.is_some_and(|value| histogram.count_above(value) < ABOVE_MIN);
    html! { td.n.faint[unsure] { (value.map_or(MISSING.to_owned(), |ns| Nanos(ns).to_string())) } }
}

/// `sent 100 frames = received 99 + socket 1 + unexplained 0`.
pub(super) fn sum_in_words(conservation: &Conservation) -> Markup {
    let sign = if conservation.n_unexplained < 0 { " − " } else { " + " };
    html! {
        "sent " b { (grouped(conservation.n_sent)) } " " (conservation.what)
        " = received " b { (grouped(conservation.n_received)) }
        @for drop in conservation.drops.iter().filter(|drop| drop.n_dropped > 0) { " + " (drop.place) " " b { (grouped(drop.n_dropped)) } }
        (sign) "unexplained " b { (grouped(conservation.n_unexplained.unsigned_abs())) }
    }
}

fn drop_balance(conservation: &Conservation) -> Markup {
    let share = |n: i64| {
        let share = match ratio(n.unsigned_abs(), conservation.n_sent) {
            // Nearly all is not all: the digits that tell how much is missing are kept.
            Some(share) if (0.99..1.0).contains(&share) => format!("{:.3} %", share * 100.0),
            share => share.map(percent).unwrap_or_default(),
        };
        if n < 0 { format!("−{share}") } else { share }
    };
    let about = format!("{} sent", grouped(conservation.n_sent));
    html! {
        figure {
            figcaption { b { "Where the " (conservation.what) " went" } span { (about) } }
            @match balance(conservation) {
                Ok(drawing) => div.drawing { (drawing) },
                Err(why) => p.none { (why) },
            }
            (scrolling(&html! {
                table.places {
                    tbody {
                        @for part in parts(conservation) {
                            tr {
                                td { span class={ "key " (part.class) } {} (part.place) }
                                td.n { @if part.n < 0 { "−" } (grouped(part.n.unsigned_abs())) }
                                td.n { (share(part.n)) }
                                td.faint { (part.counter) }
                            }
                        }
                    }
                }
            }))
        }
    }
}

fn core_load(test: &TestRun, host: &str, title: &str) -> Markup {
    let all = uses(test, host);
    let table = html! {
        table {
            thead { tr { th { "core" } @for (_, name) in BUSY { th.n { (name) } } th.n { "busy" } } }
            tbody {
                @for key in drawn(&all) {
                    tr {
                        td { (key.1) }
                        @for share in &all[&key].shares { td.n { (percent(*share)) } }
                        td.n.result { (percent(all[&key].busy)) }
                    }
                }
            }
        }
    };
    let about = if all.len() > CORES_MAX {
        format!("the {CORES_MAX} busiest of {} cores", all.len())
    } else {
        "each row is a core".to_owned()
    };
    PlotFigure { class: "", title, about: &about, plot: core_heatmap(test, host), table: Some(table) }.render()
}

fn flows(test: &TestRun) -> Markup {
    let Some((round, lines, beyond)) = flow::last_round(test) else { return html! {} };
    let kept: Vec<usize> =
        (0..flow::COLUMNS.len()).filter(|c| lines.iter().any(|line| !line.cells[*c].is_empty())).collect();
    html! {
        details {
            summary { "connections, as the kernel saw them at the end of round " (round + 1) }
            (scrolling(&html! {
                table {
                    thead { tr { th { "connection" } @for c in &kept { th.n { (flow::COLUMNS[*c]) } } } }
                    tbody {
                        @for line in &lines {
                            tr { td { (line.id) } @for c in &kept { td.n { (line.cells[*c]) } } }
                        }
                    }
                }
            }))
            @if beyond > 0 { p.faint { "and " (beyond) " more in the JSON document" } }
        }
    }
}

fn errors(test: &TestRun) -> Markup {
    let errors = view::errors(test);
    if errors.is_empty() {
        return html! {};
    }
    html! {
        h3 { "Errors" }
        ul.errors {
            @for (cause, n) in errors { li { b { (grouped(n)) } " " (cause) } }
        }
    }
}

fn notes(run: &Run, test: &TestRun) -> Markup {
    let notes = view::notes(run, test, |_| true);
    if notes.is_empty() {
        return html! {};
    }
    html! {
        h3 { "Notes" }
        ul.notes {
            @for (note, n) in notes {
                li { (note) @if n > 1 { " (" (approximate(n as u64)) " times)" } }
            }
        }
    }
}

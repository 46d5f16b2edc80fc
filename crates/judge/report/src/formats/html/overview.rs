//! The top of the page: verdict, findings, ladder and table.

use fathom_model::{
    Derivation, Finding, Layer, LimitKind, Metric, Run, Severity, TestRun, names::count, units::percent,
};
use maud::{Markup, html};

use super::{anchor, scrolling};
use crate::{
    plot::share::share,
    view::{self, MISSING, RowMark, TableRow},
};

pub(super) fn header(run: &Run) -> Markup {
    html! {
        header {
            p.eyebrow { "fathom" span { (run.id) } }
            h1 { (run.plan.title) }
            p.command { code { (view::command(run)) } }
            dl.facts {
                @for (part, name) in view::roles_of_hosts(run) {
                    div { dt { (part) } dd { (view::host_words(run, name)) } }
                }
                @if let Some(target) = view::probed(run) { div { dt { "target" } dd { (target) } } }
                @if let Some(shared) = view::shared_cores(run) { div { dt { "both on" } dd { (shared) } } }
                div { dt { "started" } dd { (view::started(run)) } }
                div { dt { "took" } dd { (run.took_ns) } }
                div { dt { "rounds" } dd { (run.plan.rounds) } }
            }
        }
    }
}

pub(super) fn verdict(run: &Run) -> Markup {
    let class = match view::state_mark(run.verdict.state) {
        RowMark::Kept => "kept",
        RowMark::Broken => "broken",
        RowMark::Open | RowMark::Missing => "open",
        RowMark::Plain => "measured",
    };
    html! {
        section class={ "verdict " (class) } aria-label="verdict" {
            p.word { (run.verdict.state.word()) }
            div {
                @if run.verdict.reasons.is_empty() { p.reason { (view::reasons(run)) } }
                @for reason in &run.verdict.reasons { p.reason { (reason) } }
            }
        }
    }
}

pub(super) fn findings(run: &Run) -> Markup {
    let important = view::important(run);
    let remarks = view::remarks(run);
    html! {
        section #findings {
            h2 { "What holds it back" }
            @if important.is_empty() { p.none { "No counter shows anything that holds a layer back." } }
            @for found in important { (finding(run, found)) }
            @for remark in remarks { p.remark id={ "finding-" (remark.id) } { b { (if remark.severity == Severity::Remark { "Remark" } else { "Also" }) } (run.told(remark)) } }
        }
    }
}

fn finding(run: &Run, finding: &Finding) -> Markup {
    let invalid = finding.severity == Severity::Invalidates;
    html! {
        article.finding.invalid[invalid] id={ "finding-" (finding.id) } {
            @if invalid { p.badge { "Do not trust this number" } }
            h3 { (run.told(finding)) }
            @if let Some(next) = &finding.next {
                div.next {
                    p.where {
                        "Next"
                        @if let Some(host) = &next.on { " on " b { (host) } }
                    }
                    pre { code { (next.command) } }
                    @if let Some(expected) = &next.expected { p.expected { "Expected to " (expected.trim_start_matches("to ")) } }
                }
            }
            (evidence(finding))
            p.explains {
                @if let Some(share) = finding.explains {
                    "Explains " b { (percent(share)) } " of what is lacking"
                    @if !finding.tests.is_empty() { " in " }
                } @else if !finding.tests.is_empty() { "Concerns " }
                @for (index, name) in finding.tests.iter().enumerate() {
                    @if index > 0 { ", " }
                    @match run.tests.iter().find(|test| test.name == *name) {
                        Some(test) => a href={ "#" (anchor(name)) } { (test.named()) },
                        None => (name),
                    }
                }
            }
        }
    }
}

fn evidence(finding: &Finding) -> Markup {
    if finding.evidence.is_empty() {
        return html! {};
    }
    scrolling(&html! {
        table.evidence {
            thead { tr { th { "host" } th { "what" } th { "showed" } } }
            tbody {
                @for proof in &finding.evidence {
                    tr { td { (proof.host) } td title=(proof.counter) { (crate::counter::words(&proof.counter)) } td { b { (proof.value) } } }
                }
            }
        }
    })
}

pub(super) fn ladder(run: &Run) -> Markup {
    if run.tests.len() < 2 {
        return html! {};
    }
    html! {
        section #ladder {
            h2 { "The layers against their limits" }
            p.lead {
                "Each bar is the share of the nearest limit that was used: the full width is the limit. "
                "The cost is the tool's own processor time per unit of work."
            }
            div.ladder {
                @for (index, test) in run.tests.iter().enumerate() {
                    @let begins = index == 0 || run.tests[index - 1].layer != test.layer;
                    (ladder_bar(run, test, begins))
                }
            }
        }
    }
}

/// One bar: the headline value against the nearest limit that is not a promise, or against whichever there is.
fn ladder_bar(run: &Run, test: &TestRun, begins: bool) -> Markup {
    let limit = test.limits.iter().find(|limit| limit.kind != LimitKind::Promise && limit.used.is_some());
    let summary = match limit {
        Some(limit) => test.summaries.iter().find(|summary| summary.metric.name == limit.metric),
        None => test.summaries.first(),
    };
    let value = summary.and_then(|summary| Some(view::headline_value(&summary.metric, summary.value?)));
    let cost = test.summaries.iter().find(|summary| matches!(summary.metric.from, Derivation::Cost { .. }));
    let cost =
        cost.and_then(|cost| Some(format!("{} / {}", cost.metric.show(cost.value?), unit_of_work(test, &cost.metric))));
    // A cause that most rows share stands above them, and marks none.
    let is_shared = |finding: &&Finding| 2 * finding.tests.len() > run.tests.len();
    let finding = view::finding_of(run, test).filter(|finding| !is_shared(finding));
    let class = if finding.is_some() { "bar held" } else { "bar" };
    html! {
        a.rung.begins[begins] href={ "#" (anchor(&test.name)) } {
            span.layer { @if begins { (test.layer.name()) } }
            span.test { (test.title) }
            @match (&test.unavailable, value) {
                (Some(reason), _) => span.value.missing { (MISSING) "  " (reason) },
                (None, Some(value)) => span.value { (value) },
                (None, None) => span.value.missing { (MISSING) "  no round was completed" },
            }
            span.track {
                @if let Some(used) = limit.and_then(|limit| limit.used) { (share(used, class)) }
            }
            span.used {
                @if let Some(limit) = limit {
                    b { (limit.used.map(percent).unwrap_or_default()) } " of " (limit.text)
                } @else if test.unavailable.is_none() { "no known limit" }
            }
            span.cost { (cost.unwrap_or_default()) }
            @if let Some(finding) = finding { span.marker { "◂ " (finding.short) } }
        }
    }
}

/// What one of the things is called that a test's cost counts.
fn unit_of_work<'a>(test: &TestRun, metric: &'a Metric) -> &'a str {
    // A cost per that many of what is counted says so in its title.
    if let Some((_, unit)) = metric.title.rsplit_once(" per ") {
        return unit;
    }
    let Derivation::Cost { counter, .. } = &metric.from else { return "unit" };
    match (counter.as_ref(), test.layer) {
        (bytes, _) if bytes.contains("bytes") => "byte",
        (count::SENT | count::RECEIVED, Layer::Frames) => "frame",
        (count::SENT | count::RECEIVED, _) => "datagram",
        (plural, _) => plural.trim_end_matches('s'),
    }
}

pub(super) fn table(run: &Run) -> Markup {
    if run.tests.len() < 2 {
        return html! {};
    }
    let rows = view::rows(run);
    html! {
        section #table {
            h2 { "All results" }
            details { summary { "the same as a table, with intervals" } (scrolling(&html! {
                table.results {
                    thead {
                        tr {
                            th { "layer" } th { "test" } th.n { "result" } th.n { "95 % interval" } th { "limit" }
                            th.n { "used" } th { "held back by" }
                        }
                    }
                    tbody {
                        @for (index, row) in rows.iter().enumerate() {
                            (line(row, index == 0 || rows[index - 1].test.layer != row.test.layer))
                        }
                    }
                }
            })) }
            @for test in &run.tests {
                @if let Some(c) = &test.conservation { p.sum { (super::test::sum_in_words(c)) } }
            }
        }
    }
}

fn line(row: &TableRow<'_>, begins: bool) -> Markup {
    html! {
        tr.begins[begins] .sub[!row.first] {
            td.layer { @if begins { (row.test.layer.name()) } }
            td {
                @if row.first { a href={ "#" (anchor(&row.test.name)) } { (row.label) } } @else { (row.label) }
            }
            @if row.mark == RowMark::Missing && row.interval.is_empty() && row.limit.is_empty() {
                td.missing colspan="5" { (row.result) }
            } @else {
                td.n.result { (row.result) }
                td.n { (row.interval) }
                td { (row.limit) }
                td class=(mark_class(row.mark)) { (row.used) }
                td.marker {
                    @if let Some(finding) = row.finding { a href={ "#finding-" (finding.id) } { "◂ " (finding.short) } }
                }
            }
        }
    }
}

/// The class of a promise's cell.
pub(super) const fn mark_class(mark: RowMark) -> &'static str {
    match mark {
        RowMark::Plain | RowMark::Missing => "n",
        RowMark::Kept => "n kept",
        RowMark::Broken => "n broken",
        RowMark::Open => "n open",
    }
}

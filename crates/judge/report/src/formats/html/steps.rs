//! What users did, step by step: the funnel, the times, the promises, and what failed with its examples.

use fathom_model::{Example, StepKind, TestRun, UsersSummary, units::grouped};
use maud::{Markup, Render, html};

use super::{overview::mark_class, scrolling, test::PlotFigure};
use crate::{
    plot::funnel::{STEPS_MAX, funnel, step_times},
    steps::{self, PromiseCell, StepCell, StepErrorCause, StepLine, TIMES},
    view::{self, MISSING},
};

/// The examples that a page shows; all are in the JSON document.
const EXAMPLES_MAX: usize = 24;

pub(super) fn section(test: &TestRun) -> Markup {
    let Some(users) = &test.users else { return html! {} };
    let lines = steps::step_lines(test, users);
    html! {
        div.users {
            h3 { "Users, step by step" }
            p.lead { (steps::users_sentence(users)) "." }
            div.pair { (figures(users)) }
            (table(&lines))
            (promises(&lines))
            (failures(&steps::failures(users)))
        }
    }
}

fn figures(users: &UsersSummary) -> Markup {
    let beyond = users.steps.len().saturating_sub(STEPS_MAX);
    let more = if beyond > 0 { format!("; the first {STEPS_MAX} steps, {beyond} more below") } else { String::new() };
    let funnel = PlotFigure {
        class: "",
        title: "Steps reached",
        about: &format!("of the visits that began{more}"),
        plot: funnel(users),
        table: None,
    };
    let times = PlotFigure {
        class: "",
        title: "How long the steps took",
        about: "what went as expected, all rounds",
        plot: step_times(users),
        table: None,
    };
    html! { (funnel.render()) (times.render()) }
}

fn value(cell: &StepCell) -> Markup {
    html! {
        td.n.faint[cell.few] title=[cell.few.then_some("too few samples")] {
            (cell.text)
            @if !cell.interval.is_empty() { span.interval { (cell.interval) } }
        }
    }
}

fn table(lines: &[StepLine<'_>]) -> Markup {
    let table = html! {
        table.steps {
            thead {
                tr {
                    th { "step" } th.n { "reached" } th.n { "share" } th.n { "errors" }
                    @for (title, _) in TIMES { th.n { (title) } }
                }
            }
            tbody {
                @for line in lines {
                    tr.transaction[line.kind == Some(StepKind::Transaction)] .all[line.kind.is_none()] {
                        td { b { (line.name) } }
                        td.n { (line.reached) } td.n { (line.share) }
                        (value(&line.errors))
                        @for cell in &line.times { (value(cell)) }
                    }
                }
            }
        }
    };
    html! {
        (scrolling(&table))
        p.faint.small {
            "Below each value its 95 % interval over the rounds; faint: from too few samples."
            @if lines.iter().any(|line| line.kind == Some(StepKind::Transaction)) { " " (steps::TRANSACTION_WORDS) "." }
        }
    }
}

fn promises(lines: &[StepLine<'_>]) -> Markup {
    let all: Vec<(&str, &PromiseCell<'_>)> =
        lines.iter().flat_map(|line| line.promises.iter().map(|promise| (line.name.as_str(), promise))).collect();
    if all.is_empty() {
        return html! {};
    }
    html! {
        h3 { "What was promised" }
        (scrolling(&html! {
            table.promises {
                thead {
                    tr {
                        th { "step" } th { "promise" } th.n { "result" } th.n { "95 % interval" } th.n { "kept" }
                        th.n { "margin" } th {}
                    }
                }
                tbody {
                    @for (name, promise) in all {
                        tr {
                            td { b { (name) } }
                            td { code { (promise.text) } }
                            td.n.result { (promise.value()) }
                            td.n { (promise.summary.map(view::interval).unwrap_or_default()) }
                            td class=(mark_class(promise.mark)) { (promise.word) }
                            td.n { (if promise.margin.is_empty() { MISSING } else { &promise.margin }) }
                            td.why { (promise.short_reason()) }
                        }
                    }
                }
            }
        }))
    }
}

fn failures(failures: &[StepErrorCause<'_>]) -> Markup {
    if failures.is_empty() {
        return html! {};
    }
    let shown = |place: usize| place < EXAMPLES_MAX;
    html! {
        h3 { "What failed, with an example of each cause" }
        div.failures {
            @for (place, failure) in failures.iter().enumerate() {
                @match failure.example.filter(|_| shown(place)) {
                    Some(example) => details { summary { (words(failure)) } (whole(example)) },
                    None => p.failure { (words(failure)) },
                }
            }
        }
    }
}

fn words(failure: &StepErrorCause<'_>) -> Markup {
    html! { b.times { (grouped(failure.n)) " ×" } " " b { (failure.step) } " " span { (failure.cause) } }
}

fn whole(example: &Example) -> Markup {
    html! {
        div.example {
            div { p.faint { "asked " (example.at_ns) " after the start" } pre { code { (example.request) } } }
            div {
                p.faint { "answered" }
                @if example.answer.is_empty() { p.none { "No answer came." } } @else { pre { code { (example.answer) } } }
            }
        }
    }
}

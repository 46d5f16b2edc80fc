//! The benchmark of one frame size, and the rates of all sizes beside each other.

use fathom_model::{Benchmark, Run, TestRun};
use maud::{Markup, Render as _, html};

use super::{scrolling, test::PlotFigure};
use crate::{
    benchmark::{self, TITLES},
    plot::benchmark::{loss_curve, rates},
};

/// The section of a test; the first one shows the rates of all sizes too.
pub(super) fn section(run: &Run, test: &TestRun) -> Markup {
    let Some(found) = &test.benchmark else { return html! {} };
    let is_first = benchmark::tests(run).next().is_some_and(|(first, _)| first.name == test.name);
    html! {
        @if is_first && benchmark::tests(run).count() > 1 {
            (PlotFigure {
                class: "wide",
                title: "rates by frame size",
                about: "result compared with the maximum possible",
                plot: rates(run),
                table: None,
            }.render())
        }
        (values(found))
        p.way { (benchmark::reference(found)) }
        @if let Some(cut) = &found.cut { p.open { "not finished: " (cut) } }
        (PlotFigure {
            class: "wide",
            title: "frame loss",
            about: "loss as a share of the offered frames; the dotted line is 100 %",
            plot: loss_curve(found),
            table: (!found.loss.is_empty()).then(|| losses(found)),
        }.render())
        @for remark in benchmark::remarks(run).iter().filter(|_| is_first) { p.way { (remark) } }
    }
}

fn values(found: &Benchmark) -> Markup {
    let table = html! {
        table {
            thead { tr { @for title in TITLES { th.n { (title) } } th {} th { "definition" } } }
            tbody {
                @for (line, result) in benchmark::result_lines(found).iter().zip(&found.results) {
                    tr {
                        @for cell in &line.cells { td.n { (cell) } }
                        td.open { @if line.is_irregular { "irregular" } }
                        td.faint { (result.metric.source) }
                    }
                }
            }
        }
    };
    scrolling(&table)
}

fn losses(found: &Benchmark) -> Markup {
    html! {
        table {
            thead { tr { @for title in ["frames", "load", "offered", "lost"] { th.n { (title) } } } }
            tbody { @for cells in benchmark::loss(found) { tr { @for cell in cells { td.n { (cell) } } } } }
        }
    }
}

//! What single packets found out: a route, a path MTU, ports, outages.

use fathom_model::{Run, TestRun};
use maud::{Markup, html};

use super::{overview::mark_class, scrolling};
use crate::probe::{ProbeTable, answers, last_probe_record, sentences, tables};

/// What a person asked, above everything else.
pub(super) fn answered(run: &Run) -> Markup {
    let answers = answers(run);
    if answers.is_empty() {
        return html! {};
    }
    html! {
        section #answers aria-label="answers" {
            dl.facts {
                @for answer in &answers {
                    div { dt { (answer.word) } dd class=(mark_class(answer.mark)) { (answer.text) } }
                }
            }
        }
    }
}

pub(super) fn section(test: &TestRun) -> Markup {
    let Some(probe) = last_probe_record(test) else { return html! {} };
    html! {
        div.probe {
            h3 { "What came back from " (probe.target) }
            @for (sentence, _) in sentences(probe) { p { (sentence) "." } }
            @for shown in tables(probe) {
                (scrolling(&table(&shown)))
                @if let Some(remark) = &shown.remark { p.lead { (remark) "." } }
            }
        }
    }
}

fn table(shown: &ProbeTable) -> Markup {
    html! {
        table {
            thead { tr { @for title in shown.header { th { (title) } } } }
            tbody {
                @for (cells, mark) in &shown.lines {
                    tr { @for cell in cells { td class=(mark_class(*mark)) { (cell) } } }
                }
            }
        }
    }
}

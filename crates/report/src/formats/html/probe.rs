//! What single packets found out: a route, a path MTU, ports, outages.

use fathom_model::TestRun;
use maud::{Markup, html};

use super::{overview::mark_class, scrolling};
use crate::probe::{Table, found, sentences, tables};

pub(super) fn section(test: &TestRun) -> Markup {
    let Some(probe) = found(test) else { return html! {} };
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

fn table(shown: &Table) -> Markup {
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

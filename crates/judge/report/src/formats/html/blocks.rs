//! Converts each block of a document to HTML.

use fathom_model::{Severity, units::grouped};
use maud::{Markup, html};

use super::line_breaks::with_units_kept;
use crate::{
    document::{
        Block, Cell, Column, Fact, Failure, Figure, FindingBlock, Head, Headline, List, Medium, PromiseWords, Row,
        Rung, Section, Sentence, State, Table, Weight,
    },
    plot::share::share,
    words::{MISSING, Mark, used_share},
};

/// The maximum number of examples on a page. The JSON document has all of them.
const EXAMPLES_MAX: usize = 24;

pub(super) fn all(blocks: &[Block<'_>]) -> Markup {
    html! { @for shown in blocks { (block(shown)) } }
}

fn block(shown: &Block<'_>) -> Markup {
    match shown {
        Block::Head(shown) => head(shown),
        Block::State(shown) => state(shown),
        Block::Facts(shown) if shown.is_empty() => html! {},
        Block::Facts(shown) => html! { section #answers aria-label="answers" { (facts(shown)) } },
        Block::Finding(shown) => finding(shown),
        Block::Ladder(rungs) => html! { div.ladder { @for shown in rungs { (rung(shown)) } } },
        Block::Headline(shown) => headline(shown),
        Block::Section(shown) => section(shown),
        Block::Heading(text) => html! { h3 { (text) } },
        Block::Sentence(shown) => sentence(shown),
        Block::List(shown) => list(shown),
        Block::Table(shown) => table(shown),
        Block::Figure(shown) => figure(shown),
        Block::Columns(columns) => html! { div.pair { @for column in columns { div { (all(column)) } } } },
        Block::Fold(shown) => html! {
            details open[shown.is_open] { summary { (shown.summary) } (all(&shown.blocks)) }
        },
        Block::Failures(shown) => failures(shown),
        Block::Code(text) => html! { pre.code { code { (text) } } },
        Block::Only(Medium::Page, inner) => block(inner),
        Block::Only(Medium::Screen, _) | Block::Ending(_) => html! {},
    }
}

fn head(head: &Head) -> Markup {
    html! {
        header {
            p.eyebrow { "fathom" span { (head.id) } }
            h1 { (head.title) }
            // A word breaks only if it is longer than the page, and not behind the hyphens of an option.
            p.command { code { @for word in head.command.split(' ') { span { (word) } " " } } }
            (facts(&[&head.hosts[..], &head.facts].concat()))
        }
    }
}

fn facts(facts: &[Fact]) -> Markup {
    html! {
        dl.facts {
            @for fact in facts { div { dt { (fact.name) } dd class=[mark_class(fact.mark)] { (fact.text) } } }
        }
    }
}

fn state(state: &State) -> Markup {
    html! {
        section class={ "verdict " (mark_class(state.mark).unwrap_or("measured")) } aria-label="verdict" {
            p.word { (state.word) }
            div { @for reason in &state.reasons { p.reason { (with_units_kept(reason)) } } }
        }
    }
}

fn finding(shown: &FindingBlock<'_>) -> Markup {
    let finding = shown.finding;
    html! {
        article.finding.invalid[finding.severity == Severity::Invalidates] id={ "finding-" (finding.id) } {
            @if let Some(label) = &shown.label { p.badge { (label) } }
            h3 { (with_units_kept(&shown.title)) }
            @if let Some(proof) = &shown.proof {
                p.proof { b class=[mark_class(proof.mark)] { (proof.label) } " " (proof.text) }
            }
            @if let Some(next) = &finding.next {
                div.next {
                    p.where { "Next" @if let Some(host) = &next.on { " on " b { (host) } } }
                    pre { code { (next.command) } }
                    @if let Some(expected) = &next.expected { p.expected { "Expected to " (expected.trim_start_matches("to ")) } }
                }
            }
            (table(&shown.evidence))
            p.explains {
                (shown.explains)
                @for (index, test) in shown.tests.iter().enumerate() { @if index > 0 { ", " } (text(test)) }
            }
        }
    }
}

fn rung(shown: &Rung) -> Markup {
    let class = if shown.is_held() { "bar held" } else { "bar" };
    html! {
        a.rung.begins[shown.layer.is_some()] href=[shown.test.link.as_ref().map(|id| format!("#{id}"))] {
            span.layer { (shown.layer.unwrap_or_default()) }
            span.test { (shown.test.text) }
            span.value.missing[shown.value.mark == Mark::Missing] { (shown.value.text) }
            span.track { @if let Some(used) = shown.share { (share(used, class)) } }
            span.used {
                @if let Some(used) = shown.share { b { (with_units_kept(&used_share(used))) } " " }
                (with_units_kept(&shown.limit))
            }
            span.cost { (shown.cost) }
            @if let Some(marker) = &shown.marker { span.marker.faint[!shown.is_held()] { (marker.text) } }
            @for promise in &shown.promises { span.promise { (promise_words(promise)) } }
        }
    }
}

fn headline(shown: &Headline) -> Markup {
    let value = &shown.value;
    html! {
        p.big {
            b { (with_units_kept(&value.result)) }
            @if !value.interval.is_empty() { span { (with_units_kept(&value.interval)) } }
            @if !value.limit.is_empty() {
                span class=[mark_class(value.mark)] {
                    @if !value.used.is_empty() { (value.used) " · " }
                    (with_units_kept(&value.limit))
                }
            }
        }
        @if !shown.beside.is_empty() {
            p.beside { @for (title, value) in &shown.beside { span { (title) b { (with_units_kept(value)) } } } }
        }
        @for promise in &shown.promises { p.promise { (promise_words(promise)) } }
        p.way {
            (shown.way)
            @if let Some(missing) = &shown.missing { " · " b.open { (missing) } }
            @if let Some(marker) = &shown.marker { " · " span.marker.faint[marker.weight == Weight::Faint] { (text(marker)) } }
        }
    }
}

fn promise_words(shown: &PromiseWords) -> Markup {
    html! { (with_units_kept(&shown.text)) ": " b class=[mark_class(shown.mark)] { (shown.word) } }
}

fn section(shown: &Section<'_>) -> Markup {
    html! {
        section.one[shown.layer.is_some()] id=(shown.id) {
            h2 { @if let Some(layer) = shown.layer.filter(|layer| !layer.is_empty()) { span.layer { (layer) } " " } (shown.title) }
            (all(&shown.blocks))
        }
    }
}

fn sentence(shown: &Sentence) -> Markup {
    let class = mark_class(shown.mark).or(shown.is_aside.then_some("aside"));
    html! { p class=[class] { @if shown.mark == Mark::Missing { (MISSING) " " } (with_units_kept(&shown.text)) } }
}

fn list(shown: &List) -> Markup {
    if shown.items.is_empty() {
        return html! {};
    }
    html! {
        @if !shown.title.is_empty() { h3 { (shown.title) } }
        ul.notes {
            @for item in &shown.items {
                li id=[item.id.as_ref()] class=[mark_class(item.mark)] {
                    @if item.id.is_some() { b { (item.label) } " " }
                    @if !item.of.is_empty() { b { (item.of) } " " }
                    (with_units_kept(&item.text))
                }
            }
        }
    }
}

/// A table in its own box, which scrolls if the page is narrow. Empty columns are omitted.
fn table(shown: &Table) -> Markup {
    let is_shown = |only: Option<Medium>| only != Some(Medium::Screen);
    let rows: Vec<&Row> = shown.rows.iter().filter(|row| is_shown(row.only)).collect();
    if rows.is_empty() {
        return html! {};
    }
    let stands = |index: usize| rows.iter().any(|row| row.cells.get(index).is_some_and(|cell| !cell.text.is_empty()));
    let columns: Vec<(usize, &Column)> = shown.columns.iter().enumerate().collect();
    let columns: Vec<(usize, &Column)> = columns
        .into_iter()
        .filter(|(index, column)| is_shown(column.only) && (*index == 0 || stands(*index)))
        .collect();
    html! {
        div.scroll tabindex="0" {
            table class=[(!shown.class.is_empty()).then_some(shown.class)] {
                @if columns.iter().any(|(_, column)| !column.title.is_empty()) {
                    thead { tr { @for (_, column) in &columns { th.n[column.is_number] scope="col" { (column.title) } } } }
                }
                tbody {
                    @for row in rows {
                        tr class=[(!row.class.is_empty()).then_some(row.class)] { (cells(row, &columns)) }
                    }
                }
            }
        }
    }
}

/// The cells of a row. The reason for a missing value spans the empty cells after it.
fn cells(row: &Row, columns: &[(usize, &Column)]) -> Markup {
    let of = |place: usize| columns.get(place).and_then(|(index, _)| row.cells.get(*index));
    let is_empty = |place: usize| of(place).is_none_or(|cell| cell.text.is_empty());
    let is_last = |place: &usize| {
        // A dash alone needs no more room than the value would have.
        of(*place).is_some_and(|cell| cell.mark == Mark::Missing && cell.text != MISSING)
            && (place + 1..columns.len()).all(is_empty)
    };
    let last = (0..columns.len()).find(is_last);
    html! {
        @for (place, (_, column)) in columns.iter().enumerate().take(last.unwrap_or(columns.len())) {
            @match of(place) { Some(of) => (cell(of, column)), None => td {} }
        }
        @if let Some(last) = last {
            td.missing colspan=(columns.len() - last) { (of(last).map(text).unwrap_or_default()) }
        }
    }
}

fn cell(cell: &Cell, column: &Column) -> Markup {
    let classes = [
        column.is_number.then_some("n"),
        mark_class(cell.mark),
        (cell.weight == Weight::Strong).then_some("strong"),
        (cell.weight == Weight::Faint).then_some("faint"),
    ];
    let class = classes.into_iter().flatten().collect::<Vec<_>>().join(" ");
    html! {
        td class=[(!class.is_empty()).then_some(class)] title=[(!cell.hint.is_empty()).then_some(&cell.hint)] {
            @if let Some(key) = &cell.key { (key.markup()) }
            (text(cell))
            @if !cell.below.is_empty() { span.interval { (cell.below) } }
        }
    }
}

/// The text of a cell, as a link if it has a target.
fn text(cell: &Cell) -> Markup {
    let text = with_units_kept(&cell.text);
    html! { @if let Some(id) = &cell.link { a href={ "#" (id) } { (text) } } @else { (text) } }
}

fn figure(shown: &Figure<'_>) -> Markup {
    html! {
        figure.wide[shown.is_wide] {
            figcaption { b { (shown.title) } @if !shown.about.is_empty() { span { (shown.about) } } }
            @match (shown.drawing)() {
                Ok(drawing) => div.drawing { (drawing) },
                Err(why) => p.aside { (why) },
            }
            @if let Some(numbers) = shown.table.as_ref().filter(|table| !table.rows.is_empty()) {
                details { summary { "as a table" } (table(numbers)) }
            }
        }
    }
}

fn failures(failures: &[Failure<'_>]) -> Markup {
    let words = |failure: &Failure<'_>| {
        html! { b.times { (grouped(failure.n)) " ×" } " " b { (failure.step) } " " span { (failure.cause) } }
    };
    html! {
        @if !failures.is_empty() {
            h3 { "What failed, with an example of each cause" }
            div.failures {
                @for (place, failure) in failures.iter().enumerate() {
                    @match failure.example.filter(|_| place < EXAMPLES_MAX) {
                        Some(example) => details { summary { (words(failure)) } (whole(example)) },
                        None => p.failure { (words(failure)) },
                    }
                }
            }
        }
    }
}

fn whole(example: &fathom_model::Example) -> Markup {
    html! {
        div.example {
            div { p.faint { "asked " (example.at_ns) " after the start" } pre { code { (example.request) } } }
            div {
                p.faint { "answered" }
                @if example.answer.is_empty() { p.aside { "No answer came." } } @else { pre { code { (example.answer) } } }
            }
        }
    }
}

/// Returns the CSS class that colors a mark.
const fn mark_class(mark: Mark) -> Option<&'static str> {
    match mark {
        Mark::Plain => None,
        Mark::Kept => Some("kept"),
        Mark::Broken => Some("broken"),
        Mark::Open => Some("open"),
        Mark::Missing => Some("missing"),
    }
}

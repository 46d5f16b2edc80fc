//! Errors and warnings of a scenario, with their place and the fix.

use std::fmt::Write as _;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::ast::Span;

/// Whether a scenario can still run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The scenario cannot run.
    Error,
    /// It runs, but probably not as intended.
    Warning,
}

/// One error or warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// The message, in lower case and without a full stop.
    pub message: String,
    pub span: Span,
    /// The text under the marked place; empty if the message says everything.
    pub label: String,
    /// What to write instead.
    pub fix: Option<String>,
    /// A related place with its description.
    pub other: Option<(Span, String)>,
}

/// More than a person reads at once; the rest is reported when these are fixed.
pub(super) const FAULTS_MAX: usize = 100;

/// The candidate that resembles a word; a word too long for a typing error resembles none.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    /// A comparison takes the product of the two lengths, for each candidate.
    const LENGTH_MAX: usize = 64;
    const CANDIDATES_MAX: usize = 1000;
    let candidates = candidates.into_iter().filter(|other| other.len() <= LENGTH_MAX).take(CANDIDATES_MAX);
    if word.len() > LENGTH_MAX { None } else { fathom_model::settings::nearest(word, candidates) }
}

/// The error of a function that cannot continue.
pub(super) type BoxedDiagnostic = Box<Diagnostic>;

impl Diagnostic {
    #[must_use]
    pub fn error(span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, message: message.into(), span, label: String::new(), fix: None, other: None }
    }

    pub(super) fn warning(span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(span, message) }
    }

    /// Sets the text under the marked place.
    pub(super) fn label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Adds what to write instead.
    #[must_use]
    pub fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    /// Suggests the word that was probably meant.
    pub(super) fn suggest(self, nearest: Option<String>) -> Self {
        let fix = nearest.map(|near| format!("did you mean `{near}`?")).or(self.fix);
        Self { fix, ..self }
    }

    /// Adds a related place.
    pub(super) fn other(self, span: Span, label: impl Into<String>) -> Self {
        Self { other: Some((span, label.into())), ..self }
    }

    pub(super) fn boxed(self) -> BoxedDiagnostic {
        Box::new(self)
    }

    /// The line and the column of its place, both from 1, the column in characters.
    #[must_use]
    pub fn line_and_column(&self, text: &str) -> (usize, usize) {
        let start = before(text, self.span.start);
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

/// The nearest character boundary at or before `at`.
fn before(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at.min(text.len()))
}

/// Of longer lines only the surroundings of the place are shown.
const SHOWN_MAX: usize = 160;

/// The shown part of a line, its offset in the text, and the line number.
struct Excerpt<'a> {
    text: &'a str,
    start: usize,
    line: usize,
}

impl<'a> Excerpt<'a> {
    fn around(text: &'a str, span: Span) -> Self {
        let at = before(text, span.start);
        let line_start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[at..].find('\n').map_or(text.len(), |newline| at + newline);
        let start = if at - line_start > SHOWN_MAX { before(text, at - SHOWN_MAX / 2) } else { line_start };
        let end = before(text, line_end.min(start + 2 * SHOWN_MAX));
        Self { text: &text[start..end], start, line: text[..line_start].matches('\n').count() + 1 }
    }

    fn range(&self, span: Span) -> std::ops::Range<usize> {
        let start = before(self.text, span.start.saturating_sub(self.start));
        start..before(self.text, span.end.saturating_sub(self.start).max(start))
    }

    fn snippet(
        &self,
        path: &'a str,
        span: Span,
        label: &'a str,
        kind: AnnotationKind,
    ) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
        let annotation = kind.span(self.range(span));
        let annotation = if label.is_empty() { annotation } else { annotation.label(label) };
        Snippet::source(self.text).line_start(self.line).path(path).annotation(annotation)
    }
}

/// Formats diagnostics with their lines, one block of text for each.
#[must_use]
pub fn render(diagnostics: &[Diagnostic], path: &str, text: &str) -> String {
    let renderer = Renderer::plain().term_width(120);
    diagnostics.iter().fold(String::new(), |mut all, diagnostic| {
        let excerpt = Excerpt::around(text, diagnostic.span);
        let level = match diagnostic.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let main = excerpt.snippet(path, diagnostic.span, &diagnostic.label, AnnotationKind::Primary);
        let mut groups: Vec<Group<'_>> = vec![level.primary_title(&diagnostic.message).element(main)];
        let other = diagnostic.other.as_ref().map(|(span, label)| (Excerpt::around(text, *span), *span, label));
        if let Some((excerpt, span, label)) = &other {
            let snippet = excerpt.snippet(path, *span, "", AnnotationKind::Primary);
            groups.push(Level::NOTE.secondary_title(label.as_str()).element(snippet));
        }
        if let Some(fix) = &diagnostic.fix {
            groups.push(Group::with_title(Level::HELP.secondary_title(fix)));
        }
        // Writing to a String cannot fail.
        let _ = writeln!(all, "{}\n", renderer.render(&groups));
        all
    })
}

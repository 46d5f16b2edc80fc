//! Reads a line from left to right: words, texts with holes, regular expressions, JSON paths. Knows no statements.

use std::str::FromStr;

use fathom_model::units::{Nanos, UnitError};

use super::super::{
    ast::{Comment, Name, Span, Spanned},
    diagnostic::{BoxedDiagnostic, Diagnostic},
};

/// The rest of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    /// The whole text of the scenario.
    pub(super) text: &'a str,
    pub(super) at: usize,
    pub(super) end: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str, span: Span) -> Self {
        Self { text, at: span.start, end: span.end }
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..self.end]
    }

    pub(super) fn skip_blanks(&mut self) {
        self.at = self.end - self.rest().trim_start().len();
    }

    /// A `#` after a blank begins a comment.
    pub(super) fn is_at_comment(&self) -> bool {
        self.rest().starts_with('#') && self.text[..self.at].chars().next_back().is_none_or(char::is_whitespace)
    }

    /// Whether nothing is left but a comment.
    pub(super) fn is_done(&mut self) -> bool {
        self.skip_blanks();
        self.rest().is_empty() || self.is_at_comment()
    }

    /// The place of the next token: a word, or the end of the line.
    pub(super) fn here(&mut self) -> Span {
        let mut ahead = *self;
        ahead.word().map_or_else(|| (self.at.saturating_sub(1)..self.at).into(), |word| word.span)
    }

    /// Ends a statement: returns the comment after it, or an error about the rest.
    pub(super) fn finish(&mut self) -> Result<Option<Comment>, BoxedDiagnostic> {
        if !self.is_done() {
            let span = Span { start: self.at, end: self.end };
            return Err(Diagnostic::error(span, "the line has more words than it can have")
                .label("not understood")
                .fix("leave it out, or put a text with blanks between quotes")
                .boxed());
        }
        let span = Span { start: self.at, end: self.end };
        let comment = self.rest().strip_prefix('#').map(|text| text.strip_prefix(' ').unwrap_or(text).to_owned());
        self.at = self.end;
        Ok(comment.map(|text| Comment { text, span }))
    }

    /// The next word, up to a blank.
    pub(super) fn word(&mut self) -> Option<Name> {
        if self.is_done() {
            return None;
        }
        let left = self.rest();
        let length = left.find(char::is_whitespace).unwrap_or(left.len());
        let span = Span { start: self.at, end: self.at + length };
        self.at += length;
        Some(Name { text: left[..length].to_owned(), span })
    }

    /// Takes the next word if it is this one.
    pub(super) fn keyword(&mut self, keyword: &str) -> Option<Span> {
        let mut ahead = *self;
        let word = ahead.word().filter(|word| word.text == keyword)?;
        *self = ahead;
        Some(word.span)
    }

    /// The next word, which must exist.
    pub(super) fn need(&mut self, what: &str) -> Result<Name, BoxedDiagnostic> {
        self.word().ok_or_else(|| self.missing(what))
    }

    /// The error of a missing token.
    pub(super) fn missing(&mut self, what: &str) -> BoxedDiagnostic {
        Diagnostic::error(self.here(), format!("{what} is missing here")).boxed()
    }

    /// Words up to the end of the line, with one blank between them.
    pub(super) fn words(&mut self, what: &str) -> Result<Name, BoxedDiagnostic> {
        let mut all = self.need(what)?;
        while let Some(word) = self.word() {
            all.text.push(' ');
            all.text.push_str(&word.text);
            all.span.end = word.span.end;
        }
        Ok(all)
    }

    /// Parses a word as a time.
    pub(super) fn time(&mut self, what: &str) -> Result<Spanned<Nanos>, BoxedDiagnostic> {
        let word = self.need(what)?;
        time(&word)
    }

    /// Parses a word as a whole number of at least `min`.
    pub(super) fn count(&mut self, what: &str, min: u64) -> Result<Spanned<u64>, BoxedDiagnostic> {
        let word = self.need(what)?;
        count(&word, min)
    }

    /// The character after a backslash.
    pub(super) fn escaped(&mut self) -> Result<&'static str, BoxedDiagnostic> {
        let next = self.rest().chars().next();
        let text = match next {
            Some('"') => "\"",
            Some('\\') => "\\",
            Some('n') => "\n",
            Some('r') => "\r",
            Some('t') => "\t",
            _ => {
                let end = self.at + next.map_or(0, char::len_utf8);
                return Err(Diagnostic::error((self.at - 1..end).into(), "no such escape")
                    .fix("there are \\\" \\\\ \\n \\r and \\t; a backslash itself is written \\\\")
                    .boxed());
            }
        };
        self.at += 1;
        Ok(text)
    }

    /// A regular expression between slashes, which must compile.
    pub(super) fn regex(&mut self) -> Result<Name, BoxedDiagnostic> {
        if self.is_done() || !self.rest().starts_with('/') {
            return Err(Diagnostic::error(self.here(), "a regular expression is missing here")
                .fix("put it between slashes: /id=(\\d+)/")
                .boxed());
        }
        let start = self.at;
        let (mut text, mut chars) = (String::new(), self.rest().char_indices().skip(1));
        let length = loop {
            match chars.next() {
                Some((at, '/')) => break at,
                Some((_, '\\')) => match chars.next() {
                    Some((_, '/')) => text.push('/'),
                    Some((_, other)) => text.extend(['\\', other]),
                    None => text.push('\\'),
                },
                Some((_, other)) => text.push(other),
                None => {
                    return Err(Diagnostic::error((start..self.end).into(), "this regular expression is not closed")
                        .fix("put a `/` after it; write a `/` within it as `\\/`")
                        .boxed());
                }
            }
        };
        self.at += length + 1;
        let span = Span { start, end: self.at };
        match regex::bytes::RegexBuilder::new(&text).size_limit(REGEX_SIZE_MAX).build() {
            Ok(_) => Ok(Name { text, span }),
            Err(error) => {
                let why = error.to_string();
                let why = why
                    .lines()
                    .last()
                    .unwrap_or_default()
                    .trim_start_matches("error: ")
                    .trim_end_matches('.')
                    .to_owned();
                Err(Diagnostic::error(span, "this is not a regular expression").label(why).boxed())
            }
        }
    }

    /// A JSON path, which may have blanks within brackets and quotes.
    pub(super) fn json_path(&mut self) -> Result<Name, BoxedDiagnostic> {
        if self.is_done() {
            return Err(self.missing("a JSON path such as `$.token`"));
        }
        let (start, mut depth, mut quote) = (self.at, 0_usize, None);
        let mut chars = self.rest().char_indices();
        let length = loop {
            match (chars.next(), quote) {
                (None, _) => break self.rest().len(),
                (Some((_, '\\')), Some(_)) => {
                    chars.next();
                }
                (Some((_, c)), Some(open)) if c == open => quote = None,
                (Some((_, c @ ('"' | '\''))), None) => quote = Some(c),
                (Some((at, '[' | '(')), None) => {
                    depth += 1;
                    if depth > PATH_DEPTH_MAX {
                        let span = start..start + at + 1;
                        return Err(Diagnostic::error(span.into(), "too many brackets within each other").boxed());
                    }
                }
                (Some((_, ']' | ')')), None) => depth = depth.saturating_sub(1),
                (Some((at, c)), None) if depth == 0 && c.is_whitespace() => break at,
                _ => {}
            }
        };
        self.at += length;
        let name = Name { text: self.text[start..self.at].to_owned(), span: (start..self.at).into() };
        match serde_json_path::JsonPath::parse(&name.text) {
            Ok(_) => Ok(name),
            Err(error) => {
                let at = name.span.start + error.position().min(length);
                let fault = Diagnostic::error((at..name.span.end).into(), "this is not a JSON path");
                let is_bare = name.text.starts_with(['.', '[']);
                let fix = if is_bare {
                    format!("it begins with `$`: ${}", name.text)
                } else {
                    "such as $.items[0].id".to_owned()
                };
                Err(fault.fix(fix).boxed())
            }
        }
    }
}

/// Deeper paths serve no practical purpose, and their parser is slow for each bracket.
const PATH_DEPTH_MAX: usize = 8;
/// The compiled size limit of a regular expression. The library's own limit is ten times that, and takes half a second to reach.
const REGEX_SIZE_MAX: usize = 1 << 20;

/// Parses a word as a quantity.
pub(super) fn quantity<T: FromStr<Err = UnitError>>(word: &Name) -> Result<Spanned<T>, BoxedDiagnostic> {
    match word.text.parse() {
        _ if word.text.is_empty() => {
            Err(Diagnostic::error(word.span, "a number with its unit is missing here").boxed())
        }
        Ok(value) => Ok(Spanned { value, text: word.text.clone(), span: word.span }),
        Err(error) => Err(Diagnostic::error(word.span, error.to_string()).boxed()),
    }
}

/// Parses a word as a time with its unit.
pub(super) fn time(word: &Name) -> Result<Spanned<Nanos>, BoxedDiagnostic> {
    has_unit(&word.text, word.span)?;
    quantity(word)
}

/// Rejects a time without a unit: some read it as seconds, others as milliseconds.
pub(super) fn has_unit(time: &str, span: Span) -> Result<(), BoxedDiagnostic> {
    let is_bare = time.bytes().all(|byte| byte.is_ascii_digit() || b"._".contains(&byte));
    if time.is_empty() || !is_bare {
        return Ok(());
    }
    let fault = Diagnostic::error(span, format!("the time `{time}` has no unit"));
    Err(fault.fix(format!("did you mean `{time}s`?")).boxed())
}

/// Parses a word as a whole number of at least `min`.
pub(super) fn count(word: &Name, min: u64) -> Result<Spanned<u64>, BoxedDiagnostic> {
    match word.text.replace('_', "").parse() {
        Ok(value) if value >= min => Ok(Spanned { value, text: word.text.clone(), span: word.span }),
        _ => {
            Err(Diagnostic::error(word.span, format!("`{}` is not a whole number of at least {min}", word.text))
                .boxed())
        }
    }
}

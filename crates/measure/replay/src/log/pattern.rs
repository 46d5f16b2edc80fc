//! A format of lines as nginx's `log_format` says it: text with variables.

use std::borrow::Cow;

use memchr::memmem;

use super::{
    unescape::unescape,
    values::{Field, LoggedValues},
    variables::Variable,
};

/// What is wrong with the text of a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogFormatError {
    #[error("no text stands between two variables before \"{0}\", so their values cannot be told apart")]
    Adjacent(String),
    #[error("the name of a variable is missing after $ before \"{0}\"")]
    Unnamed(String),
    #[error("it has no request: $request, or $request_method and $request_uri")]
    NoRequest,
    #[error("it has no time: $time_local, $time_iso8601, $msec or $start_time")]
    NoTime,
    #[error("its quotes are not closed")]
    Quotes,
    #[error("it has an escape other than default, json and none: \"{0}\"")]
    Escape(String),
}

/// Whether the values of a line have escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escaping {
    Backslash,
    None,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    variable: Variable,
    /// The text after its value, up to the next one.
    after: Vec<u8>,
}

/// Text with variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) text: String,
    escaping: Escaping,
    before: Vec<u8>,
    parts: Vec<Part>,
}

impl Pattern {
    /// Reads text with variables, or a whole directive `log_format NAME [escape=…] 'TEXT' …;`.
    pub(super) fn from_user(text: &str) -> Result<Self, LogFormatError> {
        let Some(directive) = text.trim_start().strip_prefix("log_format ") else {
            return Self::new(text, Escaping::Backslash);
        };
        let words = shlex::split(directive.trim_end().trim_end_matches(';')).ok_or(LogFormatError::Quotes)?;
        let mut words = words.into_iter().skip(1).peekable();
        let escape = words.next_if(|word| word.starts_with("escape="));
        let escaping = match escape.as_deref() {
            None | Some("escape=default" | "escape=json") => Escaping::Backslash,
            Some("escape=none") => Escaping::None,
            Some(other) => return Err(LogFormatError::Escape(other.to_owned())),
        };
        Self::new(&words.collect::<String>(), escaping)
    }

    pub(super) fn new(text: &str, escaping: Escaping) -> Result<Self, LogFormatError> {
        let mut pieces = text.split('$');
        let before = pieces.next().unwrap_or_default().as_bytes().to_vec();
        let mut parts: Vec<Part> = Vec::new();
        for piece in pieces {
            if parts.last().is_some_and(|part| part.after.is_empty()) {
                return Err(LogFormatError::Adjacent(format!("${piece}")));
            }
            let (name, after) = variable(piece).ok_or_else(|| LogFormatError::Unnamed(piece.to_owned()))?;
            parts.push(Part { variable: Variable::named(name), after: after.as_bytes().to_vec() });
        }
        let has = |is: fn(&Variable) -> bool| parts.iter().any(|part| is(&part.variable));
        if !has(Variable::is_request) {
            return Err(LogFormatError::NoRequest);
        }
        if !has(Variable::is_time) {
            return Err(LogFormatError::NoTime);
        }
        Ok(Self { text: text.to_owned(), escaping, before, parts })
    }

    /// Returns the values of a line, or `None` if it is not in this format.
    pub(super) fn read<'a>(&'a self, line: &'a [u8]) -> Option<LoggedValues<'a>> {
        let mut rest = line.strip_prefix(&self.before[..])?;
        let mut values = LoggedValues::default();
        let n_parts = self.parts.len();
        for (place, part) in self.parts.iter().enumerate() {
            let length = if part.after.is_empty() { rest.len() } else { self.find(rest, &part.after)? };
            let (value, after) = rest.split_at(length);
            rest = &after[part.after.len()..];
            if place + 1 == n_parts && !rest.is_empty() {
                return None;
            }
            let value = match self.escaping {
                Escaping::Backslash => unescape(value),
                Escaping::None => Cow::Borrowed(value),
            };
            take(&mut values, &part.variable, value)?;
        }
        Some(values)
    }

    /// The place of the text after a value, which has no escape before it.
    fn find(&self, rest: &[u8], after: &[u8]) -> Option<usize> {
        let is_escaped = |place: &usize| {
            let n_backslashes = rest[..*place].iter().rev().take_while(|byte| **byte == b'\\').count();
            self.escaping == Escaping::Backslash && n_backslashes % 2 == 1
        };
        memmem::find_iter(rest, after).find(|place| !is_escaped(place))
    }
}

/// Puts a value in its place, unless it has not the form of the variable.
fn take<'a>(values: &mut LoggedValues<'a>, variable: &'a Variable, value: Cow<'a, [u8]>) -> Option<()> {
    match variable {
        Variable::Field(field, rank) => {
            if !field.accepts(&value) {
                return None;
            }
            values.set(*field, *rank, value);
        }
        Variable::Header(name) => values.add_header(Cow::Borrowed(name), value),
        Variable::Forwarded(name) => {
            values.set(Field::Forwarded, 0, value.clone());
            values.add_header(Cow::Borrowed(name), value);
        }
        Variable::Other => {}
    }
    Some(())
}

/// Divides `name…` or `{name}…` into the name and the text after it.
fn variable(piece: &str) -> Option<(&str, &str)> {
    if let Some(braced) = piece.strip_prefix('{') {
        return braced.split_once('}').filter(|(name, _)| !name.is_empty());
    }
    let end = piece.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(piece.len());
    (end > 0).then(|| piece.split_at(end))
}

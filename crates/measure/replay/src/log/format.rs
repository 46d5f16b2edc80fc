//! The formats of lines, and how one is recognised.

use std::{fmt, str::FromStr};

use super::{
    counts::LineFate,
    json,
    pattern::{LogFormatError, Pattern},
    request::{self, BodiesNotLogged, LoggedRequest},
    servers,
};

/// The format of the lines of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFormat(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Text(Pattern),
    /// Each line is a JSON object whose members have names that are known.
    Json,
}

impl LogFormat {
    /// Returns the format of most of the lines, the one that says the most of them first; `None` if it is that of less than a half.
    pub(super) fn recognise<'a>(lines: &(impl Iterator<Item = &'a [u8]> + Clone)) -> Option<Self> {
        let n_lines = lines.clone().filter(|line| !line.is_empty()).count();
        let mut best = (n_lines / 2, None);
        for format in std::iter::once(Kind::Json).chain(servers::FORMATS.iter().cloned().map(Kind::Text)).map(Self) {
            let n = lines.clone().filter(|line| format.is_of(line)).count();
            if n > best.0 {
                best = (n, Some(format));
            }
        }
        best.1
    }

    /// Whether a line is in this format.
    pub(super) fn is_of(&self, line: &[u8]) -> bool {
        let other = [LineFate::OtherFormat, LineFate::NoTime, LineFate::Empty];
        !matches!(self.read(line, BodiesNotLogged::Empty), Err(fate) if other.contains(&fate))
    }

    /// Returns the request of a line, or what else became of the line.
    pub(super) fn read(&self, line: &[u8], bodies: BodiesNotLogged) -> Result<LoggedRequest, LineFate> {
        if line.is_empty() {
            return Err(LineFate::Empty);
        }
        match &self.0 {
            Kind::Text(pattern) => request::build(&pattern.read(line).ok_or(LineFate::OtherFormat)?, bodies),
            Kind::Json => read_json(line, bodies),
        }
    }
}

fn read_json(line: &[u8], bodies: BodiesNotLogged) -> Result<LoggedRequest, LineFate> {
    let text = String::from_utf8_lossy(line);
    let values = json::read(&text).ok_or(LineFate::OtherFormat)?;
    if !values.is_of_request() {
        return Err(LineFate::OtherFormat);
    }
    let request = request::build(&values, bodies)?;
    // nginx writes bytes above 127 as they are: what was sent cannot be told from text that is not UTF-8.
    if line.len() == text.len() && line == text.as_bytes() { Ok(request) } else { Err(LineFate::Malformed) }
}

impl FromStr for LogFormat {
    type Err = LogFormatError;

    /// Reads the text of nginx's `log_format`, or the whole directive.
    fn from_str(text: &str) -> Result<Self, LogFormatError> {
        Pattern::from_user(text).map(|pattern| Self(Kind::Text(pattern)))
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Text(pattern) => &pattern.text,
            Kind::Json => "one JSON object a line",
        })
    }
}

//! The formats of lines, and how one is recognised.

use std::{fmt, str::FromStr};

use super::{
    counts::LineFate,
    docker::Wrapping,
    json,
    pattern::{LogFormatError, Pattern},
    request::{self, BodiesNotLogged, LoggedRequest},
    servers,
};

/// The format of the lines of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFormat {
    kind: Kind,
    wrapping: Wrapping,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Text(Pattern),
    /// Each line is a JSON object whose members have names that are known.
    Json,
}

impl LogFormat {
    /// Returns the format of most of the lines, the one that says the most of them first; `None` if it is that of less than a half.
    pub(super) fn recognise<'a>(lines: &(impl Iterator<Item = &'a [u8]> + Clone), wrapping: Wrapping) -> Option<Self> {
        let n_lines = lines.clone().filter(|line| !line.is_empty()).count();
        let mut best = (n_lines / 2, None);
        for kind in std::iter::once(Kind::Json).chain(servers::FORMATS.iter().cloned().map(Kind::Text)) {
            let format = Self { kind, wrapping };
            let n = lines.clone().filter(|line| format.is_of(line)).count();
            if n > best.0 {
                best = (n, Some(format));
            }
        }
        best.1
    }

    /// The same format, of lines that are wrapped so.
    pub(super) fn wrapped_as(&self, wrapping: Wrapping) -> Self {
        Self { wrapping, ..self.clone() }
    }

    /// Whether a line of a program is in this format.
    pub(super) fn is_of(&self, line: &[u8]) -> bool {
        let other = [LineFate::OtherFormat, LineFate::NoTime, LineFate::Empty];
        !matches!(self.read(line, BodiesNotLogged::Empty), Err(fate) if other.contains(&fate))
    }

    /// Returns the request of a line of a program, or what else became of the line.
    pub(super) fn read(&self, line: &[u8], bodies: BodiesNotLogged) -> Result<LoggedRequest, LineFate> {
        if line.is_empty() {
            return Err(LineFate::Empty);
        }
        if self.wrapping.has_replaced(line) {
            return Err(LineFate::Malformed);
        }
        match &self.kind {
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
        Pattern::from_user(text).map(|pattern| Self { kind: Kind::Text(pattern), wrapping: Wrapping::Bare })
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::Text(pattern) => &pattern.text,
            Kind::Json => "one JSON object a line",
        })?;
        f.write_str(match self.wrapping {
            Wrapping::Bare => "",
            Wrapping::Docker => ", in the objects of Docker's json-file",
        })
    }
}

//! Faults of a line: what is wrong, where, and how to fix it.

use std::{fmt, ops::Range};

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use super::super::header::{FieldSpec, HeaderSpec, Notation};

/// A byte range of a line.
pub type TextSpan = Range<usize>;

/// Why a line describes no frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameSpecError {
    pub text: String,
    /// The faulty bytes.
    pub span: TextSpan,
    pub fault: SpecFault,
}

/// A fault and its position, without the text of the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::craft) struct LocatedFault {
    pub(in crate::craft) span: TextSpan,
    pub(in crate::craft) fault: Box<SpecFault>,
}

/// A fault in a part of a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "their texts say what they are")]
pub enum SpecFault {
    #[error("the line has more than {0} bytes")]
    TooLong(usize),
    #[error("there are more than {0} headers")]
    TooMany(usize),
    #[error("there is no header `{word}`")]
    NoHeader { word: String, nearest: Option<String> },
    #[error("a header is missing")]
    Empty,
    #[error("{header} has no `{word}`")]
    NoField { header: &'static str, word: String, nearest: Option<String> },
    #[error("`{0}` needs a value")]
    NoValue(String),
    #[error("{header} takes no value without a word in front")]
    NoFirst { header: &'static str },
    #[error("{header} has no `>`")]
    NoPair { header: &'static str },
    #[error("`{given}` is not {expected}")]
    NotValue { given: String, expected: &'static str },
    #[error("`{word}` is at most {max}")]
    TooGreat { word: &'static str, max: String },
    #[error("the range ends before it begins")]
    Backwards,
    #[error("a range has at most 2^32 values")]
    TooWide,
    #[error("a range of IPv6 addresses keeps the upper half of the address")]
    UpperHalf,
    #[error("a step is at least 1, and no longer than the range before it")]
    Step,
    #[error("`?` takes a random value of a range, but `{0}` has no range of its own")]
    NoRange(&'static str),
    #[error("a random range has no steps")]
    RandomSteps,
    #[error("`each` must follow a range")]
    Each,
    #[error("`{0}` is given twice")]
    Twice(String),
    #[error("`{0}` and `{1}` share bits")]
    Overlap(&'static str, &'static str),
    #[error("`{0}` and `{1}` share a byte, so only one of them can be a range")]
    SharedByte(&'static str, &'static str),
    #[error("`{0}` is not bytes in hexadecimal")]
    NotHex(String),
    #[error("{header} has room for {max} bytes of options, not {given}")]
    Options { header: &'static str, max: usize, given: usize },
    #[error("the text has no closing quotation mark")]
    Unclosed,
    #[error("there is no such escape")]
    Escape,
    #[error("nothing follows the payload")]
    AfterPayload,
    #[error("{inner} cannot be inside {outer}")]
    Order { inner: &'static str, outer: &'static str },
    #[error("{header} needs {what}, but the device or the target has none")]
    NoAddress { header: &'static str, what: &'static str },
    #[error("more than {0} fields change")]
    TooManyChanges(usize),
    #[error("more than {0} checksums change")]
    TooManyChecksums(usize),
    #[error("{n_flows} flows would all be alike")]
    Alike { n_flows: u32 },
}

impl SpecFault {
    pub(in crate::craft) fn at(self, span: TextSpan) -> LocatedFault {
        LocatedFault { span, fault: Box::new(self) }
    }

    pub(super) fn not_a_value(given: &str, field: &FieldSpec) -> Self {
        Self::NotValue { given: given.to_owned(), expected: field.notation.expected() }
    }

    /// Returns what to write instead, if that is known.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        let meant = |near: &String| format!("did you mean `{near}`?");
        Some(match self {
            Self::NoHeader { nearest: Some(near), .. } | Self::NoField { nearest: Some(near), .. } => meant(near),
            Self::NoHeader { word, .. } if word.starts_with(|first: char| first.is_ascii_digit()) => {
                "write `/` with spaces between headers, and without spaces in a subnet: 10.0.0.0/24".to_owned()
            }
            Self::NoHeader { .. } | Self::Empty => format!("there are {}, and payload", HeaderSpec::words()),
            Self::NoField { header, .. } => format!("{header} has {}", HeaderSpec::find(header)?.vocabulary()),
            Self::NoFirst { header } | Self::NoPair { header } => {
                format!("write a word in front: {}", HeaderSpec::find(header)?.vocabulary())
            }
            Self::NotValue { given, .. } if given.contains('/') => {
                "put spaces around the `/` between headers".to_owned()
            }
            Self::Backwards => "write the lower end first".to_owned(),
            Self::UpperHalf => "let only the last four groups differ".to_owned(),
            Self::Step => "write FIRST-LAST+STEP".to_owned(),
            Self::NoRange(_) => "write the range in front: FIRST-LAST?".to_owned(),
            Self::RandomSteps => "leave out either `+` or `?`".to_owned(),
            Self::Each => "write FIRST-LAST each, or FIRST-LAST? each".to_owned(),
            Self::NotHex(_) => "write two digits for each byte, without spaces: 0a1b2c".to_owned(),
            Self::Escape => r#"there are \n, \r, \t, \0, \\, \" and \xHH"#.to_owned(),
            Self::AfterPayload => "write the payload last".to_owned(),
            Self::NoAddress { header, .. } => format!("write both: {header} SOURCE > DESTINATION"),
            Self::Order { inner: "hop" | "dest" | "route" | "frag", .. } => "write `ip6` before it".to_owned(),
            Self::Alike { .. } => "let a field step or be random, such as `udp 1024-65535?`".to_owned(),
            Self::SharedByte(..) => "give one of them a single value".to_owned(),
            _ => return None,
        })
    }
}

impl LocatedFault {
    pub(in crate::craft) fn of(self, line: &str) -> FrameSpecError {
        FrameSpecError { text: line.to_owned(), span: self.span, fault: *self.fault }
    }
}

impl Notation {
    const fn expected(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Mac => "an address such as 02:00:00:00:00:01",
            Self::Ipv4 => "an address such as 198.18.0.1",
            Self::Ipv6 => "an address such as 2001:db8::1",
            Self::TcpFlags => "a number or some of the letters F S R P A U E C",
        }
    }
}

impl FrameSpecError {
    /// Returns what to write instead, if that is known.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        self.fault.fix()
    }
}

impl fmt::Display for FrameSpecError {
    /// Prints the fault, and the line with the place marked in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.text.as_str();
        let start = line.floor_char_boundary(self.span.start.min(line.len()));
        let end = line.floor_char_boundary(self.span.end.clamp(start, line.len()));
        let snippet = Snippet::source(line).path("frame").annotation(AnnotationKind::Primary.span(start..end));
        let shown = Renderer::plain().term_width(120).render(&[Level::ERROR.primary_title("").element(snippet)]);
        // Drops the title, because the fault takes its place.
        let shown = shown.split_once('\n').map_or("", |(_, rest)| rest);
        write!(f, "{}\n{shown}", self.fault)
    }
}

impl std::error::Error for FrameSpecError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_marked_in_the_line() {
        let error = SpecFault::NoHeader { word: "vlna".to_owned(), nearest: Some("vlan".to_owned()) };
        let error = error.at(6..10).of("eth / vlna 5");
        let shown = "there is no header `vlna`\n --> frame:1:7\n  |\n1 | eth / vlna 5\n  |       ^^^^";
        assert_eq!(error.to_string(), shown);
        assert_eq!(error.fix().as_deref(), Some("did you mean `vlan`?"));
    }
}

//! Examines answers: takes values from them, and checks expectations.

use std::{fmt::Write as _, time::Duration};

use fathom_model::units::Nanos;
use memchr::memmem;
use regex::bytes::{CaptureLocations, Regex};

use super::{
    cookies,
    json::{JsonPointer, JsonReadError},
    message::HttpMessage,
    text::{CompiledText, TextContext, ValueScope},
    unpack::BodyError,
};
use crate::ast::{self, CompareOp, MatchPick, StatusPattern};

/// An answer with all its data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerView<'m> {
    pub(crate) status: u16,
    pub(crate) message: HttpMessage<'m>,
    /// The decoded body; the received bytes if no check reads it.
    pub(crate) body: Result<&'m [u8], BodyError>,
    /// From the first byte of the request to the last one of the answer.
    pub(crate) took: Nanos,
}

/// Finds a value in an answer.
#[derive(Debug, Clone)]
pub(crate) enum Finder {
    Json(JsonPointer),
    Header(String),
    Regex { regex: Regex, groups: CaptureLocations, is_in_head: bool },
    Between { before: Box<[u8]>, after: Box<[u8]>, is_in_head: bool },
    Cookie(String),
    Status,
    Body,
}

/// A value to be kept.
#[derive(Debug, Clone)]
pub(crate) struct CompiledTake {
    pub(crate) slot: u16,
    pub(crate) finder: Finder,
    pub(crate) pick: MatchPick,
    pub(crate) default: Option<CompiledText>,
    /// The message if nothing is found.
    pub(crate) cause: String,
}

/// The value that a test examines.
#[derive(Debug, Clone)]
pub(crate) enum CompiledSubject {
    /// All fields of that name, joined.
    Header(String),
    Finder(Finder),
    Text(CompiledText),
}

#[derive(Debug, Clone)]
pub(crate) enum CompiledPredicate {
    Compare(CompareOp, CompiledText),
    Contains(CompiledText),
    Matches(Regex),
    Exists,
}

#[derive(Debug, Clone)]
pub(crate) struct CompiledTest {
    pub(crate) subject: CompiledSubject,
    pub(crate) is_negated: bool,
    pub(crate) predicate: CompiledPredicate,
    /// The message if the test fails.
    pub(crate) cause: String,
}

/// A combination of tests.
#[derive(Debug, Clone)]
pub(crate) struct CompiledCondition {
    pub(crate) is_any: bool,
    pub(crate) tests: Vec<CompiledTest>,
}

/// An expectation of an answer.
#[derive(Debug, Clone)]
pub(crate) enum Expectation {
    Status(Vec<StatusPattern>),
    Test(CompiledTest),
    Within { most: Nanos, cause: String },
}

/// Buffers for temporary values, reused from one answer to the next.
#[derive(Debug, Default)]
pub(crate) struct ScratchBuffers {
    found: Vec<u8>,
    other: Vec<u8>,
}

fn pick_one<'h>(
    mut all: impl Iterator<Item = &'h [u8]>,
    pick: MatchPick,
    chance: &mut fastrand::Rng,
) -> Option<&'h [u8]> {
    match pick {
        MatchPick::First => all.next(),
        MatchPick::Last => all.last(),
        MatchPick::Nth(n) => all.nth((n as usize).saturating_sub(1)),
        // The n-th match replaces the earlier ones with probability 1/n, so all are equally likely in the end.
        MatchPick::Any => {
            let take = |(n, kept), next| (n + 1, if chance.u32(..=n) == 0 { Some(next) } else { kept });
            all.fold((0, None), take).1
        }
    }
}

impl Finder {
    /// Whether it reads the body.
    fn reads_body(&self) -> bool {
        match self {
            Self::Json(_) | Self::Body => true,
            Self::Regex { is_in_head, .. } | Self::Between { is_in_head, .. } => !is_in_head,
            Self::Header(_) | Self::Cookie(_) | Self::Status => false,
        }
    }

    /// Writes the found value to `text`. Returns whether there was one.
    ///
    /// # Errors
    /// It reads the body, and the body cannot be decoded.
    pub(crate) fn find(
        &mut self,
        looked: &AnswerView<'_>,
        pick: MatchPick,
        chance: &mut fastrand::Rng,
        text: &mut Vec<u8>,
    ) -> Result<bool, BodyError> {
        let message = &looked.message;
        let body = if self.reads_body() { looked.body? } else { b"" };
        text.clear();
        let found = match self {
            Self::Json(pointer) if pick == MatchPick::First => return in_json(pointer.find(body, text)),
            Self::Json(pointer) => return in_json(pointer.find_one(body, pick, chance, text)),
            Self::Status => {
                // Writing to memory cannot fail.
                drop(std::io::Write::write_fmt(text, format_args!("{}", looked.status)));
                return Ok(true);
            }
            Self::Body => Some(body),
            Self::Header(name) => pick_one(message.fields(name), pick, chance),
            Self::Cookie(name) => {
                let fields = message.fields("set-cookie");
                pick_one(fields.filter_map(|field| cookies::value_in(field, name.as_bytes())), pick, chance)
            }
            Self::Regex { regex, groups, is_in_head } => {
                let text = if *is_in_head { message.head() } else { body };
                pick_one(RegexMatches { regex, groups, text, at: 0 }, pick, chance)
            }
            Self::Between { before, after, is_in_head } => {
                let text = if *is_in_head { message.head() } else { body };
                pick_one(BetweenMatches { before, after, rest: text }, pick, chance)
            }
        };
        if let Some(found) = found {
            text.extend_from_slice(found);
        }
        Ok(found.is_some())
    }
}

/// In a body that is not JSON nothing is found.
fn in_json(found: Result<bool, JsonReadError>) -> Result<bool, BodyError> {
    match found {
        Err(JsonReadError::TooMuch) => Err(BodyError::TooMuch),
        found => Ok(found == Ok(true)),
    }
}

/// The matches of a regular expression: its first group, or the whole match.
struct RegexMatches<'r, 't> {
    regex: &'r Regex,
    groups: &'r mut CaptureLocations,
    text: &'t [u8],
    at: usize,
}

impl<'t> Iterator for RegexMatches<'_, 't> {
    type Item = &'t [u8];

    fn next(&mut self) -> Option<&'t [u8]> {
        if self.at > self.text.len() {
            return None;
        }
        let whole = self.regex.captures_read_at(self.groups, self.text, self.at)?;
        // After an empty match the next one begins later.
        self.at = whole.end() + usize::from(whole.is_empty());
        let group = if self.groups.len() > 1 { self.groups.get(1) } else { Some((whole.start(), whole.end())) };
        let (begin, end) = group.unwrap_or((whole.start(), whole.start()));
        Some(&self.text[begin..end])
    }
}

/// The text between two others.
struct BetweenMatches<'r, 't> {
    before: &'r [u8],
    after: &'r [u8],
    rest: &'t [u8],
}

impl<'t> Iterator for BetweenMatches<'_, 't> {
    type Item = &'t [u8];

    fn next(&mut self) -> Option<&'t [u8]> {
        let begin = memmem::find(self.rest, self.before)? + self.before.len();
        let inner = &self.rest[begin..];
        let end = memmem::find(inner, self.after)?;
        self.rest = &inner[end..];
        Some(&inner[..end])
    }
}

impl CompiledTake {
    /// Writes the value to `value`.
    ///
    /// # Errors
    /// The message if nothing is found.
    pub(crate) fn take(
        &mut self,
        looked: &AnswerView<'_>,
        scope: &mut ValueScope<'_>,
        value: &mut Vec<u8>,
    ) -> Result<(), CheckFailure> {
        let found = self.finder.find(looked, self.pick, &mut scope.rng, value);
        match (&self.default, found) {
            (_, Ok(true)) => Ok(()),
            (Some(default), _) => {
                value.clear();
                default.put(scope, TextContext::Free, value);
                Ok(())
            }
            (None, Ok(false)) => Err(CheckFailure::OwnCause),
            (None, Err(unfit)) => Err(CheckFailure::Body(unfit)),
        }
    }

    pub(crate) fn reads_body(&self) -> bool {
        self.finder.reads_body()
    }
}

/// Why a check fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckFailure {
    /// With the check's own message.
    OwnCause,
    /// The body cannot be decoded.
    Body(BodyError),
}

impl CheckFailure {
    /// Writes the cause; `said` is the check's own message.
    pub(crate) fn write_cause(self, said: &str, cause: &mut String) {
        cause.clear();
        match self {
            Self::OwnCause => cause.push_str(said),
            // Writing to memory cannot fail.
            Self::Body(unfit) => drop(write!(cause, "{unfit}")),
        }
    }
}

impl CompiledTest {
    /// Returns whether the test holds; outside of answers `looked` is `None`.
    pub(crate) fn check(
        &mut self,
        looked: Option<&AnswerView<'_>>,
        scope: &mut ValueScope<'_>,
        desk: &mut ScratchBuffers,
    ) -> Result<(), CheckFailure> {
        let ScratchBuffers { found, other } = desk;
        found.clear();
        let is_there = match (&mut self.subject, looked) {
            (CompiledSubject::Text(text), _) => {
                text.put(scope, TextContext::Free, found);
                text.is_set(scope)
            }
            (_, None) => false,
            (CompiledSubject::Header(name), Some(looked)) => joined(looked.message.fields(name), found),
            (CompiledSubject::Finder(finder), Some(looked)) => {
                finder.find(looked, MatchPick::First, &mut scope.rng, found).map_err(CheckFailure::Body)?
            }
        };
        let mut put = |text: &CompiledText| {
            other.clear();
            text.put(scope, TextContext::Free, other);
        };
        let holds = is_there
            && match &self.predicate {
                CompiledPredicate::Exists => true,
                CompiledPredicate::Matches(regex) => regex.is_match(found),
                CompiledPredicate::Contains(text) => {
                    put(text);
                    memmem::find(found, other).is_some()
                }
                CompiledPredicate::Compare(comparison, text) => {
                    put(text);
                    compare(found, *comparison, other)
                }
            };
        if holds == self.is_negated { Err(CheckFailure::OwnCause) } else { Ok(()) }
    }
}

impl CompiledCondition {
    pub(crate) fn holds(&mut self, scope: &mut ValueScope<'_>, desk: &mut ScratchBuffers) -> bool {
        let mut holds = |test: &mut CompiledTest| test.check(None, scope, desk).is_ok();
        if self.is_any { self.tests.iter_mut().any(&mut holds) } else { self.tests.iter_mut().all(holds) }
    }
}

impl CompiledText {
    /// Whether every variable in it has a value.
    fn is_set(&self, scope: &ValueScope<'_>) -> bool {
        self.slots().all(|slot| scope.slots[usize::from(slot)].is_set)
    }
}

fn joined<'m>(fields: impl Iterator<Item = &'m [u8]>, all: &mut Vec<u8>) -> bool {
    let mut is_there = false;
    for field in fields {
        if is_there {
            all.extend_from_slice(b", ");
        }
        all.extend_from_slice(field);
        is_there = true;
    }
    is_there
}

fn number(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii();
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E');
    if !text.iter().all(is_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Compares as numbers if both are numbers, otherwise as texts, which are only equal or unequal.
fn compare(one: &[u8], comparison: CompareOp, other: &[u8]) -> bool {
    let order = match (number(one), number(other)) {
        _ if one == other => Some(std::cmp::Ordering::Equal),
        (Some(one), Some(other)) => one.partial_cmp(&other),
        _ => None,
    };
    match comparison {
        CompareOp::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
        CompareOp::Unequal => !order.is_some_and(std::cmp::Ordering::is_eq),
        CompareOp::Less => order.is_some_and(std::cmp::Ordering::is_lt),
        CompareOp::AtMost => order.is_some_and(std::cmp::Ordering::is_le),
        CompareOp::More => order.is_some_and(std::cmp::Ordering::is_gt),
        CompareOp::AtLeast => order.is_some_and(std::cmp::Ordering::is_ge),
    }
}

impl Expectation {
    /// Returns whether it is met; if not, writes the reason to `cause`.
    pub(crate) fn is_met(
        &mut self,
        looked: &AnswerView<'_>,
        scope: &mut ValueScope<'_>,
        desk: &mut ScratchBuffers,
        cause: &mut String,
    ) -> bool {
        let (why, said) = match self {
            Self::Status(wanted) if wanted.iter().any(|status| status.contains(looked.status)) => return true,
            Self::Status(wanted) => {
                cause.clear();
                // Writing to memory cannot fail.
                let _ = write!(cause, "status {}, expected {}", looked.status, StatusList(wanted));
                return false;
            }
            Self::Within { most, .. } if looked.took <= *most => return true,
            Self::Within { cause: said, .. } => (CheckFailure::OwnCause, &*said),
            Self::Test(test) => match test.check(Some(looked), scope, desk) {
                Ok(()) => return true,
                Err(why) => (why, &test.cause),
            },
        };
        why.write_cause(said, cause);
        false
    }

    pub(crate) fn reads_body(&self) -> bool {
        matches!(self, Self::Test(CompiledTest { subject: CompiledSubject::Finder(finder), .. }) if finder.reads_body())
    }

    /// The expectation as text for people.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::Status(wanted) => format!("status {}", StatusList(wanted)),
            Self::Within { most, .. } => format!("within {:?}", Duration::from_nanos(most.0)),
            Self::Test(test) => test.cause.strip_suffix(DOES_NOT_HOLD).unwrap_or(&test.cause).to_owned(),
        }
    }
}

/// The end of the message of a failed test.
const DOES_NOT_HOLD: &str = " does not hold";

struct StatusList<'a>(&'a [StatusPattern]);

impl std::fmt::Display for StatusList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (idx, status) in self.0.iter().enumerate() {
            f.write_str(match idx {
                0 => "",
                _ if idx + 1 == self.0.len() => " or ",
                _ => ", ",
            })?;
            match status {
                StatusPattern::One(status) => write!(f, "{status}")?,
                StatusPattern::Class(digit) => write!(f, "{digit}xx")?,
            }
        }
        Ok(())
    }
}

/// A test in the words of the scenario, as a cause of failure.
pub(crate) fn cause_of(test: &ast::TestExpr) -> String {
    use ast::{TestPredicate, TestSubject};
    let subject = match &test.subject {
        TestSubject::Header(name) => format!("header {}", name.text),
        TestSubject::Body => "body".to_owned(),
        TestSubject::Json(path) => format!("json {}", path.text),
        TestSubject::Cookie(name) => format!("cookie {}", name.text),
        TestSubject::Text(text) => quoted(text),
    };
    let not = if test.negated { "not " } else { "" };
    let claim = match &test.predicate {
        TestPredicate::Compare(comparison, text) => format!("{} {}", sign(*comparison), quoted(text)),
        TestPredicate::Contains(text) => format!("{not}contains {}", quoted(text)),
        TestPredicate::Matches(regex) => format!("{not}matches /{}/", regex.text),
        TestPredicate::Exists => format!("{not}exists"),
    };
    format!("{subject} {claim}{DOES_NOT_HOLD}")
}

const fn sign(comparison: CompareOp) -> &'static str {
    match comparison {
        CompareOp::Equal => "==",
        CompareOp::Unequal => "!=",
        CompareOp::Less => "<",
        CompareOp::AtMost => "<=",
        CompareOp::More => ">",
        CompareOp::AtLeast => ">=",
    }
}

/// A template approximately as in the source, for messages; holes keep their names.
pub(crate) fn quoted(template: &ast::Template) -> String {
    use ast::HoleSource;
    let mut text = String::from("\"");
    for piece in &template.pieces {
        match piece {
            ast::TemplatePiece::Text(literal) => text.push_str(literal),
            ast::TemplatePiece::Hole(hole) => {
                let name = match &hole.source {
                    HoleSource::Variable(name) => name.text.clone(),
                    HoleSource::Column(set, column) => format!("{}.{}", set.text, column.text),
                    HoleSource::Text(text) => text.clone(),
                    HoleSource::Env(name) => format!("env {}", name.text),
                    _ => "…".to_owned(),
                };
                let _ = write!(text, "${{{name}}}");
            }
        }
    }
    text.push('"');
    text
}

impl JsonPointer {
    /// Writes one of several values to `text`.
    fn find_one(
        &self,
        body: &[u8],
        pick: MatchPick,
        chance: &mut fastrand::Rng,
        text: &mut Vec<u8>,
    ) -> Result<bool, JsonReadError> {
        let all = self.find_all(body)?;
        let place = match pick {
            MatchPick::First => 0,
            MatchPick::Last => all.len().wrapping_sub(1),
            MatchPick::Nth(n) => (n as usize).wrapping_sub(1),
            MatchPick::Any => chance.usize(..all.len().max(1)),
        };
        let Some(value) = all.get(place) else { return Ok(false) };
        text.extend_from_slice(value);
        Ok(true)
    }
}

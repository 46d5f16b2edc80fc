//! A way to get a value out of an answer, before it is tried.

use fathom_import::import_tree::{AnswerField, ExtractSource, MatchIndex, TextCoding};
use regex::bytes::Regex;

use crate::{answer::AnswerPair, json_place::JsonPlace, occurrence::Occurrence, variant::Variant};

/// How robust an extractor is; the first is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Robustness {
    Json,
    HtmlAttribute,
    Header,
    /// By its number among several.
    Counted,
    /// By the text around it.
    Context,
}

/// A candidate.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) robustness: Robustness,
    pub(crate) from: ExtractSource,
    pub(crate) which: MatchIndex,
    /// What the place is called there: a member, a field, a header.
    pub(crate) name: String,
}

/// An extractor that gets exactly the values of both recordings.
#[derive(Debug, Clone)]
pub(crate) struct Extractor {
    pub(crate) robustness: Robustness,
    pub(crate) from: ExtractSource,
    pub(crate) which: MatchIndex,
    pub(crate) name: String,
    pub(crate) codings: Vec<TextCoding>,
}

/// Where a value may be in an answer.
pub(crate) struct Sighting<'a> {
    pub(crate) answer: &'a AnswerPair<'a>,
    pub(crate) variant: &'a Variant,
    /// The places of the head, the first ones.
    pub(crate) in_head: Vec<&'a Occurrence>,
    pub(crate) in_body: Vec<&'a Occurrence>,
    /// The shortest first.
    pub(crate) in_json: Vec<&'a JsonPlace>,
    pub(crate) trust: &'a Trust<'a>,
}

/// What makes it certain that a value is the same, and not there by chance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trust<'a> {
    /// Its length.
    Value,
    /// The name of its place, which is that of the place where it is sent.
    Name(&'a str),
    /// The name of its place, which is that of an identifier of the thing that the path names: of `orders`.
    Identifier(String),
    /// The text before it, which is sent before it, too.
    TextBefore,
}

impl Trust<'_> {
    pub(super) fn accepts(&self, candidate: &Candidate, answer: &AnswerPair<'_>) -> bool {
        let is_named = matches!(candidate.robustness, Robustness::Json | Robustness::HtmlAttribute);
        match self {
            Self::Value => true,
            Self::Name(wanted) => is_named && is_same_name(&candidate.name, wanted),
            Self::Identifier(thing) => is_identifier_of(thing, candidate, answer),
            Self::TextBefore => !matches!(candidate.from, ExtractSource::Json(_)),
        }
    }
}

/// Whether a place is `orderId`, `order.id`, or the `id` in the answer to a request for `/orders`.
fn is_identifier_of(thing: &str, candidate: &Candidate, answer: &AnswerPair<'_>) -> bool {
    let ExtractSource::Json(path) = &candidate.from else { return false };
    let thing = thing.to_lowercase();
    let singular = thing.strip_suffix('s').unwrap_or(&thing);
    let has_name = path.to_lowercase().contains(singular) || answer.url.to_lowercase().contains(singular);
    candidate.name.to_lowercase().ends_with("id") && has_name
}

/// Whether two names mean the same: `orderId` and `order_id`.
fn is_same_name(one: &str, other: &str) -> bool {
    let plain = |name: &str| {
        name.chars().filter(|char| char.is_alphanumeric()).flat_map(char::to_lowercase).collect::<String>()
    };
    plain(one) == plain(other)
}

/// A pattern whose first group is the value, and the same by its number if it is not the first match.
pub(super) fn by_pattern(
    robustness: Robustness,
    (of, text): (AnswerField, &[u8]),
    pattern: &str,
    value_start: usize,
    name: &str,
) -> Vec<Candidate> {
    // A value at a later place is more likely there by chance than by its number.
    const MATCHES_MAX: usize = 100;
    let Ok(regex) = Regex::new(pattern) else { return Vec::new() };
    let mut matches = regex.captures_iter(text).take(MATCHES_MAX);
    let Some(idx) = matches.position(|found| found.get(1).is_some_and(|group| group.start() == value_start)) else {
        return Vec::new();
    };
    let is_last = matches.next().is_none() && idx + 1 < MATCHES_MAX;
    let candidate = |robustness, which| Candidate {
        robustness,
        from: ExtractSource::Regex { of, pattern: pattern.to_owned() },
        which,
        name: name.to_owned(),
    };
    let n = u32::try_from(idx + 1).unwrap_or(u32::MAX);
    let mut all =
        vec![candidate(if idx == 0 { robustness } else { robustness.max(Robustness::Counted) }, MatchIndex::Nth(n))];
    if is_last && idx > 0 {
        all.push(candidate(robustness.max(Robustness::Counted), MatchIndex::Last));
    }
    all
}

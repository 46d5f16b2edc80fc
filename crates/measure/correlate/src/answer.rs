//! The answers of both recordings to the same request.

use std::{cell::OnceCell, collections::HashMap};

use fathom_import::har::{RecordedAnswer, RecordedStep};
use serde_json::Value;

use crate::alignment::AlignedSteps;

/// Deeper values are not looked at; the parser of JSON stops at the same depth.
const DEPTH_MAX: usize = 128;
/// More places of the same value would not be tried.
const PATHS_MAX: usize = 8;

/// Two answers to the same request.
#[derive(Debug)]
pub(crate) struct AnswerPair<'a> {
    /// The index of the aligned pair of steps.
    pub(crate) pair: usize,
    /// The index of the exchange within both steps.
    pub(crate) exchange: usize,
    /// Whether users see it: of the answers of a step that follows redirects, the last one.
    pub(crate) is_seen: bool,
    pub(crate) one: &'a RecordedAnswer,
    pub(crate) two: &'a RecordedAnswer,
    paths: OnceCell<JsonPaths>,
}

/// The places of values in a JSON body, by the value as text.
type JsonPaths = HashMap<String, Vec<Vec<PathSegment>>>;

/// One level of a place in JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathSegment {
    Member(String),
    /// The index, and the length of the list.
    Element(usize, usize),
}

impl AnswerPair<'_> {
    /// The places of a value in the JSON body of the first recording, the shortest first.
    pub(crate) fn json_paths(&self, value: &str) -> &[Vec<PathSegment>] {
        let paths = self.paths.get_or_init(|| {
            let mut paths = JsonPaths::new();
            if let Ok(document) = serde_json::from_slice(&self.one.body) {
                add_paths(&document, &mut Vec::new(), &mut paths);
            }
            for places in paths.values_mut() {
                places.sort_by_key(Vec::len);
            }
            paths
        });
        paths.get(value).map_or(&[], Vec::as_slice)
    }

    /// Whether both bodies are the same, so that nothing that differs comes from them.
    pub(crate) fn has_equal_bodies(&self) -> bool {
        self.one.body == self.two.body
    }
}

fn add_paths(value: &Value, place: &mut Vec<PathSegment>, paths: &mut JsonPaths) {
    if place.len() > DEPTH_MAX {
        return;
    }
    let text = match value {
        Value::Object(members) => {
            for (name, member) in members {
                place.push(PathSegment::Member(name.clone()));
                add_paths(member, place, paths);
                place.pop();
            }
            return;
        }
        Value::Array(elements) => {
            for (idx, element) in elements.iter().enumerate() {
                place.push(PathSegment::Element(idx, elements.len()));
                add_paths(element, place, paths);
                place.pop();
            }
            return;
        }
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(_) | Value::Null => return,
    };
    let places = paths.entry(text).or_default();
    if places.len() < PATHS_MAX {
        places.push(place.clone());
    }
}

/// All answers of aligned steps that both recordings have, in order.
pub(crate) fn answers<'a>(
    first: &'a [RecordedStep],
    second: &'a [RecordedStep],
    pairs: &[AlignedSteps],
) -> Vec<AnswerPair<'a>> {
    let mut all = Vec::new();
    for (pair, steps) in pairs.iter().enumerate() {
        let (one, two) = (&first[steps.first].exchanges, &second[steps.second].exchanges);
        let n = one.len();
        for exchange in 0..n {
            let is_seen = exchange + 1 == n;
            // If one recording was redirected more often, only the last answers are comparable.
            let other = if n == two.len() { two.get(exchange) } else { two.last().filter(|_| is_seen) };
            let answers = one[exchange].answer.as_ref().zip(other.and_then(|other| other.answer.as_ref()));
            if let Some((one, two)) = answers {
                all.push(AnswerPair { pair, exchange, is_seen, one, two, paths: OnceCell::new() });
            }
        }
    }
    all
}

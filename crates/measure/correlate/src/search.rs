//! What is looked for to explain a value, and what was found in which answers.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use aho_corasick::BuildError;

use crate::{
    answer::AnswerPair,
    chunk::Chunk,
    compare::{Part, Place},
    extract::Trust,
    json_place::{JsonPlace, each_value},
    occurrence::{Finder, Needle, Occurrence},
    variant::{Variant, variants},
};

/// A shorter value is in many places by chance.
pub(crate) const VALUE_MIN: usize = 4;
/// A shorter name of a path is no name.
const SEGMENT_MIN: usize = 3;
/// More places of a value in one JSON body are not tried.
const PLACES_MAX: usize = 8;

/// One way to find a value in answers.
#[derive(Debug)]
pub(crate) struct Search<'a> {
    /// What to look for; `None` if only the values of JSON are asked.
    pub(crate) needle: Option<Needle>,
    pub(crate) variant: Variant,
    pub(crate) trust: Trust<'a>,
}

/// Whether a value is so short that it says nothing by itself.
pub(crate) fn is_short(chunk: &Chunk) -> bool {
    chunk.one.len().min(chunk.two.len()) < VALUE_MIN
}

/// All ways to find a value, which is sent at a place after this text.
pub(crate) fn searches<'a>(chunk: &Chunk, place: &'a Place, before: &str) -> Vec<Search<'a>> {
    if chunk.one.is_empty() || chunk.two.is_empty() {
        return Vec::new();
    }
    if !is_short(chunk) {
        let all = variants(&chunk.one, &chunk.two).into_iter();
        return all
            .map(|variant| Search { needle: Some(Needle::of(&variant.one)), variant, trust: Trust::Value })
            .collect();
    }
    let variant = Variant { one: chunk.one.clone(), two: chunk.two.clone(), codings: Vec::new() };
    match place.part {
        Part::Field | Part::Json => {
            let name = place.name.rsplit('.').next().unwrap_or_default();
            let needle = Needle::within("\"", &chunk.one, "\"");
            vec![Search { needle: Some(needle), variant, trust: Trust::Name(name) }]
        }
        Part::Path | Part::Query | Part::Header | Part::Body => {
            let mut all = Vec::new();
            if let Some(thing) = name_before(before) {
                let trust = Trust::Identifier(thing.to_owned());
                all.push(Search { needle: None, variant: variant.clone(), trust });
            }
            if let Some(before) = telling_end(before) {
                let needle = Needle::within(before, &chunk.one, "");
                all.push(Search { needle: Some(needle), variant, trust: Trust::TextBefore });
            }
            all
        }
    }
}

/// The end of the text before a value that says what the value is: `/orders/`, `page=`.
fn telling_end(before: &str) -> Option<&str> {
    let name = before.strip_suffix(['/', '=']).unwrap_or(before);
    let start = name.rfind(['/', '?', '&', '='])?;
    let is_parameter = before.ends_with('=');
    let start = if is_parameter { start + 1 } else { start };
    let is_name = name[start..].bytes().filter(u8::is_ascii_alphabetic).count() >= SEGMENT_MIN;
    (is_name || is_parameter && start < name.len()).then(|| &before[start..])
}

/// The segment or the parameter before a value in a URL: `orders` of `/orders/`.
pub(crate) fn name_before(before: &str) -> Option<&str> {
    let name = before.strip_suffix(['/', '='])?;
    let name = name.rsplit(['/', '?', '&']).next().unwrap_or(name);
    name.starts_with(|char: char| char.is_alphabetic()).then_some(name)
}

/// What all searches look for.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    needles: HashMap<Needle, usize>,
    /// The hashes of values in JSON: the values themselves may be long.
    in_json: HashSet<u64>,
}

impl Wanted {
    pub(crate) fn add(&mut self, search: Search<'_>) {
        self.in_json.insert(hash(&search.variant.one));
        if let Some(needle) = search.needle {
            let n = self.needles.len();
            self.needles.entry(needle).or_insert(n);
        }
    }
}

/// Where all that is wanted occurs in the answers of the first recording.
#[derive(Debug, Default)]
pub(crate) struct Sightings {
    needles: HashMap<Needle, usize>,
    /// By needle, in the order of the answers.
    in_text: Vec<Vec<SeenNeedle>>,
    /// By the hash of the value, in the order of the answers.
    in_json: HashMap<u64, Vec<SeenJson>>,
}

#[derive(Debug)]
pub(crate) struct SeenNeedle {
    pub(crate) answer: usize,
    pub(crate) is_in_head: bool,
    pub(crate) occurrence: Occurrence,
}

#[derive(Debug)]
pub(crate) struct SeenJson {
    pub(crate) answer: usize,
    pub(crate) place: JsonPlace,
}

impl Sightings {
    /// Searches all answers that can deliver something that differs.
    ///
    /// # Errors
    /// The needles are too many for one automaton.
    pub(crate) fn of(wanted: Wanted, answers: &[AnswerPair<'_>]) -> Result<Self, BuildError> {
        let Wanted { needles, in_json } = wanted;
        let mut in_order: Vec<(&Needle, usize)> = needles.iter().map(|(needle, idx)| (needle, *idx)).collect();
        in_order.sort_by_key(|(_, idx)| *idx);
        let in_order: Vec<Needle> = in_order.into_iter().map(|(needle, _)| needle.clone()).collect();
        let finder = Finder::new(&in_order)?;
        let mut all = Self { needles, ..Self::default() };
        all.in_text.resize_with(in_order.len(), Vec::new);
        for (idx, answer) in answers.iter().enumerate() {
            all.add_text(idx, true, finder.find(answer.one.head.as_bytes()));
            if !answer.has_equal_bodies() {
                all.add_text(idx, false, finder.find(&answer.one.body));
                all.add_json(idx, &answer.one.body, &in_json);
            }
        }
        Ok(all)
    }

    fn add_text(&mut self, answer: usize, is_in_head: bool, occurrences: Vec<Occurrence>) {
        for occurrence in occurrences {
            self.in_text[occurrence.needle].push(SeenNeedle { answer, is_in_head, occurrence });
        }
    }

    fn add_json(&mut self, answer: usize, body: &[u8], wanted: &HashSet<u64>) {
        let Ok(document) = serde_json::from_slice(body) else { return };
        each_value(&document, &mut Vec::new(), &mut |value, place| {
            let hash = hash(value);
            if wanted.contains(&hash) {
                let seen = self.in_json.entry(hash).or_default();
                let n_here = seen.iter().rev().take_while(|seen| seen.answer == answer).take(PLACES_MAX).count();
                if n_here < PLACES_MAX {
                    seen.push(SeenJson { answer, place: place.clone() });
                }
            }
        });
    }

    pub(crate) fn in_text(&self, search: &Search<'_>) -> &[SeenNeedle] {
        let idx = search.needle.as_ref().and_then(|needle| self.needles.get(needle));
        idx.map_or(&[], |idx| self.in_text[*idx].as_slice())
    }

    pub(crate) fn in_json(&self, search: &Search<'_>) -> &[SeenJson] {
        self.in_json.get(&hash(&search.variant.one)).map_or(&[], Vec::as_slice)
    }

    /// The answers that may have a value, in order, each once.
    pub(crate) fn answers_with(&self, searches: &[Search<'_>]) -> BTreeSet<usize> {
        let in_text = searches.iter().flat_map(|search| self.in_text(search)).map(|seen| seen.answer);
        in_text.chain(searches.iter().flat_map(|search| self.in_json(search)).map(|seen| seen.answer)).collect()
    }
}

/// The part of a list that belongs to one answer.
pub(crate) fn of_answer<T>(all: &[T], answer: usize, answer_of: impl Fn(&T) -> usize) -> &[T] {
    let begin = all.partition_point(|seen| answer_of(seen) < answer);
    let end = all.partition_point(|seen| answer_of(seen) <= answer);
    &all[begin..end]
}

/// Equal hashes of different values do no harm: what is taken is compared with the value.
fn hash(value: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_before_a_short_value_has_to_say_what_it_is() {
        let cases = [
            ("/admin/auth/user/", Some("/user/")),
            ("/shop?page=", Some("page=")),
            ("q=", None),
            ("/shop?q=", Some("q=")),
            ("/a/", None),
            ("", None),
        ];
        for (before, expected) in cases {
            assert_eq!(telling_end(before), expected, "{before}");
        }
    }
}

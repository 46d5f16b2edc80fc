//! What is looked for to explain a value, and what was found in which answers.

use std::{collections::HashMap, ops::Range};

use aho_corasick::BuildError;

use crate::{
    answer::AnswerPair,
    chunk::Chunk,
    compare::{Part, Place},
    extract::Trust,
    occurrence::{Finder, Needle, Occurrence},
    variant::{Variant, variants},
};

/// A shorter value is in many places by chance.
pub(crate) const VALUE_MIN: usize = 4;
/// A shorter name of a path is no name.
const SEGMENT_MIN: usize = 3;

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
            let needle = Needle { text: format!("\"{}\"", chunk.one), n_before: 1, n_after: 1 };
            vec![Search { needle: Some(needle), variant, trust: Trust::Name(name) }]
        }
        Part::Path | Part::Query | Part::Header | Part::Body => {
            let mut all = vec![Search { needle: None, variant: variant.clone(), trust: Trust::Identifier }];
            if let Some(before) = telling_end(before) {
                let needle = Needle { text: format!("{before}{}", chunk.one), n_before: before.len(), n_after: 0 };
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

/// Where all needles occur in all answers of the first recording.
#[derive(Debug, Default)]
pub(crate) struct Sightings {
    needles: HashMap<Needle, usize>,
    /// By needle, in the order of the answers.
    found: Vec<Vec<SeenNeedle>>,
}

#[derive(Debug)]
pub(crate) struct SeenNeedle {
    pub(crate) answer: usize,
    pub(crate) is_in_head: bool,
    pub(crate) occurrence: Occurrence,
}

impl Sightings {
    /// Searches all answers that can deliver something that differs.
    ///
    /// # Errors
    /// The needles are too many for one automaton.
    pub(crate) fn of(needles: Vec<Needle>, answers: &[AnswerPair<'_>]) -> Result<Self, BuildError> {
        let mut all = Self::default();
        let mut unique = Vec::new();
        for needle in needles {
            if !all.needles.contains_key(&needle) {
                all.needles.insert(needle.clone(), unique.len());
                unique.push(needle);
            }
        }
        all.found.resize_with(unique.len(), Vec::new);
        let finder = Finder::new(&unique)?;
        for (idx, answer) in answers.iter().enumerate() {
            all.add(idx, true, finder.find(answer.one.head.as_bytes()));
            if !answer.has_equal_bodies() {
                all.add(idx, false, finder.find(&answer.one.body));
            }
        }
        Ok(all)
    }

    fn add(&mut self, answer: usize, is_in_head: bool, occurrences: Vec<Occurrence>) {
        for occurrence in occurrences {
            self.found[occurrence.needle].push(SeenNeedle { answer, is_in_head, occurrence });
        }
    }

    pub(crate) fn of_needle(&self, needle: &Needle) -> &[SeenNeedle] {
        self.needles.get(needle).map_or(&[], |idx| self.found[*idx].as_slice())
    }

    /// Those in one answer.
    pub(crate) fn in_answer<'s>(&'s self, needle: &Needle, answer: usize) -> &'s [SeenNeedle] {
        let all = self.of_needle(needle);
        let Range { start, end } = range_of(all, answer);
        &all[start..end]
    }
}

fn range_of(all: &[SeenNeedle], answer: usize) -> Range<usize> {
    all.partition_point(|seen| seen.answer < answer)..all.partition_point(|seen| seen.answer <= answer)
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

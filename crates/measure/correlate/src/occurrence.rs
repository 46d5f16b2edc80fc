//! Where texts occur in answers: all texts in all answers, in one pass over each.

use aho_corasick::{AhoCorasick, BuildError};

/// The rest of a long text is not kept: whoever takes a value compares the whole.
const BEGINNING_MAX: usize = 48;
/// More occurrences of one text in one answer are not needed to find the best one.
const OCCURRENCES_MAX: usize = 16;

/// A text to look for, by its beginning and its length.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Needle {
    beginning: Box<[u8]>,
    n_bytes: usize,
    /// The length of the text that has to be there but does not belong to the value.
    n_before: usize,
    n_after: usize,
}

impl Needle {
    /// The value alone.
    pub(crate) fn of(value: &str) -> Self {
        Self::within("", value, "")
    }

    /// The value between two texts.
    pub(crate) fn within(before: &str, value: &str, after: &str) -> Self {
        let mut beginning: Vec<u8> = [before, value, after].concat().into_bytes();
        let n_bytes = beginning.len();
        beginning.truncate(BEGINNING_MAX);
        Self { beginning: beginning.into(), n_bytes, n_before: before.len(), n_after: after.len() }
    }
}

/// Where a value is in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Occurrence {
    /// The index of the needle.
    pub(crate) needle: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

pub(crate) struct Finder<'n> {
    needles: &'n [Needle],
    automaton: AhoCorasick,
}

impl<'n> Finder<'n> {
    /// # Errors
    /// The needles are too many for one automaton.
    pub(crate) fn new(needles: &'n [Needle]) -> Result<Self, BuildError> {
        let beginnings = needles.iter().map(|needle| &needle.beginning);
        Ok(Self { needles, automaton: AhoCorasick::new(beginnings)? })
    }

    /// The occurrences in a text that stand alone: a number within a longer number is none.
    pub(crate) fn find(&self, text: &[u8]) -> Vec<Occurrence> {
        let mut all = Vec::new();
        let mut n_found = vec![0_usize; self.needles.len()];
        for found in self.automaton.find_overlapping_iter(text) {
            let needle = found.pattern().as_usize();
            let Needle { n_bytes, n_before, n_after, .. } = &self.needles[needle];
            let (begin, end) = (found.start(), found.start() + n_bytes);
            if end <= text.len() && n_found[needle] < OCCURRENCES_MAX && stands_alone(text, begin, end) {
                n_found[needle] += 1;
                all.push(Occurrence { needle, start: begin + n_before, end: end - n_after });
            }
        }
        all
    }
}

/// Whether neither a letter nor a digit continues the text at its ends, apart from those of an escape before it.
fn stands_alone(text: &[u8], begin: usize, end: usize) -> bool {
    let continues = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_first = text.get(begin).is_some_and(|byte| !byte.is_ascii_alphanumeric());
    let is_last = end > 0 && text.get(end - 1).is_some_and(|byte| !byte.is_ascii_alphanumeric());
    let before = &text[..begin];
    let is_begin = is_first || !continues(before.last()) || ends_with_escape(before);
    is_begin && (is_last || !continues(text.get(end)))
}

/// `%3D`, `\u0022`, `\n`
fn ends_with_escape(before: &[u8]) -> bool {
    let ends = |sign: &[u8], n_digits: usize| {
        let at = before.len().checked_sub(sign.len() + n_digits);
        at.is_some_and(|at| {
            before[at..].starts_with(sign) && before[at + sign.len()..].iter().all(u8::is_ascii_hexdigit)
        })
    };
    ends(b"%", 2) || ends(b"\\u", 4) || ends(b"\\n", 0) || ends(b"\\t", 0) || ends(b"\\r", 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(needles: &[(&str, usize)], text: &str) -> Vec<(usize, usize)> {
        let needles: Vec<_> =
            needles.iter().map(|(text, n_before)| Needle { n_before: *n_before, ..Needle::of(text) }).collect();
        let mut all: Vec<_> = Finder::new(&needles)
            .unwrap()
            .find(text.as_bytes())
            .iter()
            .map(|occurrence| (occurrence.needle, occurrence.start))
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_text_within_a_longer_word_is_not_found() {
        assert_eq!(
            found(&[("1234", 0)], "1234 12345 01234 x1234 '1234' %221234 \\u00221234"),
            [(0, 0), (0, 24), (0, 33), (0, 44)]
        );
        assert_eq!(found(&[("=1234&", 1)], "a=1234&b"), [(0, 2)]);
    }

    #[test]
    fn needles_may_overlap_and_be_long() {
        let long = "x".repeat(500);
        assert_eq!(found(&[("abc-def", 0), ("def", 0), ("abc", 0)], "abc-def"), [(0, 0), (1, 4), (2, 0)]);
        assert_eq!(found(&[(&long, 0)], &format!("{long} {long}y {}", &long[1..])), [(0, 0)]);
        assert_eq!(found(&[("a", 0)], &"a ".repeat(100)).len(), OCCURRENCES_MAX);
        assert_eq!(found(&[], "abc"), []);
    }
}

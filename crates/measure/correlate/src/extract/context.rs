//! Values by the text around them, for places of which nothing else is known.

use fathom_import::import_tree::AnswerField;

use super::candidate::{Candidate, Robustness, Sighting, by_pattern};
use crate::variant::Variant;

/// Text that is farther away says nothing about a value.
const BEFORE_MAX: usize = 120;
/// Each word of the text before a value makes one more pattern.
const WORDS_MAX: usize = 6;

pub(super) fn candidates<'s>(sighting: &'s Sighting<'_>) -> impl Iterator<Item = Candidate> + use<'s> {
    let body = sighting.answer.one.body.as_slice();
    let patterns = sighting.in_body.iter().filter_map(move |occurrence| {
        let begin = occurrence.start.saturating_sub(BEFORE_MAX);
        let before = text_at_end(&body[begin..occurrence.start]);
        let stop = stop(&body[occurrence.end..], sighting.variant)?;
        let name = last_word(before);
        let tails = tails(before).into_iter();
        Some(tails.map(move |tail| (format!("{tail}{stop}"), name, occurrence.start)))
    });
    patterns.flatten().flat_map(move |(pattern, name, start)| {
        by_pattern(Robustness::Context, (AnswerField::Body, body), &pattern, start, name)
    })
}

/// The group of the value, which ends where it ends in the answer; `None` if no sign ends it.
pub(super) fn stop(after: &[u8], variant: &Variant) -> Option<String> {
    let Some(sign) = after.first().copied() else { return Some("([^\\r\\n]+)".to_owned()) };
    let sign = char::from(sign);
    if !sign.is_ascii() || sign.is_ascii_alphanumeric() {
        return None;
    }
    let class = if sign.is_whitespace() { "\\s".to_owned() } else { regex::escape(&sign.to_string()) };
    if variant.one.contains(sign) || variant.two.contains(sign) {
        return Some(format!("(.+?){class}"));
    }
    // Within a class, these need a backslash, too.
    let class = if sign == '&' || sign == '~' || sign == '-' { format!("\\{sign}") } else { class };
    Some(format!("([^{class}]+)"))
}

/// The ends of a text as patterns: with one word, with two words, and so on.
pub(super) fn tails(before: &str) -> Vec<String> {
    let is_word = |char: char| char.is_alphanumeric() || char == '_';
    let mut starts = Vec::new();
    let mut after = ' ';
    for (at, char) in before.char_indices().rev() {
        if is_word(after) && !is_word(char) {
            starts.push(at + char.len_utf8());
        }
        after = char;
    }
    if is_word(after) {
        starts.push(0);
    }
    starts.into_iter().take(WORDS_MAX).map(|start| pattern(&before[start..])).collect()
}

/// The text as a pattern in which any blanks match others.
fn pattern(text: &str) -> String {
    let mut all = String::new();
    let mut is_blank = false;
    for char in text.chars() {
        if !char.is_whitespace() {
            all.push_str(&regex::escape(char.encode_utf8(&mut [0; 4])));
        } else if !is_blank {
            all.push_str("\\s+");
        }
        is_blank = char.is_whitespace();
    }
    all
}

fn last_word(before: &str) -> &str {
    let is_part = |char: char| char.is_alphanumeric() || "_-".contains(char);
    let end = before.trim_end_matches(|char| !is_part(char));
    let start =
        end.rfind(|char| !is_part(char)).map_or(0, |at| at + end[at..].chars().next().map_or(1, char::len_utf8));
    &end[start..]
}

/// The text at the end of bytes.
fn text_at_end(bytes: &[u8]) -> &str {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(text) => return text,
            Err(error) => rest = &rest[error.valid_up_to() + error.error_len().unwrap_or(1)..],
        }
        if rest.is_empty() {
            return "";
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_before_a_value_is_tried_word_by_word() {
        assert_eq!(tails("var csrf = '"), ["csrf\\s+=\\s+'", "var\\s+csrf\\s+=\\s+'"]);
        assert_eq!(tails("'"), [] as [&str; 0]);
        assert_eq!(tails("a.b?c="), ["c=", "b\\?c=", "a\\.b\\?c="]);
        assert_eq!(tails(&"w ".repeat(50)).len(), WORDS_MAX);
    }

    #[test]
    fn a_value_ends_with_the_sign_behind_it() {
        let variant = |one: &str| Variant { one: one.to_owned(), two: "x".to_owned(), codings: Vec::new() };
        assert_eq!(stop(b"\" />", &variant("abc")).as_deref(), Some("([^\"]+)"));
        assert_eq!(stop(b"]", &variant("abc")).as_deref(), Some("([^\\]]+)"));
        assert_eq!(stop(b"&x", &variant("abc")).as_deref(), Some("([^\\&]+)"));
        assert_eq!(stop(b" x", &variant("a b")).as_deref(), Some("(.+?)\\s"));
        assert_eq!(stop(b"", &variant("abc")).as_deref(), Some("([^\\r\\n]+)"));
        assert_eq!(stop(b"more", &variant("abc")), None);
    }

    #[test]
    fn bytes_that_are_not_text_end_the_context() {
        assert_eq!(text_at_end(b"ab\xffcd="), "cd=");
        assert_eq!(text_at_end(b"\xff"), "");
        assert_eq!(last_word("window.csrfToken = \""), "csrfToken");
        assert_eq!(last_word("ü=\""), "ü");
    }
}

//! Values of attributes in HTML: hidden fields, meta tags, links.

use std::ops::Range;

use fathom_import::import_tree::AnswerField;

use super::{
    candidate::{Candidate, Robustness, Sighting, by_pattern},
    context,
};
use crate::{occurrence::Occurrence, variant::Variant};

/// A tag that begins farther away is not looked for.
const TAG_MAX: usize = 8 << 10;
/// A form that begins farther away is not looked for.
const FORM_MAX: usize = 64 << 10;
/// The attributes that tell tags of one name apart, the best first.
const IDENTIFYING: [&str; 9] = ["name", "id", "property", "itemprop", "http-equiv", "rel", "action", "class", "type"];

/// A tag with its attributes.
struct Tag<'b> {
    name: &'b str,
    attributes: Vec<Attribute<'b>>,
}

struct Attribute<'b> {
    name: &'b str,
    value: &'b str,
    /// The place of the value in the body.
    place: Range<usize>,
    quote: Option<char>,
}

pub(super) fn candidates<'s>(sighting: &'s Sighting<'_>) -> impl Iterator<Item = Candidate> + use<'s> {
    let body = sighting.answer.one.body.as_slice();
    let patterns = sighting.in_body.iter().filter_map(|occurrence| {
        let patterns = patterns_at(body, occurrence, sighting.variant)?;
        Some(patterns.into_iter().map(|(pattern, name)| (pattern, name, occurrence.start)))
    });
    patterns.flatten().flat_map(move |(pattern, name, start)| {
        by_pattern(Robustness::HtmlAttribute, (AnswerField::Body, body), &pattern, start, &name)
    })
}

/// All patterns of an attribute's value with the names of its place: in the whole body, and in its form alone.
fn patterns_at(body: &[u8], occurrence: &Occurrence, variant: &Variant) -> Option<Vec<(String, String)>> {
    let tag = tag_around(body, occurrence.start)?;
    let is_here =
        |attribute: &Attribute<'_>| attribute.place.start <= occurrence.start && occurrence.end <= attribute.place.end;
    let idx = tag.attributes.iter().position(is_here)?;
    let place = &tag.attributes[idx].place;
    let before = std::str::from_utf8(&body[place.start..occurrence.start]).ok()?;
    let stop = context::stop(&body[occurrence.end..], variant)?;
    let mut all = patterns(&tag, idx, before, &stop);
    if let Some(form) = form_before(body, occurrence.start) {
        let within: Vec<_> = all.iter().map(|(pattern, name)| (format!("{form}{pattern}"), name.clone())).collect();
        all.extend(within);
    }
    Some(all)
}

/// Patterns of a tag by each attribute that identifies it, and without any; with the names of the places.
fn patterns(tag: &Tag<'_>, idx: usize, before: &str, stop: &str) -> Vec<(String, String)> {
    let attribute = &tag.attributes[idx];
    let quote = attribute.quote.map_or(String::new(), |quote| quote.to_string());
    // The whole beginning of the value, or only the last word of it.
    let mut begins = vec![regex::escape(before)];
    begins.extend(context::tails(before).into_iter().take(2).map(|tail| format!("[^>]*?{tail}")));
    let start = format!("<{}\\b[^>]*?", regex::escape(tag.name));
    let mut all = Vec::new();
    for begin in begins {
        let value = format!("\\s{}={quote}{begin}{stop}", regex::escape(attribute.name));
        for name in IDENTIFYING {
            let Some(at) = tag.attributes.iter().position(|other| other.name.eq_ignore_ascii_case(name)) else {
                continue;
            };
            let other = &tag.attributes[at];
            if at == idx || other.value.is_empty() {
                continue;
            }
            let quote = other.quote.map_or(String::new(), |quote| quote.to_string());
            let known = format!("\\s{}={quote}{}{quote}", regex::escape(other.name), regex::escape(other.value));
            all.push((
                if at < idx { format!("{start}{known}[^>]*?{value}") } else { format!("{start}{value}[^>]*?{known}") },
                other.value.to_owned(),
            ));
        }
        all.push((format!("{start}{value}"), attribute.name.to_owned()));
    }
    all
}

/// A pattern from the beginning of the form that a place is in: two forms may have fields of the same name.
fn form_before(body: &[u8], at: usize) -> Option<String> {
    let window = &body[at.saturating_sub(FORM_MAX)..at];
    let start = at - window.len() + memchr::memmem::rfind(window, b"<form")?;
    let tag = tag_at(body, start)?;
    let known = ["action", "id", "name"].iter().find_map(|name| {
        tag.attributes.iter().find(|attribute| attribute.name == *name && !attribute.value.is_empty())
    })?;
    let quote = known.quote.map_or(String::new(), |quote| quote.to_string());
    let value = format!("{}={quote}{}{quote}", regex::escape(known.name), regex::escape(known.value));
    Some(format!("(?s)<form\\b[^>]*?\\s{value}[^>]*>.*?"))
}

/// The tag in which a place is.
fn tag_around(body: &[u8], at: usize) -> Option<Tag<'_>> {
    let window = &body[at.saturating_sub(TAG_MAX)..at];
    let start = at - window.len() + memchr::memrchr(b'<', window)?;
    tag_at(body, start)
}

fn tag_at(body: &[u8], start: usize) -> Option<Tag<'_>> {
    let mut at = start + 1;
    let word = |from: &mut usize, is_part: &dyn Fn(u8) -> bool| {
        let begin = *from;
        while body.get(*from).is_some_and(|byte| is_part(*byte)) {
            *from += 1;
        }
        std::str::from_utf8(&body[begin.min(body.len())..(*from).min(body.len())]).ok()
    };
    let tag_name = word(&mut at, &|byte| byte.is_ascii_alphanumeric() || byte == b'-')?;
    if tag_name.is_empty() {
        return None;
    }
    let mut attributes = Vec::new();
    loop {
        word(&mut at, &|byte| byte.is_ascii_whitespace() || byte == b'/')?;
        let name = word(&mut at, &|byte| !byte.is_ascii_whitespace() && !b"=>/\"'<".contains(&byte))?;
        if name.is_empty() {
            return Some(Tag { name: tag_name, attributes });
        }
        word(&mut at, &|byte| byte.is_ascii_whitespace())?;
        if body.get(at) != Some(&b'=') {
            continue;
        }
        at += 1;
        word(&mut at, &|byte| byte.is_ascii_whitespace())?;
        let quote = body.get(at).copied().filter(|byte| b"\"'".contains(byte));
        at += usize::from(quote.is_some());
        let begin = at;
        let value = word(&mut at, &|byte| match quote {
            Some(quote) => byte != quote,
            None => !byte.is_ascii_whitespace() && byte != b'>',
        })?;
        attributes.push(Attribute { name, value, place: begin..at, quote: quote.map(char::from) });
        at += usize::from(quote.is_some());
    }
}

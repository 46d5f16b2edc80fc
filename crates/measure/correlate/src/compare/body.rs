//! Compares bodies: forms by field, JSON by path, parts by name, everything else as one text.

use std::collections::HashMap;

use fathom_import::{
    import_tree::{FormPart, FormPartContent, ImportText, ImportedBody, ImportedRequest, TextCoding},
    write::coded,
};

use super::{
    json, pairs,
    value::{ComparedValue, Part, Place, Visitor},
};
use crate::variant::before;

const FORM: &str = "application/x-www-form-urlencoded";
/// The media type for whose strings a scenario escapes values by itself.
const JSON: &str = "application/json";
/// A longer text is a document; its parts are not compared.
const TEXT_MAX: usize = 64 << 10;

type Fields = Vec<(ImportText, ImportText)>;

pub(super) fn compare(
    request: &mut ImportedRequest,
    other: &ImportedRequest,
    visit: &mut Visitor<'_>,
    alone: &mut Vec<String>,
) {
    let media = request.header("Content-Type").and_then(ImportText::as_literal).unwrap_or_default().to_owned();
    let is_form = media.get(..FORM.len()).is_some_and(|start| start.eq_ignore_ascii_case(FORM));
    if is_form && let (Some(one), Some(two)) = (fields(&request.body), fields(&other.body)) {
        request.body = ImportedBody::Form(one);
        let ImportedBody::Form(one) = &mut request.body else { return };
        return compare_fields(one, &two, visit, alone);
    }
    match (&mut request.body, &other.body) {
        (ImportedBody::Text(one), ImportedBody::Text(two)) => {
            let (Some(text), Some(two)) = (one.as_literal(), two.as_literal()) else { return };
            let compared = if is_form {
                Some(pairs::compare((text, two), Part::Field, visit, alone))
            } else if let (Some(one), Some(two)) = (json::leaves(text), json::leaves(two)) {
                let is_escaped_later = media.eq_ignore_ascii_case(JSON);
                Some(json::compare((text, &one), &two, is_escaped_later, visit, alone))
            } else if text.len().max(two.len()) <= TEXT_MAX {
                let place = Place { part: Part::Body, name: String::new() };
                visit(&ComparedValue { place, one: text, two, before: "", is_raw: true })
            } else {
                if text != two {
                    alone.push("the body differs, and is too long to be compared".to_owned());
                }
                None
            };
            if let Some(compared) = compared {
                *one = compared;
            }
        }
        (ImportedBody::Form(one), ImportedBody::Form(two)) => compare_fields(one, two, visit, alone),
        (ImportedBody::Multipart(one), ImportedBody::Multipart(two)) => compare_parts(one, two, visit, alone),
        (one, two) if one != two => alone.push("the body differs in its kind, or is not text".to_owned()),
        _ => {}
    }
}

/// The fields of a form as a scenario writes them, if it would encode them exactly like this.
fn fields(body: &ImportedBody) -> Option<Fields> {
    let text = match body {
        ImportedBody::Form(fields) => return Some(fields.clone()),
        ImportedBody::Text(text) => text.as_literal()?,
        _ => return None,
    };
    let plain = |text: &str| before(text, Some(TextCoding::Form)).map(ImportText::literal);
    let pairs = text.split('&').map(|pair| {
        let (name, value) = pair.split_once('=')?;
        // Lines of a text field end with a carriage return and a line feed, which no other value has.
        let value = plain(value).or_else(|| with_lines(value))?;
        Some((plain(name).filter(|name| !name.is_empty())?, value))
    });
    pairs.collect()
}

fn with_lines(value: &str) -> Option<ImportText> {
    let plain = coded(&value.replace('+', " "), TextCoding::FromUrl)?;
    (coded(&plain, TextCoding::Form).as_deref() == Some(value)).then(|| ImportText::literal(plain))
}

fn compare_fields(one: &mut Fields, two: &Fields, visit: &mut Visitor<'_>, alone: &mut Vec<String>) {
    let keys = |fields: &Fields| -> Vec<String> { fields.iter().map(|(name, _)| name.to_string()).collect() };
    let names = keys(one);
    by_name(&names, &keys(two), Part::Field, alone, |idx, at| {
        let (Some(value), Some(other)) = (one[idx].1.as_literal(), two[at].1.as_literal()) else { return };
        let place = Place { part: Part::Field, name: names[idx].clone() };
        if let Some(text) = visit(&ComparedValue { place, one: value, two: other, before: "", is_raw: false }) {
            one[idx].1 = text;
        }
    });
}

fn compare_parts(one: &mut [FormPart], two: &[FormPart], visit: &mut Visitor<'_>, alone: &mut Vec<String>) {
    let keys = |parts: &[FormPart]| -> Vec<String> { parts.iter().map(|part| part.name.to_string()).collect() };
    let names = keys(one);
    by_name(&names, &keys(two), Part::Field, alone, |idx, at| {
        let text = |part: &FormPart| match &part.content {
            FormPartContent::Text(text) => text.as_literal().map(str::to_owned),
            FormPartContent::File(_) => None,
        };
        let (Some(value), Some(other)) = (text(&one[idx]), text(&two[at])) else { return };
        let place = Place { part: Part::Field, name: names[idx].clone() };
        let compared = ComparedValue { place, one: &value, two: &other, before: "", is_raw: false };
        if let Some(text) = visit(&compared) {
            one[idx].content = FormPartContent::Text(text);
        }
    });
}

/// Passes the indices of fields of the same name, the first with the first, and tells the others.
fn by_name(one: &[String], two: &[String], part: Part, alone: &mut Vec<String>, mut both: impl FnMut(usize, usize)) {
    let mut others: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, name) in two.iter().enumerate().rev() {
        others.entry(name).or_default().push(at);
    }
    let mut tell = |name: &str, which: &str| {
        alone.push(format!("{} is only in the {which} recording", Place { part, name: name.to_owned() }));
    };
    for (idx, name) in one.iter().enumerate() {
        match others.get_mut(name.as_str()).and_then(Vec::pop) {
            Some(at) => both(idx, at),
            None => tell(name, "first"),
        }
    }
    let mut left: Vec<usize> = others.into_values().flatten().collect();
    left.sort_unstable();
    for at in left {
        tell(&two[at], "second");
    }
}

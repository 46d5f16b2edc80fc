//! `name=value&name=value`, as in queries and in forms that no browser encoded.

use std::collections::HashMap;

use fathom_import::import_tree::ImportText;

use super::value::{ComparedValue, Part, Place, Visitor};

/// Compares by name; the values stay encoded.
pub(super) fn compare(
    (one, two): (&str, &str),
    part: Part,
    visit: &mut Visitor<'_>,
    alone: &mut Vec<String>,
) -> ImportText {
    let mut others: HashMap<&str, Vec<&str>> = HashMap::new();
    for (name, value) in two.split('&').rev().map(split) {
        others.entry(name).or_default().push(value.unwrap_or_default());
    }
    let mut text = ImportText::default();
    for (idx, pair) in one.split('&').enumerate() {
        text.push_str(if idx == 0 { "" } else { "&" });
        let (name, value) = split(pair);
        let other = others.get_mut(name).and_then(Vec::pop);
        let (Some(value), Some(other)) = (value, other) else {
            // A query of one text without a name is a value by itself.
            if one == pair && !two.contains(['&', '=']) && !pair.contains('=') {
                let place = Place { part, name: String::new() };
                let compared = ComparedValue { place, one: pair, two, before: "?", is_raw: true };
                return visit(&compared).unwrap_or_else(|| pair.into());
            }
            if other.is_none() && !pair.is_empty() {
                alone.push(format!("{} is only in the first recording", Place { part, name: name.to_owned() }));
            }
            text.push_str(pair);
            continue;
        };
        let before = format!("{name}=");
        let place = Place { part, name: name.to_owned() };
        let compared = ComparedValue { place, one: value, two: other, before: &before, is_raw: true };
        text.push_str(&before);
        text.append(visit(&compared).unwrap_or_else(|| value.into()));
    }
    let mut left: Vec<&str> =
        others.into_iter().filter(|(_, values)| !values.is_empty()).map(|(name, _)| name).collect();
    left.sort_unstable();
    for name in left.into_iter().filter(|name| !name.is_empty()) {
        alone.push(format!("{} is only in the second recording", Place { part, name: name.to_owned() }));
    }
    text
}

fn split(pair: &str) -> (&str, Option<&str>) {
    match pair.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (pair, None),
    }
}

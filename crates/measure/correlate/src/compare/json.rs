//! The values of a JSON text with their places in it, so that its form is kept.

use std::{collections::HashMap, fmt::Write as _};

use fathom_import::{
    import_tree::{ImportPiece, ImportText, TextCoding},
    write::coded,
};
use serde_json::value::RawValue;

use super::value::{ComparedValue, Part, Place, Visitor};

/// Deeper values are not looked at.
const DEPTH_MAX: usize = 100;

/// A string, a number or a word of a JSON text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JsonLeaf {
    path: String,
    /// The offset of its first byte in the text, and the length.
    at: usize,
    n_bytes: usize,
    /// A string without its quotes and escapes.
    value: String,
    is_string: bool,
}

/// All of them in the order of the text; `None` if it is neither an object nor a list.
pub(super) fn leaves(text: &str) -> Option<Vec<JsonLeaf>> {
    let whole: &RawValue = serde_json::from_str(text).ok()?;
    let mut all = Vec::new();
    whole.get().starts_with(['{', '[']).then(|| add(whole, text, &mut "$".to_owned(), 0, &mut all))?;
    Some(all)
}

fn add(raw: &RawValue, text: &str, path: &mut String, depth: usize, all: &mut Vec<JsonLeaf>) {
    let source = raw.get();
    let n = path.len();
    match source.as_bytes().first() {
        _ if depth > DEPTH_MAX => {}
        Some(b'{') => {
            let members: Members<'_> = serde_json::from_str(source).unwrap_or_default();
            for (name, member) in members.0 {
                path.push('.');
                path.push_str(&name);
                add(member, text, path, depth + 1, all);
                path.truncate(n);
            }
        }
        Some(b'[') => {
            let elements: Vec<&RawValue> = serde_json::from_str(source).unwrap_or_default();
            for (idx, element) in elements.into_iter().enumerate() {
                // Writing to memory cannot fail.
                let _ = write!(path, "[{idx}]");
                add(element, text, path, depth + 1, all);
                path.truncate(n);
            }
        }
        _ => {
            let string: Option<String> = serde_json::from_str(source).ok();
            all.push(JsonLeaf {
                path: path.clone(),
                at: source.as_ptr() as usize - text.as_ptr() as usize,
                n_bytes: source.len(),
                is_string: string.is_some(),
                value: string.unwrap_or_else(|| source.to_owned()),
            });
        }
    }
}

/// The members of an object in their order; names may repeat.
#[derive(Default)]
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> serde::de::Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(member) = map.next_entry()? {
                    all.push(member);
                }
                Ok(Members(all))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// Compares by path. Values within strings are escaped, unless the scenario does it later by itself.
pub(super) fn compare(
    (text, one): (&str, &[JsonLeaf]),
    two: &[JsonLeaf],
    is_escaped_later: bool,
    visit: &mut Visitor<'_>,
    alone: &mut Vec<String>,
) -> ImportText {
    let mut others: HashMap<&str, &JsonLeaf> = two.iter().map(|leaf| (leaf.path.as_str(), leaf)).collect();
    let mut all = ImportText::default();
    let mut written = 0;
    for leaf in one {
        let Some(other) = others.remove(leaf.path.as_str()) else {
            alone.push(format!("{} in the JSON is only in the first recording", leaf.path));
            continue;
        };
        let place = Place { part: Part::Json, name: leaf.path.clone() };
        let compared = ComparedValue { place, one: &leaf.value, two: &other.value, before: "", is_raw: false };
        let Some(value) = visit(&compared) else { continue };
        all.push_str(&text[written..leaf.at]);
        written = leaf.at + leaf.n_bytes;
        if leaf.is_string {
            all.push_str("\"");
            all.append(escaped(value, is_escaped_later));
            all.push_str("\"");
        } else {
            all.append(value);
        }
    }
    let mut left: Vec<&str> = others.into_keys().collect();
    left.sort_unstable();
    alone.extend(left.into_iter().map(|path| format!("{path} in the JSON is only in the second recording")));
    all.push_str(&text[written..]);
    all
}

/// A text for the quotes of a JSON string.
fn escaped(text: ImportText, is_escaped_later: bool) -> ImportText {
    let mut all = ImportText::default();
    for piece in text.0 {
        match piece {
            ImportPiece::Literal(literal) => all.push_str(&coded(&literal, TextCoding::Json).unwrap_or(literal)),
            // A hole without a filter gets the one of JSON from the scenario.
            piece if is_escaped_later && !matches!(piece, ImportPiece::Coded(..)) => all.push(piece),
            piece => all.push(ImportPiece::Coded(Box::new(piece), TextCoding::Json)),
        }
    }
    all
}

//! Values of JSON bodies by their path.

use std::fmt::Write as _;

use fathom_import::import_tree::{ExtractSource, MatchIndex};

use super::candidate::{Candidate, Robustness, Sighting};
use crate::json_place::PathSegment;

pub(super) fn candidates(sighting: &Sighting<'_>) -> Vec<Candidate> {
    let mut all = Vec::new();
    for path in &sighting.in_json {
        let members = path.iter().rev();
        let name = members.clone().find_map(|segment| match segment {
            PathSegment::Member(name) => Some(name.as_str()),
            PathSegment::Element(..) => None,
        });
        let is_in_list = members.clone().any(|segment| matches!(segment, PathSegment::Element(..)));
        let mut add = |path: Option<String>, robustness| {
            all.extend(path.map(|path| Candidate {
                robustness,
                from: ExtractSource::Json(path),
                which: MatchIndex::Nth(1),
                name: name.unwrap_or("value").to_owned(),
            }));
        };
        add(written(path, |idx, _| idx.to_string()), if is_in_list { Robustness::Counted } else { Robustness::Json });
        if is_in_list {
            // The list may have grown: the last element of both recordings.
            add(written(path, |idx, n| format!("-{}", n - idx)), Robustness::Counted);
        }
    }
    all
}

/// A path of RFC 9535; `None` if a name has signs that need escapes.
fn written(path: &[PathSegment], element: impl Fn(usize, usize) -> String) -> Option<String> {
    let mut text = "$".to_owned();
    for segment in path {
        // Writing to memory cannot fail.
        let _ = match segment {
            PathSegment::Element(idx, n) => write!(text, "[{}]", element(*idx, *n)),
            PathSegment::Member(name) => {
                let is_word = name.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_')
                    && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_');
                if is_word {
                    write!(text, ".{name}")
                } else if name.contains(['\\', '\'', '"']) || name.contains(char::is_control) {
                    return None;
                } else {
                    write!(text, "['{name}']")
                }
            }
        };
    }
    Some(text)
}

//! Parts of texts with holes: a line, the origin of a URL.

use fathom_http::url::authority_at;

use super::super::import_tree::{ImportPiece, ImportText};

/// One line without control characters, for comments and names.
pub(super) fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Splits a URL after its host and port, which must be known.
pub(super) fn cut_origin(
    url: &ImportText,
    value: impl Fn(&ImportPiece) -> Option<String>,
) -> Option<(String, ImportText)> {
    let (mut origin, mut path) = (String::new(), ImportText::default());
    let mut pieces = url.0.iter();
    for piece in pieces.by_ref() {
        let text = value(piece)?;
        // After the scheme and its slashes, the host ends at the next delimiter.
        let authority = authority_at(&format!("{origin}{text}"));
        let begin = authority.map_or(usize::MAX, |at| at.saturating_sub(origin.len()));
        let end = text.get(begin..).and_then(|rest| rest.find(['/', '?', '#']));
        if let Some(end) = end {
            let (before, behind) = text.split_at(begin + end);
            origin.push_str(before);
            path.push_str(behind);
            break;
        }
        origin.push_str(&text);
    }
    pieces.for_each(|piece| path.push(piece.clone()));
    authority_at(&origin).map(|_| (origin.clone(), with_slash(path)))
}

fn with_slash(path: ImportText) -> ImportText {
    match path.0.first() {
        Some(ImportPiece::Literal(first)) if first.starts_with('/') => path,
        _ => {
            let mut all = ImportText::literal("/");
            all.append(path);
            all
        }
    }
}

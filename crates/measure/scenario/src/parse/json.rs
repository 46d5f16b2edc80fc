//! Checks whether a text with holes is JSON once they are filled. Knows no schema.

use serde::de::IgnoredAny;

use super::{
    super::{
        ast::{HoleSource, Span},
        diagnostic::{BoxedDiagnostic, Diagnostic},
    },
    cursor::Cursor,
    hole,
};

/// Fills each hole with a value of the same length, and parses the result.
pub(super) fn check(text: &str, lines: &[Span]) -> Result<(), BoxedDiagnostic> {
    let mut filled = String::new();
    let mut is_within = false;
    for line in lines {
        fill(Cursor::new(text, *line), &mut filled, &mut is_within);
        filled.push('\n');
    }
    let Err(error) = serde_json::from_str::<IgnoredAny>(&filled) else { return Ok(()) };
    let line = lines[error.line().saturating_sub(1).min(lines.len() - 1)];
    let at = (line.start + error.column().saturating_sub(1)).clamp(line.start, line.end.max(line.start + 1) - 1);
    let why = error.to_string();
    let why = why.split(" at line ").next().unwrap_or_default().to_owned();
    Err(Diagnostic::error((at..at + 1).into(), "this is not JSON")
        .label(why)
        .fix("for a text that is not JSON, or only JSON when its holes are filled, write `body`")
        .boxed())
}

fn fill(mut cursor: Cursor<'_>, filled: &mut String, is_within: &mut bool) {
    while let Some(next) = cursor.rest().chars().next() {
        let start = cursor.at;
        if cursor.rest().starts_with("${") {
            // The hole was parsed before, so this cannot fail.
            let Ok(hole) = hole::hole(&mut cursor) else { return };
            match hole.source {
                HoleSource::Text(text) if hole.filters.is_empty() => filled.push_str(&text),
                _ => filled.extend(std::iter::repeat_n(if *is_within { 'x' } else { '1' }, cursor.at - start)),
            }
            continue;
        }
        let length = if cursor.rest().starts_with("$${") {
            3
        } else if *is_within && next == '\\' {
            // The character after a backslash has no meaning of its own.
            1 + cursor.rest()[1..].chars().next().map_or(0, char::len_utf8)
        } else {
            *is_within ^= next == '"';
            next.len_utf8()
        };
        filled.push_str(&cursor.rest()[..length]);
        cursor.at += length;
    }
    // A line feed within a string is not JSON, but the next line begins in the state in which this one ended.
}

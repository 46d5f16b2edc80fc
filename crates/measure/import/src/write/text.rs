//! Texts with holes, as a scenario writes them.

use super::{
    super::import_tree::{ImportPiece, ImportText},
    names::NameTable,
};

/// A text up to the end of its line.
pub(super) fn rest_of_line(text: &ImportText, names: &NameTable) -> String {
    let mut line = String::new();
    for (idx, piece) in text.0.iter().enumerate() {
        match piece {
            ImportPiece::Literal(literal) => {
                let before_hole = idx + 1 < text.0.len();
                let is_last = idx + 1 == text.0.len();
                let (begin, end) = (literal.len() - literal.trim_start().len(), literal.trim_end().len());
                for (at, char) in literal.char_indices() {
                    let outside = (idx == 0 && at < begin) || (is_last && at >= end);
                    let is_dollar = before_hole && char == '$' && literal[at..].bytes().all(|byte| byte == b'$');
                    push(&mut line, char, outside || is_dollar);
                }
            }
            piece => line.push_str(&hole(piece, names)),
        }
    }
    line
}

/// Appends a character; one that would not parse is written as a hole.
fn push(line: &mut String, char: char, as_hole: bool) {
    match char {
        '\n' => line.push_str("${\"\\n\"}"),
        '\r' => line.push_str("${\"\\r\"}"),
        '\t' => line.push_str("${\"\\t\"}"),
        // A scenario has no notation for other control characters.
        char if char.is_control() => line.push(char::REPLACEMENT_CHARACTER),
        '"' | '\\' if as_hole => {
            line.push_str("${\"\\");
            line.push(char);
            line.push_str("\"}");
        }
        char if as_hole => {
            line.push_str("${\"");
            line.push(char);
            line.push_str("\"}");
        }
        // A dollar and a brace would open a hole; two dollars before a brace mean one.
        '{' if line.ends_with('$') => line.push_str("${"),
        char => line.push(char),
    }
}

/// A text between quotes.
pub(super) fn quoted(text: &ImportText, names: &NameTable) -> String {
    if let [piece] = text.0.as_slice()
        && !matches!(piece, ImportPiece::Literal(_))
    {
        return hole(piece, names);
    }
    let mut line = String::from("\"");
    for (idx, piece) in text.0.iter().enumerate() {
        match piece {
            ImportPiece::Literal(literal) => {
                let before_hole = idx + 1 < text.0.len();
                let dollars = if before_hole { literal.len() - literal.trim_end_matches('$').len() } else { 0 };
                let (literal, dollars) = literal.split_at(literal.len() - dollars);
                line.push_str(&escaped(literal));
                dollars.chars().for_each(|_| line.push_str("${\"$\"}"));
            }
            piece => line.push_str(&hole(piece, names)),
        }
    }
    line.push('"');
    line
}

/// The text to write between quotes.
fn escaped(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '"' => all.push_str("\\\""),
            '\\' => all.push_str("\\\\"),
            '\n' => all.push_str("\\n"),
            '\r' => all.push_str("\\r"),
            '\t' => all.push_str("\\t"),
            char if char.is_control() => all.push(char::REPLACEMENT_CHARACTER),
            char => all.push(char),
        }
    }
    all.replace("${", "$${")
}

/// A word, or a text between quotes.
pub(super) fn plain(text: &str) -> String {
    let is_word = !text.is_empty()
        && !text.contains(|char: char| char.is_whitespace() || char.is_control() || "\"#$".contains(char));
    if is_word { text.to_owned() } else { format!("\"{}\"", escaped(text)) }
}

/// A regular expression between slashes; `None` if it cannot be written.
pub(super) fn regex(pattern: &str) -> Option<String> {
    let mut all = String::from("/");
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        match char {
            '/' => all.push_str("\\/"),
            '\\' => {
                all.push('\\');
                all.push(chars.next().filter(|next| !next.is_control())?);
            }
            '\n' => all.push_str("\\n"),
            '\r' => all.push_str("\\r"),
            '\t' => all.push_str("\\t"),
            char if char.is_control() => return None,
            char => all.push(char),
        }
    }
    all.push('/');
    Some(all)
}

/// A piece as a hole.
pub(super) fn hole(piece: &ImportPiece, names: &NameTable) -> String {
    format!("${{{}}}", source(piece, names))
}

fn source(piece: &ImportPiece, names: &NameTable) -> String {
    let width = |width: u8| if width > 0 { format!(" width {width}") } else { String::new() };
    match piece {
        ImportPiece::Literal(text) => format!("\"{}\"", escaped(text)),
        ImportPiece::Variable(name) => names.of_variable(name),
        ImportPiece::Random(from, to, digits) => format!("rand {from}..{to}{}", width(*digits)),
        ImportPiece::TimeMillis => "now ms".to_owned(),
        ImportPiece::TimeSeconds => "now".to_owned(),
        ImportPiece::Uuid => "uuid".to_owned(),
        ImportPiece::Counter(1, digits) => format!("seq{}", width(*digits)),
        ImportPiece::Counter(from, digits) => format!("seq from {from}{}", width(*digits)),
        ImportPiece::Round => "iteration".to_owned(),
        ImportPiece::Characters(n) => format!("chars {n}"),
        ImportPiece::UrlEncoded(piece) => format!("{}|form", source(piece, names)),
        ImportPiece::UserNumber => "user".to_owned(),
    }
}

/// Whether a field of this name is possible in a scenario (RFC 9110 section 5.6.2).
pub(super) fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
        && !name.starts_with('#')
}

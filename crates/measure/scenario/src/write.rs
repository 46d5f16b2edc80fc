//! Writes texts with holes: the reverse of the parser.

use super::{
    ast::{Clock, Hole, HoleSource, Name, Template, TemplatePiece},
    parse::hole::FILTERS,
};

/// A text on the rest of a line.
#[must_use]
pub fn line(template: &Template) -> String {
    lines_of(template, LineFeed::Named).concat()
}

/// A text as the lines of a block.
pub(super) fn block(template: &Template) -> Vec<String> {
    lines_of(template, LineFeed::EndsLine)
}

/// How a line feed is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineFeed {
    Named,
    EndsLine,
}

/// Blanks at the ends would be lost in parsing and are invisible, so they are written as holes.
fn lines_of(template: &Template, line_feed: LineFeed) -> Vec<String> {
    let mut lines = vec![String::new()];
    let last = template.pieces.len().saturating_sub(1);
    for (idx, piece) in template.pieces.iter().enumerate() {
        let at_end = lines.len() - 1;
        match piece {
            TemplatePiece::Hole(hole) => {
                let line = &mut lines[at_end];
                // A dollar before a hole would make it plain text.
                let dollars = dollars_at_end(line);
                write_hole(line, &dollars);
                line.push_str(&self::hole(hole));
            }
            TemplatePiece::Text(text) => {
                let begin = if idx == 0 { text.len() - text.trim_start().len() } else { 0 };
                let (blank, text) = text.split_at(begin);
                let end = if idx == last { text.trim_end().len() } else { text.len() };
                let (text, blank_behind) = text.split_at(end);
                write_hole(&mut lines[at_end], blank);
                middle(&mut lines, text, line_feed);
                let at_end = lines.len() - 1;
                write_hole(&mut lines[at_end], blank_behind);
            }
        }
    }
    for line in &mut lines {
        if !line.is_empty() && line.trim().is_empty() {
            let blank = std::mem::take(line);
            write_hole(line, &blank);
        }
    }
    lines
}

fn middle(lines: &mut Vec<String>, text: &str, line_feed: LineFeed) {
    for (idx, part) in text.split('\n').enumerate() {
        if idx > 0 && line_feed == LineFeed::EndsLine {
            lines.push(String::new());
        }
        let at_end = lines.len() - 1;
        let line = &mut lines[at_end];
        if idx > 0 && line_feed == LineFeed::Named {
            write_hole(line, "\n");
        }
        for (idx, part) in part.split('\r').enumerate() {
            if idx > 0 {
                write_hole(line, "\r");
            }
            line.push_str(&part.replace("${", "$${"));
        }
    }
}

/// Writes a text as a hole.
fn write_hole(line: &mut String, text: &str) {
    if !text.is_empty() {
        let dollars = dollars_at_end(line);
        line.push_str("${\"");
        line.push_str(&escaped(&dollars));
        line.push_str(&escaped(text));
        line.push_str("\"}");
    }
}

/// Removes the dollars at the end of a line.
fn dollars_at_end(line: &mut String) -> String {
    line.split_off(line.trim_end_matches('$').len())
}

fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut all, c| {
        match c {
            '"' => all.push_str("\\\""),
            '\\' => all.push_str("\\\\"),
            '\n' => all.push_str("\\n"),
            '\r' => all.push_str("\\r"),
            '\t' => all.push_str("\\t"),
            other => all.push(other),
        }
        all
    })
}

/// A value: a number or a single hole unquoted, anything else between quotes.
#[must_use]
pub fn operand(template: &Template) -> String {
    match &template.pieces[..] {
        [TemplatePiece::Hole(only)] => hole(only),
        [TemplatePiece::Text(text)] if is_number(text) => text.clone(),
        pieces => {
            let last = pieces.len().saturating_sub(1);
            let inside = pieces.iter().enumerate().map(|(idx, piece)| match piece {
                TemplatePiece::Hole(piece) => hole(piece),
                TemplatePiece::Text(text) => {
                    let end = if idx < last { text.trim_end_matches('$').len() } else { text.len() };
                    let mut quoted = escaped(&text[..end]).replace("${", "$${");
                    write_hole(&mut quoted, &text[end..]);
                    quoted
                }
            });
            format!("\"{}\"", inside.collect::<String>())
        }
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && digits.bytes().filter(|byte| *byte == b'.').count() <= 1
}

/// A text between quotes.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text).replace("${", "$${"))
}

/// A text without holes: a word unquoted, anything else between quotes.
#[must_use]
pub fn plain(name: &Name) -> String {
    let text = name.text.as_str();
    let is_word = !text.is_empty() && !text.contains(char::is_whitespace) && !text.starts_with(['"', '#']);
    if is_word { text.to_owned() } else { quoted(text) }
}

/// A regular expression between slashes.
#[must_use]
pub fn regex(name: &Name) -> String {
    let mut text = String::from("/");
    let mut chars = name.text.chars();
    while let Some(c) = chars.next() {
        match c {
            '/' => text.push_str("\\/"),
            '\\' => {
                text.push('\\');
                text.extend(chars.next());
            }
            other => text.push(other),
        }
    }
    text.push('/');
    text
}

fn hole(hole: &Hole) -> String {
    let width = |width: Option<u8>| width.map_or(String::new(), |width| format!(" width {width}"));
    let mut text = match &hole.source {
        HoleSource::Variable(name) => format!("${{{}", name.text),
        HoleSource::Column(set, column) => format!("${{{}.{}", set.text, column.text),
        HoleSource::Text(text) => format!("${{\"{}\"", escaped(text)),
        HoleSource::Rand { min, max, width: digits } => format!("${{rand {min}..{max}{}", width(*digits)),
        HoleSource::Seq { from, width: digits } => {
            let from = from.map_or(String::new(), |from| format!(" from {from}"));
            format!("${{seq{from}{}", width(*digits))
        }
        HoleSource::Chars(n) => format!("${{chars {n}"),
        HoleSource::Uuid => "${uuid".to_owned(),
        HoleSource::Now(Clock::Seconds) => "${now".to_owned(),
        HoleSource::Now(Clock::Millis) => "${now ms".to_owned(),
        HoleSource::Now(Clock::Iso) => "${now iso".to_owned(),
        HoleSource::UserNumber => "${user".to_owned(),
        HoleSource::Iteration => "${iteration".to_owned(),
        HoleSource::Round => "${round".to_owned(),
        HoleSource::Env(name) => format!("${{env {}", name.text),
    };
    for filter in &hole.filters {
        if let Some((name, _)) = FILTERS.iter().find(|(_, known)| known == filter) {
            text.push('|');
            text.push_str(name);
        }
    }
    text.push('}');
    text
}

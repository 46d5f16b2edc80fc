//! Texts of an import as the templates of a scenario, which the scenario writes.

use fathom_scenario::{
    ast::{Clock, Filter, Hole, HoleSource, Name, Span, Template, TemplatePiece},
    execution, write,
};

use super::{
    super::import_tree::{ImportPiece, ImportText, TextCoding},
    names::NameTable,
};

/// A text up to the end of its line.
pub(super) fn rest_of_line(text: &ImportText, names: &NameTable) -> String {
    write::line(&template(text, names))
}

/// A value: between quotes unless it is a number or one hole.
pub(super) fn operand(text: &ImportText, names: &NameTable) -> String {
    write::operand(&template(text, names))
}

/// A word, or a text between quotes.
pub(super) fn plain(text: &str) -> String {
    write::plain(&name(&visible(text)))
}

/// A regular expression between slashes; `None` if it cannot be written.
pub(super) fn regex(pattern: &str) -> Option<String> {
    let pattern = pattern.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t");
    // A backslash at the end would escape the slash behind it.
    let backslashes = pattern.len() - pattern.trim_end_matches('\\').len();
    let is_writable = !pattern.contains(char::is_control) && backslashes.is_multiple_of(2);
    is_writable.then(|| write::regex(&name(&pattern)))
}

/// Whether a field of this name is possible in a scenario (RFC 9110 section 5.6.2).
pub(super) fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
        && !name.starts_with('#')
}

fn template(text: &ImportText, names: &NameTable) -> Template {
    let pieces = text.0.iter().map(|piece| match piece {
        ImportPiece::Literal(literal) => TemplatePiece::Text(visible(literal)),
        piece => TemplatePiece::Hole(hole_of(piece, names)),
    });
    Template { span: Span::default(), pieces: pieces.collect() }
}

fn hole_of(piece: &ImportPiece, names: &NameTable) -> Hole {
    let width = |width: u8| (width > 0).then_some(width);
    let source = match piece {
        ImportPiece::Literal(text) => HoleSource::Text(visible(text)),
        ImportPiece::Variable(variable) => HoleSource::Variable(name(&names.of_variable(variable))),
        ImportPiece::Random(min, max, digits) => HoleSource::Rand { min: *min, max: *max, width: width(*digits) },
        ImportPiece::TimeMillis => HoleSource::Now(Clock::Millis),
        ImportPiece::TimeSeconds => HoleSource::Now(Clock::Seconds),
        ImportPiece::Uuid => HoleSource::Uuid,
        ImportPiece::Counter(from, digits) => {
            HoleSource::Seq { from: (*from != 1).then_some(*from), width: width(*digits) }
        }
        ImportPiece::Round => HoleSource::Iteration,
        ImportPiece::Characters(n) => HoleSource::Chars(*n),
        ImportPiece::UserNumber => HoleSource::UserNumber,
        ImportPiece::TimeIso => HoleSource::Now(Clock::Iso),
        ImportPiece::Coded(piece, coding) => {
            let mut hole = hole_of(piece, names);
            hole.filters.push(filter_of(*coding));
            return hole;
        }
    };
    Hole { span: Span::default(), source, filters: Vec::new() }
}

fn filter_of(coding: TextCoding) -> Filter {
    match coding {
        TextCoding::Url => Filter::Url,
        TextCoding::Form => Filter::Form,
        TextCoding::Json => Filter::Json,
        TextCoding::Html => Filter::Html,
        TextCoding::Base64 => Filter::Base64,
        TextCoding::FromUrl => Filter::FromUrl,
        TextCoding::FromHtml => Filter::FromHtml,
        TextCoding::FromJson => Filter::FromJson,
        TextCoding::FromBase64 => Filter::FromBase64,
    }
}

/// The text as users code it when they fill it in; `None` if the result is not text.
pub(super) fn coded(text: &str, coding: TextCoding) -> Option<String> {
    String::from_utf8(execution::filtered(text.as_bytes(), filter_of(coding))).ok()
}

fn name(text: &str) -> Name {
    Name { text: text.to_owned(), span: Span::default() }
}

/// A scenario has no notation for most control characters.
fn visible(text: &str) -> String {
    text.replace(|char: char| char.is_control() && !"\n\r\t".contains(char), "\u{fffd}")
}

//! Parses holes: `${accounts.user|url}`.

use super::{
    super::{
        ast::{Clock, Filter, Hole, HoleSource, Name, Span},
        diagnostic::{BoxedDiagnostic, Diagnostic, nearest},
    },
    cursor::{Cursor, count},
};

/// The names of generators, with an example of each.
pub(super) const GENERATORS: [(&str, &str); 9] = [
    ("rand", "rand 1..100 width 6"),
    ("seq", "seq from 1000 width 6"),
    ("chars", "chars 12"),
    ("uuid", "uuid"),
    ("now", "now, now ms, now iso"),
    ("user", "user"),
    ("iteration", "iteration"),
    ("round", "round"),
    ("env", "env NAME"),
];

/// The names of filters.
pub(in super::super) const FILTERS: [(&str, Filter); 10] = [
    ("url", Filter::Url),
    ("form", Filter::Form),
    ("json", Filter::Json),
    ("html", Filter::Html),
    ("base64", Filter::Base64),
    ("hex", Filter::Hex),
    ("unurl", Filter::FromUrl),
    ("unhtml", Filter::FromHtml),
    ("unjson", Filter::FromJson),
    ("unbase64", Filter::FromBase64),
];

/// The most digits of a number: those of the largest one.
const WIDTH_MAX: u64 = 20;
/// The most random characters of one hole: as long as a long header field.
const CHARS_MAX: u64 = 4096;

/// Whether a text is a valid name of a variable or a data set.
pub(super) fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
        && chars.all(|c| c.is_alphanumeric() || "_-".contains(c))
}

/// Parses a hole; the cursor is before its dollar.
pub(super) fn hole(cursor: &mut Cursor<'_>) -> Result<Hole, BoxedDiagnostic> {
    let start = cursor.at;
    let open = Span { start, end: start + 2 };
    cursor.at += 2;
    let not_closed = || {
        Diagnostic::error(open, "this hole is not closed")
            .fix("put a `}` after it; where no hole is meant, write `$${`")
            .boxed()
    };
    let quoted = cursor.rest().trim_start().starts_with('"');
    let source = if quoted { text(cursor).ok_or_else(not_closed)?? } else { named(cursor, open, not_closed)? };
    let mut filters = Vec::new();
    loop {
        let left = cursor.rest();
        cursor.at = cursor.end - left.trim_start().len();
        let left = cursor.rest();
        if left.starts_with('}') {
            cursor.at += 1;
            return Ok(Hole { span: (start..cursor.at).into(), source, filters });
        }
        let Some(rest) = left.strip_prefix('|') else { return Err(not_closed()) };
        let length = rest.find(['|', '}']).ok_or_else(not_closed)?;
        let name = rest[..length].trim();
        let span = Span { start: cursor.at + 1, end: cursor.at + 1 + length };
        let filter = FILTERS.iter().find(|(filter, _)| *filter == name).ok_or_else(|| {
            Diagnostic::error(span, format!("there is no filter `{name}`"))
                .fix(format!("there are {}", FILTERS.map(|(filter, _)| filter).join(", ")))
                .suggest(nearest(name, FILTERS.map(|(filter, _)| filter)))
                .boxed()
        })?;
        filters.push(filter.1);
        cursor.at += 1 + length;
    }
}

/// A text between quotes; `None` if it is not closed.
fn text(cursor: &mut Cursor<'_>) -> Option<Result<HoleSource, BoxedDiagnostic>> {
    cursor.at = cursor.end - cursor.rest().trim_start().len() + 1;
    let mut text = String::new();
    loop {
        let next = cursor.rest().chars().next()?;
        cursor.at += next.len_utf8();
        match next {
            '"' => return Some(Ok(HoleSource::Text(text))),
            '\\' => match cursor.escaped() {
                Ok(escaped) => text.push_str(escaped),
                Err(fault) => return Some(Err(fault)),
            },
            other => text.push(other),
        }
    }
}

/// A variable, a column or a generator.
fn named(
    cursor: &mut Cursor<'_>,
    open: Span,
    not_closed: impl Fn() -> BoxedDiagnostic,
) -> Result<HoleSource, BoxedDiagnostic> {
    // A character that no name has more likely belongs to the text after an unclosed hole.
    let length = cursor.rest().find(['|', '}', '"', '{']).ok_or_else(&not_closed)?;
    if cursor.rest()[length..].starts_with(['"', '{']) {
        return Err(not_closed());
    }
    let mut words = Cursor { end: cursor.at + length, ..*cursor };
    cursor.at += length;
    let Some(first) = words.word() else {
        return Err(Diagnostic::error((open.start..cursor.at + 1).into(), "this hole names nothing")
            .fix("such as ${token}, ${accounts.user} or ${uuid}; where no hole is meant, write `$${`")
            .boxed());
    };
    let generator = GENERATORS.iter().find(|(name, _)| *name == first.text);
    let Some((_, usage)) = generator else { return variable(first, &mut words) };
    let source = generated(&first.text, &mut words).map_err(|fault| match fault.fix {
        Some(_) => fault,
        None => fault.fix(format!("such as ${{{usage}}}")).boxed(),
    })?;
    match words.word() {
        None => Ok(source),
        Some(more) => {
            let fault = Diagnostic::error(more.span, format!("`{}` has no meaning after `{}`", more.text, first.text));
            Err(fault.fix(format!("such as ${{{usage}}}")).boxed())
        }
    }
}

fn variable(first: Name, words: &mut Cursor<'_>) -> Result<HoleSource, BoxedDiagnostic> {
    if let Some(more) = words.word() {
        let fault = Diagnostic::error(
            (first.span.start..more.span.end).into(),
            format!("nothing makes values by the name of `{}`", first.text),
        );
        let fault = fault.fix("there are rand, seq, chars, uuid, now, user, iteration, round and env");
        return Err(fault.suggest(nearest(&first.text, GENERATORS.map(|(name, _)| name))).boxed());
    }
    if let Some((set, column)) = first.text.split_once('.').filter(|(set, column)| is_name(set) && !column.is_empty()) {
        let dot = first.span.start + set.len();
        let set = Name { text: set.to_owned(), span: (first.span.start..dot).into() };
        return Ok(HoleSource::Column(set, Name { text: column.to_owned(), span: (dot + 1..first.span.end).into() }));
    }
    if is_name(&first.text) {
        return Ok(HoleSource::Variable(first));
    }
    Err(Diagnostic::error(first.span, format!("`{}` is not a name of a variable", first.text))
        .fix("names are letters, digits, `_` and `-`, and begin with a letter; where no hole is meant, write `$${`")
        .boxed())
}

fn generated(name: &str, words: &mut Cursor<'_>) -> Result<HoleSource, BoxedDiagnostic> {
    Ok(match name {
        "rand" => {
            let range = words.need("a range such as 1..100")?;
            let bounds =
                range.text.split_once("..").and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
            let Some((min, max)) = bounds.filter(|(min, max): &(u64, u64)| min <= max) else {
                return Err(Diagnostic::error(range.span, format!("`{}` is not a range", range.text)).boxed());
            };
            HoleSource::Rand { min, max, width: width(words, max)? }
        }
        "seq" => {
            let from = words.keyword("from").map(|_| words.count("a number", 0)).transpose()?.map(|from| from.value);
            HoleSource::Seq { from, width: width(words, 0)? }
        }
        "chars" => {
            let n = words.count("a length", 1)?;
            let fault = || Diagnostic::error(n.span, format!("more than {CHARS_MAX} characters")).boxed();
            HoleSource::Chars(u16::try_from(n.value).ok().filter(|n| u64::from(*n) <= CHARS_MAX).ok_or_else(fault)?)
        }
        "uuid" => HoleSource::Uuid,
        "now" => HoleSource::Now(match words.word() {
            None => Clock::Seconds,
            Some(word) if word.text == "ms" => Clock::Millis,
            Some(word) if word.text == "iso" => Clock::Iso,
            Some(word) => {
                return Err(Diagnostic::error(word.span, format!("no such form of the time: `{}`", word.text)).boxed());
            }
        }),
        "user" => HoleSource::UserNumber,
        "iteration" => HoleSource::Iteration,
        "round" => HoleSource::Round,
        _ => HoleSource::Env(words.need("the name of an environment variable")?),
    })
}

/// `width 6`, wide enough for the greatest number.
fn width(words: &mut Cursor<'_>, max: u64) -> Result<Option<u8>, BoxedDiagnostic> {
    if words.keyword("width").is_none() {
        return Ok(None);
    }
    let word = words.need("a number of digits")?;
    let width = count(&word, 1)?;
    let least = max.to_string().len();
    match u8::try_from(width.value) {
        Ok(value) if width.value <= WIDTH_MAX && usize::from(value) >= least => Ok(Some(value)),
        _ => {
            Err(Diagnostic::error(width.span, format!("a width from {least} to {WIDTH_MAX} is possible here")).boxed())
        }
    }
}

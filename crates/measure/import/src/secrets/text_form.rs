//! Where texts of several forms have values: JSON, XML, the pairs of a form, and any other.

use std::{ops::Range, sync::LazyLock};

use regex::{Captures, Regex};

use super::{
    super::{
        encode::{form, unform},
        import_tree::{ImportText, TextCoding},
        write::coded,
    },
    names::{ValueRole, is_value, pattern},
};

/// The members of JSON that are strings or numbers.
static MEMBER: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r#""(?P<name>(?:[^"\\]|\\.)*)"\s*:\s*(?:"(?P<value>(?:[^"\\]|\\.)+)"|(?P<raw>-?[0-9][0-9.eE+-]*))"#)
});
/// Elements of XML that hold text alone, without the prefix of their namespace.
static ELEMENT: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"<(?:[\w.-]+:)?(?P<name>[\w.-]+)(?:\s[^<>]*)?>\s*(?:<!\[CDATA\[(?P<raw>[^\]]+)\]\]>|(?P<value>[^<>\s](?:[^<>]*[^<>\s])?))\s*</",
    )
});
/// Attributes of XML.
static ATTRIBUTE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"\s(?:[\w.-]+:)?(?P<name>[\w.-]+)\s*=\s*(?:"(?P<value>[^"<]+)"|'(?P<single>[^'<]+)')"#));
/// Pairs of a form.
static PAIR: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?:^|&)(?P<name>[^&=]*)=(?P<value>[^&]+)"));
/// Names with values in any other text: `name=value` and `name: value`.
static WORD: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"(?P<name>[\w.-]+)["']?\s*[=:]\s*["']?(?P<raw>[^\s&;,"'<>]+)"#));

/// How a text writes its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextForm {
    /// JSON on a line of a scenario that says so, which escapes what it fills in by itself.
    JsonLine,
    Json,
    Xml,
    /// Names and values as URLs and forms have them.
    Pairs,
    Other,
}

/// A value in a text, as it was before the text was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TextValue {
    pub(super) plain: String,
    pub(super) range: Range<usize>,
    /// How another value has to be coded at its place.
    pub(super) coding: Option<TextCoding>,
}

impl TextForm {
    /// The form of a text that is no list of pairs.
    pub(super) fn of(text: &str) -> Self {
        match text.trim_start().as_bytes() {
            [b'{' | b'[', ..] => Self::Json,
            [b'<', ..] => Self::Xml,
            _ => Self::Other,
        }
    }

    /// The secrets that names tell, and the persons.
    pub(super) fn named(self, text: &str) -> Vec<(&str, ValueRole, TextValue)> {
        let patterns: &[&Regex] = match self {
            Self::JsonLine | Self::Json => &[&MEMBER],
            Self::Xml => &[&ELEMENT, &ATTRIBUTE],
            Self::Pairs => &[&PAIR],
            Self::Other => &[&WORD],
        };
        let of = |found: Captures<'_>| {
            let group = |name: &str| found.name(name).map(|part| part.range());
            let name = &text[group("name")?];
            let role = ValueRole::of(name)?;
            let value = match group("raw") {
                Some(range) => TextValue { plain: text[range.clone()].to_owned(), range, coding: None },
                None => self.value(text, group("value").or_else(|| group("single"))?),
            };
            is_value(&value.plain).then_some((name, role, value))
        };
        patterns.iter().flat_map(|pattern| pattern.captures_iter(text)).filter_map(of).collect()
    }

    /// The value that a part of a text stands for.
    fn value(self, text: &str, range: Range<usize>) -> TextValue {
        let written = &text[range.clone()];
        let (plain, coding) = match self {
            Self::JsonLine | Self::Json => {
                let plain = serde_json::from_str(&format!("\"{written}\"")).ok();
                (plain, (self == Self::Json).then_some(TextCoding::Json))
            }
            Self::Xml if TagPlace::of(&text[..range.start]) == TagPlace::CharacterData => (None, None),
            Self::Xml => (coded(written, TextCoding::FromHtml), Some(TextCoding::Html)),
            Self::Pairs => {
                let plain = unform(ImportText::literal(written));
                // What was encoded in another way is sent as it is.
                let is_same = form(plain.clone()).to_string() == written;
                (plain.as_literal().filter(|_| is_same).map(str::to_owned), Some(TextCoding::Form))
            }
            Self::Other => (None, None),
        };
        match plain {
            Some(plain) => TextValue { plain, range, coding },
            None => TextValue { plain: written.to_owned(), range, coding: None },
        }
    }

    /// The value at a place where a known one was found; `None` if it is only a name, or a part of a longer word.
    pub(super) fn value_at(self, text: &str, range: Range<usize>) -> Option<TextValue> {
        let (before, behind) = (&text[..range.start], &text[range.end..]);
        let is_name = match self {
            Self::JsonLine | Self::Json => {
                behind.strip_prefix('"').is_some_and(|behind| behind.trim_start().starts_with(':'))
            }
            Self::Xml => {
                let is_attribute = before.ends_with(['"', '\'']) && behind.starts_with(['"', '\'']);
                TagPlace::of(before) == TagPlace::Tag && !is_attribute
            }
            Self::Pairs => behind.starts_with('='),
            Self::Other => false,
        };
        let continues = |char: Option<char>| char.is_some_and(char::is_alphanumeric);
        let is_part = continues(before.chars().next_back()) || continues(behind.chars().next());
        (!is_name && !is_part).then(|| self.value(text, range))
    }
}

/// Where in XML a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagPlace {
    Tag,
    Text,
    /// In a CDATA section, which has no escapes.
    CharacterData,
}

impl TagPlace {
    /// The place behind this beginning of a document.
    fn of(before: &str) -> Self {
        match before.rfind(['<', '>']).map(|at| &before[at..]) {
            Some(last) if last.starts_with("<![CDATA[") => Self::CharacterData,
            Some(last) if last.starts_with('<') => Self::Tag,
            _ => Self::Text,
        }
    }
}

//! The forms in which an answer can deliver a value that a request sends: encoded, escaped, or before it was encoded.

use std::collections::HashSet;

use fathom_import::{import_tree::TextCoding, write::coded};

/// A shorter value in base64 has too few characters to be found by it.
const BASE64_MIN: usize = 6;

/// A pair of texts in answers, and how they become the pair of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) one: String,
    pub(crate) two: String,
    /// Applied in this order, they make the sent value of the delivered one.
    pub(crate) codings: Vec<TextCoding>,
}

/// All variants of a pair of values, the simplest first.
pub(crate) fn variants(one: &str, two: &str) -> Vec<Variant> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for sent in [None, Some(TextCoding::Url), Some(TextCoding::Form), Some(TextCoding::Base64)] {
        let (Some(one), Some(two)) = (before(one, sent), before(two, sent)) else { continue };
        for delivered in &DELIVERED {
            let (Some(one), Some(two)) = (delivered.delivered(&one), delivered.delivered(&two)) else { continue };
            if seen.insert((one.clone(), two.clone())) {
                all.push(Variant { one, two, codings: delivered.coding.into_iter().chain(sent).collect() });
            }
        }
    }
    all
}

/// The value before a request encoded it, if the coding makes exactly this value of it.
pub(crate) fn before(value: &str, coding: Option<TextCoding>) -> Option<String> {
    let Some(coding) = coding else { return Some(value.to_owned()) };
    let plain = match coding {
        TextCoding::Form => coded(&value.replace('+', " "), TextCoding::FromUrl)?,
        TextCoding::Url => coded(value, TextCoding::FromUrl)?,
        TextCoding::Base64 => coded(value, TextCoding::FromBase64).filter(|plain| plain.len() >= BASE64_MIN)?,
        _ => return None,
    };
    (!plain.chars().any(char::is_control) && coded(&plain, coding).as_deref() == Some(value)).then_some(plain)
}

/// A way in which servers write values.
struct Delivery {
    coding: Option<TextCoding>,
    encode: fn(&str) -> Option<String>,
}

impl Delivery {
    /// The text of the answer, if decoding makes exactly this value of it.
    fn delivered(&self, value: &str) -> Option<String> {
        let text = (self.encode)(value)?;
        match self.coding {
            None => Some(text),
            Some(coding) => (coded(&text, coding).as_deref() == Some(value)).then_some(text),
        }
    }
}

/// Servers differ in what they escape, and how.
const DELIVERED: [Delivery; 10] = [
    Delivery { coding: None, encode: |value| Some(value.to_owned()) },
    Delivery { coding: Some(TextCoding::FromHtml), encode: |value| Some(replaced(value, &HTML_HEX)) },
    Delivery { coding: Some(TextCoding::FromHtml), encode: |value| Some(replaced(value, &HTML_DECIMAL)) },
    Delivery { coding: Some(TextCoding::FromHtml), encode: |value| Some(replaced(value, &HTML_MORE)) },
    Delivery { coding: Some(TextCoding::FromHtml), encode: |value| Some(replaced(value, &HTML_PLUS)) },
    Delivery { coding: Some(TextCoding::FromJson), encode: |value| Some(replaced(value, &JSON_SLASH)) },
    Delivery { coding: Some(TextCoding::FromJson), encode: |value| Some(replaced(value, &JSON_UNICODE)) },
    Delivery { coding: Some(TextCoding::FromUrl), encode: |value| coded(value, TextCoding::Url) },
    Delivery {
        coding: Some(TextCoding::FromUrl),
        encode: |value| coded(value, TextCoding::Url).map(|text| lower_hex(&text)),
    },
    Delivery {
        coding: Some(TextCoding::FromBase64),
        encode: |value| coded(value, TextCoding::Base64).filter(|_| value.len() >= BASE64_MIN),
    },
];

/// Django, Go and others.
const HTML_HEX: [(char, &str); 5] = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#x27;")];
/// PHP, Python and others.
const HTML_DECIMAL: [(char, &str); 5] = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;")];
/// Handlebars and Mustache.
const HTML_MORE: [(char, &str); 7] =
    [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;"), ('=', "&#x3D;"), ('/', "&#x2F;")];
/// ASP.NET.
const HTML_PLUS: [(char, &str); 6] =
    [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#x27;"), ('+', "&#x2B;")];
/// PHP and others.
const JSON_SLASH: [(char, &str); 3] = [('\\', "\\\\"), ('"', "\\\""), ('/', "\\/")];
/// JSON within HTML, by Django, Rails and others.
const JSON_UNICODE: [(char, &str); 7] = [
    ('\\', "\\\\"),
    ('"', "\\u0022"),
    ('\'', "\\u0027"),
    ('<', "\\u003C"),
    ('>', "\\u003E"),
    ('&', "\\u0026"),
    ('/', "\\u002F"),
];

fn replaced(value: &str, escapes: &[(char, &str)]) -> String {
    value.chars().fold(String::with_capacity(value.len()), |mut all, char| {
        match escapes.iter().find(|(escaped, _)| *escaped == char) {
            Some((_, escape)) => all.push_str(escape),
            None => all.push(char),
        }
        all
    })
}

/// `%2F` as `%2f`; everything else keeps its case.
fn lower_hex(encoded: &str) -> String {
    let mut parts = encoded.split('%');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut all, part| {
        let (code, rest) = part.split_at(part.len().min(2));
        all.push('%');
        all.push_str(&code.to_lowercase());
        all.push_str(rest);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_looked_for_in_every_form_that_decodes_to_it() {
        let texts = |one: &str, two: &str| -> Vec<String> {
            variants(one, two).into_iter().map(|variant| format!("{} {:?}", variant.one, variant.codings)).collect()
        };
        // It looks the same in each of them, apart from base64.
        assert_eq!(texts("abc123", "xyz789"), ["abc123 []", "YWJjMTIz [FromBase64]"]);
        let all = texts("a/b=c&d", "e/f=g&h");
        for expected in [
            "a/b=c&d []",
            "a/b=c&amp;d [FromHtml]",
            "a&#x2F;b&#x3D;c&amp;d [FromHtml]",
            "a\\/b=c&d [FromJson]",
            "a\\u002Fb=c\\u0026d [FromJson]",
            "a%2Fb%3Dc%26d [FromUrl]",
            "a%2fb%3dc%26d [FromUrl]",
            "YS9iPWMmZA== [FromBase64]",
        ] {
            assert!(all.contains(&expected.to_owned()), "{expected} in {all:?}");
        }
    }

    #[test]
    fn a_value_that_was_encoded_is_looked_for_before_that_too() {
        let first = |one: &str, two: &str, codings: &[TextCoding]| {
            variants(one, two).into_iter().find(|variant| variant.codings == codings).map(|variant| variant.one)
        };
        assert_eq!(first("a%2Fb", "c%2Fd", &[TextCoding::Url]).as_deref(), Some("a/b"));
        assert_eq!(first("a+b", "c+d", &[TextCoding::Form]).as_deref(), Some("a b"));
        assert_eq!(first("dG9rZW4x", "dG9rZW4y", &[TextCoding::Base64]).as_deref(), Some("token1"));
        // No encoder writes this, so none would write it again.
        assert_eq!(first("a%2fb", "c%2fd", &[TextCoding::Url]), None);
        let both = first("a%26b", "c%26d", &[TextCoding::FromHtml, TextCoding::Url]);
        assert_eq!(both.as_deref(), Some("a&amp;b"));
    }
}

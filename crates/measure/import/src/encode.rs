//! The encodings that readers need: of URLs, and of names and passwords.

use data_encoding::BASE64;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::import_tree::{ImportPiece, ImportText, TextCoding};

/// The media type of most forms.
pub(super) const FORM_MEDIA_TYPE: &str = "application/x-www-form-urlencoded";
/// The characters that RFC 3986 section 2.3 leaves unencoded.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes all but the unreserved characters; blanks become a plus. Literals are encoded now, variables when they are filled in.
pub(super) fn percent(text: ImportText) -> ImportText {
    encoded(text, |literal| utf8_percent_encode(literal, RESERVED).to_string().replace("%20", "+"))
}

/// Encodes like forms: a blank becomes a plus.
pub(super) fn form(text: ImportText) -> ImportText {
    encoded(text, |literal| utf8_percent_encode(literal, RESERVED_IN_FORMS).to_string().replace(' ', "+"))
}

/// Decodes form encoding where it is valid; pieces to be filled in stay unchanged.
pub(super) fn unform(text: ImportText) -> ImportText {
    text.map_literals(|literal| {
        let plain = literal.replace('+', " ");
        percent_decode_str(&plain).decode_utf8().map_or_else(|_| literal.to_owned(), Into::into)
    })
}

fn encoded(text: ImportText, change: impl Fn(&str) -> String) -> ImportText {
    let mut all = ImportText::default();
    for piece in text.0 {
        match piece {
            ImportPiece::Literal(literal) => all.push_str(&change(&literal)),
            ImportPiece::Variable(_) => all.push(ImportPiece::Coded(Box::new(piece), TextCoding::Form)),
            // Numbers, letters and dashes have the same encoding.
            piece => all.push(piece),
        }
    }
    all
}

/// The characters that Java and browsers leave unencoded in forms.
const RESERVED_IN_FORMS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*').remove(b' ');

/// `Basic …` as in RFC 7617; `None` if it contains a variable, which would have to be encoded later.
pub(super) fn basic(user: &ImportText, password: &ImportText) -> Option<ImportText> {
    let pair = format!("{}:{}", user.as_literal()?, password.as_literal()?);
    Some(ImportText::literal(format!("Basic {}", BASE64.encode(pair.as_bytes()))))
}

/// Splits at the first occurrence of the character in a literal.
pub(super) fn split_once(text: &ImportText, at: char) -> Option<(ImportText, ImportText)> {
    let (mut before, mut rest) = (ImportText::default(), ImportText::default());
    let mut found = false;
    for piece in &text.0 {
        match piece {
            ImportPiece::Literal(literal) if !found => match literal.split_once(at) {
                Some((left, right)) => {
                    before.push_str(left);
                    rest.push_str(right);
                    found = true;
                }
                None => before.push_str(literal),
            },
            piece if found => rest.push(piece.clone()),
            piece => before.push(piece.clone()),
        }
    }
    found.then_some((before, rest))
}

/// The text after a prefix.
pub(super) fn strip_prefix(text: &ImportText, prefix: &str) -> Option<ImportText> {
    let Some(ImportPiece::Literal(first)) = text.0.first() else { return None };
    let mut rest = ImportText::literal(first.strip_prefix(prefix)?);
    text.0[1..].iter().for_each(|piece| rest.push(piece.clone()));
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_encoded_at_once_and_variables_when_they_are_filled_in() {
        let text = ImportText(vec![ImportPiece::Literal("a b&c=é~".into()), ImportPiece::Variable("x y".into())]);
        let encoded = percent(text.clone());
        assert_eq!(encoded.to_string(), "a+b%26c%3D%C3%A9~${x y}");
        assert!(matches!(encoded.0[1], ImportPiece::Coded(..)));
        assert_eq!(form(text).to_string(), "a+b%26c%3D%C3%A9%7E${x y}");
    }

    #[test]
    fn a_text_is_cut_once_and_only_in_a_literal() {
        let text = ImportText(vec![
            ImportPiece::Variable("a=b".into()),
            ImportPiece::Literal("c=d=e".into()),
            ImportPiece::Variable("f".into()),
        ]);
        let (before, rest) = split_once(&text, '=').unwrap();
        assert_eq!((before.to_string().as_str(), rest.to_string().as_str()), ("${a=b}c", "d=e${f}"));
        assert_eq!(split_once(&text, '#'), None);
    }

    #[test]
    fn basic_authentication_is_that_of_the_rfc() {
        let header = basic(&"Aladdin".into(), &"open sesame".into()).unwrap();
        assert_eq!(header.to_string(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }
}

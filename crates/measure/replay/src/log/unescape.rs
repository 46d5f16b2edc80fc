//! Characters that servers write as escapes: nginx, Apache and JSON in quotes.

use std::borrow::Cow;

/// Undoes `\xHH`, `\uHHHH`, `\"` and the like. A backslash that begins no escape stays.
pub(super) fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr::memchr(b'\\', text) else { return Cow::Borrowed(text) };
    let mut bytes = text[..first].to_vec();
    let mut rest = &text[first..];
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        rest = match after.split_first() {
            Some((b'x', digits)) => hexadecimal(digits, 2).map(|(byte, rest)| {
                bytes.extend(u8::try_from(byte));
                rest
            }),
            Some((b'u', digits)) => unicode(digits).map(|(character, rest)| {
                bytes.extend(character.encode_utf8(&mut [0; 4]).bytes());
                rest
            }),
            Some((letter, rest)) => single(*letter).map(|byte| {
                bytes.push(byte);
                rest
            }),
            None => None,
        }
        .unwrap_or_else(|| {
            bytes.push(b'\\');
            after
        });
    }
    Cow::Owned(bytes)
}

const fn single(letter: u8) -> Option<u8> {
    Some(match letter {
        b'"' | b'\\' | b'/' => letter,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'v' => 11,
        b'f' => 12,
        _ => return None,
    })
}

/// A number of so many digits, and what follows it.
fn hexadecimal(text: &[u8], n_digits: usize) -> Option<(u32, &[u8])> {
    let (digits, rest) = text.split_at_checked(n_digits)?;
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let number = digits.iter().try_fold(0, |number, byte| Some(number * 16 + digit(byte)?))?;
    Some((number, rest))
}

/// A character of four digits, or of a pair of surrogates (RFC 8259 section 7).
fn unicode(text: &[u8]) -> Option<(char, &[u8])> {
    let (first, rest) = hexadecimal(text, 4)?;
    if let Some(character) = char::from_u32(first) {
        return Some((character, rest));
    }
    let (second, rest) = hexadecimal(rest.strip_prefix(b"\\u")?, 4)?;
    let character = char::decode_utf16([u16::try_from(first).ok()?, u16::try_from(second).ok()?]).next()?.ok()?;
    Some((character, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_nginx_apache_and_json_are_undone_and_others_stay() {
        let cases: [(&str, &[u8]); 8] = [
            (r"/q?x=\x22y\x22&\xC3\xBC", "/q?x=\"y\"&ü".as_bytes()),
            (r#"a \"quoted\" one \\ \t"#, b"a \"quoted\" one \\ \t"),
            (r"\x16\x03\x01", &[0x16, 3, 1]),
            (r"\u0022\u00fc", "\"ü".as_bytes()),
            (r"\ud83d\ude00!", "😀!".as_bytes()),
            (r"\ud83d \x2 \q", br"\ud83d \x2 \q"),
            ("\\", b"\\"),
            ("plain", b"plain"),
        ];
        for (text, bytes) in cases {
            assert_eq!(unescape(text.as_bytes()).as_ref(), bytes, "{text}");
        }
    }
}

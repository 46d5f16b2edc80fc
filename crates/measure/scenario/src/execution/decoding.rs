//! Filters that decode: the value takes its place within the same memory, as no decoded text is longer than the encoded one.
//!
//! What is not validly encoded stays as it is.

/// The named characters that templates of web servers escape.
const ENTITIES: [(&[u8], &str); 6] =
    [(b"amp", "&"), (b"lt", "<"), (b"gt", ">"), (b"quot", "\""), (b"apos", "'"), (b"nbsp", "\u{a0}")];
/// The longest escape without its ends: `#x10FFFF`.
const ENTITY_MAX: usize = 8;

/// An escape at the beginning of the rest of a text: how many bytes it has, and the character.
type Escape = fn(&[u8]) -> Option<(usize, char)>;

/// `%2F`; a plus stays a plus.
pub(super) fn url(begin: usize, text: &mut Vec<u8>) {
    let mut to = begin;
    let mut at = begin;
    while at < text.len() {
        let coded = text[at..].strip_prefix(b"%").and_then(|rest| hex(rest.get(..2)?));
        text[to] = coded.and_then(|code| u8::try_from(code).ok()).unwrap_or(text[at]);
        at += if coded.is_some() { 3 } else { 1 };
        to += 1;
    }
    text.truncate(to);
}

/// `&amp;`, `&#39;`, `&#x27;`
pub(super) fn html(begin: usize, text: &mut Vec<u8>) {
    unescape(begin, text, |rest| {
        let inner = rest.strip_prefix(b"&")?;
        let end = inner.iter().take(ENTITY_MAX + 1).position(|byte| *byte == b';')?;
        let inner = &inner[..end];
        let numeric = inner.strip_prefix(b"#");
        let char = match numeric.map(|digits| digits.strip_prefix(b"x").or_else(|| digits.strip_prefix(b"X"))) {
            Some(Some(digits)) => char::from_u32(hex(digits)?)?,
            Some(None) => char::from_u32(std::str::from_utf8(numeric?).ok()?.parse().ok()?)?,
            None => ENTITIES.iter().find(|(name, _)| *name == inner)?.1.chars().next()?,
        };
        Some((end + 2, char))
    });
}

/// The escapes of strings of JSON and JavaScript: `\/`, `\u002F`.
pub(super) fn json(begin: usize, text: &mut Vec<u8>) {
    unescape(begin, text, |rest| {
        let rest = rest.strip_prefix(b"\\")?;
        let unit = |rest: &[u8]| hex(rest.strip_prefix(b"u")?.get(..4)?);
        let plain = match rest.first()? {
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            sign @ (b'"' | b'\\' | b'/' | b'\'') => char::from(*sign),
            _ => {
                let first = unit(rest)?;
                if let Some(char) = char::from_u32(first) {
                    return Some((6, char));
                }
                let second = unit(rest.get(5..)?.strip_prefix(b"\\")?)?;
                let both = [u16::try_from(first).ok()?, u16::try_from(second).ok()?];
                return Some((12, char::decode_utf16(both).next()?.ok()?));
            }
        };
        Some((2, plain))
    });
}

/// Base64 with padding (RFC 4648 section 4).
pub(super) fn base64(begin: usize, text: &mut Vec<u8>) {
    if let Ok(decoded) = data_encoding::BASE64.decode(&text[begin..]) {
        text.truncate(begin);
        text.extend_from_slice(&decoded);
    }
}

fn unescape(begin: usize, text: &mut Vec<u8>, escape: Escape) {
    let (mut at, mut to) = (begin, begin);
    while at < text.len() {
        let mut utf8 = [0; 4];
        if let Some((length, char)) = escape(&text[at..]) {
            let char = char.encode_utf8(&mut utf8).as_bytes();
            text[to..to + char.len()].copy_from_slice(char);
            at += length;
            to += char.len();
        } else {
            text[to] = text[at];
            at += 1;
            to += 1;
        }
    }
    text.truncate(to);
}

fn hex(digits: &[u8]) -> Option<u32> {
    let is_hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    u32::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_hex)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_decoded_behind_what_is_already_written() {
        type Decode = fn(usize, &mut Vec<u8>);
        let cases: [(Decode, &str, &str); 12] = [
            (url, "a%2Fb%c3%bc+%zz%2", "a/bü+%zz%2"),
            (url, "", ""),
            (html, "a&amp;b&#39;&#x27;&lt;&quot;", "a&b''<\""),
            (html, "&unknown; & &#xD800; &#; &#x; &", "&unknown; & &#xD800; &#; &#x; &"),
            (html, "&nbsp;&#128512;", "\u{a0}😀"),
            (json, r#"a\/b\u002Fc\"\n\\"#, "a/b/c\"\n\\"),
            (json, r"\ud83d\ude00", "😀"),
            (json, r"\ud83d \u12 \x \", r"\ud83d \u12 \x \"),
            (base64, "YW5uOmh1c2g=", "ann:hush"),
            (base64, "not base64!", "not base64!"),
            (url, "%25%32%35", "%25"),
            (html, "&amp;amp;", "&amp;"),
        ];
        for (decode, encoded, plain) in cases {
            let mut text = format!("%2F{encoded}").into_bytes();
            decode(3, &mut text);
            assert_eq!(String::from_utf8(text).unwrap(), format!("%2F{plain}"), "{encoded}");
        }
    }
}

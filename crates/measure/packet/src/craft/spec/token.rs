//! Splits a line into words, signs and quoted texts.

use super::{SpecFault, TextSpan, fault::LocatedFault};

/// A token of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// `/`, before the next header.
    Slash,
    /// `>`, between source and destination.
    To,
    /// A quoted text with its escapes resolved.
    Text(Vec<u8>),
    /// Anything else up to the next space or sign.
    Word(&'a str),
}

/// Splits a line. A `/` between a character and a digit belongs to a subnet.
pub(super) fn tokens(line: &str) -> Result<Vec<(Token<'_>, TextSpan)>, LocatedFault> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = line[at..].chars().next() {
        let start = at;
        at += first.len_utf8();
        let token = match first {
            _ if first.is_whitespace() => continue,
            '/' => Token::Slash,
            '>' => Token::To,
            '"' => {
                let (text, length) = quoted(&line[at..], start)?;
                at += length;
                Token::Text(text)
            }
            _ => {
                at = start + word_length(&line[start..]);
                Token::Word(&line[start..at])
            }
        };
        tokens.push((token, start..at));
    }
    Ok(tokens)
}

fn word_length(text: &str) -> usize {
    let ends = |(at, sign): (usize, char)| {
        let is_subnet = || at > 0 && text[at + 1..].starts_with(|next: char| next.is_ascii_digit());
        sign.is_whitespace() || sign == '>' || sign == '"' || sign == '/' && !is_subnet()
    };
    text.char_indices().find(|place| ends(*place)).map_or(text.len(), |(at, _)| at)
}

/// Returns the text before the closing quotation mark, and its length after the opening one at `start`.
fn quoted(text: &str, start: usize) -> Result<(Vec<u8>, usize), LocatedFault> {
    let mut bytes = Vec::new();
    let mut rest = text;
    loop {
        let Some(next) = rest.chars().next() else {
            return Err(SpecFault::Unclosed.at(start..start + 1 + text.len()));
        };
        rest = &rest[next.len_utf8()..];
        match next {
            '"' => return Ok((bytes, text.len() - rest.len())),
            '\\' => {
                let (byte, length) = escaped(rest).ok_or_else(|| {
                    let at = start + text.len() - rest.len();
                    let sign = rest.chars().next().map_or(0, char::len_utf8);
                    SpecFault::Escape.at(at..at + 1 + sign)
                })?;
                bytes.push(byte);
                rest = &rest[length..];
            }
            other => bytes.extend(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Returns the byte of an escape, and its length after the backslash.
fn escaped(text: &str) -> Option<(u8, usize)> {
    let simple = |byte| Some((byte, 1));
    match text.as_bytes().first()? {
        b'n' => simple(b'\n'),
        b'r' => simple(b'\r'),
        b't' => simple(b'\t'),
        b'0' => simple(0),
        b'\\' => simple(b'\\'),
        b'"' => simple(b'"'),
        b'x' => {
            let digits = text.get(1..3).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
            Some((u8::from_str_radix(digits, 16).ok()?, 3))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        let show = |(token, _)| match token {
            Token::Slash => "/".to_owned(),
            Token::To => ">".to_owned(),
            Token::Text(text) => format!("{:?}", String::from_utf8_lossy(&text)),
            Token::Word(word) => word.to_owned(),
        };
        tokens(line).unwrap().into_iter().map(show).collect()
    }

    #[test]
    fn spaces_may_be_left_out_where_signs_stand() {
        assert_eq!(words("eth/ip 10.0.0.1>10.0.0.2/udp"), ["eth", "/", "ip", "10.0.0.1", ">", "10.0.0.2", "/", "udp"]);
        assert_eq!(words("ip>10.0.0.0/24? / udp"), ["ip", ">", "10.0.0.0/24?", "/", "udp"]);
        assert!(words(" \n\t ").is_empty());
    }

    #[test]
    fn texts_have_escapes() {
        assert_eq!(tokens(r#""a\n\x00\\\" é""#).unwrap()[0].0, Token::Text("a\n\0\\\" é".into()));
        for (line, span) in [(r#"/ "abc"#, 2..6), (r#""a\q""#, 2..4), (r#""\x4é""#, 1..3), ("\"\\", 1..2)] {
            assert_eq!(tokens(line).unwrap_err().span, span, "{line}");
        }
    }
}

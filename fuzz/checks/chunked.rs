//! What must hold for every body that claims to come in chunks.
//!
//! Shared by the fuzz target and by the test of `http` that runs the corpus.

use fathom_http::h1::{HeadReader, Malformed, Method, ResponseProgress, ResponseReader};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Follows a body whole and in pieces, and compares its end with that of a decoder that looks at whole lines.
pub(crate) fn chunked(body: &[u8]) {
    let whole = end(body, body.len().max(1));
    for piece in [1, 2, 5, 16] {
        assert_eq!(end(body, piece), whole, "in pieces of {piece} bytes");
    }
    assert_eq!(whole.unwrap_or(None), end_by_lines(body), "{}", body.escape_ascii());
}

/// Where the body ends for the reader of responses; nothing while it goes on.
fn end(body: &[u8], piece: usize) -> Result<Option<usize>, Malformed> {
    let (mut reader, mut heads) = (ResponseReader::default(), HeadReader::new(Method::Get));
    assert_eq!(reader.take(HEAD, &mut heads), Ok(ResponseProgress::Partial));
    let mut before = 0;
    for piece in body.chunks(piece) {
        if let ResponseProgress::Complete { used, .. } = reader.take(piece, &mut heads)? {
            return Ok(Some(before + used));
        }
        before += piece.len();
    }
    Ok(None)
}

/// The same, found in another way (RFC 9112 section 7.1).
fn end_by_lines(body: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let size = line(body, &mut at)?;
        let digits = size.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let extension = size.get(digits).is_none_or(|byte| b"; \t".contains(byte));
        if digits == 0 || !extension || size.contains(&b'\r') {
            return None;
        }
        let size = u64::from_str_radix(str::from_utf8(&size[..digits]).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        at = at.checked_add(usize::try_from(size).ok()?)?;
        (body.get(at..at + 2)? == b"\r\n").then_some(())?;
        at += 2;
    }
    // Trailer fields, of which only the ends of the lines matter, up to an empty line.
    loop {
        let begin = at;
        let length = body[at..].iter().position(|byte| *byte == b'\n')?;
        at += length + 1;
        match &body[begin..at] {
            b"\r\n" => return Some(at),
            // A line that begins with a carriage return is the empty one or none.
            [b'\r', ..] => return None,
            _ => {}
        }
    }
}

/// The line that begins at `at`, which moves behind it; it ends with both characters.
fn line<'a>(body: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let rest = body.get(*at..)?;
    let length = rest.iter().position(|byte| *byte == b'\n')?;
    *at += length + 1;
    rest[..length].strip_suffix(b"\r")
}

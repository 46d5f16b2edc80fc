//! Counts the requests in a text: the result of a script's `request` is examined once, before the start.

use std::fmt;

/// More fields than any server accepts.
const FIELDS_MAX: usize = 256;

/// Why a text is not a sequence of whole requests, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestSyntaxError {
    what: String,
    line: usize,
    column: usize,
}

impl fmt::Display for RequestSyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}:{}", self.what, self.line, self.column)
    }
}

/// The number of concatenated requests in a text.
pub(super) fn count(bytes: &[u8]) -> Result<u16, RequestSyntaxError> {
    let mut rest = bytes;
    let mut n = 0_u16;
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        rest = &rest[first_request_len(rest).map_err(|what| error_at(bytes, at, what))?..];
        n = n.checked_add(1).ok_or_else(|| error_at(bytes, at, "more than 65535 requests".to_owned()))?;
    }
    if n == 0 { Err(error_at(bytes, 0, "incomplete request".to_owned())) } else { Ok(n) }
}

fn error_at(bytes: &[u8], at: usize, what: String) -> RequestSyntaxError {
    let before = &bytes[..at];
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    let column = at - memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1) + 1;
    RequestSyntaxError { what, line, column }
}

/// The length of the first request.
fn first_request_len(bytes: &[u8]) -> Result<usize, String> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let incomplete = || "incomplete request".to_owned();
    let parsed = request.parse(bytes).map_err(|error| format!("malformed request ({error})"))?;
    let httparse::Status::Complete(head) = parsed else { return Err(incomplete()) };
    let value = |name: &str| {
        let field = request.headers.iter().rev().find(|field| field.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(field.value).ok()
    };
    if value("Transfer-Encoding").is_some_and(|coding| coding.to_ascii_lowercase().contains("chunked")) {
        return chunked_len(&bytes[head..]).map(|length| head + length).ok_or_else(incomplete);
    }
    let Some(length) = value("Content-Length") else { return Ok(head) };
    let length: usize = length.trim().parse().map_err(|_| format!("malformed request (Content-Length: {length})"))?;
    head.checked_add(length).filter(|end| *end <= bytes.len()).ok_or_else(incomplete)
}

/// The length of a chunked body, trailer fields included.
fn chunked_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(&bytes[at..]) else {
            return None;
        };
        at += line;
        if size == 0 {
            return Some(at + memchr::memmem::find(&bytes[at - 2..], b"\r\n\r\n")? + 2);
        }
        at = at.checked_add(usize::try_from(size).ok()?)?.checked_add(2).filter(|end| *end < bytes.len())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn requests_are_counted_with_their_bodies() {
        let post = "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nGET ";
        let chunked = "PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        let trailed = chunked.replace("0\r\n\r\n", "0\r\nA: b\r\n\r\n");
        for (text, n) in [
            (GET.to_owned(), 1),
            (GET.repeat(16), 16),
            (format!("{post}{GET}{chunked}{GET}"), 4),
            (format!("{trailed}{post}"), 2),
        ] {
            assert_eq!(count(text.as_bytes()), Ok(n), "{text}");
        }
    }

    #[test]
    fn what_is_no_request_is_told_with_its_place() {
        for (text, said) in [
            (String::new(), "incomplete request at 1:1"),
            ("42".to_owned(), "incomplete request at 1:1"),
            ("GET / HTTP/1.1\r\n".to_owned(), "incomplete request at 1:1"),
            (format!("{GET}POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nshort"), "incomplete request at 4:1"),
            (format!("{GET}{GET}\u{1}"), "malformed request (invalid token) at 7:1"),
            ("A / HTTP/1.1\r\nContent-Length: x\r\n\r\n".to_owned(), "malformed request (Content-Length: x) at 1:1"),
        ] {
            assert_eq!(count(text.as_bytes()).unwrap_err().to_string(), said, "{text}");
        }
    }
}

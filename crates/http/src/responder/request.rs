//! What a request wants, as far as the responder cares.

use std::mem::MaybeUninit;

use crate::h1::{Method, Persistence, field};

/// The longest head of a request; beyond it the answer is 431.
pub(super) const HEAD_MAX: usize = 16 * 1024;
/// More fields than this are answered with 431, as by Apache httpd.
const FIELDS_MAX: usize = 100;

/// How the connection goes on, and whether the other side must be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stays, as usual in HTTP/1.1.
    Stays,
    /// It stays because an HTTP/1.0 client asked, who must be told.
    StaysAsAsked,
    /// It is closed after the answer.
    Closes,
}

/// A request that can be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wants {
    pub(super) method: Method,
    pub(super) fate: Fate,
}

/// Why a request is refused; the connection is closed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// 400: it is malformed, or announces a body.
    Malformed,
    /// 405: neither GET nor HEAD.
    Method,
    /// 431: its head is too long.
    TooLarge,
}

/// Reads requests and remembers the last one, as a load generator sends the same again and again.
#[derive(Debug, Default)]
pub(super) struct RequestReader {
    last: Vec<u8>,
    wants: Option<Wants>,
}

impl RequestReader {
    /// The request at the beginning of `bytes` and its length, or nothing while it is not complete.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Option<(Wants, usize)>, Refusal> {
        if let Some(wants) = self.wants.filter(|_| bytes.starts_with(&self.last)) {
            return Ok(Some((wants, self.last.len())));
        }
        let within = &bytes[..bytes.len().min(HEAD_MAX)];
        match parse(within)? {
            Some((wants, length)) => {
                self.last.clear();
                self.last.extend_from_slice(&within[..length]);
                self.wants = Some(wants);
                Ok(Some((wants, length)))
            }
            None if within.len() == HEAD_MAX => Err(Refusal::TooLarge),
            None => Ok(None),
        }
    }
}

/// Reads arbitrary bytes as requests.
///
/// # Panics
/// If a remembered request is read differently than a new one: that is what a fuzzer looks for.
pub fn fuzz_request(bytes: &[u8]) {
    let mut reader = RequestReader::default();
    let mut rest = bytes;
    while let Ok(Some((wants, length))) = reader.read(rest) {
        assert_eq!(reader.read(rest), RequestReader::default().read(rest), "after {wants:?}");
        rest = &rest[length..];
    }
}

fn parse(bytes: &[u8]) -> Result<Option<(Wants, usize)>, Refusal> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::TooLarge),
        Err(_) => return Err(Refusal::Malformed),
    };
    let fields = &*request.headers;
    let n_hosts = field::values(fields, "host").count();
    let body = field::values(fields, "transfer-encoding").next().is_some()
        || field::values(fields, "content-length").any(|length| length != b"0");
    // RFC 9112 section 3.2: one Host in HTTP/1.1, never two.
    if n_hosts > 1 || (n_hosts == 0 && request.version == Some(1)) || body {
        return Err(Refusal::Malformed);
    }
    let method = match request.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        _ => return Err(Refusal::Method),
    };
    let fate = match (field::persistence(fields, request.version), request.version) {
        (Persistence::Closes, _) => Fate::Closes,
        (Persistence::Stays, Some(1)) => Fate::Stays,
        (Persistence::Stays, _) => Fate::StaysAsAsked,
    };
    Ok(Some((Wants { method, fate }, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<(Wants, usize)>, Refusal> {
        RequestReader::default().read(text.as_bytes())
    }

    #[test]
    fn requests_are_answered_as_their_version_wants() {
        let cases = [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Method::Get, Fate::Stays),
            ("HEAD /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", Method::Head, Fate::Closes),
            ("GET / HTTP/1.0\r\n\r\n", Method::Get, Fate::Closes),
            ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", Method::Get, Fate::StaysAsAsked),
        ];
        for (text, method, fate) in cases {
            assert_eq!(read(text), Ok(Some((Wants { method, fate }, text.len()))), "{text}");
            assert_eq!(read(&text[..text.len() - 1]), Ok(None), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_answered_is_refused_for_a_reason() {
        let cases = [
            ("GET / HTTP/1.1\r\n\r\n", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", Refusal::Malformed),
            ("GET / HTTP/2\r\n\r\n", Refusal::Malformed),
            ("\0", Refusal::Malformed),
            ("POST / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::Method),
        ];
        for (text, refusal) in cases {
            assert_eq!(read(text), Err(refusal), "{text}");
        }
        assert_eq!(read(&format!("GET /{}", "x".repeat(HEAD_MAX))), Err(Refusal::TooLarge));
        assert_eq!(read(&format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(200))), Err(Refusal::TooLarge));
    }

    #[test]
    fn a_mutilated_request_is_read_the_same_again() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\nHEAD / HTTP/1.0\r\nConnection: x\r\n\r\n";
        for at in 0..text.len() {
            for byte in [0, b'\n', b'\r', b' ', b':', 0xff] {
                let mut bytes = text.as_bytes().repeat(2);
                bytes[at] = byte;
                fuzz_request(&bytes);
            }
        }
    }

    #[test]
    fn another_request_after_a_remembered_one_is_read_anew() {
        let mut reader = RequestReader::default();
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let head = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
        for text in [get, get, head, get] {
            let (wants, length) = reader.read(text.as_bytes()).unwrap().unwrap();
            assert_eq!((wants.method == Method::Head, length), (text == head, text.len()));
        }
    }
}

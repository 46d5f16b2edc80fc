//! The head of a response: status, framing of the body, and whether the connection persists.
//!
//! A server under load repeats the same head except for the date. So the last head is kept, and a head that equals it byte for
//! byte, apart from the `Date` value, is not parsed again.

use std::{mem::MaybeUninit, ops::Range};

use fathom_model::units::Bytes;

use super::{
    Method,
    field::{Persistence, content_length, is_chunked, persistence, values},
    malformed::Malformed,
};

/// The longest head by default, the same as curl's limit.
const HEAD_MAX: usize = 300 * 1024;
/// This many fields are parsed without an allocation: no common server sends more.
const FIELDS_FEW: usize = 100;
/// The shortest field is `a:` and a line feed, which bounds the number of fields by the length of the head.
const FIELD_MIN: usize = 3;
/// Guards the fast path: after this many recognized heads, one is parsed in full.
const REUSED_HEADS_MAX: u32 = 1023;
/// The length of a date: `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 section 5.6.7).
const DATE_LENGTH: usize = 29;

/// How the end of a body is found (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// By count; zero if there is no body.
    Length(u64),
    /// By its chunks.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

/// The parsed head of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The status code, 100 to 999.
    pub status: u16,
    pub persistence: Persistence,
    pub framing: Framing,
}

/// The head assumed for an answer that has none.
const HTTP09_HEAD: Head = Head { status: 200, persistence: Persistence::Closes, framing: Framing::UntilClose };

/// Reads heads and remembers the last one. One per worker is enough, as all its connections go to the same server.
#[derive(Debug)]
pub struct HeadReader {
    method: Method,
    max: usize,
    last: Vec<u8>,
    date: Range<usize>,
    head: Option<Head>,
    n_reused: u32,
}

impl HeadReader {
    /// Creates a reader of responses to requests of this method.
    #[must_use]
    pub fn new(method: Method) -> Self {
        Self { method, max: HEAD_MAX, last: Vec::new(), date: 0..0, head: None, n_reused: 0 }
    }

    /// Sets another limit for the length of a head.
    #[must_use]
    pub fn bounded(self, max: Bytes) -> Self {
        Self { max: usize::try_from(max.0).unwrap_or(usize::MAX), ..self }
    }

    /// The longest head that is accepted.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Returns the head at the beginning of `bytes` and its length, or `None` while it is incomplete.
    ///
    /// # Errors
    /// The head is malformed.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<(Head, usize)>, Malformed> {
        if self.method == Method::Http09 {
            return Ok(Some((HTTP09_HEAD, 0)));
        }
        if let Some(head) = self.head.filter(|_| self.matches_last(bytes)) {
            self.n_reused += 1;
            return Ok(Some((head, self.last.len())));
        }
        let within = &bytes[..bytes.len().min(self.max)];
        match parse(within, self.method)? {
            Some((head, length, date)) => {
                self.remember(head, &within[..length], date);
                Ok(Some((head, length)))
            }
            None if within.len() == self.max => Err(Malformed::HeadTooLong),
            None => Ok(None),
        }
    }

    /// The bytes of the last parsed head; empty before the first.
    #[must_use]
    pub fn last_head(&self) -> &[u8] {
        &self.last
    }

    /// Whether `bytes` begin with the last head, apart from a date that contains no line end.
    fn matches_last(&self, bytes: &[u8]) -> bool {
        let (last, date) = (&self.last, &self.date);
        self.n_reused < REUSED_HEADS_MAX
            && bytes.len() >= last.len()
            && bytes[..date.start] == last[..date.start]
            && bytes[date.end..last.len()] == last[date.end..]
            && bytes[date.clone()].iter().all(|byte| (b' '..=b'~').contains(byte))
    }

    fn remember(&mut self, head: Head, bytes: &[u8], date: Option<Range<usize>>) {
        self.last.clear();
        self.last.extend_from_slice(bytes);
        self.date = date.unwrap_or(0..0);
        self.head = Some(head);
        self.n_reused = 0;
    }
}

/// A head, its length, and the range of its date.
type Parsed = (Head, usize, Option<Range<usize>>);

fn parse(bytes: &[u8], method: Method) -> Result<Option<Parsed>, Malformed> {
    match parse_into(&mut [const { MaybeUninit::uninit() }; FIELDS_FEW], bytes, method) {
        Err(Malformed::TooManyFields) => {
            let mut fields = vec![MaybeUninit::uninit(); bytes.len() / FIELD_MIN];
            parse_into(&mut fields, bytes, method)
        }
        parsed => parsed,
    }
}

/// Parses with room for `fields.len()` fields.
fn parse_into<'a>(
    fields: &mut [MaybeUninit<httparse::Header<'a>>],
    bytes: &'a [u8],
    method: Method,
) -> Result<Option<Parsed>, Malformed> {
    let mut response = httparse::Response::new(&mut []);
    let mut config = httparse::ParserConfig::default();
    // A user agent reads folded lines as one (RFC 9112 section 5.2).
    config.allow_obsolete_multiline_headers_in_responses(true);
    let httparse::Status::Complete(length) = config.parse_response_with_uninit_headers(&mut response, bytes, fields)?
    else {
        return Ok(None);
    };
    let status = response.code.ok_or(Malformed::Status)?;
    if status < 100 {
        return Err(Malformed::Status);
    }
    if status == 101 {
        return Err(Malformed::Switched);
    }
    let fields = &*response.headers;
    let framing = framing(fields, status, method)?;
    let persistence = match framing {
        Framing::UntilClose => Persistence::Closes,
        _ => persistence(fields, response.version),
    };
    Ok(Some((Head { status, persistence, framing }, length, date(fields, bytes))))
}

fn framing(fields: &[httparse::Header<'_>], status: u16, method: Method) -> Result<Framing, Malformed> {
    if method == Method::Head || matches!(status, 100..=199 | 204 | 304) {
        return Ok(Framing::Length(0));
    }
    // A transfer coding overrides a length; if its last coding is not chunked, the connection delimits the body.
    match is_chunked(fields) {
        Some(true) => Ok(Framing::Chunked),
        Some(false) => Ok(Framing::UntilClose),
        None => Ok(content_length(fields)?.map_or(Framing::UntilClose, Framing::Length)),
    }
}

/// The range of the only date of a head, if it has the usual length.
fn date(fields: &[httparse::Header<'_>], bytes: &[u8]) -> Option<Range<usize>> {
    let mut dates = values(fields, "date");
    let date = dates.next().filter(|date| date.len() == DATE_LENGTH && dates.next().is_none())?;
    let begin = date.as_ptr().addr().checked_sub(bytes.as_ptr().addr())?;
    Some(begin..begin + DATE_LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<(Head, usize)>, Malformed> {
        HeadReader::new(Method::Get).read(text.as_bytes())
    }

    #[test]
    fn the_end_of_the_body_is_found_as_the_rfc_says() {
        use Framing::{Chunked, Length, UntilClose};
        let cases = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Length(5), Persistence::Stays),
            ("HTTP/1.1 200\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", Length(5), Persistence::Stays),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: x, Close\r\n\r\n", Length(5), Persistence::Closes),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n", Length(5), Persistence::Stays),
            (
                "HTTP/1.1 200 OK\r\nX: folded\r\n  value\r\nContent-Length:\r\n\t5\r\nConnection: x,\r\n close\r\n\r\n",
                Length(5),
                Persistence::Closes,
            ),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", Length(5), Persistence::Closes),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: Keep-Alive\r\n\r\n", Length(5), Persistence::Stays),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\nContent-Length: 5\r\n\r\n",
                Chunked,
                Persistence::Stays,
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", UntilClose, Persistence::Closes),
            ("HTTP/1.1 200 OK\r\n\r\n", UntilClose, Persistence::Closes),
            ("HTTP/1.1 204 No Content\r\n\r\n", Length(0), Persistence::Stays),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Length(0), Persistence::Stays),
        ];
        for (text, framing, persistence) in cases {
            let (head, length) = read(text).unwrap().unwrap();
            assert_eq!((head.framing, head.persistence, length), (framing, persistence, text.len()), "{text}");
        }
    }

    #[test]
    fn a_malformed_head_is_named() {
        let cases = [
            ("SSH-2.0-OpenSSH\r\n", Malformed::Version),
            ("HTTP/2 200 OK\r\n\r\n", Malformed::Version),
            ("HTTP/1.1 2x0 OK\r\n\r\n", Malformed::Status),
            ("HTTP/1.1 099 OK\r\n\r\n", Malformed::Status),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", Malformed::Switched),
            ("HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", Malformed::Field),
            ("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", Malformed::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n", Malformed::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5,\r\n\r\n", Malformed::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", Malformed::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", Malformed::ContentLength),
        ];
        for (text, error) in cases {
            assert_eq!(read(text), Err(error), "{text}");
        }
        assert_eq!(read(&format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(HEAD_MAX))), Err(Malformed::HeadTooLong));
    }

    #[test]
    fn fields_are_bounded_by_the_length_of_the_head_and_not_by_their_number() {
        let text = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 5\n\n", "a:\n".repeat(5_000));
        let (head, length) = read(&text).unwrap().unwrap();
        assert_eq!((head.framing, length), (Framing::Length(5), text.len()));
        let bounded = |max: usize| HeadReader::new(Method::Get).bounded(Bytes(max as u64)).read(text.as_bytes());
        assert_eq!(bounded(text.len() - 1), Err(Malformed::HeadTooLong));
        assert_eq!(bounded(text.len()), Ok(Some((head, length))));
        assert_eq!(bounded(0), Err(Malformed::HeadTooLong));
    }

    const DATED: &str = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 5\r\n\r\n";

    #[test]
    fn a_head_that_differs_in_its_date_only_is_recognised() {
        let mut reader = HeadReader::new(Method::Get);
        let first = reader.read(DATED.as_bytes());
        let later = DATED.replace("37 GMT", "38 GMT") + "hello";
        assert_eq!(reader.read(later.as_bytes()), first);
        assert_eq!(reader.n_reused, 1, "it was not parsed");
    }

    #[test]
    fn a_head_that_differs_elsewhere_is_parsed() {
        let mut reader = HeadReader::new(Method::Get);
        reader.read(DATED.as_bytes()).unwrap();
        for (from, to) in [("h: 5", "h: 6"), ("200", "404"), ("37 GMT", "3\r\nA: ")] {
            let other = DATED.replace(from, to);
            assert_eq!(reader.read(other.as_bytes()), read(&other), "{other}");
            assert_eq!(reader.n_reused, 0, "{other}");
        }
        assert_eq!(reader.read(&DATED.as_bytes()[..40]), Ok(None));
    }

    #[test]
    fn every_1024th_head_is_parsed_again() {
        let mut reader = HeadReader::new(Method::Get);
        let parsed = (0..4096).filter(|_| {
            reader.read(DATED.as_bytes()).unwrap();
            reader.n_reused == 0
        });
        assert_eq!(parsed.count(), 4);
    }
}

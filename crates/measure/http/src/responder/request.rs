//! Parses the parts of a request that the responder needs.

use std::mem::MaybeUninit;

use crate::h1::{Malformed, Persistence, chunked::Chunked, field};

/// The longest head of a request; a longer one is answered with 431.
pub(super) const HEAD_MAX: usize = 16 * 1024;
/// More fields than this are answered with 431, as by Apache httpd.
const FIELDS_MAX: usize = 100;

/// The supported methods, as `Allow` lists them.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// How the connection continues, and whether the client must be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyPersistence {
    /// It persists, the default of HTTP/1.1.
    KeepOpen,
    /// It persists because an HTTP/1.0 client asked, which must be told.
    KeepOpenExplicit,
    /// It is closed after the answer.
    Close,
}

/// The part of the answer that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyPart {
    Whole,
    /// The head alone, as HEAD asks.
    Head,
}

/// A request that can be answered once its body has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ParsedRequest {
    pub(super) part: ReplyPart,
    pub(super) persistence: ReplyPersistence,
    pub(super) body: RequestBody,
    pub(super) expect_continue: ExpectContinue,
}

/// Whether a client waits for 100 (Continue) before it sends its body (RFC 9110 section 10.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectContinue {
    No,
    Yes,
}

/// The remainder of a request's body, which is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestBody {
    None,
    Length(u64),
    Chunked(Chunked),
}

impl RequestBody {
    /// Follows the body through `bytes`. Returns the number of bytes that belong to it once it has ended, and `None` before.
    fn follow(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        match self {
            Self::None => Ok(Some(0)),
            Self::Chunked(chunked) => chunked.follow(bytes),
            Self::Length(left) => match usize::try_from(*left) {
                Ok(left) if left <= bytes.len() => Ok(Some(left)),
                _ => {
                    *left -= bytes.len() as u64;
                    Ok(None)
                }
            },
        }
    }
}

/// Why a request is refused; the connection is then closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestRefusal {
    /// 400: it is malformed.
    Malformed,
    /// 405: the method is not supported.
    Method,
    /// 431: its head is too long.
    TooLarge,
}

/// What must be sent to a client now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestEvent {
    /// The answer to a complete request.
    Answer(ParsedRequest),
    /// 100, so that the client sends its body.
    Continue,
    /// An error status.
    Refused(RequestRefusal),
}

/// Follows the requests of one connection, wherever the network splits them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RequestFollower(Option<ParsedRequest>);

impl RequestFollower {
    /// Whether the head of a request has arrived and its body has not.
    pub(super) fn is_in_body(&self) -> bool {
        self.0.is_some()
    }

    /// Reads `bytes`, the next ones of the connection. Returns how many are consumed, and the reply that they call for.
    pub(super) fn read(&mut self, bytes: &[u8], heads: &mut RequestReader) -> (usize, Option<RequestEvent>) {
        let (mut wants, head) = match (self.0, heads) {
            (Some(wants), _) => (wants, 0),
            (None, heads) => match heads.read(bytes) {
                Ok(Some(read)) => read,
                Ok(None) => return (0, None),
                Err(refusal) => return (bytes.len(), Some(RequestEvent::Refused(refusal))),
            },
        };
        let rest = &bytes[head..];
        if wants.expect_continue == ExpectContinue::Yes {
            wants.expect_continue = ExpectContinue::No;
            // A client that sends its body without waiting needs no 100 (RFC 9110 section 10.1.1).
            if rest.is_empty() && wants.body != RequestBody::None {
                self.0 = Some(wants);
                return (head, Some(RequestEvent::Continue));
            }
        }
        match wants.body.follow(rest) {
            Ok(Some(body)) => {
                self.0 = None;
                (head + body, Some(RequestEvent::Answer(wants)))
            }
            Ok(None) => {
                self.0 = Some(wants);
                (bytes.len(), None)
            }
            Err(_) => (bytes.len(), Some(RequestEvent::Refused(RequestRefusal::Malformed))),
        }
    }
}

/// Reads requests and remembers the last one, because load generators repeat the same request.
#[derive(Debug, Default)]
pub(super) struct RequestReader {
    last: Vec<u8>,
    last_parsed: Option<ParsedRequest>,
}

impl RequestReader {
    /// Returns the request at the beginning of `bytes` and its length, or `None` while it is incomplete.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Option<(ParsedRequest, usize)>, RequestRefusal> {
        if let Some(wants) = self.last_parsed.filter(|_| bytes.starts_with(&self.last)) {
            return Ok(Some((wants, self.last.len())));
        }
        let within = &bytes[..bytes.len().min(HEAD_MAX)];
        match parse(within)? {
            Some((wants, length)) => {
                self.last.clear();
                self.last.extend_from_slice(&within[..length]);
                self.last_parsed = Some(wants);
                Ok(Some((wants, length)))
            }
            None if within.len() == HEAD_MAX => Err(RequestRefusal::TooLarge),
            None => Ok(None),
        }
    }
}

/// The replies that a sequence of bytes calls for when it arrives in pieces of this length.
fn ask(bytes: &[u8], piece: usize) -> Vec<RequestEvent> {
    let (mut inquiry, mut heads, mut asked) = (RequestFollower::default(), RequestReader::default(), Vec::new());
    let mut input = Vec::new();
    for piece in bytes.chunks(piece) {
        input.extend_from_slice(piece);
        while !input.is_empty() {
            let (used, next) = inquiry.read(&input, &mut heads);
            assert!(used <= input.len(), "{used} of {}", input.len());
            input.drain(..used);
            match next {
                // The remaining body length does not matter here, and 100 (Continue) depends on the timing of the client.
                Some(RequestEvent::Answer(wants)) => {
                    asked.push(RequestEvent::Answer(ParsedRequest { body: RequestBody::None, ..wants }));
                }
                Some(RequestEvent::Continue) => {}
                Some(RequestEvent::Refused(_)) => {
                    asked.extend(next);
                    return asked;
                }
                None => break,
            }
        }
        assert!(input.len() <= HEAD_MAX, "{} bytes are kept", input.len());
    }
    asked
}

/// Reads arbitrary bytes as requests, whole and in pieces.
///
/// # Panics
/// If the result depends on where the bytes are split, or more than a head is kept: a fuzzer looks for these.
pub fn fuzz_request(bytes: &[u8]) {
    let in_ones = ask(bytes, 1);
    for piece in [7, 100, HEAD_MAX] {
        assert_eq!(ask(bytes, piece), in_ones, "in pieces of {piece}");
    }
    let mut heads = RequestReader::default();
    let mut rest = bytes;
    while let Ok(Some((wants, length))) = heads.read(rest) {
        assert_eq!(heads.read(rest), RequestReader::default().read(rest), "after {wants:?}");
        rest = &rest[length..];
    }
}

fn parse(bytes: &[u8]) -> Result<Option<(ParsedRequest, usize)>, RequestRefusal> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(RequestRefusal::TooLarge),
        Err(_) => return Err(RequestRefusal::Malformed),
    };
    let fields = &*request.headers;
    let n_hosts = field::values(fields, "host").count();
    // RFC 9112 section 3.2: exactly one Host in HTTP/1.1, never two.
    if n_hosts > 1 || (n_hosts == 0 && request.version == Some(1)) {
        return Err(RequestRefusal::Malformed);
    }
    let body = body(fields, request.version)?;
    let part = match request.method {
        Some("HEAD") => ReplyPart::Head,
        Some(method) if METHODS.contains(&method) => ReplyPart::Whole,
        _ => return Err(RequestRefusal::Method),
    };
    let fate = match (field::persistence(fields, request.version), request.version) {
        (Persistence::Closes, _) => ReplyPersistence::Close,
        (Persistence::Stays, Some(1)) => ReplyPersistence::KeepOpen,
        (Persistence::Stays, _) => ReplyPersistence::KeepOpenExplicit,
    };
    let expects = field::values(fields, "expect").any(|value| value.eq_ignore_ascii_case(b"100-continue"));
    let encouragement = if expects && request.version == Some(1) { ExpectContinue::Yes } else { ExpectContinue::No };
    Ok(Some((ParsedRequest { part, persistence: fate, body, expect_continue: encouragement }, length)))
}

/// The length of the body (RFC 9112 section 6.3). Ambiguous framing is refused.
fn body(fields: &[httparse::Header<'_>], version: Option<u8>) -> Result<RequestBody, RequestRefusal> {
    let mut codings = field::values(fields, "transfer-encoding");
    let mut lengths = field::values(fields, "content-length");
    match (codings.next(), lengths.next()) {
        (None, None) => Ok(RequestBody::None),
        (Some(coding), None) => {
            let is_chunked = coding.eq_ignore_ascii_case(b"chunked") && codings.next().is_none() && version == Some(1);
            if is_chunked { Ok(RequestBody::Chunked(Chunked::SizeBegin)) } else { Err(RequestRefusal::Malformed) }
        }
        (None, Some(length)) if lengths.all(|other| other == length) && length.iter().all(u8::is_ascii_digit) => {
            match std::str::from_utf8(length).ok().and_then(|length| length.parse().ok()) {
                Some(0) => Ok(RequestBody::None),
                Some(length) => Ok(RequestBody::Length(length)),
                None => Err(RequestRefusal::Malformed),
            }
        }
        _ => Err(RequestRefusal::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<(ParsedRequest, usize)>, RequestRefusal> {
        RequestReader::default().read(text.as_bytes())
    }

    #[test]
    fn requests_are_answered_as_their_version_wants() {
        let cases = [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", ReplyPart::Whole, ReplyPersistence::KeepOpen),
            ("HEAD /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", ReplyPart::Head, ReplyPersistence::Close),
            ("GET / HTTP/1.0\r\n\r\n", ReplyPart::Whole, ReplyPersistence::Close),
            ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", ReplyPart::Whole, ReplyPersistence::KeepOpenExplicit),
        ];
        for (text, part, fate) in cases {
            let wants =
                ParsedRequest { part, persistence: fate, body: RequestBody::None, expect_continue: ExpectContinue::No };
            assert_eq!(read(text), Ok(Some((wants, text.len()))), "{text}");
            assert_eq!(read(&text[..text.len() - 1]), Ok(None), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_answered_is_refused_for_a_reason() {
        let cases = [
            ("GET / HTTP/1.1\r\n\r\n", RequestRefusal::Malformed),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", RequestRefusal::Malformed),
            ("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", RequestRefusal::Malformed),
            ("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n", RequestRefusal::Malformed),
            ("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", RequestRefusal::Malformed),
            ("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", RequestRefusal::Malformed),
            (
                "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                RequestRefusal::Malformed,
            ),
            ("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", RequestRefusal::Malformed),
            ("PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", RequestRefusal::Malformed),
            ("GET / HTTP/2\r\n\r\n", RequestRefusal::Malformed),
            ("\0", RequestRefusal::Malformed),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", RequestRefusal::Method),
            ("get / HTTP/1.1\r\nHost: a\r\n\r\n", RequestRefusal::Method),
        ];
        for (text, refusal) in cases {
            assert_eq!(read(text), Err(refusal), "{text}");
        }
        assert_eq!(read(&format!("GET /{}", "x".repeat(HEAD_MAX))), Err(RequestRefusal::TooLarge));
        assert_eq!(read(&format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(200))), Err(RequestRefusal::TooLarge));
    }

    #[test]
    fn a_request_is_answered_when_its_body_has_come() {
        let cases = [
            ("Content-Length: 5\r\n\r\n", "hello"),
            ("Content-Length: 5\r\nContent-Length: 5\r\n\r\n", "hello"),
            ("Content-Length: 0\r\n\r\n", ""),
            ("\r\n", ""),
            ("Transfer-Encoding: Chunked\r\n\r\n", "5\r\nhello\r\n0\r\nA: b\r\n\r\n"),
        ];
        for (fields, body) in cases {
            let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}{body}");
            assert_eq!(ask(text.as_bytes(), text.len()).len(), 1, "{text}");
            assert_eq!(ask(&text.as_bytes()[..text.len() - 1], text.len()), [], "{text}");
            fuzz_request(text.repeat(3).as_bytes());
        }
    }

    #[test]
    fn who_waits_for_a_word_before_the_body_gets_it_once() {
        let head = b"PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
        let (mut inquiry, mut heads) = (RequestFollower::default(), RequestReader::default());
        assert_eq!(inquiry.read(head, &mut heads), (head.len(), Some(RequestEvent::Continue)));
        assert_eq!(inquiry.read(b"h", &mut heads), (1, None));
        assert!(matches!(inquiry.read(b"i", &mut heads), (1, Some(RequestEvent::Answer(_)))));
        let at_once = [head.as_slice(), b"hi"].concat();
        assert!(matches!(inquiry.read(&at_once, &mut heads), (_, Some(RequestEvent::Answer(_)))));
    }

    #[test]
    fn a_mutilated_request_is_read_the_same_again() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\nHEAD / HTTP/1.0\r\nContent-Length: 1\r\n\r\nxPUT / HTTP/1.1\r\n\
                    Host:\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
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
            assert_eq!((wants.part == ReplyPart::Head, length), (text == head, text.len()));
        }
    }
}

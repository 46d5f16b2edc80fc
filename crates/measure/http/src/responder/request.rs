//! What a request wants, as far as the responder cares.

use std::mem::MaybeUninit;

use crate::h1::{Malformed, Persistence, chunked::Chunked, field};

/// The longest head of a request; beyond it the answer is 431.
pub(super) const HEAD_MAX: usize = 16 * 1024;
/// More fields than this are answered with 431, as by Apache httpd.
const FIELDS_MAX: usize = 100;

/// The methods that are answered, as `Allow` lists them.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// How the connection goes on, and whether the other side must be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyPersistence {
    /// It stays, as usual in HTTP/1.1.
    KeepOpen,
    /// It stays because an HTTP/1.0 client asked, who must be told.
    KeepOpenExplicit,
    /// It is closed after the answer.
    Close,
}

/// Which part of the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyPart {
    /// Head and body.
    Whole,
    /// The head alone, as HEAD asks.
    Head,
}

/// A request that can be answered, once its body has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ParsedRequest {
    pub(super) part: ReplyPart,
    pub(super) persistence: ReplyPersistence,
    pub(super) body: RequestBody,
    pub(super) expect_continue: ExpectContinue,
}

/// Whether a client sends its body only after it was told to go on (RFC 9110 section 10.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectContinue {
    No,
    Yes,
}

/// What is left of a request's body; nobody looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestBody {
    None,
    Length(u64),
    Chunked(Chunked),
}

impl RequestBody {
    /// Follows the body through `bytes`; how many of them belong to it once it has ended, or nothing while it goes on.
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

/// Why a request is refused; the connection is closed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestRefusal {
    /// 400: it is malformed.
    Malformed,
    /// 405: a method that is not answered.
    Method,
    /// 431: its head is too long.
    TooLarge,
}

/// What a client wants to be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestEvent {
    /// The answer to a request that has come whole.
    Answer(ParsedRequest),
    /// 100, so that it sends its body.
    Continue,
    /// An error status.
    Refused(RequestRefusal),
}

/// One connection's requests, followed wherever the network cuts them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RequestFollower(Option<ParsedRequest>);

impl RequestFollower {
    /// Whether the head of a request has come and its body has not.
    pub(super) fn is_in_body(&self) -> bool {
        self.0.is_some()
    }

    /// Reads on through `bytes`, the next ones of the connection: how many are done with, and what that asks for.
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
            // One that sends its body without waiting needs no word (RFC 9110 section 10.1.1).
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

/// Reads requests and remembers the last one, as a load generator sends the same again and again.
#[derive(Debug, Default)]
pub(super) struct RequestReader {
    last: Vec<u8>,
    last_parsed: Option<ParsedRequest>,
}

impl RequestReader {
    /// The request at the beginning of `bytes` and its length, or nothing while it is not complete.
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

/// What a sequence of bytes asks for when it comes in pieces of this length.
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
                // What is left of the body says nothing of what was asked, and a word may be needless for a faster client.
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
/// If it makes a difference where they are cut, or more is kept than a head: that is what a fuzzer looks for.
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
    // RFC 9112 section 3.2: one Host in HTTP/1.1, never two.
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

/// How long the body is (RFC 9112 section 6.3); what two servers could read in two ways is refused.
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

//! All answers of a responder, built in advance.

use fathom_model::units::{Bytes, Nanos};
use http::StatusCode;

use super::{
    date,
    request::{ReplyPart, ReplyPersistence, RequestRefusal},
    status_mix::{StatusMix, has_body},
};

/// The most pipelined requests that are answered with one send …
const COPIES_MAX: usize = 32;
/// … provided that the answers fit in this many bytes, a share of a socket's default send buffer.
const COPIES_BYTES_MAX: usize = 32 * 1024;

/// The header fields that announce how the connection continues.
const CONNECTION_FIELDS: [(ReplyPersistence, &str); 3] = [
    (ReplyPersistence::KeepOpen, ""),
    (ReplyPersistence::KeepOpenExplicit, "Connection: keep-alive\r\n"),
    (ReplyPersistence::Close, "Connection: close\r\n"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyKind {
    /// One of the statuses of the mix, by its index there.
    Status(usize, ReplyPart, ReplyPersistence),
    /// 100, before the body of the request.
    Continue,
    /// An error status, after which the connection is closed.
    Refused(RequestRefusal),
}

impl ReplyKind {
    /// Whether the connection is closed after it.
    pub(super) fn closes(self) -> bool {
        matches!(self, Self::Refused(_) | Self::Status(_, _, ReplyPersistence::Close))
    }
}

/// The answers, each with its body directly after its head, so that one send is enough.
#[derive(Debug)]
pub(super) struct Replies {
    /// For each status, one reply per entry of `CONNECTION_FIELDS`.
    replies: Vec<[Reply; CONNECTION_FIELDS.len()]>,
    /// The index of the status whose body the others share when it is large.
    body_owner: usize,
}

#[derive(Debug)]
struct Reply {
    /// The answer repeated for pipelining; the head alone if it shares the body of the main answer.
    bytes: Vec<u8>,
    n_copies: usize,
    head: usize,
    date: usize,
    /// The length of the shared body.
    shared_body_bytes: usize,
}

impl Replies {
    /// Builds the answers of these statuses with a body of this size.
    pub(super) fn new(size: Bytes, statuses: &StatusMix) -> Self {
        let size = usize::try_from(size.0).expect("the size was checked when the responder was bound");
        let usual = statuses.main_status();
        let of_status = |(idx, code): (usize, u16)| {
            CONNECTION_FIELDS
                .map(|(fate, field)| Reply::new(code, field, size, (idx, fate) == (usual, ReplyPersistence::KeepOpen)))
        };
        Self { replies: statuses.codes().enumerate().map(of_status).collect(), body_owner: usual }
    }

    fn reply(&self, status: usize, fate: ReplyPersistence) -> &Reply {
        let fate = CONNECTION_FIELDS.iter().position(|(other, _)| *other == fate);
        &self.replies[status][fate.expect("every fate is in the table")]
    }

    /// How many answers of one kind can be sent at once.
    pub(super) fn copies_max(&self, kind: ReplyKind) -> usize {
        match kind {
            ReplyKind::Status(status, ReplyPart::Whole, fate) => self.reply(status, fate).n_copies,
            _ => 1,
        }
    }

    /// The bytes of some answers of one kind: the two parts are sent in order.
    pub(super) fn slices(&self, kind: ReplyKind, n_copies: usize) -> [&[u8]; 2] {
        let (status, part, fate) = match kind {
            ReplyKind::Status(status, part, fate) => (status, part, fate),
            ReplyKind::Continue => return [b"HTTP/1.1 100 Continue\r\n\r\n", &[]],
            ReplyKind::Refused(refusal) => return [refused(refusal).as_bytes(), &[]],
        };
        let reply = self.reply(status, fate);
        if part == ReplyPart::Head {
            return [&reply.bytes[..reply.head], &[]];
        }
        let lender = self.reply(self.body_owner, ReplyPersistence::KeepOpen);
        let lent = &lender.bytes[lender.head..];
        [&reply.bytes[..n_copies * reply.copy_len()], lent.get(..reply.shared_body_bytes).unwrap_or_default()]
    }

    /// Sets a new date in all answers. An answer in transmission may get parts of both dates, but its length stays the same.
    pub(super) fn set_date(&mut self, wall: Nanos) {
        let text = date::http_date(wall);
        for reply in self.replies.iter_mut().flatten() {
            let (at, stride) = (reply.date, reply.copy_len());
            for copy in reply.bytes.chunks_exact_mut(stride) {
                copy[at..at + date::LENGTH].copy_from_slice(text.as_bytes());
            }
        }
    }
}

impl Reply {
    /// Builds a reply with this status and field. A `lender` always holds its body, however large.
    fn new(code: u16, field: &str, size: usize, lender: bool) -> Self {
        let status = StatusCode::from_u16(code).expect("a mix holds only codes of three digits");
        // A code without a registered phrase has an empty one (RFC 9112 section 4), after a space.
        let phrase = status.canonical_reason().unwrap_or_default();
        let begin = format!("HTTP/1.1 {code} {phrase}\r\nServer: fathom\r\nDate: ");
        let date = date::http_date(Nanos::ZERO);
        let content = match code {
            204 | 304 => String::new(),
            205 => "Content-Length: 0\r\n".to_owned(),
            _ => format!("Content-Type: text/plain\r\nContent-Length: {size}\r\n"),
        };
        let head = format!("{begin}{date}\r\n{content}{field}\r\n").into_bytes();
        let size = if has_body(code) { size } else { 0 };
        let (own, lent) = if lender || size <= COPIES_BYTES_MAX { (size, 0) } else { (0, size) };
        let one = [head.as_slice(), &vec![b'x'; own]].concat();
        let n_copies = if lent > 0 { 1 } else { (COPIES_BYTES_MAX / one.len()).clamp(1, COPIES_MAX) };
        Self { n_copies, head: head.len(), date: begin.len(), shared_body_bytes: lent, bytes: one.repeat(n_copies) }
    }

    /// The length of one copy.
    fn copy_len(&self) -> usize {
        self.bytes.len() / self.n_copies
    }
}

const fn refused(refusal: RequestRefusal) -> &'static str {
    match refusal {
        RequestRefusal::Malformed => "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        RequestRefusal::Method => {
            "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n\
             Connection: close\r\nContent-Length: 0\r\n\r\n"
        }
        RequestRefusal::TooLarge => {
            "HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_is_whole_whoever_holds_its_body() {
        for size in [0, 3, COPIES_BYTES_MAX + 1] {
            let replies = Replies::new(Bytes(size as u64), &"404:40%,200:60%".parse().unwrap());
            for (status, line) in [(0, "HTTP/1.1 404 Not Found\r\n"), (1, "HTTP/1.1 200 OK\r\n")] {
                for (fate, field) in CONNECTION_FIELDS {
                    let kind = ReplyKind::Status(status, ReplyPart::Whole, fate);
                    let n = replies.copies_max(kind);
                    let text = String::from_utf8(replies.slices(kind, n).concat()).unwrap();
                    assert_eq!(text.matches(line).count(), n, "{text:.300}");
                    assert_eq!(text.matches(&format!("\r\nContent-Length: {size}\r\n{field}\r\n")).count(), n);
                    assert!(text.ends_with(&format!("\r\n\r\n{}", "x".repeat(size))));
                    let head = replies.slices(ReplyKind::Status(status, ReplyPart::Head, fate), 1).concat();
                    assert!(head.ends_with(b"\r\n\r\n") && text.as_bytes().starts_with(&head));
                }
            }
        }
    }

    #[test]
    fn a_status_that_allows_no_body_has_none() {
        let replies = Replies::new(Bytes(5), &"204:40%,304:30%,205:30%".parse().unwrap());
        for (status, length) in [(0, None), (1, None), (2, Some("Content-Length: 0\r\n"))] {
            let answer =
                replies.slices(ReplyKind::Status(status, ReplyPart::Whole, ReplyPersistence::KeepOpen), 1).concat();
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.ends_with("\r\n\r\n"), "{answer}");
            assert_eq!(
                answer.contains("Content-Length"),
                length.is_some_and(|length| answer.contains(length)),
                "{answer}"
            );
        }
        let large = Replies::new(Bytes(1 << 20), &"204:90%,200:10%".parse().unwrap());
        let answer = large.slices(ReplyKind::Status(1, ReplyPart::Whole, ReplyPersistence::Close), 1);
        assert!(answer.concat().len() > 1 << 20);
    }
}

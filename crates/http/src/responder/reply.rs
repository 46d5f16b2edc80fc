//! All answers of a responder, written before they are asked for.

use fathom_model::units::{Bytes, Nanos};

use super::{
    date,
    request::{Fate, Refusal, Wants},
};
use crate::h1::Method;

/// Requests that came together are answered together, at most so many at once …
const COPIES_MAX: usize = 32;
/// … and as long as the answers fit here: a share of a socket's default send buffer.
const COPIES_BYTES_MAX: usize = 32 * 1024;

/// The fields of a successful answer that say how the connection goes on.
const FATES: [(Fate, &str); 3] =
    [(Fate::Stays, ""), (Fate::StaysAsAsked, "Connection: keep-alive\r\n"), (Fate::Closes, "Connection: close\r\n")];

/// Which answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// 200, with or without its body.
    Ok(Wants),
    /// An error status, after which the connection is closed.
    Refused(Refusal),
}

impl Kind {
    /// Whether the connection is closed after it.
    pub(super) fn closes(self) -> bool {
        !matches!(self, Self::Ok(Wants { fate: Fate::Stays | Fate::StaysAsAsked, .. }))
    }
}

/// The answers, each with its body behind its head, so that one send is enough.
#[derive(Debug)]
pub(super) struct Replies {
    size: usize,
    heads: [Head; FATES.len()],
    /// The usual answer as often as pipelining may ask for it.
    copies: Vec<u8>,
}

#[derive(Debug)]
struct Head {
    bytes: Vec<u8>,
    date: usize,
}

impl Replies {
    /// Answers with a body of this size.
    pub(super) fn new(size: Bytes) -> Self {
        let heads = FATES.map(|(_, field)| Head::new(size, field));
        let size = usize::try_from(size.0).expect("the size was checked when the responder was bound");
        let length = heads[0].bytes.len() + size;
        let one = [heads[0].bytes.as_slice(), &vec![b'x'; size]].concat();
        Self { size, heads, copies: one.repeat((COPIES_BYTES_MAX / length).clamp(1, COPIES_MAX)) }
    }

    /// How many answers of one kind can be sent at once.
    pub(super) fn copies_max(&self, kind: Kind) -> usize {
        let usual = Kind::Ok(Wants { method: Method::Get, fate: Fate::Stays });
        if kind == usual { self.copies.len() / self.length() } else { 1 }
    }

    /// The length of the usual answer.
    fn length(&self) -> usize {
        self.heads[0].bytes.len() + self.size
    }

    /// What is to be sent for some answers of one kind: first the one part, then the other.
    pub(super) fn parts(&self, kind: Kind, n_copies: usize) -> [&[u8]; 2] {
        let wants = match kind {
            Kind::Refused(refusal) => return [refused(refusal).as_bytes(), &[]],
            Kind::Ok(wants) => wants,
        };
        let head = match wants.fate {
            Fate::Stays => 0,
            Fate::StaysAsAsked => 1,
            Fate::Closes => 2,
        };
        let head = self.heads[head].bytes.as_slice();
        match (wants.method, wants.fate) {
            (Method::Head, _) => [head, &[]],
            (Method::Get, Fate::Stays) => [&self.copies[..n_copies * self.length()], &[]],
            (Method::Get, _) => [head, &self.copies[self.heads[0].bytes.len()..self.length()]],
        }
    }

    /// Puts a new date into all answers; one that is being sent may get both halves of it, the length stays.
    pub(super) fn set_date(&mut self, wall: Nanos) {
        let (text, length, at) = (date::text(wall), self.length(), self.heads[0].date);
        for head in &mut self.heads {
            head.bytes[head.date..head.date + date::LENGTH].copy_from_slice(text.as_bytes());
        }
        for copy in self.copies.chunks_exact_mut(length) {
            copy[at..at + date::LENGTH].copy_from_slice(text.as_bytes());
        }
    }
}

impl Head {
    fn new(size: Bytes, field: &str) -> Self {
        let begin = "HTTP/1.1 200 OK\r\nServer: fathom\r\nDate: ";
        let (date, size) = (date::text(Nanos::ZERO), size.0);
        let end = format!("\r\nContent-Type: text/plain\r\nContent-Length: {size}\r\n{field}\r\n");
        Self { bytes: format!("{begin}{date}{end}").into_bytes(), date: begin.len() }
    }
}

const fn refused(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Malformed => "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        Refusal::Method => {
            "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        }
        Refusal::TooLarge => {
            "HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        }
    }
}

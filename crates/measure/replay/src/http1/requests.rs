//! Divides what a client sends into requests (RFC 9112).

use std::ops::Range;

use fathom_capture::AfterMissing;
use fathom_http::h1::{Chunked, Framing, Malformed, Method, RequestHead};
use fathom_model::units::Nanos;

use crate::counts::RequestFate;

/// The longest head of a request: more than any common server accepts.
const HEAD_MAX: usize = 128 << 10;

/// A request that has begun.
#[derive(Debug, Clone)]
pub(crate) struct BegunRequest {
    pub(crate) bytes: Vec<u8>,
    pub(crate) head_length: usize,
    pub(crate) first_byte: Nanos,
    pub(crate) last_byte: Nanos,
    /// The captured bytes, of which `bytes` has the first ones if it is too long.
    pub(crate) n_captured: u64,
    /// Where the host that it names is.
    host: Range<usize>,
    /// How its answer is read.
    pub(crate) method: Method,
    pub(crate) is_connect: bool,
    /// Absent while it is not over.
    pub(crate) fate: Option<RequestFate>,
    /// What it will be if its end comes.
    fate_at_end: RequestFate,
}

impl BegunRequest {
    /// Whether it asks for another protocol (RFC 9110 section 7.8).
    pub(crate) fn asks_for_upgrade(&self) -> bool {
        let head = self.bytes.get(..self.head_length).unwrap_or_default();
        head.split(|byte| *byte == b'\n')
            .any(|line| line.get(..8).is_some_and(|name| name.eq_ignore_ascii_case(b"upgrade:")))
    }

    /// Gives its method, and the host that it names, to a function.
    pub(crate) fn with_names(&self, take: impl FnOnce(&[u8], &[u8])) {
        let method = self.bytes.split(|byte| *byte == b' ').next();
        take(method.unwrap_or_default(), self.bytes.get(self.host.clone()).unwrap_or_default());
    }

    fn keep(&mut self, bytes: &[u8], most: usize) {
        self.n_captured += bytes.len() as u64;
        if self.bytes.len() + bytes.len() > most {
            self.fate_at_end = RequestFate::TooLong;
            self.bytes = Vec::new();
        }
        if self.fate_at_end == RequestFate::Whole {
            self.bytes.extend_from_slice(bytes);
        }
    }
}

#[derive(Debug, Default)]
enum Position {
    /// In a head, or before one.
    #[default]
    Head,
    Counted(u64),
    Chunked(Chunked),
}

/// What the next bytes are.
#[derive(Debug)]
pub(crate) enum RequestProgress {
    /// A part of a head; more is needed.
    Head,
    /// The end of a head: a request begins.
    Begins(Box<BegunRequest>),
    /// A part of the body of the last request, whose fate may now be known.
    Body,
}

/// Follows the requests of one client.
#[derive(Debug, Default)]
pub(crate) struct RequestSplitter {
    position: Position,
    /// The begin of an incomplete head.
    head: Vec<u8>,
    first_byte: Nanos,
}

impl RequestSplitter {
    /// The bytes of an incomplete head.
    pub(crate) fn partial_head(&self) -> &[u8] {
        &self.head
    }

    /// Reads the next bytes; `last` is the request that began last. Returns how many were read, and what they are.
    ///
    /// # Errors
    /// The head or the chunks are malformed: nothing that follows can be understood. The bytes of a head stay in
    /// [`Self::partial_head`]; those of a body were not counted.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        time: Nanos,
        last: Option<&mut BegunRequest>,
        most: usize,
    ) -> Result<(usize, RequestProgress), Malformed> {
        let Some(last) = last.filter(|_| !matches!(self.position, Position::Head)) else {
            return self.read_head(bytes, time);
        };
        let end = match &mut self.position {
            Position::Head => unreachable!("a head is read elsewhere"),
            Position::Chunked(chunked) => chunked.follow_content(bytes, |_| {})?,
            Position::Counted(left) => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= n as u64;
                (*left == 0).then_some(n)
            }
        };
        let n = end.unwrap_or(bytes.len());
        last.keep(&bytes[..n], most);
        last.last_byte = last.last_byte.max(time);
        if end.is_some() {
            self.end(last);
        }
        Ok((n, RequestProgress::Body))
    }

    fn end(&mut self, request: &mut BegunRequest) {
        self.position = Position::Head;
        request.fate = Some(request.fate_at_end);
    }

    fn read_head(&mut self, bytes: &[u8], time: Nanos) -> Result<(usize, RequestProgress), Malformed> {
        let n_before = self.head.len();
        if n_before == 0 {
            self.first_byte = time;
        }
        self.head.extend_from_slice(bytes);
        let Some(head) = RequestHead::parse(&self.head)? else {
            let is_too_long = self.head.len() > HEAD_MAX;
            return if is_too_long { Err(Malformed::HeadTooLong) } else { Ok((bytes.len(), RequestProgress::Head)) };
        };
        let (length, framing, is_connect) = (head.length, head.framing, head.method == "CONNECT");
        let method = Method::of(head.method);
        let host = head.host.map_or(0..0, |host| place(host, &self.head));
        let mut bytes = std::mem::take(&mut self.head);
        bytes.truncate(length);
        // Empty lines before a request are no part of it (RFC 9112 section 2.2).
        let n_before_line = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        bytes.drain(..n_before_line);
        let mut request = Box::new(BegunRequest {
            bytes,
            head_length: length - n_before_line,
            first_byte: self.first_byte,
            last_byte: self.first_byte.max(time),
            n_captured: length as u64,
            host: host.start.saturating_sub(n_before_line)..host.end.saturating_sub(n_before_line),
            method,
            is_connect,
            fate: None,
            fate_at_end: if is_connect { RequestFate::Tunnel } else { RequestFate::Whole },
        });
        match framing {
            Framing::Length(0) => self.end(&mut request),
            Framing::Length(length) => self.position = Position::Counted(length),
            Framing::Chunked => self.position = Position::Chunked(Chunked::SizeBegin),
            Framing::UntilClose => unreachable!("no request ends with its connection"),
        }
        Ok((length - n_before, RequestProgress::Begins(request)))
    }

    /// Passes over bytes that are not in the capture.
    pub(crate) fn skip(&mut self, n: u64, last: Option<&mut BegunRequest>) -> AfterMissing {
        match (&mut self.position, last) {
            (Position::Counted(left), Some(last)) if n <= *left => {
                *left -= n;
                last.fate_at_end = RequestFate::MissingBytes;
                if *left == 0 {
                    self.end(last);
                }
                AfterMissing::Continues
            }
            _ => AfterMissing::Lost,
        }
    }
}

/// Where a part of a text is in it.
fn place(part: &[u8], text: &[u8]) -> Range<usize> {
    let begin = part.as_ptr().addr() - text.as_ptr().addr();
    begin..begin + part.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_request_are_those_of_its_head_however_it_arrives() {
        for (text, names) in [
            ("GET / HTTP/1.1\r\nA: b\r\nHost: c:81\r\n\r\n", ("GET", "c:81")),
            ("\r\n\nPUT http://d/e HTTP/1.1\r\nHost: f\r\nContent-Length: 0\r\n\r\n", ("PUT", "d")),
            ("\r\nHEAD /g HTTP/1.0\r\n\r\n", ("HEAD", "")),
        ] {
            for cut in 1..text.len() {
                let mut splitter = RequestSplitter::default();
                let pieces = [&text[..cut], &text[cut..]];
                let begun = pieces.map(|piece| splitter.read(piece.as_bytes(), Nanos(1), None, usize::MAX).unwrap().1);
                let [RequestProgress::Head, RequestProgress::Begins(request)] = begun else {
                    panic!("{text:?} cut at {cut}: {begun:?}");
                };
                request.with_names(|method, host| {
                    assert_eq!((method, host), (names.0.as_bytes(), names.1.as_bytes()), "{text:?} cut at {cut}");
                });
            }
        }
    }
}

//! Follows a response from its first byte to its last.

use super::{HeadReader, Malformed, Persistence, chunked::Chunked, head::Framing};

/// The buffer that a connection keeps for heads that arrive in pieces. Longer heads are rare.
const PARTIAL_KEPT: usize = 4 * 1024;

/// A complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseSummary {
    /// The status code, 200 to 999.
    pub status: u16,
    pub persistence: Persistence,
    /// The length of its body on the wire; for a chunked body this includes the chunk framing.
    pub body_bytes: u64,
    /// The length of the interim responses (1xx) before it.
    pub interim_bytes: u64,
}

/// The state of a response after some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseProgress {
    /// More bytes are needed.
    Partial,
    /// The response has ended.
    Complete {
        /// The number of bytes that belong to it.
        used: usize,
        answer: ResponseSummary,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyState {
    Head,
    Counted(u64),
    Chunked(Chunked),
    UntilClose,
}

/// Follows one response after another through the bytes of a connection.
#[derive(Debug)]
pub struct ResponseReader {
    state: BodyState,
    /// The received part of an incomplete head; usually empty.
    partial: Vec<u8>,
    answer: ResponseSummary,
    /// The length of the interim responses so far.
    interim_bytes: u64,
}

impl Default for ResponseReader {
    fn default() -> Self {
        let answer = ResponseSummary { status: 0, persistence: Persistence::Closes, body_bytes: 0, interim_bytes: 0 };
        Self { state: BodyState::Head, partial: Vec::new(), answer, interim_bytes: 0 }
    }
}

impl ResponseReader {
    /// Discards all state, for a new connection.
    pub fn reset(&mut self) {
        self.state = BodyState::Head;
        self.partial.clear();
        self.interim_bytes = 0;
    }

    /// Reads received bytes. After the end of a response it is ready for the next, which begins after the used bytes.
    ///
    /// Skips interim responses (1xx).
    ///
    /// # Errors
    /// The response is malformed; the connection cannot be used further.
    pub fn take(&mut self, bytes: &[u8], heads: &mut HeadReader) -> Result<ResponseProgress, Malformed> {
        let mut used = 0;
        while self.state == BodyState::Head {
            match self.take_head(&bytes[used..], heads)? {
                Some(length) => used += length,
                None => return Ok(ResponseProgress::Partial),
            }
        }
        let body = &bytes[used..];
        let end = match &mut self.state {
            BodyState::Head | BodyState::UntilClose => None,
            BodyState::Chunked(chunked) => chunked.follow(body)?,
            BodyState::Counted(left) => {
                let step = usize::try_from(*left).unwrap_or(usize::MAX).min(body.len());
                *left -= step as u64;
                (*left == 0).then_some(step)
            }
        };
        self.answer.body_bytes += end.unwrap_or(body.len()) as u64;
        Ok(end.map_or(ResponseProgress::Partial, |end| {
            self.state = BodyState::Head;
            ResponseProgress::Complete { used: used + end, answer: self.answer }
        }))
    }

    /// The bytes left of a body of known length; zero if the length is unknown.
    #[must_use]
    pub fn body_bytes_left(&self) -> u64 {
        match self.state {
            BodyState::Counted(left) => left,
            _ => 0,
        }
    }

    /// Skips bytes of a body of known length without reading them. Returns the answer if they end it.
    pub fn skip(&mut self, count: u64) -> Option<ResponseSummary> {
        let BodyState::Counted(left) = &mut self.state else { return None };
        self.answer.body_bytes += count.min(*left);
        *left = left.saturating_sub(count);
        (*left == 0).then(|| {
            self.state = BodyState::Head;
            self.answer
        })
    }

    /// The answer, if the end of the connection ends the response.
    #[must_use]
    pub fn finish_at_close(&self) -> Option<ResponseSummary> {
        (self.state == BodyState::UntilClose).then_some(self.answer)
    }

    /// Reads a head from the buffered part and `bytes`. Once it is complete, returns the number of `bytes` that belong to it.
    fn take_head(&mut self, bytes: &[u8], heads: &mut HeadReader) -> Result<Option<usize>, Malformed> {
        let n_before = self.partial.len();
        let read = if n_before == 0 {
            heads.read(bytes)?
        } else {
            let room = heads.max() - n_before;
            self.partial.extend_from_slice(&bytes[..bytes.len().min(room)]);
            heads.read(&self.partial)?
        };
        let Some((head, length)) = read else {
            if n_before == 0 {
                self.partial.extend_from_slice(bytes);
            }
            return Ok(None);
        };
        self.partial.clear();
        self.partial.shrink_to(PARTIAL_KEPT);
        if head.status < 200 {
            self.interim_bytes += length as u64;
            return Ok(Some(length - n_before));
        }
        let interim_bytes = std::mem::take(&mut self.interim_bytes);
        self.answer =
            ResponseSummary { status: head.status, persistence: head.persistence, body_bytes: 0, interim_bytes };
        self.state = match head.framing {
            Framing::Length(length) => BodyState::Counted(length),
            Framing::Chunked => BodyState::Chunked(Chunked::SizeBegin),
            Framing::UntilClose => BodyState::UntilClose,
        };
        Ok(Some(length - n_before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::Method;

    #[test]
    fn an_answer_without_a_head_is_all_body_until_the_end() {
        let (mut reader, mut heads) = (ResponseReader::default(), HeadReader::new(Method::Http09));
        assert_eq!(reader.finish_at_close(), None, "nothing has come");
        for piece in ["HTTP/1.1 404 No\r\n\r\n", "more"] {
            assert_eq!(reader.take(piece.as_bytes(), &mut heads), Ok(ResponseProgress::Partial));
        }
        assert_eq!(
            reader.finish_at_close(),
            Some(ResponseSummary { status: 200, persistence: Persistence::Closes, body_bytes: 23, interim_bytes: 0 })
        );
    }

    const RESPONSES: &[(&str, u16)] = &[
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x\r\nlo\r\n0\r\nA: b\r\n\r\n", 200),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\nx",
            404,
        ),
    ];

    #[test]
    fn a_response_may_be_cut_at_every_byte() {
        for (text, status) in RESPONSES {
            for cut in 0..=text.len() {
                let (mut reader, mut heads) = (ResponseReader::default(), HeadReader::new(Method::Get));
                let (first, second) = text.as_bytes().split_at(cut);
                let begun = reader.take(first, &mut heads).unwrap();
                let ended = if cut < text.len() {
                    assert_eq!(begun, ResponseProgress::Partial, "{text} cut at {cut}");
                    reader.take(second, &mut heads).unwrap()
                } else {
                    begun
                };
                let ResponseProgress::Complete { used, answer } = ended else {
                    panic!("{text} cut at {cut} does not end")
                };
                let final_begin = text.rfind("HTTP/1.1 ").unwrap();
                assert_eq!(answer.interim_bytes, final_begin as u64, "{text} cut at {cut}");
                assert_eq!((used, answer.status), (if cut < text.len() { second.len() } else { cut }, *status));
            }
        }
    }

    #[test]
    fn several_responses_in_one_piece_are_told_apart() {
        let (mut reader, mut heads) = (ResponseReader::default(), HeadReader::new(Method::Get));
        let all: String = RESPONSES.iter().map(|(text, _)| *text).collect();
        let mut rest = all.as_bytes();
        for (text, expected) in RESPONSES {
            let ResponseProgress::Complete { used, answer } = reader.take(rest, &mut heads).unwrap() else {
                panic!("{text}")
            };
            assert_eq!((used, answer.status), (text.len(), *expected));
            rest = &rest[used..];
        }
    }

    #[test]
    fn a_body_without_a_length_ends_with_the_connection() {
        let (mut reader, mut heads) = (ResponseReader::default(), HeadReader::new(Method::Get));
        assert_eq!(reader.take(b"HTTP/1.0 200 OK\r\n", &mut heads), Ok(ResponseProgress::Partial));
        assert_eq!(reader.finish_at_close(), None, "a head was cut");
        assert_eq!(reader.take(b"\r\nhello", &mut heads), Ok(ResponseProgress::Partial));
        assert_eq!(reader.finish_at_close().map(|answer| answer.status), Some(200));
    }

    #[test]
    fn a_counted_body_may_be_passed_over_unseen() {
        let (mut reader, mut heads) = (ResponseReader::default(), HeadReader::new(Method::Get));
        assert_eq!((reader.body_bytes_left(), reader.skip(1)), (0, None));
        reader.take(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello", &mut heads).unwrap();
        assert_eq!((reader.body_bytes_left(), reader.skip(94), reader.body_bytes_left()), (95, None, 1));
        assert_eq!(reader.skip(1).map(|answer| answer.status), Some(200));
        assert_eq!(reader.body_bytes_left(), 0, "the next response begins");
    }

    #[test]
    fn an_answer_to_head_has_no_body_whatever_its_length_says() {
        let (mut reader, mut heads) = (ResponseReader::default(), HeadReader::new(Method::Head));
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let progress = reader.take(text.as_bytes(), &mut heads);
        assert!(matches!(progress, Ok(ResponseProgress::Complete { used, .. }) if used == text.len()));
    }
}

//! Divides what a server sends into answers (RFC 9112).

use fathom_capture::AfterMissing;
use fathom_http::h1::{Chunked, Framing, HeadReader, Malformed};
use fathom_model::units::Nanos;

use crate::{counts::AnswerFate, digest::Digest, exchange::RecordedAnswer};

#[derive(Debug, Default)]
enum Position {
    /// In a head, or before one.
    #[default]
    Head,
    Counted(u64),
    Chunked(Chunked),
    UntilClose,
}

/// An answer that has begun.
#[derive(Debug)]
struct BegunAnswer {
    answer: RecordedAnswer,
    digest: Digest,
    has_all: bool,
}

/// Follows the answers of one server.
#[derive(Debug, Default)]
pub(crate) struct AnswerSplitter {
    position: Position,
    /// The begin of an incomplete head.
    head: Vec<u8>,
    first_byte: Nanos,
    begun: Option<BegunAnswer>,
}

/// An answer that is over.
pub(crate) type EndedAnswer = (AnswerFate, RecordedAnswer);

impl AnswerSplitter {
    /// The bytes of an incomplete head.
    pub(crate) fn partial_head(&self) -> &[u8] {
        &self.head
    }

    /// The status of the answer that has begun.
    pub(crate) fn begun_status(&self) -> Option<u16> {
        self.begun.as_ref().map(|begun| begun.answer.status)
    }

    /// Reads the next bytes; `heads` knows the method of the request. Returns how many were read, and the answer if they end it.
    ///
    /// # Errors
    /// The answer is malformed. The bytes of a head stay in [`Self::partial_head`]; those of a body were not counted.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        time: Nanos,
        heads: &mut HeadReader,
    ) -> Result<(usize, Option<EndedAnswer>), Malformed> {
        let Some(begun) = &mut self.begun else {
            return self.read_head(bytes, time, heads);
        };
        let end = match &mut self.position {
            Position::Head | Position::UntilClose => {
                begun.add(bytes);
                None
            }
            Position::Chunked(chunked) => chunked.follow_content(bytes, |content| begun.add(content))?,
            Position::Counted(left) => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= n as u64;
                begun.add(&bytes[..n]);
                (*left == 0).then_some(n)
            }
        };
        begun.answer.last_byte = begun.answer.last_byte.max(time);
        Ok((end.unwrap_or(bytes.len()), end.and_then(|_| self.end())))
    }

    fn read_head(
        &mut self,
        bytes: &[u8],
        time: Nanos,
        heads: &mut HeadReader,
    ) -> Result<(usize, Option<EndedAnswer>), Malformed> {
        let n_before = self.head.len();
        if n_before == 0 {
            self.first_byte = time;
        }
        self.head.extend_from_slice(bytes);
        let Some((head, length)) = heads.read(&self.head)? else { return Ok((bytes.len(), None)) };
        let mut text = std::mem::take(&mut self.head);
        text.truncate(length);
        let n = length - n_before;
        // An interim answer (RFC 9110 section 15.2).
        if head.status < 200 {
            return Ok((n, None));
        }
        let answer = RecordedAnswer {
            status: head.status,
            head: text,
            content_bytes: 0,
            content_digest: None,
            first_byte: self.first_byte,
            last_byte: self.first_byte.max(time),
        };
        self.begun = Some(BegunAnswer { answer, digest: Digest::EMPTY, has_all: true });
        match head.framing {
            Framing::Length(0) => return Ok((n, self.end())),
            Framing::Length(length) => self.position = Position::Counted(length),
            Framing::Chunked => self.position = Position::Chunked(Chunked::SizeBegin),
            Framing::UntilClose => self.position = Position::UntilClose,
        }
        Ok((n, None))
    }

    /// Ends the answer as it is.
    fn end(&mut self) -> Option<EndedAnswer> {
        self.position = Position::Head;
        let BegunAnswer { mut answer, digest, has_all } = self.begun.take()?;
        answer.content_digest = has_all.then(|| digest.value());
        Some((if has_all { AnswerFate::Whole } else { AnswerFate::MissingBytes }, answer))
    }

    /// The server has closed its direction. Returns the answer that ends with it.
    pub(crate) fn finish(&mut self) -> Option<EndedAnswer> {
        if matches!(self.position, Position::UntilClose) { self.end() } else { None }
    }

    /// Returns the answer that has begun and does not end.
    pub(crate) fn abandon(&mut self) -> Option<RecordedAnswer> {
        self.position = Position::Head;
        self.head.clear();
        self.begun.take().map(|begun| begun.answer)
    }

    /// Passes over bytes that are not in the capture. Returns the answer if they end it.
    pub(crate) fn skip(&mut self, n: u64) -> (AfterMissing, Option<EndedAnswer>) {
        match (&mut self.position, &mut self.begun) {
            (Position::Counted(left), Some(begun)) if n <= *left => {
                *left -= n;
                begun.skip(n);
                let is_end = *left == 0;
                (AfterMissing::Continues, if is_end { self.end() } else { None })
            }
            (Position::UntilClose, Some(begun)) => {
                begun.skip(n);
                (AfterMissing::Continues, None)
            }
            _ => (AfterMissing::Lost, None),
        }
    }
}

impl BegunAnswer {
    fn add(&mut self, content: &[u8]) {
        self.answer.content_bytes += content.len() as u64;
        self.digest.add(content);
    }

    fn skip(&mut self, n: u64) {
        self.answer.content_bytes += n;
        self.has_all = false;
    }
}

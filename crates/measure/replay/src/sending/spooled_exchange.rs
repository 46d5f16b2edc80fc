//! How an exchange lies in the spool: what is sent, and what the recorded answer was.

use std::io;

use fathom_model::units::Nanos;

use crate::{
    AnswerFate, RecordedExchange,
    spool::{SpoolPlace, SpoolWriter},
};

/// A longer head of an answer is not compared.
const HEAD_MAX: usize = 64 << 10;
/// The content of a longer recorded answer is not compared: it would have to be held in memory.
const COMPARED_MAX: u64 = 8 << 20;
/// The status of an answer that is not whole in the recording, and the length and the time that are not known.
const NO_STATUS: u16 = 0;
const NO_CONTENT: u64 = u64::MAX;
const NO_TIME: Nanos = Nanos::MAX;

/// Whether recorded answers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordedAnswers {
    /// They will be compared.
    Kept,
    /// They take no room.
    Dropped,
}

/// Adds an exchange to a spool.
///
/// # Errors
/// The disk is full, for example.
pub(super) fn add(
    spool: &mut SpoolWriter,
    exchange: &RecordedExchange,
    answers: RecordedAnswers,
) -> io::Result<SpoolPlace> {
    let answer = recorded(exchange).filter(|_| answers == RecordedAnswers::Kept);
    let head = answer.map_or(&[][..], |answer| answer.head);
    let (content_bytes, digest) = answer.and_then(|answer| answer.content).unwrap_or((NO_CONTENT, 0));
    let head_length = u32::try_from(head.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    spool.add(&[
        &head_length.to_ne_bytes(),
        &answer.map_or(NO_STATUS, |answer| answer.status).to_ne_bytes(),
        &content_bytes.to_ne_bytes(),
        &digest.to_ne_bytes(),
        &answer.and_then(|answer| answer.took).unwrap_or(NO_TIME).0.to_ne_bytes(),
        head,
        &exchange.request,
    ])
}

/// An exchange as it was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpooledExchange<'a> {
    /// The bytes to send.
    pub(super) request: &'a [u8],
    /// Absent if the recording has no whole answer, or if answers are not compared.
    pub(super) answer: Option<SpooledAnswer<'a>>,
}

/// The recorded answer, as far as it can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpooledAnswer<'a> {
    pub(super) status: u16,
    /// Empty if it is not known.
    pub(super) head: &'a [u8],
    /// The length and the digest of its content.
    pub(super) content: Option<(u64, u64)>,
    /// From the first byte of the request to the last of the answer.
    pub(super) took: Option<Nanos>,
}

impl<'a> SpooledExchange<'a> {
    /// Divides the bytes of a record.
    ///
    /// # Errors
    /// They are no exchange, because the disk lost them.
    pub(super) fn of(record: &'a [u8]) -> io::Result<Self> {
        Self::divide(record).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn divide(record: &'a [u8]) -> Option<Self> {
        let (head_length, rest) = record.split_first_chunk()?;
        let (status, rest) = rest.split_first_chunk()?;
        let (content_bytes, rest) = rest.split_first_chunk()?;
        let (content_digest, rest) = rest.split_first_chunk()?;
        let (took, rest) = rest.split_first_chunk()?;
        let (head, request) = rest.split_at_checked(u32::from_ne_bytes(*head_length) as usize)?;
        let status = u16::from_ne_bytes(*status);
        let answer = SpooledAnswer {
            status,
            head,
            content: Some((u64::from_ne_bytes(*content_bytes), u64::from_ne_bytes(*content_digest)))
                .filter(|content| content.0 != NO_CONTENT),
            took: Some(Nanos(u64::from_ne_bytes(*took))).filter(|took| *took != NO_TIME),
        };
        Some(Self { request, answer: (status != NO_STATUS).then_some(answer) })
    }
}

impl SpooledAnswer<'_> {
    /// Whether the answer beside it may be held in memory.
    pub(super) fn is_comparable(&self) -> bool {
        self.content.is_none_or(|(n, _)| n <= COMPARED_MAX)
    }
}

/// What the recording knows of an answer; `None` unless it is whole in a capture, or in a log with its status.
pub(super) fn recorded(exchange: &RecordedExchange) -> Option<SpooledAnswer<'_>> {
    if let Some(logged) = &exchange.logged {
        return Some(SpooledAnswer { status: logged.status, head: &[], content: None, took: logged.took });
    }
    let answer = exchange.answer.as_ref().filter(|_| exchange.answer_fate == AnswerFate::Whole)?;
    (answer.head.len() <= HEAD_MAX).then(|| SpooledAnswer {
        status: answer.status,
        head: &answer.head,
        content: answer.content_digest.map(|digest| (answer.content_bytes, digest)),
        took: Some(answer.last_byte.since(exchange.first_byte)),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{RecordedAnswer, spool::SpoolReader};

    /// A request of a connection at a time, in milliseconds, without an answer.
    pub(in crate::sending) fn exchange(connection: u64, at: u64, request: &str) -> RecordedExchange {
        let at = Nanos::from_millis(at);
        RecordedExchange {
            connection,
            lane: None,
            opened: at,
            request: request.as_bytes().to_vec(),
            head_length: request.find("\r\n\r\n").map_or(request.len(), |end| end + 4),
            first_byte: at,
            last_byte: at,
            answer_fate: AnswerFate::Absent,
            answer: None,
            logged: None,
        }
    }

    /// The same with a whole answer after a millisecond.
    pub(in crate::sending) fn answered(exchange: RecordedExchange, head: &str, content: &str) -> RecordedExchange {
        let mut digest = crate::digest::Digest::EMPTY;
        digest.add(content.as_bytes());
        let answer = RecordedAnswer {
            status: head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(200),
            head: head.as_bytes().to_vec(),
            content_bytes: content.len() as u64,
            content_digest: Some(digest.value()),
            first_byte: exchange.last_byte + Nanos::from_millis(1),
            last_byte: exchange.last_byte + Nanos::from_millis(1),
        };
        RecordedExchange { answer_fate: AnswerFate::Whole, answer: Some(answer), ..exchange }
    }

    fn read(exchanges: &[RecordedExchange], answers: RecordedAnswers, check: impl Fn(usize, SpooledExchange<'_>)) {
        let mut writer = SpoolWriter::new().unwrap();
        let places: Vec<_> = exchanges.iter().map(|exchange| add(&mut writer, exchange, answers).unwrap()).collect();
        let mut reader = SpoolReader::new(writer.finish().unwrap(), 1);
        for (number, place) in places.into_iter().enumerate() {
            check(number, SpooledExchange::of(reader.read(place).unwrap()).unwrap());
        }
    }

    fn exchanges() -> [RecordedExchange; 2] {
        let bare = exchange(0, 0, "POST / HTTP/1.1\r\n\r\nbody");
        [bare.clone(), answered(bare, "HTTP/1.1 201 Created\r\n\r\n", "content")]
    }

    #[test]
    fn exchanges_come_back_with_what_is_known_of_their_answers() {
        let written = exchanges();
        read(&written, RecordedAnswers::Kept, |number, read| {
            assert_eq!((read.request, read.answer), (&written[number].request[..], recorded(&written[number])));
            let took = written[number].answer.as_ref().map(|_| Nanos::from_millis(1));
            assert_eq!(read.answer.and_then(|answer| answer.took), took);
        });
    }

    #[test]
    fn answers_that_nobody_compares_take_no_room() {
        read(&exchanges(), RecordedAnswers::Dropped, |_, read| assert_eq!(read.answer, None));
    }
}

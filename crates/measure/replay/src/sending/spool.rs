//! Exchanges on disk: what is sent, and what the recorded answer was.
//!
//! The file has no name, so nothing is left of it. Its layout is known to this module alone.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    os::unix::fs::FileExt as _,
    sync::Arc,
};

use fathom_model::units::Nanos;

use crate::{AnswerFate, RecordedExchange};

/// A request that is read brings the following ones with it, since they are due next.
const BLOCK: usize = 256 << 10;
/// A longer head of an answer is not compared.
const HEAD_MAX: usize = 64 << 10;
/// The content of a longer recorded answer is not compared: it would have to be held in memory.
const COMPARED_MAX: u64 = 8 << 20;
/// The numbers before the bytes: two lengths, the status, the content's length and digest, and the time.
const NUMBERS: usize = 4 + 4 + 2 + 8 + 8 + 8;
/// The status of an answer that is not whole in the recording, and the length and the time that are not known.
const NO_STATUS: u16 = 0;
const NO_CONTENT: u64 = u64::MAX;
const NO_TIME: Nanos = Nanos::MAX;

/// Where an exchange lies, in units of [`ALIGNMENT`]: millions of them are in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpoolPlace(u32);

/// Each exchange begins at a multiple of so many bytes, so that 32 bits reach through 32 GiB.
const ALIGNMENT: usize = 8;

/// Writes exchanges one after another.
#[derive(Debug)]
pub(super) struct SpoolWriter {
    file: BufWriter<File>,
    offset: u64,
    keeps_answers: bool,
}

impl SpoolWriter {
    /// Creates a file without a name in the folder for temporary files. Answers are kept if they will be compared.
    ///
    /// # Errors
    /// There is no place for it.
    pub(super) fn new(keeps_answers: bool) -> io::Result<Self> {
        Ok(Self { file: BufWriter::with_capacity(BLOCK, tempfile::tempfile()?), offset: 0, keeps_answers })
    }

    /// Adds an exchange.
    ///
    /// # Errors
    /// The disk is full, for example.
    pub(super) fn add(&mut self, exchange: &RecordedExchange) -> io::Result<SpoolPlace> {
        let answer = recorded(exchange).filter(|_| self.keeps_answers);
        let head = answer.map_or(&[][..], |answer| answer.head);
        let place = SpoolPlace(fits(self.offset / ALIGNMENT as u64)?);
        let length = NUMBERS + exchange.request.len() + head.len();
        self.file.write_all(&fits(exchange.request.len() as u64)?.to_ne_bytes())?;
        self.file.write_all(&fits(head.len() as u64)?.to_ne_bytes())?;
        self.file.write_all(&answer.map_or(NO_STATUS, |answer| answer.status).to_ne_bytes())?;
        let (content_bytes, digest) = answer.and_then(|answer| answer.content).unwrap_or((NO_CONTENT, 0));
        self.file.write_all(&content_bytes.to_ne_bytes())?;
        self.file.write_all(&digest.to_ne_bytes())?;
        self.file.write_all(&answer.and_then(|answer| answer.took).unwrap_or(NO_TIME).0.to_ne_bytes())?;
        self.file.write_all(&exchange.request)?;
        self.file.write_all(head)?;
        let padded = length.next_multiple_of(ALIGNMENT);
        self.file.write_all(&[0; ALIGNMENT][..padded - length])?;
        self.offset += padded as u64;
        Ok(place)
    }

    /// Returns the file for its readers.
    ///
    /// # Errors
    /// The disk is full, for example.
    pub(super) fn finish(self) -> io::Result<Arc<File>> {
        self.file.into_inner().map(Arc::new).map_err(io::IntoInnerError::into_error)
    }
}

fn fits(number: u64) -> io::Result<u32> {
    u32::try_from(number).map_err(|_| io::ErrorKind::FileTooLarge.into())
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

/// Reads exchanges for one worker.
#[derive(Debug)]
pub(super) struct SpoolReader {
    file: Arc<File>,
    block: Vec<u8>,
    block_offset: u64,
}

impl SpoolReader {
    pub(super) fn new(file: Arc<File>) -> Self {
        Self { file, block: Vec::new(), block_offset: 0 }
    }

    /// Returns the exchange at a place.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub(super) fn read(&mut self, place: SpoolPlace) -> io::Result<SpooledExchange<'_>> {
        let offset = u64::from(place.0) * ALIGNMENT as u64;
        let length = self.bytes(offset, NUMBERS)?.first_chunk().map_or(0, |lengths| length(*lengths));
        exchange(self.bytes(offset, length)?).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// The bytes at an offset.
    fn bytes(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let end = self.block_offset + self.block.len() as u64;
        if offset < self.block_offset || offset + length as u64 > end {
            self.fill(offset, length)?;
        }
        let begin = usize::try_from(offset - self.block_offset).unwrap_or(usize::MAX);
        self.block.get(begin..begin.saturating_add(length)).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn fill(&mut self, offset: u64, least: usize) -> io::Result<()> {
        self.block.resize(least.max(BLOCK), 0);
        self.block_offset = offset;
        let mut n = 0;
        // A file that ends earlier has no more exchanges.
        while n < self.block.len() {
            match self.file.read_at(&mut self.block[n..], offset + n as u64) {
                Ok(0) => break,
                Ok(read) => n += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.block.clear();
                    return Err(error);
                }
            }
        }
        self.block.truncate(n);
        Ok(())
    }
}

/// The length of an exchange that begins with these two lengths.
fn length(lengths: [u8; 8]) -> usize {
    let [r0, r1, r2, r3, h0, h1, h2, h3] = lengths;
    NUMBERS + u32::from_ne_bytes([r0, r1, r2, r3]) as usize + u32::from_ne_bytes([h0, h1, h2, h3]) as usize
}

/// Divides the bytes of an exchange.
fn exchange(bytes: &[u8]) -> Option<SpooledExchange<'_>> {
    let (request_length, rest) = bytes.split_first_chunk()?;
    let (head_length, rest) = rest.split_first_chunk()?;
    let (status, rest) = rest.split_first_chunk()?;
    let (content_bytes, rest) = rest.split_first_chunk()?;
    let (content_digest, rest) = rest.split_first_chunk()?;
    let (took, rest) = rest.split_first_chunk()?;
    let (request, rest) = rest.split_at_checked(u32::from_ne_bytes(*request_length) as usize)?;
    let status = u16::from_ne_bytes(*status);
    let answer = SpooledAnswer {
        status,
        head: rest.get(..u32::from_ne_bytes(*head_length) as usize)?,
        content: Some((u64::from_ne_bytes(*content_bytes), u64::from_ne_bytes(*content_digest)))
            .filter(|content| content.0 != NO_CONTENT),
        took: Some(Nanos(u64::from_ne_bytes(*took))).filter(|took| *took != NO_TIME),
    };
    Some(SpooledExchange { request, answer: (status != NO_STATUS).then_some(answer) })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::RecordedAnswer;

    /// A request of a connection at a time, in milliseconds, without an answer.
    pub(in crate::sending) fn exchange(connection: u64, at: u64, request: &str) -> RecordedExchange {
        let at = Nanos::from_millis(at);
        RecordedExchange {
            connection,
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

    #[test]
    fn every_exchange_is_read_as_it_was_written_in_any_order() {
        let mut writer = SpoolWriter::new(true).unwrap();
        let body = "x".repeat(BLOCK / 3);
        let exchanges: Vec<RecordedExchange> = (0..20)
            .map(|n| {
                let request = exchange(n, n, &format!("POST /{n} HTTP/1.1\r\n\r\n{}", &body[usize::from(n == 7)..]));
                if n % 3 == 0 { request } else { answered(request, "HTTP/1.1 201 Created\r\n\r\n", &n.to_string()) }
            })
            .chain([exchange(20, 20, &body.repeat(9))])
            .collect();
        let places: Vec<SpoolPlace> = exchanges.iter().map(|exchange| writer.add(exchange).unwrap()).collect();
        let mut reader = SpoolReader::new(writer.finish().unwrap());
        for number in (0..exchanges.len()).chain((0..exchanges.len()).rev()) {
            let read = reader.read(places[number]).unwrap();
            let written = &exchanges[number];
            assert_eq!(read.request, written.request);
            let answer = written.answer.as_ref();
            assert_eq!(read.answer, recorded(written));
            assert_eq!(read.answer.map(|answer| answer.head), answer.map(|answer| &answer.head[..]));
            assert_eq!(read.answer.and_then(|answer| answer.took), answer.map(|_| Nanos::from_millis(1)));
        }
    }

    #[test]
    fn answers_that_nobody_compares_take_no_room() {
        let recorded = answered(exchange(0, 0, "GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK\r\n\r\n", "text");
        let mut writer = SpoolWriter::new(false).unwrap();
        let place = writer.add(&recorded).unwrap();
        assert_eq!(SpoolReader::new(writer.finish().unwrap()).read(place).unwrap().answer, None);
    }
}

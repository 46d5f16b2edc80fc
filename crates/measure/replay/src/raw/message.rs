//! A message of a client as it was recorded, and how it lies in the spool.

use std::io;

use fathom_model::units::Nanos;

use crate::{
    digest::Digest,
    spool::{SpoolPlace, SpoolWriter},
};

/// What a client sent before it waited: a turn of a TCP connection, or a datagram.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RecordedMessage {
    /// The number of its connection or flow in the capture.
    pub(super) connection: u64,
    /// When its first byte was sent, since 1970.
    pub(super) time: Nanos,
    pub(super) bytes: Vec<u8>,
    pub(super) answer: Answer,
    /// From its first byte to the last one of the answer.
    pub(super) took: Nanos,
    /// Whether the client closed its direction before it had the whole answer.
    pub(super) finishes: bool,
}

/// What a server sent to a message.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    /// The number of bytes, those included that the capture lacks.
    pub(super) bytes: u64,
    /// The number of datagrams; 0 over TCP.
    pub(super) n_datagrams: u32,
    /// Of all bytes; absent if some are not in the capture.
    digest: Option<Digest>,
}

impl Answer {
    pub(super) const NONE: Self = Self { bytes: 0, n_datagrams: 0, digest: Some(Digest::EMPTY) };

    /// Adds bytes of a stream.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.add(bytes);
        }
    }

    /// Adds a datagram.
    pub(super) fn add_datagram(&mut self, payload: &[u8]) {
        self.n_datagrams += 1;
        self.add(payload);
    }

    /// Adds bytes that the capture lacks.
    pub(super) fn add_missing(&mut self, n: u64) {
        self.bytes += n;
        if n > 0 {
            self.digest = None;
        }
    }

    /// Whether there was any.
    pub(super) const fn is_some(&self) -> bool {
        self.bytes > 0 || self.n_datagrams > 0
    }

    /// The digest, if the capture has all bytes.
    pub(super) fn digest(&self) -> Option<u64> {
        self.digest.as_ref().map(Digest::value)
    }
}

/// The answer that the recording has to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpectedAnswer {
    pub(super) bytes: u64,
    pub(super) n_datagrams: u32,
    pub(super) digest: Option<u64>,
    pub(super) took: Nanos,
}

/// A message as it was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpooledMessage<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) expected: ExpectedAnswer,
    pub(super) finishes: bool,
}

/// The bits of the byte of flags.
const HAS_DIGEST: u8 = 1;
const FINISHES: u8 = 2;

/// Adds a message to a spool.
///
/// # Errors
/// The disk is full, for example.
pub(super) fn add(spool: &mut SpoolWriter, message: &RecordedMessage) -> io::Result<SpoolPlace> {
    let Answer { bytes, n_datagrams, .. } = message.answer;
    let digest = message.answer.digest();
    let flags = if digest.is_some() { HAS_DIGEST } else { 0 } | if message.finishes { FINISHES } else { 0 };
    spool.add(&[
        &bytes.to_ne_bytes(),
        &digest.unwrap_or_default().to_ne_bytes(),
        &message.took.0.to_ne_bytes(),
        &n_datagrams.to_ne_bytes(),
        &[flags],
        &message.bytes,
    ])
}

impl<'a> SpooledMessage<'a> {
    /// Divides the bytes of a record.
    ///
    /// # Errors
    /// They are no message, because the disk lost them.
    pub(super) fn of(record: &'a [u8]) -> io::Result<Self> {
        Self::divide(record).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn divide(record: &'a [u8]) -> Option<Self> {
        let (answer_bytes, rest) = record.split_first_chunk()?;
        let (digest, rest) = rest.split_first_chunk()?;
        let (took, rest) = rest.split_first_chunk()?;
        let (n_datagrams, rest) = rest.split_first_chunk()?;
        let (flags, bytes) = rest.split_first()?;
        let expected = ExpectedAnswer {
            bytes: u64::from_ne_bytes(*answer_bytes),
            n_datagrams: u32::from_ne_bytes(*n_datagrams),
            digest: (flags & HAS_DIGEST != 0).then_some(u64::from_ne_bytes(*digest)),
            took: Nanos(u64::from_ne_bytes(*took)),
        };
        Some(Self { bytes, expected, finishes: flags & FINISHES != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::SpoolReader;

    #[test]
    fn messages_come_back_as_they_were_kept() {
        let mut whole = Answer::NONE;
        whole.add_datagram(b"answer");
        let mut lacking = whole.clone();
        lacking.add_missing(1);
        for (answer, finishes) in [(&Answer::NONE, false), (&whole, true), (&lacking, true)] {
            let (bytes, took) = (b"text".to_vec(), Nanos(7));
            let message =
                RecordedMessage { connection: 1, time: Nanos(5), bytes, answer: answer.clone(), took, finishes };
            let mut spool = SpoolWriter::new().unwrap();
            let place = add(&mut spool, &message).unwrap();
            let mut reader = SpoolReader::new(spool.finish().unwrap(), 1);
            let read = SpooledMessage::of(reader.read(place).unwrap()).unwrap();
            let Answer { bytes, n_datagrams, .. } = *answer;
            let expected = ExpectedAnswer { bytes, n_datagrams, digest: answer.digest(), took };
            assert_eq!(read, SpooledMessage { bytes: b"text", expected, finishes });
        }
        assert_eq!((whole.digest().is_some(), lacking.digest(), lacking.bytes), (true, None, 7));
    }
}

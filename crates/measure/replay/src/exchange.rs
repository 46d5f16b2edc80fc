//! A recorded request with its answer.

use fathom_model::units::Nanos;

use crate::counts::AnswerFate;

/// A request as it was sent, and what is known of its answer. Times are since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedExchange {
    /// The number of its connection in the recording, from 0.
    pub connection: u64,
    /// Which of the streams at the same time it was, from 0, if it was recorded over HTTP/2; exchanges of a lane followed each other.
    /// Those of other recordings followed each other on their connection.
    pub lane: Option<u32>,
    /// When the connection was opened, as far as the recording shows.
    pub opened: Nanos,
    /// The request, from the first byte of its head to the last of its body.
    pub request: Vec<u8>,
    /// The length of its head.
    pub head_length: usize,
    /// The time of its first byte.
    pub first_byte: Nanos,
    /// The time of its last byte.
    pub last_byte: Nanos,
    pub answer_fate: AnswerFate,
    /// The answer, from its final head on; absent if the recording has none of its bytes.
    pub answer: Option<RecordedAnswer>,
    /// What a log says of the answer; absent unless its fate is [`AnswerFate::Logged`].
    pub logged: Option<LoggedAnswer>,
}

/// What a log says of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedAnswer {
    pub status: u16,
    /// The length of its content; absent if it is not logged. Some formats count its head too (`%O` of Apache).
    pub content_bytes: Option<u64>,
    /// The time that the request took, as the server measured it; absent if it is not logged.
    pub took: Option<Nanos>,
}

/// The answer to a request, as far as the capture has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedAnswer {
    pub status: u16,
    /// Its head as it was sent.
    pub head: Vec<u8>,
    /// The length of its content, without the framing of chunks.
    pub content_bytes: u64,
    /// The XXH64 digest of its content; absent unless the answer is whole.
    pub content_digest: Option<u64>,
    /// The time of its first byte.
    pub first_byte: Nanos,
    /// The time of its last byte in the capture.
    pub last_byte: Nanos,
}

/// Takes the requests that an observer finds.
pub trait ExchangeSink {
    /// A whole request. Those of a conversation, over HTTP/2 those of a lane, come in their order; conversations are not in order with
    /// each other.
    fn take(&mut self, exchange: RecordedExchange);

    /// A connection is over: no more requests of it follow.
    fn end_connection(&mut self, _connection: u64) {}
}

impl<F: FnMut(RecordedExchange)> ExchangeSink for F {
    fn take(&mut self, exchange: RecordedExchange) {
        self(exchange);
    }
}

//! One stream: a request with its answer.

use fathom_capture::ConversationStart;
use fathom_model::units::Nanos;

use super::fields::{Field, Purpose, RequestHead};
use crate::{
    counts::{AnswerFate, RequestFate},
    digest::Digest,
    exchange::{RecordedAnswer, RecordedExchange},
    shared::UnfinishedFates,
};

/// A request as far as it has come.
#[derive(Debug)]
pub(super) struct StreamRequest {
    /// Absent if it is not kept.
    head: Option<RequestHead>,
    /// Absent until the first DATA frame.
    content: Option<Vec<u8>>,
    trailers: Vec<Field>,
    first_byte: Nanos,
    last_byte: Nanos,
    /// The bytes that were sent for it.
    pub(super) n_sent: u64,
    /// Absent while it is not over.
    pub(super) fate: Option<RequestFate>,
    /// What it will be if its end comes.
    fate_at_end: RequestFate,
}

/// An answer as far as it has come.
#[derive(Debug)]
struct StreamAnswer {
    answer: Option<RecordedAnswer>,
    digest: Digest,
    has_all: bool,
    /// Absent while it is not over.
    fate: Option<AnswerFate>,
}

/// A stream of a connection.
#[derive(Debug)]
pub(super) struct Stream {
    /// Which of the streams at the same time it is.
    pub(super) lane: u32,
    pub(super) request: StreamRequest,
    answer: StreamAnswer,
    /// Whether the sink has the request.
    pub(super) is_taken: bool,
}

impl StreamRequest {
    /// A request begins; without a head it has this fate.
    fn new(head: Result<RequestHead, RequestFate>, time: Nanos) -> Self {
        let (head, fate_at_end) = match head {
            Err(fate) => (None, fate),
            Ok(head) => match head.purpose {
                Purpose::Answer => (Some(head), RequestFate::Whole),
                Purpose::Tunnel => (None, RequestFate::Tunnel),
                Purpose::Upgrade => (None, RequestFate::Upgrade),
            },
        };
        // A tunnel has no end of its own.
        let fate = matches!(fate_at_end, RequestFate::Tunnel | RequestFate::Upgrade).then_some(fate_at_end);
        Self {
            head,
            content: None,
            trailers: Vec::new(),
            first_byte: time,
            last_byte: time,
            n_sent: 0,
            fate,
            fate_at_end,
        }
    }

    /// The bytes in memory.
    pub(super) fn n_kept(&self) -> usize {
        self.head.as_ref().map_or(0, RequestHead::size) + self.content.as_ref().map_or(0, Vec::len)
    }

    /// Content comes; a request longer than `most` is not kept.
    pub(super) fn add(&mut self, content: &[u8], time: Nanos, most: usize) {
        self.last_byte = self.last_byte.max(time);
        if self.fate_at_end == RequestFate::Whole && self.n_kept() + content.len() > most {
            self.drop_as(RequestFate::TooLong);
        }
        if self.fate_at_end == RequestFate::Whole {
            self.content.get_or_insert_default().extend_from_slice(content);
        }
    }

    /// It cannot be sent again, for this reason.
    pub(super) fn drop_as(&mut self, fate: RequestFate) {
        if self.fate_at_end == RequestFate::Whole {
            self.fate_at_end = fate;
        }
        (self.head, self.content) = (None, None);
    }

    /// Its end comes, with the fields behind its content.
    pub(super) fn end(&mut self, trailers: Vec<Field>, time: Nanos) {
        self.last_byte = self.last_byte.max(time);
        self.trailers = trailers;
        let n_content = self.content.as_ref().map_or(0, Vec::len);
        if self.head.as_ref().is_some_and(|head| !head.agrees_with(n_content)) {
            self.drop_as(RequestFate::Malformed);
        }
        self.fate.get_or_insert(self.fate_at_end);
    }

    /// The method and the host of a request that is whole.
    pub(super) fn names(&self) -> Option<(&[u8], &[u8])> {
        let head = self.head.as_ref()?;
        Some((&head.method, head.host.as_deref().unwrap_or_default()))
    }

    /// Returns a request that is whole as the sink gets it.
    pub(super) fn exchange(
        &self,
        start: &ConversationStart,
        lane: u32,
        (answer_fate, answer): (AnswerFate, Option<RecordedAnswer>),
    ) -> Option<RecordedExchange> {
        let (request, head_length) = self.head.clone()?.into_http1(self.content.as_deref(), &self.trailers);
        Some(RecordedExchange {
            connection: start.connection,
            lane: Some(lane),
            opened: start.time,
            request,
            head_length,
            first_byte: self.first_byte,
            last_byte: self.last_byte,
            answer_fate,
            answer,
            logged: None,
        })
    }
}

impl Stream {
    pub(super) fn new(lane: u32, head: Result<RequestHead, RequestFate>, time: Nanos) -> Self {
        let answer = StreamAnswer { answer: None, digest: Digest::EMPTY, has_all: true, fate: None };
        Self { lane, request: StreamRequest::new(head, time), answer, is_taken: false }
    }

    /// Whether the request and the answer are over.
    pub(super) const fn is_over(&self) -> bool {
        self.request.fate.is_some() && self.answer.fate.is_some()
    }

    /// Whether the final head of the answer has come.
    pub(super) const fn is_answered(&self) -> bool {
        self.answer.answer.is_some()
    }

    /// The final head of the answer comes.
    pub(super) fn begin_answer(&mut self, (status, head): (u16, Vec<u8>), (first_byte, last_byte): (Nanos, Nanos)) {
        let (content_bytes, content_digest) = (0, None);
        self.answer.answer =
            Some(RecordedAnswer { status, head, content_bytes, content_digest, first_byte, last_byte });
    }

    /// Content of the answer comes.
    pub(super) fn add_answer(&mut self, content: &[u8], time: Nanos) {
        if let Some(answer) = &mut self.answer.answer {
            answer.content_bytes += content.len() as u64;
            answer.last_byte = answer.last_byte.max(time);
            self.answer.digest.add(content);
        }
    }

    /// So many bytes of the answer are not in the capture.
    pub(super) fn skip_answer(&mut self, n: u64) {
        if let Some(answer) = &mut self.answer.answer {
            answer.content_bytes += n;
        }
        self.answer.has_all = false;
    }

    /// The end of the answer comes.
    pub(super) fn end_answer(&mut self, time: Nanos) {
        let StreamAnswer { answer, digest, has_all, .. } = &mut self.answer;
        let fate = match answer {
            None => AnswerFate::Malformed,
            Some(_) if !*has_all => AnswerFate::MissingBytes,
            Some(answer) => {
                answer.last_byte = answer.last_byte.max(time);
                answer.content_digest = Some(digest.value());
                AnswerFate::Whole
            }
        };
        self.answer.fate.get_or_insert(fate);
    }

    /// The answer is over, for this reason.
    pub(super) fn give_up_answer(&mut self, fate: AnswerFate) {
        self.answer.fate.get_or_insert(fate);
    }

    /// The conversation is over.
    pub(super) fn give_up(&mut self, fates: UnfinishedFates) {
        self.request.fate.get_or_insert(fates.request);
        let fate = if self.is_answered() { fates.answer } else { fates.without_answer };
        self.answer.fate.get_or_insert(fate);
    }

    /// Takes the answer out.
    pub(super) fn take_answer(&mut self) -> (AnswerFate, Option<RecordedAnswer>) {
        (self.answer.fate.unwrap_or(AnswerFate::Absent), self.answer.answer.take())
    }
}

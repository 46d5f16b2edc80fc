//! What all conversations of a capture share.

use fathom_capture::ConversationEnd;
use fathom_http::h1::{HeadReader, Method};

use crate::counts::{AnswerFate, ExchangeCounts, RequestFate};

/// The longest request that is kept.
const REQUEST_MAX: usize = 16 << 20;
/// Requests that are kept while more than this are in memory are cut to their heads.
const KEPT_MAX: usize = 256 << 20;
/// Requests of a conversation that wait for their answers; of more, the first has none. A capture may have one direction only.
pub(crate) const PENDING_MAX: usize = 1024;
/// Bytes of a server that wait for what the client has sent before, which packets out of order may bring later.
pub(crate) const EARLY_MAX: usize = 256 << 10;

/// When requests are given to the sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandOver {
    /// When their answers are known, or will not be.
    WithAnswer,
    /// When they are whole.
    AtOnce,
}

/// What all conversations share.
pub(crate) struct Shared<S> {
    pub(crate) sink: S,
    pub(crate) hand_over: HandOver,
    pub(crate) counts: ExchangeCounts,
    /// Readers of answers to HEAD, and to all other methods.
    pub(crate) to_head: HeadReader,
    pub(crate) to_get: HeadReader,
    /// Bytes of requests in memory.
    pub(crate) n_kept: usize,
}

impl<S> Shared<S> {
    pub(crate) fn new(sink: S, hand_over: HandOver) -> Self {
        let (to_head, to_get) = (HeadReader::new(Method::Head), HeadReader::new(Method::Get));
        Self { sink, hand_over, counts: ExchangeCounts::default(), to_head, to_get, n_kept: 0 }
    }

    /// The longest request that is kept now.
    pub(crate) const fn request_max(&self) -> usize {
        if self.n_kept > KEPT_MAX { 0 } else { REQUEST_MAX }
    }
}

/// What becomes of requests and answers that a conversation ends in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnfinishedFates {
    pub(crate) request: RequestFate,
    pub(crate) answer: AnswerFate,
    /// Of an answer that has not begun.
    pub(crate) without_answer: AnswerFate,
}

impl UnfinishedFates {
    pub(crate) const fn of(end: ConversationEnd) -> Self {
        let (request, answer, without_answer) = match end {
            ConversationEnd::Missing => (RequestFate::MissingBytes, AnswerFate::MissingBytes, AnswerFate::MissingBytes),
            ConversationEnd::Undecrypted => {
                (RequestFate::Undecrypted, AnswerFate::Undecrypted, AnswerFate::Undecrypted)
            }
            ConversationEnd::Connection | ConversationEnd::Capture => {
                (RequestFate::Incomplete, AnswerFate::Incomplete, AnswerFate::Absent)
            }
        };
        Self { request, answer, without_answer }
    }
}

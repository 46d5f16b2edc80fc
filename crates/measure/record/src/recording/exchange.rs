//! A request and its answer while they pass through the proxy.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fathom_sys::clock;
use hyper::{
    HeaderMap, StatusCode, Version,
    body::{Body, Frame, Incoming, SizeHint},
    header::{CONTENT_TYPE, LOCATION},
};

use super::{
    Recording,
    captured::{CapturedBody, Keeping},
    facts::{AnswerHead, ExchangeFacts, RequestHead},
    har,
};

/// The longest body of a request that is kept: one that is cut cannot be sent again.
const REQUEST_BODY_MAX: usize = 16 << 20;
/// The longest body of an answer that is kept, packed as it came.
const ANSWER_BODY_MAX: usize = 4 << 20;

/// One exchange; it is written to the log when nothing holds it any more.
#[derive(Debug)]
pub struct OpenExchange {
    recording: Arc<Recording>,
    facts: Mutex<ExchangeFacts>,
}

/// The side of an exchange that a body belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Request,
    Answer,
}

impl OpenExchange {
    /// A request has come.
    pub fn begin(recording: &Arc<Recording>, head: RequestHead) -> Arc<Self> {
        let begin = clock::now();
        let begin_wall = recording.wall_at(begin, clock::wall);
        let page = recording.page_of(&head, begin, begin_wall);
        recording.saw_traffic(begin);
        let facts = Mutex::new(ExchangeFacts {
            head,
            page,
            begin_wall,
            begin,
            request_body: CapturedBody { keeping: Keeping::UpTo(REQUEST_BODY_MAX), ..CapturedBody::default() },
            answer: None,
            answer_body: CapturedBody::default(),
            failure: None,
            is_private: false,
            end: None,
        });
        Arc::new(Self { recording: Arc::clone(recording), facts })
    }

    fn facts(&self) -> MutexGuard<'_, ExchangeFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the head of the answer.
    pub fn answered(&self, status: StatusCode, version: Version, headers: &HeaderMap) {
        let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let keeping = if har::is_text(media) { Keeping::UpTo(ANSWER_BODY_MAX) } else { Keeping::Length };
        let begin = clock::now();
        let mut facts = self.facts();
        if status.is_redirection()
            && let Some(location) = headers.get(LOCATION).and_then(|value| value.to_str().ok())
        {
            self.recording.state().pages.note_redirect(&facts.head.url, location);
        }
        facts.answer_body.keeping = keeping;
        facts.answer = Some(AnswerHead { status, version, headers: headers.clone(), begin });
    }

    /// Notes why there is no answer.
    pub fn failed(&self, why: &str) {
        self.facts().failure = Some(why.to_owned());
    }

    /// Leaves it out of the recording.
    pub(crate) fn forget(&self) {
        self.facts().is_private = true;
    }

    /// Notes a piece of a body.
    pub fn received(&self, direction: Direction, piece: &[u8]) {
        let mut facts = self.facts();
        let body = if direction == Direction::Request { &mut facts.request_body } else { &mut facts.answer_body };
        body.take(piece, |n_bytes| self.recording.reserve(n_bytes));
    }

    /// Notes the end of a body.
    pub fn ended(&self, direction: Direction) {
        let mut facts = self.facts();
        match direction {
            Direction::Request => facts.request_body.is_whole = true,
            Direction::Answer => {
                facts.answer_body.is_whole = true;
                facts.end = Some(clock::now());
            }
        }
    }
}

impl Drop for OpenExchange {
    fn drop(&mut self) {
        let facts = self.facts.get_mut().unwrap_or_else(PoisonError::into_inner);
        let recording = &self.recording;
        let n_reserved = facts.request_body.bytes.len() + facts.answer_body.bytes.len();
        if facts.is_private {
            return recording.release(n_reserved);
        }
        let now = clock::now();
        recording.saw_traffic(now);
        let host = facts.head.url.host().unwrap_or_default();
        let content = har::content(facts);
        if let Some(document) = content.as_ref().ok().and_then(|content| har::document(facts, content)) {
            recording.state().pages.note_document(&facts.page, document);
        }
        let request = &facts.request_body;
        if request.n_total > 0 && !request.is_kept() {
            let (method, path, n) = (&facts.head.method, facts.head.url.path(), request.n_total);
            recording.tell(format!("{method} {path}: its body of {n} bytes is not kept whole, and left out"));
        }
        let is_kept = recording.add(facts.begin_wall, host, har::entry(facts, content, now), n_reserved);
        let n_cut = u64::from(request.is_cut) + u64::from(facts.answer_body.is_cut);
        recording.count(|counts| {
            counts.n_cut_bodies += n_cut;
            let place = match (is_kept, &facts.answer) {
                (false, _) => &mut counts.n_unrecorded,
                (true, Some(_)) => &mut counts.n_requests,
                (true, None) => &mut counts.n_failed,
            };
            *place += 1;
        });
        if !is_kept {
            recording.tell("the recording is full (60 MiB): what comes now is passed on, but not recorded".to_owned());
        }
    }
}

/// A body on its way, of which the exchange keeps a copy.
pub(crate) struct ExchangeBody {
    body: Incoming,
    /// None if the host is not recorded.
    exchange: Option<Arc<OpenExchange>>,
    direction: Direction,
}

impl ExchangeBody {
    pub(crate) fn new(body: Incoming, exchange: Option<Arc<OpenExchange>>, direction: Direction) -> Self {
        // A body without bytes is not always asked for them.
        if body.is_end_stream()
            && let Some(exchange) = &exchange
        {
            exchange.ended(direction);
        }
        Self { body, exchange, direction }
    }
}

impl Body for ExchangeBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(exchange) = &self.exchange {
            match &frame {
                Some(Ok(frame)) => {
                    if let Some(piece) = frame.data_ref() {
                        exchange.received(self.direction, piece);
                    }
                }
                Some(Err(_)) => {}
                None => exchange.ended(self.direction),
            }
            if self.body.is_end_stream() && !matches!(frame, Some(Err(_))) {
                exchange.ended(self.direction);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

//! One conversation: requests on one side, and the answers to them on the other.

use std::collections::VecDeque;

use fathom_capture::{AfterMissing, ConversationEnd, ConversationSide, ConversationStart};
use fathom_http::h1::{Malformed, Method};
use fathom_model::units::Nanos;

use super::{
    answers::{AnswerSplitter, EndedAnswer},
    requests::{BegunRequest, RequestProgress, RequestSplitter},
};
use crate::{
    counts::{AnswerFate, ConversationFate, ExchangeCounts, RequestFate},
    exchange::{ExchangeSink, RecordedAnswer, RecordedExchange},
    shared::{EARLY_MAX, HandOver, PENDING_MAX, Shared, UnfinishedFates},
};

/// A request with its answer, as far as both are known.
#[derive(Debug)]
struct Pending {
    request: BegunRequest,
    /// Whether the sink has it.
    is_taken: bool,
    answer: Option<(AnswerFate, Option<RecordedAnswer>)>,
}

/// The state of a conversation.
pub struct Http1Conversation {
    start: ConversationStart,
    requests: RequestSplitter,
    answers: AnswerSplitter,
    /// In the order of the requests. Those with an answer come first; only the last can be incomplete.
    pending: VecDeque<Pending>,
    n_answered: usize,
    /// Bytes of the server that came before their request.
    early: Vec<(Vec<u8>, Nanos)>,
    n_early: usize,
    n_requests: u64,
    /// Whether the rest of a side is not understood.
    is_client_over: bool,
    is_server_over: bool,
    /// Whether the server has closed its direction.
    is_server_finished: bool,
    /// What happened first.
    fate: Option<ConversationFate>,
}

impl Http1Conversation {
    pub(crate) fn new(start: ConversationStart) -> Self {
        Self {
            start,
            requests: RequestSplitter::default(),
            answers: AnswerSplitter::default(),
            pending: VecDeque::new(),
            n_answered: 0,
            early: Vec::new(),
            n_early: 0,
            n_requests: 0,
            is_client_over: false,
            is_server_over: false,
            is_server_finished: false,
            fate: None,
        }
    }

    /// The number of its connection.
    pub(crate) fn connection(&self) -> u64 {
        self.start.connection
    }

    /// The next bytes of one side.
    pub(crate) fn on_bytes<S: ExchangeSink>(
        &mut self,
        side: ConversationSide,
        bytes: &[u8],
        time: Nanos,
        shared: &mut Shared<S>,
    ) {
        match side {
            ConversationSide::Client => self.on_client(bytes, time, shared),
            ConversationSide::Server => self.on_server(bytes, time, shared),
        }
        self.hand_over(shared);
    }

    fn on_client<S: ExchangeSink>(&mut self, mut bytes: &[u8], time: Nanos, shared: &mut Shared<S>) {
        while !bytes.is_empty() {
            if self.is_client_over {
                shared.counts.other_client_bytes += bytes.len() as u64;
                return;
            }
            let most = shared.request_max();
            let last = self.pending.back_mut().map(|pending| &mut pending.request);
            let n_kept = last.as_ref().map_or(0, |last| last.bytes.len());
            match self.requests.read(bytes, time, last, most) {
                Ok((n, progress)) => {
                    bytes = &bytes[n..];
                    match progress {
                        RequestProgress::Head => {}
                        RequestProgress::Begins(request) => self.begin(*request, shared),
                        RequestProgress::Body => {
                            let n_now = self.pending.back().map_or(0, |pending| pending.request.bytes.len());
                            shared.n_kept = (shared.n_kept + n_now).saturating_sub(n_kept);
                        }
                    }
                }
                Err(_) => return self.refuse_request(bytes.len(), shared),
            }
        }
    }

    /// A head has come: its answer may come from now on.
    fn begin<S: ExchangeSink>(&mut self, request: BegunRequest, shared: &mut Shared<S>) {
        self.n_requests += 1;
        shared.n_kept += request.bytes.len();
        self.pending.push_back(Pending { request, is_taken: false, answer: None });
        if self.pending.len() - self.n_answered > PENDING_MAX {
            let begun = self.stop_answers();
            self.end_answer((AnswerFate::Absent, begun));
        }
        self.n_early = 0;
        for (bytes, time) in std::mem::take(&mut self.early) {
            self.on_server(&bytes, time, shared);
        }
        self.finish_answer();
    }

    /// What the client sends cannot be understood further. `n` bytes of a body were not counted.
    fn refuse_request<S>(&mut self, n: usize, shared: &mut Shared<S>) {
        self.is_client_over = true;
        if let Some(pending) = self.pending.back_mut().filter(|pending| pending.request.fate.is_none()) {
            pending.request.fate = Some(RequestFate::Malformed);
            pending.request.n_captured += n as u64;
        } else if self.n_requests == 0 && !is_http(self.requests.partial_head()) {
            self.fate.get_or_insert(ConversationFate::OtherProtocol);
            self.is_server_over = true;
            shared.counts.other_client_bytes += self.requests.partial_head().len() as u64;
        } else {
            self.count_partial(RequestFate::Malformed, &mut shared.counts);
        }
        self.requests = RequestSplitter::default();
        self.fate.get_or_insert(ConversationFate::MalformedRequest);
    }

    /// Counts an incomplete head, if there is one.
    fn count_partial(&mut self, fate: RequestFate, counts: &mut ExchangeCounts) {
        let head = self.requests.partial_head();
        let n = head.len() as u64;
        if head.trim_ascii().is_empty() || (self.n_requests == 0 && !is_request(head)) {
            counts.other_client_bytes += n;
            return;
        }
        self.n_requests += 1;
        *counts.requests.entry(fate).or_default() += 1;
        *counts.request_bytes.entry(fate).or_default() += n;
    }

    fn on_server<S: ExchangeSink>(&mut self, mut bytes: &[u8], time: Nanos, shared: &mut Shared<S>) {
        while !bytes.is_empty() {
            if self.is_server_over {
                shared.counts.other_server_bytes += bytes.len() as u64;
                return;
            }
            let Some(pending) = self.pending.get(self.n_answered) else {
                return self.keep_early(bytes, time, shared);
            };
            let (method, is_connect) = (pending.request.method, pending.request.is_connect);
            let heads = if method == Method::Head { &mut shared.to_head } else { &mut shared.to_get };
            match self.answers.read(bytes, time, heads) {
                Ok((n, ended)) => {
                    shared.counts.answer_bytes += n as u64;
                    bytes = &bytes[n..];
                    let status = ended.as_ref().map(|(_, answer)| answer.status).or(self.answers.begun_status());
                    self.end_if(ended);
                    if is_connect && status.is_some_and(|status| status < 300) {
                        self.switch();
                    }
                }
                Err(fault) => return self.refuse_answer(fault, bytes.len(), shared),
            }
        }
    }

    fn keep_early<S>(&mut self, bytes: &[u8], time: Nanos, shared: &mut Shared<S>) {
        self.n_early += bytes.len();
        self.early.push((bytes.to_vec(), time));
        if self.n_early > EARLY_MAX {
            self.drop_early(&mut shared.counts);
            self.is_server_over = true;
            self.fate.get_or_insert(ConversationFate::MalformedAnswer);
        }
    }

    fn drop_early(&mut self, counts: &mut ExchangeCounts) {
        counts.other_server_bytes += self.early.drain(..).map(|(bytes, _)| bytes.len() as u64).sum::<u64>();
        self.n_early = 0;
    }

    /// What the server sends cannot be understood further. `n` bytes were not counted.
    fn refuse_answer<S>(&mut self, fault: Malformed, n: usize, shared: &mut Shared<S>) {
        if fault == Malformed::Switched {
            shared.counts.answer_bytes += n as u64;
            if let Some(pending) = self.pending.get_mut(self.n_answered).filter(|pending| !pending.is_taken) {
                pending.request.fate = Some(RequestFate::Upgrade);
            }
            self.end_answer((AnswerFate::Whole, None));
            return self.switch();
        }
        shared.counts.other_server_bytes += n as u64;
        let begun = self.stop_answers();
        self.end_answer((AnswerFate::Malformed, begun));
        self.fate.get_or_insert(ConversationFate::MalformedAnswer);
    }

    /// Another protocol begins on both sides.
    fn switch(&mut self) {
        if let Some(begun) = self.stop_answers() {
            self.end_answer((AnswerFate::Whole, Some(begun)));
        }
        self.is_client_over = true;
        self.fate.get_or_insert(ConversationFate::Switched);
    }

    /// Understands nothing more of the server. Returns the answer that has begun.
    fn stop_answers(&mut self) -> Option<RecordedAnswer> {
        self.is_server_over = true;
        std::mem::take(&mut self.answers).abandon()
    }

    /// Gives the first request without an answer this one.
    fn end_answer(&mut self, answer: (AnswerFate, Option<RecordedAnswer>)) {
        if let Some(pending) = self.pending.get_mut(self.n_answered) {
            pending.answer = Some(answer);
            self.n_answered += 1;
        }
    }

    /// The next bytes of one side are not in the capture.
    pub(crate) fn on_missing<S: ExchangeSink>(
        &mut self,
        side: ConversationSide,
        n: u64,
        shared: &mut Shared<S>,
    ) -> AfterMissing {
        let after = match side {
            ConversationSide::Client if self.is_client_over => AfterMissing::Continues,
            ConversationSide::Server if self.is_server_over => AfterMissing::Continues,
            ConversationSide::Client => {
                let last = self.pending.back_mut().map(|pending| &mut pending.request);
                self.requests.skip(n, last)
            }
            ConversationSide::Server => {
                let (after, ended) = self.answers.skip(n);
                self.end_if(ended);
                after
            }
        };
        self.hand_over(shared);
        after
    }

    fn end_if(&mut self, ended: Option<EndedAnswer>) {
        if let Some((fate, answer)) = ended {
            self.end_answer((fate, Some(answer)));
        }
    }

    /// One side has closed its direction.
    pub(crate) fn on_finished<S: ExchangeSink>(&mut self, side: ConversationSide, shared: &mut Shared<S>) {
        if side == ConversationSide::Server {
            self.is_server_finished = true;
            self.finish_answer();
            self.hand_over(shared);
        }
    }

    /// Ends the answer that the close of the server's direction ends.
    fn finish_answer(&mut self) {
        if self.is_server_finished {
            let ended = self.answers.finish();
            self.end_if(ended);
        }
    }

    /// The conversation ends.
    pub(crate) fn end<S: ExchangeSink>(mut self, end: ConversationEnd, shared: &mut Shared<S>) {
        let fates = UnfinishedFates::of(end);
        let is_begun = self.answers.begun_status().is_some() || !self.answers.partial_head().is_empty();
        let begun = self.stop_answers();
        if is_begun {
            self.end_answer((fates.answer, begun));
        }
        while self.n_answered < self.pending.len() {
            self.end_answer((fates.without_answer, None));
        }
        if let Some(last) = self.pending.back_mut() {
            last.request.fate.get_or_insert(fates.request);
        }
        let is_silent = self.requests.partial_head().is_empty() && self.early.is_empty();
        self.count_partial(fates.request, &mut shared.counts);
        self.drop_early(&mut shared.counts);
        self.hand_over(shared);
        let found = match self.n_requests {
            0 if is_silent => ConversationFate::Empty,
            0 => ConversationFate::OtherProtocol,
            _ => ConversationFate::Http,
        };
        let usual = ConversationFate::of_end(end, found);
        *shared.counts.conversations.entry(self.fate.unwrap_or(usual)).or_default() += 1;
    }

    /// Hands over the first requests, of which everything is known.
    fn hand_over<S: ExchangeSink>(&mut self, shared: &mut Shared<S>) {
        if shared.hand_over == HandOver::AtOnce {
            self.give_requests(&mut shared.sink);
        }
        let is_known = |pending: &Pending| pending.request.fate.is_some() && pending.answer.is_some();
        while self.pending.front().is_some_and(is_known) {
            let Some(Pending { request, is_taken, answer: Some(answer) }) = self.pending.pop_front() else { return };
            self.n_answered -= 1;
            shared.n_kept = shared.n_kept.saturating_sub(request.bytes.len());
            let fate = request.fate.unwrap_or(RequestFate::Incomplete);
            *shared.counts.requests.entry(fate).or_default() += 1;
            *shared.counts.request_bytes.entry(fate).or_default() += request.n_captured;
            if fate == RequestFate::Whole {
                self.hand_over_whole(request, answer, is_taken, shared);
            }
        }
    }

    /// Gives the sink the requests that are whole and that it does not have.
    fn give_requests(&mut self, sink: &mut impl ExchangeSink) {
        for pending in self.pending.iter_mut().filter(|pending| !pending.is_taken) {
            // Whether another protocol follows, the answer says.
            if pending.request.fate == Some(RequestFate::Whole) && !pending.request.asks_for_upgrade() {
                pending.is_taken = true;
                sink.take(exchange(&self.start, pending.request.clone(), (AnswerFate::Absent, None)));
            }
        }
    }

    fn hand_over_whole<S: ExchangeSink>(
        &self,
        request: BegunRequest,
        (answer_fate, answer): (AnswerFate, Option<RecordedAnswer>),
        is_taken: bool,
        shared: &mut Shared<S>,
    ) {
        let status = answer.as_ref().map(|answer| answer.status);
        request.with_names(|method, host| shared.counts.count_whole((answer_fate, status), method, host));
        if !is_taken {
            shared.sink.take(exchange(&self.start, request, (answer_fate, answer)));
        }
    }
}

/// A request as the sink gets it.
fn exchange(
    start: &ConversationStart,
    request: BegunRequest,
    (answer_fate, answer): (AnswerFate, Option<RecordedAnswer>),
) -> RecordedExchange {
    let BegunRequest { bytes, head_length, first_byte, last_byte, .. } = request;
    let (connection, opened) = (start.connection, start.time);
    RecordedExchange {
        connection,
        lane: None,
        opened,
        request: bytes,
        head_length,
        first_byte,
        last_byte,
        answer_fate,
        answer,
        logged: None,
    }
}

/// Whether the first line of bytes names the version, so that they are a request, if a malformed one.
fn is_http(bytes: &[u8]) -> bool {
    const VERSION: &[u8] = b" HTTP/1.";
    let line = bytes.trim_ascii_start().split(|byte| *byte == b'\n').next().unwrap_or_default();
    is_request(bytes) && line.windows(VERSION.len()).any(|word| word == VERSION)
}

/// The longest method that is taken for one (RFC 9110 section 16.1 registers up to 17 characters).
const METHOD_MAX: usize = 32;

/// Whether bytes may be the begin of a request: a method in capital letters, a space, and a target, as far as they go.
fn is_request(bytes: &[u8]) -> bool {
    let bytes = bytes.trim_ascii_start();
    let n_method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-').count();
    let is_method = (1..=METHOD_MAX).contains(&n_method);
    match bytes.get(n_method..) {
        Some([]) => is_method,
        Some([b' ', rest @ ..]) => is_method && rest.first().is_none_or(u8::is_ascii_graphic),
        _ => false,
    }
}

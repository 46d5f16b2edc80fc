//! One connection of HTTP/2, from its preface on: its streams in the order of their requests.

use std::collections::BTreeMap;

use fathom_capture::{AfterMissing, ConversationEnd, ConversationSide, ConversationStart};
use fathom_model::units::Nanos;

use super::{
    fields::{Field, FieldDecoder, RequestHead, answer_head, trailers},
    frames::{
        CONTINUATION, DataPart, END_HEADERS, END_STREAM, Frame, FramePart, FrameReader, HEADERS, Malformed,
        PUSH_PROMISE, RST_STREAM, StreamId,
    },
    lanes::Lanes,
    stream::Stream,
};
use crate::{
    counts::{AnswerFate, ConversationFate, ExchangeCounts, RequestFate},
    exchange::ExchangeSink,
    shared::{HandOver, PENDING_MAX, Shared, UnfinishedFates},
};

/// The longest field section in its packed form, over all its frames.
const BLOCK_MAX: usize = 128 << 10;

/// The state of a conversation.
pub struct Http2Conversation {
    start: ConversationStart,
    client: Sender,
    server: Sender,
    streams: BTreeMap<StreamId, Stream>,
    lanes: Lanes,
    /// The last stream that the client has opened.
    last_opened: StreamId,
    /// What happened first.
    fate: Option<ConversationFate>,
}

/// What one side sends.
#[derive(Default)]
struct Sender {
    frames: FrameReader,
    fields: FieldDecoder,
    /// A field section that goes on in the next frame.
    block: Option<FieldBlock>,
    /// Whether the rest is not understood.
    is_over: bool,
}

/// The frames of a field section.
struct FieldBlock {
    /// `HEADERS` or `PUSH_PROMISE`.
    kind: u8,
    stream: StreamId,
    ends_stream: bool,
    bytes: Vec<u8>,
    n_sent: u64,
    first_byte: Nanos,
}

impl FieldBlock {
    fn new(frame: &Frame, first_byte: Nanos) -> Self {
        let ends_stream = frame.flags & END_STREAM != 0;
        Self { kind: frame.kind, stream: frame.stream, ends_stream, bytes: Vec::new(), n_sent: 0, first_byte }
    }
}

impl Http2Conversation {
    pub(crate) fn new(start: ConversationStart) -> Self {
        let (client, server) = (Sender::default(), Sender::default());
        Self { start, client, server, streams: BTreeMap::new(), lanes: Lanes::default(), last_opened: 0, fate: None }
    }

    /// The number of its connection.
    pub(crate) const fn connection(&self) -> u64 {
        self.start.connection
    }

    fn sender(&mut self, side: ConversationSide) -> &mut Sender {
        match side {
            ConversationSide::Client => &mut self.client,
            ConversationSide::Server => &mut self.server,
        }
    }

    /// The next bytes of one side.
    pub(crate) fn on_bytes<S: ExchangeSink>(
        &mut self,
        side: ConversationSide,
        mut bytes: &[u8],
        time: Nanos,
        shared: &mut Shared<S>,
    ) {
        while !self.sender(side).is_over {
            let read = match self.sender(side).frames.read(&mut bytes, time) {
                Ok(None) => return,
                Ok(Some(FramePart::Whole(frame))) => self.on_frame(side, &frame, time, shared),
                Ok(Some(FramePart::Data(part))) => {
                    self.on_data(side, &part, time, shared);
                    Ok(())
                }
                Err(malformed) => Err(malformed),
            };
            if read.is_err() {
                self.refuse(side, shared);
            }
        }
        count_other(&mut shared.counts, side, bytes.len() as u64);
    }

    fn on_frame<S: ExchangeSink>(
        &mut self,
        side: ConversationSide,
        frame: &Frame,
        time: Nanos,
        shared: &mut Shared<S>,
    ) -> Result<(), Malformed> {
        let sender = self.sender(side);
        let (is_begin, is_more) = (matches!(frame.kind, HEADERS | PUSH_PROMISE), frame.kind == CONTINUATION);
        let is_expected = match &sender.block {
            Some(block) => is_more && block.stream == frame.stream,
            None => !is_more,
        };
        if !is_expected || !(is_begin || is_more) {
            count_other(&mut shared.counts, side, frame.n_sent() as u64);
            if is_expected && frame.kind == RST_STREAM {
                self.on_reset(frame.stream, shared);
            }
            return is_expected.then_some(()).ok_or(Malformed);
        }
        let first_byte = sender.frames.first_byte();
        let block = sender.block.get_or_insert_with(|| FieldBlock::new(frame, first_byte));
        block.n_sent += frame.n_sent() as u64;
        block.bytes.extend_from_slice(frame.field_block()?);
        if block.bytes.len() > BLOCK_MAX {
            return Err(Malformed);
        }
        match sender.block.take_if(|_| frame.flags & END_HEADERS != 0) {
            Some(block) => self.on_block(side, block, time, shared),
            None => Ok(()),
        }
    }

    /// A field section is whole.
    fn on_block<S: ExchangeSink>(
        &mut self,
        side: ConversationSide,
        block: FieldBlock,
        time: Nanos,
        shared: &mut Shared<S>,
    ) -> Result<(), Malformed> {
        match self.sender(side).fields.decode(&block.bytes) {
            Ok(fields) => match side {
                ConversationSide::Client => self.on_request(&block, fields, time, shared),
                ConversationSide::Server => self.on_answer(&block, fields, time, shared),
            },
            Err(malformed) => {
                self.sender(side).block = Some(block);
                return Err(malformed);
            }
        }
        Ok(())
    }

    fn on_request<S: ExchangeSink>(
        &mut self,
        block: &FieldBlock,
        fields: Option<Vec<Field>>,
        time: Nanos,
        shared: &mut Shared<S>,
    ) {
        if let Some(stream) = self.streams.get_mut(&block.stream).filter(|stream| stream.request.fate.is_none()) {
            let request = &mut stream.request;
            request.n_sent += block.n_sent;
            let n_kept = request.n_kept();
            let behind = fields.ok_or(RequestFate::TooLong);
            let behind = behind.and_then(|fields| trailers(fields).map_err(|_| RequestFate::Malformed));
            let behind = behind.unwrap_or_else(|fate| {
                request.drop_as(fate);
                Vec::new()
            });
            request.end(behind, time);
            shared.n_kept = (shared.n_kept + request.n_kept()).saturating_sub(n_kept);
            return self.settle(block.stream, shared);
        }
        // A client opens streams with odd numbers, each larger than those before it (RFC 9113 section 5.1.1).
        if block.stream <= self.last_opened || block.stream.is_multiple_of(2) {
            return count_other(&mut shared.counts, ConversationSide::Client, block.n_sent);
        }
        let head = fields.ok_or(RequestFate::TooLong);
        let head = head.and_then(|fields| RequestHead::of(fields).map_err(|_| RequestFate::Malformed));
        self.open(block, head, time, shared);
    }

    fn open<S: ExchangeSink>(
        &mut self,
        block: &FieldBlock,
        head: Result<RequestHead, RequestFate>,
        time: Nanos,
        shared: &mut Shared<S>,
    ) {
        self.last_opened = block.stream;
        if self.streams.len() == PENDING_MAX
            && let Some(mut first) = self.streams.first_entry()
        {
            first.get_mut().give_up(UnfinishedFates::of(ConversationEnd::Capture));
            let first = *first.key();
            self.settle(first, shared);
        }
        let mut stream = Stream::new(self.lanes.take(), head, block.first_byte);
        stream.request.n_sent = block.n_sent;
        if block.ends_stream {
            stream.request.end(Vec::new(), time);
        }
        shared.n_kept += stream.request.n_kept();
        self.streams.insert(block.stream, stream);
        self.settle(block.stream, shared);
    }

    fn on_answer<S: ExchangeSink>(
        &mut self,
        block: &FieldBlock,
        fields: Option<Vec<Field>>,
        time: Nanos,
        shared: &mut Shared<S>,
    ) {
        let is_pushed = block.kind == PUSH_PROMISE;
        shared.counts.n_pushed_answers += u64::from(is_pushed);
        let Some(stream) = self.streams.get_mut(&block.stream).filter(|_| !is_pushed) else {
            return count_other(&mut shared.counts, ConversationSide::Server, block.n_sent);
        };
        shared.counts.answer_bytes += block.n_sent;
        if !stream.is_answered() {
            match fields.ok_or(Malformed).and_then(answer_head) {
                // An interim answer (RFC 9110 section 15.2).
                Ok((100..200, _)) => {}
                Ok(head) => stream.begin_answer(head, (block.first_byte, time)),
                Err(Malformed) => stream.give_up_answer(AnswerFate::Malformed),
            }
        }
        if block.ends_stream {
            stream.end_answer(time);
        }
        self.settle(block.stream, shared);
    }

    fn on_data<S: ExchangeSink>(
        &mut self,
        side: ConversationSide,
        part: &DataPart<'_>,
        time: Nanos,
        shared: &mut Shared<S>,
    ) {
        let Some(stream) = self.streams.get_mut(&part.stream) else {
            return count_other(&mut shared.counts, side, part.n_sent as u64);
        };
        match side {
            ConversationSide::Client if stream.request.fate.is_some() => {
                return count_other(&mut shared.counts, side, part.n_sent as u64);
            }
            ConversationSide::Client => {
                let request = &mut stream.request;
                let n_kept = request.n_kept();
                request.n_sent += part.n_sent as u64;
                request.add(part.content, time, shared.request_max());
                if part.ends_stream {
                    request.end(Vec::new(), time);
                }
                shared.n_kept = (shared.n_kept + request.n_kept()).saturating_sub(n_kept);
            }
            ConversationSide::Server => {
                shared.counts.answer_bytes += part.n_sent as u64;
                stream.add_answer(part.content, time);
                if part.ends_stream {
                    stream.end_answer(time);
                }
            }
        }
        self.settle(part.stream, shared);
    }

    /// One side gave a stream up (RFC 9113 section 6.4).
    fn on_reset<S: ExchangeSink>(&mut self, id: StreamId, shared: &mut Shared<S>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            let (request, answer) = (RequestFate::Reset, AnswerFate::Reset);
            stream.give_up(UnfinishedFates { request, answer, without_answer: answer });
            self.settle(id, shared);
        }
    }

    /// What a side sends cannot be understood further.
    fn refuse<S: ExchangeSink>(&mut self, side: ConversationSide, shared: &mut Shared<S>) {
        let fate = match side {
            ConversationSide::Client => ConversationFate::MalformedRequest,
            ConversationSide::Server => ConversationFate::MalformedAnswer,
        };
        self.fate.get_or_insert(fate);
        self.drop_partial(side, RequestFate::Malformed, &mut shared.counts);
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            if let Some(stream) = self.streams.get_mut(&id) {
                match side {
                    ConversationSide::Client => {
                        stream.request.fate.get_or_insert(RequestFate::Malformed);
                    }
                    ConversationSide::Server => stream.give_up_answer(AnswerFate::Malformed),
                }
            }
            self.settle(id, shared);
        }
    }

    /// Reads nothing more of a side. A request whose head has begun has this fate.
    fn drop_partial(&mut self, side: ConversationSide, fate: RequestFate, counts: &mut ExchangeCounts) {
        let Sender { frames, block, .. } =
            std::mem::replace(self.sender(side), Sender { is_over: true, ..Sender::default() });
        let n = frames.partial().len() as u64 + block.as_ref().map_or(0, |block| block.n_sent);
        let begun = block.map(|block| block.stream).or(frames.partial_headers());
        let is_request = begun.is_some_and(|stream| stream > self.last_opened);
        if side == ConversationSide::Client && is_request {
            *counts.requests.entry(fate).or_default() += 1;
            *counts.request_bytes.entry(fate).or_default() += n;
        } else {
            count_other(counts, side, n);
        }
    }

    /// The next bytes of one side are not in the capture.
    pub(crate) fn on_missing<S: ExchangeSink>(
        &mut self,
        side: ConversationSide,
        n: u64,
        shared: &mut Shared<S>,
    ) -> AfterMissing {
        if self.sender(side).is_over {
            return AfterMissing::Continues;
        }
        let Some(part) = self.sender(side).frames.skip(n) else { return AfterMissing::Lost };
        if let Some(stream) = self.streams.get_mut(&part.stream) {
            match side {
                ConversationSide::Client => {
                    shared.n_kept = shared.n_kept.saturating_sub(stream.request.n_kept());
                    stream.request.drop_as(RequestFate::MissingBytes);
                }
                ConversationSide::Server => stream.skip_answer(n),
            }
        }
        self.on_data(side, &part, Nanos::ZERO, shared);
        AfterMissing::Continues
    }

    /// The conversation ends.
    pub(crate) fn end<S: ExchangeSink>(mut self, end: ConversationEnd, shared: &mut Shared<S>) {
        let fates = UnfinishedFates::of(end);
        for side in [ConversationSide::Client, ConversationSide::Server] {
            self.drop_partial(side, fates.request, &mut shared.counts);
        }
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.give_up(fates);
            }
            self.settle(id, shared);
        }
        let usual = ConversationFate::of_end(end, ConversationFate::Http2);
        *shared.counts.conversations.entry(self.fate.unwrap_or(usual)).or_default() += 1;
    }

    /// Hands over what is known of a stream, and ends it if that is everything.
    fn settle<S: ExchangeSink>(&mut self, id: StreamId, shared: &mut Shared<S>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let is_whole = stream.request.fate == Some(RequestFate::Whole);
        if is_whole && shared.hand_over == HandOver::AtOnce && !stream.is_taken {
            stream.is_taken = true;
            let exchange = stream.request.exchange(&self.start, stream.lane, (AnswerFate::Absent, None));
            if let Some(exchange) = exchange {
                shared.sink.take(exchange);
            }
        }
        if !stream.is_over() {
            return;
        }
        let Some(mut stream) = self.streams.remove(&id) else { return };
        self.lanes.leave(stream.lane);
        shared.n_kept = shared.n_kept.saturating_sub(stream.request.n_kept());
        let fate = stream.request.fate.unwrap_or(RequestFate::Incomplete);
        *shared.counts.requests.entry(fate).or_default() += 1;
        *shared.counts.request_bytes.entry(fate).or_default() += stream.request.n_sent;
        let (answer_fate, answer) = stream.take_answer();
        let Some((method, host)) = stream.request.names().filter(|_| fate == RequestFate::Whole) else { return };
        shared.counts.count_whole((answer_fate, answer.as_ref().map(|answer| answer.status)), method, host);
        if !stream.is_taken {
            let exchange = stream.request.exchange(&self.start, stream.lane, (answer_fate, answer));
            if let Some(exchange) = exchange {
                shared.sink.take(exchange);
            }
        }
    }
}

/// Counts bytes that are no part of a request or an answer.
fn count_other(counts: &mut ExchangeCounts, side: ConversationSide, n: u64) {
    match side {
        ConversationSide::Client => counts.other_client_bytes += n,
        ConversationSide::Server => counts.other_server_bytes += n,
    }
}

//! One conversation: HTTP/1 or HTTP/2, which the first bytes of the client say.

use fathom_capture::{AfterMissing, ConversationEnd, ConversationSide, ConversationStart};
use fathom_model::units::Nanos;

use crate::{
    exchange::ExchangeSink,
    http1::Http1Conversation,
    http2::{Http2Conversation, PREFACE},
    shared::{EARLY_MAX, Shared},
};

/// A conversation of a known version, or one that begins.
pub enum HttpConversation {
    Opening(Opening),
    Http1(Box<Http1Conversation>),
    Http2(Box<Http2Conversation>),
}

/// A conversation whose client has sent no more than the begin of the preface of HTTP/2.
pub struct Opening {
    start: ConversationStart,
    preface: Vec<u8>,
    /// Bytes of the server, which waits for nothing with its settings.
    early: Vec<(Vec<u8>, Nanos)>,
    n_early: usize,
    time: Nanos,
}

impl HttpConversation {
    pub(crate) const fn new(start: ConversationStart) -> Self {
        Self::Opening(Opening { start, preface: Vec::new(), early: Vec::new(), n_early: 0, time: start.time })
    }

    /// The number of its connection.
    pub(crate) fn connection(&self) -> u64 {
        match self {
            Self::Opening(opening) => opening.start.connection,
            Self::Http1(conversation) => conversation.connection(),
            Self::Http2(conversation) => conversation.connection(),
        }
    }

    /// The next bytes of one side.
    pub(crate) fn on_bytes<S: ExchangeSink>(
        &mut self,
        side: ConversationSide,
        bytes: &[u8],
        time: Nanos,
        shared: &mut Shared<S>,
    ) {
        match self {
            Self::Opening(opening) => match side {
                ConversationSide::Client => self.begin(bytes, time, shared),
                ConversationSide::Server => {
                    opening.n_early += bytes.len();
                    opening.early.push((bytes.to_vec(), time));
                    if opening.n_early > EARLY_MAX {
                        self.take_for_http1(shared);
                    }
                }
            },
            Self::Http1(conversation) => conversation.on_bytes(side, bytes, time, shared),
            Self::Http2(conversation) => conversation.on_bytes(side, bytes, time, shared),
        }
    }

    /// The client sends what may be the preface.
    fn begin<S: ExchangeSink>(&mut self, bytes: &[u8], time: Nanos, shared: &mut Shared<S>) {
        let Self::Opening(opening) = self else { return };
        if opening.preface.is_empty() {
            opening.time = time;
        }
        let n = bytes.len().min(PREFACE.len() - opening.preface.len());
        opening.preface.extend_from_slice(&bytes[..n]);
        let is_preface = PREFACE.starts_with(&opening.preface);
        if is_preface && opening.preface.len() < PREFACE.len() {
            return;
        }
        let early = if is_preface {
            shared.counts.other_client_bytes += PREFACE.len() as u64;
            let early = std::mem::take(&mut opening.early);
            *self = Self::Http2(Box::new(Http2Conversation::new(opening.start)));
            early
        } else {
            self.take_for_http1(shared);
            Vec::new()
        };
        self.on_bytes(ConversationSide::Client, &bytes[n..], time, shared);
        for (bytes, time) in early {
            self.on_bytes(ConversationSide::Server, &bytes, time, shared);
        }
    }

    /// A conversation that does not begin with the preface is one of HTTP/1, or of a protocol that is told as not being HTTP.
    fn take_for_http1<S: ExchangeSink>(&mut self, shared: &mut Shared<S>) {
        let Self::Opening(Opening { start, preface, early, time, .. }) = self else { return };
        let mut conversation = Http1Conversation::new(*start);
        for (bytes, time) in early {
            conversation.on_bytes(ConversationSide::Server, bytes, *time, shared);
        }
        conversation.on_bytes(ConversationSide::Client, preface, *time, shared);
        *self = Self::Http1(Box::new(conversation));
    }

    /// The next bytes of one side are not in the capture.
    pub(crate) fn on_missing<S: ExchangeSink>(
        &mut self,
        side: ConversationSide,
        n: u64,
        shared: &mut Shared<S>,
    ) -> AfterMissing {
        self.take_for_http1(shared);
        match self {
            Self::Opening(_) => AfterMissing::Lost,
            Self::Http1(conversation) => conversation.on_missing(side, n, shared),
            Self::Http2(conversation) => conversation.on_missing(side, n, shared),
        }
    }

    /// One side has closed its direction.
    pub(crate) fn on_finished<S: ExchangeSink>(&mut self, side: ConversationSide, shared: &mut Shared<S>) {
        self.take_for_http1(shared);
        if let Self::Http1(conversation) = self {
            conversation.on_finished(side, shared);
        }
    }

    /// The conversation ends.
    pub(crate) fn end<S: ExchangeSink>(mut self, end: ConversationEnd, shared: &mut Shared<S>) {
        self.take_for_http1(shared);
        match self {
            Self::Opening(_) => {}
            Self::Http1(conversation) => conversation.end(end, shared),
            Self::Http2(conversation) => conversation.end(end, shared),
        }
    }
}

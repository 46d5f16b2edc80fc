//! HTTP in the connections of a capture.

use std::net::SocketAddr;

use fathom_capture::{AfterMissing, ConversationEnd, ConversationObserver, ConversationSide, ConversationStart};
use fathom_model::units::Nanos;

use crate::{
    conversation::HttpConversation,
    counts::ExchangeCounts,
    exchange::ExchangeSink,
    http2::PREFACE,
    shared::{HandOver, Shared},
};

/// Finds the requests of a capture, and gives each that is whole to a sink.
pub struct HttpObserver<S>(Shared<S>);

/// The methods that a conversation is joined at (RFC 9110 section 9.3, RFC 5789). None ends like another, so that the rest of a
/// method whose first bytes were in a lost packet is not taken for one.
const BEGINNINGS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

impl<S: ExchangeSink> HttpObserver<S> {
    /// `sink` gets each whole request once its answer is known, or will not be.
    pub fn new(sink: S) -> Self {
        Self(Shared::new(sink, HandOver::WithAnswer))
    }

    /// `sink` gets each request as soon as it is whole, without an answer.
    pub fn of_requests(sink: S) -> Self {
        Self(Shared::new(sink, HandOver::AtOnce))
    }

    /// What was counted. It is complete once the capture is.
    pub fn into_counts(self) -> ExchangeCounts {
        self.0.counts
    }

    /// The sink, and what was counted.
    pub fn finish(self) -> (S, ExchangeCounts) {
        (self.0.sink, self.0.counts)
    }
}

impl<S: ExchangeSink> ConversationObserver for HttpObserver<S> {
    type Conversation = HttpConversation;

    fn begins(&self, payload: &[u8], _: (SocketAddr, SocketAddr)) -> bool {
        if payload.starts_with(PREFACE) {
            return true;
        }
        let line = payload.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut words = line.trim_ascii_end().split(|byte| *byte == b' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        let is_method = method.is_some_and(|method| BEGINNINGS.iter().any(|known| known.as_bytes() == method));
        let is_target = target.is_some_and(|target| !target.is_empty() && target.iter().all(u8::is_ascii_graphic));
        is_method && is_target && matches!(version, Some(b"HTTP/1.1" | b"HTTP/1.0")) && words.next().is_none()
    }

    fn open(&mut self, start: ConversationStart) -> HttpConversation {
        HttpConversation::new(start)
    }

    fn on_bytes(&mut self, conversation: &mut HttpConversation, side: ConversationSide, bytes: &[u8], time: Nanos) {
        conversation.on_bytes(side, bytes, time, &mut self.0);
    }

    fn on_missing(&mut self, conversation: &mut HttpConversation, side: ConversationSide, n: u64) -> AfterMissing {
        conversation.on_missing(side, n, &mut self.0)
    }

    fn on_finished(&mut self, conversation: &mut HttpConversation, side: ConversationSide) {
        conversation.on_finished(side, &mut self.0);
    }

    fn on_end(&mut self, conversation: HttpConversation, end: ConversationEnd) {
        let connection = conversation.connection();
        conversation.end(end, &mut self.0);
        if end != ConversationEnd::Missing {
            self.0.sink.end_connection(connection);
        }
    }
}

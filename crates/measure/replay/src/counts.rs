//! What became of conversations, requests, answers and bytes: each is counted once.

use std::collections::BTreeMap;

use fathom_capture::ConversationEnd;
use serde::Serialize;

/// What became of a request. Each request that begins in a conversation has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestFate {
    /// It is whole, and can be sent again.
    Whole,
    /// The connection or the capture ended before it.
    Incomplete,
    /// Packets with a part of it are not in the capture, or are cut.
    MissingBytes,
    /// It is longer than is kept.
    TooLong,
    /// It is not as RFC 9112 says, so that its end is unknown.
    Malformed,
    /// CONNECT: it asks for a tunnel.
    Tunnel,
    /// The connection changed to another protocol with it.
    Upgrade,
    /// One side reset its stream of HTTP/2 before its end.
    Reset,
    /// It was sent over TLS, and a part of it could not be decrypted.
    Undecrypted,
}

impl RequestFate {
    /// The words that follow a number of such requests.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Incomplete => "ended by the connection or the capture",
            Self::MissingBytes => "with packets lost or cut by the capture",
            Self::TooLong => "too long to be kept",
            Self::Malformed => "malformed",
            Self::Tunnel => "for a tunnel (CONNECT)",
            Self::Upgrade => "for another protocol (upgrade)",
            Self::Reset => "on a stream of HTTP/2 that was reset",
            Self::Undecrypted => "with a part that could not be decrypted",
        }
    }
}

/// What became of the answer to a whole request. Each whole request has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerFate {
    /// It is known from its status to its last byte.
    Whole,
    /// The connection or the capture ended before it.
    Incomplete,
    /// Packets with a part of it are not in the capture, or are cut.
    MissingBytes,
    /// It is not as RFC 9112 says.
    Malformed,
    /// The capture has none, or the log says that there was none.
    Absent,
    /// A log has its status, and none of its bytes.
    Logged,
    /// One side reset its stream of HTTP/2 before its end.
    Reset,
    /// It was sent over TLS, and a part of it could not be decrypted.
    Undecrypted,
}

/// What a conversation was. Each has one; what happened first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConversationFate {
    /// HTTP/1 to its end.
    Http,
    /// HTTP/2 to its end.
    Http2,
    /// Nothing was sent.
    Empty,
    /// It begins neither with a request of HTTP/1 nor with the preface of HTTP/2.
    OtherProtocol,
    /// Another protocol followed: a tunnel or an upgrade.
    Switched,
    /// A request is malformed.
    MalformedRequest,
    /// An answer is malformed, or nobody asked for it.
    MalformedAnswer,
    /// Bytes are missing, so that the next message was not found.
    MissingBytes,
    /// What followed could not be decrypted.
    Undecrypted,
}

impl ConversationFate {
    /// What a conversation is that ends so, and was `found` to be something until then.
    pub(crate) const fn of_end(end: ConversationEnd, found: Self) -> Self {
        match end {
            ConversationEnd::Missing => Self::MissingBytes,
            ConversationEnd::Undecrypted => Self::Undecrypted,
            ConversationEnd::Connection | ConversationEnd::Capture => found,
        }
    }
}

/// Everything that was counted in the conversations of a capture.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ExchangeCounts {
    pub conversations: BTreeMap<ConversationFate, u64>,
    pub requests: BTreeMap<RequestFate, u64>,
    /// Answers to whole requests.
    pub answers: BTreeMap<AnswerFate, u64>,
    /// Bytes of clients in requests, by what became of these.
    pub request_bytes: BTreeMap<RequestFate, u64>,
    /// Bytes of clients that are no part of a request.
    pub other_client_bytes: u64,
    /// Bytes of servers in answers.
    pub answer_bytes: u64,
    /// Bytes of servers that are no part of an answer.
    pub other_server_bytes: u64,
    /// Whole requests by method.
    pub methods: BTreeMap<String, u64>,
    /// Whole requests by the host that they name.
    pub hosts: BTreeMap<String, u64>,
    /// Answers to whole requests by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Answers of HTTP/2 that servers pushed, to requests that no client sent.
    pub n_pushed_answers: u64,
}

impl ExchangeCounts {
    /// Counts a whole request, with the fate and the status of its answer.
    pub(crate) fn count_whole(&mut self, answer: (AnswerFate, Option<u16>), method: &[u8], host: &[u8]) {
        let (fate, status) = answer;
        *self.answers.entry(fate).or_default() += 1;
        if let Some(status) = status {
            *self.statuses.entry(status).or_default() += 1;
        }
        count_name(&mut self.methods, method);
        count_name(&mut self.hosts, host);
    }
}

/// Different names that are counted; the rest are counted together, because anybody can send any name.
const NAMES_MAX: usize = 1000;
/// The name of the rest.
const OTHERS: &str = "(others)";

/// Counts a name.
pub(crate) fn count_name(names: &mut BTreeMap<String, u64>, name: &[u8]) {
    let name = String::from_utf8_lossy(name);
    if let Some(n) = names.get_mut(name.as_ref()) {
        *n += 1;
        return;
    }
    let name = if names.len() < NAMES_MAX { name.into_owned() } else { OTHERS.to_owned() };
    *names.entry(name).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_limit_are_counted_together() {
        let mut names = BTreeMap::new();
        for number in 0..NAMES_MAX + 5 {
            count_name(&mut names, number.to_string().as_bytes());
            count_name(&mut names, b"0");
        }
        assert_eq!((names.len(), names["0"], names[OTHERS]), (NAMES_MAX + 1, 1006, 5));
    }
}

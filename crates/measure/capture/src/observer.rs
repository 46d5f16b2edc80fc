//! What a protocol is told of the connections in a capture.

use std::net::SocketAddr;

use fathom_model::units::Nanos;
use serde::Serialize;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConversationSide {
    /// It opened the connection.
    Client,
    /// It accepted the connection.
    Server,
}

/// Why a conversation begins where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConversationBegin {
    /// The connection begins.
    Handshake,
    /// The capture begins, and this is the first request in it.
    Middle,
    /// Bytes are missing, and this is the first request behind them.
    AfterMissing,
}

/// Why a conversation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConversationEnd {
    /// The connection ended, in whatever way.
    Connection,
    /// The capture ended, or the connection was forgotten.
    Capture,
    /// Bytes are missing, and where the next message begins is unknown.
    Missing,
    /// What follows cannot be decrypted.
    Undecrypted,
}

/// A new conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConversationStart {
    /// The number of its connection in the capture, from 0.
    pub connection: u64,
    pub client: SocketAddr,
    pub server: SocketAddr,
    /// The time of its first packet, since 1970.
    pub time: Nanos,
    pub begin: ConversationBegin,
}

/// Whether a conversation can be followed behind missing bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterMissing {
    /// It is known what was there, such as a part of a body of known length.
    Continues,
    /// It is unknown where the next message begins.
    Lost,
}

/// A protocol that is followed through connections.
pub trait ConversationObserver {
    /// The state of one conversation.
    type Conversation;

    /// Whether a segment with this payload from one end to the other begins a conversation, with a server that has answered everything
    /// before.
    fn begins(&self, payload: &[u8], ends: (SocketAddr, SocketAddr)) -> bool;

    /// The capture has the secrets of connections over TLS that follow, as a client logs them.
    fn on_secrets(&mut self, _log: &[u8]) {}

    /// A conversation begins.
    fn open(&mut self, start: ConversationStart) -> Self::Conversation;

    /// The next bytes of one side. Bytes that acknowledge others come behind these, unless they lie.
    fn on_bytes(&mut self, conversation: &mut Self::Conversation, side: ConversationSide, bytes: &[u8], time: Nanos);

    /// The next `n` bytes of one side are not in the capture.
    fn on_missing(&mut self, conversation: &mut Self::Conversation, side: ConversationSide, n: u64) -> AfterMissing;

    /// One side closed its direction.
    fn on_finished(&mut self, conversation: &mut Self::Conversation, side: ConversationSide);

    /// The conversation ends; nothing more comes of it.
    fn on_end(&mut self, conversation: Self::Conversation, end: ConversationEnd);
}

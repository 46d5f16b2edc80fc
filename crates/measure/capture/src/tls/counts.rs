//! What became of each connection over TLS, and of its bytes.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ConversationSide;

/// What became of a connection over TLS. Each has one; what happened first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsFate {
    /// It was decrypted from its first record to its last one.
    Decrypted,
    /// Packets are not in the capture, or are cut: what follows them cannot be decrypted.
    MissingBytes,
    /// A record does not have the tag that its key gives.
    DamagedRecord,
    /// The two ends changed their keys by a new handshake (RFC 5246 section 7.4.1.1).
    Renegotiated,
    /// There is no key for it.
    NoKeys,
    /// There is a key, and its first record cannot be decrypted with it.
    WrongKeys,
    /// It was open before the capture began, or its hello is not in the capture.
    HandshakeNotCaptured,
    /// It ended before its handshake was over, or lacks packets of it.
    HandshakeIncomplete,
    /// Its cipher suite has no authenticated encryption, or is unknown here.
    UnsupportedSuite,
    /// The client sent data before the server's hello (0-RTT, RFC 8446 section 2.3).
    EarlyData,
    /// A record or a hello is not as RFC 8446 says.
    Malformed,
}

impl TlsFate {
    /// The words that follow a number of such connections.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Decrypted => "decrypted",
            Self::MissingBytes => "decrypted up to packets lost or cut by the capture",
            Self::DamagedRecord => "decrypted up to a damaged record",
            Self::Renegotiated => "decrypted up to a change of keys (renegotiation)",
            Self::NoKeys => "without a key in the key log (--keys)",
            Self::WrongKeys => "with a key that does not fit",
            Self::HandshakeNotCaptured => "open before the capture, without their handshake",
            Self::HandshakeIncomplete => "with a part of their handshake",
            Self::UnsupportedSuite => "with a cipher suite that is not decrypted",
            Self::EarlyData => "with data before the handshake (0-RTT)",
            Self::Malformed => "with malformed records",
        }
    }
}

/// Everything that was counted in connections over TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TlsCounts {
    /// Connections by what became of them.
    pub connections: BTreeMap<TlsFate, u64>,
    /// The cipher suites of [`TlsFate::UnsupportedSuite`].
    pub unsupported_suites: BTreeMap<String, u64>,
    /// Connections in which no byte of the protocol above was decrypted.
    pub n_without_conversation: u64,
    /// Bytes of handshakes, and what records have beside their plaintext: headers, tags, padding.
    pub overhead_bytes: BTreeMap<ConversationSide, u64>,
    /// Bytes that were not decrypted.
    pub undecrypted_bytes: BTreeMap<ConversationSide, u64>,
}

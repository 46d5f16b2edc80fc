//! HTTP/2 in one conversation (RFC 9113): each of its streams is a request with its answer, in the form that HTTP/1.1 gives them.

mod conversation;
mod fields;
mod frames;
mod lanes;
mod stream;

pub(crate) use conversation::Http2Conversation;

/// What a client sends first (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

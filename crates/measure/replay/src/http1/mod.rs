//! HTTP/1 in one conversation (RFC 9112).

mod answers;
mod conversation;
mod requests;

pub(crate) use conversation::Http1Conversation;

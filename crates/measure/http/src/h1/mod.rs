//! HTTP/1.1 as state machines over bytes that somebody else moves (RFC 9110, RFC 9112).
//!
//! Requests are made once and sent again and again; responses are followed to their end, wherever the network cuts them.
//! Knows no socket and no clock, and looks at no body: bodies are skipped by count.

pub(crate) mod chunked;
pub(crate) mod field;
mod head;
mod request;
mod response;

pub use field::Persistence;
pub use head::{Head, HeadReader, Malformed};
pub use request::{HeaderField, KeepAlive, Method, Request, RequestError, Version};
pub use response::{ResponseProgress, ResponseReader, ResponseSummary};

//! HTTP/1.1 as state machines over bytes that the caller moves (RFC 9110, RFC 9112).
//!
//! Requests are built once and sent repeatedly. Responses are followed to their end, wherever the network splits them. This
//! module knows no socket and no clock, and does not read bodies: it skips them by count.

pub(crate) mod chunked;
pub(crate) mod field;
mod head;
mod malformed;
mod request;
mod request_head;
mod response;

pub use chunked::Chunked;
pub use field::Persistence;
pub use head::{Framing, Head, HeadReader};
pub use malformed::Malformed;
pub use request::{HeaderField, KeepAlive, Method, Request, RequestError, Version};
pub use request_head::RequestHead;
pub use response::{ResponseProgress, ResponseReader, ResponseSummary};

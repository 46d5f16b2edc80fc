//! What is known of one exchange.

use fathom_model::units::Nanos;
use hyper::{HeaderMap, Method, StatusCode, Uri, Version};

use super::captured::CapturedBody;

/// The head of a request, with the whole URL.
#[derive(Debug)]
pub struct RequestHead {
    pub method: Method,
    /// With scheme and host.
    pub url: Uri,
    pub version: Version,
    pub headers: HeaderMap,
}

#[derive(Debug)]
pub(super) struct AnswerHead {
    pub(super) status: StatusCode,
    pub(super) version: Version,
    pub(super) headers: HeaderMap,
    pub(super) begin: Nanos,
}

/// One exchange as far as it has come; times are monotonic.
#[derive(Debug)]
pub(super) struct ExchangeFacts {
    pub(super) head: RequestHead,
    pub(super) page: String,
    /// Since 1970, for people.
    pub(super) begin_wall: Nanos,
    pub(super) begin: Nanos,
    pub(super) request_body: CapturedBody,
    pub(super) answer: Option<AnswerHead>,
    pub(super) answer_body: CapturedBody,
    /// Why there is no answer.
    pub(super) failure: Option<String>,
    /// It was a visit to the proxy itself.
    pub(super) is_private: bool,
    pub(super) end: Option<Nanos>,
}

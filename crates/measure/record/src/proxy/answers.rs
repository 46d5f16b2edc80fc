//! The answers of the proxy: those of servers with their bodies, and its own.

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::{Response, StatusCode, header::CONTENT_TYPE};

use crate::recording::ExchangeBody;

pub(super) type ProxyBody = Either<ExchangeBody, Full<Bytes>>;

/// A short answer of the proxy itself.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<ProxyBody> {
    with_type(status, "text/plain; charset=utf-8", body)
}

pub(super) fn with_type(status: StatusCode, media: &'static str, body: impl Into<Bytes>) -> Response<ProxyBody> {
    let mut response = Response::new(Either::Right(Full::new(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(media));
    response
}

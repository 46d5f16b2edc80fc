//! What a request on a connection of a client is: a tunnel, a request to pass on, or a visit to the proxy itself.

mod forward;
mod tunnel;

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::Incoming,
    http::uri::{Authority, PathAndQuery, Scheme},
    rt::{Read, Write},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto,
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    ProxyCore,
    answers::{ProxyBody, text},
    own_page,
};

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 128 << 10;
const FIELDS_MAX: usize = 256;
/// Requests of a client of HTTP/2 at once: as many as a page asks for, since each may need a connection to a server.
const STREAMS_MAX: u32 = 64;
/// A client that sends a head more slowly is disconnected; so is one that has nothing more to ask.
pub(super) const HEAD_TIME_MAX: Duration = Duration::from_mins(1);

/// The server of a tunnel.
#[derive(Debug, Clone)]
struct Origin {
    scheme: Scheme,
    authority: Authority,
}

/// What the requests of one connection share.
#[derive(Clone)]
pub(super) struct ConnectionService {
    core: Arc<ProxyCore>,
    #[expect(dead_code, reason = "given back with the last task of the connection")]
    place: Arc<OwnedSemaphorePermit>,
    /// None outside of a tunnel.
    origin: Option<Origin>,
}

impl ConnectionService {
    pub(super) fn new(core: Arc<ProxyCore>, place: OwnedSemaphorePermit) -> Self {
        Self { core, place: Arc::new(place), origin: None }
    }

    /// The service of what is inside of a tunnel.
    fn within(&self, origin: Origin) -> Self {
        Self { origin: Some(origin), ..self.clone() }
    }

    async fn answer(self, request: Request<Incoming>) -> Response<ProxyBody> {
        if request.method() == Method::CONNECT {
            return match (&self.origin, request.uri().authority()) {
                (None, Some(authority)) if authority.port().is_some() => {
                    let authority = authority.clone();
                    tunnel::open(self, authority, request)
                }
                _ => text(StatusCode::BAD_REQUEST, "CONNECT needs HOST:PORT, outside of a tunnel\n"),
            };
        }
        match self.url_of(request.uri()) {
            Some(url) if !matches!(url.scheme_str(), Some("http" | "https")) => {
                text(StatusCode::BAD_REQUEST, "only http and https pass through this proxy\n")
            }
            // A password there would be written out with the URL (RFC 9110 section 4.2.4).
            Some(url) if url.authority().is_some_and(|authority| authority.as_str().contains('@')) => {
                text(StatusCode::BAD_REQUEST, "a user in a URL is no part of a request: send Authorization\n")
            }
            Some(url) => forward::forward(self, url, request).await,
            None => own_page::page(&self.core.authority, request.uri().path()),
        }
    }

    /// The URL that a request is for; none for a visit to the proxy itself.
    fn url_of(&self, target: &Uri) -> Option<Uri> {
        let Some(origin) = &self.origin else { return target.authority().map(|_| target.clone()) };
        let path = target.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let uri = Uri::builder().scheme(origin.scheme.clone()).authority(origin.authority.clone());
        uri.path_and_query(path).build().ok()
    }
}

/// Serves one connection of a client, HTTP/1 or HTTP/2, to its end.
pub(super) async fn serve<S: Read + Write + Unpin + Send + 'static>(stream: S, service: ConnectionService) {
    let mut builder = auto::Builder::new(TokioExecutor::new()).preserve_header_case(true);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(FIELDS_MAX)
        .auto_date_header(false);
    let head_bytes_max = u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(head_bytes_max)
        .keep_alive_interval(HEAD_TIME_MAX)
        .auto_date_header(false);
    let answer = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.answer(request).await) }
    });
    // Clients leave in many ways, and none of them is a fault of the recording.
    let _ = builder.serve_connection_with_upgrades(stream, answer).await;
}

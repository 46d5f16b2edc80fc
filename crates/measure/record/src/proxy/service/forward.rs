//! Passes a request on to its server, and the answer back.

use std::error::Error as _;

use http_body_util::Either;
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri, Version,
    body::Incoming,
    header::{CONNECTION, COOKIE, HOST, HeaderValue, TE, UPGRADE},
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;

use super::ConnectionService;
use crate::{
    proxy::{
        answers::{ProxyBody, text},
        own_page,
        pass_on::{IDLE_MAX, PassingEnd, pass_on},
        upstream::{ConnectError, HttpVersions},
    },
    recording::{Direction, ExchangeBody, OpenExchange, RequestHead},
};

/// Fields of one connection (RFC 9110 section 7.6.1), besides those that `Connection` names.
const OF_A_CONNECTION: [&str; 7] =
    ["connection", "keep-alive", "proxy-connection", "proxy-authorization", "transfer-encoding", "upgrade", "expect"];

/// Sends a request to its server, and records it.
pub(super) async fn forward(service: ConnectionService, url: Uri, request: Request<Incoming>) -> Response<ProxyBody> {
    let recording = &service.core.recording;
    let (mut parts, body) = request.into_parts();
    join_cookies(&mut parts.headers);
    let exchange = if service.core.settings.hosts.contain(url.host().unwrap_or_default()) {
        let (method, headers) = (parts.method.clone(), parts.headers.clone());
        let head = RequestHead { method, url: url.clone(), version: parts.version, headers };
        Some(OpenExchange::begin(recording, head))
    } else {
        recording.count(|counts| counts.n_of_other_hosts += 1);
        None
    };
    let protocol = wanted_protocol(&parts.headers);
    remove_of_a_connection(&mut parts.headers);
    if parts.headers.get(HOST).is_some_and(|host| url.authority().is_some_and(|to| to.as_str() == host)) {
        // The client writes it where its protocol wants it.
        parts.headers.remove(HOST);
    }
    let path = url.path().to_owned();
    (parts.uri, parts.version) = (url, Version::HTTP_11);
    set_protocol(&mut parts.headers, protocol.as_ref());
    let mut request = Request::from_parts(parts, ExchangeBody::new(body, exchange.clone(), Direction::Request));
    let client = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
    let versions = if protocol.is_some() { HttpVersions::OnlyOne } else { HttpVersions::All };
    match service.core.upstream.send(request, versions).await {
        Ok(mut answer) => {
            if let Some(exchange) = &exchange {
                exchange.answered(answer.status(), answer.version(), answer.headers());
            }
            let client = client.filter(|_| answer.status() == StatusCode::SWITCHING_PROTOCOLS);
            let new_protocol = client.map(|client| join(&service, client, &mut answer));
            let (mut parts, body) = answer.into_parts();
            remove_of_a_connection(&mut parts.headers);
            set_protocol(&mut parts.headers, new_protocol.flatten().as_ref());
            parts.version = Version::HTTP_11;
            Response::from_parts(parts, Either::Left(ExchangeBody::new(body, exchange, Direction::Answer)))
        }
        Err(error) => failure(&service, &path, exchange.as_deref(), &error),
    }
}

/// HTTP/2 may have cookies in several fields, and HTTP/1 has one (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let values: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if values.len() > 1
        && let Ok(value) = HeaderValue::from_bytes(&values.join(&b"; "[..]))
    {
        headers.insert(COOKIE, value);
    }
}

/// The protocol that a request wants to change to, such as `websocket`.
fn wanted_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    named_by_connection(headers).any(|name| name.eq_ignore_ascii_case("upgrade")).then_some(())?;
    // HTTP/2 without TLS is never needed, because each side has its own version.
    headers.get(UPGRADE).filter(|protocol| !protocol.as_bytes().starts_with(b"h2c")).cloned()
}

fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn remove_of_a_connection(headers: &mut HeaderMap) {
    let named: Vec<String> = named_by_connection(headers).map(str::to_owned).collect();
    for name in named.iter().map(String::as_str).chain(OF_A_CONNECTION) {
        headers.remove(name);
    }
    // Servers of gRPC want to see that trailers pass, and they do.
    if headers.get(TE).is_some_and(|codings| codings != "trailers") {
        headers.remove(TE);
    }
}

fn set_protocol(headers: &mut HeaderMap, protocol: Option<&HeaderValue>) {
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
}

/// Passes the bytes of both sides on after a change of the protocol, and returns its name.
fn join(service: &ConnectionService, client: OnUpgrade, answer: &mut Response<Incoming>) -> Option<HeaderValue> {
    let server = hyper::upgrade::on(&mut *answer);
    let recording = &service.core.recording;
    recording.count(|counts| counts.n_upgrades += 1);
    let protocol = answer.headers().get(UPGRADE).cloned();
    let name = protocol.as_ref().and_then(|name| name.to_str().ok()).unwrap_or("another protocol");
    recording.tell(format!("a connection became {name}: its messages pass, and are not recorded"));
    let closed = format!("a connection that became {name} was silent for more than two hours: closed");
    let service = service.clone();
    tokio::spawn(async move {
        if let (Ok(client), Ok(server)) = (client.await, server.await)
            && pass_on(TokioIo::new(client), TokioIo::new(server), IDLE_MAX).await == PassingEnd::Idle
        {
            service.core.recording.tell(closed);
        }
    });
    protocol
}

/// Answers with the reason why there is no answer.
fn failure(
    service: &ConnectionService,
    path: &str,
    exchange: Option<&OpenExchange>,
    error: &hyper_util::client::legacy::Error,
) -> Response<ProxyBody> {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<ConnectError>());
    let why = match cause {
        Some(cause) => cause.to_string(),
        None => format!("the server gave no answer: {}", first_cause(error)),
    };
    if matches!(cause, Some(ConnectError::Own { .. })) {
        match exchange {
            Some(exchange) => exchange.forget(),
            None => service.core.recording.count(|counts| counts.n_of_other_hosts -= 1),
        }
        return own_page::page(&service.core.authority, path);
    }
    exchange.inspect(|exchange| exchange.failed(&why));
    service.core.recording.tell(why.clone());
    let hint = match cause {
        Some(ConnectError::Certificate { .. }) => {
            "Start the recorder with --insecure, or with the issuer of the certificate in SSL_CERT_FILE.\n"
        }
        _ => "",
    };
    text(StatusCode::BAD_GATEWAY, format!("fathom record: {why}\n{hint}"))
}

/// The error that led to this one.
fn first_cause<'e>(mut error: &'e (dyn std::error::Error + 'static)) -> &'e (dyn std::error::Error + 'static) {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn fields_of_a_connection_do_not_pass() {
        let mut sent = headers(&[
            ("connection", "keep-alive, X-Hop"),
            ("x-hop", "1"),
            ("te", "trailers, deflate"),
            ("proxy-authorization", "Basic x"),
            ("authorization", "Basic y"),
        ]);
        remove_of_a_connection(&mut sent);
        assert_eq!(sent, headers(&[("authorization", "Basic y")]));
        let mut grpc = headers(&[("te", "trailers")]);
        remove_of_a_connection(&mut grpc);
        assert_eq!(grpc.len(), 1);
    }

    #[test]
    fn cookies_of_http2_become_one_field() {
        let mut sent = headers(&[("cookie", "a=1"), ("cookie", "b=2")]);
        join_cookies(&mut sent);
        assert_eq!(sent, headers(&[("cookie", "a=1; b=2")]));
    }

    #[test]
    fn a_change_to_a_websocket_is_seen_and_one_to_http2_is_not() {
        let wanted = |fields: &[(&'static str, &'static str)]| wanted_protocol(&headers(fields));
        let protocol = wanted(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert_eq!(protocol, Some(HeaderValue::from_static("websocket")));
        assert_eq!(wanted(&[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c")]), None);
        assert_eq!(wanted(&[("upgrade", "websocket")]), None);
    }
}

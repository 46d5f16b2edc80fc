//! Tunnels (CONNECT): TLS and HTTP in them are recorded, everything else passes through unseen.

use std::{io, time::Duration};

use bytes::Bytes;
use fathom_http::host_names::bare;
use fathom_sys::clock;
use http_body_util::{Either, Full};
use hyper::{
    Request, Response,
    body::Incoming,
    http::uri::{Authority, Scheme},
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    time::timeout,
};
use tokio_rustls::LazyConfigAcceptor;

use super::{ConnectionService, Origin, serve};
use crate::proxy::{
    answers::ProxyBody,
    pass_on::{IDLE_MAX, PassingEnd, pass_on},
};

/// A client that is silent for so long waits for its server to speak first, as in SSH and SMTP.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// For both sides of a handshake on one machine.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// What the bytes of TLS begin with: a handshake record (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 22;
/// What requests begin with; `PRI` is HTTP/2 without TLS (RFC 9113 section 3.4).
const METHODS: &[&[u8]] =
    &[b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ", b"PRI * HTTP/2"];

/// What a client speaks in a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TunnelContent {
    Tls,
    Http,
    Other,
}

impl TunnelContent {
    fn of(first: &[u8]) -> Self {
        let is_http = METHODS.iter().any(|method| first.starts_with(method) || method.starts_with(first));
        match first {
            [] => Self::Other,
            [TLS_HANDSHAKE, ..] => Self::Tls,
            _ if is_http => Self::Http,
            _ => Self::Other,
        }
    }
}

/// The stream of a tunnel, of which the first bytes may have been looked at.
type TunnelStream = BufReader<TokioIo<Upgraded>>;

/// Agrees to a tunnel, and serves it in a task of its own.
pub(super) fn open(
    service: ConnectionService,
    authority: Authority,
    request: Request<Incoming>,
) -> Response<ProxyBody> {
    tokio::spawn(async move {
        // A client that leaves now has sent nothing yet.
        if let Ok(upgraded) = hyper::upgrade::on(request).await {
            carry(service, authority, BufReader::new(TokioIo::new(upgraded))).await;
        }
    });
    Response::new(Either::Right(Full::new(Bytes::new())))
}

async fn carry(service: ConnectionService, authority: Authority, mut stream: TunnelStream) {
    let core = &service.core;
    if !core.settings.hosts.contain(authority.host()) {
        return pass(&service, &authority, stream, "not one of the hosts to record").await;
    }
    let content = match timeout(SILENCE_MAX, stream.fill_buf()).await {
        Ok(Ok([]) | Err(_)) => return,
        Ok(Ok(first)) => TunnelContent::of(first),
        Err(_) => TunnelContent::Other,
    };
    match content {
        TunnelContent::Tls => {
            if let Err(why) = serve_tls(&service, &authority, stream).await {
                core.recording.count(|counts| counts.n_failed_tunnels += 1);
                core.recording.tell(format!("{authority}: {why}"));
            }
        }
        TunnelContent::Http => {
            let origin = Origin { scheme: Scheme::HTTP, authority: without_port(&authority, ":80") };
            serve(TokioIo::new(stream), service.within(origin)).await;
        }
        TunnelContent::Other => pass(&service, &authority, stream, "neither TLS nor HTTP").await,
    }
}

/// Is the server for the client, with a certificate of its own.
async fn serve_tls(service: &ConnectionService, authority: &Authority, stream: TunnelStream) -> Result<(), String> {
    let handshake = async {
        let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream)
            .await
            .map_err(|error| refusal(&error))?;
        // The name that the client will check.
        let name = hello.client_hello().server_name().map_or_else(|| bare(authority.host()).to_owned(), str::to_owned);
        let now = i64::try_from(clock::wall().0 / 1_000_000_000).unwrap_or(i64::MAX);
        let now = Timestamp::from_second(now).unwrap_or(Timestamp::UNIX_EPOCH);
        let config = service.core.leaves.config(&name, now).map_err(|error| error.to_string())?;
        hello.into_stream(config).await.map_err(|error| refusal(&error))
    };
    let tls = timeout(HANDSHAKE_MAX, handshake).await.map_err(|_| "the client does not finish its handshake")??;
    let origin = Origin { scheme: Scheme::HTTPS, authority: without_port(authority, ":443") };
    serve(TokioIo::new(tls), service.within(origin)).await;
    Ok(())
}

/// Says why a handshake failed; nearly always the authority is not trusted.
fn refusal(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => {
            format!("the client does not accept the certificate of the recorder ({alert:?}): see `fathom record ca`")
        }
        _ if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the client left during the handshake, as those do that do not trust the recorder: see `fathom record ca`"
                .to_owned()
        }
        _ => format!("no TLS with the client: {error}"),
    }
}

/// Passes the bytes of both sides on.
async fn pass(service: &ConnectionService, authority: &Authority, stream: TunnelStream, why: &str) {
    let recording = &service.core.recording;
    let port = authority.port_u16().unwrap_or_default();
    match service.core.upstream.connect(authority.host(), port).await {
        Ok(server) => {
            recording.count(|counts| counts.n_passed_tunnels += 1);
            recording.tell(format!("{authority}: {why}: passed on, not recorded"));
            if pass_on(stream, server, IDLE_MAX).await == PassingEnd::Idle {
                recording.tell(format!("{authority}: a tunnel was silent for more than two hours: closed"));
            }
        }
        Err(error) => {
            recording.count(|counts| counts.n_failed_tunnels += 1);
            recording.tell(error.to_string());
        }
    }
}

/// The authority as URLs have it: without the port that its scheme implies.
fn without_port(authority: &Authority, port: &str) -> Authority {
    let short = authority.as_str().strip_suffix(port).and_then(|short| Authority::try_from(short).ok());
    short.unwrap_or_else(|| authority.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_tunnel_shows_in_its_first_bytes() {
        let cases: &[(&[u8], TunnelContent)] = &[
            (&[22, 3, 1, 0, 200], TunnelContent::Tls),
            (b"GET / HTTP/1.1\r\n", TunnelContent::Http),
            (b"PRI * HTTP/2.0\r\n", TunnelContent::Http),
            (b"P", TunnelContent::Http),
            (b"SSH-2.0-x\r\n", TunnelContent::Other),
            (b"GETX", TunnelContent::Other),
            (&[0], TunnelContent::Other),
            (b"", TunnelContent::Other),
        ];
        for (first, content) in cases {
            assert_eq!(TunnelContent::of(first), *content, "{first:?}");
        }
    }

    #[test]
    fn the_port_of_the_scheme_is_not_in_the_url() {
        let short = |text: &'static str| without_port(&Authority::from_static(text), ":443").to_string();
        assert_eq!(short("a.test:443"), "a.test");
        assert_eq!(short("a.test:8443"), "a.test:8443");
        assert_eq!(short("[::1]:443"), "[::1]");
    }
}

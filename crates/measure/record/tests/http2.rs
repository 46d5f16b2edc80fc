//! A server of HTTP/2 behind the proxy, and a client of HTTP/1 before it.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    convert::Infallible,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use bytes::Bytes;
use fathom_record::{CertificateAuthority, Proxy, ProxySettings, Verification};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio_rustls::TlsAcceptor;

/// Tells the version and the cookies of a request, and returns its body.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let head = format!("{:?} {:?} ", request.version(), request.headers().get_all("cookie").iter().collect::<Vec<_>>());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Ok(Response::new(Full::new([head.as_bytes(), &body].concat().into())))
}

/// Serves HTTP/2 over TLS and nothing else, until the test ends.
fn serve_http2() -> SocketAddr {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((tcp, _)) = listener.accept().await {
                let tls = acceptor.accept(tcp).await.unwrap();
                let builder = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(builder.serve_connection(TokioIo::new(tls), service_fn(answer)));
            }
        });
    });
    address
}

/// Starts a proxy; the address is where it listens.
fn proxy(verification: Verification) -> (Proxy, SocketAddr) {
    let authority = CertificateAuthority::generate("test@here", Timestamp::now()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let settings = ProxySettings { verification, ..ProxySettings::default() };
    (Proxy::start(listener, authority, settings).unwrap(), address)
}

#[test]
fn a_server_of_http2_is_asked_in_http2_by_a_client_of_http1() {
    let server = serve_http2();
    let (proxy, address) = proxy(Verification::Skipped);
    let mut client = TcpStream::connect(address).unwrap();
    // The proxy connects by TLS for a client that does not.
    let url = format!("https://localhost:{}/x?y=1", server.port());
    let head = format!("POST {url} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n", server.port());
    write!(client, "{head}Cookie: a=1; b=2\r\nContent-Length: 4\r\n\r\nbody").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with(r#"HTTP/2.0 ["a=1; b=2"] body"#), "{text}");

    let recording = proxy.stop();
    assert_eq!((recording.counts().n_requests, recording.counts().n_failed), (1, 0));
    let har: serde_json::Value = serde_json::from_str(&recording.har(Verification::Skipped)).unwrap();
    let entry = &har["log"]["entries"][0];
    assert_eq!(entry["request"]["url"], url);
    assert_eq!(entry["request"]["queryString"][0]["value"], "1");
    assert_eq!(entry["request"]["postData"]["text"], "body");
    assert_eq!(entry["request"]["httpVersion"], "HTTP/1.1");
    assert_eq!(entry["response"]["httpVersion"], "HTTP/2");
    assert_eq!(har["log"]["_insecure"], true);
}

#[test]
fn what_is_on_its_way_at_the_end_is_in_the_log() {
    let (proxy, address) = proxy(Verification::Skipped);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    write!(client, "GET http://{}/slow HTTP/1.1\r\nHost: x\r\n\r\n", silent.local_addr().unwrap()).unwrap();
    let (mut asked, mut first) = (silent.accept().unwrap().0, [0; 4]);
    asked.read_exact(&mut first).unwrap();
    let recording = proxy.stop();
    assert_eq!(recording.counts().n_failed, 1);
    assert!(recording.har(Verification::Checked).contains("/slow"));
}

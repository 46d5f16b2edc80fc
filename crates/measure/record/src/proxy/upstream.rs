//! The way to servers: names, connections, TLS, and a pool of HTTP connections.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use fathom_http::{
    host_names::bare,
    target::{AcceptAnyCertificate, system_roots},
};
use hyper::{
    Request, Response, Uri,
    body::Incoming,
    http::uri::Scheme,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use rustls::{ClientConfig, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::{error::ProxyError, keepalive::find_vanished};
use crate::{recording::ExchangeBody, verification::Verification};

/// For each address of a name, and for the handshake.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Node and Apache close idle connections after 5 s, and a request that meets the close would be lost.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Why there is no connection to a server.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{host} cannot be looked up: {cause}")]
    NoAddress { host: String, cause: io::Error },
    #[error("cannot connect to {address}: {cause}")]
    NoConnection { address: String, cause: io::Error },
    #[error("the certificate of {host} is not valid: {cause}")]
    Certificate { host: String, cause: rustls::CertificateError },
    #[error("no TLS with {host}: {cause}")]
    Tls { host: String, cause: io::Error },
    /// Those whom the proxy serves shall not reach what listens for this machine alone.
    #[error("{address} is for programs of the proxy's machine alone, and this proxy serves others")]
    Local { address: SocketAddr },
    /// It would ask itself without end.
    #[error("{address} is the proxy itself")]
    Own { address: SocketAddr },
}

/// The HTTP clients of the proxy.
pub(super) struct Upstream {
    own: SocketAddr,
    any: Client<ServerConnector, ExchangeBody>,
    /// A change of the protocol needs a connection of HTTP/1.
    http1: Client<ServerConnector, ExchangeBody>,
}

impl Upstream {
    pub(super) fn new(own: SocketAddr, verification: Verification) -> Result<Self, ProxyError> {
        let client = |protocols: &[&str]| {
            let connector = ServerConnector { own, tls: Arc::new(tls_config(verification, protocols)?) };
            let mut builder = Client::builder(TokioExecutor::new());
            builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_MAX).http1_preserve_header_case(true);
            Ok::<_, ProxyError>(builder.build(connector))
        };
        Ok(Self { own, any: client(&["h2", "http/1.1"])?, http1: client(&["http/1.1"])? })
    }

    /// Sends a request on a connection that the protocol allows.
    pub(super) async fn send(
        &self,
        request: Request<ExchangeBody>,
        http: HttpVersions,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        let client = if http == HttpVersions::OnlyOne { &self.http1 } else { &self.any };
        client.request(request).await
    }

    /// Opens a connection without TLS.
    pub(super) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
        connect(self.own, host, port).await
    }
}

/// The versions of HTTP that a request may be sent with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HttpVersions {
    /// HTTP/1.1 or HTTP/2, as the server offers.
    All,
    /// HTTP/1.1.
    OnlyOne,
}

fn tls_config(verification: Verification, protocols: &[&str]) -> Result<ClientConfig, ProxyError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match verification {
        Verification::Checked => builder.with_root_certificates(system_roots()?),
        Verification::Skipped => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
        }
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(config)
}

/// Connects to the first address of a host that answers.
async fn connect(own: SocketAddr, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let host = bare(host);
    let no_address = |cause| ConnectError::NoAddress { host: host.to_owned(), cause };
    let addresses = timeout(CONNECT_MAX, lookup_host((host, port))).await;
    let addresses = addresses.map_err(|_| no_address(io::ErrorKind::TimedOut.into()))?.map_err(no_address)?;
    let mut last = no_address(io::ErrorKind::NotFound.into());
    for address in addresses {
        if is_own(own, address) {
            return Err(ConnectError::Own { address });
        }
        if !own.ip().is_loopback() && is_local(address.ip().to_canonical()) {
            return Err(ConnectError::Local { address });
        }
        let connected = timeout(CONNECT_MAX, TcpStream::connect(address)).await;
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => {
                stream
                    .set_nodelay(true)
                    .map_err(|cause| ConnectError::NoConnection { address: address.to_string(), cause })?;
                find_vanished(&stream);
                return Ok(stream);
            }
            Err(cause) => last = ConnectError::NoConnection { address: address.to_string(), cause },
        }
    }
    Err(last)
}

/// Whether only programs of this machine, or of its link, reach an address: databases, pages for administrators, cloud metadata.
fn is_local(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    ip.is_loopback() || ip.is_unspecified() || is_link_local
}

/// Whether a connection to this address would reach the proxy.
fn is_own(own: SocketAddr, address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    let is_here = |ip: IpAddr| {
        let probe = UdpSocket::bind((if ip.is_ipv4() { "0.0.0.0" } else { "::" }, 0));
        let source = probe.and_then(|probe| probe.connect((ip, 9)).and_then(|()| probe.local_addr()));
        source.is_ok_and(|source| source.ip() == ip)
    };
    address.port() == own.port()
        && (ip == own.ip().to_canonical() || ip.is_unspecified() || (own.ip().is_unspecified() && is_here(ip)))
}

/// Makes the connections of the pool.
#[derive(Clone)]
struct ServerConnector {
    own: SocketAddr,
    tls: Arc<ClientConfig>,
}

impl ServerConnector {
    async fn stream_to(self, url: Uri) -> Result<ServerStream, ConnectError> {
        let host = bare(url.host().unwrap_or_default()).to_owned();
        let is_tls = url.scheme() == Some(&Scheme::HTTPS);
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tcp = connect(self.own, &host, port).await?;
        if !is_tls {
            return Ok(ServerStream { bytes: TokioIo::new(Box::new(tcp)), is_http2: false });
        }
        let failed = |cause: io::Error| {
            let tls = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            match tls {
                Some(rustls::Error::InvalidCertificate(invalid)) => {
                    ConnectError::Certificate { host: host.clone(), cause: invalid.clone() }
                }
                _ => ConnectError::Tls { host: host.clone(), cause },
            }
        };
        let name = ServerName::try_from(host.clone()).map_err(|error| failed(io::Error::other(error)))?;
        let handshake = timeout(CONNECT_MAX, TlsConnector::from(self.tls).connect(name, tcp)).await;
        let tls = handshake.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed)?;
        let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(ServerStream { bytes: TokioIo::new(Box::new(tls)), is_http2 })
    }
}

impl Service<Uri> for ServerConnector {
    type Response = ServerStream;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<ServerStream, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        Box::pin(self.clone().stream_to(url))
    }
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// A connection to a server, with or without TLS.
struct ServerStream {
    bytes: TokioIo<Box<dyn ByteStream>>,
    is_http2: bool,
}

impl Connection for ServerStream {
    fn connected(&self) -> Connected {
        if self.is_http2 { Connected::new().negotiated_h2() } else { Connected::new() }
    }
}

impl Read for ServerStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_read(context, into)
    }
}

impl Write for ServerStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.bytes).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_listens_for_this_machine_alone_is_known() {
        for local in ["127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "fe80::1"] {
            assert!(is_local(local.parse().unwrap()), "{local}");
        }
        assert!(!is_local("192.0.2.7".parse().unwrap()) && !is_local("2001:db8::7".parse().unwrap()));
    }

    #[test]
    fn the_proxy_knows_its_own_address_in_all_its_forms() {
        let is_own = |own: &str, address: &str| is_own(own.parse().unwrap(), address.parse().unwrap());
        assert!(is_own("127.0.0.1:8888", "127.0.0.1:8888"));
        assert!(is_own("127.0.0.1:8888", "[::ffff:127.0.0.1]:8888"));
        assert!(is_own("127.0.0.1:8888", "0.0.0.0:8888"), "Linux connects to itself there");
        assert!(is_own("0.0.0.0:8888", "127.0.0.1:8888"));
        assert!(!is_own("127.0.0.1:8888", "127.0.0.1:8889"));
        assert!(!is_own("127.0.0.1:8888", "127.0.0.2:8888"));
    }
}

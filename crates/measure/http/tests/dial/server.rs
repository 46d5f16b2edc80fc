//! A TLS server in memory, its certificates, and a client's channel to it.

use std::{fs, io::Read, path::PathBuf, sync::Arc};

use fathom_http::target::{Channel, ChannelSetup, ChannelState, ConnectFault, Resolver, TargetConfig, TlsBuffers};
use fathom_model::{Settings, units::Nanos};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
    version::{TLS12, TLS13},
};
use tempfile::TempDir;

pub(crate) const BOTH: &[&SupportedProtocolVersion] = &[&TLS12, &TLS13];

pub(crate) const OLD: &[&SupportedProtocolVersion] = &[&TLS12];
pub(crate) const NEW: &[&SupportedProtocolVersion] = &[&TLS13];

/// When a certificate is valid.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Validity {
    Now,
    Over,
    ToCome,
}

/// An issuer, with a folder for its certificates.
pub(crate) struct Issuer {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Issuer {
    pub(crate) fn new() -> Self {
        Self::named("issuer")
    }

    pub(crate) fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// The path of its own certificate.
    pub(crate) fn ca(&self) -> String {
        self.path("ca.pem").display().to_string()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn issue(&self, host: &str, validity: Validity) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        if host.starts_with("issuer.") {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        (params.not_before, params.not_after) = match validity {
            Validity::Now => (date_time_ymd(2020, 1, 1), date_time_ymd(2999, 1, 1)),
            Validity::Over => (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1)),
            Validity::ToCome => (date_time_ymd(2998, 1, 1), date_time_ymd(2999, 1, 1)),
        };
        let key = KeyPair::generate().unwrap();
        if host.starts_with("self.") {
            // Like those of `openssl req -x509`: a self-signed CA certificate.
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let certificate = params.self_signed(&key).unwrap();
            fs::write(self.path("self.pem"), certificate.pem()).unwrap();
            return (certificate, key);
        }
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Writes the certificate and key of a client and returns their paths.
    pub(crate) fn client(&self) -> [String; 2] {
        let (certificate, key) = self.issue("client", Validity::Now);
        fs::write(self.path("client.pem"), certificate.pem()).unwrap();
        fs::write(self.path("client.key"), key.serialize_pem()).unwrap();
        ["client.pem", "client.key"].map(|name| self.path(name).display().to_string())
    }

    /// A server with this name.
    pub(crate) fn server(&self, host: &str) -> Server<'_> {
        Server { issuer: self, host: host.to_owned(), validity: Validity::Now, versions: BOTH, alpn: "", asks: false }
    }
}

/// How a server is set up.
pub(crate) struct Server<'a> {
    pub(crate) issuer: &'a Issuer,
    pub(crate) host: String,
    pub(crate) validity: Validity,
    pub(crate) versions: &'static [&'static SupportedProtocolVersion],
    pub(crate) alpn: &'static str,
    /// Whether it requests a client certificate.
    pub(crate) asks: bool,
}

impl Server<'_> {
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_protocol_versions(self.versions).unwrap();
        let builder = if self.asks {
            let mut roots = RootCertStore::empty();
            roots.add(self.issuer.issuer.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let (certificate, key) = self.issuer.issue(&self.host, self.validity);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        config.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
        if !self.alpn.is_empty() {
            config.alpn_protocols = vec![self.alpn.as_bytes().to_vec()];
        }
        Arc::new(config)
    }
}

/// The settings of a client of `https://server.example`, which is never connected to.
pub(crate) fn settings(options: &[(&str, &str)]) -> Settings {
    let settings = Settings::default().with("url", "https://server.example/").with("connect-to", "127.0.0.1:1");
    options.iter().fold(settings, |settings, (name, value)| settings.with(name, *value))
}

pub(crate) fn resolver(settings: &Settings) -> Resolver {
    Arc::new(TargetConfig::prepare((settings, &fathom_sys::policy::Policy::anything()), None, None).unwrap())
        .resolver(0, 1)
        .unwrap()
}

/// A channel and the server at its other end.
pub(crate) struct ChannelAndServer {
    pub(crate) channel: Channel,
    pub(crate) tls_buffers: TlsBuffers,
    pub(crate) server: ServerConnection,
    pub(crate) now: Nanos,
    /// The server's output is split into pieces of this size.
    pub(crate) piece: usize,
    /// The bytes that the server received, decrypted.
    pub(crate) received: Vec<u8>,
    /// The bytes that the channel passed on.
    pub(crate) plain: Vec<u8>,
}

impl ChannelAndServer {
    pub(crate) fn new(channel: Channel, config: &Arc<ServerConfig>) -> Self {
        let server = ServerConnection::new(Arc::clone(config)).unwrap();
        let (heard, plain) = (Vec::new(), Vec::new());
        Self {
            channel,
            tls_buffers: TlsBuffers::default(),
            server,
            now: Nanos(1),
            piece: usize::MAX,
            received: heard,
            plain,
        }
    }

    /// Opens the channel and continues until neither side has more to send.
    pub(crate) fn open(&mut self) -> Result<Option<ChannelSetup>, ConnectFault> {
        let first = self.channel.on_connected(None, self.now, &mut self.tls_buffers)?;
        assert_eq!(first, ChannelState::Opening);
        Ok(self.exchange()?.into_iter().find_map(|step| match step {
            ChannelState::Ready(opened) => Some(opened),
            _ => None,
        }))
    }

    /// Exchanges bytes until neither side has more to send. Returns the states of the channel.
    pub(crate) fn exchange(&mut self) -> Result<Vec<ChannelState>, ConnectFault> {
        let mut steps = Vec::new();
        loop {
            let mut out =
                std::mem::take(&mut self.tls_buffers.out).into_iter().collect::<std::collections::VecDeque<_>>();
            while !out.is_empty() {
                self.server.read_tls(&mut out).unwrap();
                // A server that refuses sends an alert.
                if self.server.process_new_packets().is_ok() {
                    let _ = self.server.reader().read_to_end(&mut self.received);
                }
            }
            let mut sent = Vec::new();
            while self.server.wants_write() {
                self.server.write_tls(&mut sent).unwrap();
            }
            if sent.is_empty() {
                return Ok(steps);
            }
            for piece in sent.chunks(self.piece.min(sent.len())) {
                self.now += Nanos(1);
                steps.push(self.channel.receive(piece, self.now, &mut self.tls_buffers)?);
                self.plain.extend_from_slice(self.tls_buffers.plain());
            }
        }
    }
}

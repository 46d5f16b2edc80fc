//! Builds the TLS configuration (trust, client certificate, protocols) from options and files.

use std::sync::Arc;

use fathom_model::{Settings, settings::SettingError, units::Bytes};
use fathom_sys::policy::Policy;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem, pem::PemObject},
    server::ParsedCertificate,
    version::{TLS12, TLS13},
};
use x509_parser::parse_x509_certificate;

use super::{TargetConfigError, request_template::read_file, session_cache::TlsSessionCache};

/// The longest certificate file; the certificates of all public issuers take a quarter of a mebibyte.
const PEM_MAX: Bytes = Bytes(16 << 20);

/// Accepts any certificate, provided that the server proves possession of its private key.
#[derive(Debug)]
pub struct AcceptAnyCertificate(pub Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Trusts the certificates of a file, both as issuers and as servers.
///
/// A certificate made by `openssl req -x509` is both at once, and it is a server's only because the user says so.
#[derive(Debug)]
struct FileVerifier {
    certificates: Vec<CertificateDer<'static>>,
    chain_verifier: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for FileVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !self.certificates.iter().any(|given| given.as_ref() == certificate.as_ref()) {
            return self.chain_verifier.verify_server_cert(certificate, intermediates, name, ocsp, now);
        }
        is_in_time(certificate, now)?;
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain_verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain_verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain_verifier.supported_verify_schemes()
    }
}

/// Whether a certificate is valid at this time.
fn is_in_time(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let (_, certificate) = parse_x509_certificate(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let (validity, now) = (certificate.validity(), i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    if now < validity.not_before.timestamp() {
        return Err(CertificateError::NotValidYet);
    }
    if now > validity.not_after.timestamp() { Err(CertificateError::Expired) } else { Ok(()) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionResumption {
    On,
    Off,
}

/// The common configuration of all TLS connections of a test.
#[derive(Debug, Clone)]
pub(super) struct TlsConfig {
    config: ClientConfig,
    name: Option<ServerName<'static>>,
    resumption: SessionResumption,
}

impl TlsConfig {
    /// Reads the options and the files that they name.
    pub(super) fn from((settings, policy): (&Settings, &Policy)) -> Result<Self, TargetConfigError> {
        let provider = Arc::new(ring::default_provider());
        let versions: &[&SupportedProtocolVersion] = match settings.text("tls").as_deref() {
            Some("1.2") => &[&TLS12],
            Some("1.3") => &[&TLS13],
            _ => &[&TLS12, &TLS13],
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_protocol_versions(versions).map_err(TargetConfigError::Tls)?;
        let builder = match (settings.flag("insecure"), settings.text("ca")) {
            (true, Some(_)) => return Err(TargetConfigError::ExclusiveOptions { one: "insecure", other: "ca" }),
            (true, None) => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
            }
            (false, Some(path)) => {
                let given = FileVerifier::from((policy, &path), provider)?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(given))
            }
            (false, None) => builder.with_root_certificates(system_roots()?),
        };
        let mut config = match identity(settings, policy)? {
            Some((chain, key)) => {
                let refused = |error: rustls::Error| TargetConfigError::Content {
                    option: "client-cert",
                    path: settings.text("client-cert").unwrap_or_default().into(),
                    problem: format!("the certificate cannot be used with its key ({error})"),
                };
                builder.with_client_auth_cert(chain, key).map_err(refused)?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = protocols(settings)?;
        let resuming = if settings.text("resumption").as_deref() == Some("off") {
            SessionResumption::Off
        } else {
            SessionResumption::On
        };
        let name = settings.text("sni").map(|name| server_name("sni", &name)).transpose()?;
        Ok(Self { config, name, resumption: resuming })
    }

    /// The configuration of one worker for one route. Sessions are cached in it, so that workers share nothing.
    pub(super) fn worker_config(&self) -> Arc<ClientConfig> {
        let resumption = match self.resumption {
            SessionResumption::On => Resumption::store(Arc::new(TlsSessionCache::default())),
            SessionResumption::Off => Resumption::disabled(),
        };
        let mut config = self.config.clone();
        config.resumption = resumption;
        Arc::new(config)
    }

    /// The name that the server's certificate must have.
    pub(super) fn name(&self, host: &str) -> Result<ServerName<'static>, TargetConfigError> {
        self.name.clone().map_or_else(|| server_name("url", host), Ok)
    }
}

fn server_name(option: &str, host: &str) -> Result<ServerName<'static>, TargetConfigError> {
    let refused = |_| SettingError::NotAllowed {
        name: option.to_owned(),
        expected: "a host name or an address that a certificate can have".to_owned(),
        given: host.to_owned(),
    };
    Ok(ServerName::try_from(host.to_owned()).map_err(refused)?)
}

/// The protocols to offer; `none` offers nothing.
fn protocols(settings: &Settings) -> Result<Vec<Vec<u8>>, TargetConfigError> {
    let text = settings.text("alpn").unwrap_or_else(|| "http/1.1".to_owned());
    if text == "none" {
        return Ok(Vec::new());
    }
    let names: Vec<Vec<u8>> = text.split(',').map(|name| name.trim().as_bytes().to_vec()).collect();
    // A name has a one-byte length and is not empty (RFC 7301 section 3.1).
    if names.iter().all(|name| (1..256).contains(&name.len())) {
        return Ok(names);
    }
    let expected = "names such as http/1.1, separated by commas, or none".to_owned();
    Err(SettingError::NotAllowed { name: "alpn".to_owned(), expected, given: text }.into())
}

impl FileVerifier {
    fn from((policy, path): (&Policy, &str), provider: Arc<CryptoProvider>) -> Result<Self, TargetConfigError> {
        let certificates = certificates(policy, "ca", path)?;
        let refused = |error: rustls::Error| TargetConfigError::Content {
            option: "ca",
            path: path.into(),
            problem: format!("a certificate cannot be used ({error})"),
        };
        let mut store = RootCertStore::empty();
        for certificate in &certificates {
            store.add(certificate.clone()).map_err(refused)?;
        }
        let issued = WebPkiServerVerifier::builder_with_provider(store.into(), provider).build();
        Ok(Self { certificates, chain_verifier: issued.expect("a file has one certificate at least") })
    }
}

/// The system's CA certificates, trusted unless a file replaces them.
///
/// # Errors
/// There are none.
pub fn system_roots() -> Result<RootCertStore, TargetConfigError> {
    let mut store = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        let detail = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
        return Err(TargetConfigError::NoIssuers { detail });
    }
    Ok(store)
}

type ClientIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The client certificate, for servers that request one.
fn identity(settings: &Settings, policy: &Policy) -> Result<Option<ClientIdentity>, TargetConfigError> {
    let (chain, key) = match (settings.text("client-cert"), settings.text("client-key")) {
        (None, None) => return Ok(None),
        (None, Some(_)) => return Err(TargetConfigError::MissingOption { one: "client-key", other: "client-cert" }),
        (Some(chain), None) => (chain.clone(), ("client-cert", chain)),
        (Some(chain), Some(key)) => (chain, ("client-key", key)),
    };
    let chain = certificates(policy, "client-cert", &chain)?;
    let (option, path) = key;
    let refused =
        |error| TargetConfigError::Content { option, path: path.clone().into(), problem: problem("key", &error) };
    let key = PrivateKeyDer::from_pem_slice(&read_file(policy, option, &path, PEM_MAX)?).map_err(refused)?;
    Ok(Some((chain, key)))
}

/// All certificates of a file, at least one.
fn certificates(
    policy: &Policy,
    option: &'static str,
    path: &str,
) -> Result<Vec<CertificateDer<'static>>, TargetConfigError> {
    let refused =
        |error| TargetConfigError::Content { option, path: path.into(), problem: problem("certificate", &error) };
    let bytes = read_file(policy, option, path, PEM_MAX)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&bytes).collect::<Result<_, _>>().map_err(refused)?;
    if found.is_empty() { Err(refused(pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn problem(what: &str, error: &pem::Error) -> String {
    match error {
        pem::Error::NoItemsFound => format!("there is no {what}"),
        error => format!("a {what} is not well written ({error})"),
    }
}

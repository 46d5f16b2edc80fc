//! What an https responder shows and agrees to.

use std::{net::SocketAddr, sync::Arc};

use fathom_engine::Error;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
};

use super::Certificate;

/// The one protocol that is spoken behind TLS (RFC 7301).
const ALPN: &[u8] = b"http/1.1";

/// The side of a server: TLS 1.2 and 1.3, with tickets by which sessions are resumed.
pub(super) fn config(certificate: &Certificate, address: Option<SocketAddr>) -> Result<Arc<ServerConfig>, Error> {
    let (chain, key) = match certificate {
        Certificate::SelfMade => self_made(address)?,
        Certificate::Files { chain, key } => {
            let unreadable = |what: &str, path: &std::path::Path, cause: rustls::pki_types::pem::Error| {
                unusable(format!("cannot read the {what} in {}: {cause}", path.display()), "give a PEM file")
            };
            let no_chain = |cause| unreadable("certificate", chain, cause);
            let certificates = CertificateDer::pem_file_iter(chain).map_err(no_chain)?;
            let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(no_chain)?;
            let own = PrivateKeyDer::from_pem_file(key).map_err(|cause| unreadable("private key", key, cause))?;
            (certificates, own)
        }
    };
    let wrong = |cause: rustls::Error| {
        unusable(
            format!("cannot use the certificate: {cause}"),
            "give a certificate and the private key that belongs to it",
        )
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(wrong)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.ticketer = ring::Ticketer::new().map_err(wrong)?;
    Ok(Arc::new(config))
}

type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn self_made(address: Option<SocketAddr>) -> Result<Shown, Error> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(address.map(|address| address.ip().to_string()));
    let made = rcgen::generate_simple_self_signed(names)
        .map_err(|cause| unusable(format!("cannot make a certificate: {cause}"), "give one in PEM files"))?;
    Ok((vec![made.cert.der().clone()], PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into()))
}

fn unusable(what: String, hint: &str) -> Error {
    Error::Unsupported { what, hint: Some(hint.to_owned()) }
}

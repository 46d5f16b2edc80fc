//! The certificate and the TLS configuration of an https responder.

use std::{net::SocketAddr, sync::Arc};

use fathom_engine::Error;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
};

use super::Certificate;

/// The only protocol offered over TLS (RFC 7301).
const ALPN: &[u8] = b"http/1.1";

/// The server configuration: TLS 1.2 and 1.3, with tickets for session resumption.
pub(super) fn config(certificate: &Certificate, address: Option<SocketAddr>) -> Result<Arc<ServerConfig>, Error> {
    let (chain, key) = match certificate {
        Certificate::SelfMade => self_signed(address)?,
        Certificate::Files { chain, key } => {
            let unreadable = |what: &str, path: &std::path::Path, cause: rustls::pki_types::pem::Error| {
                certificate_error(format!("cannot read the {what} in {}: {cause}", path.display()), "give a PEM file")
            };
            let no_chain = |cause| unreadable("certificate", chain, cause);
            let certificates = CertificateDer::pem_file_iter(chain).map_err(no_chain)?;
            let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(no_chain)?;
            let own = PrivateKeyDer::from_pem_file(key).map_err(|cause| unreadable("private key", key, cause))?;
            (certificates, own)
        }
    };
    server_config(chain, key)
}

fn server_config(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Arc<ServerConfig>, Error> {
    let wrong = |cause: rustls::Error| {
        certificate_error(
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

type CertificateAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn self_signed(address: Option<SocketAddr>) -> Result<CertificateAndKey, Error> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(address.map(|address| address.ip().to_string()));
    let made = rcgen::generate_simple_self_signed(names)
        .map_err(|cause| certificate_error(format!("cannot make a certificate: {cause}"), "give one in PEM files"))?;
    Ok((vec![made.cert.der().clone()], PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into()))
}

fn certificate_error(what: String, hint: &str) -> Error {
    Error::Unsupported { what, hint: Some(hint.to_owned()) }
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};

    use super::*;

    /// Whether a client that trusts the certificate accepts the server as `name`.
    fn convinces(certificate: &CertificateDer<'static>, server: &Arc<ServerConfig>, name: &'static str) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(client), name.try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
        for _ in 0..4 {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            while client.wants_write() {
                client.write_tls(&mut there).unwrap();
            }
            let mut there = there.as_slice();
            while !there.is_empty() {
                server.read_tls(&mut there).unwrap();
                server.process_new_packets().unwrap();
            }
            while server.wants_write() {
                server.write_tls(&mut back).unwrap();
            }
            let mut back = back.as_slice();
            while !back.is_empty() {
                client.read_tls(&mut back).unwrap();
                if client.process_new_packets().is_err() {
                    return false;
                }
            }
        }
        !client.is_handshaking()
    }

    #[test]
    fn a_self_made_certificate_is_for_the_own_addresses() {
        let (chain, key) = self_signed("192.0.2.7:443".parse().ok()).unwrap();
        let server = server_config(chain.clone(), key).unwrap();
        for name in ["localhost", "127.0.0.1", "::1", "192.0.2.7"] {
            assert!(convinces(&chain[0], &server, name), "{name}");
        }
        assert!(!convinces(&chain[0], &server, "192.0.2.8"));
    }
}

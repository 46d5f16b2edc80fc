//! The TLS parameters negotiated with a server, as reported in a result.

use rustls::{ProtocolVersion, client::UnbufferedClientConnection, pki_types::CertificateDer};
use x509_parser::{oid_registry::OID_SIG_ED25519, parse_x509_certificate};

/// A key of Ed25519 is 32 bytes long (RFC 8032 section 5.1.5).
const ED25519_BITS: usize = 256;

/// The negotiated parameters of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsParameters {
    /// Such as `TLSv1.3`.
    pub version: &'static str,
    /// Such as `TLS13_AES_128_GCM_SHA256`.
    pub cipher: &'static str,
    /// The key exchange group, such as `X25519`; `None` if a session was resumed without a key exchange.
    pub group: Option<&'static str>,
    /// The size of the public key in the server's certificate, in bits.
    pub server_key_bits: Option<usize>,
}

impl TlsParameters {
    /// The parameters of a connection whose handshake is complete.
    pub(super) fn of(connection: &UnbufferedClientConnection) -> Option<Self> {
        let version = match connection.protocol_version()? {
            ProtocolVersion::TLSv1_2 => "TLSv1.2",
            ProtocolVersion::TLSv1_3 => "TLSv1.3",
            _ => return None,
        };
        let cipher = connection.negotiated_cipher_suite()?.suite().as_str()?;
        let group = connection.negotiated_key_exchange_group().and_then(|group| group.name().as_str());
        let server_key_bits = connection.peer_certificates().and_then(<[_]>::first).and_then(key_bits);
        Some(Self { version, cipher, group, server_key_bits })
    }
}

/// The size of a certificate's public key; `None` for a type of key without a size.
fn key_bits(certificate: &CertificateDer<'_>) -> Option<usize> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let key = certificate.public_key();
    if key.algorithm.algorithm == OID_SIG_ED25519 {
        return Some(ED25519_BITS);
    }
    Some(key.parsed().ok()?.key_size()).filter(|bits| *bits > 0)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    use super::*;

    #[test]
    fn the_size_of_a_key_is_that_of_its_curve() {
        for (algorithm, bits) in
            [(&PKCS_ECDSA_P256_SHA256, 256), (&PKCS_ECDSA_P384_SHA384, 384), (&PKCS_ED25519, ED25519_BITS)]
        {
            let key = KeyPair::generate_for(algorithm).unwrap();
            let certificate = CertificateParams::new(["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
            assert_eq!(key_bits(certificate.der()), Some(bits), "{algorithm:?}");
        }
        assert_eq!(key_bits(&CertificateDer::from_slice(b"0\x03abc")), None);
    }
}

//! Why a connection could not be opened, small enough to be counted millions of times.

use std::io;

use fathom_model::Stage;
use fathom_sys::policy::Refused;

use crate::h1::Malformed;

/// The operation in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestStage {
    /// Looking up the address of a name.
    Resolve,
    /// Creating a socket and connecting it.
    Connect,
    /// Requesting a tunnel from a proxy.
    Proxy,
    /// The TLS handshake, and TLS errors after it.
    Tls,
    /// Sending a request.
    Send,
    /// Waiting for an answer.
    Read,
    /// Parsing an answer.
    Parse,
}

impl From<RequestStage> for Stage {
    fn from(stage: RequestStage) -> Self {
        match stage {
            RequestStage::Resolve => Self::Lookup,
            RequestStage::Connect => Self::Connect,
            RequestStage::Proxy => Self::Proxy,
            RequestStage::Tls => Self::Tls,
            RequestStage::Send => Self::Send,
            RequestStage::Read => Self::Read,
            RequestStage::Parse => Self::Parse,
        }
    }
}

/// The cause; its text does not repeat the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum ConnectFault {
    /// The name has no address.
    #[error("the name has no address")]
    Unresolved,
    /// The name has an address that the allow-list does not contain.
    #[error("the name has an address that is not allowed")]
    NotAllowed,
    /// The proxy did not open a tunnel.
    #[error(transparent)]
    Proxy(#[from] ProxyFault),
    /// TLS failed.
    #[error(transparent)]
    Tls(#[from] TlsFault),
}

impl ConnectFault {
    /// The fault of a failed lookup.
    pub(super) fn of_lookup(error: &io::Error) -> Self {
        if Refused::within(error).is_some() { Self::NotAllowed } else { Self::Unresolved }
    }

    /// The operation in progress.
    #[must_use]
    pub const fn stage(self) -> RequestStage {
        match self {
            Self::Unresolved | Self::NotAllowed => RequestStage::Resolve,
            Self::Proxy(_) => RequestStage::Proxy,
            Self::Tls(_) => RequestStage::Tls,
        }
    }

    /// A hint at the remedy, if one is known.
    #[must_use]
    pub const fn hint(self) -> Option<&'static str> {
        Some(match self {
            Self::NotAllowed => "allow it with --allow, or pin the address with --dns once",
            Self::Unresolved => "check the name, or give an address by the option connect-to",
            Self::Proxy(ProxyFault::Refused(407)) => "give its user: http://name:password@proxy:port",
            Self::Tls(TlsFault::UnknownIssuer | TlsFault::Forged) => {
                "give the issuer's certificate by the option ca, or set insecure"
            }
            Self::Tls(TlsFault::Expired | TlsFault::NotYetValid) => "renew it, check the clock, or set insecure",
            Self::Tls(TlsFault::WrongName) => "give the name that it has by the option sni, or set insecure",
            Self::Tls(TlsFault::Issuers) => {
                "give this very certificate by the option ca, make one for the server (openssl: CA:FALSE), or set insecure"
            }
            Self::Tls(TlsFault::BadCertificate) => "look at it with openssl x509 -text, or set insecure",
            Self::Tls(TlsFault::NotTls) => "write http:// if the server speaks no TLS on this port",
            _ => return None,
        })
    }
}

/// A failure at a proxy (RFC 9110 section 9.3.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum ProxyFault {
    /// It answered with a status other than success.
    #[error("no tunnel: status {0}")]
    Refused(u16),
    /// Its answer is not HTTP/1.
    #[error("no tunnel: {0}")]
    Malformed(Malformed),
    /// It closed before its answer was complete.
    #[error("closed before the tunnel was there")]
    Closed,
    /// Bytes arrived from the server's side before anything was sent to it.
    #[error("bytes after the answer that made the tunnel")]
    Surplus,
}

/// An error of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum TlsFault {
    /// The certificate has expired.
    #[error("the certificate has expired")]
    Expired,
    /// The certificate is not valid yet.
    #[error("the certificate is not valid yet")]
    NotYetValid,
    /// No trusted issuer signed the certificate.
    #[error("the certificate comes from an unknown issuer")]
    UnknownIssuer,
    /// The issuer that the certificate names did not sign it.
    #[error("the certificate is not signed by the issuer that it names")]
    Forged,
    /// The certificate belongs to another host.
    #[error("the certificate is for another name")]
    WrongName,
    /// The certificate is not for servers.
    #[error("the certificate is not one for servers")]
    WrongPurpose,
    /// The certificate is a CA certificate, as `openssl req -x509` makes them, and is not one of the given certificates.
    #[error("the certificate is an issuer's and not a server's")]
    Issuers,
    /// The certificate was revoked.
    #[error("the certificate is revoked")]
    Revoked,
    /// The certificate is malformed.
    #[error("the certificate is not valid")]
    BadCertificate,
    /// The peer aborted with this alert.
    #[error("the server sent the alert {}", alert(*.0))]
    Alert(u8),
    /// The received bytes are not TLS.
    #[error("the server does not speak TLS")]
    NotTls,
    /// The two sides share no version, cipher or extension.
    #[error("no version or cipher in common")]
    Incompatible,
    /// The server chose a protocol other than HTTP/1.
    #[error("the server chose another protocol than HTTP/1 by ALPN")]
    OtherProtocol,
    /// The server violated the TLS protocol.
    #[error("the server broke the protocol")]
    Misbehaved,
    /// Keys or ciphertext do not match.
    #[error("a record cannot be decrypted")]
    Undecipherable,
    /// The connection ended before the handshake was complete.
    #[error("closed within the handshake")]
    Closed,
    /// An error that no server causes.
    #[error("the handshake failed")]
    Other,
}

/// The name of an alert as RFC 8446 section 6 writes it.
fn alert(code: u8) -> String {
    let name = format!("{:?}", rustls::AlertDescription::from(code));
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !words.is_empty() && !words.ends_with(|last: char| !last.is_lowercase()) {
            words.push('_');
        }
        words.push(letter);
    }
    words.to_ascii_lowercase()
}

impl From<&rustls::Error> for TlsFault {
    fn from(error: &rustls::Error) -> Self {
        use rustls::{CertificateError as C, Error as E, PeerMisbehaved};
        match error {
            E::InvalidCertificate(C::Expired | C::ExpiredContext { .. }) => Self::Expired,
            E::InvalidCertificate(C::NotValidYet | C::NotValidYetContext { .. }) => Self::NotYetValid,
            E::InvalidCertificate(C::UnknownIssuer) => Self::UnknownIssuer,
            E::InvalidCertificate(C::BadSignature) => Self::Forged,
            E::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. }) => Self::WrongName,
            E::InvalidCertificate(C::InvalidPurpose | C::InvalidPurposeContext { .. }) => Self::WrongPurpose,
            E::InvalidCertificate(C::Revoked) => Self::Revoked,
            // The library has no variant for this error, which self-signed certificates cause.
            E::InvalidCertificate(C::Other(other)) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
                Self::Issuers
            }
            E::InvalidCertificate(_) => Self::BadCertificate,
            E::AlertReceived(alert) => Self::Alert(u8::from(*alert)),
            E::InvalidMessage(_) | E::InappropriateMessage { .. } => Self::NotTls,
            E::PeerMisbehaved(PeerMisbehaved::SelectedUnofferedApplicationProtocol) => Self::OtherProtocol,
            E::PeerIncompatible(_) => Self::Incompatible,
            E::PeerMisbehaved(_) | E::InappropriateHandshakeMessage { .. } | E::PeerSentOversizedRecord => {
                Self::Misbehaved
            }
            E::DecryptError => Self::Undecipherable,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_have_the_names_of_the_standard() {
        for (code, name) in
            [(40, "handshake_failure"), (42, "bad_certificate"), (48, "unknown_ca"), (70, "protocol_version")]
        {
            assert_eq!(alert(code), name);
        }
    }

    #[test]
    fn a_fault_knows_its_stage_and_often_the_way_out() {
        let cases: [(ConnectFault, RequestStage, &str, bool); 4] = [
            (ConnectFault::Unresolved, RequestStage::Resolve, "the name has no address", true),
            (ProxyFault::Refused(407).into(), RequestStage::Proxy, "no tunnel: status 407", true),
            (ProxyFault::Refused(502).into(), RequestStage::Proxy, "no tunnel: status 502", false),
            (TlsFault::Alert(116).into(), RequestStage::Tls, "the server sent the alert certificate_required", false),
        ];
        for (fault, stage, text, has_hint) in cases {
            assert_eq!((fault.stage(), fault.to_string().as_str()), (stage, text));
            assert_eq!(fault.hint().is_some(), has_hint, "{text}");
        }
    }
}

//! Why a connection did not come about, small enough to be counted by the million.

use std::io;

use fathom_sys::policy::Refused;

use crate::h1::Malformed;

/// What was under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestStage {
    /// Finding the address of a name.
    Resolve,
    /// Making a socket and connecting it.
    Connect,
    /// Asking a proxy for a tunnel.
    Proxy,
    /// Agreeing on keys, and what TLS finds wrong later.
    Tls,
    /// Sending a request.
    Send,
    /// Waiting for an answer.
    Read,
    /// Understanding an answer.
    Parse,
}

impl RequestStage {
    /// The word that counts of faults begin with.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resolve => "dns",
            Self::Connect => "connect",
            Self::Proxy => "proxy",
            Self::Tls => "tls",
            Self::Send => "send",
            Self::Read => "read",
            Self::Parse => "parse",
        }
    }
}

/// What came in between; its words do not repeat the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum ConnectFault {
    /// The name has no address.
    #[error("the name has no address")]
    Unresolved,
    /// The name has an address that nobody has allowed.
    #[error("the name has an address that is not allowed")]
    NotAllowed,
    /// The proxy did not make a tunnel.
    #[error(transparent)]
    Proxy(#[from] ProxyFault),
    /// TLS ended it.
    #[error(transparent)]
    Tls(#[from] TlsFault),
}

impl ConnectFault {
    /// Why a look-up that failed has no address to give.
    pub(super) fn of_lookup(error: &io::Error) -> Self {
        if Refused::within(error).is_some() { Self::NotAllowed } else { Self::Unresolved }
    }

    /// What was under way.
    #[must_use]
    pub const fn stage(self) -> RequestStage {
        match self {
            Self::Unresolved | Self::NotAllowed => RequestStage::Resolve,
            Self::Proxy(_) => RequestStage::Proxy,
            Self::Tls(_) => RequestStage::Tls,
        }
    }

    /// What to do about it, where that is known.
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

/// What went wrong at a proxy (RFC 9110 section 9.3.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum ProxyFault {
    /// It answered, but not with success.
    #[error("no tunnel: status {0}")]
    Refused(u16),
    /// Its answer is not HTTP/1.
    #[error("no tunnel: {0}")]
    Malformed(Malformed),
    /// It closed before its answer was whole.
    #[error("closed before the tunnel was there")]
    Closed,
    /// There are bytes from the server's side before anything was said to it.
    #[error("bytes after the answer that made the tunnel")]
    Surplus,
}

/// What TLS found wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum TlsFault {
    /// The certificate's time is over.
    #[error("the certificate has expired")]
    Expired,
    /// The certificate's time has not begun.
    #[error("the certificate is not valid yet")]
    NotYetValid,
    /// Nobody who is trusted vouches for the certificate.
    #[error("the certificate comes from an unknown issuer")]
    UnknownIssuer,
    /// The issuer that the certificate names did not sign it.
    #[error("the certificate is not signed by the issuer that it names")]
    Forged,
    /// The certificate is another host's.
    #[error("the certificate is for another name")]
    WrongName,
    /// The certificate is not one for servers.
    #[error("the certificate is not one for servers")]
    WrongPurpose,
    /// The certificate is one for issuers, as `openssl req -x509` makes them, and not one that was given.
    #[error("the certificate is an issuer's and not a server's")]
    Issuers,
    /// The certificate was taken back.
    #[error("the certificate is revoked")]
    Revoked,
    /// The certificate is not what it must be.
    #[error("the certificate is not valid")]
    BadCertificate,
    /// The other side gave up and said why.
    #[error("the server sent the alert {}", alert(*.0))]
    Alert(u8),
    /// What came is no TLS.
    #[error("the server does not speak TLS")]
    NotTls,
    /// There is no version, cipher or extension that both sides know.
    #[error("no version or cipher in common")]
    Incompatible,
    /// The server took a protocol other than HTTP/1.
    #[error("the server chose another protocol than HTTP/1 by ALPN")]
    OtherProtocol,
    /// The server did what TLS does not allow.
    #[error("the server broke the protocol")]
    Misbehaved,
    /// Keys or bytes do not fit.
    #[error("a record cannot be decrypted")]
    Undecipherable,
    /// The connection ended before the keys were agreed on.
    #[error("closed within the handshake")]
    Closed,
    /// Something that no server causes.
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
            // The library has no name of its own for this one, which is what self-signed certificates run into.
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
        let cases: [(ConnectFault, &str, &str, bool); 4] = [
            (ConnectFault::Unresolved, "dns", "the name has no address", true),
            (ProxyFault::Refused(407).into(), "proxy", "no tunnel: status 407", true),
            (ProxyFault::Refused(502).into(), "proxy", "no tunnel: status 502", false),
            (TlsFault::Alert(116).into(), "tls", "the server sent the alert certificate_required", false),
        ];
        for (fault, stage, text, has_hint) in cases {
            assert_eq!((fault.stage().name(), fault.to_string().as_str()), (stage, text));
            assert_eq!(fault.hint().is_some(), has_hint, "{text}");
        }
    }
}

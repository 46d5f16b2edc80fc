//! The identity of a server, and the key that its controllers need.

use std::{fmt, str::FromStr};

use data_encoding::{BASE32_NOPAD, Encoding};
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
use subtle::ConstantTimeEq;

use crate::Error;

/// The bytes of a token: 128 random bits cannot be guessed over a network.
pub(super) const TOKEN_LEN: usize = 16;
const FINGERPRINT_LEN: usize = 32;
/// Contains no 0, 1, 8 or 9, so that no digit is mistaken for a letter; upper case is accepted as well.
const ALPHABET: &Encoding = &BASE32_NOPAD;
/// The prefix of the token in the text of an identity.
const TOKEN_LINE: &str = "token ";

/// The secret that a server accepts.
#[derive(Clone, Copy)]
pub(super) struct Token(pub(super) [u8; TOKEN_LEN]);

impl Token {
    /// Compares two tokens in a time that does not depend on where they differ.
    pub(super) fn is_equal_in_constant_time(&self, other: &[u8; TOKEN_LEN]) -> bool {
        self.0.ct_eq(other).into()
    }
}

/// The information that a controller needs about a server: the fingerprint of its certificate, and the secret token.
///
/// Its text form is `fingerprint.token` in base32, 79 characters. Everyone who knows it can make the server send traffic.
#[derive(Clone)]
pub struct Key {
    fingerprint: [u8; FINGERPRINT_LEN],
    pub(super) token: Token,
}

impl Key {
    /// The public part, as text.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        ALPHABET.encode(&self.fingerprint).to_lowercase()
    }

    /// Returns whether a certificate in DER form matches the key (SHA-256).
    pub(super) fn matches_certificate(&self, certificate: &[u8]) -> bool {
        fingerprint(certificate).ct_eq(&self.fingerprint).into()
    }
}

fn fingerprint(certificate: &[u8]) -> [u8; FINGERPRINT_LEN] {
    digest(&SHA256, certificate).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.fingerprint(), ALPHABET.encode(&self.token.0).to_lowercase())
    }
}

/// Omits the token, because logs are read by others.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}.…)", self.fingerprint())
    }
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (left, right) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
        let wrong = |reason| Error::Key { reason };
        if right.is_empty() {
            return Err(wrong("a key is two parts joined by a dot, as `fathom serve` prints it"));
        }
        let part = |text: &str| ALPHABET.decode(text.to_uppercase().as_bytes()).ok();
        let fingerprint = part(left).and_then(|bytes| bytes.try_into().ok());
        let token = part(right).and_then(|bytes| bytes.try_into().ok());
        Ok(Self {
            fingerprint: fingerprint.ok_or_else(|| wrong("the part before the dot is not a fingerprint"))?,
            token: Token(token.ok_or_else(|| wrong("the part after the dot is not a token"))?),
        })
    }
}

/// The identity of a server: a certificate with its private key, and the token.
pub struct Identity {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) private_key: PrivateKeyDer<'static>,
    pub(super) token: Token,
}

impl Identity {
    /// Generates a new identity from the kernel's random numbers.
    ///
    /// # Errors
    /// If there are no random numbers.
    pub fn generate() -> Result<Self, Error> {
        let wrong = |cause: rcgen::Error| Error::Certificate { what: "make a certificate", cause: cause.into() };
        let mut token = [0; TOKEN_LEN];
        let no_randomness = |_| Error::Certificate { what: "make a token", cause: "no random numbers".into() };
        SystemRandom::new().fill(&mut token).map_err(no_randomness)?;
        let made = rcgen::generate_simple_self_signed(["fathom".to_owned()]).map_err(wrong)?;
        Ok(Self {
            certificate: made.cert.der().clone(),
            private_key: PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into(),
            token: Token(token),
        })
    }

    /// The key for its controllers.
    #[must_use]
    pub fn key(&self) -> Key {
        Key { fingerprint: fingerprint(&self.certificate), token: self.token }
    }

    /// The text form for a file that only its owner can read; [`Identity::parse`] reads it.
    #[must_use]
    pub fn to_secret_text(&self) -> String {
        let token = ALPHABET.encode(&self.token.0).to_lowercase();
        let certificate = pem("CERTIFICATE", &self.certificate);
        format!("{TOKEN_LINE}{token}\n{certificate}{}", pem("PRIVATE KEY", self.private_key.secret_der()))
    }

    /// Parses the output of [`Identity::to_secret_text`].
    ///
    /// # Errors
    /// States which part is missing or invalid.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |cause| Error::Certificate { what: "read the server's certificate and key", cause };
        let token = text.lines().find_map(|line| line.strip_prefix(TOKEN_LINE));
        let token = token.and_then(|token| ALPHABET.decode(token.trim().to_uppercase().as_bytes()).ok());
        let token = token.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| wrong("there is no token".into()))?;
        let bytes = text.as_bytes();
        Ok(Self {
            certificate: CertificateDer::from_pem_slice(bytes).map_err(|cause| wrong(cause.to_string().into()))?,
            private_key: PrivateKeyDer::from_pem_slice(bytes).map_err(|cause| wrong(cause.to_string().into()))?,
            token: Token(token),
        })
    }
}

/// RFC 7468: base64 in lines of 64.
fn pem(label: &str, der: &[u8]) -> String {
    let text = data_encoding::BASE64.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned());
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_printed() {
        let key = Identity::generate().unwrap().key();
        let text = key.to_string();
        assert_eq!(text.len(), 79);
        for again in [text.clone(), text.to_uppercase(), format!(" {text}\n")] {
            assert_eq!(again.parse::<Key>().unwrap().to_string(), text);
        }
        assert!(!format!("{key:?}").contains(text.split_once('.').unwrap().1), "the token stays secret");
    }

    #[test]
    fn half_a_key_is_refused_without_telling_its_secret() {
        let text = Identity::generate().unwrap().key().to_string();
        let (fingerprint, token) = text.split_once('.').unwrap();
        for wrong in ["", fingerprint, token, &text[1..], &text[..78], &format!("{token}.{fingerprint}")] {
            assert!(matches!(wrong.parse::<Key>(), Err(Error::Key { .. })), "{wrong}");
        }
        for wrong in [&text[1..], token, "root:x:0:0"] {
            let told = wrong.parse::<Key>().unwrap_err().to_string();
            assert!(!told.contains(token) && !told.contains("root") && !told.contains(&fingerprint[1..]), "{told}");
        }
    }

    #[test]
    fn an_identity_is_kept_as_text() {
        let identity = Identity::generate().unwrap();
        let again = Identity::parse(&identity.to_secret_text()).unwrap();
        assert_eq!(again.key().to_string(), identity.key().to_string());
        assert_eq!(again.private_key.secret_der(), identity.private_key.secret_der());
        assert!(Identity::parse("token abc").is_err());
    }
}

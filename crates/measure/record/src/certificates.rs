//! The certificate authority of the recorder, and the certificates that it issues for the hosts that a browser asks for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use data_encoding::BASE64;
use fathom_http::host_names::bare;
use jiff::{Span, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SerialNumber, date_time_ymd,
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
};
use sha2::{Digest as _, Sha256};
use x509_parser::parse_x509_certificate;

/// A year: a forgotten authority ends by itself.
const AUTHORITY_DAYS: i64 = 365;
/// A week: longer than any recording, and far below what browsers accept.
const LEAF_DAYS: i64 = 7;
/// Clocks of browsers may be behind.
const EARLIER_DAYS: i64 = 1;
/// Certificates that are kept: more hosts than a person visits in a day.
const LEAVES_MAX: usize = 1000;
/// How a certificate begins in a text.
const PEM_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// Why a certificate cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The library refuses it.
    #[error("cannot {what}")]
    Refused {
        /// The step.
        what: &'static str,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Its time is over.
    #[error("the certificate authority expired on {end}")]
    Expired {
        /// Its last day.
        end: String,
    },
}

fn refused<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> CertificateError {
    move |cause| CertificateError::Refused { what, cause: Box::new(cause) }
}

/// What a browser has to trust: its certificate, and the key that signs.
pub struct CertificateAuthority {
    secret_text: String,
    der: CertificateDer<'static>,
    end: Timestamp,
    subject: String,
    key_sha256: [u8; 32],
}

impl CertificateAuthority {
    /// Makes a new authority that is valid for a year; `owner` tells apart those of several people and machines.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate(owner: &str, now: Timestamp) -> Result<Self, CertificateError> {
        let key = KeyPair::generate().map_err(refused("make a key"))?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, format!("fathom record, {owner}"));
        params.distinguished_name.push(DnType::OrganizationName, "Recorder of fathom, for tests only");
        set_validity(&mut params, now, AUTHORITY_DAYS);
        let made = params.self_signed(&key).map_err(refused("make the certificate authority"))?;
        Self::from_secret_text(&format!("{}{}", key.serialize_pem(), made.pem()), now)
    }

    /// Reads an authority that was kept: the key, then the certificate, in PEM.
    ///
    /// # Errors
    /// The text is not like that, or the time of the certificate is over.
    pub fn from_secret_text(text: &str, now: Timestamp) -> Result<Self, CertificateError> {
        let reading = "read the certificate of the authority";
        let der = CertificateDer::from_pem_slice(text.as_bytes()).map_err(refused(reading))?;
        let (_, parsed) = parse_x509_certificate(&der).map_err(refused(reading))?;
        let end = Timestamp::from_second(parsed.validity().not_after.timestamp()).map_err(refused(reading))?;
        if end <= now {
            return Err(CertificateError::Expired { end: end.strftime("%F").to_string() });
        }
        let (subject, key_sha256) = (parsed.subject().to_string(), digest(parsed.public_key().raw));
        KeyPair::from_pem(text).map_err(refused("read the key of the authority"))?;
        Ok(Self { secret_text: text.to_owned(), der, end, subject, key_sha256 })
    }

    /// The text that is kept, a secret.
    #[must_use]
    pub fn to_secret_text(&self) -> &str {
        &self.secret_text
    }

    /// The certificate, for browsers.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        let begin = self.secret_text.find(PEM_CERTIFICATE).unwrap_or_default();
        self.secret_text[begin..].to_owned()
    }

    /// The certificate in the form that phones take.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Its last day.
    #[must_use]
    pub fn end(&self) -> String {
        self.end.strftime("%F").to_string()
    }

    /// Whose it is, as browsers show it.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// SHA-256 of the certificate, as browsers show it.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        digest(&self.der).map(|byte| format!("{byte:02X}")).join(":")
    }

    /// SHA-256 of the public key in Base64, as Chromium takes it on its command line.
    #[must_use]
    pub fn key_digest(&self) -> String {
        BASE64.encode(&self.key_sha256)
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, CertificateError> {
        let key = KeyPair::from_pem(&self.secret_text).map_err(refused("read the key of the authority"))?;
        Issuer::from_ca_cert_der(&self.der, key).map_err(refused("read the certificate of the authority"))
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Sets the days on which a certificate begins and ends, counted from today.
fn set_validity(params: &mut CertificateParams, now: Timestamp, days: i64) {
    let midnight = |days: i64| {
        let date = now.to_zoned(TimeZone::UTC).date().saturating_add(Span::new().days(days));
        date_time_ymd(i32::from(date.year()), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    (params.not_before, params.not_after) = (midnight(-EARLIER_DAYS), midnight(days));
}

/// Issues a certificate for each host that a browser asks for, and keeps them.
pub(crate) struct LeafCertificates {
    issuer: Issuer<'static, KeyPair>,
    /// It is sent along, so that a client can name it by its key.
    authority: CertificateDer<'static>,
    /// One key is enough for all: it lives as long as the process.
    key: KeyPair,
    made: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

impl LeafCertificates {
    pub(crate) fn new(authority: &CertificateAuthority) -> Result<Self, CertificateError> {
        let key = KeyPair::generate().map_err(refused("make a key"))?;
        Ok(Self { issuer: authority.issuer()?, authority: authority.der.clone(), key, made: Mutex::default() })
    }

    /// What TLS needs to be this host, by a name or an address.
    pub(crate) fn config(&self, host: &str, now: Timestamp) -> Result<Arc<ServerConfig>, CertificateError> {
        let host = bare(host).to_ascii_lowercase();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = made.get(&host) {
            return Ok(Arc::clone(config));
        }
        if made.len() >= LEAVES_MAX {
            made.clear();
        }
        let config = Arc::new(self.issue(&host, now)?);
        made.insert(host, Arc::clone(&config));
        Ok(config)
    }

    fn issue(&self, host: &str, now: Timestamp) -> Result<ServerConfig, CertificateError> {
        // The library knows an address from a name.
        let mut params = CertificateParams::new([host.to_owned()]).map_err(refused("name the host"))?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial_number(host, now));
        params.distinguished_name.push(DnType::CommonName, "fathom record");
        set_validity(&mut params, now, LEAF_DAYS);
        let leaf = params.signed_by(&self.key, &self.issuer).map_err(refused("issue a certificate"))?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(refused("set TLS up"))?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone(), self.authority.clone()], key)
            .map_err(refused("use a certificate"))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// A number that no other certificate of the authority has (RFC 5280 section 4.1.2.2): browsers refuse a second one.
fn serial_number(host: &str, now: Timestamp) -> SerialNumber {
    let nanos = u64::try_from(now.as_nanosecond()).unwrap_or_default();
    SerialNumber::from([&nanos.to_be_bytes()[..], &Sha256::digest(host)[..8]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_read_as_it_was_written() {
        let now = Timestamp::now();
        let made = CertificateAuthority::generate("ann@desk", now).unwrap();
        let read = CertificateAuthority::from_secret_text(made.to_secret_text(), now).unwrap();
        assert_eq!((read.der(), read.end()), (made.der(), made.end()));
        assert!(read.subject().contains("fathom record, ann@desk"), "{}", read.subject());
        assert_eq!(read.fingerprint().len(), 32 * 3 - 1);
        let certificate = made.certificate_pem();
        assert!(certificate.starts_with(PEM_CERTIFICATE) && !certificate.contains("PRIVATE"), "{certificate}");
    }

    #[test]
    fn an_authority_whose_time_is_over_is_refused() {
        let now = Timestamp::now();
        let made = CertificateAuthority::generate("ann@desk", now).unwrap();
        let later = now.checked_add(jiff::SignedDuration::from_hours(24 * (AUTHORITY_DAYS + 1))).unwrap();
        let error = CertificateAuthority::from_secret_text(made.to_secret_text(), later).err().unwrap();
        assert!(error.to_string().contains("expired on"), "{error}");
        assert!(CertificateAuthority::from_secret_text("", now).is_err());
    }

    #[test]
    fn every_certificate_has_a_number_of_its_own() {
        let now = Timestamp::now();
        let later = now.checked_add(jiff::SignedDuration::from_nanos(1)).unwrap();
        let numbers = [serial_number("a.test", now), serial_number("b.test", now), serial_number("a.test", later)];
        assert!(numbers[0] != numbers[1] && numbers[0] != numbers[2]);
    }

    #[test]
    fn a_host_has_one_certificate_however_it_is_written() {
        let now = Timestamp::now();
        let leaves = LeafCertificates::new(&CertificateAuthority::generate("ann@desk", now).unwrap()).unwrap();
        for (one, other) in [("Shop.test", "shop.test."), ("[::1]", "::1"), ("127.0.0.1", "127.0.0.1")] {
            let [one, other] = [one, other].map(|host| leaves.config(host, now).unwrap());
            assert!(Arc::ptr_eq(&one, &other));
        }
        assert_eq!(leaves.made.lock().unwrap().len(), 3);
    }

    #[test]
    fn certificates_that_are_kept_are_bounded() {
        let now = Timestamp::now();
        let leaves = LeafCertificates::new(&CertificateAuthority::generate("ann@desk", now).unwrap()).unwrap();
        for n in 0..=LEAVES_MAX {
            leaves.config(&format!("h{n}.test"), now).unwrap();
        }
        assert_eq!(leaves.made.lock().unwrap().len(), 1);
    }
}

//! Keys from secrets, and records opened with them: TLS 1.3 (RFC 8446 sections 5 and 7) and TLS 1.2 (RFC 5246 sections 6.2.3.3 and 6.3,
//! RFC 5288, RFC 7905).

use ring::{aead, hkdf, hmac};

use super::{
    handshake::Version,
    keys::Secret,
    record::{Content, Record},
};

/// The length of a nonce, and of what a key gives to it in TLS 1.3 and with `ChaCha20`.
const NONCE: usize = aead::NONCE_LEN;
/// The part of the nonce that a key gives for GCM in TLS 1.2; the rest is in the record (RFC 5288 section 3).
const SALT: usize = 4;

/// A cipher suite that can be opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suite {
    aead: &'static aead::Algorithm,
    hkdf: hkdf::Algorithm,
    hmac: hmac::Algorithm,
}

impl Suite {
    /// The suite of this name, if its encryption is one that can be opened.
    pub(super) fn of(name: &str) -> Option<Self> {
        let sha256 = (hkdf::HKDF_SHA256, hmac::HMAC_SHA256);
        let sha384 = (hkdf::HKDF_SHA384, hmac::HMAC_SHA384);
        let known = [
            ("_AES_128_GCM_SHA256", &aead::AES_128_GCM, sha256),
            ("_AES_256_GCM_SHA384", &aead::AES_256_GCM, sha384),
            ("_CHACHA20_POLY1305_SHA256", &aead::CHACHA20_POLY1305, sha256),
        ];
        let (_, aead, (hkdf, hmac)) = known.into_iter().find(|(end, ..)| name.ends_with(end))?;
        Some(Self { aead, hkdf, hmac })
    }

    /// The part of the nonce that a key of TLS 1.2 gives.
    fn salt_length(&self) -> usize {
        if *self.aead == aead::CHACHA20_POLY1305 { NONCE } else { SALT }
    }

    /// Returns what opens the records of both sides in TLS 1.2, the client first (RFC 5246 section 6.3).
    pub(super) fn openers_of_tls12(&self, master: &Secret, client: &[u8; 32], server: &[u8; 32]) -> [Opener; 2] {
        let (n_key, n_salt) = (self.aead.key_len(), self.salt_length());
        let seed = [&b"key expansion"[..], server, client].concat();
        let block = expand_tls12(self.hmac, &master.0, &seed, 2 * (n_key + n_salt));
        let (keys, salts) = block.split_at(2 * n_key);
        [0, 1].map(|side| {
            let mut iv = [0; NONCE];
            iv[..n_salt].copy_from_slice(&salts[side * n_salt..][..n_salt]);
            Opener::new(*self, &keys[side * n_key..][..n_key], iv, Version::Tls12)
        })
    }

    /// Returns what opens the records of a side in TLS 1.3, by its traffic secret (RFC 8446 section 7.3).
    pub(super) fn opener_of_tls13(&self, secret: &Secret) -> Opener {
        let key = self.expand(secret, b"key", self.aead.key_len());
        let iv = self.expand(secret, b"iv", NONCE);
        Opener::new(*self, &key, iv.try_into().expect("it was expanded to this length"), Version::Tls13)
    }

    /// The secret behind this one, once its side has sent a key update (RFC 8446 section 7.2).
    pub(super) fn next_secret(&self, secret: &Secret) -> Secret {
        Secret(self.expand(secret, b"traffic upd", secret.0.len()).into())
    }

    /// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
    fn expand(&self, secret: &Secret, label: &[u8], length: usize) -> Vec<u8> {
        let short = |n: usize| u8::try_from(n).expect("labels and their outputs are short");
        let label = [&[0, short(length), short(label.len() + 6)][..], b"tls13 ", label, &[0]].concat();
        let secret = hkdf::Prk::new_less_safe(self.hkdf, &secret.0);
        let mut bytes = vec![0; length];
        let expanded = secret.expand(&[&label], Length(length)).and_then(|output| output.fill(&mut bytes));
        expanded.expect("it is shorter than HKDF can make it");
        bytes
    }
}

/// The length of an output of HKDF.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// The pseudorandom function of TLS 1.2 (RFC 5246 section 5); `seed` begins with the label.
fn expand_tls12(hmac: hmac::Algorithm, secret: &[u8], seed: &[u8], length: usize) -> Vec<u8> {
    let key = hmac::Key::new(hmac, secret);
    let mut bytes = Vec::new();
    let mut chain = hmac::sign(&key, seed);
    while bytes.len() < length {
        bytes.extend_from_slice(hmac::sign(&key, &[chain.as_ref(), seed].concat()).as_ref());
        chain = hmac::sign(&key, chain.as_ref());
    }
    bytes.truncate(length);
    bytes
}

/// Opens the records of one side, in their order.
#[derive(Debug)]
pub(super) struct Opener {
    key: aead::LessSafeKey,
    iv: [u8; NONCE],
    version: Version,
    /// The number of bytes of the nonce that each record carries.
    n_explicit: usize,
    sequence: u64,
}

impl Opener {
    fn new(suite: Suite, key: &[u8], iv: [u8; NONCE], version: Version) -> Self {
        let key = aead::UnboundKey::new(suite.aead, key).expect("the key has the length of its algorithm");
        let n_explicit = if version == Version::Tls12 { NONCE - suite.salt_length() } else { 0 };
        Self { key: aead::LessSafeKey::new(key), iv, version, n_explicit, sequence: 0 }
    }

    /// Opens the next record. Returns its content, or `None` if its tag is not what the key gives.
    pub(super) fn open<'a>(&mut self, record: &'a mut Record) -> Option<(Content, &'a [u8])> {
        let kind = record.content();
        let (header, payload) = record.parts();
        let sequence = self.sequence.to_be_bytes();
        self.sequence += 1;
        let (explicit, sealed) = payload.split_at_mut_checked(self.n_explicit)?;
        let mut nonce = self.iv;
        if self.n_explicit > 0 {
            nonce[NONCE - self.n_explicit..].copy_from_slice(explicit);
        } else {
            nonce[NONCE - sequence.len()..]
                .iter_mut()
                .zip(sequence)
                .for_each(|(byte, of_sequence)| *byte ^= of_sequence);
        }
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        match self.version {
            Version::Tls13 => {
                let inner = &*self.key.open_in_place(nonce, aead::Aad::from(header), sealed).ok()?;
                // Behind the content are its type and zeros (RFC 8446 section 5.2).
                let end = inner.iter().rposition(|byte| *byte != 0)?;
                Some((Content::of(inner[end]), &inner[..end]))
            }
            Version::Tls12 => {
                let length = sealed.len().checked_sub(self.key.algorithm().tag_len())?;
                let length = u16::try_from(length).expect("a record is short").to_be_bytes();
                let bound = [&sequence[..], &header[..3], &length].concat();
                let content = &*self.key.open_in_place(nonce, aead::Aad::from(bound), sealed).ok()?;
                Some((kind, content))
            }
        }
    }
}

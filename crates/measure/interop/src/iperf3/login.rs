//! Authorization: a token that only the server can decrypt, and a file of users.
//!
//! The token contains the name, the password and the time, encrypted with the server's RSA key. It does not protect against the
//! replay of a recorded token within the time skew, and the test itself is not encrypted.

use std::collections::BTreeMap;

use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use rsa::{
    Oaep, Pkcs1v15Encrypt, RsaPrivateKey, RsaPublicKey,
    pkcs1::{DecodeRsaPrivateKey as _, DecodeRsaPublicKey as _},
    pkcs8::{DecodePrivateKey as _, DecodePublicKey as _},
    rand_core::OsRng,
    traits::PublicKeyParts as _,
};
use sha2::Digest as _;

/// The padding of the token before encryption (RFC 8017).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Padding {
    /// OAEP with SHA-1, as in iperf3 since 3.17.
    #[default]
    Oaep,
    /// PKCS #1 v1.5, as in earlier versions. Padding oracle attacks on it are known.
    Pkcs1,
}

/// Why a login cannot be created or checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The file is not a key of the required kind, is not in PEM, or is protected by a password.
    #[error("the file is not an RSA {which} key in PEM without a password: {why}")]
    Key {
        /// `public` or `private`.
        which: &'static str,
        /// The error of the decoder.
        why: String,
    },
    /// An iperf3 server could not parse this name or password.
    #[error("a name or a password has no white space and is not empty")]
    Credentials,
    /// The key is too short for the encrypted text.
    #[error("the key is too short for this name and password: {0}")]
    TooLong(String),
    /// A line of the users file is invalid.
    #[error("line {0} of the users file is not `name,SHA-256 in hexadecimal`")]
    Users(usize),
}

/// The login of a client.
#[derive(Debug, Clone)]
pub struct Login {
    key: RsaPublicKey,
    user: String,
    password: String,
    padding: Padding,
}

impl Login {
    /// Creates a login with a server's public key in PEM.
    ///
    /// # Errors
    /// If the key is invalid, or if the name or the password contains white space.
    pub fn new(pem: &str, (user, password): (&str, &str), padding: Padding) -> Result<Self, LoginError> {
        let key = RsaPublicKey::from_public_key_pem(pem)
            .or_else(|error| RsaPublicKey::from_pkcs1_pem(pem).map_err(|_| error))
            .map_err(|error| LoginError::Key { which: "public", why: error.to_string() })?;
        if [user, password].iter().any(|word| word.is_empty() || word.contains(char::is_whitespace)) {
            return Err(LoginError::Credentials);
        }
        Ok(Self { key, user: user.to_owned(), password: password.to_owned(), padding })
    }

    /// Returns the token for the time `now_secs` in seconds since the epoch.
    ///
    /// # Errors
    /// If the key is too short for the name and password.
    pub fn token(&self, now_secs: u64) -> Result<String, LoginError> {
        let plain = format!("user: {}\npwd:  {}\nts:   {now_secs}", self.user, self.password);
        let (random, plain) = (&mut OsRng, plain.as_bytes());
        let encrypted = match self.padding {
            Padding::Oaep => self.key.encrypt(random, Oaep::new::<sha1::Sha1>(), plain),
            Padding::Pkcs1 => self.key.encrypt(random, Pkcs1v15Encrypt, plain),
        };
        Ok(BASE64.encode(&encrypted.map_err(|error| LoginError::TooLong(error.to_string()))?))
    }
}

/// The default limit for the difference between the clocks of client and server.
pub const SKEW_SECS: u64 = 10;
/// The longest token that is processed: that of a key of 16,384 bits.
const TOKEN_MAX: usize = 2732;

/// Checks logins on a server.
#[derive(Debug, Clone)]
pub struct Authenticator {
    key: RsaPrivateKey,
    users: BTreeMap<String, [u8; 32]>,
    skew_secs: u64,
    padding: Padding,
}

impl Authenticator {
    /// Creates a checker from a private key in PEM and the text of a users file.
    ///
    /// # Errors
    /// If the key or a line of the file is invalid.
    pub fn new(pem: &str, users: &str, skew_secs: u64, padding: Padding) -> Result<Self, LoginError> {
        let key = RsaPrivateKey::from_pkcs8_pem(pem)
            .or_else(|error| RsaPrivateKey::from_pkcs1_pem(pem).map_err(|_| error))
            .map_err(|error| LoginError::Key { which: "private", why: error.to_string() })?;
        Ok(Self { key, users: read_users(users)?, skew_secs, padding })
    }

    /// Whether a token belongs to a user and was created recently. The result does not tell what is wrong.
    #[must_use]
    pub fn is_authorized(&self, token: &str, now_secs: u64) -> bool {
        self.decrypted(token).is_some_and(|plain| {
            let Some((user, password, at)) = parse_credentials(&plain) else { return false };
            let hash: [u8; 32] = sha2::Sha256::digest(format!("{{{user}}}{password}")).into();
            let is_known = self.users.get(user).is_some_and(|known| is_equal(known, &hash));
            is_known && at.abs_diff(now_secs) <= self.skew_secs
        })
    }

    /// Decrypts a token with the configured padding.
    fn decrypted(&self, token: &str) -> Option<String> {
        if token.len() > TOKEN_MAX {
            return None;
        }
        let sealed = BASE64.decode(token.as_bytes()).ok()?;
        if sealed.len() != self.key.size() {
            return None;
        }
        // Blinding hides the duration of the arithmetic from timing attacks.
        let plain = match self.padding {
            Padding::Oaep => self.key.decrypt_blinded(&mut OsRng, Oaep::new::<sha1::Sha1>(), &sealed),
            Padding::Pkcs1 => self.key.decrypt_blinded(&mut OsRng, Pkcs1v15Encrypt, &sealed),
        };
        String::from_utf8(plain.ok()?).ok()
    }
}

/// Compares in constant time, so that the duration reveals nothing.
fn is_equal(left: &[u8; 32], right: &[u8; 32]) -> bool {
    left.iter().zip(right).fold(0, |differs, (left, right)| differs | (left ^ right)) == 0
}

/// Returns name, password and time.
fn parse_credentials(plain: &str) -> Option<(&str, &str, u64)> {
    let mut words = plain.split_ascii_whitespace();
    let mut after = |label: &str| if words.next()? == label { words.next() } else { None };
    Some((after("user:")?, after("pwd:")?, after("ts:")?.parse().ok()?))
}

/// Parses lines of `name,hash`. Skips empty lines and those that start with `#`.
fn read_users(text: &str) -> Result<BTreeMap<String, [u8; 32]>, LoginError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let read = |(idx, line): (usize, &str)| {
        let (name, hash) = line.split_once(',')?;
        let hash = HEXLOWER_PERMISSIVE.decode(hash.trim().as_bytes()).ok()?.try_into().ok()?;
        Some((name.trim().to_owned(), hash)).ok_or(idx).ok()
    };
    lines.map(|(idx, line)| read((idx, line)).ok_or(LoginError::Users(idx + 1))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use rsa::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _, LineEnding};

    use super::*;

    /// A key pair in PEM; short, so that it is created fast.
    static KEYS: LazyLock<(String, String)> = LazyLock::new(|| {
        let key = RsaPrivateKey::new(&mut OsRng, 1024).unwrap();
        let private = key.to_pkcs8_pem(LineEnding::LF).unwrap().to_string();
        (private, key.to_public_key().to_public_key_pem(LineEnding::LF).unwrap())
    });

    /// The example of iperf3's manual: the user `mario` with the password `rossi`.
    const USERS: &str = "# file format: username,sha256\n\n\
        mario,bf7a49a846d44b454a5d11e7acfaf13d138bbe0b7483aa3e050879700572709b\n";

    fn doorkeeper(padding: Padding) -> Authenticator {
        Authenticator::new(&KEYS.0, USERS, SKEW_SECS, padding).unwrap()
    }

    #[test]
    fn a_user_with_the_password_is_admitted_while_the_clocks_agree() {
        for padding in [Padding::Oaep, Padding::Pkcs1] {
            let token = Login::new(&KEYS.1, ("mario", "rossi"), padding).unwrap().token(1000).unwrap();
            let keeper = doorkeeper(padding);
            for (now, expected) in [(1000, true), (990, true), (1010, true), (989, false), (1011, false)] {
                assert_eq!(keeper.is_authorized(&token, now), expected, "{padding:?} {now}");
            }
        }
    }

    #[test]
    fn anybody_else_is_not() {
        let keeper = doorkeeper(Padding::Oaep);
        for words in [("mario", "verdi"), ("luigi", "rossi")] {
            let token = Login::new(&KEYS.1, words, Padding::Oaep).unwrap().token(1000).unwrap();
            assert!(!keeper.is_authorized(&token, 1000), "{words:?}");
        }
        let old = Login::new(&KEYS.1, ("mario", "rossi"), Padding::Pkcs1).unwrap().token(1000).unwrap();
        assert!(!keeper.is_authorized(&old, 1000), "a padding that was not asked for");
        for token in ["", "====", "AAAA", &"A".repeat(4000), "\u{fffd}"] {
            assert!(!keeper.is_authorized(token, 1000), "{token}");
        }
    }

    #[test]
    fn what_cannot_be_a_login_is_told_before_anything_is_sent() {
        let login = |pem: &str, words| Login::new(pem, words, Padding::Oaep).err();
        assert_eq!(login(&KEYS.1, ("a b", "c")), Some(LoginError::Credentials));
        assert_eq!(login(&KEYS.1, ("a", "")), Some(LoginError::Credentials));
        assert!(matches!(login("-----BEGIN", ("a", "b")), Some(LoginError::Key { which: "public", .. })));
        let long = "x".repeat(200);
        let login = Login::new(&KEYS.1, ("a", &long), Padding::Oaep).unwrap();
        assert!(matches!(login.token(0), Err(LoginError::TooLong(_))));
        let keeper = |users| Authenticator::new(&KEYS.0, users, SKEW_SECS, Padding::Oaep).err();
        assert_eq!(keeper("# a\nmario;7"), Some(LoginError::Users(2)));
        assert_eq!(keeper("mario,77"), Some(LoginError::Users(1)));
        assert!(matches!(
            Authenticator::new(&KEYS.1, USERS, SKEW_SECS, Padding::Oaep).err(),
            Some(LoginError::Key { which: "private", .. })
        ));
    }
}

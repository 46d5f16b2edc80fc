//! The secrets of TLS connections, as a client logs them (`SSLKEYLOGFILE`, RFC 9850).

use std::{
    collections::HashMap,
    fmt,
    io::{self, BufRead, Read as _},
};

use data_encoding::HEXLOWER_PERMISSIVE;

/// Longer than any line with a secret: a label, and 32 and 48 bytes in hexadecimal digits.
const LINE_MAX: u64 = 512;
/// Connections whose secrets are kept: as many as a capture may have open.
const CONNECTIONS_MAX: usize = 1 << 20;
/// The lengths of secrets: of the hashes SHA-256 and SHA-384, the second one also of a master secret.
const SECRET_LENGTHS: [usize; 2] = [32, 48];
/// The length of a master secret (RFC 5246 section 8.1).
const MASTER_LENGTH: usize = 48;

/// The random bytes of a client's hello, by which its connection is known.
pub(super) type ClientRandom = [u8; 32];

/// A secret. Its bytes are shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(pub(super) Box<[u8]>);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

/// The secrets of one connection, as far as they were logged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Secrets {
    /// The master secret of TLS 1.2.
    pub(super) master: Option<Secret>,
    /// The handshake traffic secrets of TLS 1.3, of the client and of the server (RFC 8446 section 7.1).
    pub(super) handshake: [Option<Secret>; 2],
    /// The first application traffic secrets of both.
    pub(super) traffic: [Option<Secret>; 2],
}

/// Why a file is no key log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyLogError {
    /// Reading failed.
    #[error("{0}")]
    Unreadable(String),
    /// No line of it has a secret.
    #[error("none of its lines has the secret of a connection")]
    NoSecret,
    /// There are secrets of more connections than are kept.
    #[error("it has secrets of more than {CONNECTIONS_MAX} connections")]
    TooMany,
}

impl KeyLogError {
    /// Returns what to do about it, if that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoSecret => {
                Some("browsers, curl and others write such a file: SSLKEYLOGFILE=keys.log curl https://…")
            }
            Self::TooMany => Some("keep the lines of the connections in the capture"),
            Self::Unreadable(_) => None,
        }
    }
}

/// The secrets of many connections.
#[derive(Debug, Clone, Default)]
pub struct KeyLog(HashMap<ClientRandom, Secrets>);

impl KeyLog {
    /// Reads a key log. Lines that have no secret of use here, and the last one if it is cut off, are passed over.
    ///
    /// # Errors
    /// It cannot be read, or no line has a secret.
    pub fn read(log: impl BufRead) -> Result<Self, KeyLogError> {
        let mut keys = Self::default();
        keys.add(log)?;
        if keys.0.is_empty() { Err(KeyLogError::NoSecret) } else { Ok(keys) }
    }

    /// Adds the lines of another log.
    ///
    /// # Errors
    /// It cannot be read, or there are too many connections. The secrets before that are kept.
    pub(super) fn add(&mut self, mut log: impl BufRead) -> Result<(), KeyLogError> {
        let unreadable = |error: io::Error| KeyLogError::Unreadable(error.to_string());
        let mut line = Vec::new();
        while log.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).map_err(unreadable)? > 0 {
            if let Some((label, random, secret)) = read_line(&line) {
                if self.0.len() == CONNECTIONS_MAX && !self.0.contains_key(&random) {
                    return Err(KeyLogError::TooMany);
                }
                self.0.entry(random).or_default().set(label, secret);
            }
            line.clear();
        }
        Ok(())
    }

    /// The secrets of the connection that began with these random bytes.
    pub(super) fn secrets(&self, random: &ClientRandom) -> Option<&Secrets> {
        self.0.get(random)
    }
}

/// What a secret is for (RFC 9850 section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Master,
    /// By side, the client first.
    Handshake(usize),
    Traffic(usize),
}

impl Label {
    fn of(word: &[u8]) -> Option<Self> {
        match word {
            b"CLIENT_RANDOM" => Some(Self::Master),
            b"CLIENT_HANDSHAKE_TRAFFIC_SECRET" => Some(Self::Handshake(0)),
            b"SERVER_HANDSHAKE_TRAFFIC_SECRET" => Some(Self::Handshake(1)),
            b"CLIENT_TRAFFIC_SECRET_0" => Some(Self::Traffic(0)),
            b"SERVER_TRAFFIC_SECRET_0" => Some(Self::Traffic(1)),
            _ => None,
        }
    }
}

impl Secrets {
    fn set(&mut self, label: Label, secret: Secret) {
        let place = match label {
            Label::Master => &mut self.master,
            Label::Handshake(side) => &mut self.handshake[side],
            Label::Traffic(side) => &mut self.traffic[side],
        };
        *place = Some(secret);
    }
}

/// Reads a line: a label, the client's random bytes, a secret.
fn read_line(line: &[u8]) -> Option<(Label, ClientRandom, Secret)> {
    let mut words = line.trim_ascii().split(|byte| *byte == b' ');
    let label = Label::of(words.next()?)?;
    let mut bytes = || HEXLOWER_PERMISSIVE.decode(words.next()?).ok();
    let (random, secret) = (bytes()?, bytes()?);
    let is_secret = SECRET_LENGTHS.contains(&secret.len()) && (label != Label::Master || secret.len() == MASTER_LENGTH);
    (is_secret && words.next().is_none()).then_some((label, random.try_into().ok()?, Secret(secret.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANDOM: [u8; 32] = [0xab; 32];

    fn line(label: &str, n: usize) -> String {
        format!("{label} {} {}", "aB".repeat(32), "01".repeat(n))
    }

    #[test]
    fn each_secret_goes_to_its_connection_and_other_lines_are_passed_over() {
        let log = [
            "# SSL/TLS secrets log file".to_owned(),
            String::new(),
            line("CLIENT_RANDOM", 48) + "\r",
            line("SERVER_HANDSHAKE_TRAFFIC_SECRET", 32),
            line("CLIENT_TRAFFIC_SECRET_0", 48),
            line("EXPORTER_SECRET", 32),
            "RSA 0102 0304".to_owned(),
            "x".repeat(5000),
            line("CLIENT_HANDSHAKE_TRAFFIC_SECRET", 32) + " more",
            line("SERVER_TRAFFIC_SECRET_0", 31),
        ];
        let keys = KeyLog::read(log.join("\n").as_bytes()).unwrap();
        let secrets = keys.secrets(&RANDOM).unwrap();
        let length = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.0.len());
        assert_eq!(length(&secrets.master), Some(48));
        assert_eq!(secrets.handshake.each_ref().map(length), [None, Some(32)]);
        assert_eq!(secrets.traffic.each_ref().map(length), [Some(48), None]);
        assert_eq!(keys.0.len(), 1);
        assert!(!format!("{keys:?}").contains("01"), "secrets are not shown");
    }

    #[test]
    fn a_file_without_a_secret_is_refused() {
        for text in ["", "# only a comment\n", "CLIENT_RANDOM 01 02\n", &line("CLIENT_RANDOM", 32)] {
            assert_eq!(KeyLog::read(text.as_bytes()).unwrap_err(), KeyLogError::NoSecret, "{text}");
        }
    }
}

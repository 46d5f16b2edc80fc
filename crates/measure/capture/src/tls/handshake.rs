//! The messages of a handshake (RFC 8446 section 4, RFC 5246 section 7.4), of which only the hellos are read.

use tls_parser::{
    TlsCipherSuite, TlsExtension, TlsMessage, TlsMessageHandshake, parse_tls_client_hello_extensions,
    parse_tls_message_handshake, parse_tls_server_hello_extensions,
};

use super::{TlsFate, keys::ClientRandom};

/// The type of a message, and its length.
const HEADER: usize = 4;
/// A longer hello is refused; those with keys of post-quantum algorithms have some thousand bytes.
const HELLO_MAX: usize = 64 << 10;
/// The random bytes of a server's hello that asks for another client's hello (RFC 8446 section 4.1.3): the SHA-256 of `HelloRetryRequest`.
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// The version that a connection has, of those that can be decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    Tls12,
    Tls13,
}

/// What a message says, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    ClientHello {
        random: ClientRandom,
        offers_early_data: bool,
    },
    ServerHello(ServerHello),
    Finished,
    KeyUpdate,
    /// Another one, or a request for another hello.
    Other,
}

/// What a server chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerHello {
    pub(super) random: [u8; 32],
    /// Absent if it is older.
    pub(super) version: Option<Version>,
    /// The name of the cipher suite as IANA has it, or its number.
    pub(super) suite: String,
}

/// Puts the messages of one side together, wherever records divide them.
#[derive(Debug, Default)]
pub(super) struct MessageReader {
    /// The begin of a message: of a hello the whole, of others the header.
    begun: Vec<u8>,
    /// The bytes of a message that are passed over.
    n_passed: usize,
}

impl MessageReader {
    /// Takes bytes up to the end of the next message. Returns the message if it is whole.
    ///
    /// # Errors
    /// A hello is not as it has to be.
    pub(super) fn read(&mut self, bytes: &mut &[u8]) -> Result<Option<Message>, TlsFate> {
        self.fill(bytes, HEADER);
        let Some([kind, length @ ..]) = self.begun.first_chunk::<HEADER>().copied() else { return Ok(None) };
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if !matches!(kind, 1 | 2) {
            let n = (length - self.n_passed).min(bytes.len());
            *bytes = &bytes[n..];
            self.n_passed += n;
            return Ok((self.n_passed == length).then(|| {
                *self = Self::default();
                match kind {
                    20 => Message::Finished,
                    24 => Message::KeyUpdate,
                    _ => Message::Other,
                }
            }));
        }
        if length > HELLO_MAX {
            return Err(TlsFate::Malformed);
        }
        self.fill(bytes, HEADER + length);
        if self.begun.len() < HEADER + length {
            return Ok(None);
        }
        hello(&std::mem::take(&mut self.begun)).map(Some).ok_or(TlsFate::Malformed)
    }

    fn fill(&mut self, bytes: &mut &[u8], length: usize) {
        let n = length.saturating_sub(self.begun.len()).min(bytes.len());
        let (taken, rest) = bytes.split_at(n);
        self.begun.extend_from_slice(taken);
        *bytes = rest;
    }
}

fn hello(message: &[u8]) -> Option<Message> {
    match parse_tls_message_handshake(message).ok()?.1 {
        TlsMessage::Handshake(TlsMessageHandshake::ClientHello(hello)) => {
            let extensions = hello.ext.and_then(|bytes| parse_tls_client_hello_extensions(bytes).ok());
            let extensions = extensions.map(|(_, extensions)| extensions).unwrap_or_default();
            let is_early_data = |extension: &TlsExtension<'_>| matches!(extension, TlsExtension::EarlyData(_));
            let offers_early_data = extensions.iter().any(is_early_data);
            Some(Message::ClientHello { random: hello.random.try_into().ok()?, offers_early_data })
        }
        TlsMessage::Handshake(TlsMessageHandshake::ServerHello(hello)) => {
            let random: [u8; 32] = hello.random.try_into().ok()?;
            if random == RETRY {
                return Some(Message::Other);
            }
            let extensions = hello.ext.and_then(|bytes| parse_tls_server_hello_extensions(bytes).ok());
            let chosen = extensions.into_iter().flat_map(|(_, extensions)| extensions).find_map(|extension| {
                let TlsExtension::SupportedVersions(versions) = extension else { return None };
                versions.first().copied()
            });
            let version = match chosen.unwrap_or(hello.version).0 {
                0x0304 => Some(Version::Tls13),
                0x0303 => Some(Version::Tls12),
                _ => None,
            };
            let suite = TlsCipherSuite::from_id(hello.cipher.0);
            let suite = suite.map_or_else(|| format!("{:#06x}", hello.cipher.0), |suite| suite.name.to_owned());
            Some(Message::ServerHello(ServerHello { random, version, suite }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server's hello with a suite, and with the extension `supported_versions` if there is a version.
    fn server_hello(random: [u8; 32], suite: u16, version: Option<u16>) -> Vec<u8> {
        let mut body = [&[3, 3][..], &random, &[0], &suite.to_be_bytes(), &[0]].concat();
        if let Some(version) = version {
            body.extend([0, 6, 0, 43, 0, 2]);
            body.extend(version.to_be_bytes());
        }
        [&[2, 0, 0, u8::try_from(body.len()).unwrap()][..], &body].concat()
    }

    fn read(message: &[u8], size: usize) -> Vec<Message> {
        let mut reader = MessageReader::default();
        let mut messages = Vec::new();
        for mut part in message.chunks(size) {
            while let Some(message) = reader.read(&mut part).unwrap() {
                messages.push(message);
            }
        }
        messages
    }

    #[test]
    fn a_server_chooses_the_version_in_its_extension_and_the_suite_by_its_number() {
        let random = [7; 32];
        let cases = [
            (0x1301, Some(0x0304), Some(Version::Tls13), "TLS_AES_128_GCM_SHA256"),
            (0xc030, None, Some(Version::Tls12), "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
            (0x002f, Some(0x0302), None, "TLS_RSA_WITH_AES_128_CBC_SHA"),
            (0xfffe, None, Some(Version::Tls12), "0xfffe"),
        ];
        for (number, chosen, version, suite) in cases {
            let wanted = Message::ServerHello(ServerHello { random, version, suite: suite.to_owned() });
            assert_eq!(read(&server_hello(random, number, chosen), 9), [wanted]);
        }
        assert_eq!(read(&server_hello(RETRY, 0x1301, Some(0x0304)), 100), [Message::Other]);
    }

    #[test]
    fn messages_are_whole_wherever_records_divide_them_and_the_rest_of_others_is_passed_over() {
        let sent =
            [&[11, 0, 0, 5, 9, 9, 9, 9, 9][..], &[14, 0, 0, 0], &[20, 0, 0, 2, 1, 1], &[24, 0, 0, 1, 0]].concat();
        for size in 1..=sent.len() {
            assert_eq!(
                read(&sent, size),
                [Message::Other, Message::Other, Message::Finished, Message::KeyUpdate],
                "{size}"
            );
        }
        let mut long = &[1, 1, 0, 1][..];
        assert_eq!(MessageReader::default().read(&mut long), Err(TlsFate::Malformed));
        let mut short = &[1, 0, 0, 2, 3, 3][..];
        assert_eq!(MessageReader::default().read(&mut short), Err(TlsFate::Malformed));
    }
}

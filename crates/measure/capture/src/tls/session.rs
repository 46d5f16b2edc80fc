//! One connection over TLS: from its hellos to the plaintext of both sides.

use super::{
    KeyLog, TlsFate,
    cipher::{Opener, Suite},
    handshake::{Message, MessageReader, ServerHello, Version},
    keys::{ClientRandom, Secret, Secrets},
    record::{Content, Record, RecordReader},
};
use crate::ConversationSide;

/// What a record brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenedRecord {
    /// The bytes of the protocol above; empty for records of TLS itself.
    pub(super) plaintext: Vec<u8>,
    /// The bytes that were sent for it.
    pub(super) n_sent: usize,
}

/// The state of a connection.
#[derive(Debug, Default)]
pub(super) struct Session {
    client: Option<ClientHello>,
    chosen: Option<Chosen>,
    sides: [Direction; 2],
    /// Whether a record was decrypted.
    has_opened: bool,
    /// The name of a suite that cannot be opened.
    pub(super) unsupported_suite: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct ClientHello {
    random: ClientRandom,
    offers_early_data: bool,
}

/// What the server chose.
#[derive(Debug, Clone)]
struct Chosen {
    version: Version,
    suite: Suite,
    server_random: [u8; 32],
    /// Absent if no key log has them.
    secrets: Option<Secrets>,
}

/// What one side sends.
#[derive(Debug, Default)]
struct Direction {
    records: RecordReader,
    messages: MessageReader,
    /// Absent while its records are in clear text.
    opener: Option<Opener>,
    /// The secret of its records in TLS 1.3; absent before its `Finished`.
    traffic: Option<Secret>,
    has_opened: bool,
}

impl Session {
    /// Whether a record was decrypted, so that the protocol above has begun.
    pub(super) const fn has_opened(&self) -> bool {
        self.has_opened
    }

    /// Takes bytes of a side up to the end of the next record. Returns what the record brought if it is whole.
    ///
    /// # Errors
    /// Why the connection cannot be decrypted from here on.
    pub(super) fn read(
        &mut self,
        side: ConversationSide,
        bytes: &mut &[u8],
        keys: &KeyLog,
    ) -> Result<Option<OpenedRecord>, TlsFate> {
        let side = idx(side);
        let Some(record) = self.sides[side].records.read(bytes)? else { return Ok(None) };
        let n_sent = record.len();
        let plaintext = if record.content() == Content::ChangeCipherSpec {
            self.change_cipher(side)?;
            Vec::new()
        } else if self.sides[side].opener.is_some() {
            self.open(side, record)?
        } else {
            self.read_clear(side, &record, keys)?;
            Vec::new()
        };
        Ok(Some(OpenedRecord { plaintext, n_sent }))
    }

    /// A record before encryption.
    fn read_clear(&mut self, side: usize, record: &Record, keys: &KeyLog) -> Result<(), TlsFate> {
        match record.content() {
            Content::Handshake => {}
            Content::ApplicationData if side == CLIENT && self.client.is_some() && self.chosen.is_none() => {
                return Err(TlsFate::EarlyData);
            }
            Content::ApplicationData => return Err(TlsFate::Malformed),
            Content::Alert | Content::ChangeCipherSpec | Content::Other => return Ok(()),
        }
        let mut payload = record.payload();
        while let Some(message) = self.sides[side].messages.read(&mut payload)? {
            match message {
                Message::ClientHello { random, offers_early_data } if side == CLIENT => {
                    self.client = Some(ClientHello { random, offers_early_data });
                }
                Message::ServerHello(hello) if side == SERVER => self.choose(hello, keys)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The server has chosen the version and the cipher suite.
    fn choose(&mut self, hello: ServerHello, keys: &KeyLog) -> Result<(), TlsFate> {
        let client = self.client.ok_or(TlsFate::HandshakeIncomplete)?;
        let Some((version, suite)) = hello.version.zip(Suite::of(&hello.suite)) else {
            self.unsupported_suite = Some(hello.suite);
            return Err(TlsFate::UnsupportedSuite);
        };
        let secrets = keys.secrets(&client.random).cloned();
        if version == Version::Tls13 {
            let is_whole = |secrets: &&Secrets| secrets.traffic.iter().all(Option::is_some);
            let secrets = secrets.as_ref().filter(is_whole).ok_or(TlsFate::NoKeys)?;
            for side in [CLIENT, SERVER] {
                let secret = secrets.handshake[side].as_ref().ok_or(TlsFate::NoKeys)?;
                self.sides[side].opener = Some(suite.opener_of_tls13(secret));
            }
        }
        self.chosen = Some(Chosen { version, suite, server_random: hello.random, secrets });
        Ok(())
    }

    /// The records that follow are encrypted in TLS 1.2 (RFC 5246 section 7.1). In TLS 1.3 this means nothing (RFC 8446 section 5).
    fn change_cipher(&mut self, side: usize) -> Result<(), TlsFate> {
        let (Some(client), Some(chosen)) = (&self.client, &self.chosen) else { return Ok(()) };
        if chosen.version == Version::Tls13 {
            return Ok(());
        }
        if self.sides[side].opener.is_some() {
            return Err(TlsFate::Renegotiated);
        }
        let master = chosen.secrets.as_ref().and_then(|secrets| secrets.master.as_ref()).ok_or(TlsFate::NoKeys)?;
        let openers = chosen.suite.openers_of_tls12(master, &client.random, &chosen.server_random);
        self.sides[side].opener = openers.into_iter().nth(side);
        Ok(())
    }

    /// Opens an encrypted record. Returns the plaintext of the protocol above.
    fn open(&mut self, side: usize, mut record: Record) -> Result<Vec<u8>, TlsFate> {
        let direction = &mut self.sides[side];
        let opened = direction.opener.as_mut().and_then(|opener| opener.open(&mut record));
        let Some((content, plaintext)) = opened else {
            let offers_early_data = self.client.is_some_and(|client| client.offers_early_data);
            return Err(match (self.has_opened, direction.has_opened) {
                (_, false) if side == CLIENT && offers_early_data => TlsFate::EarlyData,
                (false, _) => TlsFate::WrongKeys,
                _ => TlsFate::DamagedRecord,
            });
        };
        direction.has_opened = true;
        self.has_opened = true;
        match content {
            Content::ApplicationData => return Ok(plaintext.to_vec()),
            Content::Handshake => {
                let mut messages = plaintext;
                while let Some(message) = self.sides[side].messages.read(&mut messages)? {
                    self.change_keys(side, &message)?;
                }
            }
            Content::Alert | Content::ChangeCipherSpec | Content::Other => {}
        }
        Ok(Vec::new())
    }

    /// Changes the keys of a side in TLS 1.3 as its message says.
    fn change_keys(&mut self, side: usize, message: &Message) -> Result<(), TlsFate> {
        let Some(chosen) = self.chosen.as_ref().filter(|chosen| chosen.version == Version::Tls13) else {
            return Ok(());
        };
        let direction = &mut self.sides[side];
        let next = match (message, &direction.traffic) {
            (Message::Finished, None) => {
                let secrets = chosen.secrets.as_ref().ok_or(TlsFate::NoKeys)?;
                secrets.traffic[side].clone().ok_or(TlsFate::NoKeys)?
            }
            (Message::KeyUpdate, Some(before)) => chosen.suite.next_secret(before),
            _ => return Ok(()),
        };
        direction.opener = Some(chosen.suite.opener_of_tls13(&next));
        direction.traffic = Some(next);
        Ok(())
    }
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

pub(super) const fn idx(side: ConversationSide) -> usize {
    match side {
        ConversationSide::Client => CLIENT,
        ConversationSide::Server => SERVER,
    }
}

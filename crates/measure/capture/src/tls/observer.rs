//! Stands between the connections of a capture and the protocol above TLS.

use std::net::SocketAddr;

use fathom_model::units::Nanos;

use super::{
    KeyLog, TlsCounts, TlsFate,
    session::{Session, idx},
};
use crate::{
    AfterMissing, ConversationBegin, ConversationEnd, ConversationObserver, ConversationSide, ConversationStart,
};

/// The first byte of a record with a hello, and of one with data.
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
/// The byte behind it (RFC 8446 section 5.1).
const MAJOR_VERSION: u8 = 3;

/// Decrypts connections over TLS for an observer, and gives it all others as they are.
#[derive(Debug)]
pub struct TlsObserver<O> {
    observer: O,
    keys: KeyLog,
    counts: TlsCounts,
}

/// A conversation, over TLS or not.
#[derive(Debug)]
pub enum TlsConversation<C> {
    /// Nothing was sent yet.
    Silent(ConversationStart),
    Plain(C),
    Encrypted(Box<Encrypted<C>>),
}

/// A connection over TLS.
#[derive(Debug)]
pub struct Encrypted<C> {
    start: ConversationStart,
    session: Session,
    /// The conversation in it; absent before its first byte, and after what cannot be decrypted.
    inner: Option<C>,
    has_spoken: bool,
    /// Absent while it is decrypted.
    fate: Option<TlsFate>,
    /// The bytes of each side that no whole record has accounted for.
    n_open: [u64; 2],
}

impl<O: ConversationObserver> TlsObserver<O> {
    /// Decrypts by these keys, and by those in the capture.
    pub fn new(observer: O, keys: KeyLog) -> Self {
        Self { observer, keys, counts: TlsCounts::default() }
    }

    /// Returns the observer, and what was counted.
    pub fn finish(self) -> (O, TlsCounts) {
        (self.observer, self.counts)
    }

    /// Returns the conversation that begins with these bytes of a side.
    fn begin(
        &mut self,
        start: ConversationStart,
        side: ConversationSide,
        bytes: &[u8],
    ) -> TlsConversation<O::Conversation> {
        let fate = match (side, bytes) {
            (ConversationSide::Client, [HANDSHAKE, ..]) => None,
            // The client's hello is missing before it.
            (ConversationSide::Server, [HANDSHAKE] | [HANDSHAKE, MAJOR_VERSION, ..]) => {
                Some(TlsFate::HandshakeIncomplete)
            }
            (_, [APPLICATION_DATA, ..]) if start.begin != ConversationBegin::Handshake => {
                Some(TlsFate::HandshakeNotCaptured)
            }
            _ => return TlsConversation::Plain(self.observer.open(start)),
        };
        let (session, n_open) = (Session::default(), [0; 2]);
        TlsConversation::Encrypted(Box::new(Encrypted { start, session, inner: None, has_spoken: false, fate, n_open }))
    }

    /// Returns the conversation above TLS; one that was silent is without TLS.
    fn plain<'a>(
        &mut self,
        conversation: &'a mut TlsConversation<O::Conversation>,
    ) -> Result<&'a mut O::Conversation, &'a mut Encrypted<O::Conversation>> {
        if let TlsConversation::Silent(start) = conversation {
            *conversation = TlsConversation::Plain(self.observer.open(*start));
        }
        match conversation {
            TlsConversation::Plain(plain) => Ok(plain),
            TlsConversation::Encrypted(encrypted) => Err(encrypted),
            TlsConversation::Silent(_) => unreachable!("it was opened before"),
        }
    }

    fn decrypt(
        &mut self,
        encrypted: &mut Encrypted<O::Conversation>,
        side: ConversationSide,
        mut bytes: &[u8],
        time: Nanos,
    ) {
        encrypted.n_open[idx(side)] += bytes.len() as u64;
        while encrypted.fate.is_none() {
            match encrypted.session.read(side, &mut bytes, &self.keys) {
                Ok(None) => return,
                Ok(Some(record)) => {
                    let n_overhead = record.n_sent - record.plaintext.len();
                    *self.counts.overhead_bytes.entry(side).or_default() += n_overhead as u64;
                    encrypted.n_open[idx(side)] -= record.n_sent as u64;
                    if !record.plaintext.is_empty() {
                        let inner = encrypted.inner.get_or_insert_with(|| self.observer.open(encrypted.start));
                        encrypted.has_spoken = true;
                        self.observer.on_bytes(inner, side, &record.plaintext, time);
                    }
                }
                Err(fate) => self.stop(encrypted, fate),
            }
        }
    }

    /// Decrypts nothing more of a connection.
    fn stop(&mut self, encrypted: &mut Encrypted<O::Conversation>, fate: TlsFate) {
        encrypted.fate = Some(fate);
        let end = if fate == TlsFate::MissingBytes { ConversationEnd::Missing } else { ConversationEnd::Undecrypted };
        if let Some(inner) = encrypted.inner.take() {
            self.observer.on_end(inner, end);
        }
    }

    fn end(&mut self, encrypted: Encrypted<O::Conversation>, end: ConversationEnd) {
        let Encrypted { start, session, inner, has_spoken, fate, n_open } = encrypted;
        let usual = if session.has_opened() { TlsFate::Decrypted } else { TlsFate::HandshakeIncomplete };
        let fate = fate.unwrap_or(usual);
        *self.counts.connections.entry(fate).or_default() += 1;
        if let Some(suite) = session.unsupported_suite {
            *self.counts.unsupported_suites.entry(suite).or_default() += 1;
        }
        for side in [ConversationSide::Client, ConversationSide::Server] {
            if n_open[idx(side)] > 0 {
                *self.counts.undecrypted_bytes.entry(side).or_default() += n_open[idx(side)];
            }
        }
        let inner = match inner {
            None if fate == TlsFate::Decrypted => Some(self.observer.open(start)),
            inner => inner,
        };
        self.counts.n_without_conversation += u64::from(inner.is_none() && !has_spoken);
        if let Some(inner) = inner {
            self.observer.on_end(inner, end);
        }
    }
}

impl<O: ConversationObserver> ConversationObserver for TlsObserver<O> {
    type Conversation = TlsConversation<O::Conversation>;

    fn begins(&self, payload: &[u8], (from, to): (SocketAddr, SocketAddr)) -> bool {
        match payload {
            [HANDSHAKE, MAJOR_VERSION, _, _, _, 1, ..] => true,
            // Both sides send such records; a client has the larger port as a rule.
            [APPLICATION_DATA, MAJOR_VERSION, 3, ..] => from.port() > to.port(),
            _ => self.observer.begins(payload, (from, to)),
        }
    }

    fn on_secrets(&mut self, log: &[u8]) {
        // Reading from memory does not fail, and of more secrets than are kept the rest is not needed to go on.
        let _ = self.keys.add(log);
        self.observer.on_secrets(log);
    }

    fn open(&mut self, start: ConversationStart) -> Self::Conversation {
        TlsConversation::Silent(start)
    }

    fn on_bytes(&mut self, conversation: &mut Self::Conversation, side: ConversationSide, bytes: &[u8], time: Nanos) {
        if let TlsConversation::Silent(start) = &*conversation
            && !bytes.is_empty()
        {
            *conversation = self.begin(*start, side, bytes);
        }
        match self.plain(conversation) {
            Ok(plain) => self.observer.on_bytes(plain, side, bytes, time),
            Err(encrypted) => self.decrypt(encrypted, side, bytes, time),
        }
    }

    fn on_missing(&mut self, conversation: &mut Self::Conversation, side: ConversationSide, n: u64) -> AfterMissing {
        match self.plain(conversation) {
            Ok(plain) => self.observer.on_missing(plain, side, n),
            Err(encrypted) => {
                if encrypted.fate.is_none() {
                    let has_opened = encrypted.session.has_opened();
                    self.stop(encrypted, if has_opened { TlsFate::MissingBytes } else { TlsFate::HandshakeIncomplete });
                }
                AfterMissing::Continues
            }
        }
    }

    fn on_finished(&mut self, conversation: &mut Self::Conversation, side: ConversationSide) {
        match self.plain(conversation) {
            Ok(plain) => self.observer.on_finished(plain, side),
            Err(encrypted) => {
                if let Some(inner) = &mut encrypted.inner {
                    self.observer.on_finished(inner, side);
                }
            }
        }
    }

    fn on_end(&mut self, conversation: Self::Conversation, end: ConversationEnd) {
        match conversation {
            TlsConversation::Silent(start) => {
                let plain = self.observer.open(start);
                self.observer.on_end(plain, end);
            }
            TlsConversation::Plain(plain) => self.observer.on_end(plain, end),
            TlsConversation::Encrypted(encrypted) => self.end(*encrypted, end),
        }
    }
}

//! What lies between a socket and HTTP, as a state machine: preludes first, then bytes as they are or through TLS.
//!
//! Knows no socket and no clock: it is given what was received and the time, and leaves what is to be sent in a [`Desk`]. Plain
//! connections cost nothing: once [`Channel::is_plain`], requests and answers pass by it.

use std::{fmt, sync::Arc};

use fathom_model::units::Nanos;
use rustls::{
    ClientConfig, HandshakeKind,
    client::{ClientConnectionData, UnbufferedClientConnection},
    pki_types::ServerName,
    unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic},
};

use super::{
    Fault, ProxyFault, Security, TlsFault,
    prelude::{Announcement, Ends, Tunnel, TunnelAnswer},
};

/// Room for what TLS adds to a request of one record: head, content type, tag and nonce are 30 bytes at most.
const RECORD_MORE: usize = 64;

/// The buffers of one worker, used for one channel after the other.
#[derive(Debug, Default)]
pub struct Desk {
    /// What is to be sent now; whoever sends it clears it.
    pub out: Vec<u8>,
    /// What was decrypted by the last [`Channel::take`].
    plain: Vec<u8>,
    /// Ciphertext is decrypted where it lies, so it is copied from where it was received.
    scratch: Vec<u8>,
}

impl Desk {
    /// What the last [`Channel::take`] found for HTTP.
    #[must_use]
    pub fn plain(&self) -> &[u8] {
        &self.plain
    }
}

/// How a channel came about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opened {
    /// When the proxy's tunnel was there.
    pub proxied_at: Option<Nanos>,
    /// When the keys were agreed on.
    pub secured_at: Option<Nanos>,
    /// Whether the keys come from an earlier session.
    pub resumed: bool,
}

/// Where a channel stands after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is not ready for a request; the other end has the word.
    Opening,
    /// It has become ready; this comes once.
    Ready(Opened),
    /// It is ready as before.
    Data,
    /// The other end will send no more, and said so.
    Ended,
}

/// How the channels of a route are made.
#[derive(Debug, Clone, Default)]
pub(super) struct Way {
    pub(super) announcement: Option<Announcement>,
    pub(super) tunnel: Option<Arc<Tunnel>>,
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Way {
    /// A channel for a connection that is about to be there.
    pub(super) fn channel(&self) -> Result<Channel, Fault> {
        if self.announcement.is_none() && self.tunnel.is_none() && self.tls.is_none() {
            return Ok(Channel(None));
        }
        let tls = match &self.tls {
            Some((config, name)) => Some(Session::new(config, name)?),
            None => None,
        };
        let tunnel = self.tunnel.as_ref().map(|tunnel| (Arc::clone(tunnel), TunnelAnswer::default()));
        Ok(Channel(Some(Box::new(Layers { announcement: self.announcement, tunnel, tls, proxied_at: None }))))
    }
}

/// What is left of a channel's layers: those that have done their part are gone.
#[derive(Debug)]
struct Layers {
    announcement: Option<Announcement>,
    tunnel: Option<(Arc<Tunnel>, TunnelAnswer)>,
    tls: Option<Session>,
    proxied_at: Option<Nanos>,
}

impl Layers {
    fn decrypt(&mut self, received: &[u8], now: Nanos, desk: &mut Desk) -> Result<Step, Fault> {
        let Some(session) = &mut self.tls else { return Ok(Step::Data) };
        let was_ready = session.standing == Standing::Ready;
        Ok(match session.take(received, desk)? {
            Heard::Ended => Step::Ended,
            Heard::Waiting | Heard::Open if was_ready => Step::Data,
            Heard::Waiting => Step::Opening,
            Heard::Open => {
                let resumed = session.connection.handshake_kind() == Some(HandshakeKind::Resumed);
                Step::Ready(Opened { proxied_at: self.proxied_at, secured_at: Some(now), resumed })
            }
        })
    }
}

/// One connection's way from socket to HTTP.
#[derive(Debug, Default)]
pub struct Channel(Option<Box<Layers>>);

impl Channel {
    /// Whether bytes go through as they are; [`Channel::take`] and [`Channel::seal`] need not be called then.
    #[inline]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.0.is_none()
    }

    /// Whether [`Channel::opened`] makes use of the ends, which cost a system call.
    #[must_use]
    pub fn wants_ends(&self) -> bool {
        self.0.as_ref().is_some_and(|layers| layers.announcement.is_some())
    }

    /// The socket is connected: what is said first goes to `desk.out`.
    ///
    /// # Errors
    /// [`Fault::Tls`], when TLS cannot begin.
    pub fn opened(&mut self, ends: Option<Ends>, now: Nanos, desk: &mut Desk) -> Result<Step, Fault> {
        desk.plain.clear();
        let Some(layers) = &mut self.0 else { return Ok(Step::Ready(Opened::default())) };
        if let Some(announcement) = layers.announcement.take() {
            announcement.write(ends, &mut desk.out);
        }
        if let Some((tunnel, _)) = &layers.tunnel {
            desk.out.extend_from_slice(tunnel.request());
            return Ok(Step::Opening);
        }
        self.secure(now, desk)
    }

    /// Begins TLS, or ends the layers where there is none.
    fn secure(&mut self, now: Nanos, desk: &mut Desk) -> Result<Step, Fault> {
        let Some(layers) = self.0.as_mut().filter(|layers| layers.tls.is_some()) else {
            self.0 = None;
            return Ok(Step::Ready(Opened::default()));
        };
        layers.decrypt(&[], now, desk)
    }

    /// Takes what was received; what is for HTTP is then in [`Desk::plain`], what is to be sent in [`Desk::out`].
    ///
    /// # Errors
    /// What ends the connection; [`Desk::out`] may hold the alert that tells the other end why.
    pub fn take(&mut self, received: &[u8], now: Nanos, desk: &mut Desk) -> Result<Step, Fault> {
        desk.plain.clear();
        let Some(layers) = &mut self.0 else {
            desk.plain.extend_from_slice(received);
            return Ok(Step::Data);
        };
        if let Some((_, answer)) = &mut layers.tunnel {
            if !answer.take(received)? {
                return Ok(Step::Opening);
            }
            (layers.tunnel, layers.proxied_at) = (None, Some(now));
            return self.secure(now, desk);
        }
        layers.decrypt(received, now, desk)
    }

    /// Appends to `desk.out` what carries these bytes to the server; only once the channel is ready.
    ///
    /// # Errors
    /// [`Fault::Tls`], when the keys are used up or the connection has ended.
    pub fn seal(&mut self, plain: &[u8], desk: &mut Desk) -> Result<(), Fault> {
        if let Some(session) = self.0.as_mut().and_then(|layers| layers.tls.as_mut()) {
            return Ok(session.seal(plain, &mut desk.out)?);
        }
        desk.out.extend_from_slice(plain);
        Ok(())
    }

    /// The fault of a connection that ended before it was ready; nothing once it was.
    #[must_use]
    pub fn cut(&self) -> Option<Fault> {
        let layers = self.0.as_ref()?;
        match &layers.tls {
            _ if layers.tunnel.is_some() => Some(ProxyFault::Closed.into()),
            Some(session) if session.standing == Standing::Shaking => Some(TlsFault::Closed.into()),
            _ => None,
        }
    }

    /// Whether TLS is left open: the other end has not said that it sends no more (RFC 8446 section 6.1).
    #[must_use]
    pub fn is_left_open(&self) -> bool {
        self.0.as_ref().and_then(|layers| layers.tls.as_ref()).is_some_and(|session| !session.is_closed_by_peer)
    }

    /// Says good-bye in `desk.out`, so that the server can tell an end from a cut (RFC 8446 section 6.1).
    pub fn farewell(&mut self, desk: &mut Desk) {
        if let Some(session) =
            self.0.as_mut().and_then(|layers| layers.tls.as_mut()).filter(|tls| tls.standing == Standing::Ready)
        {
            session.farewell(&mut desk.out);
        }
    }

    /// What TLS agreed on, once ready.
    #[must_use]
    pub fn security(&self) -> Option<Security> {
        let session = self.0.as_ref()?.tls.as_ref().filter(|tls| tls.standing == Standing::Ready)?;
        Security::of(&session.connection)
    }
}

/// The client's side of TLS.
struct Session {
    connection: UnbufferedClientConnection,
    /// The beginning of a record that has not come whole.
    partial: Vec<u8>,
    standing: Standing,
    is_closed_by_peer: bool,
}

/// How far TLS has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Keys are not agreed on yet.
    Shaking,
    /// Requests may be sent.
    Ready,
    /// Something was wrong; the library wants to hear no more then.
    Broken,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("standing", &self.standing).finish_non_exhaustive()
    }
}

/// What a look at the connection found.
enum Heard {
    /// Keys are not agreed on yet.
    Waiting,
    /// It may send.
    Open,
    /// The other end has said good-bye.
    Ended,
}

impl Session {
    fn new(config: &Arc<ClientConfig>, name: &ServerName<'static>) -> Result<Self, TlsFault> {
        let connection = UnbufferedClientConnection::new(Arc::clone(config), name.clone());
        let connection = connection.map_err(|error| TlsFault::from(&error))?;
        Ok(Self { connection, partial: Vec::new(), standing: Standing::Shaking, is_closed_by_peer: false })
    }

    fn take(&mut self, received: &[u8], desk: &mut Desk) -> Result<Heard, TlsFault> {
        if self.standing == Standing::Broken {
            return Err(TlsFault::Closed);
        }
        desk.scratch.clear();
        desk.scratch.extend_from_slice(&self.partial);
        desk.scratch.extend_from_slice(received);
        let (n_used, heard) = self.hear(desk);
        self.partial.clear();
        self.partial.extend_from_slice(&desk.scratch[n_used..]);
        let heard = heard.map_err(|error| TlsFault::from(&error)).and_then(|heard| self.advance(heard));
        if heard.is_err() {
            self.standing = Standing::Broken;
        }
        heard
    }

    fn advance(&mut self, heard: Heard) -> Result<Heard, TlsFault> {
        self.is_closed_by_peer |= matches!(heard, Heard::Ended);
        match (self.standing, heard) {
            (Standing::Shaking, Heard::Ended) => Err(TlsFault::Closed),
            (Standing::Shaking, Heard::Open) => {
                self.standing = Standing::Ready;
                // The certificates of the handshake may have made it large, and there are many connections.
                self.partial.shrink_to_fit();
                let is_other = |chosen: &[u8]| !chosen.starts_with(b"http/1.");
                if self.connection.alpn_protocol().is_some_and(is_other) {
                    return Err(TlsFault::OtherProtocol);
                }
                Ok(Heard::Open)
            }
            (_, heard) => Ok(heard),
        }
    }

    /// Goes through the records in the scratch: how many bytes it is done with, and where it ended.
    fn hear(&mut self, desk: &mut Desk) -> (usize, Result<Heard, rustls::Error>) {
        let mut n_used = 0;
        loop {
            let UnbufferedStatus { discard, state, .. } =
                self.connection.process_tls_records(&mut desk.scratch[n_used..]);
            let heard = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        desk.plain.extend_from_slice(record.payload);
                    }
                    None
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append(&mut desk.out, RECORD_MORE, |room| data.encode(room));
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::WriteTraffic(_)) => Some(Ok(Heard::Open)),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Some(Ok(Heard::Ended)),
                Ok(_) => Some(Ok(Heard::Waiting)),
                Err(error) => Some(Err(error)),
            };
            n_used += discard;
            match heard {
                None => {}
                Some(Err(error)) => {
                    // The alert that says why, if there is one.
                    while self.connection.wants_write()
                        && let Ok(ConnectionState::EncodeTlsData(mut data)) =
                            self.connection.process_tls_records(&mut desk.scratch[n_used..]).state
                    {
                        append(&mut desk.out, RECORD_MORE, |room| data.encode(room));
                    }
                    return (n_used, Err(error));
                }
                Some(heard) => return (n_used, heard),
            }
        }
    }

    /// Lets `write` write once all that TLS itself has to say is in `out`.
    fn speak(
        &mut self,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut WriteTraffic<'_, ClientConnectionData>, &mut Vec<u8>) -> Result<(), EncryptError>,
    ) -> Result<(), TlsFault> {
        if self.standing == Standing::Broken {
            return Err(TlsFault::Closed);
        }
        let mut n_used = 0;
        let spoken = loop {
            // What has not come whole is shown again, as a message within it may be known already.
            let status = self.connection.process_tls_records(&mut self.partial[n_used..]);
            n_used += status.discard;
            match status.state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => append(out, RECORD_MORE, |room| data.encode(room)),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    break write(&mut traffic, out).map_err(|_| TlsFault::Other);
                }
                Ok(_) => break Err(TlsFault::Closed),
                Err(error) => break Err(TlsFault::from(&error)),
            }
        };
        self.partial.drain(..n_used);
        if spoken.is_err() {
            self.standing = Standing::Broken;
        }
        spoken
    }

    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsFault> {
        let room = plain.len() + RECORD_MORE;
        self.speak(out, |traffic, out| try_append(out, room, |room| traffic.encrypt(plain, room)))
    }

    fn farewell(&mut self, out: &mut Vec<u8>) {
        // Without the word the connection ends all the same.
        let _ = self.speak(out, |traffic, out| try_append(out, RECORD_MORE, |room| traffic.queue_close_notify(room)));
    }
}

/// How much room is missing, if that is what is wrong.
trait Cramped {
    fn room_needed(&self) -> Option<usize>;
}

impl Cramped for EncodeError {
    fn room_needed(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::AlreadyEncoded => None,
        }
    }
}

impl Cramped for EncryptError {
    fn room_needed(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::EncryptExhausted => None,
        }
    }
}

/// Appends what `write` writes, with more room if it asks for it.
fn try_append<E: Cramped>(
    out: &mut Vec<u8>,
    room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> Result<(), E> {
    let begin = out.len();
    out.resize(begin + room, 0);
    let mut written = write(&mut out[begin..]);
    if let Some(room) = written.as_ref().err().and_then(Cramped::room_needed) {
        out.resize(begin + room, 0);
        written = write(&mut out[begin..]);
    }
    out.truncate(begin + written.as_ref().copied().unwrap_or(0));
    written.map(|_| ())
}

fn append(out: &mut Vec<u8>, room: usize, write: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>) {
    let written = try_append(out, room, write);
    assert!(written.is_ok(), "a message of TLS is encoded once, into the room it asked for: {written:?}");
}

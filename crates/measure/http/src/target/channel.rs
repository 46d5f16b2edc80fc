//! The layers between a socket and HTTP, as a state machine: first the PROXY header and the proxy tunnel, then plain bytes or TLS.
//!
//! This module knows no socket and no clock. The caller passes in received bytes and the time, and finds the bytes to send in a
//! [`TlsBuffers`]. Plain connections cost nothing: once [`Channel::is_plain`], requests and answers bypass the channel.

use std::{fmt, sync::Arc};

use fathom_model::units::Nanos;
use rustls::{
    ClientConfig, HandshakeKind,
    client::{ClientConnectionData, UnbufferedClientConnection},
    pki_types::ServerName,
    unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic},
};

use super::{
    ConnectFault, ProxyFault, TlsFault, TlsParameters,
    proxy::{ConnectionAddresses, ProxyProtocol, ProxyTunnel, TunnelResponse},
};

/// Room for what TLS adds to a request of one record: header, content type, tag and nonce are 30 bytes at most.
const RECORD_OVERHEAD: usize = 64;

/// The buffers of one worker, used for one channel at a time.
#[derive(Debug, Default)]
pub struct TlsBuffers {
    /// Bytes to send now; the sender clears it.
    pub out: Vec<u8>,
    /// The decrypted output of the last [`Channel::receive`].
    plain: Vec<u8>,
    /// Decryption works in place, so ciphertext is copied here from the receive buffer.
    scratch: Vec<u8>,
}

impl TlsBuffers {
    /// The bytes for HTTP from the last [`Channel::receive`].
    #[must_use]
    pub fn plain(&self) -> &[u8] {
        &self.plain
    }
}

/// The setup steps of a channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelSetup {
    /// When the proxy's tunnel was established.
    pub tunnel_ready_at: Option<Nanos>,
    /// When the TLS handshake was complete.
    pub tls_ready_at: Option<Nanos>,
    /// Whether TLS resumed an earlier session.
    pub is_resumed: bool,
}

/// The state of a channel after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelState {
    /// Not ready for a request: waiting for the peer.
    Opening,
    /// Just became ready; reported once.
    Ready(ChannelSetup),
    /// Ready as before.
    Data,
    /// The peer has announced that it will send no more.
    Ended,
}

/// How the channels of a route are created.
#[derive(Debug, Clone, Default)]
pub(super) struct ChannelConfig {
    pub(super) proxy_protocol: Option<ProxyProtocol>,
    pub(super) tunnel: Option<Arc<ProxyTunnel>>,
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl ChannelConfig {
    /// Creates the channel of a connection that is about to be established.
    pub(super) fn open_channel(&self) -> Result<Channel, ConnectFault> {
        if self.proxy_protocol.is_none() && self.tunnel.is_none() && self.tls.is_none() {
            return Ok(Channel(None));
        }
        let tls = match &self.tls {
            Some((config, name)) => Some(TlsSession::new(config, name)?),
            None => None,
        };
        let tunnel = self.tunnel.as_ref().map(|tunnel| (Arc::clone(tunnel), TunnelResponse::default()));
        Ok(Channel(Some(Box::new(ChannelLayers {
            proxy_protocol: self.proxy_protocol,
            tunnel,
            tls,
            tunnel_ready_at: None,
        }))))
    }
}

/// The remaining layers of a channel; completed ones are removed.
#[derive(Debug)]
struct ChannelLayers {
    proxy_protocol: Option<ProxyProtocol>,
    tunnel: Option<(Arc<ProxyTunnel>, TunnelResponse)>,
    tls: Option<TlsSession>,
    tunnel_ready_at: Option<Nanos>,
}

impl ChannelLayers {
    fn decrypt(&mut self, received: &[u8], now: Nanos, desk: &mut TlsBuffers) -> Result<ChannelState, ConnectFault> {
        let Some(session) = &mut self.tls else { return Ok(ChannelState::Data) };
        let was_ready = session.state == TlsState::Ready;
        Ok(match session.receive(received, desk)? {
            TlsProgress::Ended => ChannelState::Ended,
            TlsProgress::Waiting | TlsProgress::Open if was_ready => ChannelState::Data,
            TlsProgress::Waiting => ChannelState::Opening,
            TlsProgress::Open => {
                let resumed = session.connection.handshake_kind() == Some(HandshakeKind::Resumed);
                ChannelState::Ready(ChannelSetup {
                    tunnel_ready_at: self.tunnel_ready_at,
                    tls_ready_at: Some(now),
                    is_resumed: resumed,
                })
            }
        })
    }
}

/// The layers of one connection between socket and HTTP.
#[derive(Debug, Default)]
pub struct Channel(Option<Box<ChannelLayers>>);

impl Channel {
    /// Whether bytes pass unchanged, so that [`Channel::receive`] and [`Channel::encrypt`] need not be called.
    #[inline]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.0.is_none()
    }

    /// Whether [`Channel::on_connected`] needs the addresses, which cost a system call.
    #[must_use]
    pub fn needs_addresses(&self) -> bool {
        self.0.as_ref().is_some_and(|layers| layers.proxy_protocol.is_some())
    }

    /// Starts the layers once the socket is connected; the first bytes to send are in `desk.out`.
    ///
    /// # Errors
    /// [`ConnectFault::Tls`], if TLS cannot begin.
    pub fn on_connected(
        &mut self,
        ends: Option<ConnectionAddresses>,
        now: Nanos,
        desk: &mut TlsBuffers,
    ) -> Result<ChannelState, ConnectFault> {
        desk.plain.clear();
        let Some(layers) = &mut self.0 else { return Ok(ChannelState::Ready(ChannelSetup::default())) };
        if let Some(announcement) = layers.proxy_protocol.take() {
            announcement.write(ends, &mut desk.out);
        }
        if let Some((tunnel, _)) = &layers.tunnel {
            desk.out.extend_from_slice(tunnel.request());
            return Ok(ChannelState::Opening);
        }
        self.start_tls(now, desk)
    }

    /// Starts TLS, or completes the layers if there is none.
    fn start_tls(&mut self, now: Nanos, desk: &mut TlsBuffers) -> Result<ChannelState, ConnectFault> {
        let Some(layers) = self.0.as_mut().filter(|layers| layers.tls.is_some()) else {
            self.0 = None;
            return Ok(ChannelState::Ready(ChannelSetup::default()));
        };
        layers.decrypt(&[], now, desk)
    }

    /// Handles received bytes. Bytes for HTTP are then in [`TlsBuffers::plain`], bytes to send in [`TlsBuffers::out`].
    ///
    /// # Errors
    /// The connection has failed; [`TlsBuffers::out`] may hold the alert that tells the peer why.
    pub fn receive(
        &mut self,
        received: &[u8],
        now: Nanos,
        desk: &mut TlsBuffers,
    ) -> Result<ChannelState, ConnectFault> {
        desk.plain.clear();
        let Some(layers) = &mut self.0 else {
            desk.plain.extend_from_slice(received);
            return Ok(ChannelState::Data);
        };
        if let Some((_, answer)) = &mut layers.tunnel {
            if !answer.take(received)? {
                return Ok(ChannelState::Opening);
            }
            (layers.tunnel, layers.tunnel_ready_at) = (None, Some(now));
            return self.start_tls(now, desk);
        }
        layers.decrypt(received, now, desk)
    }

    /// Appends the encrypted form of these bytes to `desk.out`. Call this only once the channel is ready.
    ///
    /// # Errors
    /// [`ConnectFault::Tls`], if the keys are exhausted or the connection has ended.
    pub fn encrypt(&mut self, plain: &[u8], desk: &mut TlsBuffers) -> Result<(), ConnectFault> {
        if let Some(session) = self.0.as_mut().and_then(|layers| layers.tls.as_mut()) {
            return Ok(session.encrypt(plain, &mut desk.out)?);
        }
        desk.out.extend_from_slice(plain);
        Ok(())
    }

    /// The fault of a connection that ended before it was ready; `None` once it was.
    #[must_use]
    pub fn fault_if_closed(&self) -> Option<ConnectFault> {
        let layers = self.0.as_ref()?;
        match &layers.tls {
            _ if layers.tunnel.is_some() => Some(ProxyFault::Closed.into()),
            Some(session) if session.state == TlsState::Handshaking => Some(TlsFault::Closed.into()),
            _ => None,
        }
    }

    /// Whether TLS was left open: the peer has not announced the end of its data (RFC 8446 section 6.1).
    #[must_use]
    pub fn lacks_close_notify(&self) -> bool {
        self.0.as_ref().and_then(|layers| layers.tls.as_ref()).is_some_and(|session| !session.is_closed_by_peer)
    }

    /// Puts a close alert into `desk.out`, so that the server can tell a close from a truncation (RFC 8446 section 6.1).
    pub fn close_notify(&mut self, desk: &mut TlsBuffers) {
        if let Some(session) =
            self.0.as_mut().and_then(|layers| layers.tls.as_mut()).filter(|tls| tls.state == TlsState::Ready)
        {
            session.close_notify(&mut desk.out);
        }
    }

    /// The negotiated parameters of TLS, once ready.
    #[must_use]
    pub fn tls_parameters(&self) -> Option<TlsParameters> {
        let session = self.0.as_ref()?.tls.as_ref().filter(|tls| tls.state == TlsState::Ready)?;
        TlsParameters::of(&session.connection)
    }
}

/// The client side of TLS.
struct TlsSession {
    connection: UnbufferedClientConnection,
    /// The beginning of an incomplete record.
    partial: Vec<u8>,
    state: TlsState,
    is_closed_by_peer: bool,
}

/// The progress of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TlsState {
    /// The handshake is in progress.
    Handshaking,
    /// Requests may be sent.
    Ready,
    /// TLS has failed; the library must not be called again.
    Broken,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("standing", &self.state).finish_non_exhaustive()
    }
}

/// The result of processing received records.
enum TlsProgress {
    /// The handshake is in progress.
    Waiting,
    /// Requests may be sent.
    Open,
    /// The peer has sent a close alert.
    Ended,
}

impl TlsSession {
    fn new(config: &Arc<ClientConfig>, name: &ServerName<'static>) -> Result<Self, TlsFault> {
        let connection = UnbufferedClientConnection::new(Arc::clone(config), name.clone());
        let connection = connection.map_err(|error| TlsFault::from(&error))?;
        Ok(Self { connection, partial: Vec::new(), state: TlsState::Handshaking, is_closed_by_peer: false })
    }

    fn receive(&mut self, received: &[u8], desk: &mut TlsBuffers) -> Result<TlsProgress, TlsFault> {
        if self.state == TlsState::Broken {
            return Err(TlsFault::Closed);
        }
        desk.scratch.clear();
        desk.scratch.extend_from_slice(&self.partial);
        desk.scratch.extend_from_slice(received);
        let (n_used, heard) = self.process_records(desk);
        self.partial.clear();
        self.partial.extend_from_slice(&desk.scratch[n_used..]);
        let heard = heard.map_err(|error| TlsFault::from(&error)).and_then(|heard| self.advance(heard));
        if heard.is_err() {
            self.state = TlsState::Broken;
        }
        heard
    }

    fn advance(&mut self, heard: TlsProgress) -> Result<TlsProgress, TlsFault> {
        self.is_closed_by_peer |= matches!(heard, TlsProgress::Ended);
        match (self.state, heard) {
            (TlsState::Handshaking, TlsProgress::Ended) => Err(TlsFault::Closed),
            (TlsState::Handshaking, TlsProgress::Open) => {
                self.state = TlsState::Ready;
                // The certificates of the handshake may have made it large, and there are many connections.
                self.partial.shrink_to_fit();
                let is_other = |chosen: &[u8]| !chosen.starts_with(b"http/1.");
                if self.connection.alpn_protocol().is_some_and(is_other) {
                    return Err(TlsFault::OtherProtocol);
                }
                Ok(TlsProgress::Open)
            }
            (_, heard) => Ok(heard),
        }
    }

    /// Processes the records in the scratch buffer. Returns how many bytes are done, and the outcome.
    fn process_records(&mut self, desk: &mut TlsBuffers) -> (usize, Result<TlsProgress, rustls::Error>) {
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
                    append(&mut desk.out, RECORD_OVERHEAD, |room| data.encode(room));
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::WriteTraffic(_)) => Some(Ok(TlsProgress::Open)),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Some(Ok(TlsProgress::Ended)),
                Ok(_) => Some(Ok(TlsProgress::Waiting)),
                Err(error) => Some(Err(error)),
            };
            n_used += discard;
            match heard {
                None => {}
                Some(Err(error)) => {
                    // The alert that names the error, if there is one.
                    while self.connection.wants_write()
                        && let Ok(ConnectionState::EncodeTlsData(mut data)) =
                            self.connection.process_tls_records(&mut desk.scratch[n_used..]).state
                    {
                        append(&mut desk.out, RECORD_OVERHEAD, |room| data.encode(room));
                    }
                    return (n_used, Err(error));
                }
                Some(heard) => return (n_used, heard),
            }
        }
    }

    /// Calls `write` once all output of TLS itself is in `out`.
    fn write_when_ready(
        &mut self,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut WriteTraffic<'_, ClientConnectionData>, &mut Vec<u8>) -> Result<(), EncryptError>,
    ) -> Result<(), TlsFault> {
        if self.state == TlsState::Broken {
            return Err(TlsFault::Closed);
        }
        let mut n_used = 0;
        let spoken = loop {
            // The incomplete part is passed in again, because the library may already know a message within it.
            let status = self.connection.process_tls_records(&mut self.partial[n_used..]);
            n_used += status.discard;
            match status.state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => append(out, RECORD_OVERHEAD, |room| data.encode(room)),
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
            self.state = TlsState::Broken;
        }
        spoken
    }

    fn encrypt(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsFault> {
        let room = plain.len() + RECORD_OVERHEAD;
        self.write_when_ready(out, |traffic, out| try_append(out, room, |room| traffic.encrypt(plain, room)))
    }

    fn close_notify(&mut self, out: &mut Vec<u8>) {
        // Without the alert the connection ends all the same.
        let _ = self.write_when_ready(out, |traffic, out| {
            try_append(out, RECORD_OVERHEAD, |room| traffic.queue_close_notify(room))
        });
    }
}

/// The amount of missing room, for errors that report it.
trait BufferTooSmall {
    fn room_needed(&self) -> Option<usize>;
}

impl BufferTooSmall for EncodeError {
    fn room_needed(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::AlreadyEncoded => None,
        }
    }
}

impl BufferTooSmall for EncryptError {
    fn room_needed(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::EncryptExhausted => None,
        }
    }
}

/// Appends the output of `write`, with more room if it asks for it.
fn try_append<E: BufferTooSmall>(
    out: &mut Vec<u8>,
    room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> Result<(), E> {
    let begin = out.len();
    out.resize(begin + room, 0);
    let mut written = write(&mut out[begin..]);
    if let Some(room) = written.as_ref().err().and_then(BufferTooSmall::room_needed) {
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

//! The layer between a connection's socket and its requests: none, or TLS.

use std::sync::Arc;

use fathom_sys::socket::{self, Socket, Wait};
use rustls::{ServerConfig, ServerConnection};

/// The most bytes that are encrypted at once: a few records of 16 KiB, so that little ciphertext waits unsent.
const TLS_WRITE_BYTES: usize = 64 * 1024;

/// Whether all pending output was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlushState {
    All,
    /// The client must read some first.
    WouldBlock,
}

#[derive(Debug)]
pub(super) enum ServerStream {
    Plain,
    Tls(Box<TlsStream>),
}

/// A TLS session, with the ciphertext that the kernel has not taken yet.
#[derive(Debug)]
pub(super) struct TlsStream {
    session: ServerConnection,
    unsent: Vec<u8>,
}

/// The connection cannot continue. Its client is gone, so the reason is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamBroken;

impl ServerStream {
    pub(super) fn new(config: Option<&Arc<ServerConfig>>) -> Result<Self, StreamBroken> {
        let Some(config) = config else { return Ok(Self::Plain) };
        let session = ServerConnection::new(Arc::clone(config)).map_err(|_| StreamBroken)?;
        Ok(Self::Tls(Box::new(TlsStream { session, unsent: Vec::new() })))
    }

    pub(super) fn is_handshaking(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.session.is_handshaking())
    }

    /// Sends the output that precedes any further answer; counts the bytes that the kernel took.
    pub(super) fn flush(&mut self, socket: &Socket, n_sent: &mut u64) -> Result<FlushState, StreamBroken> {
        match self {
            Self::Plain => Ok(FlushState::All),
            Self::Tls(tls) => tls.flush(socket, n_sent),
        }
    }

    /// Sends some of `bytes`. Returns how many are done, or `None` if the client must read some first.
    pub(super) fn send(
        &mut self,
        socket: &Socket,
        bytes: &[u8],
        n_sent: &mut u64,
    ) -> Result<Option<usize>, StreamBroken> {
        match self {
            Self::Plain => {
                let sent = socket::send(socket, bytes, Wait::Never).map_err(|_| StreamBroken)?;
                *n_sent += sent.unwrap_or(0) as u64;
                Ok(sent)
            }
            Self::Tls(tls) => {
                if tls.flush(socket, n_sent)? == FlushState::WouldBlock {
                    return Ok(None);
                }
                let taken = tls.encrypt(bytes)?;
                // The session has buffered the data, whether the kernel takes it now or later.
                tls.flush(socket, n_sent)?;
                Ok(Some(taken))
            }
        }
    }

    /// Tells the client that nothing will follow.
    pub(super) fn close(&mut self, socket: &Socket, n_sent: &mut u64) {
        if let Self::Tls(tls) = self {
            tls.session.send_close_notify();
            // A client that does not take the close alert is gone.
            let _ = tls.collect_output().and_then(|()| tls.flush(socket, n_sent));
        }
    }
}

/// Whether the client keeps its direction open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerState {
    Open,
    Closed,
}

impl TlsStream {
    /// Decrypts received bytes into `plain`.
    pub(super) fn decrypt(&mut self, mut bytes: &[u8], plain: &mut Vec<u8>) -> Result<PeerState, StreamBroken> {
        let mut peer = PeerState::Open;
        while !bytes.is_empty() {
            if self.session.read_tls(&mut bytes).map_err(|_| StreamBroken)? == 0 {
                return Err(StreamBroken);
            }
            let Ok(state) = self.session.process_new_packets() else {
                // The alert that names the error.
                let _ = self.collect_output();
                return Err(StreamBroken);
            };
            if state.peer_has_closed() {
                peer = PeerState::Closed;
            }
            let begin = plain.len();
            plain.resize(begin + state.plaintext_bytes_to_read(), 0);
            std::io::Read::read_exact(&mut self.session.reader(), &mut plain[begin..]).map_err(|_| StreamBroken)?;
            if peer == PeerState::Closed {
                break;
            }
        }
        self.collect_output()?;
        Ok(peer)
    }

    fn encrypt(&mut self, bytes: &[u8]) -> Result<usize, StreamBroken> {
        let slice = &bytes[..bytes.len().min(TLS_WRITE_BYTES)];
        let taken = std::io::Write::write(&mut self.session.writer(), slice).map_err(|_| StreamBroken)?;
        self.collect_output()?;
        Ok(taken)
    }

    /// Collects the session's pending output.
    fn collect_output(&mut self) -> Result<(), StreamBroken> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.unsent).map_err(|_| StreamBroken)?;
        }
        Ok(())
    }

    fn flush(&mut self, socket: &Socket, n_sent: &mut u64) -> Result<FlushState, StreamBroken> {
        let mut done = 0;
        while done < self.unsent.len() {
            match socket::send(socket, &self.unsent[done..], Wait::Never).map_err(|_| StreamBroken)? {
                Some(count) => done += count,
                None => break,
            }
        }
        *n_sent += done as u64;
        self.unsent.drain(..done);
        if self.unsent.is_empty() {
            // A connection that once had a large answer does not keep the buffer for it.
            if self.unsent.capacity() > TLS_WRITE_BYTES / 4 {
                self.unsent = Vec::new();
            }
            return Ok(FlushState::All);
        }
        Ok(FlushState::WouldBlock)
    }
}

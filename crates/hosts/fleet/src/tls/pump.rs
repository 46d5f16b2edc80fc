//! Converts an encrypted stream to a plain one: one thread copies bytes between the two until both have ended.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
};

use fathom_model::units::Nanos;
use fathom_sys::reactor::epoll_wait::{Epoll, Interest, ReadyList};
use rustls::Connection;

/// The size of one read from the plain side, and the approximate size of its buffer: a TLS record.
const CHUNK: usize = 16 << 10;
/// The time for flushing the last bytes after the plain side is gone.
const FLUSH_TIMEOUT: Nanos = Nanos::from_secs(5);

const TCP: u64 = 0;
const PLAIN: u64 = 1;

/// The state of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectionState {
    Open,
    /// The source has finished sending.
    Ended,
    /// The destination has been notified of that.
    Closed,
}

struct Pump<'a> {
    tls: Connection,
    tcp: &'a TcpStream,
    plain: &'a UnixStream,
    /// Decrypted bytes that the plain side has not accepted yet.
    pending: Vec<u8>,
    /// The direction from the encrypted to the plain side.
    tls_to_plain: DirectionState,
    /// The direction from the plain to the encrypted side.
    plain_to_tls: DirectionState,
    /// The plain side accepts no more bytes.
    plain_closed: bool,
}

/// Copies bytes in both directions until both sides have ended, one has failed, or the plain side is gone; then closes both.
///
/// The end of one direction is forwarded on its own, so the other direction can still carry data.
pub(super) fn pump(tls: Connection, tcp: &TcpStream, plain: &UnixStream) -> io::Result<()> {
    let mut pump = Pump {
        tls,
        tcp,
        plain,
        pending: Vec::with_capacity(CHUNK),
        tls_to_plain: DirectionState::Open,
        plain_to_tls: DirectionState::Open,
        plain_closed: false,
    };
    let outcome = pump.run();
    // Peers that still wait on either side see the end; a side that is already closed is not an error.
    let _ = plain.shutdown(Shutdown::Both);
    let _ = tcp.shutdown(Shutdown::Both);
    outcome
}

/// Returns the number of bytes; `None` if none are available now.
fn none_if_would_block(moved: io::Result<usize>) -> io::Result<Option<usize>> {
    match moved {
        Ok(n) => Ok(Some(n)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Pump<'_> {
    fn run(&mut self) -> io::Result<()> {
        self.tcp.set_nonblocking(true)?;
        self.plain.set_nonblocking(true)?;
        let epoll = Epoll::new().map_err(|error| error.source)?;
        epoll.add(self.tcp, TCP, Interest::READ).map_err(|error| error.source)?;
        epoll.add(self.plain, PLAIN, Interest::READ).map_err(|error| error.source)?;
        let mut events = ReadyList::with_capacity(2);
        let mut is_plain_watched = true;
        loop {
            // Bytes decrypted during the handshake come first.
            self.forward_decrypted()?;
            self.forward_to_plain()?;
            self.forward_to_tls()?;
            if self.is_over() {
                return Ok(());
            }
            epoll.modify(self.tcp, TCP, self.tcp_interest()).map_err(|error| error.source)?;
            let watched = match (is_plain_watched, self.plain_interest()) {
                (true, Some(interest)) => epoll.modify(self.plain, PLAIN, interest),
                (false, Some(interest)) => epoll.add(self.plain, PLAIN, interest),
                (true, None) => epoll.remove(self.plain),
                (false, None) => Ok(()),
            };
            watched.map_err(|error| error.source)?;
            is_plain_watched = self.plain_interest().is_some();
            let patience = self.plain_closed.then_some(FLUSH_TIMEOUT);
            let n_events = epoll.wait(&mut events, patience).map_err(|error| error.source)?;
            if n_events == 0 && self.plain_closed {
                return Err(io::ErrorKind::TimedOut.into());
            }
            for event in events.iter() {
                if event.token == TCP && event.failed {
                    return Err(self.tcp.take_error()?.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()));
                }
                // A hang-up is reported even without interest: both directions are closed.
                if event.token == PLAIN && self.plain_to_tls != DirectionState::Open && event.readable {
                    self.close_plain();
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        let is_flushed = self.plain_to_tls == DirectionState::Closed && !self.tls.wants_write();
        is_flushed && (self.plain_closed || self.tls_to_plain == DirectionState::Closed)
    }

    fn tcp_interest(&self) -> Interest {
        Interest { read: self.has_room(), write: self.tls.wants_write(), edge: false }
    }

    /// The events to watch on the plain side; `None` to unwatch it, because its hang-up would be reported repeatedly.
    fn plain_interest(&self) -> Option<Interest> {
        let read = self.plain_to_tls == DirectionState::Open && !self.tls.wants_write();
        let write = !self.pending.is_empty();
        let awaits_hang_up = self.plain_to_tls != DirectionState::Open && !self.plain_closed;
        (read || write || awaits_hang_up).then_some(Interest { read, write, edge: false })
    }

    /// Returns whether there is room for more bytes from the socket.
    fn has_room(&self) -> bool {
        self.tls_to_plain == DirectionState::Open && !self.plain_closed && self.pending.len() < CHUNK
    }

    /// Copies from the socket to the plain side.
    fn forward_to_plain(&mut self) -> io::Result<()> {
        while self.has_room() {
            if none_if_would_block(self.tls.read_tls(&mut self.tcp))?.is_none() {
                break;
            }
            if let Err(error) = self.tls.process_new_packets() {
                // Send the alert that tells the other side the reason; the peer may be gone.
                let _ = self.tls.write_tls(&mut self.tcp);
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
            self.forward_decrypted()?;
        }
        Ok(())
    }

    /// Reads decrypted bytes, and writes as many as the plain side accepts.
    fn forward_decrypted(&mut self) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        while self.tls_to_plain == DirectionState::Open {
            match none_if_would_block(self.tls.reader().read(&mut chunk)) {
                Ok(Some(0)) => self.tls_to_plain = DirectionState::Ended,
                Ok(Some(n)) => self.pending.extend_from_slice(&chunk[..n]),
                Ok(None) => break,
                // Cut off instead of closed: this counts as the end too, and the protocol above detects whether it came too early.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.tls_to_plain = DirectionState::Ended,
                Err(error) => return Err(error),
            }
        }
        while !self.pending.is_empty() {
            match none_if_would_block(self.plain.write(&self.pending)) {
                Ok(Some(n)) => drop(self.pending.drain(..n)),
                Ok(None) => break,
                Err(_) => self.close_plain(),
            }
        }
        if self.tls_to_plain == DirectionState::Ended && self.pending.is_empty() {
            self.tls_to_plain = DirectionState::Closed;
            // If it is already closed, a read shows its end.
            let _ = self.plain.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Copies from the plain side to the socket; reads only after everything before was sent.
    fn forward_to_tls(&mut self) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        loop {
            while self.tls.wants_write() {
                if none_if_would_block(self.tls.write_tls(&mut self.tcp))?.is_none() {
                    return Ok(());
                }
            }
            match self.plain_to_tls {
                DirectionState::Closed => return Ok(()),
                DirectionState::Ended => {
                    self.plain_to_tls = DirectionState::Closed;
                    self.tls.send_close_notify();
                    continue;
                }
                DirectionState::Open => {}
            }
            match none_if_would_block(self.plain.read(&mut chunk)) {
                Ok(Some(0)) => self.plain_to_tls = DirectionState::Ended,
                Ok(Some(n)) => self.tls.writer().write_all(&chunk[..n])?,
                Ok(None) => return Ok(()),
                Err(_) => {
                    self.plain_to_tls = DirectionState::Ended;
                    self.close_plain();
                }
            }
        }
    }

    /// Marks that the plain side accepts no more bytes; its earlier bytes can still be read.
    fn close_plain(&mut self) {
        self.plain_closed = true;
        self.pending.clear();
    }
}

//! The handshake, as far as both sides share it: TLS with a total time limit.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
};

use fathom_model::units::Nanos;
use fathom_sys::clock;
use rustls::crypto::{CryptoProvider, ring};

/// The server's answer to the right token.
pub(super) const WELCOME: u8 = 1;
/// The server's answer to the right token if it has no free slot.
pub(super) const BUSY: u8 = 2;

/// How long the kernel retransmits on a path without replies: longer than the silence that ends a run.
pub(super) const UNACKNOWLEDGED_MAX: Nanos = Nanos::from_secs(10);

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A socket whose reads and writes end at a deadline, even if bytes trickle in.
pub(super) struct DeadlineStream<'a> {
    pub(super) tcp: &'a TcpStream,
    pub(super) deadline: Nanos,
}

impl DeadlineStream<'_> {
    fn time_left(&self) -> io::Result<Option<std::time::Duration>> {
        let left = self.deadline.since(clock::now());
        if left == Nanos::ZERO { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left.as_duration())) }
    }
}

/// The kernel reports `EAGAIN` for a timeout, which TLS would interpret as "later".
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(self.time_left()?)?;
        self.tcp.read(bytes).map_err(timed_out)
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(self.time_left()?)?;
        self.tcp.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! A socket that takes the frames, and a thread that reads them one by one, like a plain server.

use std::{
    io::ErrorKind,
    net::{IpAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use fathom_engine::{Error, WorkerHandle};
use fathom_sys::Result;

#[derive(Debug)]
pub(super) struct SocketReader(UdpSocket);

/// The index of the counter of delivered datagrams.
const DELIVERED: usize = 1;
/// The longest wait for a datagram between two checks for the end of the injection.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl SocketReader {
    pub(super) fn open(address: IpAddr) -> std::result::Result<Self, Error> {
        let socket = super::bind(address)?;
        let timeout = socket.set_read_timeout(Some(POLL_INTERVAL));
        timeout.map_err(|error| Error::System {
            what: "give a socket a time-out".to_owned(),
            cause: fathom_sys::Error::new("setsockopt(SO_RCVTIMEO)", error),
        })?;
        Ok(Self(socket))
    }

    /// Returns the destination port of datagrams. The fallback of 0 does not occur: the kernel always returns a port.
    pub(super) fn port(&self) -> u16 {
        self.0.local_addr().map_or(0, |address| address.port())
    }

    /// Reads until the last frame is injected and the socket is empty.
    pub(super) fn run(&self, worker: &WorkerHandle<'_>, is_injected: &AtomicBool) -> Result<()> {
        // Longer than any injected frame.
        let mut datagram = [0; 2_048];
        loop {
            match self.0.recv(&mut datagram) {
                Ok(_) => worker.add(DELIVERED, 1),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if is_injected.load(Ordering::Acquire) {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(fathom_sys::Error::new("recv", error)),
            }
        }
    }
}

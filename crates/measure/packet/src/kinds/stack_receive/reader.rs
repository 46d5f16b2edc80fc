//! A socket that takes the frames, and a thread that reads them one by one, as a plain server does.

use std::{
    io::ErrorKind,
    net::{IpAddr, UdpSocket},
    time::Duration,
};

use fathom_engine::{Error, WorkerHandle};
use fathom_sys::Result;

/// A socket that is read.
#[derive(Debug)]
pub(super) struct SocketReader(UdpSocket);

/// The place of what was read among the counters.
const DELIVERED: usize = 1;
/// How long to wait for a datagram before looking whether the trial is over.
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

    /// The port that datagrams are for; 0 when the kernel does not say, which it always does.
    pub(super) fn port(&self) -> u16 {
        self.0.local_addr().map_or(0, |address| address.port())
    }

    /// Reads until the trial is over and nothing is left.
    pub(super) fn run(&self, worker: &WorkerHandle<'_>) -> Result<()> {
        // As long as the longest frame that is injected.
        let mut datagram = [0; 2_048];
        loop {
            match self.0.recv(&mut datagram) {
                Ok(_) => worker.add(DELIVERED, 1),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if worker.is_over() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(fathom_sys::Error::new("recv", error)),
            }
        }
    }
}

//! The server: many clients at once, each with a limited set of threads.

mod acceptor;
mod options;
mod session;
mod state;

use std::{io, net::SocketAddr};

use fathom_engine::{Stop, StopFlag};
use fathom_sys::socket::{self, Domain, Protocol, Socket, Type};

use super::{Error, counts::TestObserver};

pub use options::{ClientFilter, ServerOptions};

/// The totals of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerTotals {
    /// Tests that were completed.
    pub finished: u64,
    /// Tests that were aborted or refused.
    pub failed: u64,
    /// Connections that were not clients, or exceeded the limit.
    pub rejected: u64,
}

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: Socket,
    datagrams: Socket,
    address: SocketAddr,
    options: ServerOptions,
}

/// The most connections waiting to be accepted.
const BACKLOG: i32 = 256;

impl Server {
    /// Listens for connections and datagrams on the same port; `::` accepts IPv4 as well.
    ///
    /// # Errors
    /// If the port is in use, or if this host does not have the address.
    pub fn bind(address: SocketAddr, device: Option<&str>, options: ServerOptions) -> Result<Self, Error> {
        let listen = |cause| Error::Listen { cause };
        let domain = Domain::for_address(address);
        let open = |kind, protocol, at: SocketAddr| -> io::Result<Socket> {
            let socket = Socket::new(domain, kind, Some(protocol))?;
            if let Some(device) = device {
                socket.bind_device(Some(device.as_bytes()))?;
            }
            if at.is_ipv6() {
                socket.set_only_v6(!at.ip().is_unspecified())?;
            }
            // Without SO_REUSEPORT: a second server on the same port is a mistake that must be reported.
            socket.set_reuse_address(true)?;
            socket.bind(&at.into())?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let listener = open(Type::STREAM, Protocol::TCP, address).map_err(listen)?;
        listener.listen(BACKLOG).map_err(listen)?;
        let address = socket::local_address(&listener)?;
        let datagrams = open(Type::DGRAM, Protocol::UDP, address).map_err(listen)?;
        Ok(Self { listener, datagrams, address, options })
    }

    /// The address that it listens on, with the actual port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is told to stop. Running tests are then aborted, and their clients are told.
    ///
    /// `watch` creates the observer of a test when a client has connected.
    ///
    /// # Errors
    /// Only errors that end the whole server: it has run out of descriptors.
    pub fn run(
        self,
        stop: &StopFlag,
        watch: &(dyn Fn() -> Box<dyn TestObserver> + Sync),
    ) -> Result<ServerTotals, Error> {
        acceptor::Acceptor::new(self)?.run(&|| stop.state() != Stop::Continue, watch)
    }
}

//! The server: many clients at once, each in its own bounded set of threads.

mod acceptor;
mod options;
mod session;
mod state;

use std::{io, net::SocketAddr};

use fathom_engine::{Stop, StopFlag};
use fathom_sys::socket::{self, Domain, Protocol, Socket, Type};

use super::{Error, counts::TestObserver};

pub use options::{ClientFilter, ServerOptions};

/// What became of the tests of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerTotals {
    /// Tests that came to their end.
    pub finished: u64,
    /// Tests that broke off or were refused.
    pub failed: u64,
    /// Connections that were no client, or one too many.
    pub rejected: u64,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: Socket,
    datagrams: Socket,
    address: SocketAddr,
    options: ServerOptions,
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 256;

impl Server {
    /// Listens for connections and for datagrams on the same port; `::` takes IPv4 as well.
    ///
    /// # Errors
    /// The port is in use, or the address is not of this host.
    pub fn bind(address: SocketAddr, (device, options): (Option<&str>, ServerOptions)) -> Result<Self, Error> {
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
            // Without SO_REUSEPORT: a second server on the same port is a mistake that must be seen.
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

    /// Where it listens, the port filled in.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until told to stop; tests under way are broken off then, and their clients are told.
    ///
    /// `watch` makes whoever looks on at a test, when a client has connected.
    ///
    /// # Errors
    /// Only what ends the whole server: descriptors have run out.
    pub fn run(
        self,
        stop: &StopFlag,
        watch: &(dyn Fn() -> Box<dyn TestObserver> + Sync),
    ) -> Result<ServerTotals, Error> {
        acceptor::Acceptor::new(self)?.run(&|| stop.state() != Stop::Continue, watch)
    }
}

//! The server: many clients at once, each with a limited set of threads.

mod acceptor;
mod options;
mod session;
mod state;

use std::{io, net::SocketAddr};

use fathom_engine::{Stop, StopFlag};
use fathom_sys::socket::{self, Listener, Socket, Type};

use super::{Error, counts::TestObserver};
use crate::sockets::{ServerTotals, open_dual_stack};

pub use options::ServerOptions;

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
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
        let open = |kind, at: SocketAddr| -> io::Result<Socket> {
            let socket = open_dual_stack(at, kind)?;
            if let Some(device) = device {
                socket.bind_device(Some(device.as_bytes()))?;
            }
            // Without SO_REUSEPORT: a second server on the same port is a mistake that must be reported.
            socket.set_reuse_address(true)?;
            socket.bind(&at.into())?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let listener = open(Type::STREAM, address).map_err(listen)?;
        let listener = Listener::new(listener, &options.guests)?;
        listener.start(BACKLOG).map_err(listen)?;
        let address = socket::local_address(&listener)?;
        let datagrams = open(Type::DGRAM, address).map_err(listen)?;
        options.guests.guard(&datagrams)?;
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

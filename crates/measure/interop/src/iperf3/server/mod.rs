//! The server: many clients at once, each in its own bounded set of threads.

mod acceptor;
mod session;
mod state;

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::Nanos;
use fathom_sys::socket::{self, Domain, Protocol, Socket, Type};

use super::{Authenticator, Error, counts::TestObserver};

/// Whom a server serves.
pub type ClientFilter = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// What a server allows.
#[derive(Clone)]
pub struct ServerOptions {
    /// The most clients at once; the next one hears that the server is busy.
    pub clients: usize,
    /// The most tests; the server ends by itself after them.
    pub tests: Option<u64>,
    /// How long it waits for a client before it ends by itself.
    pub idle: Option<Nanos>,
    /// Bits per second of all streams of a test together, averaged over so long.
    pub rate: Option<(u64, Nanos)>,
    /// The longest test in seconds.
    pub test_secs_max: Option<u32>,
    /// Which addresses are served; all others hear that the server is busy.
    pub is_client_allowed: Option<ClientFilter>,
    /// Who may test; anybody without it.
    pub authenticator: Option<Arc<Authenticator>>,
    /// The distance of reports.
    pub interval: Option<Nanos>,
    /// How long a receiver may hear nothing.
    pub receive_timeout: Nanos,
    /// The cores that streams run on, none for all.
    pub core: Option<usize>,
    /// What each stream sends, or where it writes what arrives; streams of TCP only.
    pub file: Option<PathBuf>,
}

/// The clients that are served at once unless it is said: each may have 256 threads.
const CLIENTS: usize = 16;

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            clients: CLIENTS,
            tests: None,
            idle: None,
            rate: None,
            test_secs_max: None,
            is_client_allowed: None,
            authenticator: None,
            interval: None,
            receive_timeout: super::client::RECEIVE_TIMEOUT,
            core: None,
            file: None,
        }
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("clients", &self.clients)
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}

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

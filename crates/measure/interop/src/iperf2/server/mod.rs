//! The server: many flows at once, each with its own beginning and end.
//!
//! Connections have a thread each. Datagrams of all senders arrive at one socket, and one thread accounts for them.

mod connection;
mod datagrams;
mod options;
mod state;

use std::{
    net::SocketAddr,
    os::fd::AsFd,
    sync::Arc,
    thread::{self, Scope},
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::threads,
    socket::{self, Listener, Socket, Type, socket_options},
};

use super::{Error, FlowTable, TransportProtocol};
use crate::sockets::{ServerTotals, canonical, open_dual_stack};
pub use options::{BackTraffic, ServedProtocols, ServerOptions};
use state::ServerState;

/// A listening server.
pub struct Server {
    connections: Option<Listener>,
    datagrams: Option<Socket>,
    address: SocketAddr,
    options: ServerOptions,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The most connections waiting to be accepted.
const BACKLOG: i32 = 256;
/// The most connections that are accepted before intervals are reported.
const ACCEPTS_MAX: usize = 64;
/// How soon the end is noticed, and how precisely intervals end.
const POLL_INTERVAL: Nanos = Nanos::from_millis(10);

impl Server {
    /// Listens for connections and datagrams on the same port; `::` accepts IPv4 as well.
    ///
    /// # Errors
    /// If the port is in use, if this host does not have the address, or if an option is refused.
    pub fn bind(address: SocketAddr, options: ServerOptions) -> Result<Self, Error> {
        let mut bound = address;
        let connections = match options.protocols {
            ServedProtocols::Udp => None,
            ServedProtocols::Tcp | ServedProtocols::Both => {
                let listener = Listener::new(open(address, &options, TransportProtocol::Tcp)?, &options.guests)?;
                listener.start(BACKLOG).map_err(|cause| Error::Listen { cause })?;
                bound = socket::local_address(&listener)?;
                Some(listener)
            }
        };
        let datagrams = match options.protocols {
            ServedProtocols::Tcp => None,
            ServedProtocols::Udp | ServedProtocols::Both => {
                let socket = open(bound, &options, TransportProtocol::Udp)?;
                bound = socket::local_address(&socket)?;
                Some(socket)
            }
        };
        Ok(Self { connections, datagrams, address: bound, options })
    }

    /// The address that it listens on, with the actual port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The size of the receive buffer that iperf shows.
    #[must_use]
    pub fn window(&self) -> Option<fathom_model::units::Bytes> {
        let connections = self.connections.as_ref().map(AsFd::as_fd);
        let socket = connections.or(self.datagrams.as_ref().map(AsFd::as_fd))?;
        // The kernel includes its overhead in buffer sizes, and so does iperf.
        socket::buffer(socket, socket::Buffer::Receive).ok().map(|size| fathom_model::units::Bytes(size.0 * 2))
    }

    /// Serves until it is told to stop; running flows are then ended.
    ///
    /// # Errors
    /// Only errors that end the whole server: it has run out of descriptors.
    pub fn run(self, stop: &StopFlag, table: &FlowTable<'_>) -> Result<ServerTotals, Error> {
        let Self { connections, datagrams, address, options } = self;
        let state = ServerState::new(options, address);
        thread::scope(|scope| {
            let (state, connections) = (&state, connections.as_ref());
            let datagrams = datagrams
                .map(|socket| {
                    threads::start_within(scope, "datagrams", move || datagrams::serve(scope, &socket, state, table))
                })
                .transpose()?;
            let outcome = loop {
                if stop.state() != Stop::Continue || state.is_complete() {
                    break Ok(());
                }
                if datagrams.as_ref().is_some_and(thread::ScopedJoinHandle::is_finished) {
                    break Ok(());
                }
                if let Some(Err(error)) = connections.map(|listener| accept(scope, listener, state, table)) {
                    break Err(error);
                }
                let next = table.tick(clock::now());
                clock::sleep_until(next.min(clock::now() + POLL_INTERVAL));
            };
            state.stop();
            let served = datagrams.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            outcome.and(served.unwrap_or(Ok(())))
        })?;
        Ok(state.totals())
    }
}

/// Hands the waiting connections to threads.
fn accept<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    listener: &Listener,
    state: &'env ServerState,
    table: &'env FlowTable<'_>,
) -> Result<(), Error> {
    for _ in 0..ACCEPTS_MAX {
        let Some((socket, from)) = socket::accept(listener)? else { break };
        let peer = canonical(from);
        let place = if state.is_welcome(peer.ip()) { state.admit().ok() } else { None };
        let Some(place) = place else {
            state.reject();
            continue;
        };
        let accepted = connection::Accepted { socket: Arc::new(socket), at: clock::now(), wall: clock::wall(), place };
        // Without a thread the connection is closed, and its place is free again.
        let _ = threads::start_within(scope, "connection", move || connection::serve(accepted, peer, state, table));
    }
    Ok(())
}

/// Opens a socket of the server; one for connections is not guarded and does not listen yet.
fn open(address: SocketAddr, options: &ServerOptions, protocol: TransportProtocol) -> Result<Socket, Error> {
    let kind = if protocol == TransportProtocol::Tcp { Type::STREAM } else { Type::DGRAM };
    let listen = |cause| Error::Listen { cause };
    if protocol == TransportProtocol::Udp {
        // A second UDP server of this user may share a port with SO_REUSEPORT: that is a mistake to report.
        open_dual_stack(address, kind).and_then(|socket| socket.bind(&address.into())).map_err(listen)?;
    }
    let socket = open_dual_stack(address, kind).map_err(listen)?;
    options.setup.apply(&socket, protocol)?;
    if protocol == TransportProtocol::Udp {
        options.guests.guard(&socket)?;
    }
    match protocol {
        TransportProtocol::Tcp => socket.set_reuse_address(true),
        // Flows that the server sends have its port too.
        TransportProtocol::Udp => socket.set_reuse_port(true),
    }
    .and_then(|()| socket.bind(&address.into()))
    .map_err(listen)?;
    if protocol == TransportProtocol::Udp {
        socket_options::set_first_of_port(&socket)?;
    }
    socket.set_nonblocking(protocol == TransportProtocol::Tcp).map_err(listen)?;
    Ok(socket)
}

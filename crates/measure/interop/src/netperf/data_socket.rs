//! The sockets of the data connection, at both ends.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
};

use fathom_model::units::Nanos;
use fathom_sys::{
    policy::{AllowedPeers, Destination},
    socket::{self, Listener, SockRef, Socket},
};
use fathom_transport::connection_setup::BLOCKING_TIMEOUT;

use super::{
    Error,
    test_spec::{DataProtocol, EndSettings},
};

/// The connections that may wait to be accepted: a client that opens one for each transaction has one at a time.
const BACKLOG: i32 = 128;
/// How long a connect may take.
const CONNECT_MAX: Nanos = Nanos::from_secs(10);

fn option(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |cause| Error::SocketOption { what, cause }
}

fn system(what: &'static str) -> impl FnOnce(fathom_sys::Error) -> Error {
    move |error| Error::SocketOption { what, cause: error.source }
}

/// Sets the options of one end, before anything is connected.
fn tune(socket: &Socket, protocol: DataProtocol, end: &EndSettings) -> Result<(), Error> {
    let bytes = |size: u32| usize::try_from(size).unwrap_or(usize::MAX);
    if let Some(size) = end.send_buffer {
        socket.set_send_buffer_size(bytes(size)).map_err(option("SO_SNDBUF"))?;
    }
    if let Some(size) = end.recv_buffer {
        socket.set_recv_buffer_size(bytes(size)).map_err(option("SO_RCVBUF"))?;
    }
    if protocol == DataProtocol::Tcp {
        if end.has_no_delay {
            socket.set_tcp_nodelay(true).map_err(option("TCP_NODELAY"))?;
        }
        if let Some(name) = &end.congestion {
            socket::set_congestion(socket, name).map_err(system("the congestion control"))?;
        }
    }
    if let Some(class) = end.traffic_class {
        socket::set_traffic_class(socket, class).map_err(system("the traffic class"))?;
    }
    Ok(())
}

/// Opens the client's data socket, bound to its port, and connects nothing.
pub(crate) fn open_client(
    server: SocketAddr,
    from: Option<IpAddr>,
    protocol: DataProtocol,
    end: &EndSettings,
) -> Result<Socket, Error> {
    let socket = match protocol {
        DataProtocol::Tcp => socket::stream(server)?,
        DataProtocol::Udp => socket::datagram_unbound(server)?,
    };
    tune(&socket, protocol, end)?;
    let any = if server.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    if protocol == DataProtocol::Udp || from.is_some() || end.port.is_some() {
        socket.set_reuse_address(true).map_err(option("SO_REUSEADDR"))?;
        let at = SocketAddr::new(from.unwrap_or(any), end.port.unwrap_or(0));
        socket.bind(&at.into()).map_err(|cause| Error::Data { cause })?;
    }
    if protocol == DataProtocol::Udp {
        socket::set_report_full_queues(&socket)?;
    }
    Ok(socket)
}

/// Connects the client's data socket to the port that the server named.
pub(crate) fn connect_client(socket: &Socket, protocol: DataProtocol, to: &Destination) -> Result<(), Error> {
    let connected = match protocol {
        DataProtocol::Tcp => socket::connect(socket, to, CONNECT_MAX),
        DataProtocol::Udp => socket::associate(socket, to),
    };
    connected.map_err(|error| Error::Data { cause: error.source })?;
    Ok(socket::set_timeout(socket, BLOCKING_TIMEOUT)?)
}

/// The server's socket, which only the guests reach.
pub(crate) enum ServerSocket {
    Listener(Listener),
    Datagrams(Socket),
}

impl AsFd for ServerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener(listener) => listener.as_fd(),
            Self::Datagrams(socket) => socket.as_fd(),
        }
    }
}

/// Opens the server's socket.
///
/// Without `SO_REUSEPORT`, so that no two tests share a port that both were told to use.
pub(crate) fn open_server(
    at: SocketAddr,
    protocol: DataProtocol,
    end: &EndSettings,
    guests: &AllowedPeers,
) -> Result<ServerSocket, Error> {
    let listen = |cause| Error::Listen { cause };
    let opened = match protocol {
        DataProtocol::Tcp => {
            let socket = socket::stream(at)?;
            tune(&socket, protocol, end)?;
            socket.set_reuse_address(true).map_err(option("SO_REUSEADDR"))?;
            socket.bind(&at.into()).map_err(listen)?;
            let listener = Listener::new(socket, guests)?;
            listener.start(BACKLOG).map_err(listen)?;
            ServerSocket::Listener(listener)
        }
        DataProtocol::Udp => {
            let socket = socket::datagram_unbound(at)?;
            guests.guard(&socket)?;
            tune(&socket, protocol, end)?;
            socket.bind(&at.into()).map_err(listen)?;
            ServerSocket::Datagrams(socket)
        }
    };
    socket::set_timeout(&opened, BLOCKING_TIMEOUT)?;
    Ok(opened)
}

/// The sizes of both buffers as the kernel reports them, twice the requested sizes: send, receive.
pub(crate) fn buffer_sizes(socket: impl AsFd) -> (i32, i32) {
    let socket = SockRef::from(&socket);
    let shown = |size: io::Result<usize>| size.ok().and_then(|size| i32::try_from(size).ok()).unwrap_or(-1);
    (shown(socket.send_buffer_size()), shown(socket.recv_buffer_size()))
}

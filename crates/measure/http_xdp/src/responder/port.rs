//! The port of a responder, kept from the sockets of this host.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, SocketAddrV6},
};

use fathom_engine::Error;
use fathom_sys::socket::{self, Socket};

/// A port at some addresses of this host. While this lives, no socket can listen there.
#[derive(Debug)]
pub(super) struct ReservedPort {
    addresses: Vec<SocketAddr>,
    /// Bound, and never listening: what a program passes up is refused by the kernel.
    _sockets: Vec<Socket>,
}

impl ReservedPort {
    /// Reserves a port at at least one address; 0 lets the kernel choose one. Link-local addresses are those of the device.
    pub(super) fn reserve(addresses: &[IpAddr], port: u16, ifindex: u32) -> Result<Self, Error> {
        let mut bound: Vec<(Socket, SocketAddr)> = Vec::new();
        for address in addresses {
            let port = bound.first().map_or(port, |(_, address)| address.port());
            bound.push(bind(with_scope(*address, port, ifindex))?);
        }
        let (sockets, addresses) = bound.into_iter().unzip();
        Ok(Self { addresses, _sockets: sockets })
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(super) fn number(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }
}

fn with_scope(address: IpAddr, port: u16, ifindex: u32) -> SocketAddr {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => SocketAddrV6::new(address, port, 0, ifindex).into(),
        other => SocketAddr::new(other, port),
    }
}

/// Binds a socket. Connections that ended lately are in the way of one that shares its address with none, so the second try shares it.
fn bind(address: SocketAddr) -> Result<(Socket, SocketAddr), Error> {
    let bound = try_bind(address, false).or_else(|_| try_bind(address, true));
    bound.map_err(|cause| refused(address, cause))
}

fn refused(address: SocketAddr, cause: fathom_sys::Error) -> Error {
    let unsupported = |what, hint: &str| Error::Unsupported { what, hint: Some(hint.to_owned()) };
    match cause.source.kind() {
        ErrorKind::AddrInUse => unsupported(
            format!("a socket of this host has {address}"),
            "choose another port, or stop the program that has it (ss -tlnp)",
        ),
        ErrorKind::AddrNotAvailable => {
            unsupported(format!("{} is no address of this host", address.ip()), "choose one that is (ip address)")
        }
        _ => Error::system(format!("reserve {address}"), "CAP_NET_BIND_SERVICE", cause),
    }
}

fn try_bind(address: SocketAddr, is_shared: bool) -> fathom_sys::Result<(Socket, SocketAddr)> {
    let failed = |call: &'static str| move |error| fathom_sys::Error::new(call, error);
    let socket = socket::stream(address)?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(failed("setsockopt(IPV6_V6ONLY)"))?;
    }
    socket.set_reuse_address(is_shared).map_err(failed("setsockopt(SO_REUSEADDR)"))?;
    socket.bind(&address.into()).map_err(failed("bind"))?;
    let bound = socket::local_address(&socket)?;
    Ok((socket, bound))
}

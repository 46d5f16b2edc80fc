//! Sockets and their addresses, the same for all tools.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use fathom_sys::socket::{self, Domain, Protocol, Socket, Type};

/// Decides which addresses a server serves.
pub type ClientFilter = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// The totals of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerTotals {
    /// Tests that were completed.
    pub finished: u64,
    /// Tests that were aborted or refused.
    pub failed: u64,
    /// Connections and datagrams that were not served.
    pub rejected: u64,
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns both addresses of a connected socket, the local one first, with mapped addresses as IPv4.
pub(crate) fn addresses(socket: &Socket) -> fathom_sys::Result<(SocketAddr, SocketAddr)> {
    let not_ip = || io::Error::from(io::ErrorKind::Unsupported);
    let remote = socket.peer_addr().and_then(|address| address.as_socket().ok_or_else(not_ip));
    let remote = remote.map_err(socket::error_of("getpeername"))?;
    Ok((canonical(socket::local_address(socket)?), canonical(remote)))
}

/// Creates a socket that is to be bound to an address: `::` takes IPv4 as well, another IPv6 address does not.
pub(crate) fn open_dual_stack(address: SocketAddr, kind: Type) -> io::Result<Socket> {
    let protocol = if kind == Type::STREAM { Protocol::TCP } else { Protocol::UDP };
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    Ok(socket)
}

/// Returns the wildcard address that takes connections of both families, or of IPv4 alone if this host has no IPv6.
#[must_use]
pub fn any_address() -> IpAddr {
    let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let at = SocketAddr::new(any, 0);
    let opened = open_dual_stack(at, Type::STREAM).and_then(|socket| socket.bind(&at.into()));
    if opened.is_ok() { any } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) }
}

/// Returns an error in the words of the C library, without the number that Rust appends.
pub(crate) fn os_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn an_error_has_no_number() {
        assert_eq!(os_error_text(&io::Error::from_raw_os_error(111)), "Connection refused");
        let text = "failed to lookup address information: Name or service not known";
        assert_eq!(os_error_text(&io::Error::other(text)), "Name or service not known");
    }

    #[test]
    fn the_wildcard_of_ipv6_takes_ipv4_too() {
        let bound = SocketAddr::new(any_address(), 0);
        if bound.is_ipv4() {
            return fathom_testkit::skip("needs IPv6");
        }
        let socket = open_dual_stack(bound, Type::DGRAM).unwrap();
        socket.bind(&bound.into()).unwrap();
        let port = socket::local_address(&socket).unwrap().port();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"x", ("127.0.0.1", port)).unwrap();
        let (count, sender) = socket::recv_from(&socket, &mut [0; 4], socket::Wait::Block).unwrap().unwrap();
        assert_eq!((count, canonical(sender.address().unwrap())), (1, client.local_addr().unwrap()));
    }
}

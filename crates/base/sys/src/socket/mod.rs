//! Sockets and their options.
//!
//! [`Socket`] and [`SockRef`] of the crate socket2 cover most options (`SockRef::from(&fd)` works on every descriptor). This module adds
//! the missing ones, and transfers that report "not now" without an error. Needs no privilege unless stated.

pub mod answer_source;
pub(crate) mod control_message;
pub mod datagram;
pub mod descriptor_passing;
pub mod echo;
pub(crate) mod listener;
mod peer;
pub mod raw_ip;
mod raw_option;
mod socket_name;
pub mod socket_options;
pub(crate) mod stamped_message;
pub mod super_frame;
pub mod tcp_info;
pub mod timestamping;
pub mod zero_copy;

use std::{
    ffi::c_int,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd},
    ptr,
};

use fathom_model::units::{BitsPerSec, Bytes, Nanos, approximate, rounded};
pub use listener::{Listener, accept, accept_blocking, accept_unnamed, are_connections_filtered, listen};
pub use peer::{PeerProcess, peer_process};
pub use raw_option::{drops, error_of};
pub(crate) use raw_option::{get, set};
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags},
};
pub use socket2::{Domain, Protocol, SockAddr, SockFilter, SockRef, Socket, Type};

use crate::{
    Error, Result,
    policy::{AllowedPeers, Destination},
};

/// Whether a transfer may wait; a wait ends by the socket's own timeout or by its shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until data can be transferred.
    Block,
    /// Not at all (`MSG_DONTWAIT`).
    Never,
}

impl Wait {
    /// The flag of a system call.
    fn flag(self) -> c_int {
        match self {
            Self::Block => 0,
            Self::Never => libc::MSG_DONTWAIT,
        }
    }
}

/// Creates a TCP socket in the family of `address`, not yet bound or connected.
///
/// # Errors
/// `socket`, if descriptors have run out or the family is not supported.
pub fn stream(address: SocketAddr) -> Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
        .map_err(error_of("socket(SOCK_STREAM)"))
}

/// Like `stream`, but with `O_NONBLOCK` from the start, which saves two system calls per connection.
///
/// # Errors
/// As [`stream`].
pub fn stream_nonblocking(address: SocketAddr) -> Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))
        .map_err(error_of("socket(SOCK_STREAM)"))
}

/// Creates a UDP socket in the family of `address`, not yet bound or connected.
///
/// # Errors
/// `socket`, if descriptors have run out or the family is not supported.
pub fn datagram_unbound(address: SocketAddr) -> Result<Socket> {
    Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP)).map_err(error_of("socket(SOCK_DGRAM)"))
}

/// Creates a UDP socket that is bound to `address` and accepts only its allowed peers.
///
/// # Errors
/// `socket` and `bind`, such as an address that is in use or not local.
pub fn datagram(address: SocketAddr, guests: &AllowedPeers) -> Result<Socket> {
    let socket = datagram_unbound(address)?;
    guests.guard(&socket)?;
    socket.bind(&address.into()).map_err(|error| Error::new(format!("bind({address})"), error))?;
    Ok(socket)
}

/// Lets a socket bind to an address that no interface has (`IP_FREEBIND`, `IPV6_FREEBIND`). Needs no privilege.
///
/// Answers arrive only if the address is local all the same, as by [`LocalNetwork`](crate::netlink::LocalNetwork).
///
/// # Errors
/// `setsockopt`, if it is not an IP socket.
pub fn set_freebind(socket: &Socket, address: IpAddr) -> Result<()> {
    let set = if address.is_ipv4() { socket.set_freebind_v4(true) } else { socket.set_freebind_v6(true) };
    set.map_err(error_of("setsockopt(IP_FREEBIND)"))
}

/// The address that a socket is bound to, with the port chosen by the kernel.
///
/// # Errors
/// `getsockname`, if it is not an IP socket.
pub fn local_address(socket: impl AsFd) -> Result<SocketAddr> {
    let not_ip = || io::Error::from(io::ErrorKind::Unsupported);
    let address = SockRef::from(&socket).local_addr().and_then(|address| address.as_socket().ok_or_else(not_ip));
    address.map_err(error_of("getsockname"))
}

/// Connects and waits for the result, at most `timeout`; the socket is blocking afterwards.
///
/// # Errors
/// `connect`: refused, unreachable, or timed out.
pub fn connect(socket: &Socket, to: &Destination, timeout: Nanos) -> Result<()> {
    let connected = socket.connect_timeout(to.raw(), timeout.as_duration());
    connected.map_err(|error| Error::new(format!("connect({to})"), error))
}

/// Connects a datagram socket, so that it sends to and receives from a single peer.
///
/// # Errors
/// `connect`: no route, or a firewall.
pub fn associate(socket: &Socket, with: &Destination) -> Result<()> {
    socket.connect(with.raw()).map_err(error_of("connect"))
}

/// Returns the address that the kernel sends from to an IP destination, by its routes. Sends nothing.
///
/// # Errors
/// `connect`, without a route; `getsockname`, if it is not an IP destination.
pub fn source_towards(to: &Destination) -> Result<IpAddr> {
    let family = to.address().map_or(Domain::UNIX, Domain::for_address);
    let probe = Socket::new(family, Type::DGRAM, None).map_err(error_of("socket"))?;
    associate(&probe, to)?;
    local_address(&probe).map(|address| address.ip())
}

/// The state of a connect that nobody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connect {
    /// Connected at once.
    Done,
    /// In progress; once the socket is writable, [`connect_result`] has the result.
    Pending,
}

/// Starts to connect a non-blocking socket; on a blocking one, waits for the result up to its timeout.
///
/// On a blocking socket, another call continues to wait for a pending connect.
///
/// # Errors
/// `connect`: refused at once (loopback), no route, or no free local port (`EADDRNOTAVAIL`).
pub fn connect_begin(socket: &Socket, to: &Destination) -> Result<Connect> {
    match socket.connect(to.raw()) {
        Ok(()) => Ok(Connect::Done),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EALREADY | libc::EINTR)) => {
            Ok(Connect::Pending)
        }
        Err(error) => Err(Error::new("connect", error)),
    }
}

/// Resets a TCP connection at once, even if a thread waits on it; other sockets are not affected.
pub fn abort(socket: &Socket) {
    // An error from an unconnected or non-TCP socket can be ignored.
    let _ = rustix::net::connect_unspec(socket);
}

/// The result of a pending connect, once the socket is writable (`SO_ERROR`).
///
/// # Errors
/// The error of the connect: refused, unreachable, timed out.
pub fn connect_result(socket: &Socket) -> Result<()> {
    match socket.take_error() {
        Ok(None) => Ok(()),
        Ok(Some(error)) => Err(Error::new("connect", error)),
        Err(error) => Err(Error::new("getsockopt(SO_ERROR)", error)),
    }
}

/// Sends from a buffer; `None` means not now (buffer full, timeout, or a signal while blocking).
///
/// A broken connection is an error, never a signal (`MSG_NOSIGNAL`).
///
/// # Errors
/// `send`: reset by the peer, shut down, or `ENOBUFS`.
pub fn send(socket: impl AsFd, bytes: &[u8], wait: Wait) -> Result<Option<usize>> {
    let flags = match wait {
        Wait::Block => SendFlags::NOSIGNAL,
        Wait::Never => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    };
    not_now(rustix::net::send(socket, bytes, flags), "send")
}

/// Sends the last bytes before a close, so that the FIN goes out in the same segment (`MSG_MORE`) instead of a separate one.
///
/// A partial segment waits for the close, at most 200 ms.
///
/// # Errors
/// As [`send`].
pub fn send_last(socket: impl AsFd, bytes: &[u8], wait: Wait) -> Result<Option<usize>> {
    let flags = match wait {
        Wait::Block => SendFlags::NOSIGNAL | SendFlags::MORE,
        Wait::Never => SendFlags::NOSIGNAL | SendFlags::MORE | SendFlags::DONTWAIT,
    };
    not_now(rustix::net::send(socket, bytes, flags), "send")
}

/// Receives into a buffer; `None` means not now, zero bytes mean the end of the stream.
///
/// # Errors
/// `recv`: reset by the peer, or a refused datagram (`ECONNREFUSED`).
pub fn recv(socket: impl AsFd, bytes: &mut [u8], wait: Wait) -> Result<Option<usize>> {
    let flags = match wait {
        Wait::Block => RecvFlags::empty(),
        Wait::Never => RecvFlags::DONTWAIT,
    };
    not_now(rustix::net::recv(socket, bytes, flags).map(|(count, _)| count), "recv")
}

/// Like `recv`, but leaves the bytes for the next receive (`MSG_PEEK`).
///
/// # Errors
/// As [`recv`].
pub fn peek(socket: impl AsFd, bytes: &mut [u8], wait: Wait) -> Result<Option<usize>> {
    let flags = match wait {
        Wait::Block => RecvFlags::PEEK,
        Wait::Never => RecvFlags::PEEK | RecvFlags::DONTWAIT,
    };
    not_now(rustix::net::recv(socket, bytes, flags).map(|(count, _)| count), "recv")
}

/// The sender of a datagram, as the destination of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender(rustix::net::SocketAddrAny);

impl Sender {
    /// Only a source of received data may be answered, so only this crate creates one.
    pub(crate) fn of(address: SocketAddr) -> Self {
        Self(address.into())
    }

    /// Its address; `None` for a local socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.clone().try_into().ok()
    }
}

/// Receives a datagram with its sender; `None` means not now. Bytes that do not fit are discarded.
///
/// # Errors
/// `recvfrom`, such as the refusal of an earlier datagram.
pub fn recv_from(socket: impl AsFd, bytes: &mut [u8], wait: Wait) -> Result<Option<(usize, Sender)>> {
    let flags = if wait == Wait::Block { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    let received = not_now(rustix::net::recvfrom(socket, bytes, flags), "recvfrom")?;
    Ok(received.and_then(|(count, _, from)| Some((count, Sender(from?)))))
}

/// Sends a datagram back to a sender; `None` means not now.
///
/// # Errors
/// `sendto`: the route is gone, or the datagram is too long for the path.
pub fn send_to(socket: impl AsFd, bytes: &[u8], to: &Sender, wait: Wait) -> Result<Option<usize>> {
    let flags = if wait == Wait::Block { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
    not_now(rustix::net::sendto(socket, bytes, flags, &to.0), "sendto")
}

/// Creates a UDP socket like [`datagram`] that may share its port with other sockets of this user (`SO_REUSEPORT`).
///
/// # Errors
/// As [`datagram`].
pub fn datagram_sharing(address: SocketAddr, guests: &AllowedPeers) -> Result<Socket> {
    let socket = datagram_unbound(address)?;
    guests.guard(&socket)?;
    socket.set_reuse_port(true).map_err(error_of("setsockopt(SO_REUSEPORT)"))?;
    socket.bind(&address.into()).map_err(|error| Error::new(format!("bind({address})"), error))?;
    Ok(socket)
}

/// Receives at most `count` bytes from a TCP socket and discards them without copying (`MSG_TRUNC`, see tcp(7)).
///
/// This saves the copy to user space, so it measures less than the cost of an application: a result must state its use.
///
/// # Errors
/// As [`recv`].
pub fn discard(socket: impl AsFd, count: Bytes, wait: Wait) -> Result<Option<usize>> {
    let flags = match wait {
        Wait::Block => libc::MSG_TRUNC,
        Wait::Never => libc::MSG_TRUNC | libc::MSG_DONTWAIT,
    };
    let count = usize::try_from(count.0).unwrap_or(usize::MAX);
    // SAFETY: with MSG_TRUNC, TCP never writes to the buffer, so it may be null.
    let received = unsafe { libc::recv(socket.as_fd().as_raw_fd(), ptr::null_mut(), count, flags) };
    match usize::try_from(received) {
        Ok(count) => Ok(Some(count)),
        Err(_) => not_now(Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)), "recv"),
    }
}

/// Turns "try again" into `None`.
pub(crate) fn not_now<T>(outcome: std::result::Result<T, Errno>, call: &'static str) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(Error::new(call, error)),
    }
}

/// One of a socket's two buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// The buffer of received bytes that have not been read (`SO_RCVBUF`).
    Receive,
    /// The buffer of sent bytes that have not been acknowledged (`SO_SNDBUF`).
    Send,
}

/// Fixes the size of a buffer (which disables auto-tuning) and returns the size that the kernel granted.
///
/// Sizes above `net.core.rmem_max` and `wmem_max` need `CAP_NET_ADMIN`. Without it the kernel silently grants less, so compare the result
/// with the request.
///
/// # Errors
/// `setsockopt`, if it is not a socket.
pub fn set_buffer(socket: impl AsFd, buffer: Buffer, size: Bytes) -> Result<Bytes> {
    let (name, forced) = match buffer {
        Buffer::Receive => (libc::SO_RCVBUF, libc::SO_RCVBUFFORCE),
        Buffer::Send => (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE),
    };
    let size = c_int::try_from(size.0).unwrap_or(c_int::MAX / 2);
    if set(&socket, (libc::SOL_SOCKET, forced), &size).is_err() {
        set(&socket, (libc::SOL_SOCKET, name), &size).map_err(error_of("setsockopt(SO_RCVBUF or SO_SNDBUF)"))?;
    }
    self::buffer(socket, buffer)
}

/// The size of a buffer, without the half that the kernel adds for its bookkeeping.
///
/// # Errors
/// `getsockopt`, if it is not a socket.
pub fn buffer(socket: impl AsFd, buffer: Buffer) -> Result<Bytes> {
    let socket = SockRef::from(&socket);
    let (size, call) = match buffer {
        Buffer::Receive => (socket.recv_buffer_size(), "getsockopt(SO_RCVBUF)"),
        Buffer::Send => (socket.send_buffer_size(), "getsockopt(SO_SNDBUF)"),
    };
    size.map(|size| Bytes(u64::try_from(size).unwrap_or(u64::MAX) / 2)).map_err(error_of(call))
}

/// Selects the congestion control of a TCP connection, such as `cubic`.
///
/// Algorithms outside `net.ipv4.tcp_allowed_congestion_control` need `CAP_NET_ADMIN`.
///
/// # Errors
/// `setsockopt(TCP_CONGESTION, name)`: `ENOENT` if the kernel does not have it.
pub fn set_congestion(socket: impl AsFd, name: &str) -> Result<()> {
    SockRef::from(&socket)
        .set_tcp_congestion(name.as_bytes())
        .map_err(|error| Error::new(format!("setsockopt(TCP_CONGESTION, {name})"), error))
}

/// The congestion control in use.
///
/// # Errors
/// `getsockopt(TCP_CONGESTION)`, if it is not a TCP socket.
pub fn congestion(socket: impl AsFd) -> Result<String> {
    let name = SockRef::from(&socket).tcp_congestion().map_err(error_of("getsockopt(TCP_CONGESTION)"))?;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Limits the pacing rate of the kernel, in whole bytes per second.
///
/// TCP paces itself; for UDP the limit only works with the fq queueing discipline.
///
/// # Errors
/// `setsockopt(SO_MAX_PACING_RATE)`, if it is not a socket.
pub fn set_max_pacing_rate(socket: impl AsFd, rate: BitsPerSec) -> Result<()> {
    let bytes_per_sec = rounded(rate.get() / 8.0);
    set(socket, (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE), &bytes_per_sec)
        .map_err(error_of("setsockopt(SO_MAX_PACING_RATE)"))
}

/// The limit of the pacing rate; `None` if there is no limit.
///
/// # Errors
/// `getsockopt(SO_MAX_PACING_RATE)`, if it is not a socket.
pub fn max_pacing_rate(socket: impl AsFd) -> Result<Option<BitsPerSec>> {
    let mut rate = [0_u64];
    get(socket, (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE), &mut rate)
        .map_err(error_of("getsockopt(SO_MAX_PACING_RATE)"))?;
    Ok(Some(rate[0]).filter(|&rate| rate != u64::MAX).and_then(|rate| BitsPerSec::new(approximate(rate) * 8.0)))
}

/// Defers the choice of the local port to connect, so that ports are shared between destinations.
///
/// # Errors
/// `setsockopt(IP_BIND_ADDRESS_NO_PORT)`, if it is not an IP socket.
pub fn set_bind_address_no_port(socket: impl AsFd) -> Result<()> {
    set(socket, (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT), &1)
        .map_err(error_of("setsockopt(IP_BIND_ADDRESS_NO_PORT)"))
}

/// Sets the traffic class (DSCP and ECN bits) of sent packets, with the option of the socket's family.
///
/// # Errors
/// `setsockopt(IP_TOS)` or `setsockopt(IPV6_TCLASS)`, if it is not an IP socket.
pub fn set_traffic_class(socket: impl AsFd, class: u8) -> Result<()> {
    let socket = SockRef::from(&socket);
    if socket.domain().map_err(error_of("getsockopt(SO_DOMAIN)"))? == Domain::IPV6 {
        socket.set_tclass_v6(class.into()).map_err(error_of("setsockopt(IPV6_TCLASS)"))
    } else {
        socket.set_tos_v4(class.into()).map_err(error_of("setsockopt(IP_TOS)"))
    }
}

/// Forbids fragmentation of datagrams sent by an IPv4 socket (`IP_PMTUDISC_DO`); an IPv6 socket is not changed.
///
/// # Errors
/// `setsockopt(IP_MTU_DISCOVER)`, if it is not an IP socket.
pub fn set_dont_fragment(socket: impl AsFd) -> Result<()> {
    if SockRef::from(&socket).domain().map_err(error_of("getsockopt(SO_DOMAIN)"))? != Domain::IPV4 {
        return Ok(());
    }
    set(socket, (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER), &libc::IP_PMTUDISC_DO)
        .map_err(error_of("setsockopt(IP_MTU_DISCOVER)"))
}

/// Sets the timeout of blocking sends and receives.
///
/// # Errors
/// `setsockopt(SO_RCVTIMEO)` and `setsockopt(SO_SNDTIMEO)`, if it is not a socket.
pub fn set_timeout(socket: impl AsFd, timeout: Nanos) -> Result<()> {
    let socket = SockRef::from(&socket);
    let timeout = Some(timeout.as_duration());
    socket.set_read_timeout(timeout).map_err(error_of("setsockopt(SO_RCVTIMEO)"))?;
    socket.set_write_timeout(timeout).map_err(error_of("setsockopt(SO_SNDTIMEO)"))
}

/// Makes close reset the connection, without `TIME_WAIT`; unread and unsent bytes are discarded.
///
/// # Errors
/// `setsockopt(SO_LINGER)`, if it is not a socket.
pub fn set_reset_on_close(socket: impl AsFd) -> Result<()> {
    SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).map_err(error_of("setsockopt(SO_LINGER)"))
}

/// Enables the kernel's drop counter on each datagram (`SO_RXQ_OVFL`).
///
/// The counter arrives with the next datagram queued after the drop; [`drops`] also includes drops at the end.
///
/// # Errors
/// `setsockopt(SO_RXQ_OVFL)`, if it is not a socket.
pub fn set_report_drops(socket: impl AsFd) -> Result<()> {
    set(socket, (libc::SOL_SOCKET, libc::SO_RXQ_OVFL), &1).map_err(error_of("setsockopt(SO_RXQ_OVFL)"))
}

/// Makes a datagram that finds the queue of the device full an error of its send, `ENOBUFS` (`IP_RECVERR`, see ip(7)).
///
/// Without it the kernel drops the datagram and reports success (`ip_send_skb` of Linux).
///
/// # Errors
/// `setsockopt(IP_RECVERR)` or `setsockopt(IPV6_RECVERR)`, if it is not an IP socket.
pub fn set_report_full_queues(socket: impl AsFd) -> Result<()> {
    let is_v6 = SockRef::from(&socket).domain().map_err(error_of("getsockopt(SO_DOMAIN)"))? == Domain::IPV6;
    if is_v6 {
        set(&socket, (libc::IPPROTO_IPV6, libc::IPV6_RECVERR), &1).map_err(error_of("setsockopt(IPV6_RECVERR)"))
    } else {
        set(&socket, (libc::IPPROTO_IP, libc::IP_RECVERR), &1).map_err(error_of("setsockopt(IP_RECVERR)"))
    }
}

/// Enables the kernel's receive time on each datagram, on `CLOCK_REALTIME` (`SO_TIMESTAMPNS`).
///
/// # Errors
/// `setsockopt(SO_TIMESTAMPNS)`, if it is not a socket.
pub fn set_report_time(socket: impl AsFd) -> Result<()> {
    set(socket, (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS), &1).map_err(error_of("setsockopt(SO_TIMESTAMPNS)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::anywhere;
    use crate::{
        clock,
        reactor::epoll_wait::{Epoll, Interest, ReadyList},
    };

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
    const SECOND: Nanos = Nanos::from_secs(1);

    fn wait_for(socket: impl AsFd, interest: Interest) {
        let (epoll, mut events) = (Epoll::new().unwrap(), ReadyList::with_capacity(1));
        epoll.add(&socket, 0, interest).unwrap();
        assert_eq!(epoll.wait(&mut events, Some(SECOND)).unwrap(), 1);
    }

    fn pair() -> (Socket, Socket) {
        let listener = listen(LOOPBACK, 8, &AllowedPeers::anybody()).unwrap();
        let near = stream(LOOPBACK).unwrap();
        connect(&near, &anywhere(local_address(&listener).unwrap()), SECOND).unwrap();
        wait_for(&listener, Interest::READ);
        (near, accept(&listener).unwrap().unwrap().0)
    }

    #[test]
    fn listeners_share_a_port_and_have_no_connection_at_first() {
        let first = listen(LOOPBACK, 8, &AllowedPeers::anybody()).unwrap();
        let second = listen(local_address(&first).unwrap(), 8, &AllowedPeers::anybody()).unwrap();
        assert_eq!(local_address(&first).unwrap(), local_address(&second).unwrap());
        assert!(accept(&first).unwrap().is_none());
        assert!(accept_unnamed(&first).unwrap().is_none());
    }

    #[test]
    fn a_connect_without_waiting_tells_its_outcome_when_writable() {
        let listener = listen(LOOPBACK, 8, &AllowedPeers::anybody()).unwrap();
        let near = stream(LOOPBACK).unwrap();
        near.set_nonblocking(true).unwrap();
        connect_begin(&near, &anywhere(local_address(&listener).unwrap())).unwrap();
        wait_for(&near, Interest::WRITE);
        connect_result(&near).unwrap();
    }

    #[test]
    fn a_refused_connection_names_the_address() {
        let listener = listen(LOOPBACK, 8, &AllowedPeers::anybody()).unwrap();
        let address = local_address(&listener).unwrap();
        drop(listener);
        let near = stream(address).unwrap();
        let error = connect(&near, &anywhere(address), SECOND).unwrap_err();
        assert_eq!(error.to_string(), format!("connect({address})"));
        assert_eq!(error.errno(), Some(libc::ECONNREFUSED));
    }

    #[test]
    fn nothing_to_receive_is_not_an_error_and_the_end_is_zero_bytes() {
        let (near, far) = pair();
        let mut bytes = [0; 8];
        assert_eq!(recv(&far, &mut bytes, Wait::Never).unwrap(), None);
        assert_eq!(send(&near, b"hello", Wait::Block).unwrap(), Some(5));
        wait_for(&far, Interest::READ);
        assert_eq!(recv(&far, &mut bytes, Wait::Never).unwrap(), Some(5));
        assert_eq!(&bytes[..5], b"hello");
        drop(near);
        wait_for(&far, Interest::READ);
        assert_eq!(recv(&far, &mut bytes, Wait::Block).unwrap(), Some(0));
    }

    #[test]
    fn a_datagram_says_where_it_came_from() {
        let (near, far) = (
            datagram(LOOPBACK, &AllowedPeers::anybody()).unwrap(),
            datagram(LOOPBACK, &AllowedPeers::anybody()).unwrap(),
        );
        set_timeout(&far, SECOND).unwrap();
        near.send_to(b"hello", &local_address(&far).unwrap().into()).unwrap();
        let from = local_address(&near).unwrap();
        let mut bytes = [0; 4];
        let (count, sender) = recv_from(&far, &mut bytes, Wait::Block).unwrap().unwrap();
        assert_eq!((count, sender.address()), (4, Some(from)), "cut to the room for it");
        assert_eq!(&bytes, b"hell");
        set_timeout(&far, Nanos::from_millis(1)).unwrap();
        assert_eq!(recv_from(&far, &mut bytes, Wait::Block).unwrap(), None);
    }

    #[test]
    fn discarded_bytes_are_counted() {
        let (near, far) = pair();
        send(&near, &[7; 3000], Wait::Block).unwrap();
        wait_for(&far, Interest::READ);
        assert_eq!(discard(&far, Bytes(1000), Wait::Never).unwrap(), Some(1000));
        assert_eq!(discard(&far, Bytes(9000), Wait::Never).unwrap(), Some(2000));
        assert_eq!(discard(&far, Bytes(9000), Wait::Never).unwrap(), None);
    }

    #[test]
    fn a_blocking_receive_gives_up_after_its_time_out() {
        let (near, _far) = pair();
        set_timeout(&near, Nanos::from_millis(20)).unwrap();
        let begin = clock::now();
        assert_eq!(recv(&near, &mut [0; 8], Wait::Block).unwrap(), None);
        assert!(clock::now() - begin >= Nanos::from_millis(19));
    }

    #[test]
    fn a_reset_connection_is_an_error_that_names_the_call() {
        let (near, far) = pair();
        set_reset_on_close(&near).unwrap();
        drop(near);
        wait_for(&far, Interest::READ);
        let error = recv(&far, &mut [0; 8], Wait::Never).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.errno()), ("recv", Some(libc::ECONNRESET)));
        assert_eq!(send(&far, b"x", Wait::Never).unwrap_err().errno(), Some(libc::EPIPE));
    }

    #[test]
    fn options_are_read_back_as_they_were_granted() {
        let (near, _far) = pair();
        assert_eq!(set_buffer(&near, Buffer::Receive, Bytes(100_000)).unwrap(), Bytes(100_000));
        assert_eq!(set_buffer(&near, Buffer::Send, Bytes(50_000)).unwrap(), Bytes(50_000));
        set_congestion(&near, "reno").unwrap();
        assert_eq!(congestion(&near).unwrap(), "reno");
        assert_eq!(set_congestion(&near, "none").unwrap_err().to_string(), "setsockopt(TCP_CONGESTION, none)");
        assert_eq!(max_pacing_rate(&near).unwrap(), None);
        set_max_pacing_rate(&near, BitsPerSec::new(8e6).unwrap()).unwrap();
        assert_eq!(max_pacing_rate(&near).unwrap(), BitsPerSec::new(8e6));
        set_traffic_class(&near, 0xb8).unwrap();
        assert_eq!(near.tos_v4().unwrap(), 0xb8);
        set_bind_address_no_port(stream(LOOPBACK).unwrap()).unwrap();
    }

    #[test]
    fn the_kernel_counts_the_datagrams_that_a_full_buffer_drops() {
        let far = datagram(LOOPBACK, &AllowedPeers::anybody()).unwrap();
        set_buffer(&far, Buffer::Receive, Bytes(4096)).unwrap();
        let near = datagram(LOOPBACK, &AllowedPeers::anybody()).unwrap();
        near.connect(&local_address(&far).unwrap().into()).unwrap();
        for _ in 0..100 {
            send(&near, &[0; 1000], Wait::Never).unwrap();
        }
        let mut received = 0;
        while recv(&far, &mut [0; 1000], Wait::Never).unwrap().is_some() {
            received += 1;
        }
        assert_eq!(received + drops(&far).unwrap(), 100);
        assert!(received < 100);
    }
}

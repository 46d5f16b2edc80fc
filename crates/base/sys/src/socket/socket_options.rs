//! Socket options that are only set for measurements: device, keepalive, busy polling, flow label, Multipath TCP.
//!
//! Every option can be read back, so that a test can verify it. Needs no privilege unless stated.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    time::Duration,
};

use fathom_model::units::{Bytes, Nanos};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::{
    Error, Result,
    policy::Destination,
    socket::{self, error_of, raw_option},
};

/// Creates a Multipath TCP socket (RFC 8684) in the family of `address`, not yet bound or connected.
///
/// # Errors
/// `socket(IPPROTO_MPTCP)`: Linux before 5.6, or `net.mptcp.enabled` is 0 (`ENOPROTOOPT`).
pub fn multipath_stream(address: SocketAddr) -> Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::MPTCP))
        .map_err(error_of("socket(IPPROTO_MPTCP)"))
}

/// Like `multipath_stream`, but with `O_NONBLOCK` from the start.
///
/// # Errors
/// As [`multipath_stream`].
pub fn multipath_stream_nonblocking(address: SocketAddr) -> Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::MPTCP))
        .map_err(error_of("socket(IPPROTO_MPTCP)"))
}

/// Returns whether a connection still uses Multipath TCP and has not fallen back to TCP (Linux 5.16, `MPTCP_INFO`).
///
/// # Errors
/// `getsockopt(SO_PROTOCOL)`, if it is not a socket.
pub fn is_multipath(socket: impl AsFd) -> Result<bool> {
    const SOL_MPTCP: i32 = 284;
    const MPTCP_INFO: i32 = 1;
    // `struct mptcp_info`: eight one-byte counters, then flags; the first flag marks a fallback.
    const FLAGS: usize = 2;
    let protocol = SockRef::from(&socket).protocol().map_err(error_of("getsockopt(SO_PROTOCOL)"))?;
    if protocol != Some(Protocol::MPTCP) {
        return Ok(false);
    }
    let mut info = [0_u32; 16];
    // A socket that has fallen back responds like a TCP socket, which does not know the level.
    let answer = socket::get(socket, (SOL_MPTCP, MPTCP_INFO), &mut info);
    Ok(answer.is_ok() && info[FLAGS] & 1 == 0)
}

/// Makes the kernel give the datagrams for a shared port to the socket that was bound first (`SO_ATTACH_REUSEPORT_CBPF`).
///
/// Sockets of the port (`SO_REUSEPORT`) that are connected get those of their peer all the same. Without this, one that is not connected yet
/// takes a part of the datagrams of all others.
///
/// # Errors
/// `setsockopt(SO_ATTACH_REUSEPORT_CBPF)`, if the socket does not share its port or is not bound.
pub fn set_first_of_port(socket: impl AsFd) -> Result<()> {
    // The result of the program is the index of the socket (`include/uapi/linux/bpf_common.h`: BPF_RET | BPF_K).
    let mut program = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
    raw_option::set_program(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &mut program)
        .map_err(error_of("setsockopt(SO_ATTACH_REUSEPORT_CBPF)"))
}

/// Restricts a socket to the device of its destination, if that has one (`SO_BINDTODEVICE`).
///
/// # Errors
/// `setsockopt(SO_BINDTODEVICE, name)`: no such device (`ENODEV`), or Linux before 5.7 without `CAP_NET_RAW`.
pub fn bind_to_device(socket: impl AsFd, to: &Destination) -> Result<()> {
    let Some(name) = to.device() else { return Ok(()) };
    SockRef::from(&socket)
        .bind_device(Some(name.as_bytes()))
        .map_err(|error| Error::new(format!("setsockopt(SO_BINDTODEVICE, {name})"), error))
}

/// The device that a socket is bound to.
///
/// # Errors
/// `getsockopt(SO_BINDTODEVICE)`, if it is not a socket.
pub fn device(socket: impl AsFd) -> Result<Option<String>> {
    let name = SockRef::from(&socket).device().map_err(error_of("getsockopt(SO_BINDTODEVICE)"))?;
    Ok(name.map(|name| String::from_utf8_lossy(name.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()))
}

/// Limits sent and requested segments to `size` bytes (`TCP_MAXSEG`); accepted connections inherit it from a listener.
///
/// # Errors
/// `setsockopt(TCP_MAXSEG)`: less than 88 or more than 32767 bytes (`EINVAL`).
pub fn set_segment_max(socket: impl AsFd, size: Bytes) -> Result<()> {
    let size = u32::try_from(size.0).unwrap_or(u32::MAX);
    SockRef::from(&socket).set_tcp_mss(size).map_err(error_of("setsockopt(TCP_MAXSEG)"))
}

/// Breaks a connection whose bytes stay unacknowledged for this long (`TCP_USER_TIMEOUT`, RFC 5482).
///
/// # Errors
/// `setsockopt(TCP_USER_TIMEOUT)`, if it is not a TCP socket.
pub fn set_unacknowledged_max(socket: impl AsFd, span: Nanos) -> Result<()> {
    let span = Some(span.as_duration());
    SockRef::from(&socket).set_tcp_user_timeout(span).map_err(error_of("setsockopt(TCP_USER_TIMEOUT)"))
}

/// Sends keepalive probes on a connection idle for this long, and again at this interval, in whole seconds (RFC 9293 section 3.8.4).
///
/// # Errors
/// `setsockopt(TCP_KEEPIDLE)`: less than 1 s or more than 32767 s (`EINVAL`).
pub fn set_keepalive(socket: impl AsFd, idle: Nanos) -> Result<()> {
    let idle = Duration::from_secs(idle.0 / 1_000_000_000);
    SockRef::from(&socket)
        .set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(idle))
        .map_err(error_of("setsockopt(SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL)"))
}

/// The idle time before keepalive probes; `None` if they are off.
///
/// # Errors
/// `getsockopt(SO_KEEPALIVE)`, if it is not a TCP socket.
pub fn keepalive(socket: impl AsFd) -> Result<Option<Nanos>> {
    let socket = SockRef::from(&socket);
    if !socket.keepalive().map_err(error_of("getsockopt(SO_KEEPALIVE)"))? {
        return Ok(None);
    }
    let idle = socket.tcp_keepalive_time().map_err(error_of("getsockopt(TCP_KEEPIDLE)"))?;
    Ok(Some(Nanos::from_secs(idle.as_secs())))
}

/// Wakes a TCP receiver only once this many bytes have arrived or the stream has ended (`SO_RCVLOWAT`); at least 1.
///
/// A blocking receive still ends at its own timeout with the bytes so far. The kernel limits the value to half of the buffer, and wakes the
/// receiver earlier if the window is nearly closed (`tcp_data_ready`).
///
/// # Errors
/// `setsockopt(SO_RCVLOWAT)`, if it is not a socket.
pub fn set_wake(socket: impl AsFd, bytes: Bytes) -> Result<()> {
    let bytes = i32::try_from(bytes.0).unwrap_or(i32::MAX);
    socket::set(socket, (libc::SOL_SOCKET, libc::SO_RCVLOWAT), &bytes).map_err(error_of("setsockopt(SO_RCVLOWAT)"))
}

/// The number of bytes that wakes a receiver.
///
/// # Errors
/// `getsockopt(SO_RCVLOWAT)`, if it is not a socket.
pub fn wake(socket: impl AsFd) -> Result<Bytes> {
    let mut bytes = [0_u32];
    socket::get(socket, (libc::SOL_SOCKET, libc::SO_RCVLOWAT), &mut bytes)
        .map_err(error_of("getsockopt(SO_RCVLOWAT)"))?;
    Ok(Bytes(bytes[0].into()))
}

/// Makes a blocking receive poll the device for this long, in whole microseconds, before it sleeps (`SO_BUSY_POLL`).
///
/// A device without NAPI, such as loopback, cannot be polled; [`is_polled`] shows that.
///
/// # Errors
/// `setsockopt(SO_BUSY_POLL)`: values above `net.core.busy_read` need `CAP_NET_ADMIN`.
pub fn set_busy_poll(socket: impl AsFd, span: Nanos) -> Result<()> {
    let micros = i32::try_from(span.0 / 1_000).unwrap_or(i32::MAX);
    socket::set(socket, (libc::SOL_SOCKET, libc::SO_BUSY_POLL), &micros).map_err(error_of("setsockopt(SO_BUSY_POLL)"))
}

/// The polling time of a blocking receive.
///
/// # Errors
/// `getsockopt(SO_BUSY_POLL)`, if it is not a socket.
pub fn busy_poll(socket: impl AsFd) -> Result<Nanos> {
    let mut micros = [0_u32];
    socket::get(socket, (libc::SOL_SOCKET, libc::SO_BUSY_POLL), &mut micros)
        .map_err(error_of("getsockopt(SO_BUSY_POLL)"))?;
    Ok(Nanos::from_micros(micros[0].into()))
}

/// Returns whether received data came through a queue that can be polled (`SO_INCOMING_NAPI_ID`, Linux 4.12).
///
/// # Errors
/// `getsockopt(SO_INCOMING_NAPI_ID)`, if it is not a socket.
pub fn is_polled(socket: impl AsFd) -> Result<bool> {
    let mut id = [0_u32];
    socket::get(socket, (libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID), &mut id)
        .map_err(error_of("getsockopt(SO_INCOMING_NAPI_ID)"))?;
    Ok(id[0] != 0)
}

/// `struct in6_flowlabel_req` (`include/uapi/linux/in6.h`): destination, label in network order, action, share, flags, two times.
type LabelRequest = [u32; 8];

/// Leases a flow label for an address to this socket, and returns the address with the label for connecting (RFC 6437).
///
/// # Errors
/// `setsockopt(IPV6_FLOWLABEL_MGR)` or `setsockopt(IPV6_FLOWINFO_SEND)`: an IPv4 address, a label above 0xfffff (`EINVAL`), or a label
/// leased by another program (`EPERM`).
pub fn set_flow_label(socket: impl AsFd, to: &Destination, label: u32) -> Result<Destination> {
    const CALL: &str = "setsockopt(IPV6_FLOWLABEL_MGR)";
    const CREATE_IF_MISSING: u16 = 1;
    const SHARED_BY_ANYONE: u8 = 255;
    let Some(SocketAddr::V6(mut address)) = to.address() else {
        return Err(Error::new(CALL, io::Error::from_raw_os_error(libc::EAFNOSUPPORT)));
    };
    let mut request: LabelRequest = [0; 8];
    request[..4].copy_from_slice(&words(*address.ip()));
    request[4] = label.to_be();
    let [low, high] = CREATE_IF_MISSING.to_ne_bytes();
    // Action 0 gets the label.
    request[5] = u32::from_ne_bytes([0, SHARED_BY_ANYONE, low, high]);
    socket::set(&socket, (libc::IPPROTO_IPV6, libc::IPV6_FLOWLABEL_MGR), &request).map_err(error_of(CALL))?;
    socket::set(&socket, (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND), &1)
        .map_err(error_of("setsockopt(IPV6_FLOWINFO_SEND)"))?;
    address.set_flowinfo(label.to_be());
    Ok(to.labelled(address))
}

/// An address in memory layout.
fn words(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    [0, 4, 8, 12].map(|at: usize| u32::from_ne_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]))
}

/// The flow label of a connected socket's packets; `None` for the kernel's own choice.
///
/// # Errors
/// `getpeername`, if it is not connected.
pub fn flow_label(socket: &Socket) -> Result<Option<u32>> {
    let peer = socket.peer_addr().map_err(error_of("getpeername"))?;
    let label = peer.as_socket_ipv6().map(|peer| u32::from_be(peer.flowinfo()) & 0xf_ffff);
    Ok(label.filter(|label| *label != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{AllowedPeers, Policy, anywhere};

    fn loopback(version: u8) -> SocketAddr {
        let text = if version == 4 { "127.0.0.1:0" } else { "[::1]:0" };
        text.parse().unwrap()
    }

    fn connected(near: &Socket, to: SocketAddr, label: Option<u32>) -> socket::Listener {
        let listener = socket::listen(to, 4, &AllowedPeers::anybody()).unwrap();
        let mut at = socket::local_address(&listener).unwrap();
        if let Some(label) = label {
            at = set_flow_label(near, &anywhere(at), label).unwrap().address().unwrap();
        }
        socket::connect(near, &anywhere(at), Nanos::from_secs(1)).unwrap();
        listener
    }

    fn through(device: &str) -> Destination {
        Policy::anything().permit_through(device, loopback(4)).unwrap()
    }

    #[test]
    fn what_is_set_is_read_back() {
        let near = socket::stream(loopback(4)).unwrap();
        assert_eq!((keepalive(&near).unwrap(), device(&near).unwrap()), (None, None));
        set_keepalive(&near, Nanos::from_secs(7)).unwrap();
        assert_eq!(keepalive(&near).unwrap(), Some(Nanos::from_secs(7)));
        bind_to_device(&near, &anywhere(loopback(4))).unwrap();
        assert_eq!(device(&near).unwrap(), None, "no device was asked for");
        bind_to_device(&near, &through("lo")).unwrap();
        assert_eq!(device(&near).unwrap().as_deref(), Some("lo"));
        match set_busy_poll(&near, Nanos::from_micros(50)) {
            Ok(()) => assert_eq!(busy_poll(&near).unwrap(), Nanos::from_micros(50)),
            Err(error) => assert!(error.is_permission(), "{error:?}"),
        }
        assert!(!is_polled(&near).unwrap());
        set_wake(&near, Bytes(10_000)).unwrap();
        assert_eq!(wake(&near).unwrap(), Bytes(10_000));
    }

    #[test]
    fn the_first_socket_of_a_port_takes_what_no_connected_one_does() {
        let bound_at = |port| {
            let socket = socket::datagram_unbound(loopback(4)).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket.bind(&SocketAddr::new(loopback(4).ip(), port).into()).unwrap();
            socket
        };
        let first = bound_at(0);
        set_first_of_port(&first).unwrap();
        let at = socket::local_address(&first).unwrap();
        let others: Vec<Socket> = (0..8).map(|_| bound_at(at.port())).collect();
        let clients: Vec<std::net::UdpSocket> =
            (0..64).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        for client in &clients {
            assert_eq!(client.send_to(b"x", at).unwrap(), 1);
        }
        for other in &others {
            assert_eq!(socket::recv_from(other, &mut [0], socket::Wait::Never).unwrap().map(|(n, _)| n), None);
        }
        for _ in &clients {
            assert!(socket::recv_from(&first, &mut [0], socket::Wait::Never).unwrap().is_some());
        }
        socket::associate(&others[0], &anywhere(clients[0].local_addr().unwrap())).unwrap();
        clients[0].send_to(b"x", at).unwrap();
        assert!(socket::recv_from(&others[0], &mut [0], socket::Wait::Never).unwrap().is_some());
        let alone = socket::datagram_unbound(loopback(4)).unwrap();
        assert!(set_first_of_port(&alone).is_err(), "it does not share a port");
    }

    #[test]
    fn an_unknown_device_is_named() {
        let error = bind_to_device(socket::stream(loopback(4)).unwrap(), &through("none0")).unwrap_err();
        assert_eq!(error.to_string(), "setsockopt(SO_BINDTODEVICE, none0)");
        assert_eq!(error.errno(), Some(libc::ENODEV));
    }

    #[test]
    fn a_flow_label_goes_with_what_is_sent() {
        let near = socket::stream(loopback(6)).unwrap();
        let _listener = connected(&near, loopback(6), Some(0xabcde));
        assert_eq!(flow_label(&near).unwrap(), Some(0xabcde));
        let other = socket::stream(loopback(4)).unwrap();
        let error = set_flow_label(&other, &anywhere(loopback(4)), 1).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EAFNOSUPPORT));
        let _listener = connected(&other, loopback(4), None);
        assert_eq!(flow_label(&other).unwrap(), None);
    }

    #[test]
    fn multipath_is_told_from_what_fell_back_to_tcp() {
        let Ok(near) = multipath_stream(loopback(4)) else {
            fathom_testkit::skip_everywhere("this kernel has no Multipath TCP");
            return;
        };
        let _plain = connected(&near, loopback(4), None);
        assert!(!is_multipath(&near).unwrap(), "the listener speaks TCP only");
        let listener = multipath_stream(loopback(4)).unwrap();
        listener.bind(&loopback(4).into()).unwrap();
        listener.listen(4).unwrap();
        let near = multipath_stream(loopback(4)).unwrap();
        socket::connect(&near, &anywhere(socket::local_address(&listener).unwrap()), Nanos::from_secs(1)).unwrap();
        assert!(is_multipath(&near).unwrap());
        assert!(!is_multipath(socket::stream(loopback(4)).unwrap()).unwrap());
    }
}

//! Listeners, and the connections that they let in.
//!
//! Every accept of this workspace goes through a [`Listener`], so that no connection of a stranger is served: either the kernel keeps
//! strangers away, or the listener resets their connections before a byte is read or written. It knows no protocol.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
};

use rustix::{io::Errno, net::SocketFlags};
use socket2::Socket;

use super::{error_of, not_now, set_reset_on_close, stream};
use crate::{
    Error, Result,
    policy::{AllowedPeers, Guard, Network, Unfiltered},
};

/// The most connections of strangers that one call resets, so that a flood of them keeps no caller from its other work.
const STRANGERS_AT_ONCE: usize = 64;

/// A socket that lets in its allowed peers alone; it takes options like any socket.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// The peers to let in, if the kernel does not keep all others away.
    check: Option<Box<AllowedPeers>>,
}

impl Listener {
    /// Guards a socket that does not listen yet.
    ///
    /// # Errors
    /// `setsockopt(SO_ATTACH_FILTER)`, if it is not a TCP socket and not everyone is allowed.
    pub fn new(socket: Socket, guests: &AllowedPeers) -> Result<Self> {
        let guard = guests.guard_listener(&socket)?;
        Ok(Self { socket, check: (guard == Guard::Program).then(|| Box::new(guests.clone())) })
    }

    /// Guards an MPTCP socket, which has no filter: connections are judged by the address of their first path.
    ///
    /// A peer that was let in may add paths from other addresses, which prove that they belong to it (RFC 8684 section 3.2), but not that
    /// they are allowed. Where sending to them would be wrong, do not listen.
    #[must_use]
    pub fn multipath(socket: Socket, guests: &AllowedPeers) -> Self {
        Self {
            socket,
            check: (guests.leave_to_program(Unfiltered::Multipath) == Guard::Program).then(|| Box::new(guests.clone())),
        }
    }

    /// Lets connections queue.
    ///
    /// # Errors
    /// `listen`: the port is in use.
    pub fn start(&self, backlog: i32) -> io::Result<()> {
        self.socket.listen(backlog)
    }

    /// Whether the program refuses strangers, because the kernel does not.
    #[must_use]
    pub const fn is_checked(&self) -> bool {
        self.check.is_some()
    }

    pub(crate) fn into_parts(self) -> (Socket, Option<Box<AllowedPeers>>) {
        (self.socket, self.check)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Accepts one connection; `None` if it was a stranger's.
pub(crate) fn accept_checked(
    listener: &Socket,
    check: Option<&AllowedPeers>,
    flags: SocketFlags,
) -> rustix::io::Result<Option<Socket>> {
    if check.is_none() {
        return rustix::net::accept_with(listener, flags).map(|socket| Some(socket.into()));
    }
    // The kernel tells the address even if the peer has closed the connection since.
    let (socket, from) = rustix::net::acceptfrom_with(listener, flags)?;
    Ok(let_in(check, socket.into(), |_| from.and_then(|from| from.try_into().ok())))
}

/// Returns an accepted connection, or resets it if it is a stranger's.
pub(crate) fn let_in(
    check: Option<&AllowedPeers>,
    socket: Socket,
    from: impl FnOnce(&Socket) -> Option<SocketAddr>,
) -> Option<Socket> {
    let is_let_in = |check: &AllowedPeers| from(&socket).is_some_and(|from| check.let_in(from.ip()));
    if check.is_none_or(is_let_in) {
        return Some(socket);
    }
    // Without the option the stranger sees a regular end, and is served as little.
    let _ = set_reset_on_close(&socket);
    None
}

/// Whether the kernel keeps strangers from the TCP listeners of this user; otherwise listeners reset their connections.
///
/// # Errors
/// `socket`, if descriptors have run out.
pub fn are_connections_filtered() -> Result<bool> {
    let socket = stream(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let guests = AllowedPeers::of(vec![Network::LOOPBACK_V4]);
    Listener::new(socket, &guests).map(|listener| !listener.is_checked())
}

/// Creates a non-blocking TCP listener for its allowed peers, which may share its port with other sockets of this user (`SO_REUSEPORT`).
///
/// The kernel limits `backlog` to net.core.somaxconn.
///
/// # Errors
/// `bind` and `listen`, such as a port in use by a listener without `SO_REUSEPORT`.
pub fn listen(address: SocketAddr, backlog: u16, guests: &AllowedPeers) -> Result<Listener> {
    let listener = Listener::new(stream(address)?, guests)?;
    let socket = &listener.socket;
    socket.set_reuse_address(true).map_err(error_of("setsockopt(SO_REUSEADDR)"))?;
    socket.set_reuse_port(true).map_err(error_of("setsockopt(SO_REUSEPORT)"))?;
    socket.bind(&address.into()).map_err(|error| Error::new(format!("bind({address})"), error))?;
    socket.listen(backlog.into()).map_err(|error| Error::new(format!("listen({address})"), error))?;
    socket.set_nonblocking(true).map_err(error_of("fcntl(O_NONBLOCK)"))?;
    Ok(listener)
}

/// Accepts a waiting connection as a non-blocking socket; `None` if none waits, or for now none of an allowed peer.
///
/// Connections that the peer has already given up are skipped.
///
/// # Errors
/// `accept4`, if descriptors have run out.
pub fn accept(listener: &Listener) -> Result<Option<(Socket, SocketAddr)>> {
    let mut n_strangers = 0;
    while n_strangers < STRANGERS_AT_ONCE {
        match listener.socket.accept4(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) {
            Ok((socket, from)) => {
                let from = from.as_socket();
                let admitted = let_in(listener.check.as_deref(), socket, |_| from);
                match (admitted, from) {
                    (Some(socket), from) => return Ok(from.map(|from| (socket, from))),
                    (None, _) => n_strangers += 1,
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(None),
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                _ => return Err(Error::new("accept4", error)),
            },
        }
    }
    Ok(None)
}

/// Like `accept`, for listeners of every family (TCP, `AF_UNIX`), without the peer's address.
///
/// # Errors
/// As [`accept`].
pub fn accept_unnamed(listener: &Listener) -> Result<Option<Socket>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let mut n_strangers = 0;
    while n_strangers < STRANGERS_AT_ONCE {
        match accept_checked(&listener.socket, listener.check.as_deref(), flags) {
            Ok(Some(socket)) => return Ok(Some(socket)),
            Ok(None) => n_strangers += 1,
            Err(Errno::CONNABORTED | Errno::INTR) => {}
            Err(error) => return not_now(Err(error), "accept4"),
        }
    }
    Ok(None)
}

/// Waits for a connection on a blocking listener, at most for its timeout; the new socket is blocking and inherits that timeout.
///
/// `None` also after a stranger's connection.
///
/// # Errors
/// As [`accept`].
pub fn accept_blocking(listener: &Listener) -> Result<Option<Socket>> {
    match accept_checked(&listener.socket, listener.check.as_deref(), SocketFlags::CLOEXEC) {
        Ok(socket) => Ok(socket),
        Err(Errno::CONNABORTED) => Ok(None),
        Err(error) => not_now(Err(error), "accept4"),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read as _},
        net::{IpAddr, TcpStream},
    };

    use fathom_model::units::Nanos;
    use socket2::{Domain, SockRef, Type};

    use super::*;
    use crate::{
        policy::{Policy, ResolvedNames},
        reactor::epoll_wait::{Epoll, Interest, ReadyList},
        socket::{Wait, datagram, local_address, send, set_timeout},
    };

    const WAIT: Nanos = Nanos::from_secs(5);

    fn guests(networks: &[&str]) -> AllowedPeers {
        AllowedPeers::of(networks.iter().map(|network| network.parse().unwrap()).collect())
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Connects from an address of this machine, sends the first bytes, and waits until the connection can be accepted.
    fn connected(from: &str, listener: &Listener) -> TcpStream {
        let from: IpAddr = from.parse().unwrap();
        let mut to = local_address(listener).unwrap();
        if to.ip().is_unspecified() {
            to.set_ip(if from.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
        }
        let near = stream(to).unwrap();
        near.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        near.connect(&to.into()).unwrap();
        set_timeout(&near, WAIT).unwrap();
        send(&near, b"hello", Wait::Block).unwrap();
        let (epoll, mut events) = (Epoll::new().unwrap(), ReadyList::with_capacity(1));
        epoll.add(listener, 0, Interest::READ).unwrap();
        assert_eq!(epoll.wait(&mut events, Some(WAIT)).unwrap(), 1);
        near.into()
    }

    fn is_reset(mut peer: TcpStream) -> bool {
        peer.read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
    }

    /// Accepts in each of the three ways; the peer's address of what was let in.
    fn accepted(listener: &Listener, way: usize) -> Option<SocketAddr> {
        SockRef::from(listener).set_nonblocking(way != 2).unwrap();
        set_timeout(listener, WAIT).unwrap();
        let socket = match way {
            0 => accept(listener).unwrap().map(|(socket, _)| socket),
            1 => accept_unnamed(listener).unwrap(),
            _ => accept_blocking(listener).unwrap(),
        };
        socket.map(|socket| socket.peer_addr().unwrap().as_socket().unwrap())
    }

    #[test]
    fn strangers_are_reset_and_guests_let_in_where_the_kernel_filters_nothing() {
        let cases = [
            ("127.0.0.1:0", &["127.0.0.9"][..], ("127.0.0.8", "127.0.0.9")),
            ("127.0.0.1:0", &["::/0", "127.0.0.0/30"], ("127.0.0.4", "127.0.0.3")),
            ("[::]:0", &["127.0.0.9"], ("::1", "127.0.0.9")),
            ("[::]:0", &["::1"], ("127.0.0.1", "::1")),
        ];
        for ((at, networks, (stranger, guest)), way) in
            cases.into_iter().flat_map(|case| (0..3).map(move |way| (case, way)))
        {
            let listener = listen(address(at), 8, &guests(networks).without_filter()).unwrap();
            assert!(listener.is_checked());
            let stranger = connected(stranger, &listener);
            // Only the call that waits for one connection returns without it.
            assert_eq!(accepted(&listener, way), None, "{at} {networks:?}");
            assert!(is_reset(stranger), "{at} {networks:?}");
            let guest = connected(guest, &listener);
            let seen = accepted(&listener, way).expect("a guest is let in");
            assert_eq!(
                (seen.ip().to_canonical(), seen.port()),
                (guest.local_addr().unwrap().ip(), guest.local_addr().unwrap().port())
            );
        }
    }

    #[test]
    fn strangers_before_a_guest_are_skipped_but_a_flood_of_them_does_not_hold_the_caller() {
        let listener = listen(address("127.0.0.1:0"), 256, &guests(&["127.0.0.9"]).without_filter()).unwrap();
        let strangers: Vec<_> = (0..3 * STRANGERS_AT_ONCE / 2).map(|_| connected("127.0.0.8", &listener)).collect();
        let _guest = connected("127.0.0.9", &listener);
        assert!(accept(&listener).unwrap().is_none(), "only so many at once");
        assert_eq!(accept(&listener).unwrap().unwrap().1.ip().to_string(), "127.0.0.9");
        assert!(strangers.into_iter().all(is_reset));
    }

    #[test]
    fn connections_of_strangers_are_counted_for_the_role() {
        let policy = Policy::anything().of_one_role(ResolvedNames::new());
        assert_eq!(policy.n_reset(), None);
        let guests = policy.guests(&["127.0.0.9".parse().unwrap()], None).without_filter();
        let listeners = [0, 1].map(|_| listen(address("127.0.0.1:0"), 8, &guests).unwrap());
        assert_eq!(policy.n_reset(), Some(0));
        for listener in &listeners {
            let _peers = ["127.0.0.8", "127.0.0.9"].map(|from| connected(from, listener));
            assert!(accept(listener).unwrap().is_some());
        }
        assert_eq!((policy.n_reset(), policy.n_dropped()), (Some(2), 0));
        assert_eq!(policy.unfiltered(), Some(Unfiltered::Privilege));
    }

    #[test]
    fn everyone_is_let_in_without_a_look_if_there_are_no_networks() {
        let listener = listen(address("127.0.0.1:0"), 8, &AllowedPeers::anybody().without_filter()).unwrap();
        assert!(!listener.is_checked());
        let multipath = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert!(!Listener::multipath(multipath, &AllowedPeers::anybody()).is_checked());
        let policy = Policy::anything().of_one_role(ResolvedNames::new());
        let multipath = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert!(Listener::multipath(multipath, &policy.guests(&["127.0.0.9".parse().unwrap()], None)).is_checked());
        assert_eq!((policy.unfiltered(), policy.n_reset()), (Some(Unfiltered::Multipath), Some(0)));
    }

    /// Runs something on a thread without any capability.
    fn unprivileged<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        let drop_all = || {
            let none = rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            };
            rustix::thread::set_capabilities(None, none).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(drop_all).join().unwrap())
    }

    #[test]
    fn without_a_privilege_a_stranger_gets_no_byte_whoever_keeps_it_away() {
        let listener = unprivileged(|| listen(address("127.0.0.1:0"), 8, &guests(&["127.0.0.9"])).unwrap());
        let to = local_address(&listener).unwrap();
        let stranger = stream(to).unwrap();
        stranger.bind(&address("127.0.0.8:0").into()).unwrap();
        let is_connected = stranger.connect_timeout(&to.into(), Nanos::from_millis(100).as_duration()).is_ok();
        assert_eq!(is_connected, listener.is_checked(), "a filter lets nobody connect");
        assert!(accept(&listener).unwrap().is_none());
        if is_connected {
            assert!(is_reset(stranger.into()));
        }
        let guest = connected("127.0.0.9", &listener);
        assert_eq!(accept(&listener).unwrap().map(|(_, from)| from), guest.local_addr().ok());
    }

    #[test]
    fn without_a_privilege_datagrams_are_filtered_all_the_same() {
        let socket = unprivileged(|| datagram(address("127.0.0.1:0"), &guests(&["127.0.0.9"])).unwrap());
        let to = local_address(&socket).unwrap();
        for (from, is_received) in [("127.0.0.8:0", false), ("127.0.0.9:0", true)] {
            std::net::UdpSocket::bind(from).unwrap().send_to(b"hello", to).unwrap();
            assert_eq!(super::super::recv(&socket, &mut [0; 8], Wait::Never).unwrap().is_some(), is_received, "{from}");
        }
    }
}

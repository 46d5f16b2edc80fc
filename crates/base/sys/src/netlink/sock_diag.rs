//! The TCP sockets of a network namespace with their queues and counters (`sock_diag(7)`, `linux/inet_diag.h`).
//!
//! Needs no privilege: the kernel shows the sockets of all users. It knows no process; a socket has an inode, which `/proc/PID/fd` names.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    ops::ControlFlow,
};

use fathom_model::units::{Bytes, Nanos};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use crate::{
    Error, Result,
    netlink::message::{DUMP, MessageBody, NetlinkRequest, NetlinkSocket, attribute},
    socket::tcp_info::{TcpInfo, TcpState},
};

/// `TCPDIAG_GETSOCK`, which lists the sockets of IPv4 and IPv6 in one walk of the kernel's table (`inet_diag_dump_compat` in
/// `net/ipv4/inet_diag.c`). The newer `SOCK_DIAG_BY_FAMILY` walks it once for each family, and the table of a large host has half a million places.
const OF_ALL_FAMILIES: u16 = 18;
/// `INET_DIAG_INFO`, the attribute with a `struct tcp_info`.
const INFO: u16 = 2;
/// `INET_DIAG_SKMEMINFO`, the attribute with the memory of a socket as numbers of four bytes.
const MEMORY: u16 = 7;
/// The place of `SK_MEMINFO_DROPS` among them (`linux/sock_diag.h`).
const MEMORY_DROPS: usize = 8;
/// The length of `struct inet_diag_sockid`, which is a filter of single sockets and therefore zero in a request for all.
const SOCKET_ID: usize = 48;
/// The length of `struct inet_diag_msg`, behind which the attributes begin.
const HEADER: usize = 72;

/// A TCP socket at the time of the dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiagSocket {
    /// The kernel's number of the socket, which no other socket gets before the next boot.
    pub cookie: u64,
    /// The state of its connection.
    pub state: TcpState,
    /// Its own address.
    pub local: SocketAddr,
    /// The address of its peer; unspecified for a listener.
    pub peer: SocketAddr,
    /// The number of its file; 0 if no process holds it any more.
    pub inode: u32,
    /// The user who opened it.
    pub uid: u32,
    /// Received bytes that its program has not read; of a listener, connections that wait for accept.
    pub rx_queue: u32,
    /// Bytes that its peer has not acknowledged; of a listener, the length of its accept queue.
    pub tx_queue: u32,
    /// The counters of its connection; absent for a listener and for the rest of a closed socket.
    pub counts: Option<DiagCounts>,
    /// What the socket dropped; of a listener, SYNs and connections without a place in its queues. Absent where the dump asks for more than
    /// listeners, and before Linux 4.7.
    pub n_dropped: Option<u32>,
}

impl DiagSocket {
    /// Parses a `struct inet_diag_msg` and the attributes behind it; `None` if it is shorter, or of another family.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Self> {
        let attributes = body.get(HEADER..)?;
        let number = |at: usize| Some(u32::from_ne_bytes(*body.get(at..)?.first_chunk()?));
        let address = |port_at: usize, address_at: usize| {
            let port = u16::from_be_bytes(*body.get(port_at..)?.first_chunk()?);
            match i32::from(body[0]) {
                libc::AF_INET => {
                    let octets: [u8; 4] = *body.get(address_at..)?.first_chunk()?;
                    Some(SocketAddr::new(Ipv4Addr::from(octets).into(), port))
                }
                libc::AF_INET6 => {
                    let octets: [u8; 16] = *body.get(address_at..)?.first_chunk()?;
                    Some(address_v6(octets.into(), port, number(40)?))
                }
                _ => None,
            }
        };
        let state = TcpState::from(body[1]);
        Some(Self {
            cookie: u64::from_ne_bytes(*body.get(44..)?.first_chunk()?),
            state,
            local: address(4, 8)?,
            peer: address(6, 24)?,
            inode: number(68)?,
            uid: number(64)?,
            rx_queue: number(56)?,
            tx_queue: number(60)?,
            counts: attribute(attributes, INFO).filter(|_| state != TcpState::Listen).and_then(counts_of),
            n_dropped: attribute(attributes, MEMORY)
                .and_then(|memory| Some(u32::from_ne_bytes(*memory.get(4 * MEMORY_DROPS..)?.first_chunk()?))),
        })
    }
}

/// The counters of a connection since its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiagCounts {
    /// Payload that the peer has acknowledged, with its SYN and FIN as a byte each; absent before Linux 4.1.
    pub acked: Option<Bytes>,
    /// Payload that was received in order; absent before Linux 4.1.
    pub received: Option<Bytes>,
    /// The smoothed round-trip time (RFC 6298); absent before the first sample.
    pub rtt: Option<Nanos>,
    /// Segments that were sent again.
    pub n_resent: u32,
}

/// Which sockets a dump asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiagStates(u32);

impl DiagStates {
    /// Listeners.
    pub const LISTENING: Self = Self(1 << 10);
    /// Connections that can still carry bytes one way: ESTABLISHED, FIN-WAIT-1 and -2, CLOSE-WAIT, LAST-ACK and CLOSING.
    pub const CONNECTED: Self = Self(1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11);
    /// Both.
    pub const LISTENING_OR_CONNECTED: Self = Self(Self::LISTENING.0 | Self::CONNECTED.0);
}

/// The sockets that a dump found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketDump {
    /// The sockets, in the kernel's order.
    pub sockets: Vec<DiagSocket>,
    /// Whether these are all; the limit of the dump ended it otherwise.
    pub is_complete: bool,
}

/// Reads the TCP sockets of the network namespace of the calling thread.
#[derive(Debug, Default)]
pub struct SocketReader {
    buffer: Vec<u8>,
}

impl SocketReader {
    /// Returns the IPv4 and IPv6 sockets in these states, at most `n_max`. Listeners come first.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` or `ENOENT` if the kernel does not list its sockets, `EPERM` or `EACCES` if a container forbids to ask.
    pub fn tcp(&mut self, states: DiagStates, n_max: usize) -> Result<SocketDump> {
        let mut dump = SocketDump { sockets: Vec::new(), is_complete: true };
        // A new netlink socket each time: the unread rest of a dump that was ended early goes with it.
        let open = NetlinkSocket::open(NETLINK_SOCK_DIAG);
        let mut socket = open.map_err(|error| Error::new("socket(NETLINK_SOCK_DIAG)", error))?;
        let asked = socket.dump(NetlinkRequest(OF_ALL_FAMILIES, DUMP, question(states)), &mut self.buffer, |body| {
            if dump.sockets.len() == n_max {
                dump.is_complete = false;
                return ControlFlow::Break(());
            }
            dump.sockets.extend(DiagSocket::parse(body));
            ControlFlow::Continue(())
        });
        asked.map_err(|error| Error::new("TCPDIAG_GETSOCK", error))?;
        Ok(dump)
    }
}

/// Returns a `struct inet_diag_req` for all TCP sockets in these states, with the `tcp_info` of connections and the drops of listeners.
fn question(states: DiagStates) -> MessageBody {
    let wanted = if states == DiagStates::LISTENING { MEMORY } else { INFO };
    let mut header = vec![0, 0, 0, 1 << (wanted - 1)];
    header.resize(header.len() + SOCKET_ID, 0);
    header.extend_from_slice(&states.0.to_ne_bytes());
    // The last field, `idiag_dbs`, asks for tables that no kernel has any more.
    header.extend_from_slice(&0_u32.to_ne_bytes());
    MessageBody::of_header(&header)
}

/// Returns an address as people write it: a mapped one as IPv4, a link-local one with its interface.
fn address_v6(address: Ipv6Addr, port: u16, interface: u32) -> SocketAddr {
    match address.to_canonical() {
        IpAddr::V4(mapped) => SocketAddr::new(mapped.into(), port),
        IpAddr::V6(_) if address.is_unicast_link_local() => SocketAddrV6::new(address, port, 0, interface).into(),
        IpAddr::V6(_) => SocketAddr::new(address.into(), port),
    }
}

fn counts_of(info: &[u8]) -> Option<DiagCounts> {
    let info = TcpInfo::parse(info)?;
    let rtt = Some(info.rtt).filter(|rtt| *rtt > Nanos::ZERO);
    Some(DiagCounts { acked: info.bytes_acked, received: info.bytes_received, rtt, n_resent: info.total_retrans })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// A message as the kernel writes it, with an attribute.
    fn message(family: i32, state: u8, attribute: (u16, &[u8])) -> Vec<u8> {
        let mut body = vec![u8::try_from(family).unwrap(), state, 0, 0];
        body.extend_from_slice(&8080_u16.to_be_bytes());
        body.extend_from_slice(&40_000_u16.to_be_bytes());
        let mut addresses = [0; 32];
        if family == libc::AF_INET {
            addresses[..4].copy_from_slice(&[127, 0, 0, 1]);
            addresses[16..20].copy_from_slice(&[198, 18, 0, 2]);
        } else {
            addresses[..16].copy_from_slice(&"fe80::1".parse::<Ipv6Addr>().unwrap().octets());
            addresses[16..].copy_from_slice(&"::ffff:198.18.0.2".parse::<Ipv6Addr>().unwrap().octets());
        }
        body.extend_from_slice(&addresses);
        body.extend_from_slice(&3_u32.to_ne_bytes());
        body.extend_from_slice(&0x1_0000_0007_u64.to_ne_bytes());
        for number in [9_u32, 11, 12, 1000, 4711] {
            body.extend_from_slice(&number.to_ne_bytes());
        }
        assert_eq!(body.len(), HEADER);
        let (kind, value) = attribute;
        body.extend_from_slice(&u16::try_from(4 + value.len()).unwrap().to_ne_bytes());
        body.extend_from_slice(&kind.to_ne_bytes());
        body.extend_from_slice(value);
        body
    }

    #[test]
    fn a_message_of_the_kernel_is_read_at_the_offsets_of_its_header() {
        let mut info = [0; 232];
        info[68..72].copy_from_slice(&250_u32.to_ne_bytes());
        info[100..104].copy_from_slice(&5_u32.to_ne_bytes());
        info[120..128].copy_from_slice(&70_000_u64.to_ne_bytes());
        info[128..136].copy_from_slice(&800_u64.to_ne_bytes());
        let socket = DiagSocket::parse(&message(libc::AF_INET, 1, (INFO, &info))).unwrap();
        let counts = DiagCounts {
            acked: Some(Bytes(70_000)),
            received: Some(Bytes(800)),
            rtt: Some(Nanos::from_micros(250)),
            n_resent: 5,
        };
        let expected = DiagSocket {
            cookie: 0x1_0000_0007,
            state: TcpState::Established,
            local: "127.0.0.1:8080".parse().unwrap(),
            peer: "198.18.0.2:40000".parse().unwrap(),
            inode: 4711,
            uid: 1000,
            rx_queue: 11,
            tx_queue: 12,
            counts: Some(counts),
            n_dropped: None,
        };
        assert_eq!(socket, expected);
        // An older kernel ends its structure before the bytes.
        let older = DiagSocket::parse(&message(libc::AF_INET, 1, (INFO, &info[..104]))).unwrap();
        assert_eq!(older.counts, Some(DiagCounts { acked: None, received: None, ..counts }));
    }

    #[test]
    fn an_odd_message_keeps_the_fields_that_it_has() {
        let whole = message(libc::AF_INET6, 10, (INFO, &[0; 232]));
        let listener = DiagSocket::parse(&whole).unwrap();
        assert_eq!(listener.local, "[fe80::1%3]:8080".parse().unwrap());
        assert_eq!(listener.peer, "198.18.0.2:40000".parse().unwrap(), "a mapped address is one of IPv4");
        assert_eq!((listener.state, listener.counts, listener.n_dropped), (TcpState::Listen, None, None));
        let memory: Vec<u8> = (0..9_u32).flat_map(u32::to_ne_bytes).collect();
        let dropped =
            |memory: &[u8]| DiagSocket::parse(&message(libc::AF_INET, 10, (MEMORY, memory))).unwrap().n_dropped;
        assert_eq!((dropped(&memory), dropped(&memory[..32])), (Some(8), None));
        assert_eq!(DiagSocket::parse(&message(libc::AF_INET, 1, (INFO, &[0; 103]))).unwrap().counts, None);
        assert_eq!(DiagSocket::parse(&message(libc::AF_INET, 1, (15, &[1; 4]))).unwrap().counts, None);
        assert_eq!(DiagSocket::parse(&message(libc::AF_UNIX, 1, (INFO, &[]))), None);
        assert!((0..HEADER).all(|length| DiagSocket::parse(&whole[..length]).is_none()));
        assert!((HEADER..whole.len()).all(|length| DiagSocket::parse(&whole[..length]).is_some()));
    }

    /// A listener on loopback with one connection that waits for accept and one that was accepted.
    fn check_loopback(address: &str) {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let here = listener.local_addr().unwrap();
        let mut near = TcpStream::connect(here).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let _waiting = TcpStream::connect(here).unwrap();
        far.write_all(&[7; 1000]).unwrap();
        near.peek(&mut [0; 1000]).unwrap();
        let mut reader = SocketReader::default();
        let listeners = reader.tcp(DiagStates::LISTENING, 100_000).unwrap();
        let found = listeners.sockets.into_iter().find(|socket| socket.local == here).unwrap();
        let find = |reader: &mut SocketReader, local: SocketAddr, peer: SocketAddr| {
            let all = reader.tcp(DiagStates::CONNECTED, 100_000).unwrap();
            all.sockets.into_iter().find(|socket| socket.local == local && socket.peer == peer)
        };
        // The standard library asks for a queue of 128, or of the greatest length that the system allows.
        assert_eq!((found.state, found.rx_queue, found.counts), (TcpState::Listen, 1, None));
        assert!(found.tx_queue > 1 && found.inode > 0, "{found:?}");
        let received = find(&mut reader, near.local_addr().unwrap(), here).unwrap();
        assert_eq!((received.state, received.rx_queue), (TcpState::Established, 1000));
        assert_eq!(received.counts.unwrap().received, Some(Bytes(1000)));
        near.read_exact(&mut [0; 1000]).unwrap();
        let read = find(&mut reader, near.local_addr().unwrap(), here).unwrap();
        assert_eq!((read.rx_queue, read.cookie), (0, received.cookie));
        let sender = find(&mut reader, here, near.local_addr().unwrap()).unwrap();
        assert!(sender.counts.unwrap().rtt.is_some(), "{sender:?}");
    }

    #[test]
    fn a_listener_and_its_connections_are_found_with_their_queues() {
        check_loopback("127.0.0.1");
        if TcpListener::bind("[::1]:0").is_err() {
            return fathom_testkit::skip("needs IPv6 on the loopback");
        }
        check_loopback("::1");
    }

    #[test]
    fn a_dump_ends_at_its_limit_and_the_next_one_is_whole() {
        let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mut reader = SocketReader::default();
        let cut = reader.tcp(DiagStates::LISTENING, 2).unwrap();
        assert_eq!((cut.sockets.len(), cut.is_complete), (2, false));
        let whole = reader.tcp(DiagStates::LISTENING, 100_000).unwrap();
        let ports: Vec<u16> = whole.sockets.iter().map(|socket| socket.local.port()).collect();
        assert!(whole.is_complete);
        assert!(listeners.iter().all(|listener| ports.contains(&listener.local_addr().unwrap().port())));
    }
}

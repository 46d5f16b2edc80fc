//! Unprivileged echo requests, for processes with a group in `net.ipv4.ping_group_range` (icmp(7)).
//!
//! The kernel writes the IP header, the checksum and the identifier. It delivers the replies for that identifier and the routers' errors
//! about the requests. It reports no departure times here and nothing about other traffic.

use std::{
    ffi::{c_int, c_void},
    io,
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd},
    ptr,
};

use fathom_model::units::{Bytes, Nanos};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::{
    Error, Result,
    policy::Destination,
    process::signal::poll_readable,
    socket::{
        self, Buffer,
        control_message::{CONTROL_SIZE, ControlBuffer, ControlMessage, control_messages, time},
        error_of,
        raw_ip::RawSendResult,
    },
};

/// The size of a `sockaddr_in6`, the longer of the two address types.
const ADDRESS_SIZE: usize = 28;

/// The fields that the kernel writes into the IP header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoHeader {
    /// The time to live: the maximum number of routers.
    pub hops: u8,
    /// The byte with the DSCP and ECN fields.
    pub traffic_class: u8,
}

/// An ICMP message received by this socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoReply {
    /// The sender.
    pub from: IpAddr,
    /// The number of its bytes written to the buffer.
    pub length: usize,
    /// The receive time, on `CLOCK_REALTIME`.
    pub at: Option<Nanos>,
    /// The remaining time to live, if the kernel reports it.
    pub hops_left: Option<u8>,
}

/// An ICMP error about a request; the buffer holds the beginning of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedIcmpError {
    /// The arrival of the error.
    pub arrival: EchoReply,
    /// The ICMP type.
    pub kind: u8,
    /// The ICMP code.
    pub code: u8,
    /// Additional data: the MTU of the next link if a packet was too big.
    pub number: u32,
}

/// A socket for echo requests in one version of IP.
#[derive(Debug)]
pub struct EchoSocket {
    socket: Socket,
    is_ipv4: bool,
    header: Option<EchoHeader>,
}

impl EchoSocket {
    /// Opens a socket that sends from a local address, with a receive buffer of `buffer` in the kernel.
    ///
    /// # Errors
    /// `EACCES` if no group of the process is in `net.ipv4.ping_group_range`, which also applies to IPv6.
    pub fn open(source: IpAddr, buffer: Bytes) -> Result<Self> {
        let is_ipv4 = source.is_ipv4();
        let (domain, protocol, name) = if is_ipv4 {
            (Domain::IPV4, Protocol::ICMPV4, "socket(SOCK_DGRAM, IPPROTO_ICMP)")
        } else {
            (Domain::IPV6, Protocol::ICMPV6, "socket(SOCK_DGRAM, IPPROTO_ICMPV6)")
        };
        let socket = Socket::new(domain, Type::DGRAM, Some(protocol)).map_err(error_of(name))?;
        socket.set_nonblocking(true).map_err(error_of("fcntl(O_NONBLOCK)"))?;
        // Values that the kernel has cached about the path must not influence the result.
        let options = if is_ipv4 {
            [(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE), (libc::IP_RECVERR, 1), (libc::IP_RECVTTL, 1)]
        } else {
            [
                (libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
                (libc::IPV6_RECVERR, 1),
                (libc::IPV6_RECVHOPLIMIT, 1),
            ]
        };
        let level = if is_ipv4 { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
        for (option, value) in options {
            socket::set(&socket, (level, option), &value).map_err(error_of("setsockopt(IPPROTO_IP)"))?;
        }
        socket::set_report_time(&socket)?;
        socket::set_buffer(&socket, Buffer::Receive, buffer)?;
        let address = SockAddr::from(SocketAddr::new(source, 0));
        socket.bind(&address).map_err(|error| Error::new(format!("bind({source})"), error))?;
        Ok(Self { socket, is_ipv4, header: None })
    }

    /// The identifier that the kernel assigned to the requests of this socket.
    ///
    /// # Errors
    /// `getsockname`, in practice never.
    pub fn identifier(&self) -> Result<u16> {
        Ok(socket::local_address(&self.socket)?.port())
    }

    /// Sends an echo request that starts with its ICMP header; the kernel sets checksum and identifier.
    ///
    /// # Errors
    /// `EPERM` from a firewall, `EINVAL` for anything but an echo request.
    pub fn send(&mut self, message: &[u8], header: EchoHeader, to: &Destination) -> Result<RawSendResult> {
        self.set_header(header)?;
        // An error about an earlier request is reported by the next call of any kind.
        let _ = self.socket.take_error();
        let mut outcome = self.socket.send_to(message, to.raw());
        if outcome.as_ref().is_err_and(is_echo_of_a_complaint) {
            outcome = self.socket.send_to(message, to.raw());
        }
        match outcome {
            Ok(_) => Ok(RawSendResult::Taken),
            Err(error) => RawSendResult::of_error(&error).ok_or_else(|| Error::new(format!("sendto({to})"), error)),
        }
    }

    /// Sets the options only if they change: a route test changes them often, a series never.
    fn set_header(&mut self, header: EchoHeader) -> Result<()> {
        if self.header == Some(header) {
            return Ok(());
        }
        let (level, hops, class) = if self.is_ipv4 {
            (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_TOS)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, libc::IPV6_TCLASS)
        };
        socket::set(&self.socket, (level, hops), &c_int::from(header.hops)).map_err(error_of("setsockopt(IP_TTL)"))?;
        socket::set(&self.socket, (level, class), &c_int::from(header.traffic_class))
            .map_err(error_of("setsockopt(IP_TOS)"))?;
        self.header = Some(header);
        Ok(())
    }

    /// Receives the next reply, without waiting.
    ///
    /// # Errors
    /// If a device went down.
    pub fn receive(&self, room: &mut [u8]) -> Result<Option<EchoReply>> {
        match Message::receive(&self.socket, room, 0) {
            Ok(message) => Ok(message.arrival()),
            Err(error) if is_nothing(&error) || is_echo_of_a_complaint(&error) => Ok(None),
            Err(error) => Err(Error::new("recvmsg(IPPROTO_ICMP)", error)),
        }
    }

    /// Receives the next ICMP error about a request, without waiting; the buffer gets the quoted request from its ICMP header on.
    ///
    /// # Errors
    /// If the kernel lacks the memory to report it.
    pub fn complaint(&self, room: &mut [u8]) -> Result<Option<ReceivedIcmpError>> {
        loop {
            let message = match Message::receive(&self.socket, room, libc::MSG_ERRQUEUE) {
                Ok(message) => message,
                Err(error) if is_nothing(&error) => return Ok(None),
                Err(error) => return Err(Error::new("recvmsg(MSG_ERRQUEUE)", error)),
            };
            // Errors from this host are reported by the call that sent the request.
            if let Some(complaint) = message.complaint() {
                return Ok(Some(complaint));
            }
        }
    }

    /// Waits until a message has arrived, a signal arrives, or the timeout expires; returns whether a message has arrived.
    ///
    /// # Errors
    /// If the kernel lacks the memory to wait.
    pub fn wait(&self, timeout: Nanos) -> Result<bool> {
        poll_readable(&[self.socket.as_fd()], timeout)
    }

    /// The number of replies dropped because its buffer was full; wraps around.
    ///
    /// # Errors
    /// `getsockopt(SO_MEMINFO)`: Linux before 4.12.
    pub fn drops(&self) -> Result<u32> {
        socket::drops(&self.socket)
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR))
}

/// Returns whether an error may come from an ICMP message that the error queue reports in full (`icmp_err_convert` in `net/ipv4/icmp.c`).
fn is_echo_of_a_complaint(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::ECONNREFUSED
                | libc::ENOPROTOOPT
                | libc::EPROTO
                | libc::EOPNOTSUPP
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EACCES
                | libc::EMSGSIZE
        )
    )
}

/// The result of one receive.
struct Message {
    length: usize,
    name: [u8; ADDRESS_SIZE],
    control: ControlBuffer,
    control_length: usize,
}

impl Message {
    fn receive(socket: &Socket, room: &mut [u8], flags: c_int) -> io::Result<Self> {
        let (mut control, mut name) = (ControlBuffer([0; CONTROL_SIZE]), [0; ADDRESS_SIZE]);
        let mut vector = libc::iovec { iov_base: room.as_mut_ptr().cast::<c_void>(), iov_len: room.len() };
        // SAFETY: `msghdr` holds integers and raw pointers, for which zero is valid.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = libc::socklen_t::try_from(ADDRESS_SIZE).expect("an address is a few bytes long");
        header.msg_iov = ptr::from_mut(&mut vector);
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_SIZE;
        // SAFETY: the header points to an address, a vector with its bytes and a control buffer, all borrowed for the call.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags | libc::MSG_DONTWAIT) };
        let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?.min(room.len());
        Ok(Self { length, name, control, control_length: header.msg_controllen.min(CONTROL_SIZE) })
    }

    fn find(&self, kinds: &[(c_int, c_int)]) -> Option<ControlMessage<'_>> {
        let mut messages = control_messages(&self.control.0[..self.control_length]);
        messages.find(|message| kinds.contains(&(message.level, message.kind)))
    }

    fn arrival_from(&self, from: IpAddr) -> EchoReply {
        let at = self.find(&[(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS)]);
        let hops = self.find(&[(libc::IPPROTO_IP, libc::IP_TTL), (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)]);
        let hops = hops.and_then(|message| message.value.first_chunk().map(|hops| c_int::from_ne_bytes(*hops)));
        EchoReply {
            from,
            length: self.length,
            at: at.and_then(|message| time(message.value.first_chunk().copied()?)),
            hops_left: hops.and_then(|hops| u8::try_from(hops).ok()),
        }
    }

    fn arrival(&self) -> Option<EchoReply> {
        address(&self.name).map(|from| self.arrival_from(from))
    }

    /// Parses a `struct sock_extended_err` and the address of the error's sender after it.
    fn complaint(&self) -> Option<ReceivedIcmpError> {
        let told = self.find(&[(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)])?;
        let (error, offender) = told.value.split_at_checked(size_of::<libc::sock_extended_err>())?;
        let is_icmp = matches!(error[4], libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6);
        let arrival = self.arrival_from(address(offender).filter(|_| is_icmp)?);
        let number = u32::from_ne_bytes(*error[8..].first_chunk()?);
        Some(ReceivedIcmpError { arrival, kind: error[5], code: error[6], number })
    }
}

/// The address in a `sockaddr_in` or a `sockaddr_in6`.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    match c_int::from(u16::from_ne_bytes(*bytes.first_chunk()?)) {
        libc::AF_INET => Some(Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::anywhere;
    use crate::{bpf::privilege::or_skip, clock, netlink::namespace::NetNs};

    #[test]
    fn an_echo_request_over_loopback_is_answered_with_its_time_and_its_hops() {
        let Some(alone) = or_skip(NetNs::new()) else { return };
        let answered = || {
            std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
            echoed("127.0.0.1", 8, 0);
            echoed("::1", 128, 129);
        };
        alone.enter_with(answered).unwrap();
    }

    fn echoed(host: &str, kind: u8, answer: u8) {
        let host: IpAddr = host.parse().unwrap();
        let mut socket = EchoSocket::open(host, Bytes(1 << 16)).unwrap();
        let header = EchoHeader { hops: 9, traffic_class: 0 };
        let message = [kind, 0, 0, 0, 0, 0, 0x12, 0x34, b'e', b'c', b'h', b'o'];
        assert_eq!(socket.send(&message, header, &anywhere((host, 0).into())).unwrap(), RawSendResult::Taken);
        let deadline = clock::now() + Nanos::from_secs(5);
        let mut room = [0; 64];
        let arrival = loop {
            socket.wait(Nanos::from_millis(100)).unwrap();
            if let Some(arrival) = socket.receive(&mut room).unwrap() {
                break arrival;
            }
            assert!(clock::now() < deadline, "{host} does not answer");
        };
        assert_eq!((arrival.from, arrival.length, arrival.at.is_some()), (host, message.len(), true));
        assert!(arrival.hops_left.is_some_and(|hops| hops > 9), "{arrival:?}");
        let identifier = socket.identifier().unwrap().to_be_bytes();
        assert_eq!((room[0], &room[4..6], &room[6..12]), (answer, &identifier[..], &b"\x12\x34echo"[..]));
        assert_eq!(socket.complaint(&mut room).unwrap(), None);
        assert_eq!(socket.drops().unwrap(), 0);
    }

    #[test]
    fn an_address_is_read_only_where_there_is_a_whole_one() {
        let mut bytes = [0; ADDRESS_SIZE];
        assert_eq!(address(&bytes), None);
        bytes[..2].copy_from_slice(&2_u16.to_ne_bytes());
        bytes[4..8].copy_from_slice(&[192, 0, 2, 7]);
        assert_eq!(address(&bytes), Some(Ipv4Addr::new(192, 0, 2, 7).into()));
        assert_eq!(address(&bytes[..7]), None);
        assert_eq!(address(&[]), None);
    }
}

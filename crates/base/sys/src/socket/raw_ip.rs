//! Complete IP packets: sends them with the caller's own headers, and captures them as they leave and arrive.
//!
//! This module does not interpret packets. Everything needs `CAP_NET_RAW`; see raw(7) and packet(7). Times are kernel timestamps
//! (`SO_TIMESTAMPNS`), on `CLOCK_REALTIME`.

use std::{
    cell::RefCell,
    collections::VecDeque,
    ffi::c_int,
    io,
    mem::MaybeUninit,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

use fathom_model::units::{Bytes, Nanos};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    Error, Result,
    policy::Destination,
    process::signal::poll_readable,
    socket::{
        self,
        control_message::{CONTROL_SIZE, ControlBuffer, control_messages, time},
        error_of,
    },
};

/// The kernel's response to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawSendResult {
    /// It accepted the packet; a queue or a firewall may still drop it.
    Taken,
    /// The packet is longer than the device or the route allows (`EMSGSIZE`).
    TooLong,
    /// There is no room for it now (`ENOBUFS`, `EAGAIN`).
    NoRoom,
    /// It cannot be sent now: no route, or the device is down.
    NoWay,
}

impl RawSendResult {
    /// Classifies an error of a send by its effect on the packet; `None` if the error is about the sender.
    pub(crate) fn of_error(error: &io::Error) -> Option<Self> {
        match error.raw_os_error()? {
            libc::EMSGSIZE => Some(Self::TooLong),
            libc::ENOBUFS | libc::EAGAIN | libc::EINTR => Some(Self::NoRoom),
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::ENODEV | libc::EADDRNOTAVAIL => {
                Some(Self::NoWay)
            }
            _ => None,
        }
    }
}

/// Whether broadcasts are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broadcast {
    /// The kernel rejects them with `EACCES`.
    Refused,
    /// They are sent (`SO_BROADCAST`).
    Sent,
}

/// A socket that sends packets of one version of IP as given, headers included.
///
/// The kernel routes them, and writes the checksum and the length of an IPv4 header, and its identification if that is zero.
#[derive(Debug)]
pub struct Sender {
    socket: Socket,
}

impl Sender {
    /// Opens a socket for the IP version of an address.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`.
    pub fn open(destination: IpAddr, broadcast: Broadcast) -> Result<Self> {
        let domain = if destination.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let protocol = Protocol::from(libc::IPPROTO_RAW);
        let socket =
            Socket::new(domain, Type::RAW, Some(protocol)).map_err(error_of("socket(SOCK_RAW, IPPROTO_RAW)"))?;
        socket.set_nonblocking(true).map_err(error_of("fcntl(O_NONBLOCK)"))?;
        // Values that the kernel has cached about the path must not influence the result.
        let (level, option, value, name) = if destination.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE, "setsockopt(IP_MTU_DISCOVER)")
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE, "setsockopt(IPV6_MTU_DISCOVER)")
        };
        socket::set(&socket, (level, option), &value).map_err(error_of(name))?;
        if destination.is_ipv4() {
            // Connection tracking of this host must not put fragments together before they leave. IPv6 has no such option.
            socket::set(&socket, (libc::IPPROTO_IP, libc::IP_NODEFRAG), &1)
                .map_err(error_of("setsockopt(IP_NODEFRAG)"))?;
        }
        if broadcast == Broadcast::Sent {
            socket.set_broadcast(true).map_err(error_of("setsockopt(SO_BROADCAST)"))?;
        }
        Ok(Self { socket })
    }

    /// Restricts sending to one device.
    ///
    /// # Errors
    /// `ENODEV` if there is no device with this name.
    pub fn bind_device(&self, name: &str) -> Result<()> {
        self.socket
            .bind_device(Some(name.as_bytes()))
            .map_err(|error| Error::new(format!("setsockopt(SO_BINDTODEVICE, {name})"), error))
    }

    /// Sends one packet.
    ///
    /// # Errors
    /// `EPERM` from a firewall, `EACCES` for a broadcast that is not enabled.
    pub fn send(&self, packet: &[u8], to: &Destination) -> Result<RawSendResult> {
        match self.socket.send_to(packet, to.raw()) {
            Ok(_) => Ok(RawSendResult::Taken),
            Err(error) => RawSendResult::of_error(&error).ok_or_else(|| Error::new(format!("sendto({to})"), error)),
        }
    }
}

/// The direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Passed to a device of this host.
    Out,
    /// Received by this host.
    In,
}

/// A captured packet, whose bytes are in the caller's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenPacket {
    /// The direction.
    pub direction: Direction,
    /// The number of bytes written to the buffer.
    pub length: usize,
    /// The time, on `CLOCK_REALTIME`.
    pub at: Option<Nanos>,
}

/// A socket that captures copies of the packets from and to one host, and of all ICMP.
#[derive(Debug)]
pub struct PacketListener {
    fd: OwnedFd,
    recent: RecentArrivals,
}

/// The packets that arrived last, by which one that passes several devices (a port, its bridge) is told from one that came twice.
#[derive(Debug, Default)]
struct RecentArrivals(RefCell<VecDeque<Arrival>>);

/// A packet that arrived at a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrival {
    at: Nanos,
    length: usize,
    device: c_int,
}

impl RecentArrivals {
    /// So many packets may arrive at other devices while one passes its own.
    const COUNT: usize = 16;

    /// Notes an arrival. Returns whether the same packet has arrived at another device: a packet keeps the stamp that it got first.
    fn is_known(&self, arrival: Arrival) -> bool {
        let mut recent = self.0.borrow_mut();
        let is_same = |it: &Arrival| (it.at, it.length) == (arrival.at, arrival.length) && it.device != arrival.device;
        let is_known = recent.iter().any(is_same);
        if recent.len() == Self::COUNT {
            recent.pop_front();
        }
        recent.push_back(arrival);
        is_known
    }
}

impl PacketListener {
    /// Listens on all devices in this network namespace, with a receive buffer of `buffer` in the kernel.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`.
    pub fn open(host: IpAddr, buffer: Bytes) -> Result<Self> {
        Self::of(0, &mut filter(host), buffer)
    }

    /// Listens to all packets of both IP versions, on the device with this index or, for zero, on all devices.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`, `ENODEV` without the device.
    pub fn open_device(index: u32, buffer: Bytes) -> Result<Self> {
        Self::of(c_int::try_from(index).unwrap_or(c_int::MAX), &mut filter_ip(), buffer)
    }

    fn of(index: c_int, filter: &mut [libc::sock_filter], buffer: Bytes) -> Result<Self> {
        // Protocol zero receives nothing, so no packet arrives before the filter is attached.
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(Error::last("socket(AF_PACKET, SOCK_DGRAM)"));
        }
        // SAFETY: the kernel has just created this descriptor for us, and nothing else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        attach(&fd, filter)?;
        socket::set_report_time(&fd)?;
        let room = c_int::try_from(buffer.0).unwrap_or(c_int::MAX);
        // Without CAP_NET_ADMIN, net.core.rmem_max is the limit.
        socket::set(&fd, (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE), &room)
            .or_else(|_| socket::set(&fd, (libc::SOL_SOCKET, libc::SO_RCVBUF), &room))
            .map_err(error_of("setsockopt(SO_RCVBUF)"))?;
        // Only sockets for all protocols see outgoing packets.
        bind(&fd, libc::ETH_P_ALL, index)?;
        Ok(Self { fd, recent: RecentArrivals::default() })
    }

    /// Receives the next captured packet, without waiting. A packet that arrives at a port and goes on to the bridge, bond or VLAN device
    /// above it is one packet.
    ///
    /// # Errors
    /// If a device went down.
    pub fn receive(&self, room: &mut [u8]) -> Result<Option<SeenPacket>> {
        loop {
            let Some((packet, device)) = self.receive_at_device(room)? else { return Ok(None) };
            let SeenPacket { direction, length, at } = packet;
            let is_known =
                direction == Direction::In && at.is_some_and(|at| self.recent.is_known(Arrival { at, length, device }));
            if !is_known {
                return Ok(Some(packet));
            }
        }
    }

    /// Receives the next captured packet that came to or from this host, and the index of its device.
    ///
    /// A veth and a device that takes all frames hand over those for other Ethernet addresses too, which IP drops (`ip_rcv_core` of Linux).
    fn receive_at_device(&self, room: &mut [u8]) -> Result<Option<(SeenPacket, c_int)>> {
        while let Some((packet, source)) = self.receive_frame(room)? {
            if source.sll_pkttype != libc::PACKET_OTHERHOST {
                return Ok(Some((packet, source.sll_ifindex)));
            }
        }
        Ok(None)
    }

    fn receive_frame(&self, room: &mut [u8]) -> Result<Option<(SeenPacket, libc::sockaddr_ll)>> {
        let mut control = ControlBuffer([0; CONTROL_SIZE]);
        let mut vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let mut source = MaybeUninit::<libc::sockaddr_ll>::zeroed();
        // SAFETY: `msghdr` holds integers and raw pointers, for which zero is valid.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_name = source.as_mut_ptr().cast();
        header.msg_namelen = address_length();
        header.msg_iov = ptr::from_mut(&mut vector);
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_SIZE;
        // SAFETY: the header points to an address, a vector with its bytes and a control buffer, all borrowed for the call.
        let received = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
        let Ok(length) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            let nothing = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
            return if nothing { Ok(None) } else { Err(Error::new("recvmsg(AF_PACKET)", error)) };
        };
        // SAFETY: the address was zeroed, which is a valid value of it, and the kernel has overwritten it.
        let source = unsafe { source.assume_init() };
        let direction = if source.sll_pkttype == libc::PACKET_OUTGOING { Direction::Out } else { Direction::In };
        let control = &control.0[..header.msg_controllen.min(CONTROL_SIZE)];
        let stamp = control_messages(control)
            .find(|message| (message.level, message.kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS));
        let at = stamp.and_then(|message| time(message.value.first_chunk().copied()?));
        Ok(Some((SeenPacket { direction, length: length.min(room.len()), at }, source)))
    }

    /// Waits until a packet was captured, a signal arrives, or the timeout expires; returns whether a packet was captured.
    ///
    /// # Errors
    /// If the kernel lacks the memory to wait.
    pub fn wait(&self, timeout: Nanos) -> Result<bool> {
        poll_readable(&[self.fd.as_fd()], timeout)
    }

    /// The number of packets dropped because its buffer was full; wraps around.
    ///
    /// # Errors
    /// `getsockopt(SO_MEMINFO)`: Linux before 4.12.
    pub fn drops(&self) -> Result<u32> {
        socket::drops(&self.fd)
    }
}

fn address_length() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).expect("an address is a few bytes long")
}

fn bind(fd: &OwnedFd, protocol: c_int, index: c_int) -> Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).expect("a family has 16 bits"),
        sll_protocol: u16::try_from(protocol).expect("an EtherType has 16 bits").to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the pointer is to a local of that length.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), address_length()) };
    if result < 0 { Err(Error::last("bind(AF_PACKET)")) } else { Ok(()) }
}

fn attach(fd: &OwnedFd, program: &mut [libc::sock_filter]) -> Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("the filter has a few instructions"),
        filter: program.as_mut_ptr(),
    };
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    let length = libc::socklen_t::try_from(size_of_val(&program)).expect("it is two fields long");
    // SAFETY: the structure and the instructions that it points to are borrowed for the call; the kernel copies both.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const program).cast(), length) };
    if result < 0 { Err(Error::last("setsockopt(SO_ATTACH_FILTER)")) } else { Ok(()) }
}

const LOAD_HALF: u16 = 0x28;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// `SKF_AD_OFF + SKF_AD_PROTOCOL`: the Ethernet type, which is not part of the captured bytes.
const ETHERTYPE: u32 = 0xffff_f000;

/// Accepts packets of both IP versions.
fn filter_ip() -> [libc::sock_filter; 5] {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let is = |ethertype: c_int, jt, jf| {
        step(JUMP_IF_EQUAL, jt, jf, u32::try_from(ethertype).expect("an EtherType has 16 bits"))
    };
    let (drop, keep) = (step(RETURN, 0, 0, 0), step(RETURN, 0, 0, u32::MAX));
    [step(LOAD_HALF, 0, 0, ETHERTYPE), is(libc::ETH_P_IP, 2, 0), is(libc::ETH_P_IPV6, 1, 0), drop, keep]
}

/// Accepts packets from and to a host, and all ICMP; offsets are from the IP header (Documentation/networking/filter.rst).
fn filter(host: IpAddr) -> Vec<libc::sock_filter> {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_BYTE: u16 = 0x30;
    const ICMP: u32 = 1;
    const ICMP_V6: u32 = 58;
    // The offsets of source, destination and protocol.
    let (ethertype, places, protocol, icmp) = match host {
        IpAddr::V4(_) => (libc::ETH_P_IP, [12, 16], 9, ICMP),
        IpAddr::V6(_) => (libc::ETH_P_IPV6, [8, 24], 6, ICMP_V6),
    };
    let ethertype = u32::try_from(ethertype).expect("an EtherType has 16 bits");
    let bytes = match host {
        IpAddr::V4(host) => host.octets().to_vec(),
        IpAddr::V6(host) => host.octets().to_vec(),
    };
    let words: Vec<u32> =
        bytes.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]])).collect();
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let n_comparison = words.len() * 2;
    let small = |n: usize| u8::try_from(n).expect("the filter has a few instructions");
    let to_drop = small(2 * n_comparison + 2);
    let mut program = vec![step(LOAD_HALF, 0, 0, ETHERTYPE), step(JUMP_IF_EQUAL, 0, to_drop, ethertype)];
    program.push(step(LOAD_BYTE, 0, 0, protocol));
    // After both comparisons come the two exits: drop, then keep.
    program.push(step(JUMP_IF_EQUAL, small(2 * n_comparison + 1), 0, icmp));
    for (nth, place) in places.into_iter().enumerate() {
        for (at, word) in words.iter().enumerate() {
            program.push(step(
                LOAD_WORD,
                0,
                0,
                place + 4 * u32::try_from(at).expect("an address has at most four words"),
            ));
            // A different word jumps to the next comparison, or after the last one to the exit.
            let left = n_comparison - 2 * at - 2;
            let is_last = at + 1 == words.len();
            let remaining = (1 - nth) * n_comparison;
            let on_equal = if is_last { small(remaining + 1) } else { 0 };
            program.push(step(JUMP_IF_EQUAL, on_equal, small(left), *word));
        }
    }
    program.push(step(RETURN, 0, 0, 0));
    program.push(step(RETURN, 0, 0, u32::MAX));
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::anywhere;
    use crate::{bpf::privilege::or_skip, clock};

    /// Runs a filter like the kernel, for the instructions used here.
    fn keeps(host: &str, packet: &[u8]) -> bool {
        let program = filter(host.parse().unwrap());
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            let place = usize::try_from(step.k).unwrap_or(usize::MAX);
            match step.code {
                0x28 => accumulator = if packet.len() == 20 { 0x0800 } else { 0x86dd },
                0x20 => accumulator = u32::from_be_bytes(packet[place..place + 4].try_into().unwrap()),
                0x30 => accumulator = packet[place].into(),
                0x15 => at += usize::from(if accumulator == step.k { step.jt } else { step.jf }),
                _ => return step.k > 0,
            }
        }
    }

    #[test]
    fn the_filter_keeps_what_is_from_or_to_the_host_and_all_icmp() {
        let packet = |protocol: u8, source: [u8; 4], destination: [u8; 4]| {
            let mut packet = [0; 20];
            packet[9] = protocol;
            packet[12..16].copy_from_slice(&source);
            packet[16..20].copy_from_slice(&destination);
            packet
        };
        let (host, other, here) = ([192, 0, 2, 1], [192, 0, 2, 2], [192, 0, 2, 9]);
        for (protocol, source, destination, kept) in [
            (6, host, here, true),
            (6, here, host, true),
            (6, other, here, false),
            (17, here, other, false),
            (1, other, here, true),
        ] {
            assert_eq!(keeps("192.0.2.1", &packet(protocol, source, destination)), kept, "{protocol} {source:?}");
        }
        let packet = |protocol: u8, source: &str, destination: &str| {
            let mut packet = [0; 40];
            packet[6] = protocol;
            packet[8..24].copy_from_slice(&source.parse::<std::net::Ipv6Addr>().unwrap().octets());
            packet[24..40].copy_from_slice(&destination.parse::<std::net::Ipv6Addr>().unwrap().octets());
            packet
        };
        for (protocol, source, destination, kept) in [
            (6, "2001:db8::1", "2001:db8::9", true),
            (6, "2001:db8::9", "2001:db8::1", true),
            (6, "2001:db8::2", "2001:db8::9", false),
            (6, "2001:db8:1::1", "2001:db8::9", false),
            (58, "2001:db8::2", "2001:db8::9", true),
        ] {
            assert_eq!(keeps("2001:db8::1", &packet(protocol, source, destination)), kept, "{protocol} {source}");
        }
    }

    #[test]
    fn a_packet_over_loopback_is_heard_leaving_and_arriving_with_its_times() {
        let host: IpAddr = "127.0.0.1".parse().unwrap();
        let Some(ear) = or_skip(PacketListener::open(host, Bytes(1 << 20))) else { return };
        let sender = Sender::open(host, Broadcast::Refused).unwrap();
        // Protocol 253 is for experiments (RFC 3692), and only ICMP responds to it.
        let mut packet = [0; 28];
        packet[0] = 0x45;
        packet[8] = 1;
        packet[9] = 253;
        packet[12..16].copy_from_slice(&[127, 0, 0, 1]);
        packet[16..20].copy_from_slice(&[127, 0, 0, 1]);
        packet[20..].copy_from_slice(b"raw_ip!!");
        let before = clock::wall();
        assert_eq!(sender.send(&packet, &anywhere((host, 0).into())).unwrap(), RawSendResult::Taken);
        let deadline = clock::now() + Nanos::from_secs(5);
        let (mut room, mut heard) = ([0; 2048], Vec::new());
        while heard.len() < 2 && clock::now() < deadline {
            ear.wait(Nanos::from_millis(100)).unwrap();
            while let Some(passing) = ear.receive(&mut room).unwrap() {
                if room[..passing.length].ends_with(b"raw_ip!!") && passing.length == packet.len() {
                    heard.push(passing);
                }
            }
        }
        let ways: Vec<_> = heard.iter().map(|passing| passing.direction).collect();
        assert_eq!(ways, [Direction::Out, Direction::In]);
        let times: Vec<_> = heard.iter().map(|passing| passing.at.unwrap()).collect();
        assert!(before <= times[0] && times[0] <= times[1] && times[1] <= clock::wall(), "{times:?}");
    }

    #[test]
    fn a_packet_longer_than_the_device_takes_is_told() {
        let host: IpAddr = "127.0.0.1".parse().unwrap();
        let Some(sender) = or_skip(Sender::open(host, Broadcast::Refused)) else { return };
        let mut packet = vec![0; 70_000];
        packet[0] = 0x45;
        assert_eq!(sender.send(&packet, &anywhere((host, 0).into())).unwrap(), RawSendResult::TooLong);
        let error = sender.bind_device("no-such-device").unwrap_err();
        assert_eq!(error.call, "setsockopt(SO_BINDTODEVICE, no-such-device)");
    }
}

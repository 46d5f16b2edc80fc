//! Packets that a rule of the packet filter sends to a program, and the program's verdicts (`nfnetlink_queue`).
//!
//! A queue belongs to the network namespace of the thread that opened it, and to one socket. The rule that fills it is made by
//! [`nftables`](super::nftables). Needs `CAP_NET_ADMIN`; see `linux/netfilter/nfnetlink_queue.h`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use fathom_model::units::{Bytes, Nanos};
use rustix::event::PollFlags;

use super::message::{ACKNOWLEDGE, HEADER, MessageBody, REQUEST, attributes, take};
use crate::{
    Error, Result,
    packet::packet_socket::{MAX_BATCH, batch_size, set_option, wait},
};

/// The subsystem of queues, in the high byte of a message's type (`NFNL_SUBSYS_QUEUE`).
const SUBSYSTEM: u8 = 3;
const PACKET: u8 = 0;
const VERDICT: u8 = 1;
const CONFIGURE: u8 = 2;
const VERDICT_BATCH: u8 = 3;
/// Attributes of a configuration.
const CONFIG_COMMAND: u16 = 1;
const CONFIG_COPY: u16 = 2;
const CONFIG_LENGTH: u16 = 3;
const CONFIG_MASK: u16 = 4;
const CONFIG_FLAGS: u16 = 5;
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// `NFQA_CFG_F_FAIL_OPEN` and `NFQA_CFG_F_GSO`.
const PASS_WHEN_FULL: u32 = 1;
const KEEP_SEGMENTS: u32 = 4;
/// Attributes of a packet and of a verdict.
const PACKET_HEADER: u16 = 1;
const VERDICT_HEADER: u16 = 2;
const MARK: u16 = 3;
const INPUT_DEVICE: u16 = 5;
const PAYLOAD: u16 = 10;
const WHOLE_LENGTH: u16 = 13;
const PACKET_STATE: u16 = 14;
/// `NFQA_SKB_CSUMNOTREADY` and `NFQA_SKB_GSO`.
const CHECKSUM_OPEN: u32 = 1;
const SEGMENTS: u32 = 2;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
/// The length of `struct nfgenmsg`.
const FAMILY_HEADER: usize = 4;
/// All attributes of a packet but its bytes: 150 in Linux 6.18, with room for those of later kernels.
const ATTRIBUTES: usize = 512;
const NETLINK_NO_ENOBUFS: libc::c_int = 5;

/// The properties of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueSettings {
    /// The number of bytes of each packet that are copied to the program, from its IP header on.
    pub copy_range: Bytes,
    /// The number of packets that may wait for a verdict.
    pub length: u32,
    /// Whether large packets come whole.
    pub segments: SegmentHandling,
    /// What happens to packets that find the queue full.
    pub when_full: WhenFull,
    /// The receive buffer of the socket, in which packets wait for the program.
    pub buffer: Bytes,
}

/// What becomes of a packet with several segments (GSO), up to 64 KiB long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentHandling {
    /// It comes as one packet.
    Whole,
    /// It is cut into its segments, and all checksums are calculated.
    Cut,
}

/// What becomes of a packet that finds the queue full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It is dropped.
    Drop,
    /// It continues without a verdict.
    Pass,
}

/// What happens to a packet that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketVerdict {
    /// It is dropped.
    Drop,
    /// It continues with the mark that it has.
    Pass,
    /// It continues with this mark.
    Mark(u32),
}

/// A packet that waits for a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuedPacket<'a> {
    /// Its number in the queue; later packets have higher ones, which wrap around.
    pub id: u32,
    /// Its bytes from the IP header on, at most the copy range.
    pub bytes: &'a [u8],
    /// Its whole length.
    pub length: Bytes,
    /// The index of the device that it came from; 0 if it is the host's own.
    pub input: u32,
    /// Whether it has several segments.
    pub has_segments: bool,
    /// Whether its transport checksum is not calculated yet, as of packets that never were on a wire.
    pub is_checksum_open: bool,
}

/// The packets of one receive call.
#[derive(Debug)]
pub struct PacketInbox {
    bytes: Vec<u8>,
    /// The room for one message.
    room: usize,
    lengths: [usize; MAX_BATCH],
    count: usize,
}

impl PacketInbox {
    /// Makes room for messages with packets of a queue with this copy range.
    #[must_use]
    pub fn of(copy_range: Bytes) -> Self {
        // The kernel copies no more than this.
        let range = usize::from(u16::try_from(copy_range.0).unwrap_or(u16::MAX));
        let room = (HEADER + FAMILY_HEADER + ATTRIBUTES + range).next_multiple_of(64);
        Self { bytes: vec![0; room * MAX_BATCH], room, lengths: [0; MAX_BATCH], count: 0 }
    }

    /// The packets, in the order of their numbers.
    pub fn packets(&self) -> impl Iterator<Item = QueuedPacket<'_>> {
        let messages = self.bytes.chunks_exact(self.room).zip(self.lengths).take(self.count);
        messages.filter_map(|(bytes, length)| packet_of(bytes.get(..length)?))
    }
}

/// Reads a message with a packet; `None` for every other message, such as an error about a verdict.
fn packet_of(message: &[u8]) -> Option<QueuedPacket<'_>> {
    let kind = u16::from_ne_bytes([*message.get(4)?, *message.get(5)?]);
    (kind == u16::from_be_bytes([SUBSYSTEM, PACKET])).then_some(())?;
    let number = |value: &[u8]| Some(u32::from_be_bytes(*value.first_chunk()?));
    let mut packet =
        QueuedPacket { id: 0, bytes: &[], length: Bytes(0), input: 0, has_segments: false, is_checksum_open: false };
    let (mut id, mut length) = (None, None);
    for (kind, value) in attributes(message.get(HEADER + FAMILY_HEADER..)?) {
        match kind {
            PACKET_HEADER => id = number(value),
            INPUT_DEVICE => packet.input = number(value)?,
            WHOLE_LENGTH => length = number(value),
            PACKET_STATE => {
                let state = number(value)?;
                (packet.has_segments, packet.is_checksum_open) = (state & SEGMENTS != 0, state & CHECKSUM_OPEN != 0);
            }
            PAYLOAD => packet.bytes = value,
            _ => {}
        }
    }
    packet.id = id?;
    // The kernel tells the length only of packets that it cut.
    packet.length = Bytes(length.map_or(packet.bytes.len() as u64, u64::from));
    Some(packet)
}

/// Verdicts that leave in one system call.
#[derive(Debug, Default)]
pub struct VerdictBuffer {
    bytes: Vec<u8>,
    queue: u16,
}

impl VerdictBuffer {
    /// Makes a buffer for the verdicts of one queue.
    #[must_use]
    pub fn of(queue: &PacketQueue) -> Self {
        Self { bytes: Vec::new(), queue: queue.number }
    }

    /// Adds the verdict on one packet.
    pub fn push(&mut self, id: u32, verdict: PacketVerdict) {
        self.begin(VERDICT, id, verdict, 0);
    }

    /// Adds one verdict on all packets that still wait, up to and including this one.
    pub fn push_all_until(&mut self, id: u32, verdict: PacketVerdict) {
        self.begin(VERDICT_BATCH, id, verdict, 0);
    }

    /// Returns true if no verdict was added since they were last sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn begin(&mut self, message: u8, id: u32, verdict: PacketVerdict, n_further: usize) {
        let (code, mark) = match verdict {
            PacketVerdict::Drop => (DROP, None),
            PacketVerdict::Pass => (ACCEPT, None),
            PacketVerdict::Mark(mark) => (ACCEPT, Some(mark)),
        };
        let length = HEADER + FAMILY_HEADER + 12 + if mark.is_some() { 8 } else { 0 } + n_further;
        let length = u32::try_from(length).expect("a verdict is short");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&u16::from_be_bytes([SUBSYSTEM, message]).to_ne_bytes());
        // Without an acknowledgement: only an error is answered.
        self.bytes.extend_from_slice(&REQUEST.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.extend_from_slice(&family_header(self.queue));
        self.attribute(VERDICT_HEADER, &[code.to_be_bytes(), id.to_be_bytes()].concat());
        if let Some(mark) = mark {
            self.attribute(MARK, &mark.to_be_bytes());
        }
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).expect("attributes of verdicts are short");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
    }
}

/// `struct nfgenmsg` with the number of a queue.
fn family_header(queue: u16) -> [u8; FAMILY_HEADER] {
    let [high, low] = queue.to_be_bytes();
    [0, 0, high, low]
}

/// A queue that this program reads; when it is dropped, the packets that wait in it are dropped too.
#[derive(Debug)]
pub struct PacketQueue {
    fd: OwnedFd,
    number: u16,
}

impl PacketQueue {
    /// Takes a queue by its number.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`, and also if another program has the queue; `EINVAL` or `EPROTONOSUPPORT` if the kernel has no
    /// queues (`CONFIG_NETFILTER_NETLINK_QUEUE`).
    pub fn open(number: u16, settings: &QueueSettings) -> Result<Self> {
        let queue = Self { fd: open_socket()?, number };
        // A full buffer is counted by the kernel, in `/proc/net/netfilter/nfnetlink_queue`.
        set_option(&queue.fd, libc::SOL_NETLINK, NETLINK_NO_ENOBUFS, "NETLINK_NO_ENOBUFS", 1)?;
        let room = libc::c_int::try_from(settings.buffer.0).unwrap_or(libc::c_int::MAX);
        let (level, forced, limited) = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        // Without CAP_NET_ADMIN outside a user namespace, net.core.rmem_max is the limit; the kernel counts what finds no room.
        set_option(&queue.fd, level, forced, "SO_RCVBUFFORCE", room)
            .or_else(|_| set_option(&queue.fd, level, limited, "SO_RCVBUF", room))?;
        queue
            .configure(settings)
            .map_err(|error| Error::new(format!("nfnetlink_queue(take queue {number})"), error))?;
        Ok(queue)
    }

    /// The number of the queue.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    fn configure(&self, settings: &QueueSettings) -> io::Result<()> {
        let mut flags = 0;
        if settings.segments == SegmentHandling::Whole {
            flags |= KEEP_SEGMENTS;
        }
        if settings.when_full == WhenFull::Pass {
            flags |= PASS_WHEN_FULL;
        }
        let range = u32::try_from(settings.copy_range.0).unwrap_or(u32::MAX);
        let copy = [&range.to_be_bytes()[..], &[COPY_PACKET]].concat();
        let body = MessageBody::of(family_header(self.number))
            .put(CONFIG_COMMAND, &[BIND, 0, 0, 0])
            .put(CONFIG_COPY, &copy)
            .number(CONFIG_LENGTH, settings.length)
            .number(CONFIG_MASK, KEEP_SEGMENTS | PASS_WHEN_FULL)
            .number(CONFIG_FLAGS, flags);
        self.send(&body.message(u16::from_be_bytes([SUBSYSTEM, CONFIGURE]), ACKNOWLEDGE))?;
        // The acknowledgement is there when the request was handled, which is before `send` returns.
        let mut answer = [0; 256];
        let length = rustix::net::recv(&self.fd, &mut answer[..], rustix::net::RecvFlags::DONTWAIT)?.1;
        take(answer.get(..length).unwrap_or_default(), &mut |_| std::ops::ControlFlow::Continue(())).map(drop)
    }

    /// Receives packets that wait, at most [`MAX_BATCH`], without waiting for one; returns the number of messages.
    ///
    /// # Errors
    /// Any error of `recvmmsg`.
    pub fn receive(&self, inbox: &mut PacketInbox) -> Result<usize> {
        inbox.count = 0;
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_BATCH];
        for (vector, room) in vectors.iter_mut().zip(inbox.bytes.chunks_exact_mut(inbox.room)) {
            *vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: inbox.room };
        }
        // SAFETY: all fields of these headers are numbers or pointers, for which zero is a valid value.
        let mut messages: [libc::mmsghdr; MAX_BATCH] = unsafe { std::mem::zeroed() };
        for (message, vector) in messages.iter_mut().zip(&mut vectors) {
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
        }
        let (fd, pointer, size) = (self.fd.as_raw_fd(), messages.as_mut_ptr(), batch_size(MAX_BATCH));
        // SAFETY: `messages` holds that many headers, whose vectors are distinct parts of the inbox, borrowed for this call.
        let received = unsafe { libc::recvmmsg(fd, pointer, size, libc::MSG_DONTWAIT, std::ptr::null_mut()) };
        let Ok(received) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            let nothing = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
            return if nothing { Ok(0) } else { Err(Error::new("recvmmsg(nfnetlink_queue)", error)) };
        };
        for (length, message) in inbox.lengths.iter_mut().zip(&messages[..received]) {
            *length = usize::try_from(message.msg_len).unwrap_or(usize::MAX);
        }
        inbox.count = received;
        Ok(received)
    }

    /// Sends verdicts, and empties their buffer.
    ///
    /// # Errors
    /// `ENOBUFS` or `ENOMEM` if the kernel has no memory for them.
    pub fn decide(&self, verdicts: &mut VerdictBuffer) -> Result<()> {
        if verdicts.is_empty() {
            return Ok(());
        }
        let sent = self.send(&verdicts.bytes);
        verdicts.bytes.clear();
        sent.map_err(|error| Error::new("send(verdicts)", error))
    }

    /// Waits until a packet waits, or until the timeout; returns whether one does.
    ///
    /// # Errors
    /// If the kernel lacks the memory to wait.
    pub fn wait(&self, timeout: Nanos) -> Result<bool> {
        wait(self.fd.as_fd(), PollFlags::IN, timeout)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.fd, bytes, rustix::net::SendFlags::empty()).map(drop).map_err(io::Error::from)
    }
}

impl AsFd for PacketQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a netlink socket whose port the kernel chooses at the first message.
fn open_socket() -> Result<OwnedFd> {
    let (kind, protocol) = (libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER);
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
    if fd < 0 {
        return Err(Error::last("socket(NETLINK_NETFILTER)"));
    }
    // SAFETY: the kernel has just created this descriptor for us, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the way in which rules of this namespace can send packets to a queue, if there is one, by making a table that is removed again.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`.
pub fn queue_way() -> Result<Option<super::nftables::QueueWay>> {
    use super::nftables::{
        Chain, Hook, Nftables, PacketMatch, QueueRange, QueueWay, Rule, RuleVerdict, Table, TableFamily,
    };
    let table = Table { family: TableFamily::Ipv4, name: "fathom-probe" };
    let queues = QueueRange { first: u16::MAX, n_queues: std::num::NonZeroU16::MIN };
    for way in QueueWay::ALL {
        // No packet meets the rule: the chain has no hook.
        let rules = vec![Rule { matching: PacketMatch::Any, verdict: RuleVerdict::Queue(queues, way) }];
        let mut nft = Nftables::open()?;
        match nft.install_owned(table, &[Chain { name: "probe", hook: Some(Hook::BeforeTracking), rules }]) {
            Ok(()) => return nft.remove(table).map(|()| Some(way)),
            Err(error) if error.is_permission() => return Err(error),
            Err(_) => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, num::NonZeroU16};

    use super::*;
    use crate::netlink::{
        namespace::NetNs,
        nftables::{Chain, Hook, Nftables, PacketMatch, QueueRange, Rule, RuleVerdict, Table, TableFamily},
    };
    use fathom_testkit::or_skip;

    const SETTINGS: QueueSettings = QueueSettings {
        copy_range: Bytes(40),
        length: 100,
        segments: SegmentHandling::Whole,
        when_full: WhenFull::Drop,
        buffer: Bytes(1 << 20),
    };

    #[test]
    fn packets_wait_for_verdicts_one_by_one_and_together() {
        let Some(namespace) = or_skip(NetNs::new(), Error::is_permission) else { return };
        namespace.enter_with(look).unwrap();
    }

    fn look() {
        let Some(way) = queue_way().unwrap() else {
            return fathom_testkit::skip_everywhere("this kernel has no rule that sends packets to a queue");
        };
        let here = "127.0.0.1".parse().unwrap();
        let queues = QueueRange { first: 3, n_queues: NonZeroU16::MIN };
        let rules =
            vec![Rule { matching: PacketMatch::Destination(here), verdict: RuleVerdict::QueueUntracked(queues, way) }];
        let mut nft = Nftables::open().unwrap();
        let table = Table { family: TableFamily::Ipv4, name: "queued" };
        nft.install_owned(table, &[Chain { name: "in", hook: Some(Hook::BeforeTracking), rules }]).unwrap();
        let refused = Nftables::open().unwrap().install_owned(table, &[]).unwrap_err();
        assert!(matches!(refused.errno(), Some(libc::EEXIST | libc::EPERM)), "{refused}: {}", refused.source);

        let queue = PacketQueue::open(3, &SETTINGS).unwrap();
        assert_eq!(PacketQueue::open(3, &SETTINGS).unwrap_err().call, "nfnetlink_queue(take queue 3)");
        let to = UdpSocket::bind((here, 0)).unwrap();
        to.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let from = UdpSocket::bind((here, 0)).unwrap();
        for place in 0..6_u8 {
            from.send_to(&[place; 50], to.local_addr().unwrap()).unwrap();
        }
        let mut inbox = PacketInbox::of(SETTINGS.copy_range);
        assert!(queue.wait(Nanos::from_secs(10)).unwrap());
        assert_eq!(queue.receive(&mut inbox).unwrap(), 6);
        let packets: Vec<QueuedPacket<'_>> = inbox.packets().collect();
        assert!(
            packets.iter().all(|packet| packet.length == Bytes(78) && packet.bytes.len() == 40 && packet.input == 1)
        );
        assert_eq!(packets.iter().map(|packet| packet.bytes[30]).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        let ids: Vec<u32> = packets.iter().map(|packet| packet.id).collect();
        let mut verdicts = VerdictBuffer::of(&queue);
        // The last one overtakes the others; the second one is dropped.
        verdicts.push(ids[5], PacketVerdict::Mark(7));
        verdicts.push(ids[1], PacketVerdict::Drop);
        verdicts.push_all_until(ids[3], PacketVerdict::Pass);
        queue.decide(&mut verdicts).unwrap();
        assert!(verdicts.is_empty());
        let next = || {
            let mut room = [0; 60];
            to.recv(&mut room).map(|length| (length, room[0]))
        };
        assert_eq!(
            [next().unwrap(), next().unwrap(), next().unwrap(), next().unwrap()],
            [5, 0, 2, 3].map(|of| (50, of))
        );
        to.set_nonblocking(true).unwrap();
        assert_eq!(next().unwrap_err().kind(), io::ErrorKind::WouldBlock, "one waits, one was dropped");
        assert_eq!(queue.receive(&mut inbox).unwrap(), 0, "no verdict was answered with an error");
        drop(queue);
        from.send_to(&[9; 50], to.local_addr().unwrap()).unwrap();
        assert_eq!(next().unwrap(), (50, 9), "without a program packets pass");
        drop(nft);
        assert_eq!(Nftables::open().unwrap().base_chains().unwrap(), [], "the table went with its socket");
    }
}

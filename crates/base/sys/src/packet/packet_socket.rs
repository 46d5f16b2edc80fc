//! Raw frames through `AF_PACKET`: sends batches in one system call, and counts frames where XDP may not be loaded.
//!
//! This module does not look into frames. Lengths exclude the frame check sequence, as everywhere in Linux: 60 bytes here are 64 on the
//! wire. See packet(7); everything needs `CAP_NET_RAW`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use fathom_model::units::{Bytes, Frames, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    Error, Result,
    policy::FramePermit as Permit,
    socket::control_message::{CONTROL_SIZE, ControlBuffer, control_messages, time},
};

/// The maximum number of frames per system call.
///
/// In batches of 64, a frame costs 1.4 µs on veth; single frames cost 2.1 µs each. Larger batches gain nothing.
pub const MAX_BATCH: usize = 64;

/// Whether sent frames go through the queueing discipline of their device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queueing {
    /// They go straight to the driver, as fast as they are submitted (`PACKET_QDISC_BYPASS`).
    Bypass,
    /// They wait in the queueing discipline like all other traffic.
    Discipline,
}

/// The kernel's response to a batch of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferResult {
    /// It accepted this many frames from the start of the batch; at least one.
    Accepted(usize),
    /// It dropped the first frame of the batch: the queue of the device is full (`ENOBUFS`).
    Dropped,
    /// It accepted none: the send buffer of the socket is full (`EAGAIN`).
    Busy,
}

/// A socket that sends complete frames out of one device; it never blocks.
#[derive(Debug)]
pub struct Sender {
    fd: OwnedFd,
}

impl Sender {
    /// Opens a socket for a device in this network namespace.
    ///
    /// # Errors
    /// Without `CAP_NET_RAW`, or if there is no such device.
    pub fn open(ifindex: u32, queueing: Queueing, _: &Permit) -> Result<Self> {
        // Protocol zero receives nothing, so there is no receive overhead.
        let fd = open(ifindex, 0)?;
        if queueing == Queueing::Bypass {
            set_option(&fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, "PACKET_QDISC_BYPASS", 1)?;
        }
        Ok(Self { fd })
    }

    /// Submits the first of these frames, at most [`MAX_BATCH`] of them.
    ///
    /// # Errors
    /// If the device is gone or down, or if a frame is longer than the device allows.
    pub fn send<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> Result<OfferResult> {
        let mut vectors = [EMPTY_VECTOR; MAX_BATCH];
        let mut count = 0;
        for (vector, frame) in vectors.iter_mut().zip(frames) {
            // The kernel only reads the memory of an outgoing vector.
            *vector = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
            count += 1;
        }
        let mut messages = messages(&mut vectors);
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: `messages` holds at least `count` headers, whose vectors point to frames borrowed for this call.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), batch_size(count), flags) };
        if let Ok(sent) = usize::try_from(sent) {
            return Ok(OfferResult::Accepted(sent));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOBUFS) => Ok(OfferResult::Dropped),
            Some(libc::EAGAIN | libc::EINTR) => Ok(OfferResult::Busy),
            _ => Err(Error::new("sendmmsg(AF_PACKET)", error)),
        }
    }

    /// Waits until the socket accepts frames again, or until the timeout; returns whether it does.
    ///
    /// # Errors
    /// If the kernel lacks the memory to wait.
    pub fn wait(&self, timeout: Nanos) -> Result<bool> {
        wait(self.fd.as_fd(), PollFlags::OUT, timeout)
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A buffer for the beginnings of one batch of received frames.
#[derive(Debug)]
pub struct ReceiveBuffer {
    bytes: Vec<u8>,
    /// The number of bytes kept of a frame.
    snap: usize,
    lengths: [usize; MAX_BATCH],
    stamps: [Option<Nanos>; MAX_BATCH],
    controls: Vec<ControlBuffer>,
    count: usize,
}

/// The number of bytes kept of a frame that is only counted: all headers and the beginning of the payload.
const SNAP: usize = 128;

impl Default for ReceiveBuffer {
    fn default() -> Self {
        Self::of_frames(SNAP)
    }
}

impl ReceiveBuffer {
    /// Keeps up to `snap` bytes of each frame.
    #[must_use]
    pub fn of_frames(snap: usize) -> Self {
        Self {
            bytes: vec![0; MAX_BATCH * snap],
            snap,
            lengths: [0; MAX_BATCH],
            stamps: [None; MAX_BATCH],
            controls: vec![ControlBuffer([0; CONTROL_SIZE]); MAX_BATCH],
            count: 0,
        }
    }
}

impl ReceiveBuffer {
    /// The beginning of each received frame (by default up to 128 bytes), and its full length.
    pub fn frames(&self) -> impl Iterator<Item = (&[u8], Bytes)> {
        let received = self.bytes.chunks_exact(self.snap).zip(self.lengths).take(self.count);
        received.map(|(bytes, length)| (&bytes[..length.min(self.snap)], Bytes(length as u64)))
    }

    /// The arrival time of each of [`ReceiveBuffer::frames`], on `CLOCK_REALTIME`; `None` unless the receiver has timestamps enabled.
    pub fn stamps(&self) -> impl Iterator<Item = Option<Nanos>> {
        self.stamps.into_iter().take(self.count)
    }
}

/// Returns the arrival time of a frame from its control messages.
fn stamp(control: &[u8]) -> Option<Nanos> {
    let is_stamp = (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
    let message = control_messages(control).find(|message| (message.level, message.kind) == is_stamp)?;
    time(*message.value.first_chunk()?)
}

/// A socket that gets a copy of every frame that a device receives and XDP passes.
#[derive(Debug)]
pub struct Receiver {
    fd: OwnedFd,
}

/// The frame counts of a [`Receiver`] since the last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverCounts {
    /// Frames that reached the socket, including dropped ones.
    pub frames: Frames,
    /// Frames dropped because the socket's buffer was full.
    pub dropped: Frames,
}

impl Receiver {
    /// Opens a socket for a device in this network namespace, with a receive buffer of `buffer` in the kernel.
    ///
    /// # Errors
    /// Without `CAP_NET_RAW`, or if there is no such device.
    pub fn open(ifindex: u32, buffer: Bytes) -> Result<Self> {
        let receiver = Self { fd: open(ifindex, ANY)? };
        set_option(&receiver.fd, libc::SOL_PACKET, IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING", 1)?;
        receiver.make_room(buffer)?;
        Ok(receiver)
    }

    /// Like [`Receiver::open`], but each frame has a timestamp of its arrival (`SO_TIMESTAMPNS`).
    ///
    /// # Errors
    /// As [`Receiver::open`].
    pub fn open_stamped(ifindex: u32, buffer: Bytes) -> Result<Self> {
        let receiver = Self::open(ifindex, buffer)?;
        set_option(&receiver.fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, "SO_TIMESTAMPNS", 1)?;
        Ok(receiver)
    }

    /// Like [`Receiver::open_stamped`], but it gets what the device sends too.
    ///
    /// # Errors
    /// As [`Receiver::open`].
    pub fn open_both_ways(ifindex: u32, buffer: Bytes) -> Result<Self> {
        let receiver = Self::open_stamped(ifindex, buffer)?;
        set_option(&receiver.fd, libc::SOL_PACKET, IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING", 0)?;
        Ok(receiver)
    }

    /// Has the device accept frames for every group, as neighbor discovery for addresses that it does not have needs (packet(7),
    /// `PACKET_MR_ALLMULTI`). Ends with this socket.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn take_all_groups(&self, ifindex: u32) -> Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: i32::try_from(ifindex).unwrap_or(i32::MAX),
            mr_type: ALL_GROUPS,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP);
        let length = socket_length(size_of_val(&request));
        // SAFETY: the pointer is to a local of that length.
        let result =
            unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, (&raw const request).cast(), length) };
        if result < 0 { Err(Error::last("setsockopt(PACKET_ADD_MEMBERSHIP)")) } else { Ok(()) }
    }

    fn make_room(&self, buffer: Bytes) -> Result<()> {
        let (level, value) = (libc::SOL_SOCKET, option_value(buffer));
        let forced = set_option(&self.fd, level, libc::SO_RCVBUFFORCE, "SO_RCVBUFFORCE", value);
        // Without CAP_NET_ADMIN, net.core.rmem_max is the limit; the kernel's counts then show the dropped frames.
        forced.or_else(|_| set_option(&self.fd, level, libc::SO_RCVBUF, "SO_RCVBUF", value))
    }

    /// Receives frames that have arrived, at most [`MAX_BATCH`], without waiting; returns their number.
    ///
    /// # Errors
    /// If the device is gone or down.
    pub fn receive(&self, inbox: &mut ReceiveBuffer) -> Result<usize> {
        inbox.count = 0;
        let mut vectors = [EMPTY_VECTOR; MAX_BATCH];
        for (vector, room) in vectors.iter_mut().zip(inbox.bytes.chunks_exact_mut(inbox.snap)) {
            *vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: inbox.snap };
        }
        let mut messages = messages(&mut vectors);
        for (message, control) in messages.iter_mut().zip(&mut inbox.controls) {
            message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = CONTROL_SIZE;
        }
        // With MSG_TRUNC, the length of a message is that of the whole frame, not of the part that fits.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let (pointer, size) = (messages.as_mut_ptr(), batch_size(MAX_BATCH));
        // SAFETY: `messages` holds that many headers, whose vectors and control buffers are distinct parts of the inbox, borrowed for this
        // call.
        let received = unsafe { libc::recvmmsg(self.fd.as_raw_fd(), pointer, size, flags, std::ptr::null_mut()) };
        let Ok(received) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            let nothing = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
            return if nothing { Ok(0) } else { Err(Error::new("recvmmsg(AF_PACKET)", error)) };
        };
        for (at, message) in messages[..received].iter().enumerate() {
            inbox.lengths[at] = usize::try_from(message.msg_len).unwrap_or(usize::MAX);
            let told = message.msg_hdr.msg_controllen.min(CONTROL_SIZE);
            inbox.stamps[at] = stamp(&inbox.controls[at].0[..told]);
        }
        inbox.count = received;
        Ok(received)
    }

    /// Waits until a frame has arrived, or until the timeout; returns whether one has.
    ///
    /// # Errors
    /// If the kernel lacks the memory to wait.
    pub fn wait(&self, timeout: Nanos) -> Result<bool> {
        wait(self.fd.as_fd(), PollFlags::IN, timeout)
    }

    /// Reads the kernel's own counts of this socket (`PACKET_STATISTICS`) and sets them to zero.
    ///
    /// # Errors
    /// Never on a kernel that has packet sockets.
    pub fn take_counts(&self) -> Result<ReceiverCounts> {
        let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = socket_length(size_of_val(&counts));
        let (fd, option) = (self.fd.as_raw_fd(), libc::PACKET_STATISTICS);
        // SAFETY: the pointers are to locals; the second states the length of the first.
        let result =
            unsafe { libc::getsockopt(fd, libc::SOL_PACKET, option, (&raw mut counts).cast(), &raw mut length) };
        if result < 0 {
            return Err(Error::last("getsockopt(PACKET_STATISTICS)"));
        }
        Ok(ReceiverCounts { frames: Frames(counts.tp_packets.into()), dropped: Frames(counts.tp_drops.into()) })
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Frames of every type (`ETH_P_ALL`).
const ANY: u16 = 3;
/// `PACKET_IGNORE_OUTGOING`: hides frames that this host sends (Linux 4.20).
const IGNORE_OUTGOING: libc::c_int = 23;
/// `PACKET_MR_ALLMULTI`.
const ALL_GROUPS: libc::c_ushort = 2;
const EMPTY_VECTOR: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Creates a header for each vector.
///
/// They are written for each call, 5 KiB on the stack, so that no pointers are kept between calls.
fn messages(vectors: &mut [libc::iovec; MAX_BATCH]) -> [libc::mmsghdr; MAX_BATCH] {
    // SAFETY: all fields of these headers are numbers or pointers, for which zero is a valid value.
    let mut messages: [libc::mmsghdr; MAX_BATCH] = unsafe { std::mem::zeroed() };
    for (message, vector) in messages.iter_mut().zip(vectors) {
        message.msg_hdr.msg_iov = vector;
        message.msg_hdr.msg_iovlen = 1;
    }
    messages
}

pub(crate) fn batch_size(count: usize) -> libc::c_uint {
    libc::c_uint::try_from(count).expect("a batch has at most MAX_BATCH frames")
}

fn socket_length(bytes: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(bytes).expect("the arguments of socket calls are small")
}

fn option_value(volume: Bytes) -> libc::c_int {
    libc::c_int::try_from(volume.0).unwrap_or(libc::c_int::MAX)
}

/// Opens a raw packet socket for one protocol, bound to one device.
pub(crate) fn open(ifindex: u32, protocol: u16) -> Result<OwnedFd> {
    // The protocol is set only by bind: otherwise frames of every device would arrive between socket and bind.
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(Error::last("socket(AF_PACKET, SOCK_RAW)"));
    }
    // SAFETY: the kernel has just created this descriptor for us, and nothing else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let address = libc::sockaddr_ll {
        sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).expect("a family has 16 bits"),
        sll_protocol: protocol.to_be(),
        sll_ifindex: i32::try_from(ifindex).unwrap_or(i32::MAX),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = socket_length(size_of_val(&address));
    // SAFETY: the pointer is to a local of that length.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if result < 0 { Err(Error::last(format!("bind(AF_PACKET, device {ifindex})"))) } else { Ok(fd) }
}

pub(crate) fn set_option(fd: &OwnedFd, level: i32, option: i32, name: &str, value: libc::c_int) -> Result<()> {
    let length = socket_length(size_of_val(&value));
    // SAFETY: the pointer is to a local of that length.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if result < 0 { Err(Error::last(format!("setsockopt({name})"))) } else { Ok(()) }
}

pub(crate) fn wait(fd: BorrowedFd<'_>, events: PollFlags, timeout: Nanos) -> Result<bool> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(timeout.0 % 1_000_000_000).expect("a remainder below 1e9 fits"),
    };
    match poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(Error::new("poll(AF_PACKET)", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::privilege::or_skip;
    use crate::policy::Policy;

    /// A frame of an experimental type (IEEE 802), which the stack of the receiver ignores.
    fn frame(kind: u16) -> [u8; 60] {
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&kind.to_be_bytes());
        frame
    }

    /// The loopback device always has index 1.
    const LOOPBACK: u32 = 1;

    fn permit() -> Permit {
        Policy::anything().permit_frames([]).unwrap()
    }

    #[test]
    fn a_batch_is_accepted_whole() {
        let Some(sender) = or_skip(Sender::open(LOOPBACK, Queueing::Bypass, &permit())) else { return };
        let frames = [frame(0x88b5); 100];
        assert_eq!(sender.send(frames.iter().map(<[u8; 60]>::as_slice)).unwrap(), OfferResult::Accepted(MAX_BATCH));
        assert_eq!(sender.send(frames[90..].iter().map(<[u8; 60]>::as_slice)).unwrap(), OfferResult::Accepted(10));
        assert!(sender.wait(Nanos::from_secs(1)).unwrap());
    }

    #[test]
    fn a_receiver_sees_frames_with_their_whole_length() {
        let Some(receiver) = or_skip(Receiver::open(LOOPBACK, Bytes(1 << 20))) else { return };
        let sender = Sender::open(LOOPBACK, Queueing::Discipline, &permit()).unwrap();
        let mut ours = frame(0x0800).to_vec();
        ours.resize(300, 0xf7);
        assert_eq!(sender.send([&ours[..]].into_iter()).unwrap(), OfferResult::Accepted(1));
        // Other tests use this device too, so the test searches for its own frame.
        let mut inbox = ReceiveBuffer::default();
        let deadline = crate::clock::now() + Nanos::from_secs(5);
        let mut found = false;
        while !found && crate::clock::now() < deadline {
            receiver.wait(Nanos::from_millis(100)).unwrap();
            receiver.receive(&mut inbox).unwrap();
            found = inbox.frames().any(|(bytes, length)| bytes == &ours[..SNAP] && length == Bytes(300));
        }
        assert!(found);
        assert!(receiver.take_counts().unwrap().frames >= Frames(1));
    }

    #[test]
    fn a_receiver_that_asks_is_told_when_a_frame_of_any_type_arrived() {
        let Some(receiver) = or_skip(Receiver::open_stamped(LOOPBACK, Bytes(1 << 20))) else { return };
        let sender = Sender::open(LOOPBACK, Queueing::Discipline, &permit()).unwrap();
        let ours = frame(0x88b6);
        let mut inbox = ReceiveBuffer::default();
        let deadline = crate::clock::now() + Nanos::from_secs(5);
        let mut found = None;
        // The first socket of a system that requests timestamps gets them only after a moment.
        while found.is_none() && crate::clock::now() < deadline {
            let before = crate::clock::wall();
            assert_eq!(sender.send([&ours[..]].into_iter()).unwrap(), OfferResult::Accepted(1));
            receiver.wait(Nanos::from_millis(100)).unwrap();
            receiver.receive(&mut inbox).unwrap();
            let stamped = inbox.frames().zip(inbox.stamps()).find(|((bytes, _), _)| bytes == &ours);
            found = stamped.and_then(|(_, at)| at).filter(|at| *at >= before);
        }
        assert!(found.is_some_and(|at| at <= crate::clock::wall()), "{found:?}");
    }

    #[test]
    fn a_device_that_does_not_exist_is_named() {
        let Some(_) = or_skip(Sender::open(LOOPBACK, Queueing::Bypass, &permit())) else { return };
        let error = Sender::open(1_000_000, Queueing::Bypass, &permit()).unwrap_err();
        assert_eq!((error.call.as_str(), error.errno()), ("bind(AF_PACKET, device 1000000)", Some(libc::ENODEV)));
    }
}

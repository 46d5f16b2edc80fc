//! The wire times of a TCP connection's bytes, from kernel timestamps.
//!
//! `SO_TIMESTAMPING` (Documentation/networking/timestamping.rst) stamps a segment when the driver takes it and when the stack receives it,
//! so the time in between includes neither the sender's event queue nor its wake-up. These are software timestamps on `CLOCK_REALTIME`;
//! [`KernelClockOffset`] converts them to the monotonic clock. Needs no privilege; Linux 4.13 on veth, whose driver stamps.

use std::{
    ffi::c_void,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd},
    ptr,
};

use fathom_model::units::Nanos;
use rustix::io::Errno;

use crate::{
    Result, clock,
    socket::{
        self,
        control_message::{CONTROL_SIZE, ControlBuffer, ControlMessage, control_messages, time},
        named, not_now,
    },
};

/// Enables timestamps of all further sends and receives; the connection must be established.
///
/// The first socket of a system that enables them gets receive timestamps only after a moment: the kernel enables them in a work queue
/// (`net_enable_timestamp` in `net/core/dev.c`).
///
/// # Errors
/// `setsockopt(SO_TIMESTAMPING)`, if it is not a connected socket.
pub fn enable(connection: impl AsFd) -> Result<()> {
    let both_ways = libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_RX_SOFTWARE;
    // Timestamps of sends are identified by the stream position of their last byte, and come without a copy of the bytes.
    let form = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    socket::set(connection, (libc::SOL_SOCKET, libc::SO_TIMESTAMPING), &(both_ways | form))
        .map_err(named("setsockopt(SO_TIMESTAMPING)"))
}

/// The offset between the kernel's two clocks, sampled once: later steps of the wall clock are not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelClockOffset(Nanos);

impl KernelClockOffset {
    /// The offset now, accurate to half the time of the fastest of several readings: an interrupted reading is not used.
    #[must_use]
    pub fn now() -> Self {
        const READINGS: usize = 16;
        let reading = || {
            let before = clock::now();
            let wall = clock::wall();
            let took = clock::now() - before;
            (took, wall.since(before + took / 2))
        };
        let (_, difference) = (1..READINGS).fold(reading(), |best, _| best.min(reading()));
        Self(difference)
    }

    /// The amount by which the wall clock is ahead of the monotonic clock.
    #[must_use]
    pub const fn ahead(self) -> Nanos {
        self.0
    }

    /// Converts a timestamp to the monotonic clock.
    #[must_use]
    pub fn monotonic(self, stamp: Nanos) -> Nanos {
        stamp.since(self.0)
    }
}

/// Received bytes with the arrival time of their last segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StampedReceive {
    /// The number of bytes; zero at the end of the stream.
    pub n_bytes: usize,
    /// The time on `CLOCK_REALTIME`; `None` for a segment without a timestamp.
    pub at: Option<Nanos>,
}

/// A send whose last segment the driver has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StampedSend {
    /// The stream position of the last byte of the send, counted from [`enable`]; wraps around.
    pub last_byte: u32,
    /// The time on `CLOCK_REALTIME`.
    pub at: Nanos,
}

/// Receives available bytes with their time; `None` means not now.
///
/// # Errors
/// `recv`: reset by the peer.
pub fn recv(connection: impl AsFd, bytes: &mut [u8]) -> Result<Option<StampedReceive>> {
    let received = not_now(StampedMessage::receive(connection, bytes, 0), "recv")?;
    Ok(received.map(|message| StampedReceive { n_bytes: message.n_bytes, at: message.stamp() }))
}

/// Returns the next departed send; `None` if all departures have been reported.
///
/// # Errors
/// `recvmsg(MSG_ERRQUEUE)`, if it is not a socket.
pub fn departure(connection: impl AsFd) -> Result<Option<StampedSend>> {
    let received = not_now(StampedMessage::receive(connection, &mut [], libc::MSG_ERRQUEUE), "recvmsg(MSG_ERRQUEUE)")?;
    Ok(received.and_then(|message| Some(StampedSend { last_byte: message.last_byte()?, at: message.stamp()? })))
}

/// The result of one receive.
pub(crate) struct StampedMessage {
    n_bytes: usize,
    control: ControlBuffer,
    control_length: usize,
}

impl StampedMessage {
    pub(crate) fn receive(connection: impl AsFd, bytes: &mut [u8], flags: i32) -> std::result::Result<Self, Errno> {
        let mut control = ControlBuffer([0; CONTROL_SIZE]);
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast::<c_void>(), iov_len: bytes.len() };
        // SAFETY: `msghdr` holds integers and raw pointers, for which zero is valid.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = ptr::from_mut(&mut vector);
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_SIZE;
        let fd = connection.as_fd().as_raw_fd();
        // SAFETY: the header points to one vector, its bytes and the control buffer, all borrowed for the call.
        let received = unsafe { libc::recvmsg(fd, &raw mut header, flags | libc::MSG_DONTWAIT) };
        let control_length = header.msg_controllen.min(CONTROL_SIZE);
        match usize::try_from(received) {
            Ok(n_bytes) => Ok(Self { n_bytes, control, control_length }),
            Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }

    fn messages(&self) -> impl Iterator<Item = ControlMessage<'_>> {
        control_messages(&self.control.0[..self.control_length])
    }

    /// The first of three times, which is the software timestamp.
    fn stamp(&self) -> Option<Nanos> {
        let is_stamp =
            |message: &ControlMessage<'_>| (message.level, message.kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING);
        let first = self.messages().find(is_stamp)?.value.first_chunk().copied()?;
        time(first).filter(|at| *at > Nanos::ZERO)
    }

    /// A `struct sock_extended_err` (`include/uapi/linux/errqueue.h`).
    pub(crate) fn extended_error(&self) -> Option<&[u8]> {
        let is_error = |message: &ControlMessage<'_>| {
            let kinds = [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)];
            kinds.contains(&(message.level, message.kind))
        };
        self.messages().find(is_error).map(|message| message.value)
    }

    /// The `ee_data` of an extended error that carries a timestamp.
    fn last_byte(&self) -> Option<u32> {
        const ORIGIN: usize = 4;
        const DATA: usize = 12;
        let error = self.extended_error()?;
        let is_stamp = error.get(ORIGIN) == Some(&libc::SO_EE_ORIGIN_TIMESTAMPING);
        is_stamp.then(|| error.get(DATA..)?.first_chunk().map(|data| u32::from_ne_bytes(*data)))?
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// A connection with timestamps enabled and already working.
    fn stamped_pair() -> (TcpStream, TcpStream) {
        let (near, mut far) = pair();
        enable(&near).unwrap();
        let mut is_stamped = || {
            far.write_all(b"1").unwrap();
            near.peek(&mut [0]).unwrap();
            recv(&near, &mut [0]).unwrap().unwrap().at.is_some()
        };
        while !is_stamped() {}
        (near, far)
    }

    #[test]
    fn a_send_leaves_after_it_was_asked_for_and_before_its_answer_arrives() {
        let (mut near, mut far) = stamped_pair();
        let (epoch, before) = (KernelClockOffset::now(), clock::now());
        near.write_all(b"12345").unwrap();
        let mut asked = [0; 5];
        far.read_exact(&mut asked).unwrap();
        far.write_all(b"answer").unwrap();
        let mut answer = [0; 16];
        near.peek(&mut answer).unwrap();
        let arrival = recv(&near, &mut answer).unwrap().unwrap();
        let departure_told = departure(&near).unwrap().unwrap();
        assert_eq!((arrival.n_bytes, departure_told.last_byte), (6, 4));
        let (left, came) = (epoch.monotonic(departure_told.at), epoch.monotonic(arrival.at.unwrap()));
        assert!(before <= left && left <= came && came <= clock::now(), "{before} {left} {came}");
        assert_eq!(departure(&near).unwrap(), None);
        assert_eq!(recv(&near, &mut answer).unwrap(), None);
        drop(far);
        near.peek(&mut answer).unwrap();
        assert_eq!(recv(&near, &mut answer).unwrap().unwrap().n_bytes, 0);
    }

    #[test]
    fn a_socket_without_a_connection_has_no_stream_to_count() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(enable(&listener).unwrap_err().to_string(), "setsockopt(SO_TIMESTAMPING)");
    }
}

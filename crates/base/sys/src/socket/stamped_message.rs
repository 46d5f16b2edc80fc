//! One message with the data that the kernel attaches to it: times, errors, its sender.

use std::{
    ffi::{c_int, c_void},
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd},
    ptr,
};

use fathom_model::units::Nanos;
use rustix::io::Errno;

use crate::socket::{
    Sender,
    control_message::{CONTROL_SIZE, ControlBuffer, ControlMessage, control_messages, time},
    socket_name::SocketName,
};

/// A moment on the way of a packet out of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendMoment {
    /// It enters the queue of its interface (`SCM_TSTAMP_SCHED`), which a qdisc may hold it in.
    Queued,
    /// The driver has taken it (`SCM_TSTAMP_SND`).
    Left,
}

/// The result of one receive.
pub(crate) struct StampedMessage {
    pub(super) n_bytes: usize,
    name: SocketName,
    control: ControlBuffer,
    control_length: usize,
}

impl StampedMessage {
    pub(crate) fn receive(connection: impl AsFd, bytes: &mut [u8], flags: c_int) -> std::result::Result<Self, Errno> {
        let (mut control, mut name) = (ControlBuffer([0; CONTROL_SIZE]), SocketName::NOWHERE);
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast::<c_void>(), iov_len: bytes.len() };
        // SAFETY: `msghdr` holds integers and raw pointers, for which zero is valid.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = ptr::from_mut(&mut vector);
        header.msg_iovlen = 1;
        header.msg_name = name.0.as_mut_ptr().cast();
        header.msg_namelen = SocketName::LENGTH_MAX;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_SIZE;
        let fd = connection.as_fd().as_raw_fd();
        // SAFETY: the header points to one vector, its bytes, a name and the control buffer, all borrowed for the call.
        let received = unsafe { libc::recvmsg(fd, &raw mut header, flags) };
        let control_length = header.msg_controllen.min(CONTROL_SIZE);
        match usize::try_from(received) {
            Ok(n_bytes) => Ok(Self { n_bytes, name, control, control_length }),
            Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = ControlMessage<'_>> {
        control_messages(&self.control.0[..self.control_length])
    }

    /// The sender of a datagram.
    pub(super) fn sender(&self) -> Option<Sender> {
        self.name.address().map(Sender::of)
    }

    /// The first of three times, which is the software timestamp.
    pub(super) fn stamp(&self) -> Option<Nanos> {
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

    /// The moment of an extended error that carries a timestamp (its `ee_info`), and which send it belongs to (its `ee_data`).
    pub(super) fn send_moment(&self) -> Option<(SendMoment, u32)> {
        const ORIGIN: usize = 4;
        const INFO: usize = 8;
        const DATA: usize = 12;
        let error = self.extended_error()?;
        let number = |at: usize| error.get(at..)?.first_chunk().map(|number| u32::from_ne_bytes(*number));
        let is_stamp = error.get(ORIGIN) == Some(&libc::SO_EE_ORIGIN_TIMESTAMPING);
        let moment = match number(INFO).filter(|_| is_stamp)? {
            0 => SendMoment::Left,
            1 => SendMoment::Queued,
            _ => return None,
        };
        Some((moment, number(DATA)?))
    }
}

/// Where a message goes.
#[derive(Clone, Copy)]
pub(super) enum SendTarget<'a> {
    /// To the peer of a connected socket.
    Peer,
    /// Back to the sender of a datagram.
    Sender(&'a Sender),
}

/// Sends a message, and requests timestamps of its way out for it alone (a control message `SO_TIMESTAMPING`).
pub(super) fn send_with_stamps(
    socket: impl AsFd,
    bytes: &[u8],
    to: SendTarget<'_>,
    flags: c_int,
) -> std::result::Result<usize, Errno> {
    /// `struct cmsghdr` and a padded `u32`.
    const LENGTH: usize = 24;
    let mut control = ControlBuffer([0; CONTROL_SIZE]);
    let moments = libc::SOF_TIMESTAMPING_TX_SCHED | libc::SOF_TIMESTAMPING_TX_SOFTWARE;
    control.0[..8].copy_from_slice(&(LENGTH - 4).to_ne_bytes());
    control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control.0[12..16].copy_from_slice(&libc::SO_TIMESTAMPING.to_ne_bytes());
    control.0[16..20].copy_from_slice(&moments.to_ne_bytes());
    send_with_control(socket, bytes, to, (&mut control, LENGTH), flags)
}

/// Sends a message with control messages of this length.
pub(super) fn send_with_control(
    socket: impl AsFd,
    bytes: &[u8],
    to: SendTarget<'_>,
    (control, length): (&mut ControlBuffer, usize),
    flags: c_int,
) -> std::result::Result<usize, Errno> {
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(), iov_len: bytes.len() };
    // SAFETY: `msghdr` holds integers and raw pointers, for which zero is valid.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    if let SendTarget::Sender(sender) = to {
        (header.msg_name, header.msg_namelen) = (sender.0.as_ptr().cast_mut().cast(), sender.0.addr_len());
    }
    header.msg_iov = ptr::from_mut(&mut vector);
    header.msg_iovlen = 1;
    if length > 0 {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = length.min(CONTROL_SIZE);
    }
    // SAFETY: the header points to one vector, its bytes, a name and the control message, all borrowed for the call, which only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const header, flags | libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

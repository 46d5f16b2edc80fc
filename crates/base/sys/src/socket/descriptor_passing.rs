//! Passes descriptors from threads with their own descriptor table to another thread (`SCM_RIGHTS`, unix(7)).
//!
//! This module does not know their purpose. Needs no privilege.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    io::{Errno, IoSlice, IoSliceMut},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketFlags, SocketType,
    },
};

use crate::{Error, Result};

/// A queue that passes descriptors from any thread to the one that created it.
///
/// Descriptors that nobody takes are closed with it.
#[derive(Debug)]
pub struct DescriptorQueue {
    giving: OwnedFd,
    taking: OwnedFd,
}

impl DescriptorQueue {
    /// Creates both ends. Threads that get their own descriptor table must keep the giving end
    /// ([`crate::process::limits::own_descriptors`]).
    ///
    /// # Errors
    /// `socketpair(AF_UNIX)`, if descriptors have run out.
    pub fn new() -> Result<Self> {
        // One message per descriptor, as many as the buffer holds: datagrams would be limited to net.unix.max_dgram_qlen, which is 10.
        let (giving, taking) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| Error::new("socketpair(AF_UNIX)", errno))?;
        Ok(Self { giving, taking })
    }

    /// The sending end, which has the same number in every table.
    #[must_use]
    pub fn giving(&self) -> BorrowedFd<'_> {
        self.giving.as_fd()
    }

    /// Sends a copy of a descriptor of the calling thread's table; does not wait.
    ///
    /// # Errors
    /// `sendmsg(SCM_RIGHTS)`: more are queued than the buffer holds (`EAGAIN`) or than this user may have open.
    pub fn give(&self, descriptor: impl AsFd) -> Result<()> {
        let given = [descriptor.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // There is room for exactly this one.
        control.push(SendAncillaryMessage::ScmRights(&given));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // A message needs at least one byte.
        rustix::net::sendmsg(&self.giving, &[IoSlice::new(&[0])], &mut control, flags)
            .map(drop)
            .map_err(|errno| Error::new("sendmsg(SCM_RIGHTS)", errno))
    }

    /// Takes the next descriptor into the calling thread's table; `None` if none is queued.
    ///
    /// # Errors
    /// `recvmsg(SCM_RIGHTS)`, if the table is full.
    pub fn take(&self) -> Result<Option<OwnedFd>> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(&self.taking, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(Error::new("recvmsg(SCM_RIGHTS)", errno)),
        }
        let mut taken = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        // A message without a descriptor means that this table had no room for it.
        taken.next().map(Some).ok_or_else(|| Error::new("recvmsg(SCM_RIGHTS)", Errno::MFILE))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, thread};

    use super::*;
    use crate::process::limits;

    #[test]
    fn what_a_thread_with_a_table_of_its_own_opens_is_used_by_another() {
        let handover = DescriptorQueue::new().unwrap();
        assert!(handover.take().unwrap().is_none(), "nothing was given");
        let given = thread::scope(|scope| {
            let giver = scope.spawn(|| {
                limits::own_descriptors(Some(handover.giving())).unwrap();
                let sockets: Vec<_> = (0..64).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
                for socket in &sockets {
                    handover.give(socket).unwrap();
                }
                sockets.iter().map(|socket| socket.local_addr().unwrap()).collect::<Vec<_>>()
            });
            giver.join().unwrap()
        });
        // The thread's table is gone with all its content.
        let taken: Vec<UdpSocket> = std::iter::from_fn(|| handover.take().unwrap()).map(UdpSocket::from).collect();
        assert!(taken.iter().map(|socket| socket.local_addr().unwrap()).eq(given));
    }
}

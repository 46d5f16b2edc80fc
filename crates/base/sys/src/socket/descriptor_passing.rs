//! Descriptors on their way from threads with a table of their own to one that shares none with them (`SCM_RIGHTS`, unix(7)).
//!
//! It knows nothing of what they are for. Needs no privilege.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    io::{Errno, IoSlice, IoSliceMut},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketFlags, SocketType,
    },
};

use crate::{Error, Result};

/// A counter over which descriptors are handed, from any thread to the one that made it.
///
/// What waits in it and nobody takes is closed with it.
#[derive(Debug)]
pub struct DescriptorQueue {
    giving: OwnedFd,
    taking: OwnedFd,
}

impl DescriptorQueue {
    /// Both ends; the giving one must be kept by threads that get a table of their own ([`crate::process::limits::own_descriptors`]).
    ///
    /// # Errors
    /// `socketpair(AF_UNIX)`, when descriptors have run out.
    pub fn new() -> Result<Self> {
        // One message for each descriptor, and as many as the buffer holds: datagrams would be at most
        // net.unix.max_dgram_qlen, which is 10.
        let (giving, taking) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| Error::new("socketpair(AF_UNIX)", errno))?;
        Ok(Self { giving, taking })
    }

    /// The end to give at, which has the same number in every table.
    #[must_use]
    pub fn giving(&self) -> BorrowedFd<'_> {
        self.giving.as_fd()
    }

    /// Hands over a copy of a descriptor of the calling thread's table; it does not wait.
    ///
    /// # Errors
    /// `sendmsg(SCM_RIGHTS)`: more are on their way than the buffer holds (`EAGAIN`) or than this user may have open.
    pub fn give(&self, descriptor: impl AsFd) -> Result<()> {
        let given = [descriptor.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // There is room for exactly this one.
        control.push(SendAncillaryMessage::ScmRights(&given));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Without a byte there is no message.
        rustix::net::sendmsg(&self.giving, &[IoSlice::new(&[0])], &mut control, flags)
            .map(drop)
            .map_err(|errno| Error::new("sendmsg(SCM_RIGHTS)", errno))
    }

    /// Takes the next one into the calling thread's table; nothing when none waits.
    ///
    /// # Errors
    /// `recvmsg(SCM_RIGHTS)`, when the table has no room.
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
        // A message without a descriptor is one that this table had no room for.
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
        // The table of the thread has gone with all that was in it.
        let taken: Vec<UdpSocket> = std::iter::from_fn(|| handover.take().unwrap()).map(UdpSocket::from).collect();
        assert!(taken.iter().map(|socket| socket.local_addr().unwrap()).eq(given));
    }
}

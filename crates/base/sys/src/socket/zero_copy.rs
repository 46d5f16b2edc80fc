//! Stream sends that save a copy: from a file in memory, and from the program's own pages.
//!
//! Needs no privilege. `MSG_ZEROCOPY` is Linux 4.14 for TCP (`Documentation/networking/msg_zerocopy.rst`); its pages count against
//! `RLIMIT_MEMLOCK`, and unfetched completions against `net.core.optmem_max`.

use std::{
    fs::File,
    io::Write,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use fathom_model::units::Nanos;
use rustix::{
    event::{PollFd, PollFlags},
    fs::{MemfdFlags, Mode, OFlags},
    io::Errno,
    net::SendFlags,
};

use crate::{
    Error, Result,
    socket::{self, error_of, not_now, stamped_message::StampedMessage},
};

/// An in-memory file that can be sent without a copy into the kernel.
#[derive(Debug)]
pub struct MemoryFile {
    file: OwnedFd,
    length: usize,
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePart {
    /// The start of the part.
    pub offset: usize,
    /// The length of the part.
    pub length: usize,
}

impl MemoryFile {
    /// Creates an unnamed file with these bytes.
    ///
    /// # Errors
    /// `memfd_create` and `write`: out of memory, or too many descriptors.
    pub fn of(bytes: &[u8]) -> Result<Self> {
        let file = rustix::fs::memfd_create("payload", MemfdFlags::CLOEXEC).map_err(error_of("memfd_create"))?;
        let mut file = File::from(file);
        file.write_all(bytes).map_err(error_of("write(memfd)"))?;
        Ok(Self { file: file.into(), length: bytes.len() })
    }

    /// The number of bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Sends a part of the file over a connected socket; `None` means not now, as for [`socket::send`].
    ///
    /// # Errors
    /// `sendfile`: reset by the peer, or shut down. It has no `MSG_NOSIGNAL`: the program must ignore `SIGPIPE`, as Rust programs do.
    pub fn send(&self, socket: impl AsFd, part: FilePart) -> Result<Option<usize>> {
        let mut offset = u64::try_from(part.offset).unwrap_or(u64::MAX);
        not_now(rustix::fs::sendfile(socket, &self.file, Some(&mut offset), part.length), "sendfile")
    }
}

/// Opens a file for sending; reads never block, even from a pipe.
///
/// # Errors
/// `open`: it does not exist, or this user may not read it.
pub fn open_source(path: &Path) -> Result<File> {
    open(path, OFlags::RDONLY)
}

/// Creates or truncates a file for received data, accessible to this user only; writes never block, even to a pipe.
///
/// # Errors
/// `open`: the folder does not exist or this user may not use it, or the file is a pipe without a reader.
pub fn open_sink(path: &Path) -> Result<File> {
    open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
}

fn open(path: &Path, flags: OFlags) -> Result<File> {
    let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::RUSR | Mode::WUSR);
    opened.map(File::from).map_err(error_of("open"))
}

/// Sends the next part of an open file without a copy; zero bytes mean its end, `None` means not now.
///
/// # Errors
/// `sendfile`: as [`MemoryFile::send`], or if the file cannot be read.
pub fn send_next(socket: impl AsFd, file: impl AsFd, at_most: usize) -> Result<Option<usize>> {
    not_now(rustix::fs::sendfile(socket, file, None, at_most), "sendfile")
}

/// Enables zero-copy sends on a socket (`SO_ZEROCOPY`).
///
/// # Errors
/// `setsockopt(SO_ZEROCOPY)`: Linux before 4.14, or not a TCP socket.
pub fn allow_zerocopy(socket: impl AsFd) -> Result<()> {
    socket::set(socket, (libc::SOL_SOCKET, libc::SO_ZEROCOPY), &1).map_err(error_of("setsockopt(SO_ZEROCOPY)"))
}

/// The result of a zero-copy send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroCopyResult {
    /// The kernel accepted this many bytes; their pages must not change before the completion.
    Sent(usize),
    /// The send buffer is full, or the timeout has passed.
    WouldBlock,
    /// Too many completions are outstanding (`ENOBUFS`): fetch completions first.
    NoBuffers,
}

/// Sends without copying (`MSG_ZEROCOPY`); blocks if the socket is blocking.
///
/// # Errors
/// `send(MSG_ZEROCOPY)`: reset by the peer, or shut down.
pub fn send_uncopied(socket: impl AsFd, bytes: &[u8]) -> Result<ZeroCopyResult> {
    let flags = SendFlags::NOSIGNAL | SendFlags::from_bits_retain(libc::MSG_ZEROCOPY.unsigned_abs());
    match rustix::net::send(socket, bytes, flags) {
        Ok(count) => Ok(ZeroCopyResult::Sent(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(ZeroCopyResult::WouldBlock),
        Err(Errno::NOBUFS) => Ok(ZeroCopyResult::NoBuffers),
        Err(error) => Err(Error::new("send(MSG_ZEROCOPY)", error)),
    }
}

/// Zero-copy sends whose pages the kernel no longer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZeroCopyCompletion {
    /// The number of calls of [`send_uncopied`].
    pub n_sends: u32,
    /// Whether the kernel copied them after all (`SO_EE_CODE_ZEROCOPY_COPIED`).
    pub was_copied: bool,
}

/// Returns the next completion; `None` if there is none.
///
/// # Errors
/// `recvmsg(MSG_ERRQUEUE)`, if it is not a socket.
pub fn completion(socket: impl AsFd) -> Result<Option<ZeroCopyCompletion>> {
    // `struct sock_extended_err` (include/uapi/linux/errqueue.h): the numbers of the first and the last send of a range.
    const ORIGIN_ZEROCOPY: u8 = 5;
    const ZEROCOPY_COPIED: u8 = 1;
    const ORIGIN: usize = 4;
    const CODE: usize = 6;
    const FIRST: usize = 8;
    const LAST: usize = 12;
    let number = |error: &[u8], at: usize| error.get(at..)?.first_chunk().map(|number| u32::from_ne_bytes(*number));
    let received = not_now(
        StampedMessage::receive(socket, &mut [], libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT),
        "recvmsg(MSG_ERRQUEUE)",
    )?;
    Ok(received.and_then(|message| {
        let error = message.extended_error()?;
        let is_completion = error.get(ORIGIN) == Some(&ORIGIN_ZEROCOPY);
        let n_sends = number(error, LAST)?.wrapping_sub(number(error, FIRST)?).wrapping_add(1);
        let was_copied = error.get(CODE)? & ZEROCOPY_COPIED != 0;
        is_completion.then_some(ZeroCopyCompletion { n_sends, was_copied })
    }))
}

/// Waits until there is a completion or the connection is broken, at most `at_most`.
///
/// # Errors
/// `poll`, if it is not a socket.
pub fn wait_for_completion(socket: impl AsFd, at_most: Nanos) -> Result<()> {
    let timeout = rustix::event::Timespec {
        tv_sec: i64::try_from(at_most.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(at_most.0 % 1_000_000_000).unwrap_or(0),
    };
    // Errors are reported even if not requested.
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    not_now(rustix::event::poll(&mut polled, Some(&timeout)), "poll").map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::policy::{AllowedPeers, anywhere};
    use crate::{
        clock,
        reactor::epoll_wait::{Epoll, Interest, ReadyList},
        socket::{Socket, Wait},
    };

    const SECOND: Nanos = Nanos::from_secs(1);

    fn pair() -> (Socket, Socket) {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = socket::listen(loopback, 8, &AllowedPeers::anybody()).unwrap();
        let near = socket::stream(loopback).unwrap();
        socket::connect(&near, &anywhere(socket::local_address(&listener).unwrap()), SECOND).unwrap();
        let (epoll, mut events) = (Epoll::new().unwrap(), ReadyList::with_capacity(1));
        epoll.add(&listener, 0, Interest::READ).unwrap();
        epoll.wait(&mut events, Some(SECOND)).unwrap();
        let far = socket::accept(&listener).unwrap().unwrap().0;
        far.set_nonblocking(false).unwrap();
        socket::set_timeout(&far, SECOND).unwrap();
        (near, far)
    }

    fn received(far: &Socket, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut n = 0;
        while n < length {
            n += socket::recv(far, &mut bytes[n..], Wait::Block).unwrap().expect("the rest comes in time");
        }
        bytes
    }

    #[test]
    fn a_part_of_a_file_arrives_as_it_is() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let file = MemoryFile::of(&bytes).unwrap();
        assert_eq!(file.length(), 10_000);
        let (near, far) = pair();
        assert_eq!(file.send(&near, FilePart { offset: 4_000, length: 5_000 }).unwrap(), Some(5_000));
        assert_eq!(received(&far, 5_000), bytes[4_000..9_000]);
        drop(far);
        let begin = clock::now();
        let error = loop {
            match file.send(&near, FilePart { offset: 0, length: 10_000 }) {
                Err(error) => break error,
                Ok(_) => assert!(clock::now() - begin < SECOND, "the end of the peer is noticed"),
            }
        };
        assert!(matches!(error.errno(), Some(libc::EPIPE | libc::ECONNRESET)), "{error:?}");
    }

    #[test]
    fn every_send_without_a_copy_is_completed_and_loopback_copies_after_all() {
        let (near, far) = pair();
        allow_zerocopy(&near).unwrap();
        let bytes = vec![7; 30_000];
        for _ in 0..3 {
            assert_eq!(send_uncopied(&near, &bytes).unwrap(), ZeroCopyResult::Sent(30_000));
            assert_eq!(received(&far, 30_000), bytes);
        }
        let (begin, mut n_sends) = (clock::now(), 0);
        while n_sends < 3 && clock::now() - begin < SECOND {
            wait_for_completion(&near, SECOND).unwrap();
            while let Some(completion) = completion(&near).unwrap() {
                assert!(completion.was_copied, "packets to the own host are copied (skb_orphan_frags_rx)");
                n_sends += completion.n_sends;
            }
        }
        assert_eq!(n_sends, 3);
        assert_eq!(completion(&near).unwrap(), None);
    }
}

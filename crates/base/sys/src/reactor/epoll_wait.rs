//! Readiness of many descriptors.
//!
//! A thin layer over `epoll(7)` with timeouts in nanoseconds (`epoll_pwait2`, Linux 5.11). It does not own the watched descriptors and
//! knows nothing about their data.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fathom_model::units::Nanos;
use rustix::{buffer::spare_capacity, event::epoll, io::Errno, time::Timespec};

use crate::{Error, Result};

/// The events to report for a descriptor; hang-ups and errors are always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// Report when bytes, connections or the end can be received.
    pub read: bool,
    /// Report when bytes can be sent, or when a connect has finished.
    pub write: bool,
    /// Report once per change (`EPOLLET`); the reader must then drain the descriptor.
    pub edge: bool,
}

impl Interest {
    /// Level-triggered, for reading.
    pub const READ: Self = Self { read: true, write: false, edge: false };
    /// Level-triggered, for writing.
    pub const WRITE: Self = Self { read: false, write: true, edge: false };

    /// Only hang-ups and errors.
    pub const NONE: Self = Self { read: false, write: false, edge: false };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN | epoll::EventFlags::RDHUP, self.read);
        flags.set(epoll::EventFlags::OUT, self.write);
        flags.set(epoll::EventFlags::ET, self.edge);
        flags
    }
}

/// A descriptor that became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    /// The token with which the descriptor was added.
    pub token: u64,
    /// A receive would not block; also set after a hang-up, so that the reader sees the end.
    pub readable: bool,
    /// A send would not block.
    pub writable: bool,
    /// The connection broke or was refused; `SO_ERROR` has the reason.
    pub failed: bool,
}

/// A buffer for the events of one wait, allocated once.
pub struct ReadyList(Vec<epoll::Event>);

impl ReadyList {
    /// Creates a buffer for at most `capacity` events per wait, at least one.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity.max(1)))
    }

    /// The events of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = Readiness> + '_ {
        self.0.iter().map(Readiness::of)
    }

    /// One of the events that the last wait reported.
    #[must_use]
    pub fn get(&self, idx: usize) -> Option<Readiness> {
        self.0.get(idx).map(Readiness::of)
    }
}

impl Readiness {
    fn of(event: &epoll::Event) -> Self {
        let flags = event.flags;
        Self {
            token: event.data.u64(),
            readable: flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::HUP),
            writable: flags.contains(epoll::EventFlags::OUT),
            failed: flags.contains(epoll::EventFlags::ERR),
        }
    }
}

/// The kernel's list of watched descriptors; closing a descriptor removes it.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Creates an empty list.
    ///
    /// # Errors
    /// `epoll_create1`, if descriptors have run out.
    pub fn new() -> Result<Self> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Self).map_err(|error| Error::new("epoll_create1", error))
    }

    /// Adds a descriptor; its events carry `token`.
    ///
    /// # Errors
    /// `epoll_ctl(EPOLL_CTL_ADD)`, if it is already watched or cannot be watched (a regular file).
    pub fn add(&self, fd: &impl AsFd, token: u64, interest: Interest) -> Result<()> {
        epoll::add(&self.0, fd, epoll::EventData::new_u64(token), interest.flags())
            .map_err(|error| Error::new("epoll_ctl(EPOLL_CTL_ADD)", error))
    }

    /// Changes the token and interest of a watched descriptor.
    ///
    /// # Errors
    /// `epoll_ctl(EPOLL_CTL_MOD)`, if it is not watched.
    pub fn modify(&self, fd: &impl AsFd, token: u64, interest: Interest) -> Result<()> {
        epoll::modify(&self.0, fd, epoll::EventData::new_u64(token), interest.flags())
            .map_err(|error| Error::new("epoll_ctl(EPOLL_CTL_MOD)", error))
    }

    /// Stops watching a descriptor that stays open.
    ///
    /// # Errors
    /// `epoll_ctl(EPOLL_CTL_DEL)`, if it is not watched.
    pub fn remove(&self, fd: &impl AsFd) -> Result<()> {
        epoll::delete(&self.0, fd).map_err(|error| Error::new("epoll_ctl(EPOLL_CTL_DEL)", error))
    }

    /// Blocks until a descriptor is ready, at most `timeout`; returns the number of events.
    ///
    /// A signal ends the wait early with zero events.
    ///
    /// # Errors
    /// `epoll_pwait2`: Linux before 5.11, or a seccomp filter that does not know the call.
    pub fn wait(&self, events: &mut ReadyList, timeout: Option<Nanos>) -> Result<usize> {
        // A span beyond the kernel's range (292 years) is treated as unlimited.
        let timeout = timeout.and_then(|span| Timespec::try_from(span.as_duration()).ok());
        events.0.clear();
        match epoll::wait(&self.0, spare_capacity(&mut events.0), timeout.as_ref()) {
            Ok(count) => Ok(count),
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(Error::new("epoll_pwait2", error)),
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;
    use crate::clock;

    fn ready(epoll: &Epoll, events: &mut ReadyList) -> Vec<Readiness> {
        epoll.wait(events, Some(Nanos::ZERO)).unwrap();
        events.iter().collect()
    }

    #[test]
    fn a_descriptor_with_bytes_is_readable_under_its_token() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let (epoll, mut events) = (Epoll::new().unwrap(), ReadyList::with_capacity(4));
        epoll.add(&near, 7, Interest::READ).unwrap();
        assert_eq!(ready(&epoll, &mut events), []);
        far.write_all(b"x").unwrap();
        assert_eq!(
            ready(&epoll, &mut events),
            [Readiness { token: 7, readable: true, writable: false, failed: false }]
        );
        epoll.modify(&near, 8, Interest::WRITE).unwrap();
        assert_eq!(
            ready(&epoll, &mut events),
            [Readiness { token: 8, readable: false, writable: true, failed: false }]
        );
        epoll.remove(&near).unwrap();
        assert_eq!(ready(&epoll, &mut events), []);
        assert_eq!(epoll.remove(&near).unwrap_err().to_string(), "epoll_ctl(EPOLL_CTL_DEL)");
    }

    #[test]
    fn an_edge_is_told_once() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let (epoll, mut events) = (Epoll::new().unwrap(), ReadyList::with_capacity(4));
        epoll.add(&near, 1, Interest { edge: true, ..Interest::READ }).unwrap();
        far.write_all(b"x").unwrap();
        assert_eq!(ready(&epoll, &mut events).len(), 1);
        assert_eq!(ready(&epoll, &mut events).len(), 0);
    }

    #[test]
    fn a_closed_peer_is_readable() {
        let (far, near) = UnixStream::pair().unwrap();
        let (epoll, mut events) = (Epoll::new().unwrap(), ReadyList::with_capacity(4));
        epoll.add(&near, 1, Interest::READ).unwrap();
        drop(far);
        assert!(ready(&epoll, &mut events)[0].readable);
    }

    #[test]
    fn a_time_out_shorter_than_a_millisecond_is_not_rounded_away() {
        let (epoll, mut events) = (Epoll::new().unwrap(), ReadyList::with_capacity(1));
        let begin = clock::now();
        assert_eq!(epoll.wait(&mut events, Some(Nanos::from_micros(300))).unwrap(), 0);
        assert!(clock::now() - begin >= Nanos::from_micros(300));
    }
}

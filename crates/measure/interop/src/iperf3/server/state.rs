//! The state shared by all sessions of a server, and by a session and the acceptor.

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use fathom_engine::StopFlag;

use super::ServerOptions;

/// The connections and datagrams that a session waits for, shared with the acceptor.
#[derive(Debug, Default)]
pub(super) struct ExpectedStreams {
    pub(super) connections: AtomicUsize,
    pub(super) datagrams: AtomicUsize,
}

impl ExpectedStreams {
    /// Takes one of the expected streams; returns whether there was one.
    pub(super) fn take(wanted: &AtomicUsize) -> bool {
        wanted.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1)).is_ok()
    }
}

/// The addresses of clients that are opening UDP streams: one client per address at a time, because a datagram has no cookie.
pub(super) type UdpOpenSlots = Mutex<HashSet<IpAddr>>;

/// The state shared by all sessions.
pub(super) struct ServerState {
    pub(super) options: ServerOptions,
    pub(super) udp_open_slots: UdpOpenSlots,
    pub(super) n_streams: AtomicUsize,
    pub(super) stop: StopFlag,
    pub(super) finished: AtomicU64,
    pub(super) failed: AtomicU64,
}

/// The right of an address to open UDP streams, returned on drop.
pub(super) struct UdpOpenSlot<'a> {
    slots: &'a UdpOpenSlots,
    ip: IpAddr,
}

impl<'a> UdpOpenSlot<'a> {
    /// Takes the slot unless another client of this address has it.
    pub(super) fn take(turns: &'a UdpOpenSlots, ip: IpAddr) -> Option<Self> {
        let is_free = turns.lock().unwrap_or_else(PoisonError::into_inner).insert(ip);
        is_free.then_some(Self { slots: turns, ip })
    }
}

impl Drop for UdpOpenSlot<'_> {
    fn drop(&mut self) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.ip);
    }
}

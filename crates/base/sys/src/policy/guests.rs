//! The peers of a responder's socket: the kernel drops packets from everyone else before they reach the socket.
//!
//! Kernels since June 2026 let only `CAP_NET_ADMIN` filter the packets of a TCP socket (Linux commit 5d39580f68e6, which the stable
//! kernels got too), and MPTCP sockets have no filter at all. There a [`Listener`](crate::socket::Listener) refuses strangers itself. A
//! UDP socket is filtered for every user; where something else forbids it, it is not opened.

use std::{
    io,
    net::IpAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use socket2::{SockFilter, SockRef, Socket};

use super::Network;
use crate::{Error, Result, process::limits::has_own_descriptors, socket::drops};

/// The peers whose packets a socket accepts; everyone, if the list is empty.
#[derive(Debug, Clone)]
pub struct AllowedPeers {
    networks: Vec<Network>,
    guarded: GuardedSockets,
    is_filter_used: bool,
}

/// Who keeps the strangers of a listener away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The kernel, or nobody because everyone is allowed.
    Kernel,
    /// The program, when it accepts.
    Program,
}

/// Why the kernel keeps no strangers away from a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfiltered {
    /// Only `CAP_NET_ADMIN` may filter the packets of a TCP socket.
    Privilege,
    /// MPTCP sockets have no filter.
    Multipath,
}

/// The guarded sockets of one role.
#[derive(Debug, Clone)]
pub(super) struct GuardedSockets(Option<Arc<SocketGuards>>);

#[derive(Debug, Default)]
struct SocketGuards {
    /// Duplicate descriptors, for reading the drop counts at the end.
    filtered: Mutex<Vec<Socket>>,
    unfiltered: OnceLock<Unfiltered>,
    n_reset: AtomicU64,
}

impl GuardedSockets {
    /// Counts nothing.
    pub(super) const NONE: Self = Self(None);

    pub(super) fn counting() -> Self {
        Self(Some(Arc::default()))
    }

    /// Skips sockets of threads with their own descriptor table, because a duplicate would be meaningless on other threads.
    fn add(&self, socket: &SockRef<'_>) {
        let Some(guards) = self.0.as_ref().filter(|_| !has_own_descriptors()) else { return };
        guards.filtered.lock().unwrap_or_else(PoisonError::into_inner).extend(socket.try_clone());
    }

    pub(super) fn n_dropped(&self) -> u64 {
        let Some(guards) = &self.0 else { return 0 };
        let sockets = guards.filtered.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.iter().filter_map(|socket| drops(socket).ok()).map(u64::from).sum()
    }

    pub(super) fn n_reset(&self) -> Option<u64> {
        self.unfiltered()?;
        Some(self.0.as_ref()?.n_reset.load(Ordering::Relaxed))
    }

    pub(super) fn unfiltered(&self) -> Option<Unfiltered> {
        self.0.as_ref()?.unfiltered.get().copied()
    }
}

impl AllowedPeers {
    /// Accepts everyone: for public servers and for tests.
    #[must_use]
    pub const fn anybody() -> Self {
        Self::of(Vec::new())
    }

    /// Accepts these networks; everyone, if there are none.
    #[must_use]
    pub const fn of(networks: Vec<Network>) -> Self {
        Self::of_role(networks, GuardedSockets::NONE)
    }

    pub(super) const fn of_role(networks: Vec<Network>, guarded: GuardedSockets) -> Self {
        Self { networks, guarded, is_filter_used: true }
    }

    /// Leaves all listeners to the program, as on a kernel that refuses the filter: for tests of servers.
    #[must_use]
    pub fn without_filter(self) -> Self {
        Self { is_filter_used: false, ..self }
    }

    /// The networks that it accepts; empty if it accepts everyone. For programs that decide before there is a socket.
    #[must_use]
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// Returns whether packets from an address are accepted.
    #[must_use]
    pub fn admit(&self, address: IpAddr) -> bool {
        self.networks.is_empty() || self.networks.iter().any(|network| network.contains(address))
    }

    /// Returns whether a connection from an address is let in, and counts it if it is not.
    pub(crate) fn let_in(&self, peer: IpAddr) -> bool {
        let is_allowed = self.admit(peer);
        if let Some(guards) = self.guarded.0.as_ref().filter(|_| !is_allowed) {
            guards.n_reset.fetch_add(1, Ordering::Relaxed);
        }
        is_allowed
    }

    /// Blocks connects from everyone else on a socket that will listen, or says that the program has to refuse them.
    ///
    /// A blocked connect gets no reply. Accepted connections inherit the filter.
    ///
    /// # Errors
    /// `setsockopt(SO_ATTACH_FILTER)`, if it is not a TCP socket.
    pub(crate) fn guard_listener(&self, socket: &Socket) -> Result<Guard> {
        let outcome = if self.is_filter_used || self.networks.is_empty() {
            self.guard(socket)
        } else {
            Err(Error::new(ATTACH, io::Error::from_raw_os_error(libc::EPERM)))
        };
        match outcome {
            Ok(()) => Ok(Guard::Kernel),
            Err(error) if is_filter_refused(&error) => Ok(self.leave_to_program(Unfiltered::Privilege)),
            Err(error) => Err(error),
        }
    }

    /// Remembers why a listener of the role has no filter.
    pub(crate) fn leave_to_program(&self, why: Unfiltered) -> Guard {
        if self.networks.is_empty() {
            return Guard::Kernel;
        }
        if let Some(guards) = &self.guarded.0 {
            // A role has listeners of one kind, so the first reason is that of all.
            let _ = guards.unfiltered.set(why);
        }
        Guard::Program
    }

    /// Blocks packets from everyone else on a UDP socket. A listener is guarded by [`Listener`](crate::socket::Listener).
    ///
    /// Dropped packets count in [`crate::socket::drops`]. Needs no privilege.
    ///
    /// # Errors
    /// `setsockopt(SO_ATTACH_FILTER)`, if it is not a socket, or something refuses filters to this user.
    pub fn guard<'s, S>(&self, socket: &'s S) -> Result<()>
    where
        SockRef<'s>: From<&'s S>,
    {
        if self.networks.is_empty() {
            return Ok(());
        }
        let socket = SockRef::from(socket);
        let attached = socket.attach_filter(&program(&self.networks));
        attached.map_err(|error| Error::new(ATTACH, error))?;
        self.guarded.add(&socket);
        Ok(())
    }
}

const ATTACH: &str = "setsockopt(SO_ATTACH_FILTER)";

/// Whether the packets of a socket may only be filtered with `CAP_NET_ADMIN`.
#[must_use]
pub fn is_filter_refused(error: &Error) -> bool {
    error.call == ATTACH && error.is_permission()
}

/// Instructions of classic BPF (`include/uapi/linux/bpf_common.h`).
mod op {
    pub(super) const LOAD_BYTE: u16 = 0x30;
    pub(super) const LOAD_WORD: u16 = 0x20;
    pub(super) const SHIFT_RIGHT: u16 = 0x74;
    pub(super) const AND: u16 = 0x54;
    pub(super) const IF_EQUAL: u16 = 0x15;
    pub(super) const JUMP: u16 = 0x05;
    pub(super) const RETURN: u16 = 0x06;
}

/// The start of the IP header (`SKF_NET_OFF`), for any protocol above it.
const IP_HEADER: u32 = 0xfff0_0000;
/// The offset of the source address in it (RFC 791 section 3.1, RFC 8200 section 3).
const SOURCE_V4: u32 = IP_HEADER + 12;
const SOURCE_V6: u32 = IP_HEADER + 8;
const TAKE: SockFilter = SockFilter::new(op::RETURN, 0, 0, u32::MAX);
const DROP: SockFilter = SockFilter::new(op::RETURN, 0, 0, 0);

/// Accepts packets whose source address is inside one of the networks.
fn program(networks: &[Network]) -> Vec<SockFilter> {
    let step = |code, k| SockFilter::new(code, 0, 0, k);
    let of = |is_v4: bool| networks.iter().filter(move |network| network.address.is_ipv4() == is_v4);
    let v4: Vec<SockFilter> = of(true).flat_map(|network| within(network, SOURCE_V4)).chain([DROP]).collect();
    let v6 = of(false).flat_map(|network| within(network, SOURCE_V6)).chain([DROP]);
    let past_v4 = u32::try_from(v4.len()).expect("there are few networks");
    let is_v6 = SockFilter::new(op::IF_EQUAL, 0, 1, 6);
    let version = [step(op::LOAD_BYTE, IP_HEADER), step(op::SHIFT_RIGHT, 4), is_v6, step(op::JUMP, past_v4)];
    version.into_iter().chain(v4).chain(v6).collect()
}

/// Accepts packets whose address at this offset is inside a network; otherwise continues after this block.
fn within(network: &Network, at: u32) -> Vec<SockFilter> {
    let bits = network.bits();
    let words: Vec<(u32, u32, u32)> = (0..4_u32)
        .zip(bits)
        .take(if network.address.is_ipv4() { 1 } else { 4 })
        .map(|(word, bits)| {
            let n_bits = network.prefix.saturating_sub(32 * word).min(32);
            (at + 4 * word, u32::MAX.checked_shl(32 - n_bits).unwrap_or(0), bits)
        })
        .filter(|(_, mask, _)| *mask != 0)
        .collect();
    let n_words = words.len();
    let compare = |(idx, (at, mask, bits)): (usize, (u32, u32, u32))| {
        let past = u8::try_from(3 * (n_words - 1 - idx) + 1).expect("an address has four words");
        [
            SockFilter::new(op::LOAD_WORD, 0, 0, at),
            SockFilter::new(op::AND, 0, 0, mask),
            SockFilter::new(op::IF_EQUAL, 0, past, bits & mask),
        ]
    };
    words.into_iter().enumerate().flat_map(compare).chain([TAKE]).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use fathom_model::units::Nanos;

    use super::*;
    use crate::policy::ResolvedNames;
    use crate::{
        policy::Policy,
        socket::{self, Wait},
    };

    fn guests(networks: &[&str]) -> AllowedPeers {
        let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
        AllowedPeers::of(networks)
    }

    /// Returns whether a datagram from one address of this machine reaches a guarded socket.
    fn reaches(guests: &AllowedPeers, (from, at): (&str, &str)) -> bool {
        let far = socket::datagram(at.parse().unwrap(), guests).unwrap();
        let to = socket::local_address(&far).unwrap();
        let near = UdpSocket::bind(from.parse::<SocketAddr>().unwrap()).unwrap();
        near.send_to(b"hello", to).unwrap();
        socket::recv(&far, &mut [0; 8], Wait::Never).unwrap() == Some(5)
    }

    #[test]
    fn packets_of_guests_are_taken_and_those_of_others_dropped() {
        let cases: &[(&[&str], &str, bool)] = &[
            (&[], "127.0.0.9:0", true),
            (&["127.0.0.9"], "127.0.0.9:0", true),
            (&["127.0.0.9"], "127.0.0.8:0", false),
            (&["10.0.0.0/8", "127.0.0.0/30"], "127.0.0.3:0", true),
            (&["10.0.0.0/8", "127.0.0.0/30"], "127.0.0.4:0", false),
            (&["::1", "::/0"], "127.0.0.1:0", false),
            (&["0.0.0.0/0"], "127.0.0.1:0", true),
        ];
        for (networks, from, expected) in cases {
            assert_eq!(reaches(&guests(networks), (from, "127.0.0.1:0")), *expected, "{networks:?} {from}");
        }
        assert!(reaches(&guests(&["10.0.0.0/8", "::1"]), ("[::1]:0", "[::1]:0")));
        assert!(reaches(&guests(&["::/120"]), ("[::1]:0", "[::1]:0")));
        assert!(!reaches(&guests(&["::2", "::1:0:0:1", "127.0.0.1"]), ("[::1]:0", "[::1]:0")));
    }

    #[test]
    fn packets_of_strangers_are_counted_over_all_sockets_of_a_role() {
        let policy = Policy::anything().of_one_role(ResolvedNames::new());
        let guests = policy.guests(&["127.0.0.9".parse().unwrap()], None);
        let sockets = [0, 1].map(|_| socket::datagram("127.0.0.1:0".parse().unwrap(), &guests).unwrap());
        for (from, times) in [("127.0.0.9:0", 2), ("127.0.0.8:0", 3)] {
            let near = UdpSocket::bind(from.parse::<SocketAddr>().unwrap()).unwrap();
            for (socket, _) in sockets.iter().cycle().zip(0..times) {
                near.send_to(b"hello", socket::local_address(socket).unwrap()).unwrap();
            }
        }
        assert_eq!((policy.n_dropped(), Policy::anything().n_dropped()), (3, 0));
    }

    #[test]
    fn sockets_of_a_thread_with_descriptors_of_its_own_are_not_asked_on_another() {
        let policy = Policy::anything().of_one_role(ResolvedNames::new());
        let guests = policy.guests(&["127.0.0.9".parse().unwrap()], None);
        let guard_there = || {
            crate::process::limits::own_descriptors(None).unwrap();
            socket::datagram("127.0.0.1:0".parse().unwrap(), &guests).map(drop).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(guard_there).join().unwrap());
        assert_eq!(policy.n_dropped(), 0);
        // Dropping a descriptor of another table would close an invalid one here, which aborts the process.
        drop((policy, guests));
    }

    #[test]
    fn a_stranger_does_not_get_a_connection() {
        let listener = socket::listen("127.0.0.1:0".parse().unwrap(), 8, &guests(&["127.0.0.9"])).unwrap();
        let to = socket::local_address(&listener).unwrap();
        let connects = |from: &str| {
            let near = socket::stream(to).unwrap();
            near.bind(&from.parse::<SocketAddr>().unwrap().into()).unwrap();
            near.connect_timeout(&to.into(), Nanos::from_millis(100).as_duration()).is_ok()
        };
        assert!(!connects("127.0.0.8:0") && connects("127.0.0.9:0"));
        assert!(socket::accept(&listener).unwrap().unwrap().1.ip().to_string() == "127.0.0.9");
        assert!(socket::accept(&listener).unwrap().is_none());
        assert!(socket::drops(&listener).unwrap() > 0, "it is counted");
    }
}

//! What the threads of a server share: its limits, its running flows, and the addresses that have proven themselves.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use fathom_model::units::Nanos;
use fathom_sys::clock;

use super::options::{BackTraffic, ServerOptions};
use crate::{
    iperf2::{ClientHeader, Error, FlowTable, flow::FlowGroup, flow_table::RunningFlow},
    sockets::ServerTotals,
};

/// How long a TCP test that an address has opened proves it for tests in datagrams.
const PROOF_MAX: Nanos = Nanos::from_secs(600);
/// The most proven addresses; a further one replaces the oldest.
const PROVEN_MAX: usize = 1024;
/// How long the flows of a group may follow its first one: they are opened together, and a lost SYN is sent again after 1 s.
const GROUP_OPEN_MAX: Nanos = Nanos::from_secs(3);
/// The shortest time between two remarks on refused datagrams, so that a flood of them is no flood of lines.
const REMARK_EVERY: Nanos = Nanos::from_secs(1);

/// The state shared by the threads of a server.
pub(super) struct ServerState {
    pub(super) options: ServerOptions,
    pub(super) address: SocketAddr,
    is_over: AtomicBool,
    n_active: AtomicUsize,
    /// Flows that clients asked this side for (`-d`, `-r`). They have places of their own, so that a server of one client can serve both.
    n_back: AtomicUsize,
    n_started: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
    last_busy: Mutex<Nanos>,
    running: Mutex<Vec<Arc<RunningFlow>>>,
    proven: Mutex<HashMap<IpAddr, Nanos>>,
    groups: Mutex<HashMap<IpAddr, OpenGroup>>,
    last_remark: Mutex<Option<Nanos>>,
}

/// A group of parallel flows of which some are still to come.
#[derive(Debug, Clone, Copy)]
struct OpenGroup {
    group: FlowGroup,
    n_joined: u32,
    began: Nanos,
}

/// Why a flow gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    /// The server has had all the flows that it was started for.
    NoTestsLeft,
    /// As many flows run as the server takes.
    Full,
}

/// The place of a flow among those that a server has room for. It is free again when this is dropped.
pub(super) struct FlowPlace<'s> {
    state: &'s ServerState,
    taken: &'s AtomicUsize,
}

impl<'s> FlowPlace<'s> {
    /// Takes one of the places that are counted here; `None` if all are taken.
    fn take(state: &'s ServerState, taken: &'s AtomicUsize) -> Option<Self> {
        let place = Self { state, taken };
        // Without room, dropping the place gives it back.
        (taken.fetch_add(1, Ordering::AcqRel) < state.options.flows_max).then_some(place)
    }
}

impl Drop for FlowPlace<'_> {
    fn drop(&mut self) {
        *lock(&self.state.last_busy) = clock::now();
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServerState {
    pub(super) fn new(options: ServerOptions, address: SocketAddr) -> Self {
        Self {
            options,
            address,
            is_over: AtomicBool::new(false),
            n_active: AtomicUsize::new(0),
            n_back: AtomicUsize::new(0),
            n_started: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            last_busy: Mutex::new(clock::now()),
            running: Mutex::default(),
            proven: Mutex::default(),
            groups: Mutex::default(),
            last_remark: Mutex::default(),
        }
    }

    /// Whether clients at an address are served.
    pub(super) fn is_welcome(&self, from: IpAddr) -> bool {
        self.options.is_client_allowed.as_ref().is_none_or(|admits| admits(from.to_canonical()))
    }

    /// Gives a flow of a client a place, and counts it as a test.
    pub(super) fn admit(&self) -> Result<FlowPlace<'_>, NotAdmitted> {
        if self.options.tests.is_some_and(|tests| self.n_started.load(Ordering::Acquire) >= tests) {
            return Err(NotAdmitted::NoTestsLeft);
        }
        let place = FlowPlace::take(self, &self.n_active).ok_or(NotAdmitted::Full)?;
        self.n_started.fetch_add(1, Ordering::AcqRel);
        Ok(place)
    }

    /// Gives a flow to a client, which belongs to the test of another flow, a place; `None` if there is no room.
    pub(super) fn admit_back(&self) -> Option<FlowPlace<'_>> {
        FlowPlace::take(self, &self.n_back)
    }

    /// Counts a connection or a datagram that was turned away.
    pub(super) fn reject(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a place without its test back: a connection that carried nothing.
    pub(super) fn discount(&self) {
        self.n_started.fetch_sub(1, Ordering::AcqRel);
        self.reject();
    }

    /// Whether the requested flows are done, or the server has been idle for too long.
    pub(super) fn is_complete(&self) -> bool {
        if self.n_active.load(Ordering::Acquire) > 0 || self.n_back.load(Ordering::Acquire) > 0 {
            return false;
        }
        let is_idle = || self.options.idle.is_some_and(|idle| clock::now() - *lock(&self.last_busy) > idle);
        self.options.tests.is_some_and(|tests| self.n_started.load(Ordering::Acquire) >= tests) || is_idle()
    }

    /// Ends all flows.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        lock(&self.running).iter().for_each(|flow| flow.stop());
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Remembers a flow until it ends, so that it can be stopped.
    pub(super) fn begin(&self, flow: &Arc<RunningFlow>) {
        lock(&self.running).push(flow.clone());
        if self.is_over() {
            flow.stop();
        }
    }

    /// Reports the end of a flow and forgets it.
    pub(super) fn end(&self, flow: &Arc<RunningFlow>, at: Nanos, table: &FlowTable<'_>) -> crate::iperf2::FlowOutcome {
        lock(&self.running).retain(|other| !Arc::ptr_eq(other, flow));
        table.end(flow, at)
    }

    /// Counts a flow that was completed, or one that failed.
    pub(super) fn count(&self, outcome: &Result<(), Error>) {
        let counter = if outcome.is_ok() { &self.finished } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn totals(&self) -> ServerTotals {
        ServerTotals {
            finished: self.finished.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            rejected: self.rejected.load(Ordering::Relaxed),
        }
    }

    /// Remembers an address whose handshake was completed.
    pub(super) fn prove(&self, address: IpAddr) {
        let mut proven = lock(&self.proven);
        if proven.len() >= PROVEN_MAX && !proven.contains_key(&address) {
            let oldest = proven.iter().min_by_key(|(_, at)| **at).map(|(address, _)| *address);
            oldest.and_then(|oldest| proven.remove(&oldest));
        }
        proven.insert(address, clock::now());
    }

    /// Whether datagrams may be sent to an address that asks for them, or the reason why not.
    pub(super) fn check_back_datagrams(&self, address: IpAddr) -> Result<(), String> {
        let is_proven = || lock(&self.proven).get(&address).is_some_and(|at| clock::now() - *at < PROOF_MAX);
        match &self.options.back_traffic {
            BackTraffic::Never => Err("this server sends nothing".to_owned()),
            // The kernel takes no packet of these addresses from a wire.
            _ if address.is_loopback() => Ok(()),
            BackTraffic::Permitted(permits) if permits(address) => Ok(()),
            BackTraffic::ProvenPeers | BackTraffic::Permitted(_) if is_proven() => Ok(()),
            BackTraffic::ProvenPeers | BackTraffic::Permitted(_) => {
                Err("the source of a datagram can be forged, and this one is neither allowed nor proven over TCP"
                    .to_owned())
            }
        }
    }

    /// Returns whether a remark on refused datagrams may be made now.
    pub(super) fn may_remark(&self) -> bool {
        let (mut last, now) = (lock(&self.last_remark), clock::now());
        let may = last.is_none_or(|last| now - last >= REMARK_EVERY);
        if may {
            *last = Some(now);
        }
        may
    }

    /// Returns the group of a new flow: parallel flows of a client say how many they are.
    pub(super) fn group(&self, from: IpAddr, header: Option<&ClientHeader>, table: &FlowTable<'_>) -> FlowGroup {
        self.group_at(clock::now(), from, header, table)
    }

    fn group_at(&self, now: Nanos, from: IpAddr, header: Option<&ClientHeader>, table: &FlowTable<'_>) -> FlowGroup {
        let n_flows = header
            .map_or(1, |header| header.n_flows)
            .clamp(1, u32::try_from(self.options.flows_max).unwrap_or(u32::MAX));
        if n_flows == 1 {
            return table.new_group(1);
        }
        let mut groups = lock(&self.groups);
        // A client may open fewer flows than it said, and its next test is another group.
        groups.retain(|_, open| now - open.began < GROUP_OPEN_MAX);
        let joined = groups.remove(&from).filter(|open| open.group.n_flows == n_flows);
        let open = joined.unwrap_or_else(|| OpenGroup { group: table.new_group(n_flows), n_joined: 0, began: now });
        // No more flows run than that. Sources of datagrams can be forged.
        if open.n_joined + 1 < n_flows && groups.len() < self.options.flows_max {
            groups.insert(from, OpenGroup { n_joined: open.n_joined + 1, ..open });
        }
        open.group
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn state(options: ServerOptions) -> ServerState {
        ServerState::new(options, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 5001))
    }

    #[test]
    fn a_flow_back_has_a_place_of_its_own_and_is_no_test() {
        let state = state(ServerOptions { flows_max: 1, tests: Some(1), ..ServerOptions::default() });
        let forward = state.admit().ok().unwrap();
        let back = state.admit_back().unwrap();
        assert!(state.admit_back().is_none(), "as many as flows");
        assert_eq!(state.admit().err(), Some(NotAdmitted::NoTestsLeft));
        drop(forward);
        assert!(!state.is_complete(), "the flow back runs");
        drop(back);
        assert!(state.is_complete());
    }

    #[test]
    fn a_full_server_says_so_and_has_room_again() {
        let state = state(ServerOptions { flows_max: 1, ..ServerOptions::default() });
        let first = state.admit().ok().unwrap();
        assert_eq!(state.admit().err(), Some(NotAdmitted::Full));
        drop(first);
        assert!(state.admit().is_ok());
    }

    #[test]
    fn flows_of_a_later_test_join_no_group_of_an_earlier_one() {
        let (state, table) = (state(ServerOptions::default()), FlowTable::new(&(), None));
        let header = ClientHeader { n_flows: 4, ..ClientHeader::default() };
        let from = IpAddr::from(Ipv4Addr::LOCALHOST);
        let at = |millis| state.group_at(Nanos::from_millis(millis), from, Some(&header), &table).id;
        let first: Vec<u32> = [0, 1, 1000].map(at).to_vec();
        assert!(first.iter().all(|id| *id == first[0]), "{first:?}");
        let second: Vec<u32> = [3000, 3001, 3002, 3003].map(at).to_vec();
        assert!(second.iter().all(|id| *id == second[0] && *id != first[0]), "{first:?} {second:?}");
        assert_ne!(at(3004), second[0], "four have joined");
    }

    #[test]
    fn forged_sources_do_not_add_groups_without_end() {
        let (state, table) =
            (state(ServerOptions { flows_max: 8, ..ServerOptions::default() }), FlowTable::new(&(), None));
        let header = ClientHeader { n_flows: 2, ..ClientHeader::default() };
        for n in 0..1000_u32 {
            state.group_at(Nanos::ZERO, IpAddr::from(n.to_be_bytes()), Some(&header), &table);
        }
        assert_eq!(lock(&state.groups).len(), 8);
    }
}

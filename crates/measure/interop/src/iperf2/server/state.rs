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
use crate::iperf2::{ClientHeader, Error, FlowTable, ServerTotals, flow::FlowGroup, flow_table::RunningFlow};

/// How long a completed TCP test proves its address for tests in datagrams.
const PROOF_MAX: Nanos = Nanos::from_secs(600);
/// The most proven addresses; a further one replaces the oldest.
const PROVEN_MAX: usize = 1024;
/// The shortest time between two remarks on refused datagrams, so that a flood of them is no flood of lines.
const REMARK_EVERY: Nanos = Nanos::from_secs(1);

/// The state shared by the threads of a server.
pub(super) struct ServerState {
    pub(super) options: ServerOptions,
    pub(super) address: SocketAddr,
    is_over: AtomicBool,
    n_active: AtomicUsize,
    n_started: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
    last_busy: Mutex<Nanos>,
    running: Mutex<Vec<Arc<RunningFlow>>>,
    proven: Mutex<HashMap<IpAddr, Nanos>>,
    groups: Mutex<HashMap<IpAddr, (FlowGroup, u32)>>,
    last_remark: Mutex<Option<Nanos>>,
}

/// The place of a flow among those that a server has room for. It is free again when this is dropped.
pub(super) struct FlowPlace<'s>(&'s ServerState);

impl Drop for FlowPlace<'_> {
    fn drop(&mut self) {
        *lock(&self.0.last_busy) = clock::now();
        self.0.n_active.fetch_sub(1, Ordering::AcqRel);
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

    /// Gives a flow from an address a place; `None` if it is not served, or if there is no room.
    pub(super) fn admit(&self, from: IpAddr) -> Option<FlowPlace<'_>> {
        let is_welcome = self.options.is_client_allowed.as_ref().is_none_or(|admits| admits(from.to_canonical()));
        let has_tests_left = self.options.tests.is_none_or(|tests| self.n_started.load(Ordering::Acquire) < tests);
        if !is_welcome || !has_tests_left {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if self.n_active.fetch_add(1, Ordering::AcqRel) >= self.options.flows_max {
            self.n_active.fetch_sub(1, Ordering::AcqRel);
            self.rejected.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.n_started.fetch_add(1, Ordering::AcqRel);
        Some(FlowPlace(self))
    }

    /// Takes a place without its test back: a connection that carried nothing.
    pub(super) fn discount(&self) {
        self.n_started.fetch_sub(1, Ordering::AcqRel);
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the requested flows are done, or the server has been idle for too long.
    pub(super) fn is_complete(&self) -> bool {
        if self.n_active.load(Ordering::Acquire) > 0 {
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
        let n_flows = header
            .map_or(1, |header| header.n_flows)
            .clamp(1, u32::try_from(self.options.flows_max).unwrap_or(u32::MAX));
        if n_flows == 1 {
            return table.new_group(1);
        }
        let mut groups = lock(&self.groups);
        let (group, n_joined) = groups
            .remove(&from)
            .filter(|(group, n_joined)| group.n_flows == n_flows && *n_joined < n_flows)
            .unwrap_or_else(|| (table.new_group(n_flows), 0));
        if n_joined + 1 < n_flows {
            groups.insert(from, (group, n_joined + 1));
        }
        group
    }
}

//! The running flows of a process: their counters, and the reports of intervals.
//!
//! A flow's thread adds to its own counters, one thread ticks, and each report is made under the lock of its flow. The table does not
//! know how flows are opened or what they carry.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use fathom_engine::WorkerCounters;
use fathom_model::units::Nanos;
use fathom_sys::{clock, socket::Socket};

use super::{
    Error, FlowCounts, FlowInfo, FlowInterval, FlowObserver, FlowOutcome, FlowRole, ServerReport, TcpState,
    TransportProtocol,
    data::{FlowContext, FlowCounter},
    flow::{FlowGroup, READ_BINS},
    transit::{TransitCells, TransitReading},
};

/// An interval shorter than this part of the usual one, in which nothing arrived, is not reported.
const PARTIAL_PARTS: u64 = 20;

/// The running flows, and who observes them.
pub struct FlowTable<'o> {
    observer: &'o dyn FlowObserver,
    interval: Option<Nanos>,
    flows: Mutex<Vec<Arc<RunningFlow>>>,
    next_id: AtomicU32,
    next_group: AtomicU32,
}

/// A flow with its counters.
pub(crate) struct RunningFlow {
    pub(crate) info: FlowInfo,
    /// Its connection; `None` for datagrams that share a socket.
    socket: Option<Arc<Socket>>,
    /// When it began, on the monotonic clock.
    start: Nanos,
    /// When its data ends; [`Nanos::MAX`] if the other side ends it.
    ends_at: Nanos,
    slot: WorkerCounters,
    transit: TransitCells,
    is_over: AtomicBool,
    report: Mutex<ReportState>,
}

struct ReportState {
    last: FlowCounts,
    last_transit: TransitReading,
    last_at: Nanos,
    next_at: Nanos,
    has_ended: bool,
}

/// The times of a flow on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowTimes {
    pub(crate) start: Nanos,
    pub(crate) ends_at: Nanos,
}

impl<'o> FlowTable<'o> {
    /// Creates an empty table; without an interval, flows are reported at their end only.
    #[must_use]
    pub fn new(observer: &'o dyn FlowObserver, interval: Option<Nanos>) -> Self {
        Self {
            observer,
            interval: interval.filter(|interval| *interval > Nanos::ZERO),
            flows: Mutex::default(),
            next_id: AtomicU32::new(1),
            next_group: AtomicU32::new(1),
        }
    }

    /// The observer of the flows.
    pub(crate) fn observer(&self) -> &'o dyn FlowObserver {
        self.observer
    }

    /// Returns the number of the next flow.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a new group of flows.
    pub(crate) fn new_group(&self, n_flows: u32) -> FlowGroup {
        FlowGroup { id: self.next_group.fetch_add(1, Ordering::Relaxed), n_flows }
    }

    /// Adds a flow whose data begins, and tells the observer of it.
    pub(crate) fn add(&self, info: FlowInfo, socket: Option<Arc<Socket>>, times: FlowTimes) -> Arc<RunningFlow> {
        self.observer.on_flow(&info);
        self.add_silently(info, socket, times)
    }

    /// Adds a flow that the observer knows already.
    pub(crate) fn add_silently(
        &self,
        info: FlowInfo,
        socket: Option<Arc<Socket>>,
        times: FlowTimes,
    ) -> Arc<RunningFlow> {
        // A flow that began long ago by the clock of its sender has no rows of the time before it came.
        let first_at =
            self.interval.map_or(times.start, |interval| first_interval(times.start, clock::now(), interval));
        let report = ReportState {
            last: FlowCounts::default(),
            last_transit: TransitReading::default(),
            last_at: first_at,
            next_at: self.interval.map_or(Nanos::MAX, |interval| first_at + interval),
            has_ended: false,
        };
        let flow = Arc::new(RunningFlow {
            info,
            socket,
            start: times.start,
            ends_at: times.ends_at,
            slot: WorkerCounters::default(),
            transit: TransitCells::default(),
            is_over: AtomicBool::new(false),
            report: Mutex::new(report),
        });
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).push(flow.clone());
        flow
    }

    /// Reports the intervals that have ended; returns when the next one ends.
    pub(crate) fn tick(&self, now: Nanos) -> Nanos {
        let flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner).clone();
        flows.iter().map(|flow| self.report_intervals(flow, now)).min().unwrap_or(Nanos::MAX)
    }

    fn report_intervals(&self, flow: &RunningFlow, now: Nanos) -> Nanos {
        let mut state = flow.report.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(interval) = self.interval.filter(|_| !state.has_ended) else { return Nanos::MAX };
        while now >= state.next_at {
            let end = state.next_at;
            self.report(flow, &mut state, end, false);
            state.next_at = end + interval;
        }
        state.next_at
    }

    fn report(&self, flow: &RunningFlow, state: &mut ReportState, end: Nanos, is_last: bool) {
        let (counts, transit) = (flow.counts(), flow.transit.interval());
        let growth = FlowCounts { transit: transit.since(&state.last_transit), ..counts.since(&state.last) };
        let interval =
            FlowInterval { start: state.last_at - flow.start, end: end - flow.start, counts: growth, is_last };
        (state.last, state.last_transit, state.last_at) = (counts, transit, end);
        self.observer.on_interval(&flow.info, &interval);
    }

    /// Reports the last interval and the whole of a flow whose data has ended, and forgets the flow.
    pub(crate) fn end(&self, flow: &Arc<RunningFlow>, at: Nanos) -> FlowOutcome {
        self.report_intervals(flow, at);
        let mut state = flow.report.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = flow.counts();
        let outcome = FlowOutcome {
            span: at - flow.start,
            counts: FlowCounts { transit: flow.transit.total().since(&TransitReading::default()), ..counts },
        };
        if !state.has_ended {
            let rest = at - state.last_at;
            let is_noticeable = self.interval.is_some_and(|interval| rest * PARTIAL_PARTS > interval);
            if is_noticeable && counts.bytes > state.last.bytes {
                self.report(flow, &mut state, at, true);
            }
            state.has_ended = true;
            self.observer.on_end(&flow.info, &outcome);
        }
        drop(state);
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, flow));
        outcome
    }

    /// Tells the observer of a server's report.
    pub(crate) fn server_report(&self, flow: &FlowInfo, report: &ServerReport) {
        self.observer.on_server_report(flow, report);
    }

    /// Tells the observer of a failure.
    pub(crate) fn failure(&self, flow: Option<&FlowInfo>, error: &Error) {
        self.observer.on_failure(flow, error);
    }

    /// Ends the data of all flows.
    pub(crate) fn stop_all(&self) {
        let flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        flows.iter().for_each(|flow| flow.is_over.store(true, Ordering::Relaxed));
    }
}

/// Returns when the interval begins in which the first data comes, counted from the start of the flow.
fn first_interval(start: Nanos, now: Nanos, interval: Nanos) -> Nanos {
    let whole = (now - start).0 / interval.0.max(1);
    start + interval * whole
}

impl RunningFlow {
    /// Reads the counts since the start, without one-way times.
    pub(crate) fn counts(&self) -> FlowCounts {
        let read = |counter: FlowCounter| self.slot.read(counter as usize);
        let is_watched = self.info.role == FlowRole::Sender && self.info.protocol == TransportProtocol::Tcp;
        let mut read_bins = [0; READ_BINS];
        for (n, bin) in read_bins.iter_mut().enumerate() {
            *bin = self.slot.read(FlowCounter::FirstBin as usize + n);
        }
        FlowCounts {
            bytes: read(FlowCounter::Bytes),
            calls: read(FlowCounter::Calls),
            errors: read(FlowCounter::Errors),
            datagrams: read(FlowCounter::Datagrams),
            received: read(FlowCounter::Received),
            reordered: read(FlowCounter::Reordered),
            jitter: Nanos(read(FlowCounter::JitterNs)),
            read_bins,
            transit: None,
            tcp: self.socket.as_deref().filter(|_| is_watched).and_then(TcpState::of),
        }
    }

    /// Ends the data of this flow.
    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether its data is over at this time.
    pub(crate) fn is_over_at(&self, now: Nanos) -> bool {
        self.is_stopped() || now >= self.ends_at
    }

    /// Whether it was told to end, apart from its time.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl FlowContext for RunningFlow {
    fn add(&self, counter: FlowCounter, amount: u64) {
        self.slot.add(counter as usize, amount);
    }

    fn add_read(&self, bytes: u64) {
        let class = (bytes.saturating_sub(1) * READ_BINS as u64) / (self.info.length as u64).max(1);
        let class = usize::try_from(class).unwrap_or(READ_BINS).min(READ_BINS - 1);
        self.slot.add(FlowCounter::FirstBin as usize + class, 1);
    }

    fn add_transit(&self, transit: Nanos) {
        self.transit.add(transit);
    }

    fn is_over(&self) -> bool {
        self.is_over_at(clock::now())
    }

    fn start(&self) -> Nanos {
        self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_interval_is_the_one_in_which_a_flow_comes() {
        let secs = Nanos::from_secs;
        let cases = [
            ("a flow that begins now", secs(700), secs(700)),
            ("a flow whose header was on its way", Nanos::from_millis(699_900), Nanos::from_millis(699_900)),
            ("a clock that is 10 minutes late", Nanos::from_millis(100_500), Nanos::from_millis(699_500)),
            ("a clock that is ahead", secs(710), secs(710)),
        ];
        for (what, start, expected) in cases {
            assert_eq!(first_interval(start, secs(700), secs(1)), expected, "{what}");
        }
    }
}

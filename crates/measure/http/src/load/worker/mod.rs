//! The connections of one worker, over either reactor.
//!
//! A request is sent as soon as the previous answer ends. In a closed load, the timestamp of a complete answer is also the
//! timestamp of the next request: the time of a connection is divided into requests without gaps. An open load has a schedule
//! instead, and takes a timestamp at each start.

mod connecting;
mod receiving;
mod sending;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
};

use fathom_engine::{
    Batching, Error, Stop, StopFlag, WorkerHandle,
    load::{LoadLoop, MeasureWindow, OpenSchedule, TICK},
    pace::{Arrivals, ConnectionAvailability, LateCause, Pacer, Pacing},
};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Completion, FixedBuffer, Reactor, WaitLimit},
};

use super::{
    client_connection::{ClientConnection, InFlight, InFlightRequest},
    upstream_arrivals::UpstreamArrivals,
};
use crate::{
    conn::{
        Connection, ConnectionHandler, Connector, DISCARD_MIN, DRAIN, FaultCause, LoadConfig, RequestFault,
        RequestStage, TimeoutSweep, UnansweredCheck, retry_delay, token,
    },
    h1::{HeadReader, Malformed, Persistence, ResponseProgress, ResponseSummary},
    metrics::{LoadCounter, LoadRecorder, LoadResults, RequestSample, TotalsRecorder},
    target::{Upstream, WeightedOrder},
};

/// How long an open load waits for answers when the trial is over. Without the wait, the response time is only a lower bound.
const DRAIN_OPEN: Nanos = Nanos::from_secs(1);

/// The work of one worker.
#[derive(Debug)]
pub(super) struct ClientWorkerSpec {
    pub(super) config: Arc<LoadConfig>,
    /// The index of this worker, and the number of workers.
    pub(super) idx: usize,
    pub(super) n_workers: usize,
    /// For each connection, the index of its server.
    pub(super) connections: Vec<u16>,
    /// The most requests to send in total; `None` means no limit.
    pub(super) requests_left: Option<u64>,
    /// When requests are due; `None` in a closed load.
    pub(super) arrivals: Option<Arrivals>,
    pub(super) pacing: Pacing,
    pub(super) batching: Batching,
    pub(super) stop: StopFlag,
}

/// The state of one server: its requests, and this worker's connections to it.
struct UpstreamState {
    /// For each request, the reader of its answers' heads.
    heads: Vec<HeadReader>,
    /// The rotation of the requests.
    request_order: WeightedOrder,
    /// The length of each request.
    request_bytes: Vec<usize>,
    /// Each request once, twice, four times and so on up to the pipeline depth, registered with the reactor.
    fixed: Vec<Vec<FixedBuffer>>,
    /// Connections that wait to connect, in order.
    to_connect: VecDeque<u32>,
    /// Connections without a request. The most recently used is on top, because its memory is still in the cache.
    free: Vec<u32>,
    n_connecting: usize,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy)]
struct AnswerEnd {
    answer: ResponseSummary,
    at: Nanos,
}

pub(super) struct ClientWorker<'a, R> {
    recorder: LoadRecorder<'a>,
    config: Arc<LoadConfig>,
    connector: Connector<R>,
    upstreams: Vec<UpstreamState>,
    connections: Vec<ClientConnection>,
    in_flight: InFlight,
    /// Failed connections, with the end of their pause.
    retry_queue: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// The starts of an open load; in a closed load each answer asks for the next request.
    schedule: Option<OpenSchedule<UpstreamArrivals>>,
    batching: Batching,
    stop: StopFlag,
    requests_left: Option<u64>,
    n_busy: u64,
    may_send: bool,
    window: MeasureWindow,
    sweep: TimeoutSweep,
}

/// The resources of a worker, prepared before the start on its own thread.
pub(super) struct PreparedClient<R> {
    spec: ClientWorkerSpec,
    connector: Connector<R>,
    upstreams: Vec<UpstreamState>,
    connections: Vec<ClientConnection>,
    in_flight: InFlight,
    retry_queue: BinaryHeap<Reverse<(Nanos, u32)>>,
    totals: TotalsRecorder,
}

impl<'a, R: Reactor> ClientWorker<'a, R> {
    /// Creates a worker with all connections closed.
    pub(super) fn new(equipment: PreparedClient<R>, worker: &'a WorkerHandle<'a>) -> Self {
        let PreparedClient { spec, connector, upstreams, connections, in_flight: asked, retry_queue: pauses, totals } =
            equipment;
        Self {
            schedule: spec.schedule(worker.start),
            window: MeasureWindow::new(worker, spec.config.is_counted),
            recorder: LoadRecorder::new(worker, totals),
            connector,
            upstreams,
            connections,
            in_flight: asked,
            retry_queue: pauses,
            batching: spec.batching,
            stop: spec.stop,
            requests_left: spec.requests_left,
            n_busy: 0,
            may_send: true,
            sweep: TimeoutSweep::default(),
            config: spec.config,
        }
    }
}

impl<R: Reactor> LoadLoop for ClientWorker<'_, R> {
    type Event = Completion;
    type Output = LoadResults;

    fn is_done(&mut self, now: Nanos) -> bool {
        self.window.update(self.recorder.worker.phase(), now);
        let has_more = match &mut self.schedule {
            None => self.requests_left != Some(0),
            Some(schedule) => schedule.has_more(),
        };
        self.may_send = !self.window.is_over() && has_more;
        let drain = match self.schedule {
            _ if self.stop.state() == Stop::Abort => Nanos::ZERO,
            None => DRAIN,
            Some(_) => DRAIN_OPEN,
        };
        (!self.may_send && self.n_busy == 0) || self.window.has_drained(now, drain)
    }

    fn before_wait(&mut self, now: Nanos) -> Result<WaitLimit, Error> {
        self.sweep(now);
        self.send_due(now);
        self.start_connects(now);
        self.connector.check_reached(self.connections.len(), &self.recorder.results.faults)?;
        Ok(self.wait_limit(now))
    }

    fn wait(&mut self, limit: WaitLimit) -> fathom_sys::Result<()> {
        self.connector.reactor.wait(limit)
    }

    #[inline]
    fn next_event(&mut self) -> Option<Completion> {
        self.connector.reactor.next()
    }

    #[inline]
    fn on_event(&mut self, completion: Completion) {
        self.on_completion(completion);
    }

    fn pacer(&mut self) -> Option<&mut Pacer> {
        self.schedule.as_mut().map(OpenSchedule::pacer)
    }

    #[inline]
    fn after_event(&mut self) {
        if self.schedule.is_some() {
            self.send_due(clock::now());
        }
    }

    /// Requests without an answer are part of the results.
    fn finish(mut self, now: Nanos) -> Result<LoadResults, Error> {
        self.record_ends(now);
        let heads = self.upstreams.iter().flat_map(|upstream| &upstream.heads);
        let head = heads.map(HeadReader::last_head).find(|head| !head.is_empty());
        let outcome = self.recorder.finish(self.connector.times, head.unwrap_or_default());
        // The next trial needs the ports.
        self.connector.reactor.abandon();
        outcome
    }
}

impl<R: Reactor> ClientWorker<'_, R> {
    /// How long to wait: until something is due, and for several answers while each asks for the next request.
    fn wait_limit(&mut self, now: Nanos) -> WaitLimit {
        let mut until = now + TICK;
        if let Some(Reverse((resumes_at, _))) = self.retry_queue.peek() {
            until = until.min(*resumes_at);
        }
        if let Some(schedule) = self.schedule.as_mut().filter(|_| !self.window.is_over())
            && let Some(due) = schedule.next_due()
        {
            until = until.min(schedule.wake_at(due, now));
        }
        let batch = if self.may_send { self.batching.batch(self.n_busy) } else { None };
        WaitLimit { until, batch }
    }

    /// The server state of a connection.
    fn upstream_mut(&mut self, idx: usize) -> &mut UpstreamState {
        &mut self.upstreams[usize::from(self.connections[idx].conn.upstream)]
    }

    /// Closes a connection and queues it to be opened again.
    fn reopen(&mut self, idx: usize) {
        self.close(idx);
        self.upstream_mut(idx).to_connect.push_back(token(idx).0);
    }

    fn close(&mut self, idx: usize) {
        self.connector.close(idx, &mut self.connections[idx].conn);
    }
}

impl ClientWorkerSpec {
    /// Creates the reactor and the state of each connection.
    pub(super) fn prepare<R: Reactor>(self) -> Result<PreparedClient<R>, Error> {
        let n = self.connections.len();
        let mut connector = Connector::new(&self.config, (self.idx, self.n_workers), n)?;
        let routes = self.config.target.upstreams.iter().enumerate();
        Ok(PreparedClient {
            totals: TotalsRecorder::open(&self.config.recorder_config, self.idx)?,
            upstreams: routes.map(|(idx, route)| self.upstream_state(idx, route, &mut connector.reactor)).collect(),
            connections: self.connections.iter().map(|upstream| ClientConnection::new(*upstream)).collect(),
            in_flight: InFlight::new(n, self.config.pipeline_depth),
            retry_queue: BinaryHeap::with_capacity(n),
            connector,
            spec: self,
        })
    }

    /// The starts of an open load for each server.
    fn schedule(&self, start: Nanos) -> Option<OpenSchedule<UpstreamArrivals>> {
        let arrivals = self.arrivals.as_ref()?;
        let left = self.requests_left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        let target = &self.config.target;
        let of_upstream = |upstream| UpstreamArrivals {
            arrivals: arrivals.clone().take(left),
            upstream_order: target.upstream_order.for_worker(self.idx, self.n_workers),
            upstream,
        };
        Some(OpenSchedule::new(start, (0..target.upstreams.len()).map(of_upstream), self.pacing))
    }

    fn upstream_state(&self, idx: usize, route: &Upstream, reactor: &mut impl Reactor) -> UpstreamState {
        let target = &self.config;
        let powers = || (0..u16::BITS).map(|power| 1_u16 << power).take_while(|times| *times <= target.pipeline_depth);
        let mut fix = |request: &[u8]| powers().map(|times| reactor.fix(request.repeat(usize::from(times)))).collect();
        let own = self.connections.iter().enumerate().filter(|(_, upstream)| usize::from(**upstream) == idx);
        let shut: VecDeque<u32> = own.map(|(connection, _)| token(connection).0).collect();
        UpstreamState {
            heads: route.requests.iter().map(|_| target.target.head_reader(target.target.method)).collect(),
            request_order: route.request_order.for_worker(self.idx, self.n_workers),
            fixed: route.requests.iter().map(|ask| fix(&ask.bytes)).collect(),
            request_bytes: route.requests.iter().map(|ask| ask.bytes.len()).collect(),
            free: Vec::with_capacity(shut.len()),
            to_connect: shut,
            n_connecting: 0,
        }
    }
}

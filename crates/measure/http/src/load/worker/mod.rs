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
    Batching, Error, Phase, Stop, StopFlag, WorkerHandle,
    pace::{self, Arrivals, ConnectionAvailability, LateCause, Pacer, Pacing},
};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{FixedBuffer, Reactor, WaitLimit},
};

use super::{
    client_connection::{ClientConnection, InFlight, InFlightRequest},
    upstream_arrivals::UpstreamArrivals,
};
use crate::{
    conn::{
        COMPLETIONS_MAX, Connection, ConnectionHandler, Connector, DISCARD_MIN, DRAIN, FaultCause, LoadConfig,
        RequestFault, RequestStage, TICK, TimeoutSweep, UnansweredCheck, retry_delay, token,
    },
    h1::{HeadReader, Malformed, Persistence, ResponseProgress, ResponseSummary},
    metrics::{LoadCounter, LoadRecorder, LoadResults, RequestSample, TotalsRecorder},
    target::{Upstream, WeightedOrder},
};

/// How long an open load waits for answers when the trial is over. Without the wait, the response time is only a lower bound.
const DRAIN_OPEN: Nanos = Nanos::from_secs(1);
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoopKind {
    /// Each answer triggers the next request.
    Closed,
    /// Requests follow a schedule.
    Open,
}

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
    /// The due requests of an open load.
    queue: Option<DueQueue>,
    n_connecting: usize,
}

/// The due requests of one server.
type DueQueue = pace::StartQueue<UpstreamArrivals>;

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
    loop_kind: LoopKind,
    batching: Batching,
    pacer: Pacer,
    stop: StopFlag,
    start: Nanos,
    requests_left: Option<u64>,
    n_busy: u64,
    may_send: bool,
    measuring: bool,
    /// When this worker saw the measurement begin; requests due from then on count.
    measured_from: Option<Nanos>,
    /// When this worker saw the end of the trial.
    over_at: Option<Nanos>,
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
        let PreparedClient {
            spec: duty,
            connector: board,
            upstreams: lanes,
            connections,
            in_flight: asked,
            retry_queue: pauses,
            totals: ledger,
        } = equipment;
        let is_measured = duty.config.is_counted || worker.phase() == Phase::Measure;
        Self {
            recorder: LoadRecorder::new(worker, ledger),
            connector: board,
            upstreams: lanes,
            connections,
            in_flight: asked,
            retry_queue: pauses,
            loop_kind: if duty.arrivals.is_some() { LoopKind::Open } else { LoopKind::Closed },
            batching: duty.batching,
            pacer: Pacer::new(duty.pacing),
            stop: duty.stop,
            start: worker.start,
            requests_left: duty.requests_left,
            n_busy: 0,
            may_send: true,
            measuring: false,
            // Without a warm-up the first request counts too.
            measured_from: is_measured.then_some(worker.start),
            over_at: None,
            sweep: TimeoutSweep::default(),
            config: duty.config,
        }
    }

    /// Keeps the load up until the trial is over, then waits briefly for the last answers.
    pub(super) fn run(mut self) -> Result<LoadResults, Error> {
        loop {
            let now = clock::now();
            if self.is_done(now) {
                return self.finish(now);
            }
            self.sweep(now);
            self.send_due(now);
            self.start_connects(now);
            self.connector.check_reached(self.connections.len(), &self.recorder.results.faults)?;
            let patience = self.wait_limit(now);
            self.connector
                .reactor
                .wait(patience)
                .map_err(|cause| Error::System { what: "wait for answers".to_owned(), cause })?;
            if self.loop_kind == LoopKind::Open && patience.until > now {
                self.pacer.learn(patience.until, clock::now());
            }
            for _ in 0..COMPLETIONS_MAX {
                let Some(completion) = self.connector.reactor.next() else { break };
                self.on_completion(completion);
                // A batch of answers may take longer than the time to the next start.
                if self.loop_kind == LoopKind::Open {
                    self.send_due(clock::now());
                }
            }
        }
    }

    /// Follows the phases of the trial. Returns whether no work is left.
    fn is_done(&mut self, now: Nanos) -> bool {
        let phase = self.recorder.worker.phase();
        self.measuring = self.config.is_counted || phase == Phase::Measure;
        if self.measuring && self.measured_from.is_none() {
            self.measured_from = Some(now);
        }
        if phase == Phase::Over && self.over_at.is_none() {
            self.over_at = Some(now);
        }
        let has_more = match self.loop_kind {
            LoopKind::Closed => self.requests_left != Some(0),
            LoopKind::Open => {
                let mut queues = self.upstreams.iter_mut().filter_map(|lane| lane.queue.as_mut());
                queues.any(|queue| queue.waiting() > 0 || queue.next_due().is_some())
            }
        };
        self.may_send = self.over_at.is_none() && has_more;
        let drain = match self.loop_kind {
            _ if self.stop.state() == Stop::Abort => Nanos::ZERO,
            LoopKind::Closed => DRAIN,
            LoopKind::Open => DRAIN_OPEN,
        };
        (!self.may_send && self.n_busy == 0) || self.over_at.is_some_and(|at| now >= at + drain)
    }

    /// How long to wait: until the next due event, and in a closed load for several answers at once.
    fn wait_limit(&mut self, now: Nanos) -> WaitLimit {
        let mut until = now + TICK;
        if let Some(Reverse((resumes_at, _))) = self.retry_queue.peek() {
            until = until.min(*resumes_at);
        }
        let queues = self.upstreams.iter_mut().filter_map(|lane| lane.queue.as_mut());
        let due = queues.filter_map(DueQueue::next_due).min().filter(|_| self.over_at.is_none());
        if let Some(due) = due.map(|due| self.start + due) {
            until = until.min(self.pacer.until(due).max(now));
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
        let mut board = Connector::new(&self.config, (self.idx, self.n_workers), n)?;
        let routes = self.config.target.upstreams.iter().enumerate();
        Ok(PreparedClient {
            totals: TotalsRecorder::open(&self.config.recorder_config, self.idx)?,
            upstreams: routes.map(|(idx, route)| self.upstream_state(idx, route, &mut board.reactor)).collect(),
            connections: self.connections.iter().map(|lane| ClientConnection::new(*lane)).collect(),
            in_flight: InFlight::new(n, self.config.pipeline_depth),
            retry_queue: BinaryHeap::with_capacity(n),
            connector: board,
            spec: self,
        })
    }

    fn upstream_state(&self, idx: usize, route: &Upstream, reactor: &mut impl Reactor) -> UpstreamState {
        let target = &self.config;
        let powers = || (0..u16::BITS).map(|power| 1_u16 << power).take_while(|times| *times <= target.pipeline_depth);
        let mut fix = |request: &[u8]| powers().map(|times| reactor.fix(request.repeat(usize::from(times)))).collect();
        let left = self.requests_left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        let queue = self.arrivals.clone().map(|arrivals| {
            let rota = target.target.upstream_order.for_worker(self.idx, self.n_workers);
            DueQueue::new(UpstreamArrivals { arrivals: arrivals.take(left), upstream_order: rota, upstream: idx })
                .paced(self.pacing)
        });
        let own = self.connections.iter().enumerate().filter(|(_, lane)| usize::from(**lane) == idx);
        let shut: VecDeque<u32> = own.map(|(connection, _)| token(connection).0).collect();
        UpstreamState {
            heads: route.requests.iter().map(|_| target.target.head_reader(target.target.method)).collect(),
            request_order: route.request_order.for_worker(self.idx, self.n_workers),
            fixed: route.requests.iter().map(|ask| fix(&ask.bytes)).collect(),
            request_bytes: route.requests.iter().map(|ask| ask.bytes.len()).collect(),
            free: Vec::with_capacity(shut.len()),
            to_connect: shut,
            queue,
            n_connecting: 0,
        }
    }
}

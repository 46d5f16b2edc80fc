//! The connections of one worker, over either reactor.
//!
//! A request is sent straight from where the answer before it ended, and the stamp at which an answer is known to be complete is
//! also the stamp of the next request of a closed load: the time of a connection is divided into requests without gaps. An
//! open load has a schedule instead, and each start a stamp of its own.

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

/// How long the answers of an open load are waited for when the trial is over: one that is not waited for makes its response time a lower bound.
const DRAIN_OPEN: Nanos = Nanos::from_secs(1);
/// What sets the pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoopKind {
    /// Each answer asks for the next request.
    Closed,
    /// A schedule.
    Open,
}

/// What one worker has to do.
#[derive(Debug)]
pub(super) struct ClientWorkerSpec {
    pub(super) config: Arc<LoadConfig>,
    /// Its number, and how many workers there are.
    pub(super) idx: usize,
    pub(super) n_workers: usize,
    /// For each connection, which of the servers it is for.
    pub(super) connections: Vec<u16>,
    /// How many requests may be sent in all; nothing for no bound.
    pub(super) requests_left: Option<u64>,
    /// When requests are due; nothing in a closed load.
    pub(super) arrivals: Option<Arrivals>,
    pub(super) pacing: Pacing,
    pub(super) batching: Batching,
    pub(super) stop: StopFlag,
}

/// One of the servers: what it is asked, and this worker's connections to it.
struct UpstreamState {
    /// For each request, the heads of its answers.
    heads: Vec<HeadReader>,
    /// Whose turn it is among the requests.
    request_order: WeightedOrder,
    /// How long each request is.
    request_bytes: Vec<usize>,
    /// Each request once, twice, four times and so on, up to the depth of the pipeline, as the reactor keeps it.
    fixed: Vec<Vec<FixedBuffer>>,
    /// Connections whose turn to connect comes, in order.
    to_connect: VecDeque<u32>,
    /// Connections without a request, the one used last on top: its memory is warm.
    free: Vec<u32>,
    /// What is due, in an open load.
    queue: Option<DueQueue>,
    n_connecting: usize,
}

/// What is due at one of the servers.
type DueQueue = pace::StartQueue<UpstreamArrivals>;

/// How an answer ended.
#[derive(Debug, Clone, Copy)]
struct AnswerEnd {
    answer: ResponseSummary,
    at: Nanos,
}

/// The connections of one worker.
pub(super) struct ClientWorker<'a, R> {
    recorder: LoadRecorder<'a>,
    config: Arc<LoadConfig>,
    connector: Connector<R>,
    upstreams: Vec<UpstreamState>,
    connections: Vec<ClientConnection>,
    in_flight: InFlight,
    /// Connections that failed, with the time until which they rest.
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
    /// When this worker saw the measured part begin; intended starts from then on count.
    measured_from: Option<Nanos>,
    /// When this worker saw the end.
    over_at: Option<Nanos>,
    sweep: TimeoutSweep,
}

/// What a worker needs, made before the start on the worker's own thread.
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
    /// The connections of a worker, none of them open.
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

    /// Keeps the load up until the trial is over, then waits shortly for the last answers.
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
                // A batch of answers may take longer than it is to the next start.
                if self.loop_kind == LoopKind::Open {
                    self.send_due(clock::now());
                }
            }
        }
    }

    /// Follows the phases of the trial; whether nothing is left to do.
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

    /// How long to wait: until something is due, and for several answers while each asks for the next request.
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

    /// The lane of a connection.
    fn upstream_mut(&mut self, idx: usize) -> &mut UpstreamState {
        &mut self.upstreams[usize::from(self.connections[idx].conn.upstream)]
    }

    /// Closes a connection that is of no more use; its turn to be opened again comes.
    fn reopen(&mut self, idx: usize) {
        self.close(idx);
        self.upstream_mut(idx).to_connect.push_back(token(idx).0);
    }

    /// Closes a connection.
    fn close(&mut self, idx: usize) {
        self.connector.close(idx, &mut self.connections[idx].conn);
    }
}

impl ClientWorkerSpec {
    /// Makes the reactor and all that there is one of for each connection.
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

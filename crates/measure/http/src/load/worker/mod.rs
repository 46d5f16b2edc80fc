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
    Batching, Error, LoadModel, ReceptionSampler, StopFlag, WorkerHandle,
    load::{InFlight, LoadLoop, LoadSpec, OfferedLoad, OpenSchedule, SendTimes, TICK},
    pace::{Arrivals, Pacing},
};
use fathom_model::units::Nanos;
use fathom_sys::reactor::{Completion, FixedBuffer, Reactor, WaitLimit};

use super::{
    client_connection::{ClientConnection, InFlightRequest},
    upstream_arrivals::UpstreamArrivals,
};
use crate::{
    conn::{
        Connection, ConnectionHandler, Connector, DISCARD_MIN, FaultCause, LoadConfig, RequestFault, RequestStage,
        TimeoutSweep, UnansweredCheck, retry_delay, token,
    },
    h1::{HeadReader, Malformed, Persistence, ResponseProgress, ResponseSummary},
    metrics::{LOAD_COUNTERS, LoadCounter, LoadRecorder, LoadResults, RequestSample, TotalsRecorder},
    target::{Upstream, WeightedOrder},
};

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
    n_connecting: usize,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy)]
struct AnswerEnd {
    answer: ResponseSummary,
    at: Nanos,
}

pub(super) struct ClientWorker<'a, R> {
    load: OfferedLoad<'a, UpstreamArrivals>,
    recorder: LoadRecorder<'a>,
    config: Arc<LoadConfig>,
    connector: Connector<R>,
    upstreams: Vec<UpstreamState>,
    connections: Vec<ClientConnection>,
    in_flight: InFlight<InFlightRequest>,
    /// Failed connections, with the end of their pause.
    retry_queue: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// In a closed load.
    requests_left: Option<u64>,
    sweep: TimeoutSweep,
    reception: ReceptionSampler,
}

/// The resources of a worker, prepared before the start on its own thread.
pub(super) struct PreparedClient<R> {
    spec: ClientWorkerSpec,
    connector: Connector<R>,
    upstreams: Vec<UpstreamState>,
    connections: Vec<ClientConnection>,
    in_flight: InFlight<InFlightRequest>,
    retry_queue: BinaryHeap<Reverse<(Nanos, u32)>>,
    totals: TotalsRecorder,
}

impl<'a, R: Reactor> ClientWorker<'a, R> {
    /// Creates a worker with all connections closed.
    pub(super) fn new(equipment: PreparedClient<R>, worker: &'a WorkerHandle<'a>) -> Self {
        let PreparedClient { spec, connector, upstreams, connections, in_flight: asked, retry_queue: pauses, totals } =
            equipment;
        Self {
            load: OfferedLoad::new(*worker, &spec.stop, spec.load(worker.start)),
            recorder: LoadRecorder::new(worker, totals),
            connector,
            upstreams,
            connections,
            in_flight: asked,
            retry_queue: pauses,
            requests_left: spec.requests_left,
            sweep: TimeoutSweep::default(),
            reception: ReceptionSampler::default(),
            config: spec.config,
        }
    }
}

impl<'a, R: Reactor> LoadLoop<'a> for ClientWorker<'a, R> {
    type Arrivals = UpstreamArrivals;
    type Event = Completion;
    type Output = LoadResults;

    #[inline]
    fn load(&mut self) -> &mut OfferedLoad<'a, UpstreamArrivals> {
        &mut self.load
    }

    fn expire(&mut self, now: Nanos) {
        self.sweep(now);
        if self.reception.is_due(now) {
            self.sample_reception(now);
        }
    }

    fn has_more(&mut self) -> bool {
        if self.load.is_open() { self.load.has_scheduled() } else { self.requests_left != Some(0) }
    }

    fn before_wait(&mut self, now: Nanos) -> Result<Nanos, Error> {
        self.start_connects(now);
        self.connector.check_reached(self.connections.len(), &self.recorder.results.faults)?;
        let resumes_at = self.retry_queue.peek().map(|pause| pause.0.0);
        Ok(resumes_at.map_or(now + TICK, |at| at.min(now + TICK)))
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

    fn is_free(&self, idx: usize) -> bool {
        let connection = &self.connections[idx];
        connection.conn.is_open() && connection.in_flight.n() == 0
    }

    fn start(&mut self, idx: usize, times: SendTimes) {
        self.send_requests(idx, 1, times);
    }

    /// Requests without an answer are part of the results.
    fn finish(mut self, now: Nanos) -> Result<LoadResults, Error> {
        self.record_unanswered(now);
        let heads = self.upstreams.iter().flat_map(|upstream| &upstream.heads);
        let head = heads.map(HeadReader::last_head).find(|head| !head.is_empty());
        let results = self.recorder.finish(self.connector.times, head.unwrap_or_default())?;
        // The next trial needs the ports.
        self.connector.reactor.abandon();
        Ok(LoadResults { times: self.load.finish(now), reception: self.reception.finish(), ..results })
    }
}

impl<R: Reactor> ClientWorker<'_, R> {
    /// The server state of a connection.
    fn upstream_mut(&mut self, idx: usize) -> &mut UpstreamState {
        &mut self.upstreams[usize::from(self.connections[idx].conn.upstream)]
    }

    /// Samples the connections in the middle of an answer.
    #[cold]
    fn sample_reception(&mut self, now: Nanos) {
        let (connections, connector) = (&self.connections, &self.connector);
        let receives = |idx: &usize| connections.get(*idx).is_some_and(|it| it.first_byte_at.is_some());
        self.reception.sample(now, |idx| Some(idx).filter(receives).and_then(|idx| connector.tcp_info(idx)));
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

    /// The load; an open one has starts for each server.
    fn load(&self, start: Nanos) -> LoadSpec<UpstreamArrivals> {
        let left = self.requests_left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        let target = &self.config.target;
        let schedule = self.arrivals.as_ref().map(|arrivals| {
            let of_upstream = |upstream| UpstreamArrivals {
                arrivals: arrivals.clone().take(left),
                upstream_order: target.upstream_order.for_worker(self.idx, self.n_workers),
                upstream,
            };
            OpenSchedule::new(start, (0..target.upstreams.len()).map(of_upstream), self.pacing)
        });
        LoadSpec {
            model: if schedule.is_some() { LoadModel::Open } else { LoadModel::Closed },
            schedule,
            n_connections: self.connections.len(),
            counters: LOAD_COUNTERS,
            batching: self.batching,
            counts_all: self.config.is_counted,
        }
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
            to_connect: shut,
            n_connecting: 0,
        }
    }
}

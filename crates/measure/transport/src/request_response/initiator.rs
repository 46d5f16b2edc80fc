//! The initiator's flows of one worker: each sends again when it has its answer, or when a schedule says so.
//!
//! In a closed load, the timestamp of a complete answer is also the timestamp of the next request, so the time of a flow is
//! divided into transactions without gaps. An open load has a schedule instead, and takes a timestamp at each start.

use std::{marker::PhantomData, sync::Arc};

use fathom_engine::{
    Error, LoadModel, Stop, StopFlag, WorkerHandle, WorkerTask,
    load::{LoadLoop, OpenSchedule, TICK},
    pace::{Arrivals, ConnectionAvailability, Pacer, Pacing, WorkShare},
};
use fathom_model::{Histogram, units::Nanos};
use fathom_sys::{
    clock,
    reactor::{Completion, Event, Reactor, ReceivedBytes, WaitLimit},
    socket,
};

use super::{
    RrConfig,
    connection::UNEXPECTED_MESSAGE,
    peer_timeout::{PEER_CLOSED, PEER_SILENT, is_silent},
    recorder::{PendingRequest, RrRecorder},
    results::{RrResults, counters},
    sizes::SizeClass,
    worker_setup::{MessageBatches, SetupState, close_all, reactor, token},
};
use crate::connection_setup::ConnectTargets;

/// The most connects in progress per worker. More would overflow the accept queue of a responder with the usual backlog.
const CONNECTING_MAX: usize = 128;
/// How long all connects may take: less than a controller waits for a role to be ready.
const OPENING_MAX: Nanos = Nanos::from_secs(75);
/// How long a closed load waits at the end for answers in flight; these are a small part of all.
const DRAIN: Nanos = Nanos::from_millis(200);
/// How long an open load waits for answers. Without the wait, the response time is only a lower bound.
const DRAIN_OPEN: Nanos = Nanos::from_secs(1);

/// The task of the initiator.
pub(super) struct RrInitiator<R> {
    config: Arc<RrConfig>,
    setup: Arc<SetupState>,
    targets: ConnectTargets,
    reactor: PhantomData<fn() -> R>,
}

impl<R> RrInitiator<R> {
    pub(super) fn new(config: Arc<RrConfig>, setup: Arc<SetupState>, targets: ConnectTargets) -> Self {
        Self { config, setup, targets, reactor: PhantomData }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    /// The index of the oldest request in the flow's part of the ring.
    head: u16,
    /// The number of requests in flight.
    n_in_flight: u16,
    /// The received bytes of the answer to the oldest request.
    n_received: u32,
    is_open: bool,
}

/// A worker's flows, all open.
pub(super) struct OpenFlows<R> {
    reactor: R,
    batches: MessageBatches,
    flows: Vec<Flow>,
    /// For each flow, as many requests as may be in flight.
    in_flight: Vec<PendingRequest>,
    connect: Histogram,
    arrivals: Option<Arrivals>,
    /// The number of transactions so far, so that their sizes follow the order of the mix.
    n_drawn: usize,
}

impl<R: Reactor + 'static> WorkerTask for RrInitiator<R> {
    type Input = usize;
    type State = OpenFlows<R>;
    type Output = RrResults;

    fn set_up(&self, worker: usize) -> Result<OpenFlows<R>, Error> {
        let spread = self.config.spread;
        let n = spread.flows_of(worker).len();
        let mut reactor = reactor::<R>(&self.setup, n)?;
        let runs = MessageBatches::new(&mut reactor, &self.config);
        let share = WorkShare { idx: worker, of: spread.n_workers };
        let arrivals = self.config.open_load.clone();
        let mut opened = OpenFlows {
            batches: runs,
            reactor,
            flows: vec![Flow::default(); n],
            in_flight: vec![PendingRequest::default(); n * self.config.burst],
            connect: Histogram::new(),
            arrivals: arrivals.map(|all| Arrivals::new(all.profile, all.process, share)),
            // Workers that started at the same position would send the same sizes at the same time.
            n_drawn: worker.wrapping_mul(7919),
        };
        opened.open_all(self, worker)?;
        Ok(opened)
    }

    fn poll_before_start(&self, _: &mut OpenFlows<R>) -> Result<(), Error> {
        // Nothing is sent or received before the start.
        clock::sleep_until(clock::now() + Nanos::from_millis(1));
        Ok(())
    }

    fn work(&self, worker: WorkerHandle<'_>, opened: OpenFlows<R>, stop: &StopFlag) -> Result<RrResults, Error> {
        let mut flows = InitiatorLoop::new(opened, &self.config, worker, stop);
        flows.send_first();
        flows.run()
    }
}

impl<R: Reactor> OpenFlows<R> {
    /// Connects every flow, or returns the error of the first that failed.
    fn open_all(&mut self, asking: &RrInitiator<R>, worker: usize) -> Result<(), Error> {
        let mut numbers = asking.config.spread.flows_of(worker);
        let (n, mut n_begun, mut n_open) = (self.flows.len(), 0, 0);
        let deadline = clock::now() + OPENING_MAX;
        while n_open < n {
            while n_begun - n_open < CONNECTING_MAX
                && let Some(number) = numbers.next()
            {
                self.begin(asking, (n_begun, number))?;
                n_begun += 1;
            }
            let now = clock::now();
            if now >= deadline {
                return Err(Error::Peer { what: format!("took {n_open} of {n} connections within {OPENING_MAX}") });
            }
            let patience = WaitLimit { until: deadline.min(now + TICK), batch: None };
            self.reactor.wait(patience).map_err(waiting)?;
            while let Some(completion) = self.reactor.next() {
                let idx = completion.token.0 as usize;
                match completion.event {
                    Event::Connected => {
                        n_open += 1;
                        self.connect.record((completion.at - self.in_flight[idx * asking.config.burst].sent_at).0);
                        self.flows[idx].is_open = true;
                        let socket = self.reactor.socket(completion.token);
                        if let Some(note) = socket.and_then(|socket| asking.config.options.mptcp_fallback_note(socket))
                        {
                            asking.setup.add_notes(vec![note]);
                        }
                        asking.setup.sample(socket);
                    }
                    Event::Failed(error) => {
                        let number = worker + idx * asking.config.spread.n_workers;
                        return Err(asking.targets.connect_error(number, error));
                    }
                    Event::Received(piece) => self.reactor.release(piece),
                    Event::Ended => {
                        return Err(Error::Peer { what: "closed a connection before the start".to_owned() });
                    }
                    Event::Sent | Event::Discarded(_) | Event::Accepted(_) => {}
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, asking: &RrInitiator<R>, (idx, number): (usize, usize)) -> Result<(), Error> {
        let (to, from) = asking.targets.addresses_of(number);
        let options = &asking.config.options;
        let opened = options.open_nonblocking(to.address).and_then(|socket| {
            let (to, notes) = options.configure_outgoing(&socket, from, to)?;
            socket.set_tcp_nodelay(options.nodelay()).map_err(socket::named("setsockopt(TCP_NODELAY)"))?;
            Ok((socket, to, notes))
        });
        let (socket, to, notes) = opened.map_err(|error| asking.targets.connect_error(number, error))?;
        if idx == 0 {
            asking.setup.add_notes(notes);
        }
        self.in_flight[idx * asking.config.burst].sent_at = clock::now();
        self.reactor.connect(token(idx), socket, &to);
        Ok(())
    }
}

fn waiting(cause: fathom_sys::Error) -> Error {
    Error::System { what: "wait for answers".to_owned(), cause }
}

/// The flows of a worker from the start to the end.
struct InitiatorLoop<'a, R> {
    reactor: R,
    batches: MessageBatches,
    flows: Vec<Flow>,
    in_flight: Vec<PendingRequest>,
    config: &'a RrConfig,
    recorder: RrRecorder<'a>,
    stop: &'a StopFlag,
    /// The starts of an open load.
    schedule: Option<OpenSchedule>,
    /// Flows without a request, the one used last on top: its memory is warm.
    free: Vec<u32>,
    n_drawn: usize,
    n_in_flight: u64,
    n_open: usize,
}

impl<'a, R: Reactor> InitiatorLoop<'a, R> {
    fn new(opened: OpenFlows<R>, config: &'a RrConfig, worker: WorkerHandle<'a>, stop: &'a StopFlag) -> Self {
        let n = opened.flows.len();
        let is_open_load = opened.arrivals.is_some();
        let schedule = opened.arrivals.map(|arrivals| OpenSchedule::new(worker.start, [arrivals], Pacing::Precise));
        Self {
            schedule,
            reactor: opened.reactor,
            batches: opened.batches,
            in_flight: opened.in_flight,
            flows: opened.flows,
            config,
            stop,
            recorder: RrRecorder::new(
                worker,
                if is_open_load { LoadModel::Open } else { LoadModel::Closed },
                config.io_backend.batching,
                RrResults { connect: opened.connect, ..RrResults::default() },
            ),
            free: if is_open_load { (0..token(n).0).rev().collect() } else { Vec::new() },
            n_drawn: opened.n_drawn,
            n_in_flight: 0,
            n_open: n,
        }
    }

    /// Begins a closed load.
    fn send_first(&mut self) {
        if self.schedule.is_none() {
            for idx in 0..self.flows.len() {
                self.send_requests(idx, self.config.burst, clock::now());
            }
        }
    }

    /// Starts due transactions on free flows.
    fn send_due(&mut self, now: Nanos) {
        let Some(schedule) = self.schedule.as_mut().filter(|_| !self.recorder.window.is_over()) else { return };
        let free = if self.free.is_empty() { ConnectionAvailability::None } else { ConnectionAvailability::Some };
        let n_due = schedule.notice(0, now, free);
        if n_due > 0 {
            self.recorder.worker.add(counters::INTENDED, n_due);
        }
        while self.schedule.as_ref().is_some_and(|schedule| schedule.waiting(0) > 0)
            && let Some(idx) = self.free.pop()
        {
            if self.flows[idx as usize].is_open {
                self.send_oldest_due(idx as usize);
            }
        }
    }

    /// Sends the request that has been due for longest.
    fn send_oldest_due(&mut self, idx: usize) {
        let now = clock::now();
        let Some(start) = self.schedule.as_mut().and_then(|schedule| schedule.take(0, now)) else { return };
        self.recorder.worker.add(counters::SENT, 1);
        self.recorder.record_start(start, (counters::LATE_NO_FLOW, counters::LATE_OWN_CPU));
        let class = self.next_class();
        self.push_in_flight(idx, PendingRequest { sent_at: now, intended: start.intended, class });
        self.batches.send(&mut self.reactor, token(idx), class, 1);
    }

    #[inline]
    fn next_class(&mut self) -> SizeClass {
        self.n_drawn = self.n_drawn.wrapping_add(1);
        self.config.sizes.at(self.n_drawn)
    }

    #[inline]
    fn push_in_flight(&mut self, idx: usize, ask: PendingRequest) {
        let (flow, burst) = (&mut self.flows[idx], self.config.burst);
        let place = (usize::from(flow.head) + usize::from(flow.n_in_flight)) % burst;
        self.in_flight[idx * burst + place] = ask;
        flow.n_in_flight += 1;
        self.n_in_flight += 1;
    }

    /// Sends `n` requests of a closed load.
    #[inline]
    fn send_requests(&mut self, idx: usize, n: usize, at: Nanos) {
        let (mut of, mut n_equal) = (SizeClass(0), 0);
        for _ in 0..n {
            let class = self.next_class();
            self.push_in_flight(idx, PendingRequest { sent_at: at, intended: at, class });
            if class != of {
                self.batches.send(&mut self.reactor, token(idx), of, n_equal);
                (of, n_equal) = (class, 0);
            }
            n_equal += 1;
        }
        self.batches.send(&mut self.reactor, token(idx), of, n_equal);
    }

    /// Splits a received piece of a flow into answers.
    #[inline]
    fn received(&mut self, idx: usize, piece: ReceivedBytes, at: Nanos) {
        let (mut n_done, mut is_right) = (0, true);
        let bytes = self.reactor.bytes(&piece);
        let (length, mut place) = (bytes.len(), 0);
        while place < length {
            let flow = self.flows[idx];
            let ask = self.in_flight[idx * self.config.burst + usize::from(flow.head)];
            if flow.n_in_flight == 0 || (flow.n_received == 0 && bytes[place] != ask.class.0) {
                is_right = false;
                break;
            }
            let wanted = self.config.sizes.response(ask.class) - flow.n_received as usize;
            let taken = wanted.min(length - place);
            place += taken;
            let flow = &mut self.flows[idx];
            if taken < wanted {
                flow.n_received += u32::try_from(taken).expect("a piece is smaller");
                break;
            }
            flow.n_received = 0;
            flow.n_in_flight -= 1;
            flow.head = u16::try_from((usize::from(flow.head) + 1) % self.config.burst).expect("a burst is smaller");
            n_done += 1;
            self.recorder.record_answer(ask, at);
        }
        self.reactor.release(piece);
        self.n_in_flight -= n_done as u64;
        if is_right {
            self.send_next(idx, n_done, at);
        } else {
            self.fail(idx, UNEXPECTED_MESSAGE);
        }
    }

    /// Sends the next requests of a flow.
    #[inline]
    fn send_next(&mut self, idx: usize, n_done: usize, at: Nanos) {
        if n_done == 0 || self.recorder.worker.is_over() {
            return;
        }
        match &self.schedule {
            None => self.send_requests(idx, n_done, at),
            Some(schedule) if schedule.waiting(0) > 0 => self.send_oldest_due(idx),
            Some(_) => self.free.push(token(idx).0),
        }
    }

    fn fail(&mut self, idx: usize, cause: &str) {
        self.recorder.results.errors.count(cause);
        self.close_flow(idx);
    }

    /// Gives up a flow; its requests in flight get no answer.
    fn close_flow(&mut self, idx: usize) {
        self.reactor.close(token(idx));
        let flow = &mut self.flows[idx];
        self.n_open -= usize::from(flow.is_open);
        self.n_in_flight -= u64::from(flow.n_in_flight);
        self.recorder.results.n_unfinished += u64::from(flow.n_in_flight);
        *flow = Flow::default();
    }
}

impl<R: Reactor> LoadLoop for InitiatorLoop<'_, R> {
    type Event = Completion;
    type Output = RrResults;

    fn is_done(&mut self, now: Nanos) -> bool {
        self.recorder.update_phase(now);
        let drain = match self.schedule {
            _ if self.stop.state() == Stop::Abort => Nanos::ZERO,
            None => DRAIN,
            Some(_) => DRAIN_OPEN,
        };
        let window = &self.recorder.window;
        self.n_open == 0 || window.is_over() && (self.n_in_flight == 0 || window.has_drained(now, drain))
    }

    /// A closed load waits for several answers.
    fn before_wait(&mut self, now: Nanos) -> Result<WaitLimit, Error> {
        self.send_due(now);
        let until = now + TICK;
        let Some(schedule) = &mut self.schedule else {
            return Ok(WaitLimit { until, batch: self.recorder.batching.batch(self.n_in_flight) });
        };
        let due = schedule.next_due().filter(|_| !self.recorder.window.is_over());
        Ok(WaitLimit { until: due.map_or(until, |due| until.min(schedule.wake_at(due, now))), batch: None })
    }

    fn wait(&mut self, limit: WaitLimit) -> fathom_sys::Result<()> {
        self.reactor.wait(limit)
    }

    #[inline]
    fn next_event(&mut self) -> Option<Completion> {
        self.reactor.next()
    }

    #[inline]
    fn on_event(&mut self, completion: Completion) {
        let idx = completion.token.0 as usize;
        match completion.event {
            Event::Received(piece) => self.received(idx, piece, completion.at),
            Event::Ended => self.fail(idx, PEER_CLOSED),
            Event::Failed(error) => {
                self.recorder.results.errors.count(&error);
                self.close_flow(idx);
            }
            Event::Connected | Event::Sent | Event::Discarded(_) | Event::Accepted(_) => {}
        }
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

    fn finish(mut self, now: Nanos) -> Result<RrResults, Error> {
        let is_aborted = self.stop.state() == Stop::Abort;
        for (idx, flow) in self.flows.iter().enumerate() {
            for place in 0..flow.n_in_flight {
                let place = (usize::from(flow.head) + usize::from(place)) % self.config.burst;
                let ask = self.in_flight[idx * self.config.burst + place];
                self.recorder.record_unfinished(ask, now);
                let is_closed = self.recorder.model == LoadModel::Closed && !is_aborted;
                if is_closed && is_silent(now - ask.sent_at, &self.recorder.results.service) {
                    self.recorder.results.errors.count(PEER_SILENT);
                }
            }
        }
        close_all(&mut self.reactor, self.flows.len());
        for intended in self.schedule.into_iter().flat_map(OpenSchedule::rest) {
            self.recorder.record_not_started(intended, now);
        }
        Ok(self.recorder.results)
    }
}

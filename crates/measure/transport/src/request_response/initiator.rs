//! The initiator's flows of one worker: each sends again when it has its answer, or when a schedule says so.
//!
//! In a closed load, the timestamp of a complete answer is also the timestamp of the next request, so the time of a flow is
//! divided into transactions without gaps. An open load has a schedule instead, and takes a timestamp at each start.

use std::{marker::PhantomData, mem, sync::Arc};

use fathom_engine::{
    Error, StopFlag, WorkerHandle, WorkerTask,
    load::{InFlight, LoadLoop, OfferedLoad, Ring, SendTimes, TICK},
    pace::{Arrivals, WorkShare},
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
    pending_request::{PendingRequest, load_over},
    results::{RrResults, counters},
    sizes::SizeClass,
    worker_setup::{MessageBatches, SetupState, close_all, reactor, token},
};
use crate::connection_setup::ConnectTargets;

/// The most connects in progress per worker. More would overflow the accept queue of a responder with the usual backlog.
const CONNECTING_MAX: usize = 128;
/// How long all connects may take: less than a controller waits for a role to be ready.
const OPENING_MAX: Nanos = Nanos::from_secs(75);
/// How long the first of them may take: by then three SYNs have had no answer.
const FIRST_MAX: Nanos = Nanos::from_secs(5);
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
    in_flight: Ring,
    /// The received bytes of the answer to the oldest request.
    n_received: u32,
    is_open: bool,
}

/// A worker's flows, all open.
pub(super) struct OpenFlows<R> {
    reactor: R,
    batches: MessageBatches,
    flows: Vec<Flow>,
    connect: Histogram,
    /// When the connect of each flow began.
    begun: Vec<Nanos>,
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
            connect: Histogram::new(),
            begun: Vec::with_capacity(n),
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
        let began = clock::now();
        while n_open < n {
            let patience = if n_open == 0 { FIRST_MAX } else { OPENING_MAX };
            let deadline = began + patience;
            while n_begun - n_open < CONNECTING_MAX
                && let Some(number) = numbers.next()
            {
                self.begin(asking, (n_begun, number))?;
                n_begun += 1;
            }
            let now = clock::now();
            if now >= deadline {
                return Err(Error::Peer { what: format!("took {n_open} of {n} connections within {patience}") });
            }
            let limit = WaitLimit { until: deadline.min(now + TICK), batch: None };
            self.reactor.wait(limit).map_err(waiting)?;
            while let Some(completion) = self.reactor.next() {
                let idx = completion.token.0 as usize;
                match completion.event {
                    Event::Connected => {
                        n_open += 1;
                        self.connect.record((completion.at - self.begun[idx]).0);
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
            socket.set_tcp_nodelay(options.nodelay()).map_err(socket::error_of("setsockopt(TCP_NODELAY)"))?;
            Ok((socket, to, notes))
        });
        let (socket, to, notes) = opened.map_err(|error| asking.targets.connect_error(number, error))?;
        if idx == 0 {
            asking.setup.add_notes(notes);
        }
        self.begun.push(clock::now());
        self.reactor.connect(token(idx), socket, &to);
        Ok(())
    }
}

fn waiting(cause: fathom_sys::Error) -> Error {
    Error::System { what: "wait for answers".to_owned(), cause }
}

/// The flows of a worker from the start to the end.
struct InitiatorLoop<'a, R> {
    load: OfferedLoad<'a>,
    reactor: R,
    batches: MessageBatches,
    flows: Vec<Flow>,
    in_flight: InFlight<PendingRequest>,
    config: &'a RrConfig,
    results: RrResults,
    n_drawn: usize,
    n_open: usize,
}

impl<'a, R: Reactor> InitiatorLoop<'a, R> {
    fn new(opened: OpenFlows<R>, config: &'a RrConfig, worker: WorkerHandle<'a>, stop: &StopFlag) -> Self {
        let n = opened.flows.len();
        Self {
            load: load_over(n, worker, stop, opened.arrivals, counters::LOAD, config.io_backend.batching),
            reactor: opened.reactor,
            batches: opened.batches,
            in_flight: InFlight::new(n, u16::try_from(config.burst).expect("a burst is smaller")),
            flows: opened.flows,
            config,
            results: RrResults { connect: opened.connect, ..RrResults::default() },
            n_drawn: opened.n_drawn,
            n_open: n,
        }
    }

    /// Begins a closed load.
    fn send_first(&mut self) {
        if !self.load.is_open() {
            for idx in 0..self.flows.len() {
                self.send_requests(idx, self.config.burst, SendTimes::at(clock::now()));
            }
        }
    }

    #[inline]
    fn next_class(&mut self) -> SizeClass {
        self.n_drawn = self.n_drawn.wrapping_add(1);
        self.config.sizes.at(self.n_drawn)
    }

    /// Sends `n` requests at once.
    #[inline]
    fn send_requests(&mut self, idx: usize, n: usize, times: SendTimes) {
        let (mut of, mut n_equal) = (SizeClass(0), 0);
        self.load.n_in_flight += n as u64;
        for _ in 0..n {
            let class = self.next_class();
            self.in_flight.push(idx, &mut self.flows[idx].in_flight, PendingRequest { times, class });
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
            let flow = &mut self.flows[idx];
            let due = self.in_flight.front(idx, flow.in_flight);
            let Some(ask) = due.filter(|ask| flow.n_received > 0 || bytes[place] == ask.class.0) else {
                is_right = false;
                break;
            };
            let wanted = self.config.sizes.response(ask.class) - flow.n_received as usize;
            let taken = wanted.min(length - place);
            place += taken;
            if taken < wanted {
                flow.n_received += u32::try_from(taken).expect("a piece is smaller");
                break;
            }
            flow.n_received = 0;
            self.in_flight.pop(idx, &mut flow.in_flight);
            n_done += 1;
            self.load.record_answer(ask.times, at);
        }
        self.reactor.release(piece);
        self.load.n_in_flight -= n_done as u64;
        if is_right {
            self.send_next(idx, n_done, at);
        } else {
            self.fail(idx, UNEXPECTED_MESSAGE, at);
        }
    }

    /// Sends the next requests of a flow.
    #[inline]
    fn send_next(&mut self, idx: usize, n_done: usize, at: Nanos) {
        if n_done == 0 || !self.load.may_start() {
            return;
        }
        if self.load.is_open() {
            self.start_or_list(0, idx);
        } else {
            self.send_requests(idx, n_done, SendTimes::at(at));
        }
    }

    fn fail(&mut self, idx: usize, cause: &str, at: Nanos) {
        self.results.errors.count(cause);
        self.close_flow(idx, at);
    }

    /// Gives up a flow; its requests in flight get no answer.
    fn close_flow(&mut self, idx: usize, at: Nanos) {
        self.reactor.close(token(idx));
        while self.give_up_oldest(idx, at).is_some() {}
        let flow = mem::take(&mut self.flows[idx]);
        self.n_open -= usize::from(flow.is_open);
    }

    /// Gives up the oldest request in flight of a flow, and returns its times.
    fn give_up_oldest(&mut self, idx: usize, now: Nanos) -> Option<SendTimes> {
        let times = self.in_flight.pop(idx, &mut self.flows[idx].in_flight)?.times;
        self.load.n_in_flight -= 1;
        self.load.times.n_unfinished += 1;
        self.load.record_given_up(times.intended, now);
        Some(times)
    }
}

impl<'a, R: Reactor> LoadLoop<'a> for InitiatorLoop<'a, R> {
    type Arrivals = Arrivals;
    type Event = Completion;
    type Output = RrResults;

    #[inline]
    fn load(&mut self) -> &mut OfferedLoad<'a> {
        &mut self.load
    }

    /// A request waits until the end: the kernel sends lost bytes again.
    fn expire(&mut self, _: Nanos) {}

    fn has_more(&mut self) -> bool {
        self.n_open > 0
    }

    fn before_wait(&mut self, now: Nanos) -> Result<Nanos, Error> {
        Ok(now + TICK)
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
            Event::Ended => self.fail(idx, PEER_CLOSED, completion.at),
            Event::Failed(error) => {
                self.results.errors.count(&error);
                self.close_flow(idx, completion.at);
            }
            Event::Connected | Event::Sent | Event::Discarded(_) | Event::Accepted(_) => {}
        }
    }

    fn is_free(&self, idx: usize) -> bool {
        self.flows[idx].is_open
    }

    fn start(&mut self, idx: usize, times: SendTimes) {
        self.send_requests(idx, 1, times);
    }

    fn finish(mut self, now: Nanos) -> Result<RrResults, Error> {
        let is_closed = !self.load.is_open() && !self.load.is_aborted();
        for idx in 0..self.flows.len() {
            while let Some(times) = self.give_up_oldest(idx, now) {
                if is_closed && is_silent(now - times.sent_at, &self.load.times.service) {
                    self.results.errors.count(PEER_SILENT);
                }
            }
        }
        close_all(&mut self.reactor, self.flows.len());
        Ok(RrResults { times: self.load.finish(now), ..self.results })
    }
}

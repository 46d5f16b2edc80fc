//! The initiator: a connected socket per flow, with one request in flight on each.

use fathom_engine::{
    Batching, Error, LoadModel, SampleSchedule, Test, TrialContext, WorkerHandle, WorkerPool,
    load::{self, LoadLoop, OfferedLoad, SendTimes},
    pace::{Arrivals, WorkShare},
};
use fathom_model::{Cause, Endpoints, Failure, Note, Record, Side, units::Nanos};
use fathom_sys::{
    clock,
    reactor::{
        WaitLimit,
        epoll_wait::{Epoll, Interest, ReadyList},
    },
    socket::{self, Socket, Wait},
};

use super::{CHALLENGE, CHALLENGE_RESPONSE, COUNTERS, N_CLOSED, RrHeader, UdpRrConfig, challenge_datagram, counter};
use crate::{
    connection_setup::{self, distribute},
    request_response::{
        pending_request::{PendingRequest, load_over},
        results::{self, RrResults},
        sizes::SizeClass,
        unit_stamps::UnitStamps,
    },
};

/// Unsuccessful polls between two clock reads of a spinning worker.
const SPINS_PER_CHECK: u32 = 64;
/// The most answers that a flow may read in one turn, so that a flooded flow does not delay the others.
const ANSWERS_PER_POLL: usize = 16;

pub(super) struct UdpRrInitiator {
    config: UdpRrConfig,
    sockets: Vec<Socket>,
    notes: Vec<Note>,
}

impl UdpRrInitiator {
    pub(super) fn connect(kind: &'static str, config: UdpRrConfig) -> Result<Self, Error> {
        let targets = config.options.targets(&connection_setup::responder_addresses(&config.role, kind)?)?;
        let (mut sockets, mut notes) = (Vec::with_capacity(config.n_flows), Vec::new());
        for idx in 0..config.n_flows {
            let to = &targets[idx % targets.len()];
            let (socket, told) = config.options.connect_udp(to, config.role.address, idx)?;
            notes = told;
            let cannot = |cause| Error::System { what: "bound a wait".to_owned(), cause };
            socket::set_timeout(&socket, config.timeout.min(load::TICK)).map_err(cannot)?;
            sockets.push(socket);
        }
        Ok(Self { config, sockets, notes })
    }
}

impl Test for UdpRrInitiator {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let Self { config, sockets, mut notes } = *self;
        let (counters, model) = match config.open_load {
            None => (&COUNTERS[..N_CLOSED], LoadModel::Closed),
            Some(_) => (COUNTERS, LoadModel::Open),
        };
        let role = &config.role;
        let pool = WorkerPool {
            states: distribute(sockets, config.n_workers),
            counters,
            cores: &role.cores,
            until: role.side.into(),
        };
        let trial_results = pool.run(context, &mut (), |worker, sockets| {
            let party = UdpInitiatorWorker::new(&config, sockets, worker, context);
            if party.flows.len() == 1 && model == LoadModel::Closed {
                return Ok(party.run_blocking());
            }
            let cannot = |cause| Error::System { what: "wait for answers".to_owned(), cause };
            MultiplexedFlows::new(party).map_err(cannot)?.run()
        })?;
        let mut record = results::record(trial_results, role.side, model);
        // An ICMP error of a router tells of one request, and the next one may pass.
        let is_of_router =
            |failure: &Failure| matches!(&failure.cause, Cause::Other(words) if words.contains("unreachable"));
        record.complete &= record.errors.keys().all(is_of_router);
        if config.spins {
            let text = "each worker polled for answers all the time, which takes a whole core at any load";
            notes.push(Note::new("spin", text));
        }
        record.notes.append(&mut notes);
        Ok(record)
    }
}

/// A socket and its request in flight.
struct Flow {
    socket: Socket,
    /// The number of the last request.
    number: u64,
    pending: Option<PendingRequest>,
    /// The number of the last request that was repeated after a returned challenge.
    repeated: u64,
}

impl Stamping {
    fn new(socket: &Socket, schedule: SampleSchedule) -> Self {
        Self { stamps: UnitStamps::new(socket, Side::Initiator), schedule, is_current: false, is_next: false }
    }
}

/// The result of a poll for an answer.
enum PollResult {
    /// The expected answer.
    Answer,
    /// Something else.
    Other,
    Nothing,
}

/// The number of a challenge, which is returned with it.
fn challenge(datagram: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(datagram.try_into().ok()?);
    (datagram[0] == CHALLENGE).then_some(number)
}

/// One worker's flows.
struct UdpInitiatorWorker<'a> {
    load: OfferedLoad<'a>,
    config: &'a UdpRrConfig,
    results: RrResults,
    flows: Vec<Flow>,
    /// The request of each class; its header is rewritten for each send.
    requests: Vec<Vec<u8>>,
    room: Vec<u8>,
    n_drawn: usize,
    stamping: Option<Stamping>,
}

/// The stamped exchanges of a worker with one flow.
struct Stamping {
    stamps: UnitStamps,
    schedule: SampleSchedule,
    is_current: bool,
    is_next: bool,
}

impl<'a> UdpInitiatorWorker<'a> {
    fn new(config: &'a UdpRrConfig, sockets: Vec<Socket>, worker: WorkerHandle<'a>, context: &'a TrialContext) -> Self {
        let share = WorkShare { idx: worker.idx, of: config.n_workers };
        let arrivals = config.open_load.clone().map(|all| Arrivals::new(all.profile, all.process, share));
        let load = load_over(sockets.len(), worker, &context.stop, arrivals, counter::LOAD, Batching::One);
        Self {
            load: load.with_timeout(config.timeout),
            config,
            results: RrResults::default(),
            flows: sockets.into_iter().map(|socket| Flow { socket, number: 0, pending: None, repeated: 0 }).collect(),
            requests: config.sizes.messages(Side::Initiator, config.role.seed),
            // One byte more than a valid answer, so that excess data is noticed.
            room: vec![0; config.sizes.longest_response() + 1],
            n_drawn: worker.idx.wrapping_mul(7919),
            stamping: None,
        }
    }

    /// Sends the next request of a flow in a closed load.
    #[inline]
    fn send_next(&mut self, idx: usize, at: Nanos) {
        self.load.worker().add(counter::SENT, 1);
        self.send_request(idx, SendTimes::at(at));
    }

    /// Sends a request; one that the kernel does not take is lost like any other.
    #[inline]
    fn send_request(&mut self, idx: usize, times: SendTimes) {
        self.n_drawn = self.n_drawn.wrapping_add(1);
        let class = self.config.sizes.at(self.n_drawn);
        let flow = &mut self.flows[idx];
        flow.number += 1;
        flow.pending = Some(PendingRequest { times, class });
        self.load.n_in_flight += 1;
        self.send(idx, class);
    }

    #[inline]
    fn send(&mut self, idx: usize, class: SizeClass) {
        let flow = &self.flows[idx];
        let request = &mut self.requests[class.idx()];
        let announces = self.stamping.as_ref().is_some_and(|stamping| stamping.is_next);
        RrHeader { class, announces, token: self.config.token, number: flow.number }.write(request);
        let sent = match &mut self.stamping {
            Some(stamping) if stamping.is_current => stamping.stamps.send(&flow.socket, request, Wait::Never),
            _ => socket::send(&flow.socket, request, Wait::Never),
        };
        if let Err(error) = sent {
            self.results.errors.count(&error);
        }
    }

    /// Returns a challenge, and repeats the request that triggered it; its time restarts.
    #[cold]
    fn return_challenge(&mut self, idx: usize, number: u64, at: Nanos) {
        let flow = &mut self.flows[idx];
        if let Err(error) = socket::send(&flow.socket, &challenge_datagram(CHALLENGE_RESPONSE, number), Wait::Never) {
            self.results.errors.count(&error);
        }
        // Once per request, so that forged challenges do not multiply requests.
        let Some(ask) = flow.pending.as_mut().filter(|_| flow.repeated != flow.number) else { return };
        flow.repeated = flow.number;
        ask.times.sent_at = at;
        let class = ask.class;
        self.send(idx, class);
    }

    /// Polls once for the answer of a flow.
    #[inline]
    fn poll_answer(&mut self, idx: usize, wait: Wait) -> (PollResult, Nanos) {
        let flow = &mut self.flows[idx];
        let received = match &mut self.stamping {
            Some(stamping) if stamping.is_current => stamping.stamps.recv(&flow.socket, &mut self.room, wait),
            _ => socket::recv(&flow.socket, &mut self.room, wait),
        };
        let length = match received {
            Ok(None) => return (PollResult::Nothing, Nanos::ZERO),
            Ok(Some(length)) => length,
            // Nobody listens at the other side's port. The request will be lost when its timeout expires.
            Err(error) => {
                self.results.errors.count(&error);
                return (PollResult::Other, Nanos::ZERO);
            }
        };
        let at = clock::now();
        let header = RrHeader::read(&self.room[..length]).filter(|header| header.token == self.config.token);
        let Some(header) = header else {
            match challenge(&self.room[..length]) {
                Some(number) => self.return_challenge(idx, number, at),
                None => self.load.worker().add(counter::STRANGERS, 1),
            }
            return (PollResult::Other, at);
        };
        match flow.pending {
            Some(ask) if header.number == flow.number && header.class == ask.class => {
                if length != self.config.sizes.response(ask.class) {
                    self.results.errors.count(crate::request_response::connection::UNEXPECTED_MESSAGE);
                    return (PollResult::Other, at);
                }
                flow.pending = None;
                self.load.n_in_flight -= 1;
                self.load.follow_phase(at);
                self.load.record_answer(ask.times, at);
                (PollResult::Answer, at)
            }
            _ => {
                self.load.worker().add(counter::LATE, 1);
                (PollResult::Other, at)
            }
        }
    }

    /// Gives a request up if its timeout has expired. Returns whether it has.
    fn expire(&mut self, idx: usize, now: Nanos) -> bool {
        let flow = &mut self.flows[idx];
        let Some(ask) = flow.pending.filter(|ask| now - ask.times.sent_at >= self.config.timeout) else { return false };
        flow.pending = None;
        self.load.n_in_flight -= 1;
        self.load.worker().add(counter::LOST, 1);
        self.load.record_given_up(ask.times.intended, now);
        true
    }

    /// Runs one flow with blocking calls or by spinning.
    fn run_blocking(mut self) -> RrResults {
        let wait = if self.config.spins { Wait::Never } else { Wait::Block };
        self.stamping = Some(Stamping::new(&self.flows[0].socket, self.load.worker().sample_schedule()));
        self.send_next(0, clock::now());
        let mut n_looks = 0_u32;
        loop {
            match self.poll_answer(0, wait) {
                (PollResult::Answer, at) => {
                    if self.load.window().is_over() {
                        return self.finish(at);
                    }
                    let begin = if self.load.window().is_measuring() { self.end_exchange(at) } else { at };
                    self.send_next(0, begin);
                    continue;
                }
                (PollResult::Other, _) => {}
                (PollResult::Nothing, _) => {
                    n_looks = n_looks.wrapping_add(1);
                    if wait == Wait::Never && !n_looks.is_multiple_of(SPINS_PER_CHECK) {
                        continue;
                    }
                }
            }
            let now = clock::now();
            self.load.follow_phase(now);
            let is_lost = self.expire(0, now);
            if self.load.is_done(now, true) {
                return self.finish(now);
            }
            if is_lost {
                if let Some(stamping) = &mut self.stamping {
                    (stamping.is_current, stamping.is_next) = (false, false);
                    stamping.stamps.abandon();
                }
                self.send_next(0, now);
            }
        }
    }

    /// Ends an exchange of a single flow, and returns the time at which the next begins.
    #[inline]
    fn end_exchange(&mut self, at: Nanos) -> Nanos {
        let (flow, Some(stamping)) = (&self.flows[0], &mut self.stamping) else { return at };
        let (was_current, begins) = (stamping.is_current, stamping.is_next);
        if was_current {
            stamping.stamps.end(&flow.socket);
        }
        // The number of the next request.
        stamping.is_current = begins && stamping.stamps.begin(&flow.socket, flow.number + 1);
        stamping.is_next = stamping.schedule.is_due(at);
        if was_current || begins { clock::now() } else { at }
    }

    fn finish(mut self, now: Nanos) -> RrResults {
        for ask in self.flows.iter().filter_map(|flow| flow.pending) {
            self.load.times.n_unfinished += 1;
            self.load.record_given_up(ask.times.intended, now);
        }
        let stamps = self.stamping.map(|stamping| stamping.stamps);
        let sampled = stamps.and_then(|stamps| stamps.into_sampled(&self.flows[0].socket, None));
        RrResults { times: self.load.finish(now), sampled, ..self.results }
    }
}

/// Many flows, or a schedule, over epoll.
struct MultiplexedFlows<'a> {
    worker: UdpInitiatorWorker<'a>,
    epoll: Epoll,
    ready: ReadyList,
    /// The next of the ready sockets.
    next: usize,
    swept_at: Nanos,
    /// The time of the last look at the clock before a wait.
    waits_from: Nanos,
}

impl<'a> MultiplexedFlows<'a> {
    /// Watches the sockets and, in a closed load, sends the first requests.
    fn new(mut worker: UdpInitiatorWorker<'a>) -> fathom_sys::Result<Self> {
        let (epoll, ready) = (Epoll::new()?, ReadyList::with_capacity(worker.flows.len().min(256)));
        for (token, flow) in (0..).zip(&worker.flows) {
            epoll.add(&flow.socket, token, Interest::READ)?;
        }
        if !worker.load.is_open() {
            for idx in 0..worker.flows.len() {
                worker.send_next(idx, clock::now());
            }
        }
        Ok(Self { worker, epoll, ready, next: 0, swept_at: clock::now(), waits_from: Nanos::ZERO })
    }
}

impl MultiplexedFlows<'_> {
    /// Takes what a flow has received.
    fn drain(&mut self, idx: usize) {
        for _ in 0..ANSWERS_PER_POLL {
            match self.worker.poll_answer(idx, Wait::Never) {
                (PollResult::Answer, at) => return self.continue_flow(idx, at),
                (PollResult::Other, _) => {}
                (PollResult::Nothing, _) => return,
            }
        }
    }

    /// Sends the next request of a flow, if one is due.
    #[inline]
    fn continue_flow(&mut self, idx: usize, at: Nanos) {
        if !self.worker.load.may_start() {
            return;
        }
        if self.worker.load.is_open() {
            self.start_or_list(0, idx);
        } else {
            self.worker.send_next(idx, at);
        }
    }
}

impl<'a> LoadLoop<'a> for MultiplexedFlows<'a> {
    type Arrivals = Arrivals;
    /// The index of a flow that can be read.
    type Event = usize;
    type Output = RrResults;

    #[inline]
    fn load(&mut self) -> &mut OfferedLoad<'a> {
        &mut self.worker.load
    }

    fn expire(&mut self, now: Nanos) {
        if now - self.swept_at < load::TICK.min(self.worker.config.timeout) {
            return;
        }
        self.swept_at = now;
        for idx in 0..self.worker.flows.len() {
            if self.worker.expire(idx, now) {
                self.continue_flow(idx, now);
            }
        }
    }

    /// Lost requests end no flow.
    fn has_more(&mut self) -> bool {
        true
    }

    fn before_wait(&mut self, now: Nanos) -> Result<Nanos, Error> {
        self.waits_from = now;
        Ok(now + load::TICK.min(self.worker.config.timeout))
    }

    fn wait(&mut self, limit: WaitLimit) -> fathom_sys::Result<()> {
        self.next = 0;
        self.epoll.wait(&mut self.ready, Some(limit.until.since(self.waits_from))).map(drop)
    }

    #[inline]
    fn next_event(&mut self) -> Option<usize> {
        let ready = self.ready.get(self.next)?;
        self.next += 1;
        Some(usize::try_from(ready.token).expect("a token is the number of a flow"))
    }

    fn on_event(&mut self, idx: usize) {
        self.drain(idx);
    }

    fn is_free(&self, idx: usize) -> bool {
        self.worker.flows[idx].pending.is_none()
    }

    fn start(&mut self, idx: usize, times: SendTimes) {
        self.worker.send_request(idx, times);
    }

    fn finish(self, now: Nanos) -> Result<RrResults, Error> {
        Ok(self.worker.finish(now))
    }
}

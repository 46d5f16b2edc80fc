//! The initiator: a connected socket per flow, with one request in flight on each.

use fathom_engine::{
    Batching, Error, LoadModel, Phase, SampleSchedule, Stop, Test, TrialContext, WorkerHandle, WorkerPool,
    load::{self, LoadLoop, OpenSchedule},
    pace::{Arrivals, ConnectionAvailability, Pacer, Pacing, WorkShare},
};
use fathom_model::{Endpoints, Note, Record, Side, units::Nanos};
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
        recorder::{PendingRequest, RrRecorder},
        results::{self, RrResults},
        sizes::SizeClass,
        unit_stamps::UnitStamps,
    },
};

/// The longest wait for last answers: they are a small part of all.
const DRAIN_MAX: Nanos = Nanos::from_secs(1);
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

    fn run(self: Box<Self>, session: &TrialContext) -> Result<Record, Error> {
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
        let trial_results = pool.run(session, &mut (), |worker, sockets| {
            let party = UdpInitiatorWorker::new(&config, sockets, worker, session);
            if party.flows.len() == 1 && model == LoadModel::Closed {
                return Ok(party.run_blocking());
            }
            let cannot = |cause| Error::System { what: "wait for answers".to_owned(), cause };
            MultiplexedFlows::new(party).map_err(cannot)?.run()
        })?;
        let mut record = results::record(trial_results, role.side, model);
        if config.spins {
            let text = "each worker polled for answers all the time, which takes a whole core at any load";
            notes.push(Note { id: "spin".to_owned(), text: text.to_owned() });
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
    /// Nothing.
    Nothing,
}

/// The number of a challenge, which is returned with it.
fn challenge(datagram: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(datagram.try_into().ok()?);
    (datagram[0] == CHALLENGE).then_some(number)
}

/// One worker's flows.
struct UdpInitiatorWorker<'a> {
    config: &'a UdpRrConfig,
    session: &'a TrialContext,
    recorder: RrRecorder<'a>,
    flows: Vec<Flow>,
    /// The request of each class; its header is rewritten for each send.
    requests: Vec<Vec<u8>>,
    room: Vec<u8>,
    /// The starts of an open load.
    schedule: Option<OpenSchedule>,
    free: Vec<usize>,
    n_drawn: usize,
    n_in_flight: usize,
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
    fn new(config: &'a UdpRrConfig, sockets: Vec<Socket>, worker: WorkerHandle<'a>, session: &'a TrialContext) -> Self {
        let model = if config.open_load.is_some() { LoadModel::Open } else { LoadModel::Closed };
        let share = WorkShare { idx: worker.idx, of: config.n_workers };
        let arrivals = config.open_load.clone().map(|all| Arrivals::new(all.profile, all.process, share));
        Self {
            config,
            session,
            free: (0..sockets.len()).rev().collect(),
            flows: sockets.into_iter().map(|socket| Flow { socket, number: 0, pending: None, repeated: 0 }).collect(),
            requests: config.sizes.messages(Side::Initiator, config.role.seed),
            // One byte more than a valid answer, so that excess data is noticed.
            room: vec![0; config.sizes.longest_response() + 1],
            schedule: arrivals.map(|arrivals| OpenSchedule::new(worker.start, [arrivals], Pacing::Precise)),
            n_drawn: worker.idx.wrapping_mul(7919),
            n_in_flight: 0,
            stamping: None,
            recorder: RrRecorder::new(worker, model, Batching::One, RrResults::default()),
        }
    }

    /// Sends the next request of a flow; a request that the kernel does not take is lost like any other.
    #[inline]
    fn send_request(&mut self, idx: usize, (at, intended): (Nanos, Nanos)) {
        self.n_drawn = self.n_drawn.wrapping_add(1);
        let class = self.config.sizes.at(self.n_drawn);
        let flow = &mut self.flows[idx];
        flow.number += 1;
        flow.pending = Some(PendingRequest { sent_at: at, intended, class });
        self.n_in_flight += 1;
        self.recorder.worker.add(counter::SENT, 1);
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
            self.recorder.results.errors.count(&error);
        }
    }

    /// Returns a challenge, and repeats the request that triggered it; its time restarts.
    #[cold]
    fn return_challenge(&mut self, idx: usize, number: u64, at: Nanos) {
        let flow = &mut self.flows[idx];
        if let Err(error) = socket::send(&flow.socket, &challenge_datagram(CHALLENGE_RESPONSE, number), Wait::Never) {
            self.recorder.results.errors.count(&error);
        }
        // Once per request, so that forged challenges do not multiply requests.
        let Some(ask) = flow.pending.as_mut().filter(|_| flow.repeated != flow.number) else { return };
        flow.repeated = flow.number;
        ask.sent_at = at;
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
                self.recorder.results.errors.count(&error);
                return (PollResult::Other, Nanos::ZERO);
            }
        };
        let at = clock::now();
        let header = RrHeader::read(&self.room[..length]).filter(|header| header.token == self.config.token);
        let Some(header) = header else {
            match challenge(&self.room[..length]) {
                Some(number) => self.return_challenge(idx, number, at),
                None => self.recorder.worker.add(counter::STRANGERS, 1),
            }
            return (PollResult::Other, at);
        };
        match flow.pending {
            Some(ask) if header.number == flow.number && header.class == ask.class => {
                if length != self.config.sizes.response(ask.class) {
                    self.recorder.results.errors.count(crate::request_response::connection::UNEXPECTED_MESSAGE);
                    return (PollResult::Other, at);
                }
                flow.pending = None;
                self.n_in_flight -= 1;
                self.recorder.record_answer(ask, at);
                (PollResult::Answer, at)
            }
            _ => {
                self.recorder.worker.add(counter::LATE, 1);
                (PollResult::Other, at)
            }
        }
    }

    /// Gives a request up if its timeout has expired. Returns whether it has.
    fn expire(&mut self, idx: usize, now: Nanos) -> bool {
        let flow = &mut self.flows[idx];
        let Some(ask) = flow.pending.filter(|ask| now - ask.sent_at >= self.config.timeout) else { return false };
        flow.pending = None;
        self.n_in_flight -= 1;
        self.recorder.worker.add(counter::LOST, 1);
        if self.recorder.model == LoadModel::Open && self.recorder.window.contains(ask.intended) {
            self.recorder.results.response.record((now - ask.intended).0);
        }
        true
    }

    /// Whether nothing is left to wait for.
    fn is_done(&self, now: Nanos) -> bool {
        let (window, drain) = (&self.recorder.window, self.config.timeout.min(DRAIN_MAX));
        let is_aborted = self.session.stop.state() == Stop::Abort;
        window.is_over() && (self.n_in_flight == 0 || window.has_drained(now, drain) || is_aborted)
    }

    /// Runs one flow with blocking calls or by spinning.
    fn run_blocking(mut self) -> RrResults {
        let wait = if self.config.spins { Wait::Never } else { Wait::Block };
        self.stamping = Some(Stamping::new(&self.flows[0].socket, self.recorder.worker.sample_schedule()));
        let now = clock::now();
        self.send_request(0, (now, now));
        let mut n_looks = 0_u32;
        loop {
            match self.poll_answer(0, wait) {
                (PollResult::Answer, at) => {
                    let begin = match self.recorder.worker.phase() {
                        Phase::Over => return self.finish(at),
                        Phase::WarmUp => at,
                        Phase::Measure => self.end_exchange(at),
                    };
                    self.send_request(0, (begin, begin));
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
            self.recorder.update_phase(now);
            let is_lost = self.expire(0, now);
            if self.is_done(now) {
                return self.finish(now);
            }
            if is_lost {
                if let Some(stamping) = &mut self.stamping {
                    (stamping.is_current, stamping.is_next) = (false, false);
                    stamping.stamps.abandon();
                }
                self.send_request(0, (now, now));
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

    /// Takes what a flow has received.
    fn drain(&mut self, idx: usize) {
        for _ in 0..ANSWERS_PER_POLL {
            match self.poll_answer(idx, Wait::Never) {
                (PollResult::Answer, at) => {
                    self.send_next(idx, at);
                    return;
                }
                (PollResult::Other, _) => {}
                (PollResult::Nothing, _) => return,
            }
        }
    }

    /// Gives up requests whose timeout has expired.
    fn expire_requests(&mut self, now: Nanos) {
        for idx in 0..self.flows.len() {
            if self.expire(idx, now) {
                self.send_next(idx, now);
            }
        }
    }

    #[inline]
    fn send_next(&mut self, idx: usize, at: Nanos) {
        match &self.schedule {
            _ if self.recorder.worker.is_over() => {}
            None => self.send_request(idx, (at, at)),
            Some(schedule) if schedule.waiting(0) > 0 => self.send_oldest_due(idx),
            Some(_) => self.free.push(idx),
        }
    }

    fn wait_until(&mut self, now: Nanos) -> Nanos {
        let until = now + load::TICK.min(self.config.timeout);
        let Some(schedule) = self.schedule.as_mut().filter(|_| !self.recorder.window.is_over()) else { return until };
        schedule.next_due().map_or(until, |due| until.min(schedule.wake_at(due, now)))
    }

    /// Starts due transactions on free flows.
    fn send_due(&mut self, now: Nanos) {
        let Some(schedule) = self.schedule.as_mut().filter(|_| !self.recorder.window.is_over()) else { return };
        let free = if self.free.is_empty() { ConnectionAvailability::None } else { ConnectionAvailability::Some };
        let n_due = schedule.notice(0, now, free);
        if n_due > 0 {
            self.recorder.worker.add(counter::INTENDED, n_due);
        }
        while self.schedule.as_ref().is_some_and(|schedule| schedule.waiting(0) > 0)
            && let Some(idx) = self.free.pop()
        {
            self.send_oldest_due(idx);
        }
    }

    fn send_oldest_due(&mut self, idx: usize) {
        let now = clock::now();
        let Some(start) = self.schedule.as_mut().and_then(|schedule| schedule.take(0, now)) else { return };
        self.recorder.record_start(start, (counter::LATE_NO_FLOW, counter::LATE_OWN_CPU));
        self.send_request(idx, (now, start.intended));
    }

    fn finish(mut self, now: Nanos) -> RrResults {
        for ask in self.flows.iter().filter_map(|flow| flow.pending) {
            self.recorder.record_unfinished(ask, now);
        }
        for intended in self.schedule.into_iter().flat_map(OpenSchedule::rest) {
            self.recorder.record_not_started(intended, now);
        }
        let stamps = self.stamping.map(|stamping| stamping.stamps);
        self.recorder.results.sampled = stamps.and_then(|stamps| stamps.into_sampled(&self.flows[0].socket, None));
        self.recorder.results
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
        if worker.schedule.is_none() {
            for idx in 0..worker.flows.len() {
                let now = clock::now();
                worker.send_request(idx, (now, now));
            }
        }
        Ok(Self { worker, epoll, ready, next: 0, swept_at: clock::now(), waits_from: Nanos::ZERO })
    }
}

impl LoadLoop for MultiplexedFlows<'_> {
    /// The index of a flow that can be read.
    type Event = usize;
    type Output = RrResults;

    fn is_done(&mut self, now: Nanos) -> bool {
        self.worker.recorder.update_phase(now);
        if now - self.swept_at >= load::TICK.min(self.worker.config.timeout) {
            self.worker.expire_requests(now);
            self.swept_at = now;
        }
        self.worker.is_done(now)
    }

    fn before_wait(&mut self, now: Nanos) -> Result<WaitLimit, Error> {
        self.worker.send_due(now);
        self.waits_from = now;
        Ok(WaitLimit { until: self.worker.wait_until(now), batch: None })
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
        self.worker.drain(idx);
    }

    fn pacer(&mut self) -> Option<&mut Pacer> {
        self.worker.schedule.as_mut().map(OpenSchedule::pacer)
    }

    fn after_event(&mut self) {
        if self.worker.schedule.is_some() {
            self.worker.send_due(clock::now());
        }
    }

    fn finish(self, now: Nanos) -> Result<RrResults, Error> {
        Ok(self.worker.finish(now))
    }
}

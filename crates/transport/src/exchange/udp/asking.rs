//! The side that asks: a connected socket per flow, with one request under way on each.

use fathom_engine::{
    Batching, Crew, Error, Model, Session, Stop, Test, Worker,
    pace::{Arrivals, Free, Queue, Share, Waking},
};
use fathom_model::{Endpoints, Note, Record, Side, units::Nanos};
use fathom_sys::{
    clock,
    epoll::{Epoll, Events, Interest},
    socket::{self, Socket, Wait},
};

use super::{CHALLENGE, COUNTERS, Header, N_CLOSED, RETURN, Terms, place, proof};
use crate::{
    exchange::{
        books::{Ask, Books},
        sizes::Class,
        tally::{self, Tally},
    },
    link::{self, deal},
};

/// How soon the end of the trial and of time-outs is noticed.
const TICK: Nanos = Nanos::from_millis(10);
/// The longest wait for last answers: they are a small part of all.
const DRAIN_MAX: Nanos = Nanos::from_secs(1);
/// So many looks without success go by before a spinning worker looks at the clock.
const LOOKS: u32 = 64;
/// Answers that a flow may take in one turn: one that is flooded does not keep the others waiting.
const TURN: usize = 16;

/// The initiator, ready to start.
pub(super) struct Asking {
    terms: Terms,
    sockets: Vec<Socket>,
    notes: Vec<Note>,
}

impl Asking {
    pub(super) fn connect(kind: &'static str, terms: Terms) -> Result<Self, Error> {
        let targets = terms.options.targets(&link::told_all(&terms.role, kind)?)?;
        let (mut sockets, mut notes) = (Vec::with_capacity(terms.n_flows), Vec::new());
        for idx in 0..terms.n_flows {
            let to = &targets[idx % targets.len()];
            let (socket, told) = terms.options.speak(to, (terms.role.address, idx))?;
            notes = told;
            let cannot = |cause| Error::System { what: "bound a wait".to_owned(), cause };
            socket::set_timeout(&socket, terms.timeout.min(TICK)).map_err(cannot)?;
            sockets.push(socket);
        }
        Ok(Self { terms, sockets, notes })
    }
}

impl Test for Asking {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let Self { terms, sockets, mut notes } = *self;
        let (counters, model) = match terms.schedule {
            None => (&COUNTERS[..N_CLOSED], Model::Closed),
            Some(_) => (COUNTERS, Model::Open),
        };
        let role = &terms.role;
        let crew =
            Crew { states: deal(sockets, terms.n_workers), counters, cores: &role.cores, until: role.side.into() };
        let conducted = crew.conduct(session, &mut (), |worker, sockets| {
            let party = Party::new(&terms, sockets, (worker, session));
            if party.flows.len() == 1 && model == Model::Closed {
                return Ok(party.alone());
            }
            let cannot = |cause| Error::System { what: "wait for answers".to_owned(), cause };
            party.many().map_err(cannot)
        })?;
        let mut record = tally::record(conducted, (role.side, model));
        if terms.spins {
            let text = "each worker looked for answers all the time, which takes a core whatever there is to do";
            notes.push(Note { id: "spin".to_owned(), text: text.to_owned() });
        }
        record.notes.append(&mut notes);
        Ok(record)
    }
}

/// A socket and its request under way.
struct Flow {
    socket: Socket,
    /// The number of the last request.
    number: u64,
    ask: Option<Ask>,
    /// The number of the request that was last sent again behind the return of a challenge.
    repeated: u64,
}

/// What became of a look for an answer.
enum Look {
    /// The answer that was due.
    Answer,
    /// Something else was there.
    Other,
    /// Nothing was there.
    Nothing,
}

/// The number of a challenge, which its return has too.
fn challenge(datagram: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(datagram.try_into().ok()?);
    (datagram[0] == CHALLENGE).then_some(number)
}

/// One worker's flows.
struct Party<'a> {
    terms: &'a Terms,
    session: &'a Session,
    books: Books<'a>,
    flows: Vec<Flow>,
    /// For each class the request, whose header is written anew each time.
    requests: Vec<Vec<u8>>,
    room: Vec<u8>,
    queue: Option<Queue>,
    free: Vec<usize>,
    waking: Waking,
    n_drawn: usize,
    n_under_way: usize,
}

impl<'a> Party<'a> {
    fn new(terms: &'a Terms, sockets: Vec<Socket>, (worker, session): (Worker<'a>, &'a Session)) -> Self {
        let model = if terms.schedule.is_some() { Model::Open } else { Model::Closed };
        let share = Share { idx: worker.idx, of: terms.n_workers };
        let arrivals = terms.schedule.clone().map(|all| Arrivals::new(all.profile, all.process, share));
        Self {
            terms,
            session,
            free: (0..sockets.len()).rev().collect(),
            flows: sockets.into_iter().map(|socket| Flow { socket, number: 0, ask: None, repeated: 0 }).collect(),
            requests: terms.sizes.messages(Side::Initiator, terms.role.seed),
            // A byte more than there may be, so that too much is noticed.
            room: vec![0; terms.sizes.longest_response() + 1],
            queue: arrivals.map(Queue::new),
            waking: Waking::default(),
            n_drawn: worker.idx.wrapping_mul(7919),
            n_under_way: 0,
            books: Books::new(worker, model, (Batching::One, Tally::default())),
        }
    }

    /// Sends the next request of a flow; one that the kernel does not take is lost like any other.
    #[inline]
    fn ask(&mut self, idx: usize, (at, intended): (Nanos, Nanos)) {
        self.n_drawn = self.n_drawn.wrapping_add(1);
        let class = self.terms.sizes.at(self.n_drawn);
        let flow = &mut self.flows[idx];
        flow.number += 1;
        flow.ask = Some(Ask { sent_at: at, intended, class });
        self.n_under_way += 1;
        self.books.worker.add(place::SENT, 1);
        self.send(idx, class);
    }

    #[inline]
    fn send(&mut self, idx: usize, class: Class) {
        let flow = &self.flows[idx];
        let request = &mut self.requests[class.idx()];
        Header { class, token: self.terms.token, number: flow.number }.write(request);
        if let Err(error) = socket::send(&flow.socket, request, Wait::Never) {
            self.books.tally.causes.count(&error);
        }
    }

    /// Returns a challenge, and sends the request that it was the answer to once more: its time begins anew.
    #[cold]
    fn prove(&mut self, idx: usize, (number, at): (u64, Nanos)) {
        let flow = &mut self.flows[idx];
        if let Err(error) = socket::send(&flow.socket, &proof(RETURN, number), Wait::Never) {
            self.books.tally.causes.count(&error);
        }
        // Once for each request, so that forged challenges do not make many of one.
        let Some(ask) = flow.ask.as_mut().filter(|_| flow.repeated != flow.number) else { return };
        flow.repeated = flow.number;
        ask.sent_at = at;
        let class = ask.class;
        self.send(idx, class);
    }

    /// Looks for the answer of a flow once.
    #[inline]
    fn look(&mut self, idx: usize, wait: Wait) -> (Look, Nanos) {
        let flow = &mut self.flows[idx];
        let length = match socket::recv(&flow.socket, &mut self.room, wait) {
            Ok(None) => return (Look::Nothing, Nanos::ZERO),
            Ok(Some(length)) => length,
            // The other side refuses: nobody listens there. The request will be lost, at its own time.
            Err(error) => {
                self.books.tally.causes.count(&error);
                return (Look::Other, Nanos::ZERO);
            }
        };
        let at = clock::now();
        let header = Header::read(&self.room[..length]).filter(|header| header.token == self.terms.token);
        let Some(header) = header else {
            match challenge(&self.room[..length]) {
                Some(number) => self.prove(idx, (number, at)),
                None => self.books.worker.add(place::STRANGERS, 1),
            }
            return (Look::Other, at);
        };
        match flow.ask {
            Some(ask) if header.number == flow.number && header.class == ask.class => {
                if length != self.terms.sizes.response(ask.class) {
                    self.books.tally.causes.note(crate::exchange::talk::WRONG);
                    return (Look::Other, at);
                }
                flow.ask = None;
                self.n_under_way -= 1;
                self.books.answered(ask, at);
                (Look::Answer, at)
            }
            _ => {
                self.books.worker.add(place::LATE, 1);
                (Look::Other, at)
            }
        }
    }

    /// Gives a request up if its time is over; whether it was.
    fn give_up(&mut self, idx: usize, now: Nanos) -> bool {
        let flow = &mut self.flows[idx];
        let Some(ask) = flow.ask.filter(|ask| now - ask.sent_at >= self.terms.timeout) else { return false };
        flow.ask = None;
        self.n_under_way -= 1;
        self.books.worker.add(place::LOST, 1);
        if self.books.model == Model::Open && self.books.counts(ask.intended) {
            self.books.tally.response.record((now - ask.intended).0);
        }
        true
    }

    /// Whether nothing is left to wait for.
    fn is_done(&self, now: Nanos) -> bool {
        let Some(over_at) = self.books.over_at else { return false };
        let drain = self.terms.timeout.min(DRAIN_MAX);
        self.n_under_way == 0 || now - over_at > drain || self.session.stop.told() == Stop::Abort
    }

    /// One flow with blocking calls, or looking all the time.
    fn alone(mut self) -> Tally {
        let wait = if self.terms.spins { Wait::Never } else { Wait::Block };
        let now = clock::now();
        self.ask(0, (now, now));
        let mut n_looks = 0_u32;
        loop {
            match self.look(0, wait) {
                (Look::Answer, at) => {
                    if self.books.worker.is_over() {
                        return self.conclude(at);
                    }
                    self.ask(0, (at, at));
                    continue;
                }
                (Look::Other, _) => {}
                (Look::Nothing, _) => {
                    n_looks = n_looks.wrapping_add(1);
                    if wait == Wait::Never && !n_looks.is_multiple_of(LOOKS) {
                        continue;
                    }
                }
            }
            let now = clock::now();
            self.books.follow(now);
            let is_lost = self.give_up(0, now);
            if self.is_done(now) {
                return self.conclude(now);
            }
            if is_lost {
                self.ask(0, (now, now));
            }
        }
    }

    /// Many flows, or a schedule.
    fn many(mut self) -> fathom_sys::Result<Tally> {
        let (epoll, mut events) = (Epoll::new()?, Events::with_capacity(self.flows.len().min(256)));
        for (token, flow) in (0..).zip(&self.flows) {
            epoll.add(&flow.socket, token, Interest::READ)?;
        }
        if self.queue.is_none() {
            for idx in 0..self.flows.len() {
                let now = clock::now();
                self.ask(idx, (now, now));
            }
        }
        let mut swept_at = clock::now();
        loop {
            let now = clock::now();
            self.books.follow(now);
            if now - swept_at >= TICK.min(self.terms.timeout) {
                self.sweep(now);
                swept_at = now;
            }
            if self.is_done(now) {
                return Ok(self.conclude(now));
            }
            self.start_due(now);
            let until = self.until(now);
            epoll.wait(&mut events, Some(until - now))?;
            if self.queue.is_some() && until > now {
                self.waking.learn(until, clock::now());
            }
            for event in events.iter() {
                self.drain(usize::try_from(event.token).expect("a token is the number of a flow"));
                if self.queue.is_some() {
                    self.start_due(clock::now());
                }
            }
        }
    }

    /// Takes what a flow has received.
    fn drain(&mut self, idx: usize) {
        for _ in 0..TURN {
            match self.look(idx, Wait::Never) {
                (Look::Answer, at) => {
                    self.go_on(idx, at);
                    return;
                }
                (Look::Other, _) => {}
                (Look::Nothing, _) => return,
            }
        }
    }

    /// Gives up what has waited too long.
    fn sweep(&mut self, now: Nanos) {
        for idx in 0..self.flows.len() {
            if self.give_up(idx, now) {
                self.go_on(idx, now);
            }
        }
    }

    #[inline]
    fn go_on(&mut self, idx: usize, at: Nanos) {
        match &self.queue {
            _ if self.books.worker.is_over() => {}
            None => self.ask(idx, (at, at)),
            Some(queue) if queue.waiting() > 0 => self.start_one(idx),
            Some(_) => self.free.push(idx),
        }
    }

    fn until(&mut self, now: Nanos) -> Nanos {
        let until = now + TICK.min(self.terms.timeout);
        let due = self.queue.as_mut().filter(|_| self.books.over_at.is_none()).and_then(Queue::next_due);
        let early = self.waking.early();
        due.map_or(until, |due| until.min((self.books.worker.start + due).since(early).max(now)))
    }

    /// Starts what is due on flows that have nothing to do.
    fn start_due(&mut self, now: Nanos) {
        let Some(queue) = self.queue.as_mut().filter(|_| self.books.over_at.is_none()) else { return };
        let free = if self.free.is_empty() { Free::None } else { Free::Some };
        let n_due = queue.notice(now - self.books.worker.start, free);
        if n_due > 0 {
            self.books.worker.add(place::INTENDED, n_due);
        }
        while self.queue.as_ref().is_some_and(|queue| queue.waiting() > 0)
            && let Some(idx) = self.free.pop()
        {
            self.start_one(idx);
        }
    }

    fn start_one(&mut self, idx: usize) {
        let now = clock::now();
        let start = self.queue.as_mut().and_then(|queue| queue.start(now - self.books.worker.start));
        let Some(start) = start else { return };
        let intended = self.books.started(start, (place::LATE_NO_FLOW, place::LATE_OWN_CPU));
        self.ask(idx, (now, intended));
    }

    fn conclude(mut self, now: Nanos) -> Tally {
        for ask in self.flows.iter().filter_map(|flow| flow.ask) {
            self.books.unfinished(ask, now);
        }
        for intended in self.queue.into_iter().flat_map(Queue::rest) {
            self.books.not_started(self.books.worker.start + intended, now);
        }
        self.books.tally
    }
}

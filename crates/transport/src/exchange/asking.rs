//! The initiator's flows of one worker: each asks again when it has its answer, or when a schedule says so.
//!
//! The stamp at which an answer is known to be complete is also the stamp of the next request of a closed load, so the time of a
//! flow is divided into transactions without gaps. An open load has a schedule instead, and each start a stamp of its own.

use std::{marker::PhantomData, sync::Arc};

use fathom_engine::{
    Error, Model, Shift, Stop, StopFlag, Worker,
    pace::{Arrivals, Free, Queue, Share, Waking},
};
use fathom_model::{Histogram, units::Nanos};
use fathom_sys::{
    clock,
    reactor::{Event, Patience, Piece, Reactor},
    socket,
};

use super::{
    Terms,
    books::{Ask, Books},
    crowd::{COMPLETIONS_MAX, Lobby, Runs, TICK, close_all, reactor, token},
    silence::{CLOSED, SILENT, is_silent},
    sizes::Class,
    talk::WRONG,
    tally::{Tally, names},
};
use crate::link::Targets;

/// More connects of a worker at once would overflow the accept queue of a responder with the usual backlog.
const CONNECTING_MAX: usize = 128;
/// How long all connects may take: less than a controller waits for a role to be ready.
const OPENING_MAX: Nanos = Nanos::from_secs(75);
/// How long answers under way are waited for at the end where each asks for the next: they are a small part of all.
const DRAIN: Nanos = Nanos::from_millis(200);
/// How long the answers of an open load are waited for: one that is not makes its response time a lower bound.
const DRAIN_OPEN: Nanos = Nanos::from_secs(1);

/// The work of the initiator.
pub(super) struct Asking<R> {
    terms: Arc<Terms>,
    lobby: Arc<Lobby>,
    targets: Targets,
    reactor: PhantomData<fn() -> R>,
}

impl<R> Asking<R> {
    pub(super) fn new(terms: Arc<Terms>, lobby: Arc<Lobby>, targets: Targets) -> Self {
        Self { terms, lobby, targets, reactor: PhantomData }
    }
}

/// One flow.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    /// Where in its part of the ring the oldest request is.
    head: u16,
    /// How many requests are under way.
    n_asked: u16,
    /// How much of the answer to the oldest request is here.
    n_got: u32,
    is_open: bool,
}

/// A worker's flows, all open.
pub(super) struct Opened<R> {
    reactor: R,
    runs: Runs,
    flows: Vec<Flow>,
    /// For each flow as many requests as may be under way.
    asked: Vec<Ask>,
    connect: Histogram,
    arrivals: Option<Arrivals>,
    /// Numbers the transactions, so that their sizes follow the order of the mix.
    n_drawn: usize,
}

impl<R: Reactor + 'static> Shift for Asking<R> {
    type Given = usize;
    type Equipment = Opened<R>;
    type Outcome = Tally;

    fn equip(&self, worker: usize) -> Result<Opened<R>, Error> {
        let spread = self.terms.spread;
        let n = spread.flows_of(worker).len();
        let mut reactor = reactor::<R>(&self.lobby, n)?;
        let runs = Runs::new(&mut reactor, &self.terms);
        let share = Share { idx: worker, of: spread.n_workers };
        let arrivals = self.terms.schedule.clone();
        let mut opened = Opened {
            runs,
            reactor,
            flows: vec![Flow::default(); n],
            asked: vec![Ask::default(); n * self.terms.burst],
            connect: Histogram::new(),
            arrivals: arrivals.map(|all| Arrivals::new(all.profile, all.process, share)),
            // Workers that began at the same place would send the same sizes at the same time.
            n_drawn: worker.wrapping_mul(7919),
        };
        opened.open_all(self, worker)?;
        Ok(opened)
    }

    fn stand_by(&self, _: &mut Opened<R>) -> Result<(), Error> {
        // Nothing is sent before the start, and nothing is heard.
        clock::sleep_until(clock::now() + Nanos::from_millis(1));
        Ok(())
    }

    fn work(&self, worker: Worker<'_>, opened: Opened<R>, stop: &StopFlag) -> Result<Tally, Error> {
        Conversation::new(opened, &self.terms, (worker, stop)).run()
    }
}

impl<R: Reactor> Opened<R> {
    /// Connects every flow, or says why one could not be.
    fn open_all(&mut self, asking: &Asking<R>, worker: usize) -> Result<(), Error> {
        let mut numbers = asking.terms.spread.flows_of(worker);
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
            let patience = Patience { until: deadline.min(now + TICK), batch: None };
            self.reactor.wait(patience).map_err(waiting)?;
            while let Some(completion) = self.reactor.next() {
                let idx = completion.token.0 as usize;
                match completion.event {
                    Event::Connected => {
                        n_open += 1;
                        self.connect.record((completion.at - self.asked[idx * asking.terms.burst].sent_at).0);
                        self.flows[idx].is_open = true;
                        let socket = self.reactor.socket(completion.token);
                        if let Some(note) = socket.and_then(|socket| asking.terms.options.fallen_back(socket)) {
                            asking.lobby.add_notes(vec![note]);
                        }
                        asking.lobby.watch(socket);
                    }
                    Event::Failed(error) => {
                        let number = worker + idx * asking.terms.spread.n_workers;
                        return Err(asking.targets.refused(number, error));
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

    fn begin(&mut self, asking: &Asking<R>, (idx, number): (usize, usize)) -> Result<(), Error> {
        let (to, from) = asking.targets.pair(number);
        let options = &asking.terms.options;
        let opened = options.open_nonblocking(to.address).and_then(|socket| {
            let (to, notes) = options.dress(&socket, (from, to))?;
            socket.set_tcp_nodelay(options.nodelay()).map_err(socket::named("setsockopt(TCP_NODELAY)"))?;
            Ok((socket, to, notes))
        });
        let (socket, to, notes) = opened.map_err(|error| asking.targets.refused(number, error))?;
        if idx == 0 {
            asking.lobby.add_notes(notes);
        }
        self.asked[idx * asking.terms.burst].sent_at = clock::now();
        self.reactor.connect(token(idx), socket, &to);
        Ok(())
    }
}

fn waiting(cause: fathom_sys::Error) -> Error {
    Error::System { what: "wait for answers".to_owned(), cause }
}

/// The flows of a worker from the start to the end.
struct Conversation<'a, R> {
    reactor: R,
    runs: Runs,
    flows: Vec<Flow>,
    asked: Vec<Ask>,
    terms: &'a Terms,
    books: Books<'a>,
    stop: &'a StopFlag,
    /// What is due, in an open load.
    queue: Option<Queue>,
    /// Flows without a request, the one used last on top: its memory is warm.
    free: Vec<u32>,
    waking: Waking,
    n_drawn: usize,
    n_under_way: u64,
    n_open: usize,
}

impl<'a, R: Reactor> Conversation<'a, R> {
    fn new(opened: Opened<R>, terms: &'a Terms, (worker, stop): (Worker<'a>, &'a StopFlag)) -> Self {
        let n = opened.flows.len();
        let is_open_load = opened.arrivals.is_some();
        Self {
            reactor: opened.reactor,
            runs: opened.runs,
            asked: opened.asked,
            flows: opened.flows,
            terms,
            stop,
            books: Books::new(
                worker,
                if is_open_load { Model::Open } else { Model::Closed },
                (terms.way.batching, Tally { connect: opened.connect, ..Tally::default() }),
            ),
            queue: opened.arrivals.map(Queue::new),
            free: if is_open_load { (0..token(n).0).rev().collect() } else { Vec::new() },
            waking: Waking::default(),
            n_drawn: opened.n_drawn,
            n_under_way: 0,
            n_open: n,
        }
    }

    fn run(mut self) -> Result<Tally, Error> {
        if self.queue.is_none() {
            for idx in 0..self.flows.len() {
                self.ask(idx, self.terms.burst, clock::now());
            }
        }
        loop {
            let now = clock::now();
            if self.is_done(now) {
                return Ok(self.conclude(now));
            }
            self.start_due(now);
            let patience = self.patience(now);
            self.reactor.wait(patience).map_err(waiting)?;
            if self.queue.is_some() && patience.until > now {
                self.waking.learn(patience.until, clock::now());
            }
            for _ in 0..COMPLETIONS_MAX {
                let Some(completion) = self.reactor.next() else { break };
                let idx = completion.token.0 as usize;
                match completion.event {
                    Event::Received(piece) => self.received(idx, piece, completion.at),
                    Event::Ended => self.fail(idx, CLOSED),
                    Event::Failed(error) => {
                        self.books.tally.causes.count(&error);
                        self.shut(idx);
                    }
                    Event::Connected | Event::Sent | Event::Discarded(_) | Event::Accepted(_) => {}
                }
                // A batch of answers may take longer than it is to the next start.
                if self.queue.is_some() {
                    self.start_due(clock::now());
                }
            }
        }
    }

    /// Follows the phases of the trial; whether nothing is left to do.
    fn is_done(&mut self, now: Nanos) -> bool {
        self.books.follow(now);
        let drain = match self.queue {
            _ if self.stop.told() == Stop::Abort => Nanos::ZERO,
            None => DRAIN,
            Some(_) => DRAIN_OPEN,
        };
        self.n_open == 0 || self.books.over_at.is_some_and(|at| self.n_under_way == 0 || now >= at + drain)
    }

    /// How long to wait: until something is due, and for several answers while each asks for the next request.
    fn patience(&mut self, now: Nanos) -> Patience {
        let until = now + TICK;
        let Some(queue) = &mut self.queue else {
            return Patience { until, batch: self.books.batching.batch(self.n_under_way) };
        };
        let due = queue.next_due().filter(|_| self.books.over_at.is_none()).map(|due| self.books.worker.start + due);
        let early = self.waking.early();
        Patience { until: due.map_or(until, |due| until.min(due.since(early).max(now))), batch: None }
    }

    /// Starts what is due on flows that have nothing to do.
    fn start_due(&mut self, now: Nanos) {
        let Some(queue) = self.queue.as_mut().filter(|_| self.books.over_at.is_none()) else { return };
        let free = if self.free.is_empty() { Free::None } else { Free::Some };
        let n_due = queue.notice(now - self.books.worker.start, free);
        if n_due > 0 {
            self.books.worker.add(names::INTENDED, n_due);
        }
        while self.queue.as_ref().is_some_and(|queue| queue.waiting() > 0)
            && let Some(idx) = self.free.pop()
        {
            if self.flows[idx as usize].is_open {
                self.start_one(idx as usize);
            }
        }
    }

    /// Sends the request that has been due for longest.
    fn start_one(&mut self, idx: usize) {
        let now = clock::now();
        let Some(start) = self.queue.as_mut().and_then(|queue| queue.start(now - self.books.worker.start)) else {
            return;
        };
        self.books.worker.add(names::SENT, 1);
        let intended = self.books.started(start, (names::LATE_NO_FLOW, names::LATE_OWN_CPU));
        let class = self.draw();
        self.note_ask(idx, Ask { sent_at: now, intended, class });
        self.runs.send(&mut self.reactor, token(idx), (class, 1));
    }

    #[inline]
    fn draw(&mut self) -> Class {
        self.n_drawn = self.n_drawn.wrapping_add(1);
        self.terms.sizes.at(self.n_drawn)
    }

    #[inline]
    fn note_ask(&mut self, idx: usize, ask: Ask) {
        let (flow, burst) = (&mut self.flows[idx], self.terms.burst);
        let place = (usize::from(flow.head) + usize::from(flow.n_asked)) % burst;
        self.asked[idx * burst + place] = ask;
        flow.n_asked += 1;
        self.n_under_way += 1;
    }

    /// Sends so many requests of a closed load.
    #[inline]
    fn ask(&mut self, idx: usize, n: usize, at: Nanos) {
        let mut run = (Class(0), 0);
        for _ in 0..n {
            let class = self.draw();
            self.note_ask(idx, Ask { sent_at: at, intended: at, class });
            if class != run.0 {
                self.runs.send(&mut self.reactor, token(idx), run);
                run = (class, 0);
            }
            run.1 += 1;
        }
        self.runs.send(&mut self.reactor, token(idx), run);
    }

    /// Takes what came for a flow apart into answers.
    #[inline]
    fn received(&mut self, idx: usize, piece: Piece, at: Nanos) {
        let (mut n_done, mut is_right) = (0, true);
        let bytes = self.reactor.bytes(&piece);
        let (length, mut place) = (bytes.len(), 0);
        while place < length {
            let flow = self.flows[idx];
            let ask = self.asked[idx * self.terms.burst + usize::from(flow.head)];
            if flow.n_asked == 0 || (flow.n_got == 0 && bytes[place] != ask.class.0) {
                is_right = false;
                break;
            }
            let wanted = self.terms.sizes.response(ask.class) - flow.n_got as usize;
            let taken = wanted.min(length - place);
            place += taken;
            let flow = &mut self.flows[idx];
            if taken < wanted {
                flow.n_got += u32::try_from(taken).expect("a piece is smaller");
                break;
            }
            flow.n_got = 0;
            flow.n_asked -= 1;
            flow.head = u16::try_from((usize::from(flow.head) + 1) % self.terms.burst).expect("a burst is smaller");
            n_done += 1;
            self.books.answered(ask, at);
        }
        self.reactor.release(piece);
        self.n_under_way -= n_done as u64;
        if is_right {
            self.go_on(idx, n_done, at);
        } else {
            self.fail(idx, WRONG);
        }
    }

    /// Gives a flow its next requests.
    #[inline]
    fn go_on(&mut self, idx: usize, n_done: usize, at: Nanos) {
        if n_done == 0 || self.books.worker.is_over() {
            return;
        }
        match &self.queue {
            None => self.ask(idx, n_done, at),
            Some(queue) if queue.waiting() > 0 => self.start_one(idx),
            Some(_) => self.free.push(token(idx).0),
        }
    }

    fn fail(&mut self, idx: usize, cause: &str) {
        self.books.tally.causes.note(cause);
        self.shut(idx);
    }

    /// Gives up a flow; the requests under way on it have no answer.
    fn shut(&mut self, idx: usize) {
        self.reactor.close(token(idx));
        let flow = &mut self.flows[idx];
        self.n_open -= usize::from(flow.is_open);
        self.n_under_way -= u64::from(flow.n_asked);
        self.books.tally.n_unfinished += u64::from(flow.n_asked);
        *flow = Flow::default();
    }

    fn conclude(mut self, now: Nanos) -> Tally {
        let is_aborted = self.stop.told() == Stop::Abort;
        for (idx, flow) in self.flows.iter().enumerate() {
            for place in 0..flow.n_asked {
                let place = (usize::from(flow.head) + usize::from(place)) % self.terms.burst;
                let ask = self.asked[idx * self.terms.burst + place];
                self.books.unfinished(ask, now);
                let is_closed = self.books.model == Model::Closed && !is_aborted;
                if is_closed && is_silent(now - ask.sent_at, &self.books.tally.service) {
                    self.books.tally.causes.note(SILENT);
                }
            }
        }
        close_all(&mut self.reactor, self.flows.len());
        for intended in self.queue.into_iter().flat_map(Queue::rest) {
            self.books.not_started(self.books.worker.start + intended, now);
        }
        self.books.tally
    }
}

//! The connections of one worker, over either reactor.
//!
//! A request is sent straight from where the answer before it ended, and the stamp at which an answer is known to be complete is
//! also the stamp of the next request of a closed load: the time of a connection is divided into requests without gaps. An
//! open load has a schedule instead, and each start a stamp of its own.

mod answers;
mod asking;
mod opening;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use fathom_engine::{Error, Phase, Stop, StopFlag, Worker, pace::Arrivals};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Completion, Event, Fixed, Patience, Reactor, Token},
};

use super::{
    connection::{Ask, Asked, Connection, State},
    fault::{Cause, Fault, Stage},
    ledger::{Entry, Ledger},
    outcome::{Counter, Outcome},
    queue::{Free, Late, Queue, Share},
    target::Target,
    waking::Waking,
    way::Batching,
};
use crate::{
    dial::{Desk, Dialer, Rota, Route},
    h1::{Answer, HeadReader, Malformed, Persistence, Progress},
};

/// More connects at once would overflow the accept queue of a server with the usual backlog.
const CONNECTING_MAX: usize = 128;
/// How soon the end of the trial and of pauses is noticed.
const TICK: Nanos = Nanos::from_millis(10);
/// Each connection is looked at once in this time for what takes too long: time-outs are seconds.
const SWEEP: Nanos = Nanos::from_millis(100);
/// After so many completions the clock and the phase are looked at: a body may be longer than the trial.
const COMPLETIONS_MAX: u32 = 1024;
/// How long the answers of a closed load are waited for when the trial is over: they are a small part of its requests.
const DRAIN_CLOSED: Nanos = Nanos::from_millis(100);
/// The same for an open load: an answer that is not waited for makes its response time a lower bound.
const DRAIN_OPEN: Nanos = Nanos::from_secs(1);
/// The pause before a connect that follows a failure; it doubles with each …
const PAUSE_MIN: Nanos = Nanos::from_millis(10);
/// … this many times.
const PAUSE_DOUBLINGS: u32 = 6;
/// So much of a body left is worth a receive of its own that discards it; less comes with the next receive anyway.
const DISCARD_MIN: u64 = 32 * 1024;

/// What sets the pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Agenda {
    /// Each answer asks for the next request.
    Closed,
    /// A schedule.
    Open,
}

/// What one worker has to do.
#[derive(Debug)]
pub(super) struct Duty {
    pub(super) target: Arc<Target>,
    /// Its number, and how many workers there are.
    pub(super) idx: usize,
    pub(super) n_workers: usize,
    /// For each connection, which of the servers it is for.
    pub(super) connections: Vec<u16>,
    /// How many requests may be sent in all; nothing for no bound.
    pub(super) left: Option<u64>,
    /// When requests are due; nothing in a closed load.
    pub(super) arrivals: Option<Arrivals>,
    pub(super) batching: Batching,
    pub(super) stop: StopFlag,
}

/// One of the servers: what it is asked, and this worker's connections to it.
struct Lane {
    /// For each request, the heads of its answers.
    heads: Vec<HeadReader>,
    /// Whose turn it is among the requests.
    rota: Rota,
    /// How long each request is.
    n_bytes: Vec<usize>,
    /// Each request once, twice, four times and so on, up to the depth of the pipeline, as the reactor keeps it.
    fixed: Vec<Vec<Fixed>>,
    /// Connections whose turn to connect comes, in order.
    shut: VecDeque<u32>,
    /// Connections without a request, the one used last on top: its memory is warm.
    free: Vec<u32>,
    /// What is due, in an open load.
    queue: Option<Queue>,
    n_connecting: usize,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy)]
struct End {
    answer: Answer,
    at: Nanos,
}

/// The connections of one worker.
pub(super) struct Clients<'a, R> {
    worker: &'a Worker<'a>,
    target: Arc<Target>,
    dialer: Dialer,
    desk: Desk,
    reactor: R,
    lanes: Vec<Lane>,
    connections: Vec<Connection>,
    asked: Asked,
    /// Connections that failed, with the time until which they rest.
    pauses: BinaryHeap<Reverse<(Nanos, u32)>>,
    agenda: Agenda,
    batching: Batching,
    waking: Waking,
    stop: StopFlag,
    start: Nanos,
    left: Option<u64>,
    n_connecting: usize,
    n_asking: u64,
    n_failed_connects: usize,
    may_ask: bool,
    measuring: bool,
    /// When this worker saw the measured part begin; intended starts from then on count.
    measured_from: Option<Nanos>,
    /// When this worker saw the end.
    over_at: Option<Nanos>,
    swept: (Nanos, usize),
    outcome: Outcome,
    ledger: Ledger,
}

/// What a worker needs, made before the start on the worker's own thread.
pub(super) struct Equipment<R> {
    duty: Duty,
    dialer: Dialer,
    reactor: R,
    lanes: Vec<Lane>,
    connections: Vec<Connection>,
    asked: Asked,
    pauses: BinaryHeap<Reverse<(Nanos, u32)>>,
    ledger: Ledger,
}

impl<'a, R: Reactor> Clients<'a, R> {
    /// The connections of a worker, none of them open.
    pub(super) fn new(equipment: Equipment<R>, worker: &'a Worker<'a>) -> Self {
        let Equipment { duty, dialer, reactor, lanes, connections, asked, pauses, ledger } = equipment;
        let is_measured = duty.target.is_counted || worker.phase() == Phase::Measure;
        Self {
            worker,
            lanes,
            dialer,
            desk: Desk::default(),
            reactor,
            connections,
            asked,
            pauses,
            agenda: if duty.arrivals.is_some() { Agenda::Open } else { Agenda::Closed },
            batching: duty.batching,
            waking: Waking::default(),
            stop: duty.stop,
            start: worker.start,
            left: duty.left,
            n_connecting: 0,
            n_asking: 0,
            n_failed_connects: 0,
            may_ask: true,
            measuring: false,
            // Without a warm-up the first request counts too.
            measured_from: is_measured.then_some(worker.start),
            over_at: None,
            swept: (Nanos::ZERO, 0),
            outcome: Outcome::default(),
            ledger,
            target: duty.target,
        }
    }

    /// Keeps the load up until the trial is over, then waits shortly for the last answers.
    pub(super) fn run(mut self) -> Result<Outcome, Error> {
        loop {
            let now = clock::now();
            if self.is_done(now) {
                return self.conclude(now);
            }
            self.sweep(now);
            self.start_due(now);
            self.connect_shut(now);
            self.check_reached()?;
            let patience = self.patience(now);
            self.reactor
                .wait(patience)
                .map_err(|cause| Error::System { what: "wait for answers".to_owned(), cause })?;
            if self.agenda == Agenda::Open && patience.until > now {
                self.waking.learn(patience.until, clock::now());
            }
            for _ in 0..COMPLETIONS_MAX {
                let Some(completion) = self.reactor.next() else { break };
                self.attend(completion);
            }
        }
    }

    /// Follows the phases of the trial; whether nothing is left to do.
    fn is_done(&mut self, now: Nanos) -> bool {
        let phase = self.worker.phase();
        self.measuring = self.target.is_counted || phase == Phase::Measure;
        if self.measuring && self.measured_from.is_none() {
            self.measured_from = Some(now);
        }
        if phase == Phase::Over && self.over_at.is_none() {
            self.over_at = Some(now);
        }
        let has_more = match self.agenda {
            Agenda::Closed => self.left != Some(0),
            Agenda::Open => {
                let mut queues = self.lanes.iter_mut().filter_map(|lane| lane.queue.as_mut());
                queues.any(|queue| queue.waiting() > 0 || queue.next_due().is_some())
            }
        };
        self.may_ask = self.over_at.is_none() && has_more;
        let drain = match self.agenda {
            _ if self.stop.told() == Stop::Abort => Nanos::ZERO,
            Agenda::Closed => DRAIN_CLOSED,
            Agenda::Open => DRAIN_OPEN,
        };
        (!self.may_ask && self.n_asking == 0) || self.over_at.is_some_and(|at| now >= at + drain)
    }

    /// How long to wait: until something is due, and for several answers while each asks for the next request.
    fn patience(&mut self, now: Nanos) -> Patience {
        let mut until = now + TICK;
        if let Some(Reverse((resumes_at, _))) = self.pauses.peek() {
            until = until.min(*resumes_at);
        }
        let queues = self.lanes.iter_mut().filter_map(|lane| lane.queue.as_mut());
        let due = queues.filter_map(Queue::next_due).min().filter(|_| self.over_at.is_none());
        if let Some(due) = due.map(|due| self.start + due) {
            until = until.min((due.since(self.waking.early())).max(now));
        }
        let batch = if self.may_ask { self.batching.batch(self.n_asking) } else { None };
        Patience { until, batch }
    }

    /// Ends the trial when nothing of the target has ever been reached: there would be nothing to record.
    fn check_reached(&self) -> Result<(), Error> {
        let many = self.connections.len().min(CONNECTING_MAX);
        if self.n_failed_connects < many || self.target.reached.load(Ordering::Relaxed) {
            return Ok(());
        }
        let what = format!("connect to {}: {} attempts, none taken", self.target.name, self.n_failed_connects);
        let fault = self.outcome.faults.keys().next();
        let cause = match fault.map(|fault| fault.cause) {
            Some(Cause::Errno(errno)) => std::io::Error::from_raw_os_error(errno),
            Some(Cause::Dial(_)) => {
                let fault = fault.expect("there is one");
                let hint = fault.hint().map(str::to_owned);
                return Err(Error::Unsupported { what: format!("cannot {what}: {fault}"), hint });
            }
            _ => std::io::ErrorKind::TimedOut.into(),
        };
        Err(Error::System { what, cause: fathom_sys::Error::new("connect", cause) })
    }

    fn attend(&mut self, completion: Completion) {
        let Completion { token, at, event } = completion;
        let idx = token.0 as usize;
        if idx == self.connections.len() {
            self.heard_bell(event, at);
        } else {
            match event {
                Event::Connected => self.connected(idx, at),
                Event::Received(piece) => self.received(idx, piece, at),
                Event::Discarded(count) => self.discarded(idx, count, at),
                Event::Ended => self.ended(idx, at),
                Event::Failed(error) => self.broken(idx, &error, at),
                Event::Sent | Event::Accepted(_) => {}
            }
        }
        // A batch of answers may take longer than it is to the next start.
        if self.agenda == Agenda::Open {
            self.start_due(clock::now());
        }
    }

    /// The lane of a connection.
    fn lane(&mut self, idx: usize) -> &mut Lane {
        &mut self.lanes[usize::from(self.connections[idx].lane)]
    }

    /// Closes a connection that is of no more use; its turn to be opened again comes.
    fn reopen(&mut self, idx: usize) {
        self.shut(idx);
        self.lane(idx).shut.push_back(token(idx).0);
    }

    /// Closes a connection.
    fn shut(&mut self, idx: usize) {
        let connection = &mut self.connections[idx];
        if connection.state == State::Open && !connection.channel.is_plain() {
            connection.channel.farewell(&mut self.desk);
            self.say(idx);
        }
        self.reactor.close(token(idx));
        let connection = &mut self.connections[idx];
        connection.state = State::Shut;
        connection.channel = crate::dial::Channel::default();
    }
}

impl Duty {
    /// Makes the reactor and all that there is one of for each connection.
    pub(super) fn equip<R: Reactor>(self) -> Result<Equipment<R>, Error> {
        let n = self.connections.len();
        let system = |cause| Error::System { what: format!("prepare connections over {}", R::NAME), cause };
        // One more than there are connections: the bell of the dialer.
        let mut reactor = R::new(token(n + 1).0).map_err(system)?;
        let mut dialer = self.target.dialing.dialer(self.idx, self.n_workers)?;
        if let Some(bell) = dialer.bell() {
            reactor.adopt(token(n), bell);
        }
        let routes = self.target.dialing.routes.iter().enumerate();
        Ok(Equipment {
            ledger: Ledger::open(&self.target.keeping, self.idx)?,
            lanes: routes.map(|(idx, route)| self.lane(idx, route, &mut reactor)).collect(),
            connections: self.connections.iter().map(|lane| Connection::new(*lane)).collect(),
            asked: Asked::new(n, self.target.pipeline),
            pauses: BinaryHeap::with_capacity(n),
            dialer,
            reactor,
            duty: self,
        })
    }

    fn lane(&self, idx: usize, route: &Route, reactor: &mut impl Reactor) -> Lane {
        let target = &self.target;
        let powers = || (0..u16::BITS).map(|power| 1_u16 << power).take_while(|times| *times <= target.pipeline);
        let mut fix = |request: &[u8]| powers().map(|times| reactor.fix(request.repeat(usize::from(times)))).collect();
        let left = self.left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        let queue = self.arrivals.clone().map(|arrivals| {
            let rota = target.dialing.rota.from_part(self.idx, self.n_workers);
            Queue::new(Share { arrivals: arrivals.take(left), rota, lane: idx })
        });
        let own = self.connections.iter().enumerate().filter(|(_, lane)| usize::from(**lane) == idx);
        let shut: VecDeque<u32> = own.map(|(connection, _)| token(connection).0).collect();
        Lane {
            heads: route.asks.iter().map(|_| HeadReader::new(target.dialing.method)).collect(),
            rota: route.rota.from_part(self.idx, self.n_workers),
            fixed: route.asks.iter().map(|ask| fix(&ask.request)).collect(),
            n_bytes: route.asks.iter().map(|ask| ask.request.len()).collect(),
            free: Vec::with_capacity(shut.len()),
            shut,
            queue,
            n_connecting: 0,
        }
    }
}

/// The place of a connection in the reactor is its place here.
fn token(idx: usize) -> Token {
    Token(u32::try_from(idx).expect("there are fewer than 2^32 connections"))
}

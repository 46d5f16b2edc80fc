//! The connections of one worker, over either reactor.
//!
//! A request is sent straight from where the answer before it ended, and the stamp at which an answer is known to be complete is
//! also the stamp of the next request of a closed load: the time of a connection is divided into requests without gaps. An
//! open load has a schedule instead, and each start a stamp of its own.

mod answers;
mod asking;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::{Arc, atomic::Ordering},
};

use fathom_engine::{Error, Phase, Stop, StopFlag, Worker};
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
    queue::{Free, Late, Queue},
    target::Target,
};
use crate::h1::{Answer, HeadReader, Malformed, Persistence, Progress};

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
/// A sleep costs the processor about as much as looking at the clock for this long, and ends less exactly.
const SPIN: Nanos = Nanos::from_micros(5);

/// What sets the pace.
#[derive(Debug)]
pub(super) enum Agenda {
    /// Each answer asks for the next request.
    Closed,
    /// A schedule.
    Open(Box<Queue>),
}

/// What a worker is made of, before it has a reactor.
#[derive(Debug)]
pub(super) struct Duty {
    pub(super) target: Arc<Target>,
    pub(super) n_connections: u32,
    /// How many requests may be sent in all; nothing for no bound.
    pub(super) left: Option<u64>,
    pub(super) agenda: Agenda,
    pub(super) stop: StopFlag,
}

/// The requests of the target, as the reactor keeps them, and the heads that answer them.
#[derive(Debug)]
struct Route {
    heads: HeadReader,
    /// The request once, twice, four times and so on, up to the depth of the pipeline.
    fixed: Vec<Fixed>,
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
    reactor: R,
    route: Route,
    connections: Vec<Connection>,
    asked: Asked,
    /// Connections whose turn to connect comes, in order.
    shut: VecDeque<u32>,
    /// Connections that failed, with the time until which they rest.
    pauses: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// Connections without a request, the one used last on top: its memory is warm.
    free: Vec<u32>,
    agenda: Agenda,
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

impl<'a, R: Reactor> Clients<'a, R> {
    /// The connections of a worker, none of them open.
    pub(super) fn new(duty: Duty, worker: &'a Worker<'a>) -> Result<Self, Error> {
        let Duty { target, n_connections, left, agenda, stop } = duty;
        let system = |cause| Error::System { what: format!("prepare connections over {}", R::NAME), cause };
        let mut reactor = R::new(n_connections).map_err(system)?;
        let powers = (0..).map(|power| 1_u16 << power).take_while(|times| *times <= target.pipeline);
        let fixed = powers.map(|times| reactor.fix(target.request.repeat(usize::from(times)))).collect();
        let n = n_connections as usize;
        Ok(Self {
            worker,
            route: Route { heads: HeadReader::new(target.method), fixed },
            reactor,
            connections: (0..n).map(|_| Connection::new()).collect(),
            asked: Asked::new(n, target.pipeline),
            shut: (0..n_connections).collect(),
            pauses: BinaryHeap::with_capacity(n),
            free: Vec::with_capacity(n),
            agenda,
            stop,
            start: worker.start,
            left,
            n_connecting: 0,
            n_asking: 0,
            n_failed_connects: 0,
            may_ask: true,
            measuring: false,
            // Without a warm-up the first request counts too.
            measured_from: (target.is_counted || worker.phase() == Phase::Measure).then_some(worker.start),
            over_at: None,
            swept: (Nanos::ZERO, 0),
            outcome: Outcome::default(),
            ledger: Ledger::open(&target.keeping, worker.idx)?,
            target,
        })
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
        let is_over = self.over_at.is_some();
        let has_more = match &mut self.agenda {
            Agenda::Closed => self.left != Some(0),
            Agenda::Open(queue) => queue.waiting() > 0 || queue.next_due().is_some(),
        };
        self.may_ask = !is_over && has_more;
        let drain = match &self.agenda {
            _ if self.stop.told() == Stop::Abort => Nanos::ZERO,
            Agenda::Closed => DRAIN_CLOSED,
            Agenda::Open(_) => DRAIN_OPEN,
        };
        (!self.may_ask && self.n_asking == 0) || self.over_at.is_some_and(|at| now >= at + drain)
    }

    /// How long to wait: until something is due.
    fn patience(&mut self, now: Nanos) -> Patience {
        let mut until = now + TICK;
        if let Some(Reverse((resumes_at, _))) = self.pauses.peek() {
            until = until.min(*resumes_at);
        }
        if let Agenda::Open(queue) = &mut self.agenda
            && let Some(due) = queue.next_due().filter(|_| self.over_at.is_none())
        {
            let due = self.start + due;
            // A sleep this short would end later than looking again does.
            until = until.min(if due < now + SPIN { now } else { due });
        }
        Patience { until, batch: None }
    }

    /// Ends the trial when nothing of the target has ever been reached: there would be nothing to record.
    fn check_reached(&self) -> Result<(), Error> {
        let many = self.connections.len().min(CONNECTING_MAX);
        if self.n_failed_connects < many || self.target.reached.load(Ordering::Relaxed) {
            return Ok(());
        }
        let cause = match self.outcome.faults.keys().next().map(|fault| fault.cause) {
            Some(Cause::Errno(errno)) => std::io::Error::from_raw_os_error(errno),
            _ => std::io::ErrorKind::TimedOut.into(),
        };
        let what = format!("connect to {}: {} attempts, none taken", self.target.address, self.n_failed_connects);
        Err(Error::System { what, cause: fathom_sys::Error::new("connect", cause) })
    }

    fn attend(&mut self, completion: Completion) {
        let Completion { token, at, event } = completion;
        let idx = token.0 as usize;
        match event {
            Event::Connected => self.connected(idx, at),
            Event::Received(piece) => self.received(idx, piece, at),
            Event::Discarded(count) => self.discarded(idx, count, at),
            Event::Ended => self.ended(idx, at),
            Event::Failed(error) => {
                let connection = &self.connections[idx];
                let stage = match connection.state {
                    State::Connecting(_) => Stage::Connect,
                    // Nobody asked for anything: it is closed, if not politely.
                    _ if connection.n_asked == 0 => return self.closed_by_server(idx),
                    _ if error.call == "send" => Stage::Send,
                    _ => Stage::Read,
                };
                self.fail(idx, Fault::system(stage, &error), at);
            }
            Event::Sent | Event::Accepted(_) => {}
        }
        // A batch of answers may take longer than it is to the next start.
        if matches!(self.agenda, Agenda::Open(_)) {
            self.start_due(clock::now());
        }
    }
}

/// Connecting.
impl<R: Reactor> Clients<'_, R> {
    /// Begins to connect what is shut, as far as it is wanted and there may be connects under way.
    fn connect_shut(&mut self, now: Nanos) {
        while let Some(Reverse((_, idx))) = self.pauses.peek().filter(|pause| pause.0.0 <= now) {
            self.shut.push_back(*idx);
            self.pauses.pop();
        }
        // A connection without a request left for it would be opened for nothing.
        let wanted = match &self.agenda {
            Agenda::Closed => self.left.unwrap_or(u64::MAX),
            Agenda::Open(queue) => queue.waiting(),
        };
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(CONNECTING_MAX);
        while self.may_ask && self.n_connecting < wanted {
            let Some(idx) = self.shut.pop_front() else { return };
            self.connect(idx as usize);
        }
    }

    fn connect(&mut self, idx: usize) {
        let now = clock::now();
        self.connections[idx].state = State::Connecting(now);
        self.n_connecting += 1;
        match self.target.place.open() {
            Ok(socket) => self.reactor.connect(token(idx), socket, &self.target.place.address),
            Err(error) => self.fail(idx, Fault::system(Stage::Connect, &error), now),
        }
    }

    fn connected(&mut self, idx: usize, at: Nanos) {
        let connection = &mut self.connections[idx];
        let State::Connecting(since) = connection.state else { return };
        connection.begin();
        connection.connect = at - since;
        self.n_connecting -= 1;
        self.target.reached.store(true, Ordering::Relaxed);
        self.worker.add(Counter::Connections as usize, 1);
        // Kept from the warm-up too: kept-alive connections are opened then, and seldom again.
        self.outcome.connect.record((at - since).0);
        self.go_on(idx, at);
    }

    /// Closes a connection that is of no more use, and opens it anew when it is wanted.
    fn reopen(&mut self, idx: usize) {
        self.shut(idx);
        self.shut.push_back(token(idx).0);
    }

    /// Closes a connection.
    fn shut(&mut self, idx: usize) {
        self.reactor.close(token(idx));
        self.connections[idx].state = State::Shut;
    }
}

/// The place of a connection in the reactor is its place here.
fn token(idx: usize) -> Token {
    Token(u32::try_from(idx).expect("there are fewer than 2^32 connections"))
}

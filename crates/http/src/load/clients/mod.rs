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
    sync::Arc,
};

use fathom_engine::{
    Batching, Error, Phase, Stop, StopFlag, Worker,
    pace::{self, Arrivals, Free, Late, Pacer, Pacing},
};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Fixed, Patience, Reactor},
};

use super::{
    connection::{Ask, Asked, Connection},
    share::Share,
};
use crate::{
    books::{Accounts, Counter, Entry, Ledger, Outcome},
    dial::{Rota, Route},
    h1::{Answer, HeadReader, Malformed, Persistence, Progress},
    lines::{
        COMPLETIONS_MAX, Cause, Closing, DISCARD_MIN, DRAIN, Fault, Line, Stage, Subscriber, Sweep, Switchboard, TICK,
        Target, pause, token,
    },
};

/// How long the answers of an open load are waited for when the trial is over: one that is not waited for makes its response time a lower bound.
const DRAIN_OPEN: Nanos = Nanos::from_secs(1);
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
    pub(super) pacing: Pacing,
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

/// What is due at one of the servers.
type Queue = pace::Queue<Share>;

/// How an answer ended.
#[derive(Debug, Clone, Copy)]
struct End {
    answer: Answer,
    at: Nanos,
}

/// The connections of one worker.
pub(super) struct Clients<'a, R> {
    accounts: Accounts<'a>,
    target: Arc<Target>,
    board: Switchboard<R>,
    lanes: Vec<Lane>,
    connections: Vec<Connection>,
    asked: Asked,
    /// Connections that failed, with the time until which they rest.
    pauses: BinaryHeap<Reverse<(Nanos, u32)>>,
    agenda: Agenda,
    batching: Batching,
    pacer: Pacer,
    stop: StopFlag,
    start: Nanos,
    left: Option<u64>,
    n_asking: u64,
    may_ask: bool,
    measuring: bool,
    /// When this worker saw the measured part begin; intended starts from then on count.
    measured_from: Option<Nanos>,
    /// When this worker saw the end.
    over_at: Option<Nanos>,
    sweep: Sweep,
}

/// What a worker needs, made before the start on the worker's own thread.
pub(super) struct Equipment<R> {
    duty: Duty,
    board: Switchboard<R>,
    lanes: Vec<Lane>,
    connections: Vec<Connection>,
    asked: Asked,
    pauses: BinaryHeap<Reverse<(Nanos, u32)>>,
    ledger: Ledger,
}

impl<'a, R: Reactor> Clients<'a, R> {
    /// The connections of a worker, none of them open.
    pub(super) fn new(equipment: Equipment<R>, worker: &'a Worker<'a>) -> Self {
        let Equipment { duty, board, lanes, connections, asked, pauses, ledger } = equipment;
        let is_measured = duty.target.is_counted || worker.phase() == Phase::Measure;
        Self {
            accounts: Accounts::new(worker, ledger),
            board,
            lanes,
            connections,
            asked,
            pauses,
            agenda: if duty.arrivals.is_some() { Agenda::Open } else { Agenda::Closed },
            batching: duty.batching,
            pacer: Pacer::new(duty.pacing),
            stop: duty.stop,
            start: worker.start,
            left: duty.left,
            n_asking: 0,
            may_ask: true,
            measuring: false,
            // Without a warm-up the first request counts too.
            measured_from: is_measured.then_some(worker.start),
            over_at: None,
            sweep: Sweep::default(),
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
            self.board.check_reached(self.connections.len(), &self.accounts.outcome.faults)?;
            let patience = self.patience(now);
            self.board
                .reactor
                .wait(patience)
                .map_err(|cause| Error::System { what: "wait for answers".to_owned(), cause })?;
            if self.agenda == Agenda::Open && patience.until > now {
                self.pacer.learn(patience.until, clock::now());
            }
            for _ in 0..COMPLETIONS_MAX {
                let Some(completion) = self.board.reactor.next() else { break };
                self.attend(completion);
                // A batch of answers may take longer than it is to the next start.
                if self.agenda == Agenda::Open {
                    self.start_due(clock::now());
                }
            }
        }
    }

    /// Follows the phases of the trial; whether nothing is left to do.
    fn is_done(&mut self, now: Nanos) -> bool {
        let phase = self.accounts.worker.phase();
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
            Agenda::Closed => DRAIN,
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
            until = until.min(self.pacer.until(due).max(now));
        }
        let batch = if self.may_ask { self.batching.batch(self.n_asking) } else { None };
        Patience { until, batch }
    }

    /// The lane of a connection.
    fn lane(&mut self, idx: usize) -> &mut Lane {
        &mut self.lanes[usize::from(self.connections[idx].line.route)]
    }

    /// Closes a connection that is of no more use; its turn to be opened again comes.
    fn reopen(&mut self, idx: usize) {
        self.shut(idx);
        self.lane(idx).shut.push_back(token(idx).0);
    }

    /// Closes a connection.
    fn shut(&mut self, idx: usize) {
        self.board.hang_up(idx, &mut self.connections[idx].line);
    }
}

impl Duty {
    /// Makes the reactor and all that there is one of for each connection.
    pub(super) fn equip<R: Reactor>(self) -> Result<Equipment<R>, Error> {
        let n = self.connections.len();
        let mut board = Switchboard::new(&self.target, (self.idx, self.n_workers), n)?;
        let routes = self.target.dialing.routes.iter().enumerate();
        Ok(Equipment {
            ledger: Ledger::open(&self.target.keeping, self.idx)?,
            lanes: routes.map(|(idx, route)| self.lane(idx, route, &mut board.reactor)).collect(),
            connections: self.connections.iter().map(|lane| Connection::new(*lane)).collect(),
            asked: Asked::new(n, self.target.pipeline),
            pauses: BinaryHeap::with_capacity(n),
            board,
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
            Queue::new(Share { arrivals: arrivals.take(left), rota, lane: idx }).paced(self.pacing)
        });
        let own = self.connections.iter().enumerate().filter(|(_, lane)| usize::from(**lane) == idx);
        let shut: VecDeque<u32> = own.map(|(connection, _)| token(connection).0).collect();
        Lane {
            heads: route.asks.iter().map(|_| target.dialing.heads(target.dialing.method)).collect(),
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

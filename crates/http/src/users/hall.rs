//! The seats of one worker, and all that is there for whoever sits in them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::Arc,
};

use fathom_engine::{
    Batching, StopFlag,
    pace::{Free, Pacer, Pacing, Queue},
};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Batch, Patience, Reactor},
};

use super::{
    Ask, Framing, Wants,
    coming::Comings,
    connection::{Connection, Doing, KEPT_MAX, Pending, Spare},
    literals::Literals,
};
use crate::{
    books::{Accounts, Counter, Entry},
    h1::{Answer, HeadReader, Method},
    lines::{DISCARD_MIN, Fault, Sweep, Switchboard, TICK, Target, token},
};

/// What a worker has for its users; it decides nothing for them.
pub(super) struct Hall<'a, R> {
    pub(super) accounts: Accounts<'a>,
    pub(super) target: Arc<Target>,
    pub(super) board: Switchboard<R>,
    /// By seat.
    pub(super) connections: Vec<Connection>,
    /// For each server, the heads of its answers with a body and without one.
    pub(super) heads: Vec<[HeadReader; 2]>,
    pub(super) spare: Spare,
    literals: Literals,
    /// The words for each fault that has come.
    words: BTreeMap<Fault, Box<str>>,
    /// Seats that may be taken, the one left last on top: its memory is warm.
    pub(super) free: Vec<u32>,
    /// Whether a seat may be taken again.
    is_shared: bool,
    pub(super) n_seated: u64,
    pub(super) queue: Queue<Comings>,
    /// Seats whose users rest, or have their turn later, with the time until which they do.
    rests: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// Seats whose turn to connect comes, in order.
    shut: VecDeque<u32>,
    pub(super) batching: Batching,
    pub(super) pacer: Pacer,
    pub(super) sweep: Sweep,
    pub(super) stop: StopFlag,
    pub(super) start: Nanos,
    /// Users with requests under way, their connects included.
    pub(super) n_asking: u64,
    /// Sends since the last wait that come back as completions.
    n_told: u32,
    pub(super) measuring: bool,
    pub(super) measured_from: Option<Nanos>,
    pub(super) over_at: Option<Nanos>,
}

/// What a worker brings to its hall.
pub(super) struct Furniture<R> {
    pub(super) target: Arc<Target>,
    pub(super) board: Switchboard<R>,
    pub(super) n_seats: u32,
    pub(super) queue: Queue<Comings>,
    pub(super) pacing: Pacing,
    pub(super) is_shared: bool,
    pub(super) batching: Batching,
    pub(super) stop: StopFlag,
}

impl<'a, R: Reactor> Hall<'a, R> {
    pub(super) fn new(accounts: Accounts<'a>, furniture: Furniture<R>) -> Self {
        let Furniture { target, board, n_seats, queue, pacing, is_shared, batching, stop } = furniture;
        let n = n_seats as usize;
        let heads = || [Method::Get, Method::Head].map(|method| target.dialing.heads(method));
        Self {
            start: accounts.worker.start,
            accounts,
            board,
            connections: (0..n).map(|_| Connection::new()).collect(),
            heads: target.dialing.routes.iter().map(|_| heads()).collect(),
            spare: Spare::default(),
            literals: Literals::default(),
            words: BTreeMap::new(),
            free: (0..n_seats).rev().collect(),
            is_shared,
            n_seated: 0,
            queue,
            rests: BinaryHeap::with_capacity(n),
            shut: VecDeque::with_capacity(n),
            batching,
            pacer: Pacer::new(pacing),
            sweep: Sweep::default(),
            stop,
            n_asking: 0,
            n_told: 0,
            measuring: false,
            measured_from: None,
            over_at: None,
            target,
        }
    }

    /// Takes note of those who are due.
    pub(super) fn notice(&mut self, now: Nanos) {
        let free = if self.free.is_empty() { Free::None } else { Free::Some };
        let n_due = self.queue.notice(now - self.start, free);
        if n_due > 0 {
            self.accounts.add(Counter::Intended, n_due);
        }
    }

    /// Somebody takes a seat.
    pub(super) fn occupy(&mut self, seat: usize) {
        self.n_seated += 1;
        self.connections[seat].occupy();
    }

    /// Sends what a user asks, or keeps it until there is a connection for it.
    ///
    /// # Errors
    /// What kept it from being sent.
    pub(super) fn ask(&mut self, seat: usize, ask: &Ask<'_>) -> Result<(), Fault> {
        let places = &self.target.dialing.places;
        let route = *places.get(usize::from(ask.server)).unwrap_or_else(|| {
            panic!("server {} was asked, and there are {}", ask.server, places.len());
        });
        assert!(ask.n_requests > 0, "nothing was asked: {:?}", ask.bytes);
        let connection = &mut self.connections[seat];
        connection.doing = Doing::Asking;
        connection.pending = Some(Pending::of(ask));
        connection.fixed = None;
        self.n_asking += 1;
        if connection.line.is_open() && connection.line.route == route {
            return self.send(seat, ask.bytes);
        }
        connection.keep(ask.bytes);
        self.shut(seat);
        self.connections[seat].line.route = route;
        self.shut.push_back(token(seat).0);
        Ok(())
    }

    /// Sends what is pending at a seat over its open connection.
    ///
    /// # Errors
    /// What TLS finds wrong.
    fn send(&mut self, seat: usize, bytes: &[u8]) -> Result<(), Fault> {
        let Self { connections, board, literals, accounts, .. } = self;
        let connection = &mut connections[seat];
        let Some(pending) = &mut connection.pending else { return Ok(()) };
        (pending.is_sent, pending.sent_at) = (true, clock::now());
        accounts.sent(bytes.len());
        if !connection.line.channel.is_plain() {
            connection.line.channel.seal(bytes, &mut board.desk).map_err(Fault::dial)?;
            board.say(seat);
            self.n_told += 1;
        } else if let Some(fixed) = literals.find(bytes, |bytes| board.reactor.fix(bytes)) {
            connection.fixed = Some((fixed, bytes.len()));
            board.reactor.send_fixed(token(seat), fixed);
            return Ok(());
        } else {
            board.reactor.send_quietly(token(seat), bytes);
        }
        // Only on a connection that was kept alive may it have come too late, and be sent again.
        if connection.is_used && bytes.len() <= KEPT_MAX {
            connection.keep(bytes);
        }
        Ok(())
    }

    /// Sends what was kept until the connection was there.
    ///
    /// # Errors
    /// What TLS finds wrong.
    pub(super) fn send_kept(&mut self, seat: usize) -> Result<(), Fault> {
        let connection = &mut self.connections[seat];
        if let Some((fixed, length)) = connection.fixed {
            let Some(pending) = &mut connection.pending else { return Ok(()) };
            (pending.is_sent, pending.sent_at) = (true, clock::now());
            self.accounts.sent(length);
            self.board.reactor.send_fixed(token(seat), fixed);
            return Ok(());
        }
        let request = std::mem::take(&mut connection.request);
        let outcome = self.send(seat, &request);
        // Its memory serves the next request, unless it is large.
        if request.capacity() <= KEPT_MAX {
            let connection = &mut self.connections[seat];
            connection.request = request;
            connection.request.clear();
        }
        outcome
    }

    /// Sends what is pending once more, over a new connection.
    pub(super) fn repeat(&mut self, seat: usize) {
        self.shut(seat);
        let Some(pending) = &mut self.connections[seat].pending else { return };
        (pending.is_sent, pending.is_again) = (false, true);
        self.accounts.add(Counter::AskedAgain, u64::from(pending.n_asked));
        self.shut.push_back(token(seat).0);
    }

    /// The next seat whose turn to connect has come, if another connect may begin.
    pub(super) fn next_shut(&mut self) -> Option<usize> {
        let seat = if self.board.has_room() { self.shut.pop_front()? } else { return None };
        Some(seat as usize)
    }

    /// Lets the user in a seat rest; it has its turn then, never at once.
    pub(super) fn rest(&mut self, seat: usize, until: Nanos) {
        self.connections[seat].doing = Doing::Resting;
        self.rests.push(Reverse((until, token(seat).0)));
    }

    /// The next seat whose rest is over.
    pub(super) fn rested(&mut self, now: Nanos) -> Option<usize> {
        let Reverse((_, seat)) = *self.rests.peek().filter(|rest| rest.0.0 <= now)?;
        self.rests.pop();
        Some(seat as usize)
    }

    /// Closes the connection of a seat.
    pub(super) fn shut(&mut self, seat: usize) {
        self.board.hang_up(seat, &mut self.connections[seat].line);
    }

    /// The user in a seat has gone.
    pub(super) fn leave(&mut self, seat: usize) {
        self.shut(seat);
        self.connections[seat].doing = Doing::Vacant;
        self.n_seated -= 1;
        if self.is_shared {
            self.free.push(token(seat).0);
        }
    }

    /// Counts an answer; when its first bytes came is in what is pending.
    pub(super) fn count(&mut self, seat: usize, answer: &Answer, at: Nanos) {
        let connection = &mut self.connections[seat];
        let Some(pending) = &connection.pending else { return };
        let service = at.since(pending.sent_at);
        let entry = Entry {
            sent_at: pending.sent_at,
            connect: std::mem::take(&mut connection.line.took),
            service,
            first_byte: pending.first_byte_at.unwrap_or(at).since(pending.sent_at),
            body_bytes: answer.body_bytes,
            counts: self.measuring,
        };
        self.batching.observe(service);
        self.accounts.worker.show(service);
        self.accounts.answered(answer, &entry);
    }

    /// The words for a fault, as they stand in the errors of a record.
    pub(super) fn words(&mut self, fault: Fault) -> &str {
        self.words.entry(fault).or_insert_with(|| fault.to_string().into())
    }

    /// Lets the kernel throw away what is left of a large body that nobody looks at.
    pub(super) fn discard_rest(&mut self, seat: usize) {
        let connection = &self.connections[seat];
        let left = connection.reader.left();
        let is_wanted = connection.sent().is_none_or(|pending| pending.wants == Wants::Message);
        if left >= DISCARD_MIN && !is_wanted && connection.line.is_open() {
            self.board.reactor.discard(token(seat), left);
            self.accounts.outcome.has_discarded = true;
        }
    }

    /// When something is due by the clock: the end of a rest, or somebody who comes.
    pub(super) fn next_due(&mut self) -> Option<Nanos> {
        let rest = self.rests.peek().map(|rest| rest.0.0);
        let start = self.start;
        let coming = self.queue.next_due().map(|due| start + due);
        rest.into_iter().chain(coming).min().filter(|_| self.over_at.is_none())
    }

    /// Waits until something is due or happens; for several answers while every user waits for one.
    pub(super) fn wait(&mut self, now: Nanos) -> fathom_sys::Result<()> {
        let due = self.next_due().filter(|due| *due < now + TICK);
        let until = due.map_or(now + TICK, |due| self.pacer.until(due).max(now));
        let is_saturated = self.n_asking == self.n_seated && self.over_at.is_none();
        let batch = if is_saturated { self.batching.batch(self.n_asking) } else { None };
        // A send that is told of would stand in for an answer.
        let batch = batch.map(|batch| Batch { n: batch.n + self.n_told, ..batch });
        self.n_told = 0;
        self.board.reactor.wait(Patience { until, batch })?;
        if due.is_some() && until > now {
            self.pacer.learn(until, clock::now());
        }
        Ok(())
    }
}

impl Framing {
    /// The place of its reader among those of a server.
    pub(super) fn place(self) -> usize {
        match self {
            Self::Body => 0,
            Self::NoBody => 1,
        }
    }
}

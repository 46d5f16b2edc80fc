//! Requests on their way out.

use fathom_model::units::Nanos;
use fathom_sys::{clock, reactor::Reactor};

use super::{Agenda, Ask, Clients, Counter, Entry, Fault, Free, Late, Subscriber, token};

/// When a request is sent, and when it was to be.
#[derive(Debug, Clone, Copy)]
struct Stamps {
    sent_at: Nanos,
    intended: Nanos,
}

impl<R: Reactor> Clients<'_, R> {
    /// Starts what is due on connections that have nothing to do.
    pub(super) fn start_due(&mut self, now: Nanos) {
        if self.agenda == Agenda::Closed || self.over_at.is_some() || !self.pacer.looks(now) {
            return;
        }
        for lane in 0..self.lanes.len() {
            let free = if self.has_free(lane) { Free::Some } else { Free::None };
            let Some(queue) = &mut self.lanes[lane].queue else { return };
            let n_due = queue.notice(now - self.start, free);
            if n_due > 0 {
                self.accounts.add(Counter::Intended, n_due);
                self.pacer.started(now);
            }
            while self.has_waiting(lane) && self.has_free(lane) {
                let Some(idx) = self.lanes[lane].free.pop() else { break };
                self.connections[idx as usize].is_listed = false;
                self.start_one(idx as usize);
            }
        }
    }

    fn has_waiting(&self, lane: usize) -> bool {
        self.lanes[lane].queue.as_ref().is_some_and(|queue| queue.waiting() > 0)
    }

    /// Whether a connection has nothing to do; it is the last of the list then.
    fn has_free(&mut self, lane: usize) -> bool {
        let free = &mut self.lanes[lane].free;
        while let Some(idx) = free.last() {
            let connection = &mut self.connections[*idx as usize];
            if connection.line.is_open() && connection.n_asked == 0 {
                return true;
            }
            connection.is_listed = false;
            free.pop();
        }
        false
    }

    /// Sends the request that has been due for longest.
    fn start_one(&mut self, idx: usize) {
        let now = clock::now();
        let elapsed = now - self.start;
        let Some(start) = self.lane(idx).queue.as_mut().and_then(|queue| queue.start(elapsed)) else { return };
        self.accounts.add(Counter::Sent, 1);
        match start.late {
            None => {}
            Some(Late::NoConnection) => self.accounts.add(Counter::LateNoConnection, 1),
            Some(Late::OwnProcessor) => self.accounts.add(Counter::LateOwnCpu, 1),
        }
        let intended = self.start + start.intended;
        if self.counts(intended) {
            self.accounts.outcome.lag.record(start.lag.0);
        }
        self.ask(idx, 1, Stamps { sent_at: now, intended });
    }

    /// Gives an open connection its next requests, or lets it go.
    pub(super) fn go_on(&mut self, idx: usize, at: Nanos) {
        let connection = &self.connections[idx];
        let allowed = self.target.dialing.per_connection.map_or(u64::MAX, |most| most - connection.n_sent);
        let room = u64::from(self.target.pipeline - connection.n_asked).min(allowed);
        let is_busy = connection.n_asked > 0;
        let n = match self.agenda {
            _ if !self.may_ask => 0,
            Agenda::Closed => room.min(self.left.unwrap_or(u64::MAX)),
            Agenda::Open => room,
        };
        match self.agenda {
            Agenda::Closed if n > 0 => {
                self.left = self.left.map(|left| left - n);
                let n = u16::try_from(n).expect("there is room for at most a pipeline");
                self.ask(idx, n, Stamps { sent_at: at, intended: at });
            }
            _ if is_busy => {}
            Agenda::Open if n > 0 && self.has_waiting(usize::from(connection.line.route)) => self.start_one(idx),
            Agenda::Open if n > 0 => self.set_free(idx),
            // The next request needs another connection, or there is none.
            _ if self.may_ask && self.left != Some(0) => self.reopen(idx),
            _ if allowed == 0 => self.shut(idx),
            // It ends with the trial.
            _ => {}
        }
    }

    fn set_free(&mut self, idx: usize) {
        if !self.connections[idx].is_listed {
            self.connections[idx].is_listed = true;
            self.lane(idx).free.push(token(idx).0);
        }
    }

    /// Sends one request that is over once it is with the kernel.
    fn ask_and_leave(&mut self, idx: usize, Stamps { sent_at, intended }: Stamps) {
        let connection = &mut self.connections[idx];
        let route = usize::from(connection.line.route);
        let number = self.lanes[route].rota.turn();
        let ask = Ask { sent_at, intended, number: u16::try_from(number).unwrap_or(u16::MAX) };
        self.asked.push(idx, connection, ask);
        let request = &self.target.dialing.routes[route].asks[number].request;
        self.accounts.sent(request.len());
        // Unlike fixed bytes these are told of when they are sent.
        self.board.reactor.send(token(idx), request);
    }

    /// The request is sent, and nobody waits for its answer.
    pub(super) fn left_alone(&mut self, idx: usize, at: Nanos) {
        let connection = &mut self.connections[idx];
        let Some(ask) = self.asked.pop(idx, connection) else { return };
        connection.n_failures = 0;
        self.n_asking -= 1;
        let entry = Entry {
            sent_at: ask.sent_at,
            connect: std::mem::take(&mut connection.line.took),
            service: at - ask.sent_at,
            first_byte: at - ask.sent_at,
            body_bytes: 0,
            counts: self.counts(ask.intended),
        };
        self.accounts.worker.show(entry.service);
        self.accounts.left(&entry);
        self.go_on(idx, at);
    }

    /// Sends a number of requests at once.
    fn ask(&mut self, idx: usize, n: u16, stamps: Stamps) {
        let connection = &mut self.connections[idx];
        let lane = &mut self.lanes[usize::from(connection.line.route)];
        connection.n_sent += u64::from(n);
        self.n_asking += u64::from(n);
        let Stamps { sent_at, intended } = stamps;
        if self.target.leaves {
            return self.ask_and_leave(idx, stamps);
        }
        let is_plain = connection.line.channel.is_plain();
        for _ in 0..n {
            let number = lane.rota.turn();
            let ask = Ask { sent_at, intended, number: u16::try_from(number).unwrap_or(u16::MAX) };
            self.asked.push(idx, connection, ask);
            self.accounts.sent(lane.n_bytes[number]);
            if !is_plain {
                let route = &self.target.dialing.routes[usize::from(connection.line.route)];
                if let Err(fault) = connection.line.channel.seal(&route.asks[number].request, &mut self.board.desk) {
                    return self.fail(idx, Fault::dial(fault), sent_at);
                }
            } else if !lane.rota.is_single() {
                self.board.reactor.send_fixed(token(idx), lane.fixed[number][0]);
            }
        }
        if !is_plain {
            self.board.say(idx);
        } else if lane.rota.is_single() {
            // As few sends as there are ones in the binary form of the number.
            for power in (0..u16::BITS).rev().filter(|power| n >> power & 1 == 1) {
                self.board.reactor.send_fixed(token(idx), lane.fixed[0][power as usize]);
            }
        }
    }
}

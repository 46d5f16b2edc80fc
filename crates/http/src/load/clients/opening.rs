//! How connections come about: addresses, sockets, and what lies between a socket and HTTP.

use std::{cmp::Reverse, sync::atomic::Ordering};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Event, Piece, Reactor},
};

use super::{Agenda, CONNECTING_MAX, Clients, Counter, Fault, Stage, State, token};
use crate::dial::{self, Ends, LookedUp, Next, Opened, Place, Step};

impl<R: Reactor> Clients<'_, R> {
    /// Begins to connect what is shut, as far as it is wanted and there may be connects under way.
    pub(super) fn connect_shut(&mut self, now: Nanos) {
        while let Some(Reverse((_, idx))) = self.pauses.peek().filter(|pause| pause.0.0 <= now) {
            let idx = *idx;
            self.lane(idx as usize).shut.push_back(idx);
            self.pauses.pop();
        }
        if !self.may_ask {
            return;
        }
        for lane in 0..self.lanes.len() {
            // A connection without a request left for it would be opened for nothing.
            let wanted = match (self.agenda, &self.lanes[lane].queue) {
                (Agenda::Open, Some(queue)) => queue.waiting(),
                _ => self.left.unwrap_or(u64::MAX),
            };
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
            while self.n_connecting < CONNECTING_MAX && self.lanes[lane].n_connecting < wanted {
                let Some(idx) = self.lanes[lane].shut.pop_front() else { break };
                self.connect(idx as usize);
            }
        }
    }

    fn connect(&mut self, idx: usize) {
        let now = clock::now();
        let lane = usize::from(self.connections[idx].lane);
        self.n_connecting += 1;
        self.lanes[lane].n_connecting += 1;
        match self.dialer.next(lane, token(idx).0, now) {
            Next::Asked => self.connections[idx].state = State::Resolving(now),
            Next::Ready(place) => self.connect_to(idx, &place, now),
        }
    }

    fn connect_to(&mut self, idx: usize, place: &Place, now: Nanos) {
        self.connections[idx].state = State::Connecting(now);
        match place.open() {
            Ok(socket) => self.reactor.connect(token(idx), socket, &place.address),
            Err(error) => self.fail(idx, Fault::system(Stage::Connect, &error), now),
        }
    }

    /// Answers of the resolver are there.
    pub(super) fn heard_bell(&mut self, event: Event, at: Nanos) {
        if let Event::Received(piece) = event {
            self.reactor.release(piece);
        }
        while let Some(looked_up) = self.dialer.looked_up(at) {
            let (took, outcome) = match looked_up {
                LookedUp::Renewed { took, outcome } => (took, outcome),
                LookedUp::Place { token, took, place } => {
                    let idx = token as usize;
                    // A connection that has been given up meanwhile has no use for it.
                    if matches!(self.connections[idx].state, State::Resolving(_)) {
                        match place {
                            Ok(place) => self.connect_to(idx, &place, at),
                            Err(fault) => self.fail(idx, Fault::dial(fault), at),
                        }
                    }
                    (took, Ok(()))
                }
            };
            self.outcome.resolve.record(took.0);
            if let Err(fault) = outcome {
                *self.outcome.faults.entry(Fault::dial(fault)).or_default() += 1;
                self.worker.add(Counter::Attempts as usize, 1);
                self.worker.add(Counter::Errors as usize, 1);
            }
        }
    }

    /// The socket is connected; what lies between it and HTTP begins.
    pub(super) fn connected(&mut self, idx: usize, at: Nanos) {
        let connection = &mut self.connections[idx];
        let State::Connecting(since) = connection.state else { return };
        connection.state = State::Opening(at);
        // Kept from the warm-up too: kept-alive connections are opened then, and seldom again.
        self.outcome.connect.record((at - since).0);
        connection.took = at - since;
        let step = match self.dialer.channel(usize::from(connection.lane)) {
            Err(fault) => Err(fault),
            Ok(channel) if channel.is_plain() => return self.ready(idx, Opened::default(), at),
            Ok(mut channel) => {
                let ends = if channel.wants_ends() { self.reactor.socket(token(idx)).and_then(ends) } else { None };
                let step = channel.opened(ends, at, &mut self.desk);
                connection.channel = channel;
                self.say(idx);
                step
            }
        };
        self.step(idx, step, at);
    }

    /// What has arrived on a connection that is not plain.
    pub(super) fn take(&mut self, idx: usize, piece: Piece, at: Nanos) {
        let received = self.reactor.bytes(&piece);
        self.worker.add(Counter::BytesReceived as usize, received.len() as u64);
        let step = self.connections[idx].channel.take(received, at, &mut self.desk);
        self.reactor.release(piece);
        self.say(idx);
        self.step(idx, step, at);
    }

    fn step(&mut self, idx: usize, step: Result<Step, dial::Fault>, at: Nanos) {
        match step {
            Err(fault) => self.fail(idx, Fault::dial(fault), at),
            Ok(Step::Opening) => {}
            Ok(Step::Ready(opened)) => {
                self.ready(idx, opened, at);
                self.decrypted(idx, at);
            }
            Ok(Step::Data) => self.decrypted(idx, at),
            Ok(Step::Ended) => {
                self.decrypted(idx, at);
                // What was decrypted may have been the end of the connection already.
                if self.connections[idx].state == State::Open {
                    self.ended(idx, at);
                }
            }
        }
    }

    /// A connection is there, with all that comes before HTTP.
    fn ready(&mut self, idx: usize, opened: Opened, at: Nanos) {
        let connection = &mut self.connections[idx];
        let State::Opening(connected_at) = connection.state else { return };
        connection.begin();
        connection.took += at - connected_at;
        self.ledger.opened(&connection.channel, opened);
        if let Some(proxied_at) = opened.proxied_at {
            self.outcome.proxy.record((proxied_at - connected_at).0);
        }
        if let Some(secured_at) = opened.secured_at {
            self.outcome.tls.record((secured_at - opened.proxied_at.unwrap_or(connected_at)).0);
        }
        self.n_connecting -= 1;
        self.lane(idx).n_connecting -= 1;
        self.target.reached.store(true, Ordering::Relaxed);
        self.worker.add(Counter::Connections as usize, 1);
        self.go_on(idx, at);
    }

    /// Sends what a channel has to say.
    pub(super) fn say(&mut self, idx: usize) {
        if !self.desk.out.is_empty() {
            self.reactor.send(token(idx), &self.desk.out);
            self.desk.out.clear();
        }
    }
}

/// Both ends of a TCP connection.
fn ends(socket: &fathom_sys::socket::Socket) -> Option<Ends> {
    Some(Ends { local: socket.local_addr().ok()?.as_socket()?, peer: socket.peer_addr().ok()?.as_socket()? })
}

//! Answers on their way in, what became of them, and what takes too long.

use std::cmp::Reverse;

use fathom_engine::Stop;
use fathom_model::units::Nanos;
use fathom_sys::reactor::{Piece, Reactor};

use super::{
    Agenda, Cause, Clients, Closing, Counter, DISCARD_MIN, End, Entry, Error, Fault, HeadReader, Line, Malformed,
    Outcome, Persistence, Progress, Stage, Subscriber, Switchboard, pause, token,
};

impl<R: Reactor> Subscriber for Clients<'_, R> {
    type Reactor = R;

    #[inline]
    fn line(&mut self, idx: usize) -> (&mut Switchboard<R>, &mut Line) {
        (&mut self.board, &mut self.connections[idx].line)
    }

    fn n_lines(&self) -> usize {
        self.connections.len()
    }

    fn count_received(&mut self, n_bytes: u64) {
        self.accounts.add(Counter::BytesReceived, n_bytes);
    }

    fn count_fault(&mut self, fault: Fault) {
        self.accounts.count_fault(fault);
    }

    fn ready(&mut self, idx: usize, at: Nanos) {
        let connection = &mut self.connections[idx];
        connection.begin();
        self.accounts.connected(&connection.line.channel);
        self.lane(idx).n_connecting -= 1;
        self.go_on(idx, at);
    }

    /// What has arrived, plain or not.
    fn received(&mut self, idx: usize, piece: Piece, at: Nanos) {
        let outcome = self.follow(idx, Some(&piece), at);
        self.board.reactor.release(piece);
        self.followed(idx, outcome, at);
        self.discard_rest(idx);
    }

    /// What a channel has decrypted.
    fn decrypted(&mut self, idx: usize, at: Nanos) {
        if !self.board.desk.plain().is_empty() && self.connections[idx].line.is_open() {
            let outcome = self.follow(idx, None, at);
            self.followed(idx, outcome, at);
        }
    }

    fn sent(&mut self, idx: usize, at: Nanos) {
        if self.target.leaves {
            self.left_alone(idx, at);
        }
    }

    /// Goes on where a part of a body was thrown away.
    fn discarded(&mut self, idx: usize, count: u64, at: Nanos) {
        if let Some(answer) = self.connections[idx].reader.skip(count) {
            match self.answered(idx, End { answer, at }) {
                Followed::Closes => self.closed_by_server(idx),
                _ => self.go_on(idx, at),
            }
        }
    }

    /// The server has ended the connection, which may be the end of its answer.
    fn ended(&mut self, idx: usize, at: Nanos) {
        let connection = &self.connections[idx];
        if let Some(fault) = connection.line.channel.cut() {
            return self.fail(idx, Fault::dial(fault), at);
        }
        if connection.n_asked == 0 {
            return self.closed_by_server(idx);
        }
        if let Some(answer) = connection.reader.end() {
            self.accounts.ends_with_connection(&connection.line.channel);
            self.answered(idx, End { answer, at });
            return self.closed_by_server(idx);
        }
        let cause = if connection.first_byte.is_none() { Cause::Closed } else { Cause::Cut };
        self.fail(idx, Fault { stage: Stage::Read, cause }, at);
    }

    /// The socket does not work any more.
    fn broken(&mut self, idx: usize, error: &fathom_sys::Error, at: Nanos) {
        let connection = &self.connections[idx];
        let stage = match connection.line.stage() {
            Some(stage) => stage,
            // Nobody asked for anything: it is closed, if not politely.
            _ if connection.n_asked == 0 => return self.closed_by_server(idx),
            _ if error.call == "send" => Stage::Send,
            _ => Stage::Read,
        };
        self.fail(idx, Fault::system(stage, error), at);
    }

    /// Counts a failure and gives the connection up; one that had worked is opened anew at once, others after a pause.
    fn fail(&mut self, idx: usize, fault: Fault, at: Nanos) {
        let connection = &mut self.connections[idx];
        let is_opening = connection.line.is_opening();
        if is_opening {
            self.board.missed();
            // It was for a request, which is over with it.
            self.left = self.left.map(|left| left.saturating_sub(1));
            self.lanes[usize::from(connection.line.route)].n_connecting -= 1;
        }
        if self.asked.pop(idx, connection).is_some() {
            self.n_asking -= 1;
        }
        connection.n_failures += 1;
        let n_failures = connection.n_failures;
        self.ask_again(idx);
        if self.accounts.failed(fault) {
            self.left = Some(0);
        }
        if n_failures == 1 && !is_opening {
            return self.reopen(idx);
        }
        self.shut(idx);
        self.pauses.push(Reverse((at + pause(n_failures), token(idx).0)));
    }
}

impl<R: Reactor> Clients<'_, R> {
    fn followed(&mut self, idx: usize, outcome: Result<Followed, Malformed>, at: Nanos) {
        match outcome {
            Ok(Followed::Answered) => self.go_on(idx, at),
            Ok(Followed::Within) => {}
            Ok(Followed::Closes) => self.closed_by_server(idx),
            Err(malformed) => self.fail(idx, Fault::parse(malformed), at),
        }
    }

    /// Follows the answers through a piece, or through what was decrypted.
    fn follow(&mut self, idx: usize, piece: Option<&Piece>, at: Nanos) -> Result<Followed, Malformed> {
        let (mut used, mut followed) = (0, Followed::Within);
        loop {
            let bytes = piece.map_or(self.board.desk.plain(), |piece| self.board.reactor.bytes(piece));
            let connection = &mut self.connections[idx];
            if used == bytes.len() {
                return Ok(followed);
            }
            let Some(ask) = self.asked.front(idx, connection) else { return Err(Malformed::Surplus) };
            connection.first_byte.get_or_insert(at);
            self.accounts.received(&bytes[used..]);
            let heads = &mut self.lanes[usize::from(connection.line.route)].heads[usize::from(ask.number)];
            match connection.reader.take(&bytes[used..], heads)? {
                Progress::Partial => return Ok(followed),
                Progress::Complete { used: length, answer } => {
                    used += length;
                    let is_all = used == bytes.len();
                    followed = self.answered(idx, End { answer, at });
                    if followed == Followed::Closes {
                        return if is_all { Ok(followed) } else { Err(Malformed::Surplus) };
                    }
                }
            }
        }
    }

    /// Lets the kernel throw away what is left of a large body: nobody looks at it.
    fn discard_rest(&mut self, idx: usize) {
        let connection = &self.connections[idx];
        let left = connection.reader.left();
        if left >= DISCARD_MIN && connection.line.is_open() {
            self.board.reactor.discard(token(idx), left);
            self.accounts.outcome.has_discarded = true;
        }
    }

    /// Counts an answer that is complete.
    fn answered(&mut self, idx: usize, end: End) -> Followed {
        let connection = &mut self.connections[idx];
        let first_byte = connection.first_byte.unwrap_or(end.at);
        let Some(ask) = self.asked.pop(idx, connection) else { return Followed::Within };
        // The kernel knows better when the request left, if it was asked.
        let sent_at = self.board.reactor.departed(token(idx)).unwrap_or(ask.sent_at);
        connection.n_failures = 0;
        self.n_asking -= 1;
        let (service, response) = (end.at - sent_at, end.at - ask.intended);
        let entry = Entry {
            sent_at,
            connect: std::mem::take(&mut connection.line.took),
            service,
            first_byte: first_byte - sent_at,
            body_bytes: end.answer.body_bytes,
            counts: self.counts(ask.intended),
        };
        self.batching.observe(service);
        self.accounts.worker.show(if self.agenda == Agenda::Open { response } else { service });
        self.accounts.answered(&end.answer, &entry);
        if entry.counts && self.agenda == Agenda::Open {
            self.accounts.outcome.response.record(response.0);
        }
        match end.answer.persistence {
            Persistence::Stays => Followed::Answered,
            Persistence::Closes => Followed::Closes,
        }
    }

    /// Whether a request is part of the result: in an open load by when it was due, in a closed one by when it ends.
    pub(super) fn counts(&self, intended: Nanos) -> bool {
        match self.agenda {
            Agenda::Closed => self.measuring,
            Agenda::Open => {
                self.measured_from.is_some_and(|from| intended >= from) && self.over_at.is_none_or(|at| intended < at)
            }
        }
    }

    /// The server takes no further request on a connection, as it may say after any answer.
    pub(super) fn closed_by_server(&mut self, idx: usize) {
        self.accounts.add(Counter::ClosedByServer, 1);
        self.ask_again(idx);
        self.reopen(idx);
    }

    /// Requests that were sent behind the last one that the server deals with are sent again on another connection
    /// (RFC 9112 section 9.3.2).
    fn ask_again(&mut self, idx: usize) {
        let connection = &mut self.connections[idx];
        let mut n = 0;
        while self.asked.pop(idx, connection).is_some() {
            n += 1;
        }
        if n > 0 {
            self.n_asking -= n;
            self.left = self.left.map(|left| left + n);
            self.accounts.add(Counter::AskedAgain, n);
        }
    }

    /// Ends what has taken too long; as far as it is its turn to be looked at.
    pub(super) fn sweep(&mut self, now: Nanos) {
        for idx in self.sweep.due(now, self.connections.len()) {
            self.end_late(idx, now);
        }
    }

    fn end_late(&mut self, idx: usize, now: Nanos) {
        let connection = &self.connections[idx];
        let timeout = self.target.timeout;
        let stage = match connection.line.overdue(now, timeout) {
            Some(stage) => stage,
            None => match self.asked.front(idx, connection) {
                Some(ask) if now.since(ask.sent_at) > timeout => {
                    self.waited_in_vain(ask.sent_at, (ask.intended, now));
                    Stage::Read
                }
                _ => return,
            },
        };
        self.fail(idx, Fault { stage, cause: Cause::Timeout }, now);
    }

    /// A request that nobody waits for any longer took at least as long as it was waited for.
    fn waited_in_vain(&mut self, sent_at: Nanos, (intended, now): (Nanos, Nanos)) {
        if self.counts(intended) {
            self.accounts.waited_in_vain(now - sent_at);
            if self.agenda == Agenda::Open {
                self.accounts.outcome.response.record((now - intended).0);
            }
        }
    }

    /// Counts as failures what was waited for too long when the trial is over; how many requests there were among it.
    fn count_unanswered(&mut self, now: Nanos) -> u64 {
        let is_ended = self.over_at.is_some() && self.stop.told() != Stop::Abort;
        let Some(closing) = self.measured_from.filter(|_| is_ended).map(|from| Closing::of(now, from)) else {
            return 0;
        };
        let mut n_requests = 0;
        let mut waits_to_connect = vec![false; self.lanes.len()];
        for (idx, connection) in self.connections.iter().enumerate() {
            let of_connect = closing.connect(&connection.line);
            waits_to_connect[usize::from(connection.line.route)] |= of_connect.is_some();
            let ask = self.asked.front(idx, connection);
            let of_request = ask.and_then(|ask| closing.request(ask.sent_at, connection.first_byte));
            n_requests += u64::from(of_request.is_some());
            of_connect.into_iter().chain(of_request).for_each(|fault| self.accounts.count_fault(fault));
        }
        // Behind those that do not come about others waited for their turn in vain.
        let unanswered = Fault { stage: Stage::Connect, cause: Cause::Unanswered };
        for (lane, _) in self.lanes.iter().zip(waits_to_connect).filter(|(_, waits)| *waits) {
            let never = lane.shut.iter().filter(|idx| self.connections[**idx as usize].is_untried());
            never.for_each(|_| self.accounts.count_fault(unanswered));
        }
        n_requests
    }

    /// What is to be told at the end, of requests without an answer too.
    pub(super) fn conclude(mut self, now: Nanos) -> Result<Outcome, Error> {
        self.accounts.outcome.n_unfinished = self.n_asking - self.count_unanswered(now);
        if self.agenda == Agenda::Open {
            for idx in 0..self.connections.len() {
                if let Some(ask) = self.asked.front(idx, &self.connections[idx]) {
                    self.waited_in_vain(ask.sent_at, (ask.intended, now));
                }
            }
        }
        let (from, start) = (self.measured_from.unwrap_or(Nanos::MAX), self.start);
        for queue in self.lanes.iter_mut().filter_map(|lane| lane.queue.take()) {
            self.accounts.outcome.n_not_started += queue.waiting();
            for intended in queue.rest().map(|intended| start + intended).filter(|intended| *intended >= from) {
                self.accounts.outcome.n_bounds += 1;
                self.accounts.outcome.response.record((now - intended).0);
                self.accounts.outcome.lag.record((now - intended).0);
            }
        }
        let heads = self.lanes.iter().flat_map(|lane| &lane.heads);
        let head = heads.map(HeadReader::last).find(|head| !head.is_empty());
        let outcome = self.accounts.close(self.board.times, head.unwrap_or_default());
        // The next trial needs the ports.
        self.board.reactor.abandon();
        outcome
    }
}

/// Where a connection stands after some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Followed {
    /// Within an answer, or before it.
    Within,
    /// Behind an answer.
    Answered,
    /// Behind an answer that was the last on this connection.
    Closes,
}

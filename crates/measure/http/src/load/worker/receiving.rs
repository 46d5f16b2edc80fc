//! Received answers, their outcome, and timeouts.

use std::cmp::Reverse;

use fathom_model::units::Nanos;
use fathom_sys::reactor::{Reactor, ReceivedBytes};

use super::{
    AnswerEnd, ClientConnection, ClientWorker, Connection, ConnectionHandler, Connector, DISCARD_MIN, FaultCause,
    InFlightRequest, LoadCounter, Malformed, Persistence, RequestFault, RequestSample, RequestStage, ResponseProgress,
    SendTimes, UnansweredCheck, retry_delay, token,
};

impl<R: Reactor> ConnectionHandler for ClientWorker<'_, R> {
    type Reactor = R;

    #[inline]
    fn connection(&mut self, idx: usize) -> (&mut Connector<R>, &mut Connection) {
        (&mut self.connector, &mut self.connections[idx].conn)
    }

    fn n_connections(&self) -> usize {
        self.connections.len()
    }

    fn count_received(&mut self, n_bytes: u64) {
        self.recorder.add(LoadCounter::BytesReceived, n_bytes);
    }

    fn count_fault(&mut self, fault: RequestFault) {
        self.recorder.count_fault(fault);
    }

    fn on_ready(&mut self, idx: usize, at: Nanos) {
        let connection = &mut self.connections[idx];
        connection.reset_for_new_socket();
        self.recorder.on_connected(&connection.conn.channel);
        self.upstream_mut(idx).n_connecting -= 1;
        self.send_next(idx, at);
    }

    /// Handles received bytes, plain or encrypted.
    fn on_received(&mut self, idx: usize, piece: ReceivedBytes, at: Nanos) {
        let outcome = self.follow(idx, Some(&piece), at);
        self.connector.reactor.release(piece);
        self.on_progress_made(idx, outcome, at);
        self.discard_rest(idx);
    }

    /// Handles decrypted bytes.
    fn on_decrypted(&mut self, idx: usize, at: Nanos) {
        if !self.connector.tls_buffers.plain().is_empty() && self.connections[idx].conn.is_open() {
            let outcome = self.follow(idx, None, at);
            self.on_progress_made(idx, outcome, at);
        }
    }

    fn on_sent(&mut self, idx: usize, at: Nanos) {
        if self.config.ignores_answers {
            self.on_sent_not_awaited(idx, at);
        }
    }

    /// Continues after the kernel has discarded a part of a body.
    fn on_discarded(&mut self, idx: usize, count: u64, at: Nanos) {
        if let Some(answer) = self.connections[idx].reader.skip(count) {
            match self.answered(idx, AnswerEnd { answer, at }) {
                AnswerProgress::Closes => self.closed_by_server(idx),
                _ => self.send_next(idx, at),
            }
        }
    }

    /// The server has closed the connection, which may be the end of its answer.
    fn on_peer_closed(&mut self, idx: usize, at: Nanos) {
        let connection = &self.connections[idx];
        if let Some(fault) = connection.conn.channel.fault_if_closed() {
            return self.fail(idx, RequestFault::connect(fault), at);
        }
        if connection.in_flight.n() == 0 {
            return self.closed_by_server(idx);
        }
        if let Some(answer) = connection.reader.finish_at_close() {
            self.recorder.on_answer_ended_by_close(&connection.conn.channel);
            self.answered(idx, AnswerEnd { answer, at });
            return self.closed_by_server(idx);
        }
        let cause = if connection.first_byte_at.is_none() { FaultCause::Closed } else { FaultCause::ClosedMidAnswer };
        self.fail(idx, RequestFault { stage: RequestStage::Read, cause }, at);
    }

    /// The socket has failed.
    fn on_socket_error(&mut self, idx: usize, error: &fathom_sys::Error, at: Nanos) {
        let connection = &self.connections[idx];
        let stage = match connection.conn.stage() {
            Some(stage) => stage,
            // No request was in flight: this counts as a close, if not an orderly one.
            _ if connection.in_flight.n() == 0 => return self.closed_by_server(idx),
            _ if error.call == "send" => RequestStage::Send,
            _ => RequestStage::Read,
        };
        self.fail(idx, RequestFault::system(stage, error), at);
    }

    /// Counts a failure and gives the connection up. A connection that had worked is reopened at once, others after a pause.
    fn fail(&mut self, idx: usize, fault: RequestFault, at: Nanos) {
        let connection = &mut self.connections[idx];
        let is_opening = connection.conn.is_opening();
        if is_opening {
            self.connector.count_failed_connect(idx);
            // The connect was for a request, which has failed with it.
            self.requests_left = self.requests_left.map(|left| left.saturating_sub(1));
            self.upstreams[usize::from(connection.conn.upstream)].n_connecting -= 1;
        }
        connection.n_failures += 1;
        let n_failures = connection.n_failures;
        self.end_request(idx);
        self.resend_unanswered(idx);
        if self.recorder.on_failure(fault) {
            self.stop_starting(at);
        }
        if n_failures == 1 && !is_opening {
            return self.reopen(idx);
        }
        self.close(idx);
        self.retry_queue.push(Reverse((at + retry_delay(n_failures), token(idx).0)));
    }
}

impl<R: Reactor> ClientWorker<'_, R> {
    /// Starts no more requests: a closed load has none left, and the schedule of an open one ends.
    fn stop_starting(&mut self, now: Nanos) {
        if self.load.is_open() { self.load.end(now) } else { self.requests_left = Some(0) }
    }

    fn on_progress_made(&mut self, idx: usize, outcome: Result<AnswerProgress, Malformed>, at: Nanos) {
        match outcome {
            Ok(AnswerProgress::Answered) => self.send_next(idx, at),
            Ok(AnswerProgress::Within) => {}
            Ok(AnswerProgress::Closes) => self.closed_by_server(idx),
            Err(malformed) => self.fail(idx, RequestFault::parse(malformed), at),
        }
    }

    /// Follows the answers through a received piece, or through decrypted bytes.
    fn follow(&mut self, idx: usize, piece: Option<&ReceivedBytes>, at: Nanos) -> Result<AnswerProgress, Malformed> {
        let (mut used, mut followed) = (0, AnswerProgress::Within);
        loop {
            let bytes = piece.map_or(self.connector.tls_buffers.plain(), |piece| self.connector.reactor.bytes(piece));
            let connection = &mut self.connections[idx];
            if used == bytes.len() {
                return Ok(followed);
            }
            let Some(ask) = self.in_flight.front(idx, connection.in_flight) else { return Err(Malformed::Surplus) };
            connection.first_byte_at.get_or_insert(at);
            self.recorder.on_received(&bytes[used..]);
            let heads = &mut self.upstreams[usize::from(connection.conn.upstream)].heads[usize::from(ask.request_idx)];
            match connection.reader.take(&bytes[used..], heads)? {
                ResponseProgress::Partial => return Ok(followed),
                ResponseProgress::Complete { used: length, answer } => {
                    used += length;
                    let is_all = used == bytes.len();
                    followed = self.answered(idx, AnswerEnd { answer, at });
                    if followed == AnswerProgress::Closes {
                        return if is_all { Ok(followed) } else { Err(Malformed::Surplus) };
                    }
                }
            }
        }
    }

    /// Lets the kernel discard the rest of a large body, which nobody reads.
    fn discard_rest(&mut self, idx: usize) {
        let connection = &self.connections[idx];
        let left = connection.reader.body_bytes_left();
        if left >= DISCARD_MIN && connection.conn.is_open() {
            self.connector.reactor.discard(token(idx), left);
            self.recorder.results.has_discarded = true;
        }
    }

    /// Counts a complete answer.
    fn answered(&mut self, idx: usize, end: AnswerEnd) -> AnswerProgress {
        let connection = &mut self.connections[idx];
        let Some(ask) = self.in_flight.pop(idx, &mut connection.in_flight) else { return AnswerProgress::Within };
        self.load.n_in_flight -= 1;
        let first_byte = connection.first_byte_at.take().unwrap_or(end.at);
        // With kernel timestamps, the actual departure of the request is known.
        let sent_at = self.connector.reactor.departed(token(idx)).unwrap_or(ask.times.sent_at);
        connection.n_failures = 0;
        let times = SendTimes { sent_at, intended: ask.times.intended };
        let entry = RequestSample {
            sent_at,
            late: if self.load.is_open() { sent_at.since(times.intended) } else { Nanos::ZERO },
            connect: std::mem::take(&mut connection.conn.connect_time),
            service: end.at - sent_at,
            first_byte: first_byte - sent_at,
            body_bytes: end.answer.body_bytes,
            counts: self.load.record_answer(times, end.at),
        };
        self.recorder.on_answer(&end.answer, &entry, || self.connector.baseline_rtt(idx));
        match end.answer.persistence {
            Persistence::Stays => AnswerProgress::Answered,
            Persistence::Closes => AnswerProgress::Closes,
        }
    }

    /// Takes the oldest request in flight on a connection, which gets no answer.
    pub(super) fn end_request(&mut self, idx: usize) -> Option<InFlightRequest> {
        let connection = &mut self.connections[idx];
        let ask = self.in_flight.pop(idx, &mut connection.in_flight)?;
        connection.first_byte_at = None;
        self.load.n_in_flight -= 1;
        Some(ask)
    }

    /// The server takes no further request on a connection, which is allowed after any answer.
    pub(super) fn closed_by_server(&mut self, idx: usize) {
        self.recorder.add(LoadCounter::ClosedByServer, 1);
        self.resend_unanswered(idx);
        self.reopen(idx);
    }

    /// Sends the requests after the last one that the server handles again on another connection (RFC 9112 section 9.3.2).
    fn resend_unanswered(&mut self, idx: usize) {
        let mut n = 0;
        while self.end_request(idx).is_some() {
            n += 1;
        }
        if n > 0 {
            self.requests_left = self.requests_left.map(|left| left + n);
            self.recorder.add(LoadCounter::Resent, n);
        }
    }

    /// Fails the operations that have exceeded their timeout, on the connections that are due for a check.
    pub(super) fn sweep(&mut self, now: Nanos) {
        for idx in self.sweep.due(now, self.connections.len()) {
            self.fail_overdue(idx, now);
        }
    }

    fn fail_overdue(&mut self, idx: usize, now: Nanos) {
        let connection = &self.connections[idx];
        let timeout = self.config.timeout;
        let stage = match connection.conn.overdue(now, timeout) {
            Some(stage) => stage,
            None => match self.in_flight.front(idx, connection.in_flight) {
                Some(ask) if now.since(ask.times.sent_at) > timeout => {
                    self.load.record_waited(ask.times, now);
                    RequestStage::Read
                }
                _ => return,
            },
        };
        self.fail(idx, RequestFault { stage, cause: FaultCause::Timeout }, now);
    }

    /// Counts operations that are overdue at the end of the trial as failures. Returns the number of requests among them.
    fn count_unanswered(&mut self, now: Nanos) -> u64 {
        let Some(closing) = UnansweredCheck::of(now, &self.load) else { return 0 };
        let mut n_requests = 0;
        let mut waits_to_connect = vec![false; self.upstreams.len()];
        for (idx, connection) in self.connections.iter().enumerate() {
            let of_connect = closing.connect(&connection.conn);
            waits_to_connect[usize::from(connection.conn.upstream)] |= of_connect.is_some();
            let ask = self.in_flight.front(idx, connection.in_flight);
            let silent_for = || self.connector.silent_for(idx);
            let of_request =
                ask.and_then(|ask| closing.request(ask.times.sent_at, connection.first_byte_at, silent_for));
            n_requests += u64::from(of_request.is_some());
            of_connect.into_iter().chain(of_request).for_each(|fault| self.recorder.count_fault(fault));
        }
        // Connects that do not complete have kept the connections behind them from starting.
        let unanswered = RequestFault { stage: RequestStage::Connect, cause: FaultCause::Unanswered };
        for (upstream, _) in self.upstreams.iter().zip(waits_to_connect).filter(|(_, waits)| *waits) {
            let never = upstream.to_connect.iter().filter(|idx| self.connections[**idx as usize].is_untried());
            never.for_each(|_| self.recorder.count_fault(unanswered));
        }
        n_requests
    }

    /// Counts the connections that wait far longer for an answer than others do. A long body is an answer.
    fn count_stuck(&mut self, now: Nanos) {
        let is_ended = UnansweredCheck::of(now, &self.load).is_some();
        let Some(slow_answer) = self.load.times.service.quantile(0.99).filter(|_| is_ended) else { return };
        let sent_at = |(idx, connection): (usize, &ClientConnection)| {
            let ask = self.in_flight.front(idx, connection.in_flight)?;
            let is_unserved = connection.n_sent == u64::from(connection.in_flight.n());
            connection.first_byte_at.is_none().then_some((ask.times.sent_at, is_unserved))
        };
        let is_stuck =
            |sent_at: Nanos| UnansweredCheck::is_stuck(sent_at, self.load.last_answer_at, Nanos(slow_answer));
        let waiting = self.connections.iter().enumerate().filter_map(sent_at);
        let (mut n_stuck, mut n_unserved) = (0, 0);
        for (_, is_unserved) in waiting.filter(|(sent_at, _)| is_stuck(*sent_at)) {
            n_stuck += 1;
            n_unserved += u64::from(is_unserved);
        }
        (self.load.times.n_stuck, self.load.times.n_stuck_unserved) = (n_stuck, n_unserved);
    }

    /// Enters requests without an answer.
    pub(super) fn record_unanswered(&mut self, now: Nanos) {
        self.count_stuck(now);
        self.load.times.n_unfinished = self.load.n_in_flight - self.count_unanswered(now);
        if self.load.is_open() {
            for idx in 0..self.connections.len() {
                if let Some(ask) = self.in_flight.front(idx, self.connections[idx].in_flight) {
                    self.load.record_waited(ask.times, now);
                }
            }
        }
    }
}

/// The state of a connection after some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerProgress {
    /// Within an answer, or before it.
    Within,
    /// After an answer.
    Answered,
    /// After the last answer on this connection.
    Closes,
}

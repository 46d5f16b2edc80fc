//! Sends requests.

use fathom_model::units::Nanos;
use fathom_sys::{clock, reactor::Reactor};

use super::{
    ClientWorker, ConnectionAvailability, ConnectionHandler, InFlightRequest, LateCause, LoadCounter, RequestFault,
    RequestSample, token,
};

/// When a request is sent, and when it was due.
#[derive(Debug, Clone, Copy)]
struct SendTimes {
    sent_at: Nanos,
    intended: Nanos,
}

impl<R: Reactor> ClientWorker<'_, R> {
    /// Starts due requests on free connections.
    pub(super) fn send_due(&mut self, now: Nanos) {
        if self.window.is_over() || !self.schedule.as_ref().is_some_and(|schedule| schedule.looks(now)) {
            return;
        }
        for upstream in 0..self.upstreams.len() {
            let free =
                if self.has_free(upstream) { ConnectionAvailability::Some } else { ConnectionAvailability::None };
            let Some(schedule) = &mut self.schedule else { return };
            let n_due = schedule.notice(upstream, now, free);
            if n_due > 0 {
                self.recorder.add(LoadCounter::Intended, n_due);
            }
            while self.has_due(upstream) && self.has_free(upstream) {
                let Some(idx) = self.upstreams[upstream].free.pop() else { break };
                self.connections[idx as usize].is_listed = false;
                self.send_oldest_due(idx as usize);
            }
        }
    }

    fn has_due(&self, upstream: usize) -> bool {
        self.schedule.as_ref().is_some_and(|schedule| schedule.waiting(upstream) > 0)
    }

    /// Whether a connection is free; if so, it is the last of the list.
    fn has_free(&mut self, upstream: usize) -> bool {
        let free = &mut self.upstreams[upstream].free;
        while let Some(idx) = free.last() {
            let connection = &mut self.connections[*idx as usize];
            if connection.conn.is_open() && connection.n_in_flight == 0 {
                return true;
            }
            connection.is_listed = false;
            free.pop();
        }
        false
    }

    /// Sends the request that has been due for longest.
    fn send_oldest_due(&mut self, idx: usize) {
        let now = clock::now();
        let upstream = usize::from(self.connections[idx].conn.upstream);
        let Some(start) = self.schedule.as_mut().and_then(|schedule| schedule.take(upstream, now)) else { return };
        self.recorder.add(LoadCounter::Sent, 1);
        match start.late {
            None => {}
            Some(LateCause::NoConnection) => self.recorder.add(LoadCounter::LateNoConnection, 1),
            Some(LateCause::OwnProcessor) => self.recorder.add(LoadCounter::LateOwnCpu, 1),
        }
        if self.counts(start.intended) {
            self.recorder.results.lag.record(start.lag.0);
        }
        self.send_requests(idx, 1, SendTimes { sent_at: now, intended: start.intended });
    }

    /// Sends the next requests on an open connection, or closes it.
    pub(super) fn send_next(&mut self, idx: usize, at: Nanos) {
        let connection = &self.connections[idx];
        let allowed = self.config.target.requests_per_connection.map_or(u64::MAX, |most| most - connection.n_sent);
        let room = u64::from(self.config.pipeline_depth - connection.n_in_flight).min(allowed);
        let is_busy = connection.n_in_flight > 0;
        let is_open_load = self.schedule.is_some();
        let n = match self.requests_left {
            _ if !self.may_send => 0,
            Some(left) if !is_open_load => room.min(left),
            _ => room,
        };
        match n {
            1.. if !is_open_load => {
                self.requests_left = self.requests_left.map(|left| left - n);
                let n = u16::try_from(n).expect("there is room for at most a pipeline");
                self.send_requests(idx, n, SendTimes { sent_at: at, intended: at });
            }
            _ if is_busy => {}
            1.. if self.has_due(usize::from(connection.conn.upstream)) => self.send_oldest_due(idx),
            1.. => self.mark_free(idx),
            // The next request needs another connection, or there is none.
            _ if self.may_send && self.requests_left != Some(0) => self.reopen(idx),
            _ if allowed == 0 => self.close(idx),
            // The connection ends with the trial.
            _ => {}
        }
    }

    fn mark_free(&mut self, idx: usize) {
        if !self.connections[idx].is_listed {
            self.connections[idx].is_listed = true;
            self.upstream_mut(idx).free.push(token(idx).0);
        }
    }

    /// Sends one request that is complete once the kernel has taken it.
    fn send_without_awaiting(&mut self, idx: usize, SendTimes { sent_at, intended }: SendTimes) {
        let connection = &mut self.connections[idx];
        let route = usize::from(connection.conn.upstream);
        let number = self.upstreams[route].request_order.next_index();
        let ask = InFlightRequest { sent_at, intended, request_idx: u16::try_from(number).unwrap_or(u16::MAX) };
        self.in_flight.push(idx, connection, ask);
        let request = &self.config.target.upstreams[route].requests[number].bytes;
        self.recorder.on_sent(request.len());
        // Unlike fixed buffers, these bytes are reported when they have been sent.
        self.connector.reactor.send(token(idx), request);
    }

    /// The request is sent, and its answer is not awaited.
    pub(super) fn on_sent_not_awaited(&mut self, idx: usize, at: Nanos) {
        let connection = &mut self.connections[idx];
        let Some(ask) = self.in_flight.pop(idx, connection) else { return };
        connection.n_failures = 0;
        self.n_busy -= 1;
        let entry = RequestSample {
            sent_at: ask.sent_at,
            late: ask.sent_at.since(ask.intended),
            connect: std::mem::take(&mut connection.conn.connect_time),
            service: at - ask.sent_at,
            first_byte: at - ask.sent_at,
            body_bytes: 0,
            counts: self.counts(ask.intended),
        };
        self.recorder.worker.show_latency(entry.service);
        self.recorder.on_sent_not_awaited(&entry);
        self.send_next(idx, at);
    }

    /// Sends `n` requests at once.
    fn send_requests(&mut self, idx: usize, n: u16, stamps: SendTimes) {
        let connection = &mut self.connections[idx];
        let upstream = &mut self.upstreams[usize::from(connection.conn.upstream)];
        connection.n_sent += u64::from(n);
        self.n_busy += u64::from(n);
        let SendTimes { sent_at, intended } = stamps;
        if self.config.ignores_answers {
            return self.send_without_awaiting(idx, stamps);
        }
        let is_plain = connection.conn.channel.is_plain();
        for _ in 0..n {
            let number = upstream.request_order.next_index();
            let ask = InFlightRequest { sent_at, intended, request_idx: u16::try_from(number).unwrap_or(u16::MAX) };
            self.in_flight.push(idx, connection, ask);
            self.recorder.on_sent(upstream.request_bytes[number]);
            if !is_plain {
                let route = &self.config.target.upstreams[usize::from(connection.conn.upstream)];
                if let Err(fault) =
                    connection.conn.channel.encrypt(&route.requests[number].bytes, &mut self.connector.tls_buffers)
                {
                    return self.fail(idx, RequestFault::connect(fault), sent_at);
                }
            } else if !upstream.request_order.is_single() {
                self.connector.reactor.send_fixed(token(idx), upstream.fixed[number][0]);
            }
        }
        if !is_plain {
            self.connector.send_pending(idx);
        } else if upstream.request_order.is_single() {
            // One send for each set bit of the number.
            for power in (0..u16::BITS).rev().filter(|power| n >> power & 1 == 1) {
                self.connector.reactor.send_fixed(token(idx), upstream.fixed[0][power as usize]);
            }
        }
    }
}

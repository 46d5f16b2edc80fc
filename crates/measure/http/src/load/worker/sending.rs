//! Sends requests.

use fathom_model::units::Nanos;
use fathom_sys::reactor::Reactor;

use super::{
    ClientWorker, ConnectionHandler, InFlightRequest, LoadLoop as _, RequestFault, RequestSample, SendTimes, token,
};

impl<R: Reactor> ClientWorker<'_, R> {
    /// Sends the next requests on an open connection, or closes it.
    pub(super) fn send_next(&mut self, idx: usize, at: Nanos) {
        let connection = &self.connections[idx];
        let allowed = self.config.target.requests_per_connection.map_or(u64::MAX, |most| most - connection.n_sent);
        let room = u64::from(self.config.pipeline_depth - connection.in_flight.n()).min(allowed);
        let is_busy = connection.in_flight.n() > 0;
        let (is_open_load, upstream) = (self.load.is_open(), usize::from(connection.conn.upstream));
        let n = match self.requests_left {
            _ if !self.load.may_start() => 0,
            Some(left) if !is_open_load => room.min(left),
            _ => room,
        };
        match n {
            1.. if !is_open_load => {
                self.requests_left = self.requests_left.map(|left| left - n);
                let n = u16::try_from(n).expect("there is room for at most a pipeline");
                self.send_requests(idx, n, SendTimes::at(at));
            }
            _ if is_busy => {}
            1.. => self.start_or_list(upstream, idx),
            // The next request needs another connection, or there is none.
            _ if self.load.may_start() && self.requests_left != Some(0) => self.reopen(idx),
            _ if allowed == 0 => self.close(idx),
            // The connection ends with the trial.
            _ => {}
        }
    }

    /// Sends one request that is complete once the kernel has taken it.
    fn send_without_awaiting(&mut self, idx: usize, times: SendTimes) {
        let connection = &mut self.connections[idx];
        let route = usize::from(connection.conn.upstream);
        let number = self.upstreams[route].request_order.next_index();
        let ask = InFlightRequest { times, request_idx: u16::try_from(number).unwrap_or(u16::MAX) };
        self.in_flight.push(idx, &mut connection.in_flight, ask);
        let request = &self.config.target.upstreams[route].requests[number].bytes;
        self.recorder.on_sent(request.len());
        // Unlike fixed buffers, these bytes are reported when they have been sent.
        self.connector.reactor.send(token(idx), request);
    }

    /// The request is sent, and its answer is not awaited.
    pub(super) fn on_sent_not_awaited(&mut self, idx: usize, at: Nanos) {
        let Some(ask) = self.end_request(idx) else { return };
        let connection = &mut self.connections[idx];
        connection.n_failures = 0;
        let SendTimes { sent_at, intended } = ask.times;
        let entry = RequestSample {
            sent_at,
            late: sent_at.since(intended),
            connect: std::mem::take(&mut connection.conn.connect_time),
            service: at - sent_at,
            first_byte: at - sent_at,
            body_bytes: 0,
            counts: self.load.record_answer(ask.times, at),
        };
        self.recorder.on_sent_not_awaited(&entry);
        self.send_next(idx, at);
    }

    /// Sends `n` requests at once.
    pub(super) fn send_requests(&mut self, idx: usize, n: u16, times: SendTimes) {
        let connection = &mut self.connections[idx];
        let upstream = &mut self.upstreams[usize::from(connection.conn.upstream)];
        connection.n_sent += u64::from(n);
        self.load.n_in_flight += u64::from(n);
        if self.config.ignores_answers {
            return self.send_without_awaiting(idx, times);
        }
        let is_plain = connection.conn.channel.is_plain();
        for _ in 0..n {
            let number = upstream.request_order.next_index();
            let ask = InFlightRequest { times, request_idx: u16::try_from(number).unwrap_or(u16::MAX) };
            self.in_flight.push(idx, &mut connection.in_flight, ask);
            self.recorder.on_sent(upstream.request_bytes[number]);
            if !is_plain {
                let route = &self.config.target.upstreams[usize::from(connection.conn.upstream)];
                if let Err(fault) =
                    connection.conn.channel.encrypt(&route.requests[number].bytes, &mut self.connector.tls_buffers)
                {
                    return self.fail(idx, RequestFault::connect(fault), times.sent_at);
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

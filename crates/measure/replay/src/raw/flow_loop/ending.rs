//! Ends flows that are over or have failed, and counts what that leaves unsent.

use std::{io, net::Shutdown};

use fathom_model::{Cause, Failure, Stage, units::Nanos};
use fathom_sys::{
    clock,
    socket::{self, Wait, tcp_info::TcpInfo},
};

use super::FlowLoop;
use crate::raw::target::Transport;

impl FlowLoop<'_> {
    /// A message could not be sent: a connection is broken then, and a flow of datagrams goes on.
    pub(super) fn fail_send(&mut self, slot: usize, failure: &Failure) {
        self.results.account.n_failed += 1;
        self.results.errors.count(failure.clone());
        if self.shared.transport == Transport::Tcp {
            self.drop_rest(slot);
            self.release(slot);
        }
    }

    /// A datagram was refused. The kernel does not say which one: the first that waits, or one that needs no answer.
    pub(super) fn refuse_first(&mut self, slot: usize, error: &fathom_sys::Error, now: Nanos) {
        let account = &mut self.results.account;
        match self.flows[slot].in_flight.pop_front() {
            Some(sent) => {
                self.load.n_in_flight -= 1;
                self.load.record_given_up(sent.times.intended, now);
                account.n_failed += 1;
            }
            None if account.n_answerless > 0 => {
                account.n_answerless -= 1;
                account.n_failed += 1;
            }
            None => return,
        }
        self.results.errors.count(Failure::from(error));
    }

    /// A connection has failed: what waits for an answer has none, or else the next message, and the others are not sent.
    pub(super) fn fail_flow(&mut self, slot: usize, failure: &Failure, now: Nanos) {
        let flow = &mut self.flows[slot];
        if flow.closing_since.is_some() && flow.ends_answerless {
            // The server's end tells that not all of the last turn arrived.
            self.results.account.n_answerless -= 1;
            self.results.account.n_failed += 1;
            self.results.errors.count(failure.clone());
        }
        let in_flight = std::mem::take(&mut flow.in_flight);
        let n_waiting = in_flight.len() as u64;
        for sent in &in_flight {
            self.load.record_given_up(sent.times.intended, now);
        }
        self.load.n_in_flight -= n_waiting;
        let flow = &mut self.flows[slot];
        let mut n_failed = n_waiting;
        if n_waiting == 0
            && let Some(next) = flow.next
        {
            flow.next = self.shared.recording.schedule.next(next);
            n_failed = 1;
        }
        self.results.account.n_failed += n_failed;
        if n_failed > 0 {
            self.results.errors.add(failure.clone(), n_failed);
        }
        self.drop_rest(slot);
        self.release(slot);
    }

    /// Counts the messages behind a failed one.
    pub(super) fn drop_rest(&mut self, slot: usize) {
        while let Some(number) = self.flows[slot].next {
            self.results.account.n_behind_failure += 1;
            self.flows[slot].next = self.shared.recording.schedule.next(number);
        }
    }

    /// Closes a flow that has sent everything and waits for nothing.
    ///
    /// Over TCP, only our direction: closing a socket with bytes that were not read resets the connection, and what the server has not
    /// received yet is lost (RFC 1122 section 4.2.2.13). The rest follows when the server closes too, or has everything.
    pub(super) fn close_if_over(&mut self, slot: usize) {
        let flow = &mut self.flows[slot];
        if !flow.in_flight.is_empty() || flow.closing_since.is_some() {
            return;
        }
        let now = clock::now();
        let Some(socket) = &flow.socket else { return };
        match self.shared.transport {
            Transport::Tcp => {
                flow.closing_since = Some(now);
                // A connection that is broken says so with the next receive.
                let _ = socket.shutdown(Shutdown::Write);
            }
            Transport::Udp => {
                // A refusal of the last datagram may be there already.
                match socket::recv(socket, &mut self.room, Wait::Never) {
                    Ok(received) => self.results.n_unasked += u64::from(received.is_some()),
                    Err(error) => self.refuse_first(slot, &error, now),
                }
                self.release(slot);
            }
        }
    }

    /// Ends a connection whose direction we have closed, if the server has all of it, or takes too long.
    fn sweep_closing(&mut self, slot: usize, since: Nanos, now: Nanos) {
        let Some(socket) = &self.flows[slot].socket else { return };
        let has_all =
            TcpInfo::of(socket).is_ok_and(|info| info.unacked == 0 && info.notsent.is_none_or(|rest| rest.0 == 0));
        if has_all {
            self.release(slot);
        } else if now.since(since) > self.shared.timeout {
            self.fail_flow(slot, &Failure { stage: Stage::Send, cause: Cause::Timeout }, now);
        }
    }

    /// Closes the socket of a slot, which is free then.
    pub(super) fn release(&mut self, slot: usize) {
        let flow = std::mem::take(&mut self.flows[slot]);
        self.compare(flow.answered);
        self.n_open -= 1;
        if self.load.may_start() {
            self.load.list_free(0, slot);
        }
    }

    /// The recording cannot be read on.
    pub(super) fn give_up(&mut self, error: io::Error, now: Nanos) {
        self.results.error.get_or_insert(error);
        self.load.end(now);
    }

    /// Gives up what has taken too long.
    pub(super) fn sweep(&mut self, slot: usize, now: Nanos) {
        if self.flows[slot].connecting_since.is_some_and(|since| now.since(since) > self.shared.timeout) {
            return self.fail_flow(slot, &Failure { stage: Stage::Connect, cause: Cause::Timeout }, now);
        }
        if let Some(since) = self.flows[slot].closing_since {
            return self.sweep_closing(slot, since, now);
        }
        let mut is_released = false;
        while let Some(sent) = self.flows[slot].next_overdue(now) {
            is_released = true;
            let timeout = Failure { stage: Stage::Read, cause: Cause::Timeout };
            let is_stuck = !sent.received.is_some() || !self.flows[slot].unsent.is_empty();
            if is_stuck && self.shared.transport == Transport::Tcp {
                self.flows[slot].in_flight.push_front(sent);
                return self.fail_flow(slot, &timeout, now);
            }
            self.load.n_in_flight -= 1;
            self.load.record_given_up(sent.times.intended, now);
            if sent.received.is_some() {
                self.results.account.n_short += 1;
                self.compare(Some(sent));
            } else {
                self.results.account.n_failed += 1;
                self.results.errors.count(timeout);
            }
        }
        if is_released {
            self.send_due(slot);
        }
    }
}

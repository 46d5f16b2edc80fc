//! Takes what servers send, and enters answers.

use fathom_model::{Cause, Failure, Stage, units::Nanos};
use fathom_sys::{
    clock,
    reactor::epoll_wait::Readiness,
    socket::{self, Wait},
};

use super::FlowLoop;
use crate::raw::{counters::counter, flow::SentMessage, target::Transport};

/// The most receives of a flow before others have their turn.
const RECEIVES_MAX: usize = 16;

impl FlowLoop<'_> {
    /// Enters the answers that are whole.
    pub(super) fn settle(&mut self, slot: usize) {
        while let Some(sent) = self.flows[slot].next_answered() {
            self.load.n_in_flight -= 1;
            self.flows[slot].ends_answerless = !sent.awaits_answer();
            if !sent.awaits_answer() {
                self.results.account.n_answerless += 1;
                continue;
            }
            self.results.account.n_answered += 1;
            self.results.recorded.record(sent.expected.took.0);
            self.load.record_answer(sent.times, sent.answered_at);
            match self.shared.transport {
                Transport::Tcp => self.flows[slot].answered = Some(sent),
                Transport::Udp => self.compare(Some(sent)),
            }
        }
    }

    /// Compares an answer to which nothing is added any more.
    pub(super) fn compare(&mut self, sent: Option<SentMessage>) {
        let (Some(comparer), Some(sent)) = (&mut self.comparer, sent) else { return };
        let took = sent.answered_at.since(sent.times.sent_at);
        comparer.compare(sent.n_bytes, &sent.expected, &sent.received, took);
    }

    /// Takes what a socket has received.
    pub(super) fn receive(&mut self, slot: usize) {
        for _ in 0..RECEIVES_MAX {
            let Some(socket) = &self.flows[slot].socket else { return };
            let received = socket::recv(socket, &mut self.room, Wait::Never);
            let at = clock::now();
            match (received, self.shared.transport) {
                (Ok(None), _) => break,
                (Ok(Some(0)), Transport::Tcp) => return self.on_closed(slot, at),
                (Ok(Some(n)), transport) => {
                    self.load.worker().add(counter::BYTES_RECEIVED, n as u64);
                    let (flow, bytes) = (&mut self.flows[slot], &self.room[..n]);
                    match transport {
                        Transport::Tcp => drop(flow.take_bytes(bytes, at)),
                        Transport::Udp => self.results.n_unasked += u64::from(!flow.take_datagram(bytes, at)),
                    }
                    self.settle(slot);
                }
                (Err(error), Transport::Tcp) => return self.fail_flow(slot, &Failure::from(&error), at),
                (Err(error), Transport::Udp) => self.refuse_first(slot, &error, at),
            }
        }
        self.send_due(slot);
    }

    /// The server has closed its direction.
    pub(super) fn on_closed(&mut self, slot: usize, now: Nanos) {
        let flow = &self.flows[slot];
        if flow.in_flight.is_empty() && flow.next.is_none() {
            return self.release(slot);
        }
        if flow.in_flight.front().is_some_and(|sent| sent.received.is_some()) {
            return self.end_in_part(slot, now);
        }
        let words = if flow.in_flight.is_empty() {
            "the server closed the connection before this turn"
        } else {
            "the server closed the connection before it had sent as much as recorded"
        };
        self.fail_flow(slot, &Failure { stage: Stage::Read, cause: Cause::Other(words.to_owned()) }, now);
    }

    /// The server has closed its direction behind a part of an answer.
    fn end_in_part(&mut self, slot: usize, now: Nanos) {
        if let Some(sent) = self.flows[slot].in_flight.pop_front() {
            self.load.n_in_flight -= 1;
            self.load.record_given_up(sent.times.intended, now);
            self.results.account.n_short += 1;
            self.compare(Some(sent));
        }
        self.drop_rest(slot);
        self.release(slot);
    }

    pub(super) fn on_connect(&mut self, slot: usize, since: Nanos, now: Nanos) {
        let Some(socket) = &self.flows[slot].socket else { return };
        if let Err(error) = socket::connect_result(socket) {
            return self.fail_flow(slot, &Failure::from(&error), now);
        }
        self.results.connect.record(now.since(since).0);
        self.load.worker().add(counter::CONNECTIONS, 1);
        self.flows[slot].connecting_since = None;
        self.follow_rest(slot);
        self.send_due(slot);
    }

    /// Takes an event of a socket.
    pub(super) fn on_ready(&mut self, slot: usize, event: Readiness) {
        let now = clock::now();
        if let Some(since) = self.flows[slot].connecting_since {
            return self.on_connect(slot, since, now);
        }
        if event.writable && !self.flows[slot].unsent.is_empty() {
            self.send_rest(slot, now);
        }
        if event.readable || event.failed {
            self.receive(slot);
        }
    }
}

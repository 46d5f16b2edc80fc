//! Sends messages when they are due.

use std::{cmp::Reverse, io, net::Shutdown};

use fathom_engine::load::SendTimes;
use fathom_model::{Cause, Failure, Stage, units::Nanos};
use fathom_sys::{
    clock,
    reactor::epoll_wait::Interest,
    socket::{self, Socket, Wait},
};

use super::FlowLoop;
use crate::{
    raw::{
        counters::counter,
        flow::{Flow, SentMessage},
        message::{Answer, SpooledMessage},
        target::Transport,
    },
    schedule::RequestNumber,
};

/// The most messages that a flow sends before others have their turn.
const SENDS_MAX: usize = 64;

impl FlowLoop<'_> {
    /// Whether a flow may send its next message now.
    pub(super) fn may_send(&self, flow: &Flow) -> bool {
        let waits = self.shared.transport == Transport::Tcp || self.shared.as_answered;
        flow.connecting_since.is_none() && flow.unsent.is_empty() && (!waits || flow.in_flight.is_empty())
    }

    /// Sends the messages of a flow that are due.
    pub(super) fn send_due(&mut self, slot: usize) {
        for _ in 0..SENDS_MAX {
            let flow = &self.flows[slot];
            if flow.socket.is_none() || !self.may_send(flow) || !self.load.may_start() {
                return;
            }
            let Some(number) = flow.next else { return self.close_if_over(slot) };
            let (now, due) = (clock::now(), self.sessions_start() + self.shared.recording.schedule.request(number).due);
            if now < due {
                return self.wake(slot, due);
            }
            self.send(slot, number, SendTimes { sent_at: now, intended: due });
        }
        self.wake(slot, Nanos::ZERO);
    }

    /// Has a flow send at a time, unless it will.
    pub(super) fn wake(&mut self, slot: usize, at: Nanos) {
        if self.flows[slot].wakes_at.replace(at) != Some(at) {
            self.wakes.push(Reverse((at, slot)));
        }
    }

    pub(super) fn send(&mut self, slot: usize, number: RequestNumber, times: SendTimes) {
        let place = self.shared.recording.schedule.request(number).place;
        let message = match self.reader.read(place).and_then(SpooledMessage::of) {
            Ok(message) => message,
            Err(error) => return self.give_up(error, times.sent_at),
        };
        let flow = &mut self.flows[slot];
        flow.next = self.shared.recording.schedule.next(number);
        let before = flow.answered.take();
        let (sent, refusal) = match (&flow.socket, self.shared.transport) {
            (None, _) => return,
            (Some(socket), Transport::Tcp) => (send_turn(socket, &message, &mut flow.unsent), None),
            (Some(socket), Transport::Udp) => send_datagram(socket, message.bytes),
        };
        if sent.is_ok() && message.finishes {
            flow.finishes = true;
        }
        let (n_bytes, expected) = (message.bytes.len(), message.expected);
        let number = message.bytes[..n_bytes.min(2)].to_vec();
        self.compare(before);
        if let Some(error) = refusal {
            self.refuse_first(slot, &error, times.sent_at);
        }
        if let Err(failure) = sent {
            return self.fail_send(slot, &failure);
        }
        self.load.worker().add(counter::SENT, 1);
        self.load.worker().add(counter::BYTES_SENT, n_bytes as u64);
        if !self.shared.as_answered {
            self.results.lag.record(times.sent_at.since(times.intended).0);
        }
        self.load.n_in_flight += 1;
        self.flows[slot].in_flight.push_back(SentMessage {
            times,
            n_bytes,
            number,
            expected,
            received: Answer::NONE,
            answered_at: times.sent_at,
            deadline: times.sent_at + expected.took + self.shared.timeout,
        });
        self.follow_rest(slot);
        self.settle(slot);
    }

    /// Watches for room if a rest is to be sent, and closes our direction behind it.
    pub(super) fn follow_rest(&mut self, slot: usize) {
        let token = self.token(slot);
        let flow = &mut self.flows[slot];
        let Some(socket) = &flow.socket else { return };
        let awaits_room = !flow.unsent.is_empty();
        let mut watched = Ok(());
        if std::mem::replace(&mut flow.awaits_room, awaits_room) != awaits_room {
            watched = self.epoll.modify(socket, token, Interest { write: awaits_room, ..Interest::READ });
        }
        if flow.unsent.is_empty() && std::mem::take(&mut flow.finishes) {
            // A connection that is broken says so with the next receive.
            let _ = socket.shutdown(Shutdown::Write);
        }
        if let Err(error) = watched {
            self.fail_flow(slot, &Failure::from(&error), clock::now());
        }
    }

    pub(super) fn send_rest(&mut self, slot: usize, now: Nanos) {
        let flow = &mut self.flows[slot];
        let Some(socket) = &flow.socket else { return };
        match socket::send(socket, &flow.unsent, Wait::Never) {
            Ok(n) => drop(flow.unsent.drain(..n.unwrap_or(0))),
            Err(error) => return self.fail_flow(slot, &Failure::from(&error), now),
        }
        self.follow_rest(slot);
        self.settle(slot);
        self.send_due(slot);
    }
}

/// Sends a turn; what the kernel does not take goes to `unsent`.
fn send_turn(socket: &Socket, message: &SpooledMessage<'_>, unsent: &mut Vec<u8>) -> Result<(), Failure> {
    if message.bytes.is_empty() {
        return Ok(());
    }
    let n = socket::send(socket, message.bytes, Wait::Never).map_err(|error| Failure::from(&error))?.unwrap_or(0);
    unsent.extend_from_slice(&message.bytes[n..]);
    Ok(())
}

/// Sends a datagram. A refusal of an earlier one is the error of the first attempt, which sends nothing; it is returned beside the result.
fn send_datagram(socket: &Socket, bytes: &[u8]) -> (Result<(), Failure>, Option<fathom_sys::Error>) {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let is_refusal = |error: &fathom_sys::Error| {
        matches!(error.source.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
    };
    let (sent, refusal) = match socket::send(socket, bytes, Wait::Never) {
        Err(error) if is_refusal(&error) => (socket::send(socket, bytes, Wait::Never), Some(error)),
        sent => (sent, None),
    };
    match sent {
        Ok(Some(_)) => (Ok(()), refusal),
        Ok(None) => {
            let full = Failure { stage: Stage::Send, cause: Cause::Other("no room in the socket".to_owned()) };
            (Err(full), refusal)
        }
        // An error that stays is that of this datagram, such as a route that is missing.
        Err(error) => (Err(Failure::from(&error)), None),
    }
}

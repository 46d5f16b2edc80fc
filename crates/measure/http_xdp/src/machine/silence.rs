//! What a connection begins by itself, and what it does when nothing comes.

use super::{Connection, Event, HEAD_DUE, Rules, Send, State, Step};

/// The waits of a connection, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// From a segment to its first retransmission; doubles with each.
    pub retransmission: u64,
    /// The longest delay of an acknowledgement.
    pub acknowledgement: u64,
    /// From the send of a request, or the start of a connection, to giving it up.
    pub timeout: u64,
}

impl Timers {
    /// Linux's least retransmission timeout (`TCP_RTO_MIN`) and delayed acknowledgement (`TCP_DELACK_MIN`).
    #[must_use]
    pub const fn new(timeout: u64) -> Self {
        Self { retransmission: 200_000_000, acknowledgement: 40_000_000, timeout }
    }
}

/// A wait grows to 64 times the first.
const DOUBLINGS_MAX: u32 = 6;

impl Connection {
    /// Opens a connection on the next port of the slot. Its numbers follow those of the slot's last connection, so that a server that
    /// still remembers one with these ports takes the SYN for a new one (RFC 6191 section 2).
    pub fn open(&mut self, now: u64, rules: Rules, step: &mut Step) {
        self.port_idx = self.port_idx.wrapping_add(1) & rules.port_mask;
        let first = if self.send_next == 0 { clock(now) } else { self.send_next.wrapping_add(NUMBERS_BETWEEN) };
        self.unacknowledged = first;
        self.send_next = first.wrapping_add(1);
        (self.receive_next, self.left) = (0, HEAD_DUE);
        (self.started_at, self.active_at) = (now, now);
        (self.early_from, self.early_to, self.is_early_end) = (0, 0, false);
        (self.n_unacknowledged, self.is_last, self.is_ended_by_server) = (0, false, false);
        self.state = State::SynSent;
        (step.send, step.sequence, step.acknowledgement) = (Send::Syn, first, 0);
    }

    /// Sends a request that was due at `due` on an idle connection.
    pub fn start_request(&mut self, due: u64, now: u64, rules: Rules) -> Step {
        let mut step = Step::default();
        self.started_at = due;
        self.send_request(now, rules, &mut step);
        step
    }

    /// Closes an idle connection, for which there is as much time as for a request.
    pub fn close(&mut self, now: u64) -> Step {
        let mut step = Step::default();
        self.started_at = now;
        if self.is_ended_by_server {
            self.receive_next = self.receive_next.wrapping_add(1);
        }
        self.send_fin(now, &mut step);
        step
    }

    /// What is due since nothing came up to `now`, after `n_resent` retransmissions; what silence last made us send was sent at
    /// `resent_at`. Both are zero when [`Connection::active_at`] changes. The row stays as it is: it belongs to the program.
    #[must_use]
    pub fn on_silence(&self, now: u64, (n_resent, resent_at): (u32, u64), timers: &Timers, rules: Rules) -> Step {
        let mut step = Step::default();
        let waited = now.saturating_sub(self.active_at.max(resent_at));
        let is_due = waited > timers.retransmission << n_resent.min(DOUBLINGS_MAX);
        let last = |step: &mut Step, send: Send, length: u32| {
            step.events.add(Event::Resent);
            (step.send, step.sequence) = (send, self.send_next.wrapping_sub(length));
            step.acknowledgement = if send == Send::Syn { 0 } else { self.receive_next };
        };
        match self.state {
            State::SynSent if is_due => last(&mut step, Send::Syn, 1),
            State::LastAck if is_due => last(&mut step, Send::Fin, 1),
            State::Waiting if is_due && self.unacknowledged != self.send_next => {
                last(&mut step, Send::Request, rules.request_length);
            }
            // Once the server has the request, it is its turn: what it loses, it sends again. So an acknowledgement is sent once.
            State::Waiting | State::AnswerEnded
                if self.n_unacknowledged > 0 && resent_at <= self.active_at && waited > timers.acknowledgement =>
            {
                self.acknowledge_unchanged(&mut step);
            }
            _ => {}
        }
        step
    }

    /// Whether the connection has taken longer than the timeout. A request that was due before it was sent, at `sent_at`, has the whole
    /// timeout from then on; 0 if it was due when it was sent.
    #[must_use]
    pub fn is_overdue(&self, now: u64, sent_at: u64, timers: &Timers) -> bool {
        let since = self.started_at.max(sent_at);
        !matches!(self.state, State::Closed | State::Idle) && now.saturating_sub(since) > timers.timeout
    }

    /// Gives a connection up, which user space has taken: the server is told by a reset. What was answered is no loss.
    pub fn give_up(&mut self) -> Step {
        let mut step = Step::default();
        let has_request = matches!(self.state, State::SynSent | State::Waiting);
        self.reset(if has_request { Event::TimedOut } else { Event::Closed }, &mut step);
        step
    }

    pub(super) fn send_request(&mut self, now: u64, rules: Rules, step: &mut Step) {
        (step.send, step.sequence, step.acknowledgement) = (Send::Request, self.send_next, self.receive_next);
        self.send_next = self.send_next.wrapping_add(rules.request_length);
        (self.state, self.left) = (State::Waiting, HEAD_DUE);
        (self.active_at, self.n_unacknowledged) = (now, 0);
    }

    pub(super) fn send_fin(&mut self, now: u64, step: &mut Step) {
        (step.send, step.sequence, step.acknowledgement) = (Send::Fin, self.send_next, self.receive_next);
        self.send_next = self.send_next.wrapping_add(1);
        (self.state, self.active_at, self.n_unacknowledged) = (State::LastAck, now, 0);
    }

    pub(super) fn acknowledge(&mut self, step: &mut Step) {
        self.acknowledge_unchanged(step);
        self.n_unacknowledged = 0;
    }

    /// An acknowledgement that leaves the row as it is.
    pub(super) const fn acknowledge_unchanged(&self, step: &mut Step) {
        (step.send, step.sequence, step.acknowledgement) = (Send::Ack, self.send_next, self.receive_next);
        step.sack = (self.early_from, self.early_to);
    }

    pub(super) const fn reset(&mut self, event: Event, step: &mut Step) {
        step.events.add(event);
        (step.send, step.sequence, step.acknowledgement) = (Send::Reset, self.send_next, 0);
        (self.state, self.is_away) = (State::Closed, false);
    }
}

/// How far the numbers of a slot's next connection are from its last one.
const NUMBERS_BETWEEN: u32 = 64;

/// The clock of initial sequence numbers. RFC 9293 section 3.4.1 has ticks of 4 µs; these have 256 ns, so that the numbers of a next run are
/// behind those of this one, whose connections took more of them than 4 µs allow.
#[expect(clippy::cast_possible_truncation, reason = "sequence numbers are modulo 2^32")]
const fn clock(now: u64) -> u32 {
    (now >> 8) as u32 | 1
}

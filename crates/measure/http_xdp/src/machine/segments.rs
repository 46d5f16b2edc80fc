//! What a connection does when a segment of the server arrives.

use super::{Conditions, Connection, Event, HEAD_DUE, Head, Segment, Send, State, Step, flag, is_after};

impl Connection {
    /// A segment for the present port of this slot has come.
    ///
    /// A closed or idle row belongs to user space, so nothing of it changes here but [`Connection::is_ended_by_server`]. So does one that is
    /// away: its segments are handed over.
    pub fn on_segment(&mut self, segment: &Segment, head: Head, at: &Conditions) -> Step {
        let mut step = Step { is_for_user_space: self.is_away, ..Step::default() };
        match self.state {
            _ if self.is_away => {}
            State::Closed => Self::refuse(segment, &mut step),
            State::Idle => self.on_idle(segment, &mut step),
            State::SynSent => self.on_handshake(segment, at, &mut step),
            State::Waiting | State::AnswerEnded | State::LastAck => {
                self.on_established(segment, head, at, &mut step);
            }
        }
        step
    }

    /// A segment for another port of the slot than the present one.
    #[must_use]
    pub fn on_stray(segment: &Segment) -> Step {
        let mut step = Step::default();
        Self::refuse(segment, &mut step);
        step
    }

    /// A segment of no connection is answered as RFC 9293 section 3.10.7.1 says; the server ends what it still has.
    fn refuse(segment: &Segment, step: &mut Step) {
        step.events.add(Event::Stray);
        if segment.flags & flag::RST == 0 {
            (step.send, step.sequence) = (Send::Reset, segment.acknowledgement);
        }
    }

    fn on_idle(&mut self, segment: &Segment, step: &mut Step) {
        if segment.flags & (flag::FIN | flag::RST) != 0 && segment.sequence == self.receive_next {
            self.is_ended_by_server = true;
        } else if segment.length > 0 {
            step.events.add(Event::Duplicate);
            self.acknowledge_unchanged(step);
        }
    }

    fn on_handshake(&mut self, segment: &Segment, at: &Conditions, step: &mut Step) {
        if segment.acknowledgement != self.send_next {
            // An acknowledgement of an older connection on this port, which the reset ends (RFC 9293 section 3.10.7.3).
            return Self::refuse(segment, step);
        }
        if segment.flags & flag::RST != 0 {
            step.events.add(Event::Reset);
            self.state = State::Closed;
            return;
        }
        if segment.flags & flag::SYN == 0 {
            return;
        }
        self.receive_next = segment.sequence.wrapping_add(1);
        self.unacknowledged = segment.acknowledgement;
        step.events.add(Event::Opened);
        step.elapsed = at.now.wrapping_sub(self.started_at);
        if !at.rules.closes {
            // With a connection for each request, the time of the request begins with the SYN.
            self.started_at = at.now;
        }
        self.send_request(at.now, at.rules, step);
    }

    fn on_established(&mut self, segment: &Segment, head: Head, at: &Conditions, step: &mut Step) {
        if segment.flags & flag::RST != 0 {
            return self.on_reset(segment, step);
        }
        if segment.flags & flag::SYN != 0 {
            return self.on_second_syn(at, step);
        }
        let acknowledged = segment.acknowledgement;
        if is_after(acknowledged, self.send_next) {
            // It acknowledges what was never sent (RFC 9293 section 3.10.7.4).
            return self.acknowledge(step);
        }
        if is_after(acknowledged, self.unacknowledged) {
            self.unacknowledged = acknowledged;
        }
        let has_fin = segment.flags & flag::FIN != 0;
        if segment.length == 0 && !has_fin {
            return self.on_acknowledgement(at, step);
        }
        let Some((length, has_fin)) = self.take_in_order(segment, has_fin, step) else { return };
        if length > 0 && self.on_data((length, has_fin), head, at, step) {
            return;
        }
        if has_fin {
            self.on_fin(at.now, step);
        }
    }

    /// Only a reset with exactly the next number ends the connection; another one in the window is challenged (RFC 5961 section 3.2).
    fn on_reset(&mut self, segment: &Segment, step: &mut Step) {
        if segment.sequence == self.receive_next {
            step.events.add(if self.state == State::Waiting { Event::Reset } else { Event::Closed });
            self.state = State::Closed;
        } else if segment.sequence.wrapping_sub(self.receive_next) < WINDOW {
            self.acknowledge(step);
        }
    }

    /// The SYN-ACK again: our first request, which acknowledges it, was lost. Any other SYN is challenged (RFC 5961 section 4.2).
    fn on_second_syn(&mut self, at: &Conditions, step: &mut Step) {
        step.events.add(Event::Duplicate);
        if self.state == State::Waiting && self.unacknowledged != self.send_next {
            step.send = Send::Request;
            step.sequence = self.send_next.wrapping_sub(at.rules.request_length);
            step.acknowledgement = self.receive_next;
        } else {
            self.acknowledge(step);
        }
    }

    fn on_acknowledgement(&mut self, at: &Conditions, step: &mut Step) {
        if self.state != State::LastAck || self.unacknowledged != self.send_next {
            return;
        }
        step.events.add(Event::Closed);
        // An open load leaves the start of connections to user space.
        if at.stops || at.rules.is_open_load {
            self.state = State::Closed;
        } else {
            self.open(at.now, at.rules, step);
        }
    }

    /// The bytes that are next, and whether the FIN follows them. Otherwise the segment is answered: it is early, or old.
    fn take_in_order(&mut self, segment: &Segment, has_fin: bool, step: &mut Step) -> Option<(u32, bool)> {
        let behind = self.receive_next.wrapping_sub(segment.sequence);
        if is_after(segment.sequence, self.receive_next) {
            step.events.add(Event::Gap);
            self.keep_early(segment, has_fin);
            self.acknowledge(step);
            return None;
        }
        // No segment holds the end of one answer and the start of the next, whose request was not sent before that end.
        let is_old = behind > 0 && self.left == HEAD_DUE && self.state == State::Waiting;
        if is_old || behind >= segment.length + u32::from(has_fin) {
            step.events.add(Event::Duplicate);
            if self.state == State::LastAck {
                (step.send, step.sequence) = (Send::Fin, self.send_next.wrapping_sub(1));
                step.acknowledgement = self.receive_next;
            } else {
                self.acknowledge(step);
            }
            return None;
        }
        let mut taken = (segment.length - behind.min(segment.length), has_fin);
        if self.early_from != self.early_to {
            taken = self.join_early(taken);
        }
        Some(taken)
    }

    /// Keeps a range that came early, if none is kept or it touches the kept one.
    fn keep_early(&mut self, segment: &Segment, has_fin: bool) {
        let (from, to) = (segment.sequence, segment.sequence.wrapping_add(segment.length));
        if self.state != State::Waiting || from == to || from.wrapping_sub(self.receive_next) >= WINDOW {
            return;
        }
        if self.early_from == self.early_to {
            (self.early_from, self.early_to, self.is_early_end) = (from, to, has_fin);
            return;
        }
        if is_after(from, self.early_to) || is_after(self.early_from, to) {
            return;
        }
        if is_after(self.early_from, from) {
            self.early_from = from;
        }
        // A FIN is the end of what the server sends, so it is behind all bytes of the range.
        self.is_early_end |= has_fin;
        if is_after(to, self.early_to) {
            self.early_to = to;
        }
    }

    /// Adds the early range to bytes in order, if they reach it.
    fn join_early(&mut self, (length, has_fin): (u32, bool)) -> (u32, bool) {
        let end = self.receive_next.wrapping_add(length);
        if is_after(self.early_from, end) {
            return (length, has_fin);
        }
        let mut joined = (length, has_fin);
        if !is_after(end, self.early_to) {
            joined = (self.early_to.wrapping_sub(self.receive_next), has_fin || self.is_early_end);
        }
        (self.early_from, self.early_to, self.is_early_end) = (0, 0, false);
        // What closes a gap is acknowledged at once (RFC 5681 section 4.2).
        self.n_unacknowledged = ACKNOWLEDGE_AT;
        joined
    }

    /// Takes bytes in order; returns whether the step is decided.
    fn on_data(&mut self, (length, has_fin): (u32, bool), head: Head, at: &Conditions, step: &mut Step) -> bool {
        if self.state != State::Waiting {
            self.reset(Event::Excess, step);
            return true;
        }
        let mut left = self.left;
        let begins = left == HEAD_DUE;
        if begins {
            let (whole, is_success, closes) = match head {
                Head::Answer { length, is_success, closes } => (length, is_success, closes),
                Head::Unknown => {
                    self.is_away = true;
                    step.is_for_user_space = true;
                    step.events.add(Event::HandedOver);
                    return true;
                }
                Head::Malformed => {
                    self.reset(Event::UnknownAnswer, step);
                    return true;
                }
            };
            (left, self.is_last) = (whole, closes);
            // Who answers has the whole request.
            self.unacknowledged = self.send_next;
            if !is_success {
                step.events.add(Event::NotSuccess);
            }
        }
        if length > left {
            self.reset(Event::Excess, step);
            return true;
        }
        self.receive_next = self.receive_next.wrapping_add(length);
        self.left = left - length;
        if begins {
            step.events.add(Event::Begun);
            let from = if at.rules.is_open_load { self.active_at } else { self.started_at };
            step.to_first = at.now.wrapping_sub(from);
        }
        self.active_at = at.now;
        if self.left > 0 {
            self.n_unacknowledged = self.n_unacknowledged.saturating_add(1);
            if !has_fin && self.n_unacknowledged >= ACKNOWLEDGE_AT {
                self.acknowledge(step);
            }
            return !has_fin;
        }
        self.on_answered(has_fin, at, step)
    }

    /// The answer has ended: the next request follows, or the connection closes, or it rests.
    fn on_answered(&mut self, has_fin: bool, at: &Conditions, step: &mut Step) -> bool {
        step.events.add(Event::Answered);
        step.elapsed = at.now.wrapping_sub(self.started_at);
        self.n_answered = self.n_answered.wrapping_add(1);
        self.state = State::AnswerEnded;
        if has_fin {
            return false;
        }
        if at.rules.closes || self.is_last {
            self.n_unacknowledged = self.n_unacknowledged.saturating_add(1);
        } else if at.stops || at.rules.is_open_load {
            self.acknowledge(step);
            self.state = State::Idle;
        } else {
            self.started_at = at.now;
            self.send_request(at.now, at.rules, step);
        }
        true
    }

    /// A FIN alone, in order, which is all that ends the answer (RFC 9112 section 6.3).
    #[must_use]
    pub fn on_end_of_answer(&mut self, at: &Conditions) -> Step {
        let mut step = Step::default();
        self.on_answered(true, at, &mut step);
        self.on_fin(at.now, &mut step);
        step
    }

    /// A FIN in order.
    fn on_fin(&mut self, now: u64, step: &mut Step) {
        self.receive_next = self.receive_next.wrapping_add(1);
        if self.state == State::LastAck {
            // Both sides closed at once.
            self.acknowledge(step);
            if self.unacknowledged == self.send_next {
                step.events.add(Event::Closed);
                self.state = State::Closed;
            }
            return;
        }
        if self.state == State::Waiting {
            if self.unacknowledged != self.send_next {
                // The request may be lost, and a FIN behind it would wait for it. Nobody will read it: the connection is of no more use.
                return self.reset(Event::ClosedEarly, step);
            }
            step.events.add(Event::ClosedEarly);
        }
        self.send_fin(now, step);
    }
}

/// Every second segment is acknowledged at once (RFC 1122 section 4.2.3.2).
const ACKNOWLEDGE_AT: u8 = 2;
/// The window that all our segments announce, in bytes.
pub const WINDOW: u32 = 65_535;

//! What a connection does with a segment, as `machine/segments.rs` says; the parts stand in the same order.

use std::os::fd::AsFd;

use fathom_sys::bpf::{
    Label, Operation,
    Register::{R1, R2, R3, R4, R5, R6, R8, R10},
    histogram,
};

use super::{
    Counter,
    books::Kept,
    code::{Code, Outgoing, place},
};
use crate::machine::{Event, Send, State, WINDOW, flag, offset};

/// A bit by which [`crate::machine::HEAD_DUE`] differs from every length of an answer.
const LENGTH_MAX: i32 = i32::MAX;

impl<Rows: AsFd, Books: AsFd, Histograms: AsFd, Control: AsFd, Sockets: AsFd>
    Code<'_, Rows, Books, Histograms, Control, Sockets>
{
    /// Decides a segment by the state of its connection.
    pub(super) fn on_segment(&mut self) {
        let [idle, handshake, established] = [self.a.label(), self.a.label(), self.a.label()];
        self.a.load(R1, R6.byte(offset::STATE));
        self.a.jump_if(R1.equals(State::Closed as i32), self.refuse).jump_if(R1.equals(State::Idle as i32), idle);
        self.a.jump_if(R1.equals(State::SynSent as i32), handshake).jump(established);
        self.a.bind(idle);
        self.on_idle();
        self.a.bind(handshake);
        self.on_handshake();
        self.a.bind(established);
        self.on_established();
        self.refuse();
        self.acknowledge();
        self.next_request();
        self.close();
    }

    /// Jumps if the segment has one of these flags. Clobbers `R1`.
    fn if_flag(&mut self, flags: u8, then: Label) {
        self.a
            .load(R1, R10.word(place::FLAGS))
            .compute(Operation::And, R1, i32::from(flags))
            .jump_if(R1.differs(0), then);
    }

    fn count_event(&mut self, event: Event) {
        self.count(Counter::Of(event));
    }

    fn refuse(&mut self) {
        self.a.bind(self.refuse);
        self.count_event(Event::Stray);
        self.if_flag(flag::RST, self.drop);
        self.a.load(R1, R10.word(place::ACKNOWLEDGEMENT)).store(R10.word(place::OUT_SEQUENCE), R1);
        self.a.store(R10.word(place::OUT_ACKNOWLEDGEMENT), 0);
        self.a.jump(self.sends(Outgoing::Plain(Send::Reset)));
    }

    fn on_idle(&mut self) {
        let [ends, data] = [self.a.label(), self.a.label()];
        self.if_flag(flag::FIN | flag::RST, ends);
        self.a.jump(data).bind(ends);
        self.a.load(R1, R10.word(place::SEQUENCE)).load(R2, R6.word(offset::RECEIVE_NEXT));
        self.a.jump_if(R1.differs(R2), data);
        self.a.store(R6.word(offset::ENDED_BY_SERVER), 1).jump(self.drop).bind(data);
        self.a.load(R1, R10.word(place::LENGTH)).jump_if(R1.equals(0), self.drop);
        self.count_event(Event::Duplicate);
        self.a.jump(self.acknowledge_unchanged);
    }

    fn on_handshake(&mut self) {
        let is_reset = self.a.label();
        self.a.load(R1, R10.word(place::ACKNOWLEDGEMENT)).load(R2, R6.word(offset::SEND_NEXT));
        self.a.jump_if(R1.differs(R2), self.refuse);
        self.if_flag(flag::RST, is_reset);
        self.a.load(R1, R10.word(place::FLAGS)).compute(Operation::And, R1, i32::from(flag::SYN));
        self.a.jump_if(R1.equals(0), self.drop);
        self.a.store(R6.word(offset::UNACKNOWLEDGED), R2);
        self.a.load(R1, R10.word(place::SEQUENCE)).add(R1, 1).store(R6.word(offset::RECEIVE_NEXT), R1);
        self.count_event(Event::Opened);
        self.time(Kept::Opened, offset::STARTED_AT);
        if !self.setup.rules.closes {
            self.a.store(R6.double(offset::STARTED_AT), R8);
        }
        self.a.jump(self.next_request).bind(is_reset);
        self.ends_with(Event::Reset);
    }

    /// The connection is closed without an answer.
    fn ends_with(&mut self, event: Event) {
        self.count_event(event);
        self.set_state(State::Closed);
        self.a.jump(self.drop);
    }

    fn on_established(&mut self) {
        let [reset, second_syn, acknowledged, bare] = [(); 4].map(|()| self.a.label());
        self.if_flag(flag::RST, reset);
        self.if_flag(flag::SYN, second_syn);
        self.a.load(R2, R10.word(place::ACKNOWLEDGEMENT)).load(R3, R6.word(offset::SEND_NEXT));
        self.if_after(R2, R3, self.acknowledge);
        self.a.load(R3, R6.word(offset::UNACKNOWLEDGED));
        let is_new = self.a.label();
        self.if_after(R2, R3, is_new);
        self.a.jump(acknowledged).bind(is_new).store(R6.word(offset::UNACKNOWLEDGED), R2).bind(acknowledged);
        self.a.load(R1, R10.word(place::FLAGS)).compute(Operation::And, R1, i32::from(flag::FIN));
        self.a.store(R10.word(place::FIN), R1);
        self.a.load(R4, R10.word(place::LENGTH)).compute(Operation::Or, R1, R4).jump_if(R1.equals(0), bare);
        self.take_in_order();
        self.on_data();
        self.a.bind(reset);
        self.on_reset();
        self.a.bind(second_syn);
        self.on_second_syn();
        self.a.bind(bare);
        self.on_acknowledgement();
    }

    fn on_reset(&mut self) {
        let [other, answered] = [self.a.label(), self.a.label()];
        self.a.load(R2, R10.word(place::SEQUENCE)).load(R3, R6.word(offset::RECEIVE_NEXT));
        self.a.sub(R2, R3).keep_word(R2).jump_if(R2.differs(0), other);
        self.unless_state(State::Waiting, answered);
        self.ends_with(Event::Reset);
        self.a.bind(answered);
        self.ends_with(Event::Closed);
        self.a.bind(other).jump_if(R2.below(window()), self.acknowledge).jump(self.drop);
    }

    fn on_second_syn(&mut self) {
        self.count_event(Event::Duplicate);
        self.unless_state(State::Waiting, self.acknowledge);
        self.a.load(R2, R6.word(offset::UNACKNOWLEDGED)).load(R1, R6.word(offset::SEND_NEXT));
        self.a.jump_if(R1.equals(R2), self.acknowledge);
        self.number(self.request_length());
        self.a.jump(self.sends(Outgoing::Plain(Send::Request)));
    }

    fn request_length(&self) -> i32 {
        i32::try_from(self.setup.rules.request_length).expect("a request fits into a segment")
    }

    fn on_acknowledgement(&mut self) {
        let ends = self.a.label();
        self.unless_state(State::LastAck, self.drop);
        self.a.load(R2, R6.word(offset::UNACKNOWLEDGED)).load(R1, R6.word(offset::SEND_NEXT));
        self.a.jump_if(R1.differs(R2), self.drop);
        self.count_event(Event::Closed);
        if !self.setup.rules.is_open_load {
            self.if_stops(ends);
            self.open();
        }
        self.a.bind(ends);
        self.set_state(State::Closed);
        self.a.jump(self.drop);
    }

    /// Jumps if the load ends. Clobbers `R1`.
    fn if_stops(&mut self, then: Label) {
        self.a.load_row(R1, &self.maps.control).load(R1, R1.double(0)).jump_if(R1.differs(0), then);
    }

    /// Opens the slot's next connection, as `Connection::open` does.
    fn open(&mut self) {
        let [is_first, has_number] = [self.a.label(), self.a.label()];
        let mask = i32::from(self.setup.rules.port_mask);
        self.a.load(R2, R6.half(offset::PORT_IDX)).add(R2, 1).compute(Operation::And, R2, mask);
        self.a.store(R6.half(offset::PORT_IDX), R2);
        self.a.load(R3, R10.half(place::PORTS)).swap_network_order(R3, 16).compute(Operation::And, R3, !mask);
        self.a.compute(Operation::Or, R3, R2).swap_network_order(R3, 16).store(R10.half(place::PORTS), R3);
        // The number of the next byte is zero in a slot that had no connection.
        self.a
            .load(R1, R6.word(offset::SEND_NEXT))
            .jump_if(R1.equals(0), is_first)
            .add(R1, NUMBERS_BETWEEN)
            .jump(has_number)
            .bind(is_first);
        self.a
            .mov(R1, R8)
            .compute(Operation::ShiftRight, R1, CLOCK_SHIFT)
            .compute(Operation::Or, R1, 1)
            .bind(has_number);
        self.a.store(R6.word(offset::UNACKNOWLEDGED), R1).store(R10.word(place::OUT_SEQUENCE), R1);
        self.a.add(R1, 1).store(R6.word(offset::SEND_NEXT), R1).store(R10.word(place::OUT_ACKNOWLEDGEMENT), 0);
        self.a.store(R6.word(offset::RECEIVE_NEXT), 0).store(R6.word(offset::LEFT), -1);
        self.a.store(R6.double(offset::STARTED_AT), R8).store(R6.double(offset::ACTIVE_AT), R8);
        self.a.store(R6.double(offset::EARLY_FROM), 0).store(R6.word(offset::ENDED_BY_SERVER), 0);
        for at in [offset::EARLY_END, offset::N_UNACKNOWLEDGED, offset::LAST] {
            self.a.store(R6.byte(at), 0);
        }
        self.set_state(State::SynSent);
        self.a.jump(self.sends(Outgoing::Plain(Send::Syn)));
    }

    /// Leaves the bytes that are next at [`place::LENGTH`].
    fn take_in_order(&mut self) {
        let [gap, old, is_new, in_order, fits, joined] = [(); 6].map(|()| self.a.label());
        self.a.load(R2, R10.word(place::SEQUENCE)).load(R3, R6.word(offset::RECEIVE_NEXT));
        self.if_after(R2, R3, gap);
        self.a.sub(R3, R2).keep_word(R3).jump_if(R3.equals(0), in_order);
        self.unless_state(State::Waiting, is_new);
        self.a.load(R1, R6.word(offset::LEFT)).jump_if(R1.above(LENGTH_MAX), old).bind(is_new);
        self.a.load(R1, R10.word(place::FIN)).add(R1, R4).jump_if(R3.at_least(R1), old);
        self.a.jump_if(R4.at_least(R3), fits).mov(R3, R4).bind(fits).sub(R4, R3).bind(in_order);
        self.a.store(R10.word(place::LENGTH), R4);
        self.a.load(R2, R6.word(offset::EARLY_FROM)).load(R3, R6.word(offset::EARLY_TO)).jump_if(R2.equals(R3), joined);
        self.join_early(joined);
        self.a.bind(old);
        self.on_old();
        self.a.bind(gap);
        self.keep_early();
        self.a.bind(joined);
    }

    /// `R4` are the bytes in order, `R2` and `R3` the ends of the early range.
    fn join_early(&mut self, joined: Label) {
        let is_longer = self.a.label();
        self.a.load(R5, R6.word(offset::RECEIVE_NEXT)).add(R4, R5).keep_word(R4);
        self.if_after(R2, R4, joined);
        self.if_after(R4, R3, is_longer);
        self.a.sub(R3, R5).store(R10.word(place::LENGTH), R3);
        self.a.load(R1, R10.word(place::FIN)).load(R2, R6.byte(offset::EARLY_END)).compute(Operation::Or, R1, R2);
        self.a.store(R10.word(place::FIN), R1).bind(is_longer);
        self.a.store(R6.double(offset::EARLY_FROM), 0).store(R6.byte(offset::EARLY_END), 0);
        self.a.store(R6.byte(offset::N_UNACKNOWLEDGED), ACKNOWLEDGE_AT).jump(joined);
    }

    fn on_old(&mut self) {
        self.count_event(Event::Duplicate);
        self.unless_state(State::LastAck, self.acknowledge);
        self.number(1);
        self.a.jump(self.sends(Outgoing::Plain(Send::Fin)));
    }

    fn keep_early(&mut self) {
        let [some, from_kept, ends] = [(); 3].map(|()| self.a.label());
        let acknowledge = self.acknowledge;
        self.count_event(Event::Gap);
        self.unless_state(State::Waiting, acknowledge);
        self.a.load(R4, R10.word(place::LENGTH)).jump_if(R4.equals(0), acknowledge);
        self.a.load(R2, R10.word(place::SEQUENCE)).load(R3, R6.word(offset::RECEIVE_NEXT)).mov(R1, R2).sub(R1, R3);
        self.a.keep_word(R1).jump_if(R1.at_least(window()), acknowledge);
        self.a.mov(R3, R2).add(R3, R4).keep_word(R3);
        self.a.load(R4, R6.word(offset::EARLY_FROM)).load(R5, R6.word(offset::EARLY_TO)).jump_if(R4.differs(R5), some);
        self.a.store(R6.word(offset::EARLY_FROM), R2).store(R6.word(offset::EARLY_TO), R3);
        self.a.load(R1, R10.word(place::FIN)).store(R6.byte(offset::EARLY_END), R1).jump(acknowledge).bind(some);
        self.if_after(R2, R5, acknowledge);
        self.if_after(R4, R3, acknowledge);
        self.if_after(R4, R2, from_kept);
        self.a.mov(R2, R4).bind(from_kept).store(R6.word(offset::EARLY_FROM), R2);
        self.a.load(R1, R10.word(place::FIN)).load(R2, R6.byte(offset::EARLY_END)).compute(Operation::Or, R1, R2);
        self.a.store(R6.byte(offset::EARLY_END), R1);
        self.if_after(R3, R5, ends);
        self.a.jump(acknowledge).bind(ends).store(R6.word(offset::EARLY_TO), R3).jump(acknowledge);
    }

    fn on_data(&mut self) {
        let [fin, known, excess, more, has_begun] = [(); 5].map(|()| self.a.label());
        self.a.load(R4, R10.word(place::LENGTH)).jump_if(R4.equals(0), fin);
        self.unless_state(State::Waiting, excess);
        self.a.store(R10.word(place::BEGINS), 0);
        self.a.load(R2, R6.word(offset::LEFT)).jump_if(R2.below(LENGTH_MAX), known);
        self.read_head();
        self.a.store(R10.word(place::BEGINS), 1);
        self.a.bind(known).load(R4, R10.word(place::LENGTH)).jump_if(R4.above(R2), excess);
        self.a.load(R1, R6.word(offset::RECEIVE_NEXT)).add(R1, R4).store(R6.word(offset::RECEIVE_NEXT), R1);
        self.a.sub(R2, R4).store(R6.word(offset::LEFT), R2);
        self.time_begun();
        self.a.store(R6.double(offset::ACTIVE_AT), R8);
        self.a.load(R1, R10.word(place::BEGINS)).jump_if(R1.equals(0), has_begun);
        self.count_event(Event::Begun);
        self.a.bind(has_begun).jump_if(R2.differs(0), more);
        self.on_answered(fin);
        self.a.bind(more);
        self.time_first();
        self.count_up(offset::N_UNACKNOWLEDGED);
        self.a.load(R1, R10.word(place::FIN)).jump_if(R1.differs(0), fin);
        self.a.jump_if(R3.at_least(ACKNOWLEDGE_AT), self.acknowledge).jump(self.drop);
        self.a.bind(excess);
        self.reset_with(Event::Excess);
        self.a.bind(fin);
        self.on_fin();
    }

    /// Resets the connection.
    pub(super) fn reset_with(&mut self, event: Event) {
        self.count_event(event);
        self.number(0);
        self.a.store(R10.word(place::OUT_ACKNOWLEDGEMENT), 0);
        self.set_state(State::Closed);
        self.a.jump(self.sends(Outgoing::Plain(Send::Reset)));
    }

    fn on_answered(&mut self, fin: Label) {
        let [closes, rests] = [(); 2].map(|()| self.a.label());
        self.count_event(Event::Answered);
        self.time_last();
        self.a.load(R1, R6.word(offset::N_ANSWERED)).add(R1, 1).store(R6.word(offset::N_ANSWERED), R1);
        if self.setup.rules.closes {
            self.set_state(State::AnswerEnded);
            self.a.load(R1, R10.word(place::FIN)).jump_if(R1.differs(0), fin);
            self.count_up(offset::N_UNACKNOWLEDGED);
            self.a.jump(self.drop);
            return;
        }
        let goes_on = self.a.label();
        self.a.load(R1, R10.word(place::FIN)).load(R2, R6.byte(offset::LAST)).mov(R3, R1).compute(
            Operation::Or,
            R3,
            R2,
        );
        self.a.jump_if(R3.equals(0), goes_on);
        self.set_state(State::AnswerEnded);
        self.a.jump_if(R1.equals(0), closes).jump(fin).bind(closes);
        self.count_up(offset::N_UNACKNOWLEDGED);
        self.a.jump(self.drop).bind(goes_on);
        if !self.setup.rules.is_open_load {
            self.if_stops(rests);
            self.a.store(R6.double(offset::STARTED_AT), R8).jump(self.next_request);
        }
        self.a.bind(rests);
        self.acknowledge_and(State::Idle);
    }

    /// Acknowledges, and leaves the row to user space.
    fn acknowledge_and(&mut self, state: State) {
        self.a.store(R6.byte(offset::N_UNACKNOWLEDGED), 0);
        self.number(0);
        self.a.load(R1, R6.word(offset::EARLY_FROM)).load(R2, R6.word(offset::EARLY_TO));
        self.set_state(state);
        let [with_range, plain] = [Outgoing::WithRange, Outgoing::Plain(Send::Ack)].map(|form| self.sends(form));
        self.a.jump_if(R1.differs(R2), with_range).jump(plain);
    }

    fn on_fin(&mut self) {
        let [closes_too, waited, is_known] = [(); 3].map(|()| self.a.label());
        self.a.load(R1, R6.word(offset::RECEIVE_NEXT)).add(R1, 1).store(R6.word(offset::RECEIVE_NEXT), R1);
        self.a.load(R1, R6.byte(offset::STATE)).jump_if(R1.equals(State::LastAck as i32), closes_too);
        self.a.jump_if(R1.equals(State::Waiting as i32), waited).jump(self.close).bind(waited);
        self.a.load(R1, R6.word(offset::SEND_NEXT)).load(R2, R6.word(offset::UNACKNOWLEDGED));
        self.a.jump_if(R1.equals(R2), is_known);
        self.reset_with(Event::ClosedEarly);
        self.a.bind(is_known);
        self.count_event(Event::ClosedEarly);
        self.a.jump(self.close).bind(closes_too);
        self.a.load(R1, R6.word(offset::SEND_NEXT)).load(R2, R6.word(offset::UNACKNOWLEDGED));
        self.a.jump_if(R1.differs(R2), self.acknowledge);
        self.count_event(Event::Closed);
        self.acknowledge_and(State::Closed);
    }

    fn acknowledge(&mut self) {
        self.a.bind(self.acknowledge).store(R6.byte(offset::N_UNACKNOWLEDGED), 0).bind(self.acknowledge_unchanged);
        self.number(0);
        self.a.load(R1, R6.word(offset::EARLY_FROM)).load(R2, R6.word(offset::EARLY_TO));
        let [with_range, plain] = [Outgoing::WithRange, Outgoing::Plain(Send::Ack)].map(|form| self.sends(form));
        self.a.jump_if(R1.differs(R2), with_range).jump(plain);
    }

    fn next_request(&mut self) {
        self.a.bind(self.next_request);
        self.number(0);
        let length = self.request_length();
        self.a.load(R1, R6.word(offset::SEND_NEXT)).add(R1, length);
        self.a.store(R6.word(offset::SEND_NEXT), R1).store(R6.word(offset::LEFT), -1);
        self.begins(State::Waiting);
        self.a.jump(self.sends(Outgoing::Plain(Send::Request)));
    }

    fn close(&mut self) {
        self.a.bind(self.close);
        self.number(0);
        self.a.load(R1, R6.word(offset::SEND_NEXT)).add(R1, 1).store(R6.word(offset::SEND_NEXT), R1);
        self.begins(State::LastAck);
        self.a.jump(self.sends(Outgoing::Plain(Send::Fin)));
    }

    fn begins(&mut self, state: State) {
        self.a.store(R6.double(offset::ACTIVE_AT), R8).store(R6.byte(offset::N_UNACKNOWLEDGED), 0);
        self.set_state(state);
    }

    /// Records the time from the send to the first bytes of an answer in an open load. Keeps `R2`, the bytes that are left; clobbers
    /// `R0` to `R5`.
    fn time_begun(&mut self) {
        if !self.setup.rules.is_open_load {
            return;
        }
        let rests = self.a.label();
        self.a.load(R1, R10.word(place::BEGINS)).jump_if(R1.equals(0), rests);
        self.unless_measured(rests);
        self.time(Kept::First, offset::ACTIVE_AT);
        self.a.load(R2, R6.word(offset::LEFT)).bind(rests);
    }

    /// Jumps if an open load does not count the request's times. Clobbers `R1`.
    fn unless_measured(&mut self, then: Label) {
        self.a.load(R1, R6.byte(offset::MEASURED)).jump_if(R1.equals(0), then);
    }

    /// Records the time to the first bytes of an answer that has more, in a closed load. Clobbers `R0` to `R5`.
    fn time_first(&mut self) {
        if self.setup.rules.is_open_load {
            return;
        }
        let has_begun = self.a.label();
        self.a.load(R1, R10.word(place::BEGINS)).jump_if(R1.equals(0), has_begun);
        self.time(Kept::First, offset::STARTED_AT);
        self.a.bind(has_begun);
    }

    /// Records the time to the last bytes of an answer. Clobbers `R0` to `R5`.
    fn time_last(&mut self) {
        let rests = self.a.label();
        self.a.mov(R2, Kept::Last.row());
        if self.setup.rules.is_open_load {
            self.unless_measured(rests);
        } else {
            let has_begun_before = self.a.label();
            self.a.load(R1, R10.word(place::BEGINS)).jump_if(R1.equals(0), has_begun_before);
            self.a.mov(R2, Kept::Whole.row()).bind(has_begun_before);
        }
        self.time_in_r2(offset::STARTED_AT);
        self.a.bind(rests);
    }

    /// Records the time since the one at this offset of the row. Clobbers `R0` to `R5`.
    fn time(&mut self, kept: Kept, since: i16) {
        self.a.mov(R2, kept.row());
        self.time_in_r2(since);
    }

    /// Records the time since the one at this offset of the row in the histogram that `R2` is the number of. Clobbers `R0` to `R5`.
    fn time_in_r2(&mut self, since: i16) {
        let fits = self.a.label();
        self.a.store(R10.word(place::KEY), R2).look_up(&self.maps.histograms, place::KEY, self.drop);
        self.a.mov(R1, R8).load(R2, R6.double(since)).sub(R1, R2);
        self.a.load_constant(R2, histogram::MAX).jump_if(R2.at_least(R1), fits).mov(R1, R2).bind(fits);
        histogram::count(&mut self.a);
    }
}

/// As in `machine/segments.rs`.
const ACKNOWLEDGE_AT: i32 = 2;
/// As in `machine/silence.rs`.
const NUMBERS_BETWEEN: i32 = 64;
/// As in `machine/silence.rs`.
const CLOCK_SHIFT: i32 = 8;

const fn window() -> i32 {
    WINDOW.cast_signed()
}

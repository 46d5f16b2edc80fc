//! The client: a slot, and what user space does for it.

use std::collections::VecDeque;

use fathom_http::h1::{HeadReader, Method, ResponseReader};

use super::{MS, Packet};
use crate::{
    machine::{Conditions, Connection, Event, Head, Rules, Send, State, Step, Timers},
    slow_path,
};

/// Whoever answers segments for the row of a slot: the machine, or the program.
pub(super) trait Answerer {
    /// Answers a segment that arrived for a port of the slot.
    fn answer(&mut self, packet: &Packet, payload: &[u8], at: &Conditions) -> Reply;

    /// The row.
    fn row(&self) -> Connection;

    /// Writes the row.
    fn set_row(&mut self, row: &Connection);

    /// How often an event happened.
    fn n(&self, event: Event) -> u64;
}

/// What becomes of a segment.
pub(super) enum Reply {
    /// It is answered, or not.
    Sent(Option<Packet>),
    /// It is for user space.
    HandedOver,
}

/// The machine.
#[derive(Debug, Default)]
pub(super) struct MachineAnswerer {
    row: Connection,
    answer_length: u32,
    counts: [u64; Event::ALL.len()],
}

impl MachineAnswerer {
    pub(super) fn new(answer_length: u32) -> Self {
        Self { answer_length, ..Self::default() }
    }
}

impl Answerer for MachineAnswerer {
    fn answer(&mut self, packet: &Packet, _: &[u8], at: &Conditions) -> Reply {
        let head = if packet.is_unusual_answer {
            Head::Unknown
        } else {
            Head::Answer { length: self.answer_length, is_success: true, closes: packet.is_last_answer }
        };
        let step = if packet.port_idx == self.row.port_idx {
            self.row.on_segment(&packet.segment, head, at)
        } else {
            Connection::on_stray(&packet.segment)
        };
        count(&mut self.counts, &step);
        if step.is_for_user_space {
            return Reply::HandedOver;
        }
        let is_new = matches!(step.send, Send::Syn);
        let port_idx = if is_new { self.row.port_idx } else { packet.port_idx };
        Reply::Sent(Packet::of_step(&step, port_idx, at.rules.request_length))
    }

    fn row(&self) -> Connection {
        self.row
    }

    fn set_row(&mut self, row: &Connection) {
        self.row = *row;
    }

    fn n(&self, event: Event) -> u64 {
        self.counts[event as usize]
    }
}

fn count(counts: &mut [u64], step: &Step) {
    for event in Event::ALL {
        counts[event as usize] += u64::from(step.events.has(event));
    }
}

/// The time between two looks of user space at a row.
pub(super) const SCAN: u64 = 2 * MS;

/// What user space does for a slot, and what it remembers outside the row.
#[derive(Debug)]
pub(super) struct UserSpace {
    timers: Timers,
    /// Retransmissions since `active_at`, and when silence last made us send.
    silence: (u32, u64),
    active_at: u64,
    /// When the requests of an open load were due that have not begun.
    pub(super) due: VecDeque<u64>,
    reader: ResponseReader,
    heads: HeadReader,
    counts: [u64; Event::ALL.len()],
}

impl UserSpace {
    pub(super) fn new(timers: Timers) -> Self {
        Self {
            timers,
            silence: (0, 0),
            active_at: 0,
            due: VecDeque::new(),
            reader: ResponseReader::default(),
            heads: slow_path::heads(Method::Get),
            counts: [0; Event::ALL.len()],
        }
    }

    pub(super) fn n(&self, event: Event) -> u64 {
        self.counts[event as usize]
    }

    /// Looks at the row, and does what is due.
    pub(super) fn look(&mut self, answerer: &mut impl Answerer, at: &Conditions) -> Option<Packet> {
        let mut row = answerer.row();
        let (now, rules) = (at.now, at.rules);
        if row.active_at != self.active_at {
            (self.active_at, self.silence) = (row.active_at, (0, 0));
        }
        let step = match row.state {
            State::Closed => {
                let mut step = Step::default();
                if !at.stops {
                    row.open(now, rules, &mut step);
                }
                step
            }
            State::Idle => self.on_idle(&mut row, at),
            _ if row.is_overdue(now, 0, &self.timers) => row.give_up(),
            _ => self.on_silence(&row, now, rules),
        };
        if !matches!(step.send, Send::Ack) {
            answerer.set_row(&row);
        }
        count(&mut self.counts, &step);
        Packet::of_step(&step, row.port_idx, rules.request_length)
    }

    /// Follows an answer that is away.
    pub(super) fn follow(
        &mut self,
        answerer: &mut impl Answerer,
        packet: &Packet,
        payload: &[u8],
        at: &Conditions,
    ) -> Option<Packet> {
        let mut row = answerer.row();
        let readers = (&mut self.reader, &mut self.heads);
        let step = slow_path::follow(&mut row, readers, (&packet.segment, payload), at);
        answerer.set_row(&row);
        count(&mut self.counts, &step);
        Packet::of_step(&step, row.port_idx, at.rules.request_length)
    }

    fn on_idle(&mut self, row: &mut Connection, at: &Conditions) -> Step {
        if row.is_ended_by_server || at.stops {
            return row.close(at.now);
        }
        self.due.pop_front().map_or_else(Step::default, |due| row.start_request(due, at.now, at.rules))
    }

    fn on_silence(&mut self, row: &Connection, now: u64, rules: Rules) -> Step {
        let step = row.on_silence(now, self.silence, &self.timers, rules);
        if step.send != Send::Nothing {
            self.silence = (self.silence.0 + u32::from(step.events.has(Event::Resent)), now);
        }
        step
    }
}

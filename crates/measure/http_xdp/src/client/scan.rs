//! What user space does with each connection in turn: opens it, sends again what was lost, gives it up, closes it.

use fathom_engine::Error;
use fathom_model::{Histogram, units::Nanos};
use fathom_sys::clock;

use super::{outbox::Outbox, rows};
use crate::{
    machine::{Connection, Event, Send, State, Step, Timers},
    program::{LoadProgram, LoadSetup},
};

/// The most rows of one look, a fraction of a millisecond.
const ROWS_AT_ONCE: u32 = 1 << 14;
/// The least number of connections that may wait for their SYN-ACK. More would overflow the accept queue of a server with the usual backlog.
const CONNECTING_MIN: u32 = 128;
/// Of many connections, this part may be connecting.
const CONNECTING_PART: u32 = 256;
/// How long the program may still be at work on a row that was taken from it, in nanoseconds.
const TAKES: u64 = 1_000_000;
/// The pause before a failed connection is opened again; it doubles with each failure, so many times.
const PAUSE: u64 = 10_000_000;
const PAUSE_DOUBLINGS: u8 = 6;

/// What is known of a slot beside its row.
#[derive(Debug, Clone, Copy, Default)]
struct SlotState {
    /// The time of the last retransmission, of the end of a pause, or of taking the row.
    at: u64,
    /// When the last request was sent that was due by a schedule; 0 if there was none since the connection was opened.
    sent_at: u64,
    /// The answers when the connection was opened.
    n_answered: u32,
    n_resent: u8,
    n_failures: u8,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// It was never opened.
    #[default]
    Unused,
    /// The program has it.
    Open,
    /// It rests until it is opened again.
    Pauses,
    /// It was taken from the program, to be given up.
    Taken,
}

/// What is to become of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// They open, and rest.
    Open,
    /// They work.
    Work,
    /// Requests in flight end, and nothing begins.
    Drain,
    /// Connections without their answer, or their SYN-ACK, end at once.
    Abandon,
    /// Idle ones close.
    Close,
    /// All end at once.
    Reset,
}

impl Aim {
    /// Whether a connection is to end at once.
    fn ends(self, connection: &Connection) -> bool {
        match self {
            Self::Reset => true,
            Self::Abandon => matches!(connection.state, State::SynSent | State::Waiting),
            Self::Open | Self::Work | Self::Drain | Self::Close => false,
        }
    }
}

/// What a look at all rows has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "counts begin with n_")]
pub(super) struct Census {
    /// Connections that wait for their SYN-ACK.
    pub(super) n_connecting: u32,
    /// Connections whose request has no whole answer.
    pub(super) n_waiting: u32,
    /// Connections without a request.
    pub(super) n_idle: u32,
    /// All that are not closed.
    pub(super) n_open: u32,
}

/// What user space itself counts.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_field_names, reason = "counts begin with n_")]
pub(crate) struct OwnCounts {
    pub(crate) n_resent: u64,
    /// Connections given up before and after their SYN-ACK.
    pub(crate) n_connects_timed_out: u64,
    pub(crate) n_requests_timed_out: u64,
    /// Connections abandoned at the end, before or after their SYN-ACK.
    pub(crate) n_unfinished: u64,
}

/// Goes round all connections.
pub(super) struct Scan<'a> {
    pub(super) program: &'a LoadProgram,
    pub(super) setup: &'a LoadSetup,
    timers: Timers,
    slots: Vec<SlotState>,
    next: u32,
    /// Of the round that is going on, and of the one before.
    census: Census,
    before: Census,
    n_opened: u32,
    /// The last look went to the end of a round, and the program has all connections that it found: nothing is left to user space.
    pub(super) is_quiet: bool,
    pub(super) counts: OwnCounts,
    /// In an open load, from when a measured request was due to giving it up: its time is longer than that.
    pub(super) given_up: Histogram,
}

impl<'a> Scan<'a> {
    pub(super) fn new(program: &'a LoadProgram, setup: &'a LoadSetup, timeout: Nanos) -> Self {
        Self {
            program,
            setup,
            timers: Timers::new(timeout.0),
            slots: vec![SlotState::default(); program.rows.n_rows() as usize],
            next: 0,
            census: Census::default(),
            before: Census::default(),
            n_opened: 0,
            is_quiet: false,
            counts: OwnCounts::default(),
            given_up: Histogram::new(),
        }
    }

    /// The number of connections.
    pub(super) fn n_slots(&self) -> u32 {
        self.program.rows.n_rows()
    }

    /// After so long, a connection or a request is given up.
    pub(super) fn timeout(&self) -> Nanos {
        Nanos(self.timers.timeout)
    }

    /// Looks at the next rows, at most up to the last one.
    pub(super) fn look(&mut self, now: Nanos, aim: Aim, outbox: &mut Outbox) -> Result<(), Error> {
        self.is_quiet = true;
        for _ in 0..self.program.rows.n_rows().min(ROWS_AT_ONCE) {
            self.visit(self.next, now.0, aim, outbox)?;
            self.next += 1;
            if self.next == self.program.rows.n_rows() {
                self.next = 0;
                self.before = std::mem::take(&mut self.census);
                self.n_opened = 0;
                break;
            }
        }
        self.is_quiet &= self.next == 0;
        outbox.flush()
    }

    /// Looks at all rows, from the first one.
    pub(super) fn look_at_all(&mut self, aim: Aim, outbox: &mut Outbox) -> Result<Census, Error> {
        (self.next, self.census) = (0, Census::default());
        loop {
            self.look(clock::now(), aim, outbox)?;
            if self.next == 0 {
                return Ok(self.before);
            }
        }
    }

    fn visit(&mut self, slot: u32, now: u64, aim: Aim, outbox: &mut Outbox) -> Result<(), Error> {
        let connection = rows::read(self.program.rows.row(slot));
        self.census.add(connection.state);
        let SlotState { stage, sent_at, .. } = self.slots[slot as usize];
        if stage == Stage::Taken {
            return self.end_taken(slot, now, aim, outbox);
        }
        match connection.state {
            State::Closed if matches!(aim, Aim::Open | Aim::Work) => self.tend_closed(slot, connection, now, outbox),
            State::Closed => Ok(()),
            _ if aim.ends(&connection) || connection.is_overdue(now, sent_at, &self.timers) => {
                self.take(slot, now);
                Ok(())
            }
            State::Idle => self.tend_idle(slot, connection, now, aim, outbox),
            _ => self.tend_silent(slot, &connection, now, outbox),
        }
    }

    fn tend_closed(&mut self, slot: u32, connection: Connection, now: u64, outbox: &mut Outbox) -> Result<(), Error> {
        self.is_quiet = false;
        let state = &mut self.slots[slot as usize];
        if state.stage == Stage::Open {
            let has_worked = connection.n_answered != state.n_answered;
            state.n_failures = if has_worked { 0 } else { state.n_failures.saturating_add(1) };
            let pause = if has_worked { 0 } else { PAUSE << (state.n_failures - 1).min(PAUSE_DOUBLINGS) };
            (state.stage, state.at) = (Stage::Pauses, now + pause);
        }
        let connecting_max = CONNECTING_MIN.max(self.program.rows.n_rows() / CONNECTING_PART);
        if now < state.at || self.n_opened + self.before.n_connecting >= connecting_max {
            return Ok(());
        }
        self.n_opened += 1;
        *state = SlotState {
            n_answered: connection.n_answered,
            stage: Stage::Open,
            n_failures: state.n_failures,
            ..SlotState::default()
        };
        let (mut connection, mut step) = (Connection { is_measured: false, ..connection }, Step::default());
        connection.open(now, self.setup.rules, &mut step);
        rows::open(self.program.rows.row(slot), &connection);
        self.send(slot, &connection, &step, outbox)
    }

    /// The connection is open and has no request.
    fn tend_idle(
        &mut self,
        slot: u32,
        mut connection: Connection,
        now: u64,
        aim: Aim,
        outbox: &mut Outbox,
    ) -> Result<(), Error> {
        let step = if connection.is_ended_by_server || aim == Aim::Close {
            connection.close(now)
        } else if aim == Aim::Work && !self.setup.rules.is_open_load {
            connection.start_request(now, now, self.setup.rules)
        } else {
            return Ok(());
        };
        rows::start(self.program.rows.row(slot), &connection);
        self.send(slot, &connection, &step, outbox)
    }

    /// Sends a request that was due at `due` on a free connection.
    pub(super) fn start(
        &mut self,
        slot: u32,
        (due, now): (Nanos, Nanos),
        is_measured: bool,
        outbox: &mut Outbox,
    ) -> Result<(), Error> {
        let row = self.program.rows.row(slot);
        let mut connection = Connection { is_measured, ..rows::read(row) };
        self.slots[slot as usize].sent_at = now.0;
        let step = connection.start_request(due.0, now.0, self.setup.rules);
        rows::start(row, &connection);
        self.send(slot, &connection, &step, outbox)
    }

    /// Whether a request may start on a connection.
    pub(super) fn is_free(&self, slot: u32) -> bool {
        let connection = rows::read(self.program.rows.row(slot));
        connection.state == State::Idle && !connection.is_ended_by_server
    }

    /// The program waits for a segment.
    fn tend_silent(&mut self, slot: u32, connection: &Connection, now: u64, outbox: &mut Outbox) -> Result<(), Error> {
        let state = &mut self.slots[slot as usize];
        if connection.active_at > state.at {
            state.n_resent = 0;
        }
        let silence = (state.n_resent.into(), state.at);
        let step = connection.on_silence(now, silence, &self.timers, self.setup.rules);
        // The program may just have written the row.
        if step.send == Send::Nothing || rows::read(self.program.rows.row(slot)) != *connection {
            return Ok(());
        }
        state.at = now;
        if step.events.has(Event::Resent) {
            state.n_resent = state.n_resent.saturating_add(1);
            self.counts.n_resent += 1;
        }
        self.send(slot, connection, &step, outbox)
    }

    fn take(&mut self, slot: u32, now: u64) {
        self.is_quiet = false;
        rows::take(self.program.rows.row(slot));
        let state = &mut self.slots[slot as usize];
        (state.stage, state.at) = (Stage::Taken, now);
    }

    /// Gives a connection up, now that the program leaves it alone; or returns it, if it went on in the last moment.
    fn end_taken(&mut self, slot: u32, now: u64, aim: Aim, outbox: &mut Outbox) -> Result<(), Error> {
        self.is_quiet = false;
        let state = &mut self.slots[slot as usize];
        if now < state.at + TAKES {
            return Ok(());
        }
        state.stage = Stage::Open;
        let row = self.program.rows.row(slot);
        let mut connection = rows::read(row);
        let is_overdue = connection.is_overdue(now, state.sent_at, &self.timers);
        let is_over = aim.ends(&connection) || is_overdue;
        if connection.state == State::Closed || !is_over {
            rows::give_back(row);
            return Ok(());
        }
        let before = connection;
        let step = connection.give_up();
        if step.events.has(Event::TimedOut) {
            self.enter_given_up(&before, now, is_overdue);
        }
        rows::open(row, &connection);
        rows::give_back_closed(row);
        self.send(slot, &connection, &step, outbox)
    }

    /// Enters a connection that is given up without its answer; one that is not overdue ends with the load.
    fn enter_given_up(&mut self, connection: &Connection, now: u64, is_overdue: bool) {
        let n = match connection.state {
            _ if !is_overdue => &mut self.counts.n_unfinished,
            State::SynSent => &mut self.counts.n_connects_timed_out,
            _ => &mut self.counts.n_requests_timed_out,
        };
        *n += 1;
        if connection.is_measured && connection.state == State::Waiting {
            self.given_up.record(now.saturating_sub(connection.started_at));
        }
    }

    fn send(&mut self, slot: u32, connection: &Connection, step: &Step, outbox: &mut Outbox) -> Result<(), Error> {
        self.is_quiet = false;
        outbox.push(self.setup.ends.frame(step, self.setup.slots.place(slot, connection.port_idx)))
    }
}

impl Census {
    fn add(&mut self, state: State) {
        match state {
            State::Closed => return,
            State::SynSent => self.n_connecting += 1,
            State::Waiting => self.n_waiting += 1,
            State::Idle => self.n_idle += 1,
            State::AnswerEnded | State::LastAck => {}
        }
        self.n_open += 1;
    }
}

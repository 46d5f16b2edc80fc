//! The slow path: AF_XDP sockets to which the program redirects what it cannot follow, and what user space makes of it.

use std::{collections::HashMap, os::fd::AsFd as _};

use fathom_engine::Error;
use fathom_http::h1::{HeadReader, Method, ResponseReader};
use fathom_model::units::Nanos;
use fathom_sys::{
    bpf::histogram,
    clock,
    netlink::Link,
    packet::xsk::{Mode, Queue, Receiver},
    process::signal::poll_readable,
};

use super::{error::read_failed, outbox::Outbox, rows};
use crate::{
    machine::{Conditions, Event, Send, Step},
    program::{Counts, LoadProgram, LoadSetup, QUEUES_MAX, Times},
    slow_path::{self, ReceivedSegment},
};

/// A queue that is not in use.
const EINVAL: i32 = 22;
/// The frames that a queue may hold for us.
const RING: u32 = 512;
/// The most frames of a queue between two looks at everything else.
const FRAMES_AT_ONCE: usize = 1024;
/// The most connections whose answers are followed at once. Each may need 64 KiB for its head.
const ANSWERS_MAX: usize = 1024;

/// The sockets, and the answers that are followed.
#[derive(Debug)]
pub(super) struct SlowPath {
    sockets: Vec<Receiver>,
    /// Why there are no sockets.
    pub(super) unavailable: Option<String>,
    answers: Answers,
}

/// The answers that are followed, by slot, and what was counted of them.
#[derive(Debug)]
struct Answers {
    readers: HashMap<u32, ResponseReader>,
    heads: HeadReader,
    counts: Counts,
    times: Times,
    n_refused: u64,
}

impl SlowPath {
    /// Opens a socket for each queue of the device, and tells the program of it. Without sockets, the program has nobody to hand answers to.
    pub(super) fn open(program: &LoadProgram, link: &Link, method: Method) -> Self {
        let n_queues = link.n_rx_queues.unwrap_or(1).clamp(1, QUEUES_MAX);
        let open = |number| {
            // For zero copies a driver would build its queues anew.
            let socket = Receiver::open_of(Queue { ifindex: link.index, number }, Mode::Copy, RING)?;
            program.sockets.set(number, &socket)?;
            Ok(socket)
        };
        // A device may have fewer queues in use than it was made with; those behind them take no socket.
        let is_in_use = |(number, opened): &(u32, fathom_sys::Result<_>)| {
            *number == 0 || !opened.as_ref().is_err_and(|error| error.errno() == Some(EINVAL))
        };
        let opened = (0..n_queues).map(|number| (number, open(number))).take_while(is_in_use);
        let sockets = opened.map(|(_, opened)| opened).collect::<fathom_sys::Result<Vec<_>>>();
        let unavailable = sockets.as_ref().err().map(ToString::to_string);
        let answers = Answers {
            readers: HashMap::new(),
            heads: slow_path::heads(method),
            counts: Counts::default(),
            times: Times::default(),
            n_refused: 0,
        };
        Self { sockets: sockets.unwrap_or_default(), unavailable, answers }
    }

    /// What the program and user space have counted up to now.
    pub(super) fn counts(&self, program: &LoadProgram) -> Result<Counts, Error> {
        Ok(program.counts().map_err(read_failed)?.plus(&self.answers.counts))
    }

    /// How long things took, in the program and here.
    pub(super) fn times(&self, program: &LoadProgram) -> Result<Times, Error> {
        let mut times = program.times().map_err(read_failed)?;
        times.merge(&self.answers.times);
        Ok(times)
    }

    /// Answers that were followed here to their end.
    pub(super) fn n_answered(&self) -> u64 {
        self.answers.counts.n(Event::Answered)
    }

    /// Frames that found no room, which the server sends again.
    pub(super) fn n_dropped(&self) -> Result<u64, Error> {
        let mut n = self.answers.n_refused;
        for socket in &self.sockets {
            let statistics = socket.statistics().map_err(read_failed)?;
            n += statistics.rx_ring_full.0 + statistics.rx_fill_empty.0;
        }
        Ok(n)
    }

    /// Frames that were too long for the sockets: several segments that GRO here, or TSO of the other end of a veth, joined.
    pub(super) fn n_too_long(&self) -> Result<u64, Error> {
        let mut n = 0;
        for socket in &self.sockets {
            n += socket.statistics().map_err(read_failed)?.rx_dropped.0;
        }
        Ok(n)
    }

    /// Follows what has come.
    pub(super) fn tend(
        &mut self,
        (program, setup): (&LoadProgram, &LoadSetup),
        outbox: &mut Outbox,
    ) -> Result<(), Error> {
        let mut stops = None;
        for socket in &mut self.sockets {
            let mut outcome = Ok(());
            let answers = &mut self.answers;
            let mut look = |frame: &[u8]| -> Result<(), Error> {
                let stops = match stops {
                    Some(stops) => stops,
                    None => *stops.insert(program.is_stopped().map_err(read_failed)?),
                };
                let at = Conditions { now: clock::now().0, stops, rules: setup.rules };
                answers.on_frame(frame, (program, setup), &at, outbox)
            };
            let received = socket.receive(FRAMES_AT_ONCE, |received| {
                if outcome.is_ok() {
                    outcome = look(received.frame);
                }
            });
            received.map_err(read_failed)?;
            outcome?;
        }
        outbox.flush()
    }

    /// Follows what comes until a time; returns the time after it.
    pub(super) fn tend_until(
        &mut self,
        until: Nanos,
        load: (&LoadProgram, &LoadSetup),
        outbox: &mut Outbox,
    ) -> Result<Nanos, Error> {
        loop {
            self.tend(load, outbox)?;
            let now = clock::now();
            let left = until.since(now);
            if left == Nanos::ZERO {
                return Ok(now);
            }
            let sockets: Vec<_> = self.sockets.iter().map(|socket| socket.as_fd()).collect();
            poll_readable(&sockets, left).map_err(read_failed)?;
        }
    }
}

impl Answers {
    fn on_frame(
        &mut self,
        frame: &[u8],
        (program, setup): (&LoadProgram, &LoadSetup),
        at: &Conditions,
        outbox: &mut Outbox,
    ) -> Result<(), Error> {
        let Some(received) = ReceivedSegment::read(frame, setup) else { return Ok(()) };
        let row = program.rows.row(received.slot);
        let mut connection = rows::read(row);
        // The program has the connection again, or it was given up.
        if !connection.is_away || connection.is_taken || connection.port_idx != received.port_idx {
            self.n_refused += 1;
            return Ok(());
        }
        if !self.has_room_for(received.slot, program) {
            self.n_refused += 1;
            return Ok(());
        }
        let reader = self.readers.entry(received.slot).or_default();
        let payload = (&received.segment, received.payload);
        let step = slow_path::follow(&mut connection, (reader, &mut self.heads), payload, at);
        if !connection.is_away {
            self.readers.remove(&received.slot);
        }
        self.count(&step, connection.is_measured || !setup.rules.is_open_load);
        rows::write_away(row, &connection);
        if step.send != Send::Nothing {
            let from = setup.slots.place(received.slot, connection.port_idx);
            outbox.push(setup.ends.frame(&step, from))?;
        }
        Ok(())
    }

    /// Whether one more answer can be followed. Readers whose connection was given up are forgotten first.
    fn has_room_for(&mut self, slot: u32, program: &LoadProgram) -> bool {
        if self.readers.len() >= ANSWERS_MAX && !self.readers.contains_key(&slot) {
            self.readers.retain(|slot, _| rows::read(program.rows.row(*slot)).is_away);
        }
        self.readers.len() < ANSWERS_MAX || self.readers.contains_key(&slot)
    }

    fn count(&mut self, step: &Step, is_timed: bool) {
        self.counts.add_events(step.events);
        if !is_timed {
            return;
        }
        // As in the program.
        let capped = |time: u64| time.min(histogram::last_middle());
        if step.events.has(Event::Begun) {
            self.times.first_byte.record(capped(step.to_first));
        }
        if step.events.has(Event::Answered) {
            self.times.last_byte.record(capped(step.elapsed));
        }
    }
}

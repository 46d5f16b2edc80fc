//! The reactor over `epoll(7)`: one notification per change, one call per transfer.
//!
//! A socket is registered once, edge-triggered and for both directions. A send happens in the requesting call, and only bytes that do not
//! fit are kept. Bytes are received when [`Reactor::next`] gets to them, all into one buffer.

use std::{collections::VecDeque, os::fd::OwnedFd};

use fathom_model::units::{Bytes, Nanos};
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, EventFlags},
    io::Errno,
    net::SocketFlags,
    time::Timespec,
};

use super::{Completion, Event, FixedBuffer, Reactor, ReceivedBytes, Token, WaitLimit};
use crate::{
    Error, Result, clock,
    policy::{AllowedPeers, Destination},
    socket::{
        self, Domain, Listener, Socket, Wait, listener,
        timestamping::{self, KernelClockOffset},
    },
};

/// One receive can take all bytes that a connection has waiting: a large body needs few calls, and the buffer fits into an L2 cache.
const BUFFER: usize = 256 * 1024;
/// Events per wait: enough that the wait is a small part of their cost, few enough that times are not stale.
const EVENTS: usize = 512;
/// Transfers per event, so that one fast sender does not delay the others.
const TURN: u8 = 4;
/// The maximum size of one discarding receive; its count must fit the signed result of the call.
const DISCARD: u64 = 1 << 30;

/// The reactor for every kernel with `epoll_pwait2` (Linux 5.11).
///
/// If it is `STAMPED`, completions of receives carry the kernel's arrival time of the bytes, and [`Reactor::departed`] returns the
/// departure time of sends; each costs one more system call.
pub struct Epoll<const STAMPED: bool = false> {
    list: OwnedFd,
    slots: Vec<SocketSlot>,
    fixed: Vec<Box<[u8]>>,
    events: Vec<epoll::Event>,
    /// The number of `events` already processed.
    n_done: usize,
    /// The socket that currently receives.
    turn: Option<ReceiveTurn>,
    /// Sockets with more data than one turn; they continue after the next wait.
    cut: VecDeque<ReceiveTurn>,
    /// The number of entries in `cut` that may continue before that.
    n_cut_now: usize,
    /// Completions that need no receive, with the generation that they belong to.
    known: VecDeque<(u32, Completion)>,
    buffer: Box<[u8]>,
    buffer_is_out: bool,
    /// The offset between the kernel's timestamps and the clock of completions.
    epoch: KernelClockOffset,
    /// The timestamp of the last received bytes.
    arrived: Option<Nanos>,
}

/// An [`Epoll`] that uses the times on the wire (`SO_TIMESTAMPING`), for established TCP sockets.
pub type StampedEpoll = Epoll<true>;

/// The socket of one token.
#[derive(Default)]
struct SocketSlot {
    socket: Option<Socket>,
    /// The peers that a listener lets in, if the kernel does not keep all others away.
    check: Option<Box<AllowedPeers>>,
    /// Counts the sockets of this slot; an event of an earlier one is stale.
    generation: u32,
    stage: SocketStage,
    /// `AF_UNIX` copies even with `MSG_TRUNC`.
    is_local: bool,
    n_discard: u64,
    /// What did not fit into the kernel's buffer.
    #[expect(clippy::box_collection, reason = "few of many slots ever have it, and the others should stay small")]
    unsent: Option<Box<VecDeque<Unsent>>>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum SocketStage {
    /// No socket, or a failed one.
    #[default]
    Dead,
    Connecting,
    Listening,
    Open,
    /// The peer has finished sending; only sending continues.
    Ended,
}

/// Bytes waiting for room in the kernel.
struct Unsent {
    bytes: Waiting,
    n_sent: usize,
}

enum Waiting {
    Fixed(FixedBuffer),
    Copied(Box<[u8]>),
    /// Like `Copied`, but only a failure is reported.
    Untold(Box<[u8]>),
}

/// One socket's turn to receive.
#[derive(Clone, Copy)]
struct ReceiveTurn {
    token: Token,
    generation: u32,
    n_left: u8,
    /// The event reported the end of the stream, and no further event will follow.
    to_the_end: bool,
}

impl ReceiveTurn {
    fn new(token: Token, generation: u32) -> Self {
        Self { token, generation, n_left: TURN, to_the_end: false }
    }
}

impl<const STAMPED: bool> Epoll<STAMPED> {
    /// The token's live slot.
    fn slot(&mut self, token: Token) -> &mut SocketSlot {
        let slot = self.slots.get_mut(token.index()).filter(|slot| slot.socket.is_some());
        slot.expect("a token is in use from connect, adopt or listen until close")
    }

    fn occupy(&mut self, token: Token, socket: Socket, stage: SocketStage) -> &mut SocketSlot {
        if self.slots.len() <= token.index() {
            self.slots.resize_with(token.index() + 1, SocketSlot::default);
        }
        let slot = &mut self.slots[token.index()];
        assert!(slot.socket.is_none(), "token {} is in use", token.0);
        *slot = SocketSlot { socket: Some(socket), generation: slot.generation, stage, ..SocketSlot::default() };
        slot
    }

    /// Registers the token's socket permanently for all events.
    fn register(&mut self, token: Token) {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let slot = &self.slots[token.index()];
        let data = epoll::EventData::new_u64(u64::from(slot.generation) << 32 | u64::from(token.0));
        let socket = slot.socket.as_ref().expect("the slot was just occupied");
        if let Err(error) = epoll::add(&self.list, socket, data, flags) {
            self.fail(token, Error::new("epoll_ctl(EPOLL_CTL_ADD)", error));
        }
    }

    /// Enables timestamps of sends and receives; a socket without support uses the clock.
    fn stamp(&mut self, token: Token) {
        let slot = &self.slots[token.index()];
        if let (true, false, Some(socket)) = (STAMPED, slot.is_local, &slot.socket) {
            // The only refusal is for a connection that has broken already, which its next event tells.
            let _ = timestamping::enable(socket);
        }
    }

    fn know(&mut self, token: Token, event: Event) {
        let generation = self.slots[token.index()].generation;
        self.known.push_back((generation, Completion { token, at: clock::now(), event }));
    }

    fn fail(&mut self, token: Token, error: Error) {
        let slot = self.slot(token);
        slot.stage = SocketStage::Dead;
        slot.unsent = None;
        self.know(token, Event::Failed(error));
    }

    /// Passes bytes to the kernel and returns the number it accepted; zero if earlier bytes still wait.
    fn try_send(&mut self, token: Token, bytes: &[u8]) -> Result<usize> {
        let slot = self.slot(token);
        if slot.unsent.is_some() {
            return Ok(0);
        }
        let socket = slot.socket.as_ref().expect("a live slot has a socket");
        Ok(socket::send(socket, bytes, Wait::Never)?.unwrap_or(0))
    }

    /// Sends bytes now and keeps the rest for later, in the form given by `rest`; returns whether the kernel accepted all of them.
    fn hand_over(&mut self, token: Token, bytes: &[u8], rest: impl FnOnce(Box<[u8]>) -> Waiting) -> bool {
        if self.slot(token).stage == SocketStage::Dead {
            return false;
        }
        match self.try_send(token, bytes) {
            Ok(count) if count == bytes.len() => return true,
            Ok(count) => self.keep(token, Unsent { bytes: rest(bytes[count..].into()), n_sent: 0 }),
            Err(error) => self.fail(token, error),
        }
        false
    }

    fn keep(&mut self, token: Token, unsent: Unsent) {
        self.slot(token).unsent.get_or_insert_default().push_back(unsent);
    }

    /// Sends waiting bytes as far as the kernel has room now.
    fn flush(&mut self, token: Token) {
        loop {
            let slot = &mut self.slots[token.index()];
            let (Some(socket), Some(unsent)) = (&slot.socket, &mut slot.unsent) else { return };
            let Some(first) = unsent.front_mut() else {
                slot.unsent = None;
                return;
            };
            let bytes = match &first.bytes {
                Waiting::Fixed(fixed) => &self.fixed[fixed.index()],
                Waiting::Copied(bytes) | Waiting::Untold(bytes) => bytes,
            };
            match socket::send(socket, &bytes[first.n_sent..], Wait::Never) {
                Ok(None) => return,
                Ok(Some(count)) if first.n_sent + count < bytes.len() => first.n_sent += count,
                Ok(Some(_)) => {
                    let done = unsent.pop_front();
                    if done.is_some_and(|done| matches!(done.bytes, Waiting::Copied(_))) {
                        self.know(token, Event::Sent);
                    }
                }
                Err(error) => return self.fail(token, error),
            }
        }
    }

    /// Processes one kernel event, and gives the socket its turn to receive.
    fn begin(&mut self, event: epoll::Event) {
        let (data, flags) = (event.data.u64(), event.flags);
        let token = Token(u32::try_from(data & u64::from(u32::MAX)).expect("it is masked"));
        let generation = u32::try_from(data >> 32).expect("32 bits are left");
        let slot = &mut self.slots[token.index()];
        if slot.generation != generation || slot.stage == SocketStage::Dead {
            return;
        }
        if slot.stage == SocketStage::Connecting {
            let socket = slot.socket.as_ref().expect("a live slot has a socket");
            match socket::connect_result(socket) {
                Ok(()) => slot.stage = SocketStage::Open,
                Err(error) => return self.fail(token, error),
            }
            self.stamp(token);
            self.know(token, Event::Connected);
        } else if flags.contains(EventFlags::OUT) {
            self.flush(token);
        }
        let to_the_end = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        if to_the_end || flags.contains(EventFlags::IN) {
            self.turn = Some(ReceiveTurn { to_the_end, ..ReceiveTurn::new(token, generation) });
        }
    }

    /// Runs one receive or accept for the socket whose turn it is.
    fn take(&mut self, turn: ReceiveTurn) -> Option<Completion> {
        let token = turn.token;
        let stage = self.slots.get(token.index()).filter(|slot| slot.generation == turn.generation)?.stage;
        if !matches!(stage, SocketStage::Open | SocketStage::Listening) {
            return None;
        }
        if turn.n_left == 0 {
            self.cut.push_back(ReceiveTurn { n_left: TURN, ..turn });
            return None;
        }
        let outcome = if stage == SocketStage::Listening { self.accept(turn) } else { self.receive(turn) };
        let event = match outcome {
            Ok(event) => event?,
            Err(error) => {
                self.fail(token, error);
                return None;
            }
        };
        Some(Completion { token, at: self.arrived.take().unwrap_or_else(clock::now), event })
    }

    fn go_on(&mut self, turn: ReceiveTurn) {
        self.turn = Some(ReceiveTurn { n_left: turn.n_left - 1, ..turn });
    }

    fn receive(&mut self, turn: ReceiveTurn) -> Result<Option<Event>> {
        let slot = &mut self.slots[turn.token.index()];
        let socket = slot.socket.as_ref().expect("a live slot has a socket");
        let n_discard = slot.n_discard;
        let (wanted, received) = if STAMPED && !slot.is_local {
            let wanted = if n_discard == 0 { BUFFER } else { usize::try_from(n_discard).unwrap_or(BUFFER).min(BUFFER) };
            let arrival = timestamping::recv(socket, &mut self.buffer[..wanted], Wait::Never)?;
            self.arrived = arrival.and_then(|arrival| arrival.at).and_then(|at| self.epoch.of_packet(at));
            (wanted, arrival.map(|arrival| arrival.n_bytes))
        } else if n_discard == 0 {
            (BUFFER, socket::recv(socket, &mut self.buffer, Wait::Never)?)
        } else if slot.is_local {
            let wanted = usize::try_from(n_discard).unwrap_or(BUFFER).min(BUFFER);
            (wanted, socket::recv(socket, &mut self.buffer[..wanted], Wait::Never)?)
        } else {
            let wanted = usize::try_from(n_discard.min(DISCARD)).expect("it is bounded by a gigabyte");
            (wanted, socket::discard(socket, Bytes(n_discard.min(DISCARD)), Wait::Never)?)
        };
        let Some(received) = received else { return Ok(None) };
        if received == 0 {
            slot.stage = SocketStage::Ended;
            return Ok(Some(Event::Ended));
        }
        // A short read means that no bytes are left and that the kernel will report new ones, so the receive that would only return EAGAIN
        // is saved.
        if received == wanted || turn.to_the_end {
            self.go_on(turn);
        }
        if n_discard > 0 {
            let count = u64::try_from(received).expect("a size fits 64 bits");
            self.slots[turn.token.index()].n_discard -= count;
            return Ok(Some(Event::Discarded(count)));
        }
        self.buffer_is_out = true;
        let length = u32::try_from(received).expect("a receive is bounded by the buffer");
        Ok(Some(Event::Received(ReceivedBytes { buffer: 0, start: 0, length })))
    }

    fn accept(&mut self, turn: ReceiveTurn) -> Result<Option<Event>> {
        let slot = self.slot(turn.token);
        let listener = slot.socket.as_ref().expect("a live slot has a socket");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match listener::accept_checked(listener, slot.check.as_deref(), flags) {
            // After a stranger the next one may be waiting.
            Ok(accepted) => {
                self.go_on(turn);
                Ok(accepted.map(Event::Accepted))
            }
            Err(Errno::AGAIN) => Ok(None),
            // The peer has given up; the next one may be waiting.
            Err(Errno::CONNABORTED | Errno::INTR) => {
                self.go_on(turn);
                Ok(None)
            }
            Err(error) => Err(Error::new("accept4", error)),
        }
    }

    /// Waits at most `span` for events and appends them.
    fn collect(&mut self, span: Nanos) -> Result<()> {
        // A span beyond the kernel's range (292 years) is treated as unlimited.
        let timeout = Timespec::try_from(span.as_duration()).ok();
        match epoll::wait(&self.list, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::new("epoll_pwait2", error)),
        }
    }

    fn has_work(&self) -> bool {
        self.n_done < self.events.len() || self.turn.is_some() || !self.known.is_empty()
    }
}

impl<const STAMPED: bool> Reactor for Epoll<STAMPED> {
    const NAME: &'static str = "epoll";

    fn new(n_connections: u32) -> Result<Self> {
        // The waits of a batch are as short as the default timer slack.
        clock::sleep_finely();
        let list = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| Error::new("epoll_create1", error))?;
        Ok(Self {
            list,
            slots: Vec::with_capacity(Token(n_connections).index()),
            fixed: Vec::new(),
            events: Vec::with_capacity(EVENTS),
            n_done: 0,
            turn: None,
            cut: VecDeque::new(),
            n_cut_now: 0,
            known: VecDeque::new(),
            buffer: vec![0; BUFFER].into_boxed_slice(),
            buffer_is_out: false,
            epoch: KernelClockOffset::now(),
            arrived: None,
        })
    }

    fn batches(&self) -> bool {
        true
    }

    fn fix(&mut self, bytes: Vec<u8>) -> FixedBuffer {
        self.fixed.push(bytes.into_boxed_slice());
        FixedBuffer(u32::try_from(self.fixed.len() - 1).expect("there are few fixed requests"))
    }

    fn connect(&mut self, token: Token, socket: Socket, to: &Destination) {
        let begun = socket::connect_begin(&socket, to);
        self.occupy(token, socket, SocketStage::Connecting).is_local = to.raw().domain() == Domain::UNIX;
        match begun {
            // Register only now: a socket that is not yet connecting counts as hung up.
            Ok(_) => self.register(token),
            Err(error) => self.fail(token, error),
        }
    }

    fn adopt(&mut self, token: Token, socket: Socket) {
        let is_local = socket.domain().is_ok_and(|domain| domain == Domain::UNIX);
        self.occupy(token, socket, SocketStage::Open).is_local = is_local;
        self.stamp(token);
        self.register(token);
    }

    fn listen(&mut self, token: Token, listener: Listener) {
        let (socket, check) = listener.into_parts();
        self.occupy(token, socket, SocketStage::Listening).check = check;
        self.register(token);
    }

    fn send_fixed(&mut self, token: Token, bytes: FixedBuffer) {
        let slot = self.slot(token);
        let (stage, must_wait) = (slot.stage, slot.unsent.is_some());
        if stage == SocketStage::Dead {
            return;
        }
        let n_sent = if must_wait {
            Ok(0)
        } else {
            let socket = self.slots[token.index()].socket.as_ref().expect("a live slot has a socket");
            socket::send(socket, &self.fixed[bytes.index()], Wait::Never).map(Option::unwrap_or_default)
        };
        match n_sent {
            Ok(count) if count == self.fixed[bytes.index()].len() => {}
            Ok(n_sent) => self.keep(token, Unsent { bytes: Waiting::Fixed(bytes), n_sent }),
            Err(error) => self.fail(token, error),
        }
    }

    fn send(&mut self, token: Token, bytes: &[u8]) {
        if self.hand_over(token, bytes, Waiting::Copied) {
            self.know(token, Event::Sent);
        }
    }

    fn send_quietly(&mut self, token: Token, bytes: &[u8]) {
        self.hand_over(token, bytes, Waiting::Untold);
    }

    fn discard(&mut self, token: Token, count: u64) {
        let slot = self.slot(token);
        slot.n_discard = slot.n_discard.saturating_add(count);
    }

    fn close(&mut self, token: Token) {
        if let Some(slot) = self.slots.get_mut(token.index()).filter(|slot| slot.socket.is_some()) {
            *slot = SocketSlot { generation: slot.generation.wrapping_add(1), ..SocketSlot::default() };
        }
    }

    fn abandon(self) {
        self.slots.iter().filter_map(|slot| slot.socket.as_ref()).for_each(socket::abort);
    }

    fn socket(&self, token: Token) -> Option<&Socket> {
        self.slots.get(token.index())?.socket.as_ref()
    }

    fn departed(&mut self, token: Token) -> Option<Nanos> {
        let socket = self.slots.get(token.index()).filter(|_| STAMPED)?.socket.as_ref()?;
        // A stamp that cannot be read is one that there is not.
        let departures = std::iter::from_fn(|| timestamping::departure(socket).ok().flatten());
        departures.last().and_then(|departure| self.epoch.of_packet(departure.at))
    }

    fn wait(&mut self, patience: WaitLimit) -> Result<()> {
        if self.has_work() {
            return Ok(());
        }
        let begin = clock::now();
        let span = if self.cut.is_empty() { patience.until.since(begin) } else { Nanos::ZERO };
        self.n_cut_now = self.cut.len();
        self.n_done = 0;
        self.events.clear();
        self.collect(span)?;
        let Some(batch) = patience.batch else { return Ok(()) };
        let is_few = !self.events.is_empty() && self.events.len() < Token(batch.n).index();
        let until = patience.until.min(begin + batch.within);
        if is_few && self.cut.is_empty() && clock::now() < until {
            // The kernel ends a wait at the first event, so the rest of the batch is awaited in a sleep, which saves the waits in between.
            clock::sleep_until(until);
            self.collect(Nanos::ZERO)?;
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        assert!(!self.buffer_is_out, "a piece must be released before the next completion");
        loop {
            if let Some((generation, completion)) = self.known.pop_front() {
                if self.slots[completion.token.index()].generation == generation {
                    return Some(completion);
                }
            } else if let Some(turn) = self.turn.take() {
                if let Some(completion) = self.take(turn) {
                    return Some(completion);
                }
            } else if let Some(&event) = self.events.get(self.n_done) {
                self.n_done += 1;
                self.begin(event);
            } else if self.n_cut_now > 0 {
                self.n_cut_now -= 1;
                self.turn = self.cut.pop_front();
            } else {
                return None;
            }
        }
    }

    fn bytes(&self, piece: &ReceivedBytes) -> &[u8] {
        &self.buffer[..piece.length as usize]
    }

    fn release(&mut self, _: ReceivedBytes) {
        self.buffer_is_out = false;
    }
}

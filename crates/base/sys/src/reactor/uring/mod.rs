//! The reactor over `io_uring`: operations are queued, and one call submits them and waits.
//!
//! Each socket receives through one persistent request (multishot) into buffers that the kernel picks when bytes arrive. To discard bytes,
//! or if bytes keep filling whole buffers, the socket switches to single receives, which can leave the bytes in the kernel (`MSG_TRUNC`) or
//! take many at once. Fixed bytes are sent without confirmation.

mod flight;
mod memory;
mod ring;

use std::{
    collections::VecDeque,
    io,
    marker::PhantomData,
    mem::ManuallyDrop,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    os::unix::net::UnixStream,
};

use fathom_model::units::Nanos;
use io_uring::{cqueue, opcode, squeue, types::Fd};

use self::{
    flight::{
        Bytes, QueuedBytes, SendCopies, SendInFlight, SendQueue, SendStage as Sending, SendsInFlight, SilentSend,
    },
    memory::{BufferPool, block},
    ring::{GENERATIONS, RequestKind, RequestTag, Ring, SocketEnd, error},
};
use super::{Completion, Event, FixedBuffer, Reactor, ReceivedBytes, Token, WaitLimit};
use crate::{
    Error, Result, clock,
    mapping::Mapping,
    policy::{AllowedPeers, Destination},
    socket::{self, Domain, Listener, Socket, listener},
};

/// The buffers of multishot receives: a head and a small body fit. Few of them, because they are used in turn and should stay in the cache.
const SMALL: (u16, usize) = (256, 4096);
/// The buffers for a socket that filled several small ones in a row.
const LARGE: (u16, usize) = (16, 64 * 1024);
/// The kernel's ids of the two groups.
const SMALL_GROUP: u16 = 0;
const LARGE_GROUP: u16 = 1;
/// The number of full buffers in a row after which a transfer counts as bulk.
const BULK: u8 = 4;
/// The number of single receives before a socket returns to multishot: the switch costs about one receive.
const ROUNDS: u8 = 32;
/// Up to this size, discarded bytes are received into buffers, because switching requests costs more than the copy.
const COPIED_DISCARD: u64 = 16 * 1024;
/// The maximum number of bytes that one request discards; its count must fit the signed result of a completion.
const DISCARD: u64 = 1 << 30;
/// The maximum size of one send request: the kernel retries it whenever there is room, and after 128 retries in a kernel thread.
const FLIGHT: usize = 1 << 20;
/// Sends up to this size go unconfirmed if the caller wants no confirmation: the kernel has room once everything before is answered.
const UNCONFIRMED: usize = 4096;
/// After all sockets have ended, the longest time without an ending request; the few that are left then are cancelled.
const SETTLING: Nanos = Nanos::from_millis(100);
/// How long a dropped reactor waits for the kernel to release its memory.
const PARTING: Nanos = Nanos::from_secs(2);

/// The reactor for Linux 6.1 and later, if `io_uring` is allowed.
pub struct Uring {
    ring: Ring,
    lent: ManuallyDrop<KernelMemory>,
    slots: Vec<SocketSlot>,
    /// Tokens that need another request for their receives.
    stale: Vec<Token>,
    /// Completions that did not come from the kernel, with the generation that they belong to.
    known: VecDeque<(u32, Completion)>,
    /// The rest of a buffer whose beginning was discarded.
    rest: Option<(Token, u32, ReceivedBytes)>,
    /// The time at which the last wait returned.
    at: Nanos,
    /// The number of requests whose end the kernel will report.
    n_under_way: usize,
    piece_is_out: bool,
    /// The kernel accepts requests from one thread only.
    stays: PhantomData<*const ()>,
}

/// All memory that the kernel may read or write at any time.
struct KernelMemory {
    small: BufferPool,
    large: BufferPool,
    /// The target of discards on Unix sockets; never read.
    scratch: Mapping,
    fixed: Vec<Box<[u8]>>,
    copies: SendCopies,
    flights: SendsInFlight,
}

/// The socket of one token.
#[derive(Default)]
struct SocketSlot {
    socket: Option<Socket>,
    /// The peers that a listener lets in, if the kernel does not keep all others away.
    check: Option<Box<AllowedPeers>>,
    generation: u32,
    stage: SocketStage,
    receiving: ReceiveRequest,
    is_stale: bool,
    is_cancelling: bool,
    is_local: bool,
    /// The number of single receives before the next multishot.
    n_single: u8,
    /// Full buffers in a row.
    n_full: u8,
    n_discard: u64,
    /// An unconfirmed send whose result is still unknown.
    unconfirmed: Option<SilentSend>,
    outbox: Option<Box<SendQueue>>,
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

/// The current request for incoming data.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ReceiveRequest {
    #[default]
    Nothing,
    Connect,
    Accept,
    Staying,
    Single,
    Discard,
}

impl ReceiveRequest {
    fn kind(self) -> RequestKind {
        match self {
            Self::Connect => RequestKind::Connect,
            Self::Accept => RequestKind::Accept,
            Self::Nothing | Self::Staying | Self::Single | Self::Discard => RequestKind::Receive,
        }
    }
}

/// The completions that a wait on this kernel can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitMode {
    /// The first completion: Linux before 6.12.
    OneCompletion,
    /// Several completions, with a bound on the time.
    SeveralCompletions,
}

/// Checks whether this kernel supports such a ring with multishot receives, and returns the mode of its waits.
///
/// This detects old kernels, `kernel.io_uring_disabled` and seccomp filters of containers before a run.
///
/// # Errors
/// The call that failed, usually `io_uring_setup`: `EINVAL` before Linux 6.1, `EPERM` or `ENOSYS` if it is forbidden.
pub fn is_allowed() -> Result<WaitMode> {
    let pair = UnixStream::pair().and_then(|(near, far)| near.set_nonblocking(true).map(|()| (near, far)));
    let (near, far) = pair.map_err(|error| Error::new("socketpair", error))?;
    let mut reactor = Uring::new(1)?;
    reactor.adopt(Token(0), OwnedFd::from(near).into());
    let until = clock::now() + Nanos::from_secs(1);
    for _ in 0..2 {
        io::Write::write_all(&mut &far, b"x").map_err(|error| Error::new("send", error))?;
        reactor.wait(WaitLimit { until, batch: None })?;
        match reactor.next().map(|completion| completion.event) {
            Some(Event::Received(piece)) => reactor.release(piece),
            Some(Event::Failed(error)) => return Err(error),
            _ => return Err(Error::new("io_uring_enter", io::Error::from(io::ErrorKind::TimedOut))),
        }
    }
    if reactor.slots[0].receiving == ReceiveRequest::Staying {
        Ok(if reactor.batches() { WaitMode::SeveralCompletions } else { WaitMode::OneCompletion })
    } else {
        Err(Error::new("io_uring_enter(IORING_RECV_MULTISHOT)", io::Error::from(io::ErrorKind::Unsupported)))
    }
}

impl Uring {
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

    fn ticket(&self, token: Token, kind: RequestKind) -> RequestTag {
        RequestTag { kind, generation: self.slots[token.index()].generation, place: token.0 }
    }

    fn fd(&self, token: Token) -> Fd {
        Fd(self.slots[token.index()].socket.as_ref().expect("a live slot has a socket").as_raw_fd())
    }

    /// Queues a request whose end will be reported.
    fn begin(&mut self, request: squeue::Entry, ticket: RequestTag) {
        self.n_under_way += 1;
        // SAFETY: requests point only into `lent`, which is kept until the kernel has released all of them.
        unsafe { self.ring.push(&request.user_data(ticket.bits())) };
    }

    fn know(&mut self, token: Token, event: Event) {
        let generation = self.slots[token.index()].generation;
        self.known.push_back((generation, Completion { token, at: self.at, event }));
    }

    fn fail(&mut self, token: Token, error: Error) {
        let slot = self.slot(token);
        if slot.stage != SocketStage::Dead {
            slot.stage = SocketStage::Dead;
            self.know(token, Event::Failed(error));
        }
    }

    /// Marks the receives of a token for a check before the next wait.
    fn mark(&mut self, token: Token) {
        let slot = &mut self.slots[token.index()];
        if !slot.is_stale {
            slot.is_stale = true;
            self.stale.push(token);
        }
    }

    /// Gives every marked token the request that it needs now.
    fn refresh(&mut self) {
        while let Some(token) = self.stale.pop() {
            let slot = &mut self.slots[token.index()];
            slot.is_stale = false;
            match (slot.stage, slot.receiving) {
                (SocketStage::Open, ReceiveRequest::Nothing) => self.receive(token),
                (SocketStage::Open, ReceiveRequest::Staying) if slot.n_single > 0 && !slot.is_cancelling => {
                    slot.is_cancelling = true;
                    let ticket = self.ticket(token, RequestKind::Receive);
                    self.ring.push_cancel(ticket, RequestTag { kind: RequestKind::Cancel, ..ticket });
                }
                (SocketStage::Listening, ReceiveRequest::Nothing) => self.accept(token),
                _ => {}
            }
        }
    }

    fn accept(&mut self, token: Token) {
        self.slots[token.index()].receiving = ReceiveRequest::Accept;
        let request = opcode::AcceptMulti::new(self.fd(token)).flags(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        self.begin(request.build(), self.ticket(token, RequestKind::Accept));
    }

    /// Starts the receive that suits the recent traffic of the socket.
    fn receive(&mut self, token: Token) {
        /// `IORING_RECVSEND_POLL_FIRST`: no bytes are expected yet, so do not try at once.
        const POLL_FIRST: u16 = 1;
        let fd = self.fd(token);
        let slot = &mut self.slots[token.index()];
        let (receiving, request) = if slot.n_single == 0 {
            (ReceiveRequest::Staying, opcode::RecvMulti::new(fd, SMALL_GROUP).build())
        } else if slot.n_discard > 0 {
            let (place, most, flags) = if slot.is_local {
                (self.lent.scratch.at(0).as_ptr(), self.lent.scratch.size() as u64, libc::MSG_WAITALL)
            } else {
                // Without MSG_WAITALL: nothing is copied, so a restarted request would ask for all of its bytes again.
                (std::ptr::null_mut(), DISCARD, libc::MSG_TRUNC)
            };
            let count = u32::try_from(slot.n_discard.min(most)).expect("it is bounded by a gigabyte");
            (ReceiveRequest::Discard, opcode::Recv::new(fd, place, count).flags(flags).build())
        } else {
            let (group, size) = if slot.n_full > 0 { (LARGE_GROUP, LARGE.1) } else { (SMALL_GROUP, SMALL.1) };
            let size = u32::try_from(size).expect("a buffer is far smaller");
            let request = opcode::Recv::new(fd, std::ptr::null_mut(), size).buf_group(group);
            let request = request.ioprio(if slot.n_full > 0 { 0 } else { POLL_FIRST });
            (ReceiveRequest::Single, request.build().flags(squeue::Flags::BUFFER_SELECT))
        };
        slot.receiving = receiving;
        self.begin(request, self.ticket(token, RequestKind::Receive));
    }

    /// Processes a completion of the kernel.
    fn digest(&mut self, entry: &cqueue::Entry) -> Option<Completion> {
        let ticket = RequestTag::from_bits(entry.user_data());
        if ticket.kind == RequestKind::Flight {
            self.n_under_way -= 1;
            self.land(ticket.place, entry.result());
            return None;
        }
        let is_over = !cqueue::more(entry.flags());
        if is_over && matches!(ticket.kind, RequestKind::Receive | RequestKind::Accept | RequestKind::Connect) {
            self.n_under_way -= 1;
        }
        let token = Token(ticket.place);
        let slot = self.slots.get_mut(token.index()).filter(|slot| slot.generation == ticket.generation);
        let Some(slot) = slot.filter(|slot| slot.stage != SocketStage::Dead) else {
            self.drop_unwanted(ticket.kind, entry);
            return None;
        };
        let event = match ticket.kind {
            RequestKind::Receive => {
                let receiving = slot.receiving;
                if is_over {
                    (slot.receiving, slot.is_cancelling) = (ReceiveRequest::Nothing, false);
                    self.mark(token);
                }
                self.received(token, receiving, entry)
            }
            RequestKind::Accept => {
                if is_over {
                    slot.receiving = ReceiveRequest::Nothing;
                    self.mark(token);
                }
                self.accepted(token, entry.result())
            }
            RequestKind::Connect => {
                slot.receiving = ReceiveRequest::Nothing;
                self.connected(token, entry.result())
            }
            RequestKind::Send => {
                self.returned(token, entry.result());
                None
            }
            RequestKind::Probe => {
                self.probed(token, entry.result());
                None
            }
            RequestKind::Flight | RequestKind::Cancel => None,
        };
        event.map(|event| Completion { token, at: self.at, event })
    }

    /// Releases the resources of an unwanted completion.
    fn drop_unwanted(&mut self, kind: RequestKind, entry: &cqueue::Entry) {
        if let (RequestKind::Receive, Some(id)) = (kind, cqueue::buffer_select(entry.flags())) {
            // The group of a closed socket's buffer is no longer known, but its id shows it.
            self.give(u32::from(id));
        }
        if kind == RequestKind::Accept && entry.result() >= 0 {
            drop(owned(entry.result()));
        }
    }

    fn give(&mut self, buffer: u32) {
        let id = u16::try_from(buffer).expect("buffers have 16-bit numbers");
        if id < SMALL.0 { self.lent.small.give(id) } else { self.lent.large.give(id) }
    }

    fn connected(&mut self, token: Token, result: i32) -> Option<Event> {
        if result < 0 {
            self.fail(token, error("connect", result));
            return None;
        }
        self.slot(token).stage = SocketStage::Open;
        self.mark(token);
        Some(Event::Connected)
    }

    fn accepted(&mut self, token: Token, result: i32) -> Option<Event> {
        if result >= 0 {
            // A multishot accept tells no addresses. A connection that has none any more is no loss: its peer has given up.
            let from = |socket: &Socket| socket.peer_addr().ok()?.as_socket();
            let check = self.slot(token).check.as_deref();
            return listener::let_in(check, owned(result).into(), from).map(Event::Accepted);
        }
        // The listener continues after these: the peer has given up, or the request must be restarted.
        if !matches!(-result, libc::ECONNABORTED | libc::EINTR | libc::EAGAIN | libc::ECANCELED) {
            self.fail(token, error("accept4", result));
        }
        None
    }

    fn received(&mut self, token: Token, by: ReceiveRequest, entry: &cqueue::Entry) -> Option<Event> {
        let id = cqueue::buffer_select(entry.flags()).map(u32::from);
        let Ok(count @ 1..) = u32::try_from(entry.result()) else {
            if let Some(id) = id {
                self.give(id);
            }
            return self.not_received(token, entry.result());
        };
        let slot = self.slot(token);
        // The peer answers: what was sent has reached it.
        slot.unconfirmed = None;
        let Some(buffer) = id else {
            // It was discarded. What follows it is not known to be large.
            (slot.n_full, slot.n_discard) = (0, slot.n_discard.saturating_sub(count.into()));
            return Some(Event::Discarded(count.into()));
        };
        let is_full = count as usize >= SMALL.1;
        slot.n_full = if is_full { slot.n_full.saturating_add(1) } else { 0 };
        if by == ReceiveRequest::Staying && slot.n_full >= BULK {
            slot.n_single = ROUNDS;
            self.mark(token);
        } else if by == ReceiveRequest::Single && !is_full {
            slot.n_single = slot.n_single.saturating_sub(1);
        }
        Some(self.deliver(token, ReceivedBytes { buffer, start: 0, length: count }))
    }

    /// Splits a piece into the part to discard and the rest.
    fn deliver(&mut self, token: Token, mut piece: ReceivedBytes) -> Event {
        let slot = self.slot(token);
        let n_discard = u32::try_from(slot.n_discard).unwrap_or(u32::MAX).min(piece.length);
        if n_discard == 0 {
            self.piece_is_out = true;
            return Event::Received(piece);
        }
        slot.n_discard -= u64::from(n_discard);
        piece.start += n_discard;
        piece.length -= n_discard;
        if piece.length == 0 {
            self.give(piece.buffer);
        } else {
            let generation = slot.generation;
            self.rest = Some((token, generation, piece));
        }
        Event::Discarded(n_discard.into())
    }

    fn not_received(&mut self, token: Token, result: i32) -> Option<Event> {
        match -result {
            0 => {
                self.slot(token).stage = SocketStage::Ended;
                Some(Event::Ended)
            }
            // The request must be restarted: buffers had run out, or a different kind of receive is needed.
            libc::ENOBUFS | libc::ECANCELED | libc::EINTR | libc::EAGAIN => None,
            _ => {
                self.fail(token, error("recv", result));
                None
            }
        }
    }

    /// Handles the completion of an unconfirmed send: it failed, or it was canceled to learn its progress.
    fn returned(&mut self, token: Token, result: i32) {
        let slot = self.slot(token);
        let is_probing = slot.outbox.as_ref().is_some_and(|outbox| outbox.stage == Sending::Probing);
        let Some(unconfirmed) = slot.unconfirmed.take() else { return self.fail(token, send_error(result)) };
        let is_cancelled = result >= 0 || result == -libc::ECANCELED;
        if !is_probing || !is_cancelled {
            return self.fail(token, send_error(result));
        }
        let n_sent = usize::try_from(result).unwrap_or(0);
        let bytes = match unconfirmed {
            SilentSend::Fixed(fixed) => Bytes::Fixed(fixed),
            SilentSend::Copied => Bytes::Copied(self.lent.copies.at(token).to_vec()),
        };
        let outbox = self.slot(token).outbox.as_mut().expect("it is probing");
        outbox.stage = Sending::Idle;
        outbox.queue.push_front(QueuedBytes { bytes, n_sent, n_told: 0 });
        self.launch(token);
    }

    /// Handles the answer to a probe of an unconfirmed send.
    fn probed(&mut self, token: Token, result: i32) {
        match -result {
            // It has finished, and would have reported a failure.
            libc::ENOENT => {
                let slot = self.slot(token);
                slot.unconfirmed = None;
                if let Some(outbox) = slot.outbox.as_mut().filter(|outbox| outbox.stage == Sending::Probing) {
                    outbox.stage = Sending::Idle;
                    self.launch(token);
                }
            }
            // It was in progress, and its completion reports how much was sent.
            0 => {}
            // It is running; ask again.
            _ => self.probe(token),
        }
    }

    fn probe(&mut self, token: Token) {
        let ticket = self.ticket(token, RequestKind::Probe);
        self.ring.push_cancel(RequestTag { kind: RequestKind::Send, ..ticket }, ticket);
    }

    /// Returns whether there is no send in progress that another send could overtake.
    fn is_alone(&self, token: Token) -> bool {
        let slot = &self.slots[token.index()];
        slot.unconfirmed.is_none() && slot.outbox.as_ref().is_none_or(|outbox| outbox.stage == Sending::Idle)
    }

    /// Submits a send without confirmation.
    fn trust(&mut self, token: Token, request: &squeue::Entry, unconfirmed: SilentSend) {
        self.slots[token.index()].unconfirmed = Some(unconfirmed);
        let ticket = self.ticket(token, RequestKind::Send);
        let request = request.clone().flags(squeue::Flags::SKIP_SUCCESS).user_data(ticket.bits());
        // SAFETY: the bytes are in `lent`, which is kept until the kernel has released every request, and do not move.
        unsafe { self.ring.push(&request) };
    }

    /// Appends bytes to the token's unsent ones.
    fn enqueue(&mut self, token: Token, bytes: Outgoing<'_>) {
        let slot = self.slots.get_mut(token.index()).expect("the caller has looked at the slot");
        let outbox = slot.outbox.get_or_insert_default();
        match bytes {
            Outgoing::Copy(bytes) => self.lent.flights.enqueue(&mut outbox.queue, bytes, 1),
            Outgoing::Untold(bytes) => self.lent.flights.enqueue(&mut outbox.queue, bytes, 0),
            Outgoing::Fixed(fixed) => {
                outbox.queue.push_back(QueuedBytes { bytes: Bytes::Fixed(fixed), n_sent: 0, n_told: 0 });
            }
        }
        if outbox.stage == Sending::Idle {
            if slot.unconfirmed.is_some() {
                outbox.stage = Sending::Probing;
                self.probe(token);
            } else {
                self.launch(token);
            }
        }
    }

    /// Starts to send the first entry in the queue of an idle outbox.
    fn launch(&mut self, token: Token) {
        let slot = self.slots.get_mut(token.index()).expect("the caller has looked at the slot");
        let generation = slot.generation;
        let outbox = slot.outbox.as_mut().expect("the caller has looked at the outbox");
        let Some(unsent) = outbox.queue.pop_front() else { return };
        let number = self.lent.flights.add(SendInFlight { token, generation, unsent });
        outbox.stage = Sending::Flying(number);
        self.fly(number);
    }

    /// Passes the next part of a flight's bytes to the kernel.
    fn fly(&mut self, number: u32) {
        let flight = self.lent.flights.get(number);
        let fd = self.fd(flight.token);
        let bytes = match &flight.unsent.bytes {
            Bytes::Fixed(fixed) => &self.lent.fixed[fixed.index()],
            Bytes::Copied(bytes) => bytes.as_slice(),
        };
        let request = send(fd, &bytes[flight.unsent.n_sent..]);
        self.begin(request, RequestTag { kind: RequestKind::Flight, generation: 0, place: number });
    }

    /// Handles the completion of a flight's request.
    fn land(&mut self, number: u32, result: i32) {
        let KernelMemory { flights, fixed, .. } = &mut *self.lent;
        let flight = flights.get_mut(number);
        let (token, generation) = (flight.token, flight.generation);
        let wanted = self
            .slots
            .get(token.index())
            .is_some_and(|slot| slot.generation == generation && !matches!(slot.stage, SocketStage::Dead));
        let outcome = usize::try_from(result);
        if let (true, Ok(count)) = (wanted, outcome) {
            flight.unsent.n_sent += count;
            let length = match &flight.unsent.bytes {
                Bytes::Fixed(number) => fixed[number.index()].len(),
                Bytes::Copied(bytes) => bytes.len(),
            };
            if flight.unsent.n_sent < length {
                return self.fly(number);
            }
        }
        let QueuedBytes { bytes, n_told, .. } = flights.remove(number).unsent;
        flights.recycle(bytes);
        if !wanted {
            return;
        }
        if outcome.is_err() {
            return self.fail(token, error("send", result));
        }
        self.slot(token).outbox.as_mut().expect("it has sent").stage = Sending::Idle;
        (0..n_told).for_each(|_| self.know(token, Event::Sent));
        self.launch(token);
    }

    /// Closes every socket and collects the completions of requests that end with it.
    ///
    /// To cancel each one, the kernel would search through all remaining requests, which takes seconds for ten thousand.
    fn close_all(&mut self) {
        let places = 0..u32::try_from(self.slots.len()).expect("tokens have 32 bits");
        places.for_each(|place| self.close(Token(place)));
        // A wait of zero submits the queue; after that the sockets are shut down.
        let mut patience = Nanos::ZERO;
        while self.n_under_way > 0 && self.ring.wait(clock::now() + patience, None).is_ok() {
            if patience > Nanos::ZERO && !self.ring.has_completions() {
                return;
            }
            while let Some(entry) = self.ring.next() {
                self.digest(&entry);
            }
            patience = SETTLING;
        }
    }

    /// Ends every request and waits until the kernel has released the memory; returns whether it has.
    fn part(&mut self) -> bool {
        const ALL: RequestTag = RequestTag { kind: RequestKind::Cancel, generation: 1, place: 0 };
        self.close_all();
        let until = clock::now() + PARTING;
        let mut n_left = None;
        self.ring.push_cancel_all(ALL);
        while clock::now() < until && self.ring.wait(until, None).is_ok() {
            while let Some(entry) = self.ring.next() {
                if RequestTag::from_bits(entry.user_data()) == ALL {
                    n_left = Some(entry.result());
                }
                self.digest(&entry);
            }
            // Unconfirmed sends are not counted, but canceling everything includes them.
            match n_left.take() {
                Some(0) if self.n_under_way == 0 => return true,
                Some(_) => self.ring.push_cancel_all(ALL),
                None => {}
            }
        }
        false
    }
}

/// Bytes of a send request.
#[derive(Clone, Copy)]
enum Outgoing<'a> {
    Fixed(FixedBuffer),
    Copy(&'a [u8]),
    /// A copy whose end is not reported.
    Untold(&'a [u8]),
}

/// Sends all bytes that fit into one request, however often the kernel has to retry.
fn send(fd: Fd, bytes: &[u8]) -> squeue::Entry {
    let length = u32::try_from(bytes.len().min(FLIGHT)).expect("it is bounded by a megabyte");
    opcode::Send::new(fd, bytes.as_ptr(), length).flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL).build()
}

/// The error behind the completion of an unconfirmed send, which reports only failures.
fn send_error(result: i32) -> Error {
    if result < 0 { error("send", result) } else { Error::new("send", io::Error::from(io::ErrorKind::WriteZero)) }
}

/// Takes ownership of a descriptor that the kernel has just created for this process.
fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the completion of an accept transfers ownership of the descriptor, once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

impl Reactor for Uring {
    const NAME: &'static str = "io_uring";

    fn new(n_connections: u32) -> Result<Self> {
        let ring = Ring::new(n_connections)?;
        let lent = KernelMemory {
            small: BufferPool::new(&ring.io, SMALL_GROUP, 0..SMALL.0, SMALL.1)?,
            large: BufferPool::new(&ring.io, LARGE_GROUP, SMALL.0..SMALL.0 + LARGE.0, LARGE.1)?,
            scratch: block(LARGE.1)?,
            fixed: Vec::new(),
            copies: SendCopies::default(),
            flights: SendsInFlight::default(),
        };
        Ok(Self {
            ring,
            lent: ManuallyDrop::new(lent),
            slots: Vec::with_capacity(Token(n_connections).index()),
            stale: Vec::new(),
            known: VecDeque::new(),
            rest: None,
            at: Nanos::ZERO,
            n_under_way: 0,
            piece_is_out: false,
            stays: PhantomData,
        })
    }

    fn batches(&self) -> bool {
        self.ring.has_min_wait()
    }

    fn fix(&mut self, bytes: Vec<u8>) -> FixedBuffer {
        self.lent.fixed.push(bytes.into_boxed_slice());
        FixedBuffer(u32::try_from(self.lent.fixed.len() - 1).expect("there are few fixed requests"))
    }

    fn connect(&mut self, token: Token, socket: Socket, to: &Destination) {
        let fd = socket.as_raw_fd();
        let slot = self.occupy(token, socket, SocketStage::Connecting);
        slot.is_local = to.raw().domain() == Domain::UNIX;
        slot.receiving = ReceiveRequest::Connect;
        self.n_under_way += 1;
        let ticket = self.ticket(token, RequestKind::Connect);
        self.ring.push_connect(fd, to.raw(), ticket);
    }

    fn adopt(&mut self, token: Token, socket: Socket) {
        let is_local = socket.domain().is_ok_and(|domain| domain == Domain::UNIX);
        if self.slots.get(token.index()).is_some_and(|before| before.unconfirmed == Some(SilentSend::Copied)) {
            self.lent.copies.retire(token);
        }
        self.occupy(token, socket, SocketStage::Open).is_local = is_local;
        self.mark(token);
    }

    fn listen(&mut self, token: Token, listener: Listener) {
        let (socket, check) = listener.into_parts();
        self.occupy(token, socket, SocketStage::Listening).check = check;
        self.mark(token);
    }

    fn send_fixed(&mut self, token: Token, bytes: FixedBuffer) {
        if self.slot(token).stage == SocketStage::Dead {
            return;
        }
        if !self.is_alone(token) || self.lent.fixed[bytes.index()].len() > UNCONFIRMED {
            return self.enqueue(token, Outgoing::Fixed(bytes));
        }
        let request = send(self.fd(token), &self.lent.fixed[bytes.index()]);
        self.trust(token, &request, SilentSend::Fixed(bytes));
    }

    fn send(&mut self, token: Token, bytes: &[u8]) {
        if self.slot(token).stage != SocketStage::Dead {
            self.enqueue(token, Outgoing::Copy(bytes));
        }
    }

    fn send_quietly(&mut self, token: Token, bytes: &[u8]) {
        if self.slot(token).stage == SocketStage::Dead {
            return;
        }
        if !self.is_alone(token) || bytes.len() > UNCONFIRMED {
            return self.enqueue(token, Outgoing::Untold(bytes));
        }
        let fd = self.fd(token);
        let request = send(fd, self.lent.copies.put(token, bytes));
        self.trust(token, &request, SilentSend::Copied);
    }

    fn discard(&mut self, token: Token, count: u64) {
        let slot = self.slot(token);
        slot.n_discard = slot.n_discard.saturating_add(count);
        slot.n_full = 0;
        if slot.n_discard > COPIED_DISCARD {
            slot.n_single = ROUNDS;
            self.mark(token);
        }
    }

    fn close(&mut self, token: Token) {
        let Some(slot) = self.slots.get_mut(token.index()) else { return };
        let Some(socket) = slot.socket.take() else { return };
        let generation = slot.generation;
        let closed = std::mem::replace(
            slot,
            SocketSlot { generation: (generation + 1) % GENERATIONS, is_stale: slot.is_stale, ..SocketSlot::default() },
        );
        let end = match closed.receiving {
            ReceiveRequest::Connect | ReceiveRequest::Accept => {
                let ticket = |kind| RequestTag { kind, generation, place: token.0 };
                self.ring.push_cancel(ticket(closed.receiving.kind()), ticket(RequestKind::Cancel));
                SocketEnd::Close
            }
            _ => SocketEnd::Shutdown,
        };
        self.ring.close(socket, end);
    }

    fn abandon(self) {
        self.slots.iter().filter_map(|slot| slot.socket.as_ref()).for_each(socket::abort);
    }

    fn socket(&self, token: Token) -> Option<&Socket> {
        self.slots.get(token.index())?.socket.as_ref()
    }

    fn wait(&mut self, patience: WaitLimit) -> Result<()> {
        if self.ring.has_completions() || !self.known.is_empty() || self.rest.is_some() {
            return Ok(());
        }
        self.refresh();
        self.lent.small.publish();
        self.lent.large.publish();
        self.ring.wait(patience.until, patience.batch)?;
        self.at = clock::now();
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        assert!(!self.piece_is_out, "a piece must be released before the next completion");
        loop {
            if let Some((token, generation, piece)) = self.rest.take() {
                let slot = &self.slots[token.index()];
                if slot.generation != generation || slot.stage == SocketStage::Dead {
                    self.give(piece.buffer);
                } else {
                    let event = self.deliver(token, piece);
                    return Some(Completion { token, at: self.at, event });
                }
            } else if let Some((generation, completion)) = self.known.pop_front() {
                if self.slots[completion.token.index()].generation == generation {
                    return Some(completion);
                }
            } else {
                let entry = self.ring.next()?;
                if let Some(completion) = self.digest(&entry) {
                    return Some(completion);
                }
            }
        }
    }

    fn bytes(&self, piece: &ReceivedBytes) -> &[u8] {
        let id = u16::try_from(piece.buffer).expect("buffers have 16-bit numbers");
        let pool = if id < SMALL.0 { &self.lent.small } else { &self.lent.large };
        pool.bytes(id, piece.start as usize, piece.length as usize)
    }

    fn release(&mut self, piece: ReceivedBytes) {
        self.piece_is_out = false;
        self.give(piece.buffer);
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.part() {
            // SAFETY: it is dropped once, here, and no request points into it any more.
            unsafe { ManuallyDrop::drop(&mut self.lent) };
        }
        // Otherwise the memory leaks until the process ends, which is better than an unexpected write to it.
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::reactor::suite;

    #[test]
    fn the_kernel_lets_go_of_all_memory_before_it_is_freed() {
        let Some(mut reactor) = suite::uring() else { return };
        let mut peers = Vec::new();
        let request = reactor.fix(vec![0; 3000]);
        for token in 0..100 {
            let (near, far) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            reactor.adopt(Token(token), OwnedFd::from(near).into());
            reactor.send(Token(token), &vec![0; 1 << 20]);
            reactor.send_fixed(Token(token), request);
            peers.push(far);
        }
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = Listener::new(OwnedFd::from(listener).into(), &AllowedPeers::anybody()).unwrap();
        reactor.listen(Token(100), listener);
        reactor.wait(WaitLimit { until: clock::now(), batch: None }).unwrap();
        assert_eq!(reactor.n_under_way, 201, "a receive and a send of each, and the accept");
        assert!(reactor.part());
        assert_eq!(reactor.n_under_way, 0);
    }

    #[test]
    fn to_end_many_connections_takes_no_longer_for_each_than_to_end_few() {
        let parting = |n: u32| {
            let mut reactor = suite::uring()?;
            let mut peers = Vec::new();
            for token in 0..n {
                let (near, far) = UnixStream::pair().unwrap();
                near.set_nonblocking(true).unwrap();
                reactor.adopt(Token(token), OwnedFd::from(near).into());
                peers.push(far);
            }
            reactor.wait(WaitLimit { until: clock::now(), batch: None }).unwrap();
            // The thread's own clock: the times by mode may be counted in ticks of some milliseconds.
            let before = clock::thread_cpu();
            assert!(reactor.part());
            Some(clock::thread_cpu() - before)
        };
        let least = |n| (0..3).map(|_| parting(n)).min().flatten();
        let Some((few, many)) = least(1_000).zip(least(8_000)) else { return };
        // Eight times as much is expected; searching all requests for each one would take about sixty times.
        assert!(many.0 < 24 * few.0, "{few:?} and {many:?}");
    }

    #[test]
    fn a_connection_takes_little_memory() {
        assert!(size_of::<SocketSlot>() <= 64, "{}", size_of::<SocketSlot>());
    }
}

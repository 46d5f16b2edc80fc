//! One worker of a responder: its listener, its connections, its epoll.
//!
//! Epoll is level-triggered: each event leads to one receive, and all requests that it completes are answered at once. Only if
//! the client does not take its answer does the interest change; nothing more is read until it has.

use std::sync::Arc;

use fathom_engine::Error;
use fathom_model::{mix::EvenRotation, units::Nanos};
use fathom_sys::{
    clock,
    reactor::epoll_wait::{Epoll, Interest, Readiness, ReadyList},
    socket::{self, Listener, Socket, Wait},
};
use rustls::ServerConfig;

use super::{
    ResponderOptions, StallPattern,
    delay::DelaySequence,
    due_answers::DueAnswers,
    lateness::UsualLateness,
    reply::{Replies, ReplyKind},
    request::{ReplyPersistence, RequestEvent, RequestFollower, RequestReader},
    stream::{FlushState, PeerState, ServerStream, StreamBroken},
    unix::UnixSocketPath,
};

/// The token of the listener; connections have their index.
const LISTENER: u64 = u64::MAX;
/// The size of a receive: many pipelined requests, or the longest head several times.
const BUFFER: usize = 64 * 1024;
/// The most input kept behind an answer that is not due yet; beyond it nothing more is received from that connection.
const INPUT_MAX: usize = 64 * 1024;
/// The most capacity that a connection keeps of its input buffer.
const INPUT_KEPT: usize = 4096;
/// The interval of checks for the end.
const TICK: Nanos = Nanos::from_millis(50);
/// The interval of checks for slow connections and of updates of the date.
const SWEEP: Nanos = Nanos::from_secs(1);

/// The counters of a responder; the value is the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponderCounter {
    Requests,
    BytesSent,
    Connections,
    Rejected,
    TimedOut,
}

/// Receives a worker's counts, and tells it when to end.
pub(crate) trait WorkerControl {
    fn add(&self, counter: ResponderCounter, amount: u64);
    fn is_over(&self) -> bool;
}

/// Answers being sent.
#[derive(Debug, Clone, Copy)]
struct PendingReplies {
    kind: ReplyKind,
    n_copies: usize,
    n_sent: usize,
}

#[derive(Debug)]
struct ServedConnection {
    idx: usize,
    socket: Socket,
    stream: ServerStream,
    /// The input of an incomplete head, or behind an answer that has not been sent.
    input: Vec<u8>,
    request: RequestFollower,
    pending: Option<PendingReplies>,
    /// When the pending answer may be sent; `None` once it may.
    due: Option<Nanos>,
    n_answers: u64,
    state: ServeState,
    interest: Interest,
    is_last: bool,
    has_ended: bool,
    /// When the current request, answer or pause began.
    since: Nanos,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServeState {
    /// Waits for a request.
    Reading,
    /// Waits until its answer is due.
    Delaying,
    /// Waits for the client to take the answer.
    Sending,
    /// Has ended.
    Closed,
}

/// Shared by the workers of one responder.
#[derive(Debug, Clone)]
pub(super) struct ResponderContext {
    pub(super) options: ResponderOptions,
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// Removes the path of a unix socket with the last worker.
    pub(super) unix_socket: Option<Arc<UnixSocketPath>>,
    /// The reference time of stalls.
    pub(super) start: Nanos,
}

#[derive(Debug)]
pub(crate) struct ResponderWorker {
    listener: Listener,
    accepting: bool,
    epoll: Epoll,
    connections: Vec<Option<ServedConnection>>,
    free: Vec<usize>,
    due_answers: DueAnswers,
    lateness: UsualLateness,
    buffer: Vec<u8>,
    /// The decrypted content of the buffer.
    plain: Vec<u8>,
    replies: Replies,
    statuses: EvenRotation,
    /// The index of the status of the next answer.
    next_status: usize,
    delays: Option<DelaySequence>,
    requests: RequestReader,
    context: ResponderContext,
}

impl ResponderWorker {
    pub(super) fn new(listener: Listener, worker: usize, common: ResponderContext) -> Result<Self, Error> {
        let prepared = Epoll::new().and_then(|epoll| epoll.add(&listener, LISTENER, Interest::READ).map(|()| epoll));
        let options = &common.options;
        // Workers with the same seed would draw the same delays and answer in step.
        let seed = options.seed.wrapping_add(worker as u64);
        let mut statuses = options.statuses.rotation();
        Ok(Self {
            epoll: prepared.map_err(|cause| Error::System { what: "watch a listening socket".to_owned(), cause })?,
            listener,
            accepting: true,
            connections: Vec::new(),
            free: Vec::new(),
            due_answers: DueAnswers::default(),
            lateness: UsualLateness::default(),
            buffer: vec![0; BUFFER],
            plain: Vec::new(),
            replies: Replies::new(options.size, &options.statuses),
            next_status: statuses.next_index(),
            statuses,
            delays: options.delay.clone().map(|delay| DelaySequence::new(delay, seed)),
            requests: RequestReader::default(),
            context: common,
        })
    }

    /// Accepts and answers until told to end.
    pub(crate) fn serve(mut self, tally: &impl WorkerControl) -> Result<(), Error> {
        if self.delays.is_some() || self.context.options.stall.is_some() {
            clock::sleep_finely();
        }
        let mut events = ReadyList::with_capacity(256);
        let mut swept = Nanos::ZERO;
        while !tally.is_over() {
            let now = clock::now();
            if now >= swept + SWEEP {
                swept = now;
                self.replies.set_date(clock::wall());
                self.sweep(now, tally);
            }
            let limit = self.wait_limit(now);
            let n_events = self
                .epoll
                .wait(&mut events, Some(limit))
                .map_err(|cause| Error::System { what: "wait for requests".to_owned(), cause })?;
            if n_events == 0 && limit > Nanos::ZERO && self.due_answers.next().is_some() {
                self.lateness.learn(clock::now().since(now + limit));
            }
            self.stall(tally);
            // One timestamp per batch: it only serves timeouts of seconds.
            let now = clock::now();
            self.send_due(now, tally);
            for event in events.iter() {
                match usize::try_from(event.token) {
                    Ok(idx) if event.token != LISTENER => self.on_event(idx, event, now, tally),
                    _ => self.accept(now, tally),
                }
            }
        }
        Ok(())
    }

    /// How long the worker may wait if nothing arrives: not at all shortly before an answer is due.
    fn wait_limit(&self, now: Nanos) -> Nanos {
        let Some(due) = self.due_answers.next() else { return TICK };
        let left = due.since(now);
        // The kernel may end a wait late by a thousandth of its length (select_estimate_accuracy, fs/select.c), so a long wait
        // ends earlier by that much and a short one follows.
        let left = if left > Nanos::from_micros(100) { left - left / 1000 } else { left };
        left.since(self.lateness.get()).min(TICK)
    }

    /// Does nothing while a stall lasts.
    fn stall(&self, tally: &impl WorkerControl) {
        let Some(stall) = self.context.options.stall else { return };
        while let Some(end) = stalls_until(stall, self.context.start) {
            if tally.is_over() {
                return;
            }
            clock::sleep_until(end.min(clock::now() + TICK));
        }
    }

    fn accept(&mut self, now: Nanos, tally: &impl WorkerControl) {
        while self.connections.len() - self.free.len() < self.context.options.connections_max {
            match socket::accept_unnamed(&self.listener) {
                Ok(Some(socket)) => {
                    // Without the option answers are merely slower. It fails only on a broken connection, and on a unix socket,
                    // which never delays.
                    let _ = socket.set_tcp_nodelay(true);
                    self.add_connection(socket, now);
                    tally.add(ResponderCounter::Connections, 1);
                }
                Ok(None) => return,
                Err(_) => break,
            }
        }
        // The worker is full, or out of descriptors: connections wait in the kernel's queue until the next sweep.
        self.accepting = self.epoll.remove(&self.listener).is_err();
    }

    fn add_connection(&mut self, socket: Socket, now: Nanos) {
        let Ok(line) = ServerStream::new(self.context.tls.as_ref()) else { return };
        let idx = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if self.epoll.add(&socket, idx as u64, Interest::READ).is_err() {
            self.free.push(idx);
            return;
        }
        self.connections[idx] = Some(ServedConnection {
            idx,
            socket,
            stream: line,
            input: Vec::new(),
            request: RequestFollower::default(),
            pending: None,
            due: None,
            n_answers: 0,
            state: ServeState::Reading,
            interest: Interest::READ,
            is_last: false,
            has_ended: false,
            since: now,
        });
    }

    fn on_event(&mut self, idx: usize, event: Readiness, now: Nanos, tally: &impl WorkerControl) {
        let Some(mut connection) = self.connections.get_mut(idx).and_then(Option::take) else { return };
        let n_before = connection.input.len();
        let was_handshaking = connection.stream.is_handshaking();
        let next_state = match connection.state {
            _ if event.failed => ServeState::Closed,
            ServeState::Reading => self.receive(&mut connection, tally),
            // No request can follow the end, so the client has hung up: the answer would reach nobody.
            ServeState::Delaying if event.readable && connection.has_ended => ServeState::Closed,
            ServeState::Delaying if event.readable => self.receive(&mut connection, tally),
            ServeState::Sending if event.writable => self.continue_sending(&mut connection, tally),
            next_state => next_state,
        };
        // A head that arrives in parts, or a handshake, must be complete within the timeout that began with its first byte.
        let grows = n_before > 0 && connection.input.len() > n_before;
        let goes_on = grows || (was_handshaking && connection.stream.is_handshaking());
        if !(goes_on && connection.state == ServeState::Reading && next_state == ServeState::Reading) {
            connection.since = now;
        }
        self.put_back(connection, next_state);
    }

    /// Sends the answers that have become due.
    fn send_due(&mut self, now: Nanos, tally: &impl WorkerControl) {
        while let Some((due, idx)) = self.due_answers.take(now) {
            let place = &mut self.connections[idx];
            let Some(mut connection) = place.take_if(|connection| connection.due == Some(due)) else { continue };
            connection.due = None;
            connection.since = now;
            let next_state = self.continue_sending(&mut connection, tally);
            self.put_back(connection, next_state);
        }
    }

    /// Stores a connection again, or ends it.
    fn put_back(&mut self, mut connection: ServedConnection, next_state: ServeState) {
        let idx = connection.idx;
        let is_full = connection.has_ended || connection.input.len() >= INPUT_MAX;
        let interest = match next_state {
            ServeState::Delaying if is_full => Interest::NONE,
            ServeState::Reading | ServeState::Delaying => Interest::READ,
            ServeState::Sending => Interest::WRITE,
            ServeState::Closed => {
                self.free.push(idx);
                return;
            }
        };
        if interest != connection.interest && self.epoll.modify(&connection.socket, idx as u64, interest).is_err() {
            self.free.push(idx);
            return;
        }
        connection.interest = interest;
        connection.state = next_state;
        self.connections[idx] = Some(connection);
    }

    fn receive(&mut self, connection: &mut ServedConnection, tally: &impl WorkerControl) -> ServeState {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut plain = std::mem::take(&mut self.plain);
        let next_state = match socket::recv(&connection.socket, &mut buffer, Wait::Never) {
            Ok(None) => connection.state,
            Err(_) => ServeState::Closed,
            Ok(Some(0)) => {
                connection.has_ended = true;
                self.read(connection, &[], tally)
            }
            Ok(Some(n)) => match &mut connection.stream {
                ServerStream::Plain => self.read(connection, &buffer[..n], tally),
                ServerStream::Tls(tls) => {
                    plain.clear();
                    let decrypted = tls.decrypt(&buffer[..n], &mut plain);
                    connection.has_ended |= decrypted == Ok(PeerState::Closed);
                    if decrypted == Err(StreamBroken) {
                        // Sends the alert; the client may already be gone.
                        let _ = connection.stream.flush(&connection.socket, &mut 0);
                        ServeState::Closed
                    } else {
                        self.read(connection, &plain, tally)
                    }
                }
            },
        };
        (self.buffer, self.plain) = (buffer, plain);
        next_state
    }

    /// Answers the requests that `bytes` complete. Usually whole requests arrive and are read in place.
    fn read(&mut self, connection: &mut ServedConnection, bytes: &[u8], tally: &impl WorkerControl) -> ServeState {
        if connection.state == ServeState::Delaying {
            connection.input.extend_from_slice(bytes);
            return ServeState::Delaying;
        }
        if connection.input.is_empty() {
            let (next_state, used) = self.answer_requests(connection, bytes, tally);
            connection.input.extend_from_slice(&bytes[used..]);
            return next_state;
        }
        connection.input.extend_from_slice(bytes);
        self.continue_sending(connection, tally)
    }

    /// Sends the pending answers, then answers the requests in the connection's input buffer.
    fn continue_sending(&mut self, connection: &mut ServedConnection, tally: &impl WorkerControl) -> ServeState {
        let mut input = std::mem::take(&mut connection.input);
        let (next_state, used) = self.answer_requests(connection, &input, tally);
        input.drain(..used);
        if !input.is_empty() || input.capacity() <= INPUT_KEPT {
            connection.input = input;
        }
        next_state
    }

    /// Answers the requests in `input`. Returns how many bytes were used.
    fn answer_requests(
        &mut self,
        connection: &mut ServedConnection,
        input: &[u8],
        tally: &impl WorkerControl,
    ) -> (ServeState, usize) {
        let mut used = 0;
        loop {
            let next_state = self.send(connection, tally);
            if next_state != ServeState::Reading {
                return (next_state, used);
            }
            let Some(owed) = self.next_replies(connection, &input[used..], &mut used) else {
                return (if connection.has_ended { ServeState::Closed } else { ServeState::Reading }, used);
            };
            connection.pending = Some(owed);
            let delay = match owed.kind {
                ReplyKind::Status(..) => {
                    self.delays.as_mut().map(DelaySequence::next).filter(|delay| *delay > Nanos::ZERO)
                }
                ReplyKind::Continue | ReplyKind::Refused(_) => None,
            };
            if let Some(delay) = delay {
                // The clock is read only now, after the request was received.
                let due = clock::now() + delay;
                connection.due = Some(due);
                self.due_answers.add(due, connection.idx);
            }
        }
    }

    /// The next answers of one kind for the requests in `input`, as many as can be sent at once.
    fn next_replies(
        &mut self,
        connection: &mut ServedConnection,
        input: &[u8],
        used: &mut usize,
    ) -> Option<PendingReplies> {
        let mut owed: Option<PendingReplies> = None;
        let mut at = 0;
        while at < input.len() {
            let before = connection.request;
            let (length, asked) = connection.request.read(&input[at..], &mut self.requests);
            let Some(asked) = asked else {
                at += length;
                break;
            };
            let kind = self.reply_kind(asked, connection.n_answers);
            match &mut owed {
                None => owed = Some(PendingReplies { kind, n_copies: 1, n_sent: 0 }),
                Some(owed) if owed.kind == kind && owed.n_copies < self.replies.copies_max(kind) => owed.n_copies += 1,
                Some(_) => {
                    connection.request = before;
                    break;
                }
            }
            at += length;
            if let ReplyKind::Status(..) = kind {
                connection.n_answers += 1;
                self.next_status = self.statuses.next_index();
            }
            // Each answer has its own delay, and nothing is answered after the last one.
            if self.delays.is_some() || kind.closes() {
                break;
            }
        }
        *used += at;
        owed
    }

    fn reply_kind(&self, asked: RequestEvent, n_answers: u64) -> ReplyKind {
        match asked {
            RequestEvent::Continue => ReplyKind::Continue,
            RequestEvent::Refused(refusal) => ReplyKind::Refused(refusal),
            RequestEvent::Answer(wants) => {
                let is_last = self.context.options.keep_alive.ends_after(n_answers);
                ReplyKind::Status(
                    self.next_status,
                    wants.part,
                    if is_last { ReplyPersistence::Close } else { wants.persistence },
                )
            }
        }
    }

    /// Hands the pending answers to the kernel once they are due.
    fn send(&mut self, connection: &mut ServedConnection, tally: &impl WorkerControl) -> ServeState {
        if connection.due.is_some() {
            return ServeState::Delaying;
        }
        self.stall(tally);
        let mut n_sent = 0;
        let mut next_state = self.write_replies(connection, &mut n_sent);
        let done = if next_state == ServeState::Reading { connection.pending.take() } else { None };
        if let Some(PendingReplies { kind, n_copies, .. }) = done {
            match kind {
                ReplyKind::Status(..) => tally.add(ResponderCounter::Requests, n_copies as u64),
                ReplyKind::Refused(_) => tally.add(ResponderCounter::Rejected, 1),
                ReplyKind::Continue => {}
            }
            connection.is_last |= kind.closes();
        }
        if connection.is_last && next_state == ServeState::Reading {
            connection.stream.close(&connection.socket, &mut n_sent);
            next_state = shut_down_sending(&connection.socket);
        }
        if n_sent > 0 {
            tally.add(ResponderCounter::BytesSent, n_sent);
        }
        next_state
    }

    fn write_replies(&self, connection: &mut ServedConnection, n_sent: &mut u64) -> ServeState {
        let ServedConnection { stream: line, socket, pending: owed, .. } = connection;
        if let Some(owed) = owed {
            let [first, second] = self.replies.slices(owed.kind, owed.n_copies);
            while owed.n_sent < first.len() + second.len() {
                let rest = first.get(owed.n_sent..).filter(|rest| !rest.is_empty());
                let rest = rest.unwrap_or_else(|| &second[owed.n_sent - first.len()..]);
                match line.send(socket, rest, n_sent) {
                    Ok(Some(n)) => owed.n_sent += n,
                    Ok(None) => return ServeState::Sending,
                    Err(StreamBroken) => return ServeState::Closed,
                }
            }
        }
        match line.flush(socket, n_sent) {
            Ok(FlushState::All) => ServeState::Reading,
            Ok(FlushState::WouldBlock) => ServeState::Sending,
            Err(StreamBroken) => ServeState::Closed,
        }
    }

    /// Ends connections that are too slow or idle for too long, and accepts again if there is room.
    fn sweep(&mut self, now: Nanos, tally: &impl WorkerControl) {
        let options = &self.context.options;
        for (idx, place) in self.connections.iter_mut().enumerate() {
            let too_long = |connection: &mut ServedConnection| {
                let idle = connection.state == ServeState::Reading
                    && connection.input.is_empty()
                    && !connection.request.is_in_body()
                    && !connection.stream.is_handshaking();
                connection.state != ServeState::Delaying
                    && now.since(connection.since) > if idle { options.idle_timeout } else { options.transfer_timeout }
            };
            if place.take_if(too_long).is_some() {
                self.free.push(idx);
                tally.add(ResponderCounter::TimedOut, 1);
            }
        }
        // Usually there is one entry per connection, plus a few for connections that have just ended.
        if self.due_answers.len() > 2 * self.connections.len() + 64 {
            let connections = &self.connections;
            let waits = |due, idx: usize| connections[idx].as_ref().is_some_and(|waiting| waiting.due == Some(due));
            self.due_answers.keep(waits);
        }
        if !self.accepting {
            self.accepting = self.epoll.add(&self.listener, LISTENER, Interest::READ).is_ok();
        }
    }
}

/// The end of the stall in progress.
fn stalls_until(stall: StallPattern, start: Nanos) -> Option<Nanos> {
    stall.end(clock::now().since(start)).map(|end| start + end)
}

/// Ends a connection so that its last answer arrives: unread bytes would turn the close into a reset.
fn shut_down_sending(socket: &Socket) -> ServeState {
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut unread = [0; 4096];
    for _ in 0..16 {
        if !matches!(socket::recv(socket, &mut unread, Wait::Never), Ok(Some(1..))) {
            break;
        }
    }
    ServeState::Closed
}

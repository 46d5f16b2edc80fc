//! One worker of a responder: its listener, its connections, its epoll.
//!
//! Level-triggered: one receive per event, then everything that it completed is answered straight away. Only when the other
//! side does not take its answer is the interest changed, and nothing more is read until it did.

use std::sync::Arc;

use fathom_engine::Error;
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    epoll::{Epoll, Event, Events, Interest},
    socket::{self, Socket, Wait},
};
use rustls::ServerConfig;

use super::{
    ResponderOptions, Stall,
    agenda::Agenda,
    delay::Draws,
    line::{Broken, Flushed, Line, Peer},
    reply::{Kind, Replies},
    request::{Asked, Fate, Inquiry, RequestReader},
    statuses::Rotation,
    unix::Name,
};

/// The token of the listener; connections have their index.
const LISTENER: u64 = u64::MAX;
/// How much is received at once: many pipelined requests, or the longest head several times.
const BUFFER: usize = 64 * 1024;
/// What may wait behind an answer that is not due yet; then nothing more is received from that connection.
const INPUT_MAX: usize = 64 * 1024;
/// What a connection may keep of the room that its longest input took.
const INPUT_KEPT: usize = 4096;
/// How soon the end is noticed.
const TICK: Nanos = Nanos::from_millis(50);
/// How often slow connections are looked for and the date is set.
const SWEEP: Nanos = Nanos::from_secs(1);

/// What a responder counts; the value is the counter's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    Requests,
    BytesSent,
    Connections,
    Rejected,
    TimedOut,
}

/// Where a worker's counts go, and how it is told to end.
pub(crate) trait Tally {
    fn add(&self, counter: Served, amount: u64);
    fn is_over(&self) -> bool;
}

/// Answers that are on their way.
#[derive(Debug, Clone, Copy)]
struct Owed {
    kind: Kind,
    n_copies: usize,
    n_sent: usize,
}

#[derive(Debug)]
struct Connection {
    idx: usize,
    socket: Socket,
    line: Line,
    /// What came of a head that is not complete, or behind an answer that has not left.
    input: Vec<u8>,
    inquiry: Inquiry,
    owed: Option<Owed>,
    /// When what is owed may leave; nothing once it may.
    due: Option<Nanos>,
    n_answers: u64,
    course: Course,
    interest: Interest,
    is_last: bool,
    has_ended: bool,
    /// When the current request, answer or pause began.
    since: Nanos,
}

/// Whether a connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// It waits for a request.
    Reading,
    /// It waits until its answer is due.
    Waiting,
    /// It waits for the other side to take the answer.
    Sending,
    /// It has ended.
    Over,
}

/// What the workers of one responder have in common.
#[derive(Debug, Clone)]
pub(super) struct Common {
    pub(super) options: ResponderOptions,
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// Removes the name of a unix socket with the last worker.
    pub(super) name: Option<Arc<Name>>,
    /// What stalls are counted from.
    pub(super) start: Nanos,
}

/// One worker.
#[derive(Debug)]
pub(crate) struct Attendant {
    listener: Socket,
    accepting: bool,
    epoll: Epoll,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    agenda: Agenda,
    buffer: Vec<u8>,
    /// What was decrypted of the buffer.
    plain: Vec<u8>,
    replies: Replies,
    rotation: Rotation,
    delays: Option<Draws>,
    requests: RequestReader,
    common: Common,
}

impl Attendant {
    pub(super) fn new(listener: Socket, worker: usize, common: Common) -> Result<Self, Error> {
        let prepared = Epoll::new().and_then(|epoll| epoll.add(&listener, LISTENER, Interest::READ).map(|()| epoll));
        let options = &common.options;
        // Workers that drew the same delays would answer in step.
        let seed = options.seed.wrapping_add(worker as u64);
        Ok(Self {
            epoll: prepared.map_err(|cause| Error::System { what: "watch a listening socket".to_owned(), cause })?,
            listener,
            accepting: true,
            connections: Vec::new(),
            free: Vec::new(),
            agenda: Agenda::default(),
            buffer: vec![0; BUFFER],
            plain: Vec::new(),
            replies: Replies::new(options.size, &options.statuses),
            rotation: Rotation::new(&options.statuses),
            delays: options.delay.clone().map(|delay| Draws::new(delay, seed)),
            requests: RequestReader::default(),
            common,
        })
    }

    /// Accepts and answers until told to end.
    pub(crate) fn serve(mut self, tally: &impl Tally) -> Result<(), Error> {
        if self.delays.is_some() || self.common.options.stall.is_some() {
            clock::sleep_finely();
        }
        let mut events = Events::with_capacity(256);
        let mut swept = Nanos::ZERO;
        while !tally.is_over() {
            let now = clock::now();
            if now >= swept + SWEEP {
                swept = now;
                self.replies.set_date(clock::wall());
                self.sweep(now, tally);
            }
            self.epoll
                .wait(&mut events, Some(self.rest(now)))
                .map_err(|cause| Error::System { what: "wait for requests".to_owned(), cause })?;
            self.pause(tally);
            // One stamp per batch: it only serves time-outs of seconds.
            let now = clock::now();
            self.release(now, tally);
            for event in events.iter() {
                match usize::try_from(event.token) {
                    Ok(idx) if event.token != LISTENER => self.attend(idx, event, (now, tally)),
                    _ => self.accept(now, tally),
                }
            }
        }
        Ok(())
    }

    /// How long nothing is to be done, unless something arrives.
    fn rest(&self, now: Nanos) -> Nanos {
        let Some(due) = self.agenda.next() else { return TICK };
        let left = due.since(now);
        // The kernel may end a wait late by a thousandth of its length (select_estimate_accuracy, fs/select.c), so a long one
        // ends so much earlier and a short one follows.
        let left = if left > Nanos::from_micros(100) { left - left / 1000 } else { left };
        left.min(TICK)
    }

    /// Does nothing while a stall lasts.
    fn pause(&self, tally: &impl Tally) {
        let Some(stall) = self.common.options.stall else { return };
        while let Some(end) = stalls_until(stall, self.common.start) {
            if tally.is_over() {
                return;
            }
            clock::sleep_until(end.min(clock::now() + TICK));
        }
    }

    fn accept(&mut self, now: Nanos, tally: &impl Tally) {
        while self.connections.len() - self.free.len() < self.common.options.connections_max {
            match socket::accept_unnamed(&self.listener) {
                Ok(Some(socket)) => {
                    // Without the option answers are merely slower; it fails only on a connection that broke already, and
                    // on a unix socket, which never delays.
                    let _ = socket.set_tcp_nodelay(true);
                    self.admit(socket, now);
                    tally.add(Served::Connections, 1);
                }
                Ok(None) => return,
                Err(_) => break,
            }
        }
        // Full, or out of descriptors: the kernel's queue holds the rest until the next sweep.
        self.accepting = self.epoll.remove(&self.listener).is_err();
    }

    fn admit(&mut self, socket: Socket, now: Nanos) {
        let Ok(line) = Line::new(self.common.tls.as_ref()) else { return };
        let idx = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if self.epoll.add(&socket, idx as u64, Interest::READ).is_err() {
            self.free.push(idx);
            return;
        }
        self.connections[idx] = Some(Connection {
            idx,
            socket,
            line,
            input: Vec::new(),
            inquiry: Inquiry::default(),
            owed: None,
            due: None,
            n_answers: 0,
            course: Course::Reading,
            interest: Interest::READ,
            is_last: false,
            has_ended: false,
            since: now,
        });
    }

    fn attend(&mut self, idx: usize, event: Event, (now, tally): (Nanos, &impl Tally)) {
        let Some(mut connection) = self.connections.get_mut(idx).and_then(Option::take) else { return };
        let n_before = connection.input.len();
        let was_handshaking = connection.line.is_handshaking();
        let course = match connection.course {
            _ if event.failed => Course::Over,
            Course::Reading => self.receive(&mut connection, tally),
            // Nothing is asked for after the end, so this is a hang-up: the answer would reach nobody.
            Course::Waiting if event.readable && connection.has_ended => Course::Over,
            Course::Waiting if event.readable => self.receive(&mut connection, tally),
            Course::Sending if event.writable => self.resume(&mut connection, tally),
            course => course,
        };
        // A head that merely grows, or a handshake, must be complete within the patience that it began with.
        let grows = n_before > 0 && connection.input.len() > n_before;
        let goes_on = grows || (was_handshaking && connection.line.is_handshaking());
        if !(goes_on && connection.course == Course::Reading && course == Course::Reading) {
            connection.since = now;
        }
        self.keep(connection, course);
    }

    /// Answers what has become due.
    fn release(&mut self, now: Nanos, tally: &impl Tally) {
        while let Some((due, idx)) = self.agenda.take(now) {
            let place = &mut self.connections[idx];
            let Some(mut connection) = place.take_if(|connection| connection.due == Some(due)) else { continue };
            connection.due = None;
            connection.since = now;
            let course = self.resume(&mut connection, tally);
            self.keep(connection, course);
        }
    }

    /// Puts a connection back to its place, or ends it.
    fn keep(&mut self, mut connection: Connection, course: Course) {
        let idx = connection.idx;
        let is_full = connection.has_ended || connection.input.len() >= INPUT_MAX;
        let interest = match course {
            Course::Waiting if is_full => Interest::NONE,
            Course::Reading | Course::Waiting => Interest::READ,
            Course::Sending => Interest::WRITE,
            Course::Over => {
                self.free.push(idx);
                return;
            }
        };
        if interest != connection.interest && self.epoll.modify(&connection.socket, idx as u64, interest).is_err() {
            self.free.push(idx);
            return;
        }
        connection.interest = interest;
        connection.course = course;
        self.connections[idx] = Some(connection);
    }

    fn receive(&mut self, connection: &mut Connection, tally: &impl Tally) -> Course {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut plain = std::mem::take(&mut self.plain);
        let course = match socket::recv(&connection.socket, &mut buffer, Wait::Never) {
            Ok(None) => connection.course,
            Err(_) => Course::Over,
            Ok(Some(0)) => {
                connection.has_ended = true;
                self.read(connection, &[], tally)
            }
            Ok(Some(n)) => match &mut connection.line {
                Line::Plain => self.read(connection, &buffer[..n], tally),
                Line::Tls(tls) => {
                    plain.clear();
                    let decrypted = tls.decrypt(&buffer[..n], &mut plain);
                    connection.has_ended |= decrypted == Ok(Peer::HasEnded);
                    if decrypted == Err(Broken) {
                        // The alert; whoever sent nonsense may be gone.
                        let _ = connection.line.flush(&connection.socket, &mut 0);
                        Course::Over
                    } else {
                        self.read(connection, &plain, tally)
                    }
                }
            },
        };
        (self.buffer, self.plain) = (buffer, plain);
        course
    }

    /// Answers the requests that `bytes` complete; as a rule whole ones arrive, and are read where they lie.
    fn read(&mut self, connection: &mut Connection, bytes: &[u8], tally: &impl Tally) -> Course {
        if connection.course == Course::Waiting {
            connection.input.extend_from_slice(bytes);
            return Course::Waiting;
        }
        if connection.input.is_empty() {
            let (course, used) = self.take(connection, bytes, tally);
            connection.input.extend_from_slice(&bytes[used..]);
            return course;
        }
        connection.input.extend_from_slice(bytes);
        self.resume(connection, tally)
    }

    /// Sends what is owed, then answers what is in the connection's own input.
    fn resume(&mut self, connection: &mut Connection, tally: &impl Tally) -> Course {
        let mut input = std::mem::take(&mut connection.input);
        let (course, used) = self.take(connection, &input, tally);
        input.drain(..used);
        if !input.is_empty() || input.capacity() <= INPUT_KEPT {
            connection.input = input;
        }
        course
    }

    /// Answers the requests in `input`; how many bytes were used.
    fn take(&mut self, connection: &mut Connection, input: &[u8], tally: &impl Tally) -> (Course, usize) {
        let mut used = 0;
        loop {
            let course = self.send(connection, tally);
            if course != Course::Reading {
                return (course, used);
            }
            let Some(owed) = self.next(connection, &input[used..], &mut used) else {
                return (if connection.has_ended { Course::Over } else { Course::Reading }, used);
            };
            connection.owed = Some(owed);
            let delay = match owed.kind {
                Kind::Chosen(..) => self.delays.as_mut().map(Draws::next).filter(|delay| *delay > Nanos::ZERO),
                Kind::GoOn | Kind::Refused(_) => None,
            };
            if let Some(delay) = delay {
                // Only now: what has just been received came before this.
                let due = clock::now() + delay;
                connection.due = Some(due);
                self.agenda.add(due, connection.idx);
            }
        }
    }

    /// The next answers of one kind that `input` asks for, as many as can be sent at once.
    fn next(&mut self, connection: &mut Connection, input: &[u8], used: &mut usize) -> Option<Owed> {
        let mut owed: Option<Owed> = None;
        let mut at = 0;
        while at < input.len() {
            let before = connection.inquiry;
            let (length, asked) = connection.inquiry.read(&input[at..], &mut self.requests);
            let Some(asked) = asked else {
                at += length;
                break;
            };
            let kind = self.kind(asked, connection.n_answers);
            match &mut owed {
                None => owed = Some(Owed { kind, n_copies: 1, n_sent: 0 }),
                Some(owed) if owed.kind == kind && owed.n_copies < self.replies.copies_max(kind) => owed.n_copies += 1,
                Some(_) => {
                    connection.inquiry = before;
                    break;
                }
            }
            at += length;
            if let Kind::Chosen(..) = kind {
                connection.n_answers += 1;
                self.rotation.advance();
            }
            // Each answer has a delay of its own, and behind the last one nothing is answered.
            if self.delays.is_some() || kind.closes() {
                break;
            }
        }
        *used += at;
        owed
    }

    fn kind(&self, asked: Asked, n_answers: u64) -> Kind {
        match asked {
            Asked::GoOn => Kind::GoOn,
            Asked::Refused(refusal) => Kind::Refused(refusal),
            Asked::Answer(wants) => {
                let is_last = self.common.options.keep_alive.ends_after(n_answers);
                Kind::Chosen(self.rotation.next(), wants.part, if is_last { Fate::Closes } else { wants.fate })
            }
        }
    }

    /// Hands to the kernel what is owed, once it is due.
    fn send(&mut self, connection: &mut Connection, tally: &impl Tally) -> Course {
        if connection.due.is_some() {
            return Course::Waiting;
        }
        self.pause(tally);
        let mut n_sent = 0;
        let mut course = self.hand_over(connection, &mut n_sent);
        let done = if course == Course::Reading { connection.owed.take() } else { None };
        if let Some(Owed { kind, n_copies, .. }) = done {
            match kind {
                Kind::Chosen(..) => tally.add(Served::Requests, n_copies as u64),
                Kind::Refused(_) => tally.add(Served::Rejected, 1),
                Kind::GoOn => {}
            }
            connection.is_last |= kind.closes();
        }
        if connection.is_last && course == Course::Reading {
            connection.line.close(&connection.socket, &mut n_sent);
            course = hang_up(&connection.socket);
        }
        if n_sent > 0 {
            tally.add(Served::BytesSent, n_sent);
        }
        course
    }

    fn hand_over(&self, connection: &mut Connection, n_sent: &mut u64) -> Course {
        let Connection { line, socket, owed, .. } = connection;
        if let Some(owed) = owed {
            let [first, second] = self.replies.parts(owed.kind, owed.n_copies);
            while owed.n_sent < first.len() + second.len() {
                let rest = first.get(owed.n_sent..).filter(|rest| !rest.is_empty());
                let rest = rest.unwrap_or_else(|| &second[owed.n_sent - first.len()..]);
                match line.send(socket, rest, n_sent) {
                    Ok(Some(n)) => owed.n_sent += n,
                    Ok(None) => return Course::Sending,
                    Err(Broken) => return Course::Over,
                }
            }
        }
        match line.flush(socket, n_sent) {
            Ok(Flushed::All) => Course::Reading,
            Ok(Flushed::NotYet) => Course::Sending,
            Err(Broken) => Course::Over,
        }
    }

    /// Ends what is too slow or idle for too long, and accepts again if there is room.
    fn sweep(&mut self, now: Nanos, tally: &impl Tally) {
        let options = &self.common.options;
        for (idx, place) in self.connections.iter_mut().enumerate() {
            let too_long = |connection: &mut Connection| {
                let idle = connection.course == Course::Reading
                    && connection.input.is_empty()
                    && !connection.inquiry.is_in_body()
                    && !connection.line.is_handshaking();
                connection.course != Course::Waiting
                    && now.since(connection.since) > if idle { options.idle } else { options.patience }
            };
            if place.take_if(too_long).is_some() {
                self.free.push(idx);
                tally.add(Served::TimedOut, 1);
            }
        }
        // One entry for each connection is usual, and a few more for those that have just ended.
        if self.agenda.len() > 2 * self.connections.len() + 64 {
            let connections = &self.connections;
            let waits = |due, idx: usize| connections[idx].as_ref().is_some_and(|waiting| waiting.due == Some(due));
            self.agenda.keep(waits);
        }
        if !self.accepting {
            self.accepting = self.epoll.add(&self.listener, LISTENER, Interest::READ).is_ok();
        }
    }
}

/// The end of the stall that is now.
fn stalls_until(stall: Stall, start: Nanos) -> Option<Nanos> {
    stall.end(clock::now().since(start)).map(|end| start + end)
}

/// Ends a connection so that its last answer arrives: bytes left unread would turn the close into a reset.
fn hang_up(socket: &Socket) -> Course {
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut unread = [0; 4096];
    for _ in 0..16 {
        if !matches!(socket::recv(socket, &mut unread, Wait::Never), Ok(Some(1..))) {
            break;
        }
    }
    Course::Over
}

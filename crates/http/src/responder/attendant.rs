//! One worker of a responder: its listener, its connections, its epoll.
//!
//! Level-triggered: one receive per event, then everything that it completed is answered straight away. Only when the other
//! side does not take its answer is the interest changed, and nothing more is read until it did.

use fathom_engine::Error;
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    epoll::{Epoll, Event, Events, Interest},
    socket::{self, Socket, Wait},
};

use super::{
    ResponderOptions,
    reply::{Kind, Replies},
    request::RequestReader,
};

/// The token of the listener; connections have their index.
const LISTENER: u64 = u64::MAX;
/// How much is received at once: many pipelined requests, or the longest head several times.
const BUFFER: usize = 64 * 1024;
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
    socket: Socket,
    /// What came of a request that is not complete, or behind an answer that is not yet taken.
    input: Vec<u8>,
    owed: Option<Owed>,
    /// When the current request, answer or pause began.
    since: Nanos,
}

/// Whether a connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// It waits for a request.
    Reading,
    /// It waits for the other side to take the answer.
    Sending,
    /// It has ended.
    Over,
}

/// One worker.
#[derive(Debug)]
pub(crate) struct Attendant {
    listener: Socket,
    accepting: bool,
    epoll: Epoll,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
    replies: Replies,
    requests: RequestReader,
    options: ResponderOptions,
}

impl Attendant {
    pub(super) fn new(listener: Socket, options: &ResponderOptions) -> Result<Self, Error> {
        let prepared = Epoll::new().and_then(|epoll| epoll.add(&listener, LISTENER, Interest::READ).map(|()| epoll));
        Ok(Self {
            epoll: prepared.map_err(|cause| Error::System { what: "watch a listening socket".to_owned(), cause })?,
            listener,
            accepting: true,
            connections: Vec::new(),
            free: Vec::new(),
            buffer: vec![0; BUFFER],
            replies: Replies::new(options.size),
            requests: RequestReader::default(),
            options: options.clone(),
        })
    }

    /// Accepts and answers until told to end.
    pub(crate) fn serve(mut self, tally: &impl Tally) -> Result<(), Error> {
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
                .wait(&mut events, Some(TICK))
                .map_err(|cause| Error::System { what: "wait for requests".to_owned(), cause })?;
            // One stamp per batch: it only serves time-outs of seconds.
            let now = clock::now();
            for event in events.iter() {
                match usize::try_from(event.token) {
                    Ok(idx) if event.token != LISTENER => self.attend(idx, event, (now, tally)),
                    _ => self.accept(now, tally),
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, now: Nanos, tally: &impl Tally) {
        while self.connections.len() - self.free.len() < self.options.connections_max {
            match socket::accept(&self.listener) {
                Ok(Some((socket, _))) => {
                    // Without the option answers are merely slower, and it fails only on a connection that broke already.
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
        let idx = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if self.epoll.add(&socket, idx as u64, Interest::READ).is_ok() {
            self.connections[idx] = Some(Connection { socket, input: Vec::new(), owed: None, since: now });
        } else {
            self.free.push(idx);
        }
    }

    fn attend(&mut self, idx: usize, event: Event, (now, tally): (Nanos, &impl Tally)) {
        let Some(mut connection) = self.connections.get_mut(idx).and_then(Option::take) else { return };
        let (was_sending, n_before) = (connection.owed.is_some(), connection.input.len());
        let course = match connection.owed {
            Some(_) if event.writable || event.failed => self.answer(&mut connection, tally),
            Some(_) => Course::Sending,
            None => self.receive(&mut connection, tally),
        };
        let interest = match course {
            Course::Reading => Interest::READ,
            Course::Sending => Interest::WRITE,
            Course::Over => {
                self.free.push(idx);
                return;
            }
        };
        // A request that merely grows must be complete within the patience that it began with.
        let grows = n_before > 0 && connection.input.len() > n_before && course == Course::Reading;
        if was_sending || !grows {
            connection.since = now;
        }
        if was_sending != (course == Course::Sending)
            && self.epoll.modify(&connection.socket, idx as u64, interest).is_err()
        {
            self.free.push(idx);
            return;
        }
        self.connections[idx] = Some(connection);
    }

    fn receive(&mut self, connection: &mut Connection, tally: &impl Tally) -> Course {
        match socket::recv(&connection.socket, &mut self.buffer, Wait::Never) {
            Ok(Some(0)) | Err(_) => Course::Over,
            Ok(None) => Course::Reading,
            Ok(Some(n)) if connection.input.is_empty() => {
                // As a rule whole requests arrive, and are read where they lie.
                let buffer = std::mem::take(&mut self.buffer);
                let (course, used) = self.take(connection, &buffer[..n], tally);
                connection.input.extend_from_slice(&buffer[used..n]);
                self.buffer = buffer;
                course
            }
            Ok(Some(n)) => {
                connection.input.extend_from_slice(&self.buffer[..n]);
                self.answer(connection, tally)
            }
        }
    }

    /// Sends what is owed, then answers what is in the connection's own input.
    fn answer(&mut self, connection: &mut Connection, tally: &impl Tally) -> Course {
        let course = self.send(connection, tally);
        if course != Course::Reading {
            return course;
        }
        let mut input = std::mem::take(&mut connection.input);
        let (course, used) = self.take(connection, &input, tally);
        input.drain(..used);
        connection.input = input;
        course
    }

    /// Answers the requests in `input`; how many bytes were used.
    fn take(&mut self, connection: &mut Connection, input: &[u8], tally: &impl Tally) -> (Course, usize) {
        let mut used = 0;
        loop {
            let Some(owed) = self.next(&input[used..], &mut used) else { return (Course::Reading, used) };
            connection.owed = Some(owed);
            let course = self.send(connection, tally);
            if course != Course::Reading {
                return (course, used);
            }
        }
    }

    /// The next requests of one kind in `input`, as many as can be answered at once.
    fn next(&mut self, input: &[u8], used: &mut usize) -> Option<Owed> {
        let mut owed: Option<Owed> = None;
        let mut at = 0;
        while at < input.len() {
            let (kind, length) = match self.requests.read(&input[at..]) {
                Ok(Some((wants, length))) => (Kind::Ok(wants), length),
                Ok(None) => break,
                Err(refusal) => (Kind::Refused(refusal), input.len() - at),
            };
            match &mut owed {
                None => owed = Some(Owed { kind, n_copies: 1, n_sent: 0 }),
                Some(owed) if owed.kind == kind && owed.n_copies < self.replies.copies_max(kind) => owed.n_copies += 1,
                Some(_) => break,
            }
            at += length;
        }
        *used += at;
        owed
    }

    /// Hands to the kernel what is owed.
    fn send(&mut self, connection: &mut Connection, tally: &impl Tally) -> Course {
        let Some(owed) = &mut connection.owed else { return Course::Reading };
        let [first, second] = self.replies.parts(owed.kind, owed.n_copies);
        while owed.n_sent < first.len() + second.len() {
            let rest = first.get(owed.n_sent..).filter(|rest| !rest.is_empty());
            let rest = rest.unwrap_or_else(|| &second[owed.n_sent - first.len()..]);
            match socket::send(&connection.socket, rest, Wait::Never) {
                Ok(Some(n)) => {
                    owed.n_sent += n;
                    tally.add(Served::BytesSent, n as u64);
                }
                Ok(None) => return Course::Sending,
                Err(_) => return Course::Over,
            }
        }
        let kind = owed.kind;
        match kind {
            Kind::Ok(_) => tally.add(Served::Requests, owed.n_copies as u64),
            Kind::Refused(_) => tally.add(Served::Rejected, 1),
        }
        connection.owed = None;
        if kind.closes() { hang_up(&connection.socket) } else { Course::Reading }
    }

    /// Ends what is too slow or idle for too long, and accepts again if there is room.
    fn sweep(&mut self, now: Nanos, tally: &impl Tally) {
        for (idx, place) in self.connections.iter_mut().enumerate() {
            let too_long = place.as_ref().is_some_and(|connection| {
                let idle = connection.owed.is_none() && connection.input.is_empty();
                now.since(connection.since) > if idle { self.options.idle } else { self.options.patience }
            });
            if too_long {
                *place = None;
                self.free.push(idx);
                tally.add(Served::TimedOut, 1);
            }
        }
        if !self.accepting {
            self.accepting = self.epoll.add(&self.listener, LISTENER, Interest::READ).is_ok();
        }
    }
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

//! The connections of one worker, each with at most one request under way.
//!
//! Edge-triggered, registered once per connection for both directions. A request is sent straight from where the answer before
//! it ended, so one costs one `send`, one `recv`, a share of an `epoll_wait` and one look at the clock: the stamp at which an
//! answer is complete is also the stamp at which the next request is sent. Every stamp is its own, none is shared by a batch.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use fathom_engine::{Error, Phase, Worker};
use fathom_model::{Histogram, units::Nanos};
use fathom_sys::{
    clock,
    epoll::{Epoll, Event, Events, Interest},
    socket::{self, Connect, SockAddr, Socket, Wait},
};

use super::fault::{Cause, Fault, Faults, Stage};
use crate::h1::{Answer, HeadReader, Malformed, Method, Persistence, Progress, ResponseReader};

/// Large bodies are received in pieces of this size; of small ones only the first cache lines are touched.
const BUFFER: usize = 256 * 1024;
/// After so many receives other connections have their turn: a body may be longer than the trial.
const RECEIVES_MAX: u32 = 32;
/// More connects at once would overflow the accept queue of a server with the usual backlog.
const CONNECTING_MAX: usize = 128;
/// How soon the end and broken connections are noticed.
const TICK: Nanos = Nanos::from_millis(10);
/// How long answers are waited for when the trial is over.
const DRAIN: Nanos = Nanos::from_millis(100);
/// The pause before a connect that follows a failure; it doubles with each …
const PAUSE_MIN: Nanos = Nanos::from_millis(10);
/// … this many times.
const PAUSE_DOUBLINGS: u32 = 6;

/// What the requests are for.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// The address to send from, where the role gives one.
    pub(super) source: Option<IpAddr>,
    pub(super) request: Vec<u8>,
    pub(super) method: Method,
    pub(super) timeout: Nanos,
    /// Whether any worker has had a connection.
    pub(super) reached: AtomicBool,
}

/// The places of the counters.
#[derive(Debug, Clone, Copy)]
enum Counter {
    Requests,
    BytesReceived,
    Connections,
    Attempts,
    Errors,
    ClosedByServer,
    Status2xx,
}

/// What a worker brings home beside its counters.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) service: Histogram,
    pub(super) connect: Histogram,
    pub(super) first_byte: Histogram,
    pub(super) faults: Faults,
    pub(super) n_unfinished: u64,
}

impl Outcome {
    pub(super) fn merge(&mut self, other: &Self) {
        self.service.merge(&other.service);
        self.connect.merge(&other.connect);
        self.first_byte.merge(&other.first_byte);
        for (fault, n) in &other.faults {
            *self.faults.entry(*fault).or_default() += n;
        }
        self.n_unfinished += other.n_unfinished;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Without a socket until this time.
    Pausing(Nanos),
    /// Its turn to connect comes.
    Queued,
    Connecting(Nanos),
    /// A request is under way.
    Asking {
        sent_at: Nanos,
        first_byte: Option<Nanos>,
        n_sent: usize,
    },
    /// Of no more use.
    Done,
}

#[derive(Debug)]
struct Connection {
    socket: Option<Socket>,
    state: State,
    reader: ResponseReader,
    /// Connects and requests that failed since the last answer.
    n_failures: u32,
}

/// The connections of one worker.
#[derive(Debug)]
pub(super) struct Clients {
    target: Arc<Target>,
    address: SockAddr,
    epoll: Epoll,
    buffer: Vec<u8>,
    heads: HeadReader,
    connections: Vec<Connection>,
    /// Connections whose turn to connect comes, in order.
    queue: VecDeque<usize>,
    /// Connections whose bytes were not received to the end, as others had their turn.
    unread: Vec<usize>,
    n_connecting: usize,
    n_asking: usize,
    n_pausing: usize,
    n_failed_connects: usize,
    /// How many requests may still be sent; nothing for no bound.
    left: Option<u64>,
    may_ask: bool,
    measuring: bool,
    outcome: Outcome,
}

impl Clients {
    pub(super) fn new(target: &Arc<Target>, n_connections: u64, left: Option<u64>) -> Result<Self, Error> {
        let connection =
            |_| Connection { socket: None, state: State::Queued, reader: ResponseReader::default(), n_failures: 0 };
        let connections: Vec<_> = (0..n_connections).map(connection).collect();
        Ok(Self {
            target: Arc::clone(target),
            address: target.address.into(),
            epoll: Epoll::new().map_err(|cause| Error::System { what: "prepare connections".to_owned(), cause })?,
            buffer: vec![0; BUFFER],
            heads: HeadReader::new(target.method),
            queue: (0..connections.len()).collect(),
            connections,
            unread: Vec::new(),
            n_connecting: 0,
            n_asking: 0,
            n_pausing: 0,
            n_failed_connects: 0,
            left,
            may_ask: true,
            measuring: false,
            outcome: Outcome::default(),
        })
    }

    /// Keeps the connections busy until the trial is over, then waits shortly for the last answers.
    pub(super) fn run(mut self, worker: &Worker<'_>, is_counted: bool) -> Result<Outcome, Error> {
        let mut events = Events::with_capacity(256);
        let mut drained_at: Option<Nanos> = None;
        let mut swept_at = Nanos::ZERO;
        loop {
            let now = clock::now();
            let phase = worker.phase();
            if phase == Phase::Over {
                drained_at.get_or_insert(now + DRAIN);
            }
            self.may_ask = phase != Phase::Over && self.left != Some(0);
            self.measuring = is_counted || phase == Phase::Measure;
            let is_done = !self.may_ask && self.n_asking == 0;
            if is_done || drained_at.is_some_and(|end| now >= end) {
                self.outcome.n_unfinished = self.n_asking as u64;
                return Ok(self.outcome);
            }
            // Time-outs are seconds and may be noticed late; pauses are milliseconds.
            if now >= swept_at + if self.n_pausing > 0 { TICK } else { TICK * 10 } {
                self.sweep(now, worker);
                swept_at = now;
            }
            self.connect_queued(worker);
            self.check_reached()?;
            let timeout = if self.unread.is_empty() { TICK } else { Nanos::ZERO };
            self.epoll
                .wait(&mut events, Some(timeout))
                .map_err(|cause| Error::System { what: "wait for answers".to_owned(), cause })?;
            for idx in std::mem::take(&mut self.unread) {
                self.receive(idx, worker);
            }
            for event in events.iter() {
                if let Ok(idx) = usize::try_from(event.token) {
                    self.attend(idx, event, worker);
                }
            }
        }
    }

    /// Ends the trial when nothing of the target has ever been reached: there would be nothing to record.
    fn check_reached(&self) -> Result<(), Error> {
        if self.n_failed_connects < self.connections.len() || self.target.reached.load(Ordering::Relaxed) {
            return Ok(());
        }
        let cause = match self.outcome.faults.keys().next().map(|fault| fault.cause) {
            Some(Cause::Errno(errno)) => std::io::Error::from_raw_os_error(errno),
            _ => std::io::ErrorKind::TimedOut.into(),
        };
        let what = format!("connect to {}: {} attempts, none taken", self.target.address, self.n_failed_connects);
        Err(Error::System { what, cause: fathom_sys::Error::new("connect", cause) })
    }

    fn attend(&mut self, idx: usize, event: Event, worker: &Worker<'_>) {
        match self.connections[idx].state {
            State::Connecting(since) => self.connected(idx, since, worker),
            State::Asking { n_sent, .. } if n_sent < self.target.request.len() => self.send(idx, worker),
            _ => {}
        }
        if event.readable || event.failed {
            self.receive(idx, worker);
        }
    }

    /// Begins to connect what is queued, as far as there may be connects under way.
    fn connect_queued(&mut self, worker: &Worker<'_>) {
        // A connection without a request left for it would be opened for nothing.
        let wanted = self.left.map_or(CONNECTING_MAX, |left| usize::try_from(left).unwrap_or(CONNECTING_MAX));
        while self.may_ask && self.n_connecting < wanted.min(CONNECTING_MAX) {
            let Some(idx) = self.queue.pop_front() else { return };
            let now = clock::now();
            self.connections[idx].state = State::Connecting(now);
            self.n_connecting += 1;
            match self.open() {
                Ok((socket, connect)) => {
                    let watched = self.epoll.add(&socket, idx as u64, Interest { read: true, write: true, edge: true });
                    self.connections[idx].socket = Some(socket);
                    match (watched, connect) {
                        (Err(error), _) => self.fail(idx, Fault::system(Stage::Connect, &error), worker),
                        (Ok(()), Connect::Done) => self.connected(idx, now, worker),
                        (Ok(()), Connect::Pending) => {}
                    }
                }
                Err(error) => self.fail(idx, Fault::system(Stage::Connect, &error), worker),
            }
        }
    }

    fn open(&self) -> Result<(Socket, Connect), fathom_sys::Error> {
        let socket = socket::stream(self.target.address)?;
        socket.set_nonblocking(true).map_err(socket::named("fcntl(O_NONBLOCK)"))?;
        socket.set_tcp_nodelay(true).map_err(socket::named("setsockopt(TCP_NODELAY)"))?;
        if let Some(source) = self.target.source {
            socket::set_bind_address_no_port(&socket)?;
            socket.bind(&SocketAddr::new(source, 0).into()).map_err(socket::named("bind"))?;
        }
        let connect = socket::connect_begin(&socket, &self.address)?;
        Ok((socket, connect))
    }

    /// A connect has ended, well or not.
    fn connected(&mut self, idx: usize, since: Nanos, worker: &Worker<'_>) {
        let connection = &mut self.connections[idx];
        let Some(socket) = &connection.socket else { return };
        if let Err(error) = socket::connect_result(socket) {
            return self.fail(idx, Fault::system(Stage::Connect, &error), worker);
        }
        let now = clock::now();
        connection.reader.reset();
        self.n_connecting -= 1;
        self.target.reached.store(true, Ordering::Relaxed);
        worker.add(Counter::Connections as usize, 1);
        // Kept from the warm-up too: kept-alive connections are opened then, and seldom again.
        self.outcome.connect.record((now - since).0);
        self.ask(idx, now, worker);
    }

    /// Sends the next request, or ends the connection when there is none.
    fn ask(&mut self, idx: usize, now: Nanos, worker: &Worker<'_>) {
        if !self.may_ask || self.left == Some(0) {
            let connection = &mut self.connections[idx];
            (connection.socket, connection.state) = (None, State::Done);
            return;
        }
        self.left = self.left.map(|left| left - 1);
        self.n_asking += 1;
        self.connections[idx].state = State::Asking { sent_at: now, first_byte: None, n_sent: 0 };
        self.send(idx, worker);
    }

    /// Sends what is left of a request; the rest follows when the kernel has room again.
    fn send(&mut self, idx: usize, worker: &Worker<'_>) {
        let Connection { socket: Some(socket), state: State::Asking { n_sent, .. }, .. } = &mut self.connections[idx]
        else {
            return;
        };
        while *n_sent < self.target.request.len() {
            match socket::send(&*socket, &self.target.request[*n_sent..], Wait::Never) {
                Ok(Some(n)) => *n_sent += n,
                Ok(None) => return,
                Err(error) => return self.fail(idx, Fault::system(Stage::Send, &error), worker),
            }
        }
    }

    /// Receives until the answer is complete or nothing is left.
    fn receive(&mut self, idx: usize, worker: &Worker<'_>) {
        for _ in 0..RECEIVES_MAX {
            let connection = &mut self.connections[idx];
            let Connection { socket: Some(socket), state: State::Asking { first_byte, .. }, reader, .. } = connection
            else {
                return;
            };
            let n = match socket::recv(&*socket, &mut self.buffer, Wait::Never) {
                Ok(Some(0)) => return self.ended(idx, worker),
                Ok(Some(n)) => n,
                Ok(None) => return,
                Err(error) => return self.fail(idx, Fault::system(Stage::Read, &error), worker),
            };
            let now = clock::now();
            worker.add(Counter::BytesReceived as usize, n as u64);
            first_byte.get_or_insert(now);
            match reader.take(&self.buffer[..n], &mut self.heads) {
                Ok(Progress::Partial) => {}
                Ok(Progress::Complete { used, answer }) => {
                    return self.answered(idx, End { answer, n_surplus: n - used, at: now }, worker);
                }
                Err(malformed) => return self.fail(idx, Fault::parse(malformed), worker),
            }
        }
        self.unread.push(idx);
    }

    /// Counts an answer and goes on with the next request, on a new connection if it must be.
    fn answered(&mut self, idx: usize, end: End, worker: &Worker<'_>) {
        let connection = &mut self.connections[idx];
        let State::Asking { sent_at, first_byte, .. } = connection.state else { return };
        self.n_asking -= 1;
        connection.n_failures = 0;
        connection.state = State::Done;
        worker.add(Counter::Requests as usize, 1);
        worker.add(Counter::Attempts as usize, 1);
        worker.add(Counter::Status2xx as usize + usize::from((end.answer.status / 100).clamp(2, 6) - 2), 1);
        if self.measuring {
            self.outcome.service.record((end.at - sent_at).0);
            self.outcome.first_byte.record((first_byte.unwrap_or(end.at) - sent_at).0);
        }
        if end.n_surplus > 0 {
            self.fail(idx, Fault::parse(Malformed::Surplus), worker);
        } else if end.answer.persistence == Persistence::Closes {
            worker.add(Counter::ClosedByServer as usize, 1);
            self.connections[idx].socket = None;
            self.enqueue(idx);
        } else {
            self.ask(idx, end.at, worker);
        }
    }

    /// The server has ended the connection, which may be the end of its answer.
    fn ended(&mut self, idx: usize, worker: &Worker<'_>) {
        let connection = &self.connections[idx];
        let cause = match connection.state {
            State::Asking { first_byte: None, .. } => Cause::Closed,
            _ => Cause::Cut,
        };
        match connection.reader.end() {
            Some(answer) => self.answered(idx, End { answer, n_surplus: 0, at: clock::now() }, worker),
            None => self.fail(idx, Fault { stage: Stage::Read, cause }, worker),
        }
    }

    fn enqueue(&mut self, idx: usize) {
        self.connections[idx].state = State::Queued;
        self.queue.push_back(idx);
    }

    /// Counts a failure and gives the connection up; one that had worked is opened anew at once, others after a pause.
    fn fail(&mut self, idx: usize, fault: Fault, worker: &Worker<'_>) {
        let connection = &mut self.connections[idx];
        match connection.state {
            State::Connecting(_) => {
                self.n_connecting -= 1;
                self.n_failed_connects += 1;
            }
            State::Asking { .. } => self.n_asking -= 1,
            _ => {}
        }
        *self.outcome.faults.entry(fault).or_default() += 1;
        worker.add(Counter::Attempts as usize, 1);
        worker.add(Counter::Errors as usize, 1);
        connection.socket = None;
        connection.n_failures += 1;
        let doublings = (connection.n_failures - 1).min(PAUSE_DOUBLINGS);
        if doublings == 0 && fault.stage != Stage::Connect {
            return self.enqueue(idx);
        }
        connection.state = State::Pausing(clock::now() + PAUSE_MIN * (1 << doublings));
        self.n_pausing += 1;
    }

    /// Ends what has taken too long, and what has paused for long enough.
    fn sweep(&mut self, now: Nanos, worker: &Worker<'_>) {
        let is_late = |since: Nanos| now.since(since) > self.target.timeout;
        let mut late = Vec::new();
        for (idx, connection) in self.connections.iter_mut().enumerate() {
            match connection.state {
                State::Pausing(until) if until <= now => {
                    self.n_pausing -= 1;
                    connection.state = State::Queued;
                    self.queue.push_back(idx);
                }
                State::Connecting(since) if is_late(since) => late.push((idx, Stage::Connect)),
                State::Asking { sent_at, .. } if is_late(sent_at) => late.push((idx, Stage::Read)),
                _ => {}
            }
        }
        for (idx, stage) in late {
            self.fail(idx, Fault { stage, cause: Cause::Timeout }, worker);
        }
    }
}

/// How an answer ended.
#[derive(Debug, Clone, Copy)]
struct End {
    answer: Answer,
    /// Bytes behind it that no request asked for.
    n_surplus: usize,
    /// When its last byte was received.
    at: Nanos,
}

//! The loop that sends what is due on all flows, takes what comes back, and opens connections anew.

use fathom_engine::{Error, Stop, TrialContext, WorkerHandle};
use fathom_model::{FailureCounts, Histogram, Note, OutageCause, units::Nanos};
use fathom_sys::{
    clock,
    policy::Destination,
    reactor::epoll_wait::{Epoll, Interest, Readiness, ReadyList},
    socket::{self, Connect, Socket, Wait},
};

use super::{
    INTENDED, RECEIVED, SENT,
    track::{AnswerKind, FlowTrack},
};
use crate::{
    ask,
    carrier::Carrier,
    dialect::Dialect,
    message::{self, LENGTH_MAX, Question},
    sources::Sources,
};

/// How often timeouts, silence and reconnects are looked at: less than the finest bucket would show.
const LOOK_EVERY: Nanos = Nanos::from_millis(2);
/// The messages that are sent before answers are read and the end is looked for.
const MESSAGES_AT_ONCE: usize = 256;
/// The first pause after a connect that failed; it doubles.
const RETRY_FIRST: Nanos = Nanos::from_millis(10);
const RETRY_MAX: Nanos = Nanos::from_millis(500);
/// How long a connect may take before the start.
const CONNECT_MAX: Nanos = Nanos::from_secs(3);
/// The most that answers are waited for after the last message.
const DRAIN_MAX: Nanos = Nanos::from_secs(2);
/// More unwritten bytes of a flow than this, and its messages count as unsent.
const UNWRITTEN_MAX: usize = 256 * 1024;
const STRANGE: &str = "read: not an answer of a target";

/// How flows are driven.
#[derive(Debug, Clone)]
pub(super) struct DriveConfig {
    pub(super) carrier: Carrier,
    /// The bytes of a message.
    pub(super) length: usize,
    pub(super) give_up: Nanos,
    /// Whether a TCP connection that broke stays so.
    pub(super) is_once: bool,
    /// The longest wait for an answer.
    pub(super) timeout: Nanos,
}

/// What a worker leaves behind.
pub(super) struct DriveResults {
    pub(super) tracks: Vec<FlowTrack>,
    /// From when a message was due to its answer.
    pub(super) response: Histogram,
    pub(super) connect: Histogram,
    pub(super) errors: FailureCounts,
    /// The longest time from when a message was due to when it was taken up.
    pub(super) behind: Nanos,
    /// The messages that were due at the end and were not taken up.
    pub(super) n_left: u64,
}

/// The connection of a flow.
enum FlowLink {
    Open(Socket),
    /// Since this time of the clock.
    Connecting(Socket, Nanos),
    /// The next attempt is at this time of the clock.
    Down(Nanos),
}

struct DrivenFlow {
    track: FlowTrack,
    link: FlowLink,
    unwritten: Vec<u8>,
    read: Vec<u8>,
    pause: Nanos,
}

/// All flows of a test, connected, in the order in which they begin.
pub(super) struct FlowDriver {
    to: Destination,
    sources: Sources,
    flows: Vec<DrivenFlow>,
    connect: Histogram,
}

impl FlowDriver {
    /// Asks who answers, and connects all flows.
    ///
    /// # Errors
    /// Nobody tells who it is, or a connect fails.
    pub(super) fn connect(
        config: &DriveConfig,
        to: Destination,
        mut sources: Sources,
        tracks: Vec<FlowTrack>,
        dialect: Dialect,
    ) -> Result<Self, Error> {
        ask::ask((config.carrier, dialect), &to, &mut sources)?;
        let mut driver = Self { to, sources, flows: Vec::with_capacity(tracks.len()), connect: Histogram::new() };
        for track in tracks {
            let begin = clock::now();
            let socket = driver.open(config.carrier).and_then(|socket| {
                if config.carrier == Carrier::Tcp {
                    socket::connect(&socket, &driver.to, CONNECT_MAX)?;
                    socket.set_nonblocking(true).map_err(socket::error_of("fcntl(O_NONBLOCK)"))?;
                }
                Ok(socket)
            });
            let n = driver.flows.len();
            let socket = socket
                .map_err(|cause| Error::System { what: format!("connect flow {n} to {}", driver.address()), cause })?;
            if config.carrier == Carrier::Tcp {
                driver.connect.record((clock::now() - begin).0);
            }
            let mut flow = DrivenFlow {
                track,
                link: FlowLink::Down(Nanos::ZERO),
                unwritten: Vec::new(),
                read: Vec::new(),
                pause: RETRY_FIRST,
            };
            flow.track.connected(Nanos::ZERO, &local_address(&socket));
            flow.link = FlowLink::Open(socket);
            driver.flows.push(flow);
        }
        Ok(driver)
    }

    /// The address that was asked, as text.
    pub(super) fn address(&self) -> String {
        self.to.address().map_or_else(String::new, |to| to.to_string())
    }

    /// What was changed on this host.
    pub(super) fn note(&self) -> Option<Note> {
        self.sources.note()
    }

    /// Opens a socket from the next source; a datagram socket is associated with the address.
    fn open(&mut self, carrier: Carrier) -> fathom_sys::Result<Socket> {
        let address = self.to.address().expect("a destination of this test is an IP address");
        match carrier {
            Carrier::Tcp => {
                let socket = socket::stream(address)?;
                self.sources.bind(&socket)?;
                socket.set_tcp_nodelay(true).map_err(socket::error_of("setsockopt(TCP_NODELAY)"))?;
                Ok(socket)
            }
            Carrier::Udp => {
                let socket = socket::datagram_unbound(address)?;
                self.sources.bind(&socket)?;
                socket::associate(&socket, &self.to)?;
                Ok(socket)
            }
        }
    }

    /// Runs all flows from the start to the end.
    ///
    /// # Errors
    /// Those of `epoll`.
    pub(super) fn run(
        self,
        worker: &WorkerHandle<'_>,
        config: &DriveConfig,
        context: &TrialContext,
    ) -> Result<DriveResults, Error> {
        let failed = |cause| Error::System { what: "watch the flows".to_owned(), cause };
        let epoll = Epoll::new().map_err(failed)?;
        let course = DriveLoop {
            driver: self,
            worker,
            config,
            epoll,
            message: vec![0; config.length],
            room: vec![0; LENGTH_MAX],
            response: Histogram::new(),
            errors: FailureCounts::default(),
            behind: Nanos::ZERO,
        };
        course.run(context).map_err(failed)
    }
}

fn local_address(socket: &Socket) -> String {
    socket::local_address(socket).map_or_else(|_| String::new(), |local| local.to_string())
}

/// Returns how a connection ended by an error.
fn cause_of(error: &fathom_sys::Error) -> OutageCause {
    use std::io::ErrorKind;
    match error.source.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => OutageCause::Reset,
        ErrorKind::ConnectionRefused => OutageCause::Refused,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => OutageCause::Unreachable,
        ErrorKind::TimedOut => OutageCause::TimedOut,
        _ => OutageCause::Closed,
    }
}

struct DriveLoop<'a> {
    driver: FlowDriver,
    worker: &'a WorkerHandle<'a>,
    config: &'a DriveConfig,
    epoll: Epoll,
    message: Vec<u8>,
    room: Vec<u8>,
    response: Histogram,
    errors: FailureCounts,
    behind: Nanos,
}

impl DriveLoop<'_> {
    fn run(mut self, context: &TrialContext) -> fathom_sys::Result<DriveResults> {
        let mut events = ReadyList::with_capacity(512);
        for (token, flow) in (0..).zip(&self.driver.flows) {
            if let FlowLink::Open(socket) = &flow.link {
                self.epoll.add(socket, token, Interest::READ)?;
            }
        }
        let (mut cursor, mut next_look) = (0, Nanos::ZERO);
        let (mut drained_at, mut n_left) = (None, 0);
        loop {
            let now = self.now();
            if self.worker.is_over() {
                let deadline = *drained_at.get_or_insert_with(|| {
                    n_left = self.driver.flows.iter().map(|flow| flow.track.n_left(now)).sum();
                    now + self.config.timeout.min(DRAIN_MAX)
                });
                let is_all_told = self.driver.flows.iter().all(|flow| flow.track.n_waiting() == 0);
                if is_all_told || now >= deadline || context.stop.state() == Stop::Abort {
                    break;
                }
            } else {
                self.send_due(&mut cursor, now)?;
            }
            if now >= next_look {
                self.look_after(now)?;
                next_look = now + LOOK_EVERY;
            }
            let next_due = self.driver.flows.get(cursor).map_or(Nanos::MAX, |flow| flow.track.next_due());
            let next = if drained_at.is_some() { next_look } else { next_look.min(next_due) };
            self.epoll.wait(&mut events, Some(next.since(self.now())))?;
            for event in events.iter() {
                self.on_event(event)?;
            }
        }
        let now = self.now();
        let flows = self.driver.flows;
        let tracks = flows.into_iter().map(|mut flow| {
            flow.track.expire(now);
            flow.track
        });
        Ok(DriveResults {
            tracks: tracks.collect(),
            response: self.response,
            connect: self.driver.connect,
            errors: self.errors,
            behind: self.behind,
            n_left,
        })
    }

    /// The time since the start.
    fn now(&self) -> Nanos {
        clock::now().since(self.worker.start)
    }

    /// Sends messages that are due, as many as one turn may have. All flows have the same interval, so that they take turns.
    fn send_due(&mut self, cursor: &mut usize, now: Nanos) -> fathom_sys::Result<()> {
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(flow) = self.driver.flows.get(*cursor) else { break };
            let due = flow.track.next_due();
            if due > now {
                break;
            }
            self.behind = self.behind.max(now.since(due));
            self.send(*cursor, now)?;
            *cursor = (*cursor + 1) % self.driver.flows.len();
        }
        Ok(())
    }

    /// Takes a message off the schedule of a flow and sends it.
    fn send(&mut self, idx: usize, now: Nanos) -> fathom_sys::Result<()> {
        let flow = &mut self.driver.flows[idx];
        let number = flow.track.take_due();
        self.worker.add(INTENDED, 1);
        let FlowLink::Open(socket) = &flow.link else {
            flow.track.not_sent();
            return Ok(());
        };
        Question { number, flow: token_of(idx) }.write(&mut self.message);
        if self.config.carrier == Carrier::Udp {
            // The refusal of an earlier datagram is told at the next call, which does not send.
            let mut sent = socket::send(socket, &self.message, Wait::Never);
            if let Err(error) = &sent {
                flow.track.refused(now, cause_of(error));
                sent = socket::send(socket, &self.message, Wait::Never);
            }
            match sent {
                Ok(Some(_)) => self.worker.add(SENT, 1),
                Ok(None) | Err(_) => flow.track.not_sent(),
            }
            return Ok(());
        }
        if flow.unwritten.len() > UNWRITTEN_MAX {
            flow.track.not_sent();
            return Ok(());
        }
        self.worker.add(SENT, 1);
        flow.unwritten.extend_from_slice(&self.message);
        if flow.unwritten.len() == self.message.len() {
            return self.write(idx, Interest::READ);
        }
        Ok(())
    }

    /// Writes what a flow has to write; `interest` is what its socket is watched for now.
    fn write(&mut self, idx: usize, interest: Interest) -> fathom_sys::Result<()> {
        let flow = &mut self.driver.flows[idx];
        let FlowLink::Open(socket) = &flow.link else { return Ok(()) };
        while !flow.unwritten.is_empty() {
            match socket::send(socket, &flow.unwritten, Wait::Never) {
                Ok(Some(count)) => drop(flow.unwritten.drain(..count)),
                Ok(None) => break,
                Err(error) => {
                    self.break_connection(idx, cause_of(&error));
                    return Ok(());
                }
            }
        }
        let wanted = Interest { write: !flow.unwritten.is_empty(), ..Interest::READ };
        if wanted.write != interest.write {
            self.epoll.modify(socket, token_of(idx), wanted)?;
        }
        Ok(())
    }

    fn break_connection(&mut self, idx: usize, cause: OutageCause) {
        let now = self.now();
        let flow = &mut self.driver.flows[idx];
        flow.track.broke(now, cause);
        flow.unwritten.clear();
        flow.read.clear();
        // The first attempt is made at once.
        let next = if self.config.is_once { Nanos::MAX } else { clock::now() };
        (flow.link, flow.pause) = (FlowLink::Down(next), RETRY_FIRST);
    }

    /// Looks for timeouts, for connections that are silent, and for flows that need a connection.
    fn look_after(&mut self, now: Nanos) -> fathom_sys::Result<()> {
        let clock_now = clock::now();
        for idx in 0..self.driver.flows.len() {
            let flow = &mut self.driver.flows[idx];
            flow.track.expire(now);
            if self.config.carrier == Carrier::Udp {
                continue;
            }
            match &flow.link {
                FlowLink::Open(_) if flow.track.is_silent_for(self.config.give_up, now) => {
                    self.break_connection(idx, OutageCause::TimedOut);
                }
                FlowLink::Connecting(_, since) if clock_now.since(*since) >= self.config.give_up => {
                    self.errors.count("connect: timeout");
                    self.connect_failed(idx, OutageCause::TimedOut);
                }
                FlowLink::Down(at) if *at <= clock_now && !self.worker.is_over() => self.reconnect(idx)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A connect failed: the next one is made after a pause that becomes longer each time.
    fn connect_failed(&mut self, idx: usize, cause: OutageCause) {
        let now = self.now();
        let flow = &mut self.driver.flows[idx];
        flow.track.broke(now, cause);
        flow.link = FlowLink::Down(clock::now() + flow.pause);
        flow.pause = (flow.pause * 2).min(RETRY_MAX);
    }

    fn reconnect(&mut self, idx: usize) -> fathom_sys::Result<()> {
        let begun = clock::now();
        let opened = self.driver.open(Carrier::Tcp).and_then(|socket| {
            socket.set_nonblocking(true).map_err(socket::error_of("fcntl(O_NONBLOCK)"))?;
            let connect = socket::connect_begin(&socket, &self.driver.to)?;
            Ok((socket, connect))
        });
        let (socket, connect) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.errors.count(&error);
                self.connect_failed(idx, cause_of(&error));
                return Ok(());
            }
        };
        self.epoll.add(&socket, token_of(idx), Interest { write: true, ..Interest::READ })?;
        self.driver.flows[idx].link = FlowLink::Connecting(socket, begun);
        if connect == Connect::Done { self.opened(idx) } else { Ok(()) }
    }

    /// A connect succeeded.
    fn opened(&mut self, idx: usize) -> fathom_sys::Result<()> {
        let now = self.now();
        let flow = &mut self.driver.flows[idx];
        let FlowLink::Connecting(socket, since) = std::mem::replace(&mut flow.link, FlowLink::Down(Nanos::MAX)) else {
            return Ok(());
        };
        self.driver.connect.record((clock::now() - since).0);
        flow.track.connected(now, &local_address(&socket));
        self.epoll.modify(&socket, token_of(idx), Interest::READ)?;
        (flow.link, flow.pause) = (FlowLink::Open(socket), RETRY_FIRST);
        Ok(())
    }

    fn on_event(&mut self, event: Readiness) -> fathom_sys::Result<()> {
        let idx = usize::try_from(event.token).expect("a token is the place of a flow");
        match &self.driver.flows[idx].link {
            FlowLink::Connecting(socket, _) => match socket::connect_result(socket) {
                Ok(()) if event.writable => self.opened(idx)?,
                Ok(()) => {}
                Err(error) => {
                    self.errors.count(&error);
                    self.connect_failed(idx, cause_of(&error));
                }
            },
            FlowLink::Open(_) => {
                if event.writable {
                    self.write(idx, Interest { write: true, ..Interest::READ })?;
                }
                if event.readable || event.failed {
                    self.read(idx);
                }
            }
            FlowLink::Down(_) => {}
        }
        Ok(())
    }

    /// Takes everything that arrived on a flow.
    fn read(&mut self, idx: usize) {
        loop {
            let flow = &mut self.driver.flows[idx];
            let FlowLink::Open(socket) = &flow.link else { return };
            match (socket::recv(socket, &mut self.room, Wait::Never), self.config.carrier) {
                (Ok(None), _) => return,
                (Ok(Some(0)), Carrier::Tcp) => return self.break_connection(idx, OutageCause::Closed),
                (Ok(Some(count)), Carrier::Tcp) => {
                    flow.read.extend_from_slice(&self.room[..count]);
                    if self.take_answers(idx).is_err() {
                        self.errors.count(STRANGE);
                        return self.break_connection(idx, OutageCause::Closed);
                    }
                }
                (Ok(Some(count)), Carrier::Udp) => match message::read(&self.room[..count]) {
                    Ok(answer) => self.take_answer(idx, answer),
                    Err(message::NotAMessage) => self.errors.count(STRANGE),
                },
                (Err(error), Carrier::Tcp) => return self.break_connection(idx, cause_of(&error)),
                (Err(error), Carrier::Udp) => {
                    let now = clock::now().since(self.worker.start);
                    flow.track.refused(now, cause_of(&error));
                }
            }
        }
    }

    /// Takes all whole answers that were read on a connection.
    fn take_answers(&mut self, idx: usize) -> Result<(), message::NotAMessage> {
        let mut read = std::mem::take(&mut self.driver.flows[idx].read);
        let mut begin = 0;
        while let Some(length) = message::length_of(&read[begin..])? {
            let Some(whole) = read.get(begin..begin + length) else { break };
            let answer = message::read(whole)?;
            self.take_answer(idx, answer);
            begin += length;
        }
        read.drain(..begin);
        self.driver.flows[idx].read = read;
        Ok(())
    }

    fn take_answer(&mut self, idx: usize, answer: message::Answer) {
        if answer.flow != token_of(idx) {
            self.errors.count("read: an answer of another flow");
            return;
        }
        let now = self.now();
        match self.driver.flows[idx].track.answered(answer.number, answer.identity, now) {
            AnswerKind::InTime(took) | AnswerKind::Late(took) => {
                self.worker.add(RECEIVED, 1);
                self.worker.show_latency(took);
                self.response.record(took.0);
            }
            AnswerKind::Duplicate => {}
            AnswerKind::Stray => self.errors.count("read: an answer to nothing"),
        }
    }
}

/// The token of a flow by its place.
fn token_of(idx: usize) -> u64 {
    u64::try_from(idx).expect("a place is a token")
}

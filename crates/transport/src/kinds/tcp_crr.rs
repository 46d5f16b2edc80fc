//! How fast connections are opened, used once and closed.
//!
//! A closed model: each flow connects, asks, has its answer, waits for the responder to close, closes, and begins again. The
//! responder closes first, as HTTP/1.0 servers do, so that the initiator's ports are not held by TIME-WAIT. With `--close reset`
//! the initiator resets instead, which costs less and is noted beside the number.

use std::sync::Arc;

use fathom_engine::{Crew, Error, Phase, Session, Stop, Test, TestKind, Worker};
use fathom_model::{
    Better, Derivation, Endpoints, Histogram, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, Unit,
    ValueKind,
    metric::{Measure, Named},
    names::{
        count,
        distribution::{CONNECT_TIME, SERVICE_TIME},
    },
    units::Nanos,
};
use fathom_sys::{
    clock,
    epoll::{Epoll, Event, Events, Interest},
    socket::{self, SockAddr, Socket, Wait},
};

use super::{LATENCY, tcp_rr};
use crate::{
    causes::Causes,
    link::{self, PATIENCE, deal},
    options::{self, CONGESTION, DSCP, FLOWS, PORT, REQUEST, RESPONSE, SocketOptions, WORKERS},
    talk::{Buffers, Step, Talk, Turn, Turns},
};

/// Connect, request, response, close.
pub(crate) struct TcpCrr;

const SOURCE: &str = "docs/methods/tcp_crr.md";
const METRICS: &[Metric] = &[
    Metric::of(
        Named("connections_per_sec", "connections"),
        Measure(Unit::PerSec, Better::Higher),
        SOURCE,
        Derivation::rate(Side::Initiator, count::TRANSACTIONS),
    ),
    Metric::of(
        Named("latency_ns_p50", "p50"),
        LATENCY,
        SOURCE,
        Derivation::quantile(Side::Initiator, SERVICE_TIME, 0.5),
    ),
    Metric::of(
        Named("latency_ns_p99", "p99"),
        LATENCY,
        SOURCE,
        Derivation::quantile(Side::Initiator, SERVICE_TIME, 0.99),
    ),
    Metric::of(
        Named("latency_ns_max", "max"),
        LATENCY,
        SOURCE,
        Derivation::quantile(Side::Initiator, SERVICE_TIME, 1.0),
    ),
    Metric::of(
        Named("connect_ns_p50", "connect p50"),
        LATENCY,
        SOURCE,
        Derivation::quantile(Side::Initiator, CONNECT_TIME, 0.5),
    ),
    Metric::of(
        Named("connect_ns_p99", "connect p99"),
        LATENCY,
        SOURCE,
        Derivation::quantile(Side::Initiator, CONNECT_TIME, 0.99),
    ),
    Metric::of(
        Named("cost_initiator_ns", "initiator's CPU per connection"),
        LATENCY,
        SOURCE,
        Derivation::cost(Side::Initiator, count::TRANSACTIONS),
    ),
    Metric::of(
        Named("cost_responder_ns", "responder's CPU per connection"),
        LATENCY,
        SOURCE,
        Derivation::cost(Side::Responder, count::TRANSACTIONS),
    ),
];
const COUNTERS: &[&str] = &[count::TRANSACTIONS, count::CONNECTIONS];
const TRANSACTIONS: usize = 0;
const CONNECTIONS: usize = 1;

const CLOSE: OptionDoc = OptionDoc {
    name: "close",
    value: ValueKind::Choice(&["orderly", "reset"]),
    default: Some("orderly"),
    help: "how a connection ends: the responder closes first, or the initiator resets it",
};
/// Room in each listener's queue; the kernel bounds it by `net.core.somaxconn`.
const BACKLOG: usize = 4096;
/// A request up to this size is one segment on every path (RFC 9293 section 3.7.1), and Nagle's algorithm delays only a second one.
const ONE_SEGMENT: usize = 536;
/// How long a flow whose connect was refused waits before it tries again.
const RETRY: Nanos = Nanos::from_millis(10);

impl TestKind for TcpCrr {
    fn name(&self) -> &'static str {
        "tcp_crr"
    }

    fn about(&self) -> &'static str {
        "connections per second, each used for one transaction, and their latency"
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        match settings.count(FLOWS.name).unwrap_or(1) {
            1 => "connect + rr".to_owned(),
            n => format!("connect + rr, {n} at a time"),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[FLOWS, WORKERS, REQUEST, RESPONSE, CLOSE, CONGESTION, DSCP, PORT]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        let turns = tcp_rr::turns(role)?;
        let resets = role.settings.text(CLOSE.name).as_deref() == Some("reset");
        let test = Churn { role: role.clone(), turns, resets, options: SocketOptions::of(&role.settings) };
        Ok(match role.side {
            Side::Initiator => {
                let to = link::told(role, self.name())?;
                Box::new(Caller { test, to: to.into() })
            }
            Side::Responder => Box::new(Called::listen(test)?),
        })
    }
}

/// What both sides have in hand.
struct Churn {
    role: Role,
    turns: Turns,
    resets: bool,
    options: SocketOptions,
}

/// What a worker comes back with.
#[derive(Default)]
struct Tally {
    service: Histogram,
    connect: Histogram,
    causes: Causes,
}

fn cannot(cause: fathom_sys::Error) -> Error {
    Error::System { what: "open and close many connections".to_owned(), cause }
}

/// The side that connects.
struct Caller {
    test: Churn,
    to: SockAddr,
}

impl Test for Caller {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let role = &self.test.role;
        let (n_flows, n_workers) = options::flows_and_workers(role);
        let states: Vec<_> = deal((0..n_flows).collect(), n_workers).into_iter().map(|flows| flows.len()).collect();
        let crew = Crew { states, counters: COUNTERS, cores: &role.cores, until: role.side.into() };
        let conducted = crew.conduct(session, &mut (), |worker, n_calls| {
            let epoll = Epoll::new().map_err(cannot)?;
            let buffers = Buffers::new(self.test.turns, role.seed);
            Calls { worker, session, caller: &self, epoll, buffers, tally: Tally::default() }
                .run(n_calls)
                .map_err(cannot)
        })?;
        let mut record = conducted.record(role.side);
        for tally in conducted.workers {
            tally.causes.add_to(&mut record);
            for (name, histogram) in [(SERVICE_TIME, &tally.service), (CONNECT_TIME, &tally.connect)] {
                record.distributions.entry(name.to_owned()).or_default().merge(histogram);
            }
        }
        if self.test.resets {
            let text = "connections were reset by the initiator, which costs less than an orderly close";
            record.notes.push(Note { id: "close-reset".to_owned(), text: text.to_owned() });
        }
        Ok(record)
    }
}

/// Where one of the initiator's connections stands.
enum State {
    Connecting(Arc<Socket>),
    Talking(Talk),
    /// The answer is here; the responder's close is not yet.
    Closing(Talk),
    /// Nothing is open: the last attempt failed, or the trial is over.
    Idle,
}

struct Call {
    state: State,
    begin: Nanos,
}

/// One worker of the initiator.
struct Calls<'a> {
    worker: Worker<'a>,
    session: &'a Session,
    caller: &'a Caller,
    epoll: Epoll,
    buffers: Buffers,
    tally: Tally,
}

impl Calls<'_> {
    fn run(mut self, n_calls: usize) -> fathom_sys::Result<Tally> {
        let mut events = Events::with_capacity(n_calls.min(256));
        let mut calls: Vec<Call> = (0..n_calls).map(|_| Call { state: State::Idle, begin: Nanos::ZERO }).collect();
        let mut over_since = None;
        loop {
            if self.worker.is_over() {
                let since = *over_since.get_or_insert_with(clock::now);
                let is_idle = calls.iter().all(|call| matches!(call.state, State::Idle));
                if is_idle || clock::now() - since > PATIENCE || self.session.stop.told() == Stop::Abort {
                    return Ok(self.tally);
                }
            } else {
                for (token, call) in (0..).zip(&mut calls) {
                    if matches!(call.state, State::Idle) {
                        self.dial(token, call)?;
                    }
                }
            }
            self.epoll.wait(&mut events, Some(RETRY))?;
            for event in events.iter() {
                let call = &mut calls[usize::try_from(event.token).expect("a token is the number of a call")];
                self.advance(event, call)?;
            }
        }
    }

    /// Begins to connect; a failure is counted and leaves the call idle.
    fn dial(&mut self, token: u64, call: &mut Call) -> fathom_sys::Result<()> {
        call.begin = clock::now();
        match self.open() {
            Ok(socket) => {
                self.epoll.add(&*socket, token, Interest { write: true, edge: true, ..Interest::READ })?;
                call.state = State::Connecting(socket);
            }
            Err(error) => self.tally.causes.count(&error),
        }
        Ok(())
    }

    fn open(&self) -> fathom_sys::Result<Arc<Socket>> {
        let test = &self.caller.test;
        let to = self.caller.to.as_socket().expect("an IP address was told");
        let socket = socket::stream_nonblocking(to)?;
        link::bind_initiator(&socket, test.role.address)?;
        test.options.set(&socket)?;
        if test.turns.out > ONE_SEGMENT {
            socket.set_tcp_nodelay(true).map_err(socket::named("setsockopt(TCP_NODELAY)"))?;
        }
        if test.resets {
            socket::set_reset_on_close(&socket)?;
        }
        socket::connect_begin(&socket, &self.caller.to)?;
        Ok(Arc::new(socket))
    }

    /// Does all that can be done for a call now; the next one of the flow begins at once.
    fn advance(&mut self, event: Event, call: &mut Call) -> fathom_sys::Result<()> {
        loop {
            let (state, goes_on) = self.next(std::mem::replace(&mut call.state, State::Idle), event, call.begin);
            call.state = state;
            if !goes_on {
                break;
            }
        }
        if matches!(call.state, State::Idle) && !self.worker.is_over() {
            self.dial(event.token, call)?;
        }
        Ok(())
    }

    /// One step of a call: its new state, and whether another step can be taken.
    fn next(&mut self, state: State, event: Event, begin: Nanos) -> (State, bool) {
        // A connect that went well has nothing to tell, and asking would be a system call per connection.
        let connected = |socket| if event.failed { socket::connect_result(socket) } else { Ok(()) };
        match state {
            State::Idle => (State::Idle, false),
            State::Connecting(socket) => match connected(&socket) {
                Ok(()) => {
                    self.worker.add(CONNECTIONS, 1);
                    if self.worker.phase() == Phase::Measure {
                        self.tally.connect.record((clock::now() - begin).0);
                    }
                    (State::Talking(Talk::new(socket, Turn::Send, self.caller.test.turns)), true)
                }
                Err(error) => self.failed(&error),
            },
            State::Talking(mut talk) => match talk.step(&mut self.buffers, Wait::Never) {
                Ok(Step::Received) => self.answered(talk, begin),
                Ok(Step::Part) => (State::Talking(talk), true),
                Ok(Step::Sent | Step::NotNow) => (State::Talking(talk), false),
                Ok(Step::Ended) => {
                    self.tally.causes.note("recv: closed before the answer");
                    (State::Idle, false)
                }
                Err(error) => self.failed(&error),
            },
            State::Closing(talk) => match socket::recv(&talk.socket, &mut [0; 16], Wait::Never) {
                Ok(Some(0)) => (State::Idle, false),
                Ok(Some(_)) => (State::Closing(talk), true),
                Ok(None) => (State::Closing(talk), false),
                Err(error) => self.failed(&error),
            },
        }
    }

    fn answered(&mut self, talk: Talk, begin: Nanos) -> (State, bool) {
        self.worker.add(TRANSACTIONS, 1);
        if self.worker.phase() == Phase::Measure {
            let service = clock::now() - begin;
            self.worker.show(service);
            self.tally.service.record(service.0);
        }
        if self.caller.test.resets { (State::Idle, false) } else { (State::Closing(talk), true) }
    }

    fn failed(&mut self, error: &fathom_sys::Error) -> (State, bool) {
        self.tally.causes.count(error);
        (State::Idle, false)
    }
}

/// The side that is connected to: one listener per worker, all on the same port.
struct Called {
    test: Churn,
    listeners: Vec<Socket>,
}

impl Called {
    fn listen(test: Churn) -> Result<Self, Error> {
        let (_, n_workers) = options::flows_and_workers(&test.role);
        let first = link::listener(options::listen_address(&test.role), BACKLOG)?;
        let address = link::local_address(&first)?;
        let mut listeners = vec![first];
        for _ in 1..n_workers {
            listeners.push(link::listener(address, BACKLOG)?);
        }
        for listener in &listeners {
            test.options.apply(listener)?;
        }
        Ok(Self { test, listeners })
    }
}

impl Test for Called {
    fn endpoints(&self) -> Endpoints {
        self.listeners
            .first()
            .and_then(|listener| link::local_address(listener).ok())
            .map(link::tell)
            .unwrap_or_default()
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let role = self.test.role;
        let crew = Crew { states: self.listeners, counters: COUNTERS, cores: &role.cores, until: role.side.into() };
        let conducted = crew.conduct(session, &mut (), |worker, listener| {
            let epoll = Epoll::new().map_err(cannot)?;
            let buffers = Buffers::new(self.test.turns, role.seed);
            let answers = Answers {
                worker,
                epoll,
                listener,
                turns: self.test.turns,
                buffers,
                open: Vec::new(),
                free: Vec::new(),
            };
            answers.run().map_err(cannot)
        })?;
        let mut record = conducted.record(role.side);
        conducted.workers.into_iter().for_each(|causes| causes.add_to(&mut record));
        Ok(record)
    }
}

/// An answer of this size always fits the send buffer of a new connection, which begins with 16 KiB.
const SMALL_ANSWER: usize = 8 * 1024;

/// The token of the listener.
const LISTENER: u64 = u64::MAX;

/// One worker of the responder.
struct Answers<'a> {
    worker: Worker<'a>,
    epoll: Epoll,
    listener: Socket,
    turns: Turns,
    buffers: Buffers,
    /// The open connections, by their token; the places of closed ones are used again.
    open: Vec<Option<Talk>>,
    free: Vec<usize>,
}

impl Answers<'_> {
    fn run(mut self) -> fathom_sys::Result<Causes> {
        let (mut events, mut causes) = (Events::with_capacity(256), Causes::default());
        self.epoll.add(&self.listener, LISTENER, Interest::READ)?;
        while !self.worker.is_over() {
            self.epoll.wait(&mut events, Some(PATIENCE))?;
            for event in events.iter() {
                if event.token == LISTENER {
                    self.accept(&mut causes)?;
                } else {
                    let place = usize::try_from(event.token).expect("a token is a place");
                    self.answer(place, &mut causes);
                }
            }
        }
        Ok(causes)
    }

    /// Takes all connections that wait.
    fn accept(&mut self, causes: &mut Causes) -> fathom_sys::Result<()> {
        loop {
            let socket = match socket::accept(&self.listener) {
                Ok(Some((socket, _))) => Arc::new(socket),
                Ok(None) => return Ok(()),
                Err(error) => {
                    causes.count(&error);
                    return Ok(());
                }
            };
            self.worker.add(CONNECTIONS, 1);
            let place = self.free.pop().unwrap_or_else(|| {
                self.open.push(None);
                self.open.len() - 1
            });
            let token = u64::try_from(place).expect("a place is a token");
            let may_fill_buffer = self.turns.out > SMALL_ANSWER;
            self.epoll.add(&*socket, token, Interest { read: true, write: may_fill_buffer, edge: true })?;
            self.open[place] = Some(Talk::new(socket, Turn::Receive, self.turns));
        }
    }

    /// Answers as far as it goes now, and closes when the whole answer is with the kernel.
    fn answer(&mut self, place: usize, causes: &mut Causes) {
        let Some(talk) = &mut self.open[place] else { return };
        loop {
            match talk.step(&mut self.buffers, Wait::Never) {
                Ok(Step::NotNow) => return,
                Ok(Step::Part | Step::Received) => {}
                Ok(Step::Sent) => {
                    self.worker.add(TRANSACTIONS, 1);
                    break;
                }
                Ok(Step::Ended) => break,
                Err(error) => {
                    causes.count(&error);
                    break;
                }
            }
        }
        self.open[place] = None;
        self.free.push(place);
    }
}

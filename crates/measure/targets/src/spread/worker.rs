//! The loop that opens connections, asks each once, and closes it.

use std::collections::BTreeMap;

use fathom_engine::{Stop, TrialContext, WorkerHandle};
use fathom_model::{FailureCounts, Histogram, units::Nanos};
use fathom_sys::{
    clock,
    policy::Destination,
    reactor::epoll_wait::{Epoll, Interest, Readiness, ReadyList},
    socket::{self, Connect, Socket, Wait},
};

use super::{ANSWERED, ATTEMPTS, FAILED};
use crate::{
    ask::{self, GREETING_MAX},
    carrier::Carrier,
    dialect::Dialect,
    identity::Identity,
    sources::Sources,
};

/// How often timeouts are looked for.
const LOOK_EVERY: Nanos = Nanos::from_millis(5);
/// The pause after a call that failed at once, unless another one is answered: without it, all that are left would fail in a moment.
const FAILED_PAUSE: Nanos = Nanos::from_millis(1);
const CLOSED: &str = "read: closed before the answer";
const STRANGE: &str = "read: not an answer of a target";

/// What is asked, and how often.
#[derive(Debug, Clone)]
pub(super) struct SpreadConfig {
    pub(super) carrier: Carrier,
    pub(super) dialect: Dialect,
    pub(super) n_connections: u64,
    pub(super) n_concurrent: usize,
    pub(super) timeout: Nanos,
    pub(super) to: Destination,
}

/// What a worker leaves behind.
#[derive(Default)]
pub(super) struct CallResults {
    pub(super) answers: BTreeMap<Identity, u64>,
    pub(super) errors: FailureCounts,
    /// From the beginning of a connect to the answer.
    pub(super) service: Histogram,
    pub(super) connect: Histogram,
    /// The connections that were answered or failed.
    pub(super) n_ended: u64,
    /// When the last one ended, since the start.
    pub(super) ended: Nanos,
}

/// A connection that is not answered yet.
struct Call {
    socket: Socket,
    begun: Nanos,
    is_connected: bool,
    got: Vec<u8>,
}

/// The calls of one worker.
pub(super) struct Caller<'a> {
    worker: &'a WorkerHandle<'a>,
    config: &'a SpreadConfig,
    sources: Sources,
    calls: Vec<Option<Call>>,
    free: Vec<usize>,
    n_begun: u64,
    results: CallResults,
}

impl<'a> Caller<'a> {
    pub(super) fn new(worker: &'a WorkerHandle<'a>, config: &'a SpreadConfig, sources: Sources) -> Self {
        let n = config.n_concurrent;
        let calls = (0..n).map(|_| None).collect();
        let free = (0..n).rev().collect();
        Self { worker, config, sources, calls, free, n_begun: 0, results: CallResults::default() }
    }

    /// Makes all calls, or as many as the time allows.
    ///
    /// # Errors
    /// Those of `epoll`.
    pub(super) fn run(mut self, context: &TrialContext) -> fathom_sys::Result<CallResults> {
        let epoll = Epoll::new()?;
        let mut events = ReadyList::with_capacity(self.config.n_concurrent);
        let mut next_look = clock::now() + LOOK_EVERY;
        while self.results.n_ended < self.config.n_connections {
            if self.worker.is_over() || context.stop.state() == Stop::Abort {
                return Ok(self.results);
            }
            let patience = if self.begin_all(&epoll)? { LOOK_EVERY } else { FAILED_PAUSE };
            epoll.wait(&mut events, Some(patience))?;
            for event in events.iter() {
                self.on_event(event);
            }
            let now = clock::now();
            if now >= next_look {
                self.give_up_slow_ones(now);
                next_look = now + LOOK_EVERY;
            }
        }
        Ok(self.results)
    }

    /// Begins as many calls as may wait at once. Returns false after one that failed at once: what it lacked, such as a local port, comes
    /// back with answers and with time.
    fn begin_all(&mut self, epoll: &Epoll) -> fathom_sys::Result<bool> {
        while self.n_begun < self.config.n_connections {
            let Some(place) = self.free.pop() else { break };
            self.begin(epoll, place)?;
            if self.calls[place].is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn begin(&mut self, epoll: &Epoll, place: usize) -> fathom_sys::Result<()> {
        self.n_begun += 1;
        self.worker.add(ATTEMPTS, 1);
        let begun = clock::now();
        match self.open() {
            Ok((socket, connect)) => {
                let token = u64::try_from(place).expect("a place is a token");
                let write = connect == Connect::Pending;
                epoll.add(&socket, token, Interest { write, edge: true, ..Interest::READ })?;
                self.calls[place] = Some(Call { socket, begun, is_connected: false, got: Vec::new() });
                if connect == Connect::Done {
                    self.on_connected(place);
                }
            }
            Err(error) => {
                self.free.push(place);
                self.failed(&error);
            }
        }
        Ok(())
    }

    /// Opens a socket and begins to connect it.
    fn open(&mut self) -> fathom_sys::Result<(Socket, Connect)> {
        let address = self.config.to.address().expect("a destination of this test is an IP address");
        if self.config.carrier == Carrier::Udp {
            let socket = socket::datagram_unbound(address)?;
            self.sources.bind(&socket)?;
            socket::associate(&socket, &self.config.to)?;
            return Ok((socket, Connect::Done));
        }
        let socket = socket::stream_nonblocking(address)?;
        self.sources.bind(&socket)?;
        let connect = socket::connect_begin(&socket, &self.config.to)?;
        Ok((socket, connect))
    }

    fn failed(&mut self, failure: impl Into<fathom_model::Failure>) {
        self.results.errors.count(failure);
        self.worker.add(FAILED, 1);
        self.ended();
    }

    fn ended(&mut self) {
        self.results.n_ended += 1;
        self.results.ended = clock::now().since(self.worker.start);
    }

    /// Closes a call, which has failed.
    fn give_up(&mut self, place: usize, failure: impl Into<fathom_model::Failure>) {
        if self.calls[place].take().is_some() {
            self.free.push(place);
            self.failed(failure);
        }
    }

    /// A connection is open: the question is sent.
    fn on_connected(&mut self, place: usize) {
        let SpreadConfig { carrier, dialect, .. } = *self.config;
        let Some(call) = &mut self.calls[place] else { return };
        call.is_connected = true;
        if carrier == Carrier::Tcp {
            self.results.connect.record((clock::now() - call.begun).0);
        }
        let question = ask::question((carrier, dialect), self.n_begun);
        if question.is_empty() {
            return;
        }
        // The buffer of a new socket takes a question whole.
        if let Err(error) = socket::send(&call.socket, &question, Wait::Never) {
            self.give_up(place, &error);
        }
    }

    fn on_event(&mut self, event: Readiness) {
        let place = usize::try_from(event.token).expect("a token is the place of a call");
        let Some(call) = &self.calls[place] else { return };
        if !call.is_connected {
            match socket::connect_result(&call.socket) {
                Ok(()) if event.writable => self.on_connected(place),
                Ok(()) => return,
                Err(error) => return self.give_up(place, &error),
            }
        }
        self.read(place);
    }

    fn read(&mut self, place: usize) {
        let mut room = [0; GREETING_MAX];
        loop {
            let Some(call) = &mut self.calls[place] else { return };
            match socket::recv(&call.socket, &mut room, Wait::Never) {
                Ok(None) => return,
                Ok(Some(0)) => return self.give_up(place, CLOSED),
                Ok(Some(count)) => call.got.extend_from_slice(&room[..count]),
                Err(error) => return self.give_up(place, &error),
            }
            if ask::is_whole(&call.got, self.config.dialect) {
                return self.answered(place);
            }
            if self.config.carrier == Carrier::Udp {
                return self.give_up(place, STRANGE);
            }
        }
    }

    fn answered(&mut self, place: usize) {
        let Some(call) = self.calls[place].take() else { return };
        self.free.push(place);
        let Some(identity) = ask::identity_in(&call.got, self.config.dialect) else { return self.failed(STRANGE) };
        let took = clock::now() - call.begun;
        self.worker.add(ANSWERED, 1);
        self.worker.show_latency(took);
        self.results.service.record(took.0);
        *self.results.answers.entry(identity).or_default() += 1;
        self.ended();
    }

    fn give_up_slow_ones(&mut self, now: Nanos) {
        for place in 0..self.calls.len() {
            let Some(call) = &self.calls[place] else { continue };
            if now.since(call.begun) >= self.config.timeout {
                let failure = if call.is_connected { "read: timeout" } else { "connect: timeout" };
                self.give_up(place, failure);
            }
        }
    }
}

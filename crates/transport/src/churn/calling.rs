//! The side that connects.

use std::sync::Arc;

use fathom_engine::{Crew, Error, Phase, Session, Stop, Test, Worker};
use fathom_model::{
    Endpoints, Histogram, Note, Record,
    names::distribution::{CONNECT_TIME, SERVICE_TIME},
    units::Nanos,
};
use fathom_sys::{
    clock,
    epoll::{Epoll, Event, Events, Interest},
    policy::Destination,
    socket::{self, Connect, Socket, Wait},
};

use super::{CONNECTIONS, COUNTERS, Churn, Close, Errand, PATIENCE, RETRY, TRANSACTIONS, cannot};
use crate::{
    causes::Causes,
    exchange::{
        silence::{SILENT, is_silent},
        talk::{Messages, Step, Talk, WRONG},
    },
    link::{Targets, deal},
};

/// What a worker comes back with.
#[derive(Default)]
struct Tally {
    service: Histogram,
    connect: Histogram,
    causes: Causes,
}

/// The initiator, ready to start.
pub(super) struct Caller {
    churn: Churn,
    targets: Targets,
}

impl Caller {
    /// # Errors
    /// There are fewer local ports than flows.
    pub(super) fn new(churn: Churn, targets: Targets) -> Result<Self, Error> {
        targets.check_ports(churn.n_flows)?;
        Ok(Self { churn, targets })
    }
}

impl Test for Caller {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let Churn { role, n_flows, n_workers, .. } = &self.churn;
        let states: Vec<_> = deal((0..*n_flows).collect(), *n_workers).into_iter().map(|flows| flows.len()).collect();
        let crew = Crew { states, counters: COUNTERS, cores: &role.cores, until: role.side.into() };
        let conducted = crew.conduct(session, &mut (), |worker, n_calls| {
            let messages = Messages::new(&self.churn.sizes, role.side, role.seed);
            let line =
                Line { worker, session, caller: &self, messages, n_dialled: worker.idx, tally: Tally::default() };
            if n_calls == 1 {
                return Ok(line.alone());
            }
            Calls { line, epoll: Epoll::new().map_err(cannot)? }.run(n_calls).map_err(cannot)
        })?;
        let mut record = conducted.record(role.side);
        for tally in conducted.workers {
            tally.causes.add_to(&mut record);
            for (name, histogram) in [(SERVICE_TIME, &tally.service), (CONNECT_TIME, &tally.connect)] {
                record.distributions.entry(name.to_owned()).or_default().merge(histogram);
            }
        }
        if self.churn.close == Close::Reset {
            let text = "connections were reset by the initiator, which costs less than an orderly close";
            record.notes.push(Note { id: "close-reset".to_owned(), text: text.to_owned() });
        }
        Ok(record)
    }
}

/// What one worker has beside its connections.
struct Line<'a> {
    worker: Worker<'a>,
    session: &'a Session,
    caller: &'a Caller,
    messages: Messages,
    /// Numbers the connections, so that destinations, sources and sizes are gone through in turn.
    n_dialled: usize,
    tally: Tally,
}

impl Line<'_> {
    /// Where the next connection goes, and the socket for it.
    fn next(
        &mut self,
        make: impl FnOnce(std::net::SocketAddr) -> fathom_sys::Result<Socket>,
    ) -> fathom_sys::Result<(Socket, Destination)> {
        let (to, from) = self.caller.targets.pair(self.n_dialled);
        self.n_dialled = self.n_dialled.wrapping_add(self.caller.churn.n_workers);
        let socket = make(to.address)?;
        let to = self.caller.churn.dress(&socket, (from, to))?;
        Ok((socket, to))
    }

    fn talk(&self, socket: Arc<Socket>) -> Talk {
        Talk::asking(socket, self.caller.churn.sizes.at(self.n_dialled))
    }

    fn connected(&mut self, begin: Nanos) {
        self.worker.add(CONNECTIONS, 1);
        if self.worker.phase() == Phase::Measure {
            self.tally.connect.record((clock::now() - begin).0);
        }
    }

    fn done(&mut self, begin: Nanos) {
        self.worker.add(TRANSACTIONS, 1);
        if self.worker.phase() == Phase::Measure {
            let service = clock::now() - begin;
            self.worker.show(service);
            self.tally.service.record(service.0);
        }
    }

    /// Whether to give up what is under way: a little after the end, or on an abort.
    fn must_end(&self, over_since: &mut Option<Nanos>) -> bool {
        if !self.worker.is_over() {
            return false;
        }
        let now = clock::now();
        now - *over_since.get_or_insert(now) > PATIENCE || self.session.stop.told() == Stop::Abort
    }

    /// Notes a connection that has waited too long for it to be a slow answer.
    fn given_up(&mut self, begin: Nanos) {
        if is_silent(clock::now() - begin, &self.tally.service) && self.session.stop.told() != Stop::Abort {
            self.tally.causes.note(SILENT);
        }
    }

    /// One connection after the other with blocking calls: no list of connections, and no wait beside the calls.
    fn alone(mut self) -> Tally {
        let mut over_since = None;
        while !self.worker.is_over() {
            let begin = clock::now();
            match self.call(begin, &mut over_since) {
                Ok(()) => {}
                Err(error) => {
                    self.tally.causes.count(&error);
                    clock::sleep_until(clock::now() + RETRY);
                }
            }
        }
        self.tally
    }

    /// A connection from its beginning to its end.
    fn call(&mut self, begin: Nanos, over_since: &mut Option<Nanos>) -> fathom_sys::Result<()> {
        let (socket, to) = self.next(socket::stream)?;
        socket::set_timeout(&socket, PATIENCE)?;
        while socket::connect_begin(&socket, &to)? == Connect::Pending {
            if self.must_end(over_since) {
                self.given_up(begin);
                return Ok(());
            }
        }
        self.connected(begin);
        let mut talk = self.talk(Arc::new(socket));
        if self.caller.churn.errand == Errand::Exchange && !self.exchange(&mut talk, begin, over_since)? {
            return Ok(());
        }
        if self.caller.churn.close == Close::Orderly && !self.see_closed(&talk, begin, over_since)? {
            return Ok(());
        }
        if self.caller.churn.errand == Errand::Nothing {
            drop(talk);
            self.done(begin);
        }
        Ok(())
    }

    /// Asks and waits for the answer; whether it came.
    fn exchange(&mut self, talk: &mut Talk, begin: Nanos, over_since: &mut Option<Nanos>) -> fathom_sys::Result<bool> {
        loop {
            match talk.step(&mut self.messages, Wait::Block)? {
                Step::Received => {
                    self.done(begin);
                    return Ok(true);
                }
                Step::NotNow if self.must_end(over_since) => {
                    self.given_up(begin);
                    return Ok(false);
                }
                Step::Sent | Step::Part | Step::NotNow => {}
                Step::Ended => {
                    self.tally.causes.note(TOO_SOON);
                    return Ok(false);
                }
                Step::Wrong => {
                    self.tally.causes.note(WRONG);
                    return Ok(false);
                }
            }
        }
    }

    /// Waits until the responder has closed; whether it has.
    fn see_closed(&mut self, talk: &Talk, begin: Nanos, over_since: &mut Option<Nanos>) -> fathom_sys::Result<bool> {
        loop {
            match socket::recv(&talk.socket, &mut [0; 16], Wait::Block)? {
                Some(0) => return Ok(true),
                Some(_) => self.tally.causes.note(WRONG),
                None if self.must_end(over_since) => {
                    self.given_up(begin);
                    return Ok(false);
                }
                None => {}
            }
        }
    }
}

/// What the errors of a record say of a responder that closes before it has answered.
const TOO_SOON: &str = "recv: closed before the answer";

/// Where one of the initiator's connections stands.
enum State {
    Connecting(Arc<Socket>),
    Talking(Talk),
    /// The answer is here, or none is wanted; the responder's close is not yet.
    Closing(Talk),
    /// Nothing is open: the last attempt failed, or the trial is over.
    Idle,
}

struct Call {
    state: State,
    begin: Nanos,
}

/// The connections of one worker, several at a time.
struct Calls<'a> {
    line: Line<'a>,
    epoll: Epoll,
}

impl Calls<'_> {
    fn run(mut self, n_calls: usize) -> fathom_sys::Result<Tally> {
        let mut events = Events::with_capacity(n_calls.min(256));
        let mut calls: Vec<Call> = (0..n_calls).map(|_| Call { state: State::Idle, begin: Nanos::ZERO }).collect();
        let mut over_since = None;
        loop {
            if self.line.worker.is_over() {
                let is_idle = calls.iter().all(|call| matches!(call.state, State::Idle));
                if is_idle || self.line.must_end(&mut over_since) {
                    let left = calls.iter().filter(|call| !matches!(call.state, State::Idle));
                    left.for_each(|call| self.line.given_up(call.begin));
                    return Ok(self.line.tally);
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
        let dialled = self.line.next(socket::stream_nonblocking).and_then(|(socket, to)| {
            socket::connect_begin(&socket, &to)?;
            Ok(Arc::new(socket))
        });
        match dialled {
            Ok(socket) => {
                self.epoll.add(&*socket, token, Interest { write: true, edge: true, ..Interest::READ })?;
                call.state = State::Connecting(socket);
            }
            Err(error) => self.line.tally.causes.count(&error),
        }
        Ok(())
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
        if matches!(call.state, State::Idle) && !self.line.worker.is_over() {
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
                Ok(()) => self.opened(socket, begin),
                Err(error) => self.failed(&error),
            },
            State::Talking(mut talk) => match talk.step(&mut self.line.messages, Wait::Never) {
                Ok(Step::Received) => {
                    self.line.done(begin);
                    self.closing(talk)
                }
                Ok(Step::Part) => (State::Talking(talk), true),
                Ok(Step::Sent | Step::NotNow) => (State::Talking(talk), false),
                Ok(Step::Ended) => self.noted(TOO_SOON),
                Ok(Step::Wrong) => self.noted(WRONG),
                Err(error) => self.failed(&error),
            },
            State::Closing(talk) => match socket::recv(&talk.socket, &mut [0; 16], Wait::Never) {
                Ok(Some(0)) => {
                    self.closed(talk, begin);
                    (State::Idle, false)
                }
                Ok(Some(_)) => self.noted(WRONG),
                Ok(None) => (State::Closing(talk), false),
                Err(error) => self.failed(&error),
            },
        }
    }

    fn opened(&mut self, socket: Arc<Socket>, begin: Nanos) -> (State, bool) {
        self.line.connected(begin);
        let talk = self.line.talk(socket);
        match (self.line.caller.churn.errand, self.line.caller.churn.close) {
            (Errand::Exchange, _) => (State::Talking(talk), true),
            (Errand::Nothing, Close::Orderly) => (State::Closing(talk), true),
            (Errand::Nothing, Close::Reset) => {
                self.closed(talk, begin);
                (State::Idle, false)
            }
        }
    }

    fn closing(&mut self, talk: Talk) -> (State, bool) {
        match self.line.caller.churn.close {
            Close::Orderly => (State::Closing(talk), true),
            Close::Reset => (State::Idle, false),
        }
    }

    /// Closes; of a connection that is opened for nothing else, that is its end.
    fn closed(&mut self, talk: Talk, begin: Nanos) {
        drop(talk);
        if self.line.caller.churn.errand == Errand::Nothing {
            self.line.done(begin);
        }
    }

    fn noted(&mut self, cause: &str) -> (State, bool) {
        self.line.tally.causes.note(cause);
        (State::Idle, false)
    }

    fn failed(&mut self, error: &fathom_sys::Error) -> (State, bool) {
        self.line.tally.causes.count(error);
        (State::Idle, false)
    }
}

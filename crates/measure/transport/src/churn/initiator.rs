//! The initiator of connection churn.

use std::sync::Arc;

use fathom_engine::{Error, Phase, SampleSchedule, Stop, Test, TrialContext, WorkerHandle, WorkerPool};
use fathom_model::{
    Endpoints, FailureCounts, Histogram, Note, Part, Record, SampledConnection, SampledUnit,
    names::distribution::{CONNECT_TIME, SERVICE_TIME},
    units::Nanos,
};
use fathom_sys::{
    clock,
    policy::Destination,
    reactor::epoll_wait::{Epoll, Interest, Readiness, ReadyList},
    socket::{self, Connect, Socket, Wait, tcp_info::TcpInfo},
};

use super::{
    BLOCKING_TIMEOUT, CONNECTIONS, COUNTERS, ChurnConfig, CloseMode, ConnectionPurpose, RETRY, TRANSACTIONS,
    socket_error,
};
use crate::{
    connection_setup::{ConnectTargets, distribute},
    request_response::{
        connection::{MessageBuffers, RrConnection, TransferStep, UNEXPECTED_MESSAGE},
        peer_timeout::{CONNECT_UNANSWERED, PEER_SILENT, is_silent},
    },
};

/// The results of a worker.
#[derive(Default)]
struct ChurnResults {
    service: Histogram,
    connect: Histogram,
    errors: FailureCounts,
    sampled: Vec<SampledUnit>,
}

pub(super) struct ChurnInitiator {
    config: ChurnConfig,
    targets: ConnectTargets,
}

impl ChurnInitiator {
    /// # Errors
    /// There are fewer local ports than flows.
    pub(super) fn new(churn: ChurnConfig, targets: ConnectTargets) -> Result<Self, Error> {
        targets.check_ports(churn.n_flows)?;
        Ok(Self { config: churn, targets })
    }
}

impl Test for ChurnInitiator {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let ChurnConfig { role, n_flows, n_workers, .. } = &self.config;
        let states: Vec<_> =
            distribute((0..*n_flows).collect(), *n_workers).into_iter().map(|flows| flows.len()).collect();
        let pool = WorkerPool { states, counters: COUNTERS, cores: &role.cores, until: role.side.into() };
        let trial_results = pool.run(context, &mut (), |worker, n_calls| {
            let messages = MessageBuffers::new(&self.config.sizes, role.side, role.seed);
            let line = ChurnWorker {
                worker,
                context,
                initiator: &self,
                messages,
                n_started: worker.idx,
                results: ChurnResults::default(),
                sampling: None,
                connect: Nanos::ZERO,
            };
            if n_calls == 1 {
                return Ok(line.run_blocking());
            }
            EpollInitiator { worker: line, epoll: Epoll::new().map_err(socket_error)? }
                .run(n_calls)
                .map_err(socket_error)
        })?;
        let mut record = trial_results.record(role.side);
        let mut sampled = Vec::new();
        for tally in trial_results.workers {
            sampled.extend(tally.sampled);
            record.errors.extend(tally.errors);
            for (name, histogram) in [(SERVICE_TIME, &tally.service), (CONNECT_TIME, &tally.connect)] {
                record.distributions.entry(name.to_owned()).or_default().merge(histogram);
            }
        }
        if !sampled.is_empty() {
            record.sampled.push(SampledConnection::of_all(&[Part::Connect, Part::BaselineRtt, Part::Server], sampled));
        }
        if self.config.close == CloseMode::Reset {
            let text = "connections were reset by the initiator, which costs less than an orderly close";
            record.notes.push(Note::new("close-reset", text));
        }
        Ok(record)
    }
}

/// The state of one worker besides its connections.
struct ChurnWorker<'a> {
    worker: WorkerHandle<'a>,
    context: &'a TrialContext,
    initiator: &'a ChurnInitiator,
    messages: MessageBuffers,
    /// The number of connections so far, used to rotate destinations, sources and sizes.
    n_started: usize,
    results: ChurnResults,
    /// Which transactions are sampled, by a worker with one connection at a time.
    sampling: Option<SampleSchedule>,
    /// The time of the last connect.
    connect: Nanos,
}

impl ChurnWorker<'_> {
    /// The socket and the destination of the next connection.
    fn next(
        &mut self,
        make: impl FnOnce(std::net::SocketAddr) -> fathom_sys::Result<Socket>,
    ) -> fathom_sys::Result<(Socket, Destination)> {
        let (to, from) = self.initiator.targets.addresses_of(self.n_started);
        self.n_started = self.n_started.wrapping_add(self.initiator.config.n_workers);
        let socket = make(to.address)?;
        let to = self.initiator.config.configure_socket(&socket, from, to)?;
        Ok((socket, to))
    }

    fn connection(&self, socket: Arc<Socket>) -> RrConnection {
        RrConnection::initiator(socket, self.initiator.config.sizes.at(self.n_started))
    }

    fn record_connect(&mut self, begin: Nanos) {
        self.worker.add(CONNECTIONS, 1);
        self.connect = clock::now() - begin;
        if self.worker.phase() == Phase::Measure {
            self.results.connect.record(self.connect.0);
        }
    }

    /// Counts a transaction that is complete, and returns its length if it belongs to the measured time.
    fn record_transaction(&mut self, begin: Nanos) -> Option<Nanos> {
        self.worker.add(TRANSACTIONS, 1);
        if self.worker.phase() != Phase::Measure {
            return None;
        }
        let service = clock::now() - begin;
        self.worker.show_latency(service);
        self.results.service.record(service.0);
        Some(service)
    }

    /// Keeps the parts of a transaction of this length that is one of the sample.
    fn sample(&mut self, service: Nanos, socket: &Socket) {
        let exchange = service.since(self.connect);
        let baseline_rtt = TcpInfo::of(socket).ok().and_then(|info| info.min_rtt);
        let Some(path) = baseline_rtt.map(|rtt| rtt.min(exchange)) else { return };
        let spans_ns = vec![self.connect, path, exchange.since(path)];
        let number = self.results.sampled.len() as u64;
        self.results.sampled.push(SampledUnit { number, spans_ns });
    }

    /// Whether to give up the operation in progress: shortly after the end, or on an abort.
    fn must_stop(&self, over_since: &mut Option<Nanos>) -> bool {
        if !self.worker.is_over() {
            return false;
        }
        let now = clock::now();
        now - *over_since.get_or_insert(now) > BLOCKING_TIMEOUT || self.context.stop.state() == Stop::Abort
    }

    /// Counts an error of this text if a connection has waited too long for a merely slow answer.
    fn record_silence(&mut self, begin: Nanos, error: &'static str) {
        if is_silent(clock::now() - begin, &self.results.service) && self.context.stop.state() != Stop::Abort {
            self.results.errors.count(error);
        }
    }

    /// Runs one connection after another with blocking calls: no list of connections, and no system call just to wait.
    fn run_blocking(mut self) -> ChurnResults {
        let has_exchange = self.initiator.config.purpose == ConnectionPurpose::Transaction;
        self.sampling = has_exchange.then(|| self.worker.sample_schedule());
        let mut over_since = None;
        while !self.worker.is_over() {
            let begin = clock::now();
            match self.run_connection(begin, &mut over_since) {
                Ok(()) => {}
                Err(error) => {
                    self.results.errors.count(&error);
                    clock::sleep_until(clock::now() + RETRY);
                }
            }
        }
        self.results
    }

    /// Runs a connection from its beginning to its end.
    fn run_connection(&mut self, begin: Nanos, over_since: &mut Option<Nanos>) -> fathom_sys::Result<()> {
        let (socket, to) = self.next(socket::stream)?;
        socket::set_timeout(&socket, BLOCKING_TIMEOUT)?;
        while socket::connect_begin(&socket, &to)? == Connect::Pending {
            if self.must_stop(over_since) {
                self.record_silence(begin, CONNECT_UNANSWERED);
                return Ok(());
            }
        }
        self.record_connect(begin);
        let mut conversation = self.connection(Arc::new(socket));
        if self.initiator.config.purpose == ConnectionPurpose::Transaction
            && !self.exchange(&mut conversation, begin, over_since)?
        {
            return Ok(());
        }
        if self.initiator.config.close == CloseMode::Orderly
            && !self.wait_for_close(&conversation, begin, over_since)?
        {
            return Ok(());
        }
        if self.initiator.config.purpose == ConnectionPurpose::ConnectOnly {
            drop(conversation);
            self.record_transaction(begin);
        }
        Ok(())
    }

    /// Sends the request and waits for the answer. Returns whether it came.
    fn exchange(
        &mut self,
        conversation: &mut RrConnection,
        begin: Nanos,
        over_since: &mut Option<Nanos>,
    ) -> fathom_sys::Result<bool> {
        loop {
            match conversation.step(&mut self.messages, Wait::Block)? {
                TransferStep::Received => {
                    let service = self.record_transaction(begin);
                    let is_due = |_: &Nanos| self.sampling.as_mut().is_some_and(|sampling| sampling.is_due(begin));
                    if let Some(service) = service.filter(is_due) {
                        self.sample(service, &conversation.socket);
                    }
                    return Ok(true);
                }
                TransferStep::WouldBlock if self.must_stop(over_since) => {
                    self.record_silence(begin, PEER_SILENT);
                    return Ok(false);
                }
                TransferStep::Sent | TransferStep::Partial | TransferStep::WouldBlock => {}
                TransferStep::Closed => {
                    self.results.errors.count(CLOSED_BEFORE_ANSWER);
                    return Ok(false);
                }
                TransferStep::Unexpected => {
                    self.results.errors.count(UNEXPECTED_MESSAGE);
                    return Ok(false);
                }
            }
        }
    }

    /// Waits until the responder has closed. Returns whether it has.
    fn wait_for_close(
        &mut self,
        conversation: &RrConnection,
        begin: Nanos,
        over_since: &mut Option<Nanos>,
    ) -> fathom_sys::Result<bool> {
        loop {
            match socket::recv(&conversation.socket, &mut [0; 16], Wait::Block)? {
                Some(0) => return Ok(true),
                Some(_) => self.results.errors.count(UNEXPECTED_MESSAGE),
                None if self.must_stop(over_since) => {
                    self.record_silence(begin, PEER_SILENT);
                    return Ok(false);
                }
                None => {}
            }
        }
    }
}

/// The error text for a responder that closes before it has answered.
const CLOSED_BEFORE_ANSWER: &str = "recv: closed before the answer";

/// The state of one of the initiator's connections.
enum ConnectionState {
    Connecting(Arc<Socket>),
    Exchanging(RrConnection),
    /// The answer has arrived, or none is expected; the responder has not closed yet.
    Closing(RrConnection),
    /// Nothing is open: the last attempt failed, or the trial is over.
    Idle,
}

struct FlowSlot {
    state: ConnectionState,
    begin: Nanos,
}

/// The connections of one worker, several at a time.
struct EpollInitiator<'a> {
    worker: ChurnWorker<'a>,
    epoll: Epoll,
}

impl EpollInitiator<'_> {
    fn run(mut self, n_calls: usize) -> fathom_sys::Result<ChurnResults> {
        let mut events = ReadyList::with_capacity(n_calls.min(256));
        let mut calls: Vec<FlowSlot> =
            (0..n_calls).map(|_| FlowSlot { state: ConnectionState::Idle, begin: Nanos::ZERO }).collect();
        let mut over_since = None;
        loop {
            if self.worker.worker.is_over() {
                let is_idle = calls.iter().all(|call| matches!(call.state, ConnectionState::Idle));
                if is_idle || self.worker.must_stop(&mut over_since) {
                    for call in &calls {
                        let error = match call.state {
                            ConnectionState::Idle => continue,
                            ConnectionState::Connecting(_) => CONNECT_UNANSWERED,
                            ConnectionState::Exchanging(_) | ConnectionState::Closing(_) => PEER_SILENT,
                        };
                        self.worker.record_silence(call.begin, error);
                    }
                    return Ok(self.worker.results);
                }
            } else {
                for (token, call) in (0..).zip(&mut calls) {
                    if matches!(call.state, ConnectionState::Idle) {
                        self.begin_connect(token, call)?;
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

    /// Begins to connect; a failure is counted and leaves the slot idle.
    fn begin_connect(&mut self, token: u64, call: &mut FlowSlot) -> fathom_sys::Result<()> {
        call.begin = clock::now();
        let opened = self.worker.next(socket::stream_nonblocking).and_then(|(socket, to)| {
            socket::connect_begin(&socket, &to)?;
            Ok(Arc::new(socket))
        });
        match opened {
            Ok(socket) => {
                self.epoll.add(&*socket, token, Interest { write: true, edge: true, ..Interest::READ })?;
                call.state = ConnectionState::Connecting(socket);
            }
            Err(error) => self.worker.results.errors.count(&error),
        }
        Ok(())
    }

    /// Advances a connection as far as possible now; the next one of the flow begins at once.
    fn advance(&mut self, event: Readiness, call: &mut FlowSlot) -> fathom_sys::Result<()> {
        loop {
            let (state, goes_on) =
                self.next(std::mem::replace(&mut call.state, ConnectionState::Idle), event, call.begin);
            call.state = state;
            if !goes_on {
                break;
            }
        }
        if matches!(call.state, ConnectionState::Idle) && !self.worker.worker.is_over() {
            self.begin_connect(event.token, call)?;
        }
        Ok(())
    }

    /// Advances a connection by one step. Returns its new state, and whether another step is possible.
    fn next(&mut self, state: ConnectionState, event: Readiness, begin: Nanos) -> (ConnectionState, bool) {
        // Asking for the result of a successful connect would cost a system call per connection.
        let connected = |socket| if event.failed { socket::connect_result(socket) } else { Ok(()) };
        match state {
            ConnectionState::Idle => (ConnectionState::Idle, false),
            ConnectionState::Connecting(socket) => match connected(&socket) {
                Ok(()) => self.opened(socket, begin),
                Err(error) => self.idle_with_error(&error),
            },
            ConnectionState::Exchanging(mut conversation) => match conversation
                .step(&mut self.worker.messages, Wait::Never)
            {
                Ok(TransferStep::Received) => {
                    self.worker.record_transaction(begin);
                    self.closing(conversation)
                }
                Ok(TransferStep::Partial) => (ConnectionState::Exchanging(conversation), true),
                Ok(TransferStep::Sent | TransferStep::WouldBlock) => (ConnectionState::Exchanging(conversation), false),
                Ok(TransferStep::Closed) => self.idle_with_cause(CLOSED_BEFORE_ANSWER),
                Ok(TransferStep::Unexpected) => self.idle_with_cause(UNEXPECTED_MESSAGE),
                Err(error) => self.idle_with_error(&error),
            },
            ConnectionState::Closing(conversation) => {
                match socket::recv(&conversation.socket, &mut [0; 16], Wait::Never) {
                    Ok(Some(0)) => {
                        self.closed(conversation, begin);
                        (ConnectionState::Idle, false)
                    }
                    Ok(Some(_)) => self.idle_with_cause(UNEXPECTED_MESSAGE),
                    Ok(None) => (ConnectionState::Closing(conversation), false),
                    Err(error) => self.idle_with_error(&error),
                }
            }
        }
    }

    fn opened(&mut self, socket: Arc<Socket>, begin: Nanos) -> (ConnectionState, bool) {
        self.worker.record_connect(begin);
        let conversation = self.worker.connection(socket);
        match (self.worker.initiator.config.purpose, self.worker.initiator.config.close) {
            (ConnectionPurpose::Transaction, _) => (ConnectionState::Exchanging(conversation), true),
            (ConnectionPurpose::ConnectOnly, CloseMode::Orderly) => (ConnectionState::Closing(conversation), true),
            (ConnectionPurpose::ConnectOnly, CloseMode::Reset) => {
                self.closed(conversation, begin);
                (ConnectionState::Idle, false)
            }
        }
    }

    fn closing(&mut self, conversation: RrConnection) -> (ConnectionState, bool) {
        match self.worker.initiator.config.close {
            CloseMode::Orderly => (ConnectionState::Closing(conversation), true),
            CloseMode::Reset => (ConnectionState::Idle, false),
        }
    }

    /// Closes the connection, which completes a connect-only transaction.
    fn closed(&mut self, conversation: RrConnection, begin: Nanos) {
        drop(conversation);
        if self.worker.initiator.config.purpose == ConnectionPurpose::ConnectOnly {
            self.worker.record_transaction(begin);
        }
    }

    fn idle_with_cause(&mut self, cause: &str) -> (ConnectionState, bool) {
        self.worker.results.errors.count(cause);
        (ConnectionState::Idle, false)
    }

    fn idle_with_error(&mut self, error: &fathom_sys::Error) -> (ConnectionState, bool) {
        self.worker.results.errors.count(error);
        (ConnectionState::Idle, false)
    }
}

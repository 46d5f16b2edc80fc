//! The responder of connection churn: listeners for each worker.

use std::{net::SocketAddr, sync::Arc};

use fathom_engine::{Error, Test, TrialContext, WorkerHandle, WorkerPool};
use fathom_model::{Endpoints, FailureCounts, Record, units::Nanos};
use fathom_sys::{
    reactor::epoll_wait::{Epoll, Interest, ReadyList},
    socket::{self, Listener, SockRef, Socket, Wait},
};

use super::{BLOCKING_TIMEOUT, CONNECTIONS, COUNTERS, ChurnConfig, ConnectionPurpose, TRANSACTIONS, socket_error};
use crate::{
    connection_setup::{self, ListenAddresses},
    request_response::connection::{MessageBuffers, RrConnection, TransferStep, UNEXPECTED_MESSAGE},
};

/// The backlog of each listener; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: usize = 4096;
/// An answer of this size always fits in the send buffer of a new connection, which begins with 16 KiB.
const SMALL_ANSWER: usize = 8 * 1024;
/// Tokens from this value on belong to listeners.
const LISTENERS: u64 = 1 << 32;

pub(super) struct ChurnResponder {
    config: ChurnConfig,
    /// By worker.
    listeners: Vec<Vec<Listener>>,
    addresses: Vec<SocketAddr>,
}

impl ChurnResponder {
    pub(super) fn listen(churn: ChurnConfig, doors: ListenAddresses) -> Result<Self, Error> {
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for worker in 0..churn.n_workers {
            let mut own = Vec::new();
            for at in doors.of_worker(worker) {
                let (listener, _) = churn.options.listen(at, BACKLOG)?;
                addresses.push(connection_setup::local_address(&listener)?);
                own.push(listener);
            }
            listeners.push(own);
        }
        addresses.dedup();
        Ok(Self { config: churn, listeners, addresses })
    }
}

impl Test for ChurnResponder {
    fn endpoints(&self) -> Endpoints {
        connection_setup::endpoints_of(&self.addresses)
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let churn = self.config;
        let role = &churn.role;
        let pool =
            WorkerPool { states: self.listeners, counters: COUNTERS, cores: &role.cores, until: role.side.into() };
        let results = pool.run(context, &mut (), |worker, mut listeners| {
            let messages = MessageBuffers::new(&churn.sizes, role.side, role.seed);
            if churn.n_flows == 1 && listeners.len() == 1 {
                let listener = listeners.remove(0);
                return BlockingResponder { worker, config: &churn, messages, errors: FailureCounts::default() }
                    .run(&listener)
                    .map_err(socket_error);
            }
            let epoll = Epoll::new().map_err(socket_error)?;
            let answers = EpollResponder {
                worker,
                epoll,
                listeners,
                config: &churn,
                messages,
                open: Vec::new(),
                free: Vec::new(),
            };
            answers.run().map_err(socket_error)
        })?;
        let mut record = results.record(role.side);
        results.workers.into_iter().for_each(|causes| record.errors.extend(causes));
        Ok(record)
    }
}

/// Serves one connection after another with blocking calls: the initiator opens the next when this one is closed.
struct BlockingResponder<'a> {
    worker: WorkerHandle<'a>,
    config: &'a ChurnConfig,
    messages: MessageBuffers,
    errors: FailureCounts,
}

impl BlockingResponder<'_> {
    fn run(mut self, listener: &Listener) -> fathom_sys::Result<FailureCounts> {
        SockRef::from(listener).set_nonblocking(false).map_err(socket::error_of("fcntl(O_NONBLOCK)"))?;
        // Connections inherit the timeout, which saves a system call for each.
        socket::set_timeout(listener, BLOCKING_TIMEOUT)?;
        while !self.worker.is_over() {
            match socket::accept_blocking(listener) {
                Ok(Some(socket)) => self.serve(socket),
                Ok(None) => {}
                Err(error) => {
                    self.errors.count(&error);
                    fathom_sys::clock::sleep_until(fathom_sys::clock::now() + Nanos::from_millis(1));
                }
            }
        }
        Ok(self.errors)
    }

    fn serve(&mut self, socket: Socket) {
        self.worker.add(CONNECTIONS, 1);
        if self.config.purpose == ConnectionPurpose::ConnectOnly {
            self.worker.add(TRANSACTIONS, 1);
            return;
        }
        let mut conversation = RrConnection::responder_once(Arc::new(socket));
        loop {
            match conversation.step(&mut self.messages, Wait::Block) {
                Ok(TransferStep::WouldBlock) if self.worker.is_over() => return,
                Ok(TransferStep::WouldBlock | TransferStep::Partial | TransferStep::Received) => {}
                Ok(TransferStep::Sent) => return self.worker.add(TRANSACTIONS, 1),
                Ok(TransferStep::Closed) => return,
                Ok(TransferStep::Unexpected) => return self.errors.count(UNEXPECTED_MESSAGE),
                Err(error) if error.is_abandoned() => return,
                Err(error) => return self.errors.count(&error),
            }
        }
    }
}

/// The connections of one worker, several at a time.
struct EpollResponder<'a> {
    worker: WorkerHandle<'a>,
    epoll: Epoll,
    listeners: Vec<Listener>,
    config: &'a ChurnConfig,
    messages: MessageBuffers,
    /// The open connections by token; slots of closed ones are reused.
    open: Vec<Option<RrConnection>>,
    free: Vec<usize>,
}

impl EpollResponder<'_> {
    fn run(mut self) -> fathom_sys::Result<FailureCounts> {
        let (mut events, mut causes) = (ReadyList::with_capacity(256), FailureCounts::default());
        for (token, listener) in (LISTENERS..).zip(&self.listeners) {
            self.epoll.add(listener, token, Interest::READ)?;
        }
        while !self.worker.is_over() {
            self.epoll.wait(&mut events, Some(BLOCKING_TIMEOUT))?;
            for event in events.iter() {
                let place = |token: u64| usize::try_from(token).expect("a token is a place");
                match event.token.checked_sub(LISTENERS) {
                    Some(listener) => self.accept(place(listener), &mut causes)?,
                    None => self.answer(place(event.token), &mut causes),
                }
            }
        }
        Ok(causes)
    }

    /// Accepts all waiting connections.
    fn accept(&mut self, listener: usize, causes: &mut FailureCounts) -> fathom_sys::Result<()> {
        loop {
            let socket = match socket::accept_unnamed(&self.listeners[listener]) {
                Ok(Some(socket)) => socket,
                Ok(None) => return Ok(()),
                Err(error) => {
                    causes.count(&error);
                    return Ok(());
                }
            };
            self.worker.add(CONNECTIONS, 1);
            if self.config.purpose == ConnectionPurpose::ConnectOnly {
                drop(socket);
                self.worker.add(TRANSACTIONS, 1);
                continue;
            }
            let socket = Arc::new(socket);
            let place = self.free.pop().unwrap_or_else(|| {
                self.open.push(None);
                self.open.len() - 1
            });
            let token = u64::try_from(place).expect("a place is a token");
            let may_fill_buffer = self.config.sizes.longest_response() > SMALL_ANSWER;
            self.epoll.add(&*socket, token, Interest { read: true, write: may_fill_buffer, edge: true })?;
            self.open[place] = Some(RrConnection::responder_once(socket));
        }
    }

    /// Answers as far as possible now, and closes when the kernel has the whole answer.
    fn answer(&mut self, place: usize, causes: &mut FailureCounts) {
        let Some(conversation) = &mut self.open[place] else { return };
        loop {
            match conversation.step(&mut self.messages, Wait::Never) {
                Ok(TransferStep::WouldBlock) => return,
                Ok(TransferStep::Partial | TransferStep::Received) => continue,
                Ok(TransferStep::Sent) => self.worker.add(TRANSACTIONS, 1),
                Ok(TransferStep::Closed) => {}
                Ok(TransferStep::Unexpected) => causes.count(UNEXPECTED_MESSAGE),
                // An initiator that leaves before its answer counts that itself.
                Err(error) if error.is_abandoned() => {}
                Err(error) => causes.count(&error),
            }
            break;
        }
        self.open[place] = None;
        self.free.push(place);
    }
}

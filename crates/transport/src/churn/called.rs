//! The side that is connected to: listeners for each worker.

use std::{net::SocketAddr, sync::Arc};

use fathom_engine::{Crew, Error, Session, Test, Worker};
use fathom_model::{Endpoints, Record, units::Nanos};
use fathom_sys::{
    epoll::{Epoll, Events, Interest},
    socket::{self, Socket, Wait},
};

use super::{CONNECTIONS, COUNTERS, Churn, Errand, PATIENCE, TRANSACTIONS, cannot};
use crate::{
    causes::Causes,
    exchange::talk::{Messages, Step, Talk, WRONG},
    link::{self, Doors},
};

/// Room in each listener's queue; the kernel bounds it by `net.core.somaxconn`.
const BACKLOG: usize = 4096;
/// An answer of this size always fits the send buffer of a new connection, which begins with 16 KiB.
const SMALL_ANSWER: usize = 8 * 1024;
/// Tokens from here on are those of listeners.
const LISTENERS: u64 = 1 << 32;

/// The responder, ready to start.
pub(super) struct Called {
    churn: Churn,
    /// Those of each worker.
    listeners: Vec<Vec<Socket>>,
    addresses: Vec<SocketAddr>,
}

impl Called {
    pub(super) fn listen(churn: Churn, doors: Doors) -> Result<Self, Error> {
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for worker in 0..churn.n_workers {
            let mut own = Vec::new();
            for at in doors.of_worker(worker) {
                let (listener, _) = churn.options.listen(at, BACKLOG)?;
                addresses.push(link::local_address(&listener)?);
                own.push(listener);
            }
            listeners.push(own);
        }
        addresses.dedup();
        Ok(Self { churn, listeners, addresses })
    }
}

impl Test for Called {
    fn endpoints(&self) -> Endpoints {
        link::tell_all(&self.addresses)
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let churn = self.churn;
        let role = &churn.role;
        let crew = Crew { states: self.listeners, counters: COUNTERS, cores: &role.cores, until: role.side.into() };
        let conducted = crew.conduct(session, &mut (), |worker, mut listeners| {
            let messages = Messages::new(&churn.sizes, role.side, role.seed);
            if churn.n_flows == 1 && listeners.len() == 1 {
                let listener = listeners.remove(0);
                return Alone { worker, churn: &churn, messages, causes: Causes::default() }
                    .run(&listener)
                    .map_err(cannot);
            }
            let epoll = Epoll::new().map_err(cannot)?;
            let answers =
                Answers { worker, epoll, listeners, churn: &churn, messages, open: Vec::new(), free: Vec::new() };
            answers.run().map_err(cannot)
        })?;
        let mut record = conducted.record(role.side);
        conducted.workers.into_iter().for_each(|causes| causes.add_to(&mut record));
        Ok(record)
    }
}

/// One connection after the other, with blocking calls: the initiator opens the next when this one is closed.
struct Alone<'a> {
    worker: Worker<'a>,
    churn: &'a Churn,
    messages: Messages,
    causes: Causes,
}

impl Alone<'_> {
    fn run(mut self, listener: &Socket) -> fathom_sys::Result<Causes> {
        listener.set_nonblocking(false).map_err(socket::named("fcntl(O_NONBLOCK)"))?;
        // Connections inherit it, which saves a system call of each.
        socket::set_timeout(listener, PATIENCE)?;
        while !self.worker.is_over() {
            match socket::accept_blocking(listener) {
                Ok(Some(socket)) => self.serve(socket),
                Ok(None) => {}
                Err(error) => {
                    self.causes.count(&error);
                    fathom_sys::clock::sleep_until(fathom_sys::clock::now() + Nanos::from_millis(1));
                }
            }
        }
        Ok(self.causes)
    }

    fn serve(&mut self, socket: Socket) {
        self.worker.add(CONNECTIONS, 1);
        if self.churn.errand == Errand::Nothing {
            self.worker.add(TRANSACTIONS, 1);
            return;
        }
        let mut talk = Talk::answering_once(Arc::new(socket));
        loop {
            match talk.step(&mut self.messages, Wait::Block) {
                Ok(Step::NotNow) if self.worker.is_over() => return,
                Ok(Step::NotNow | Step::Part | Step::Received) => {}
                Ok(Step::Sent) => return self.worker.add(TRANSACTIONS, 1),
                Ok(Step::Ended) => return,
                Ok(Step::Wrong) => return self.causes.note(WRONG),
                Err(error) if error.is_abandoned() => return,
                Err(error) => return self.causes.count(&error),
            }
        }
    }
}

/// The connections of one worker, several at a time.
struct Answers<'a> {
    worker: Worker<'a>,
    epoll: Epoll,
    listeners: Vec<Socket>,
    churn: &'a Churn,
    messages: Messages,
    /// The open connections, by their token; the places of closed ones are used again.
    open: Vec<Option<Talk>>,
    free: Vec<usize>,
}

impl Answers<'_> {
    fn run(mut self) -> fathom_sys::Result<Causes> {
        let (mut events, mut causes) = (Events::with_capacity(256), Causes::default());
        for (token, listener) in (LISTENERS..).zip(&self.listeners) {
            self.epoll.add(listener, token, Interest::READ)?;
        }
        while !self.worker.is_over() {
            self.epoll.wait(&mut events, Some(PATIENCE))?;
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

    /// Takes all connections that wait.
    fn accept(&mut self, listener: usize, causes: &mut Causes) -> fathom_sys::Result<()> {
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
            if self.churn.errand == Errand::Nothing {
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
            let may_fill_buffer = self.churn.sizes.longest_response() > SMALL_ANSWER;
            self.epoll.add(&*socket, token, Interest { read: true, write: may_fill_buffer, edge: true })?;
            self.open[place] = Some(Talk::answering_once(socket));
        }
    }

    /// Answers as far as it goes now, and closes when the whole answer is with the kernel.
    fn answer(&mut self, place: usize, causes: &mut Causes) {
        let Some(talk) = &mut self.open[place] else { return };
        loop {
            match talk.step(&mut self.messages, Wait::Never) {
                Ok(Step::NotNow) => return,
                Ok(Step::Part | Step::Received) => continue,
                Ok(Step::Sent) => self.worker.add(TRANSACTIONS, 1),
                Ok(Step::Ended) => {}
                Ok(Step::Wrong) => causes.note(WRONG),
                // An initiator that goes with an answer under way counts it itself.
                Err(error) if error.is_abandoned() => {}
                Err(error) => causes.count(&error),
            }
            break;
        }
        self.open[place] = None;
        self.free.push(place);
    }
}

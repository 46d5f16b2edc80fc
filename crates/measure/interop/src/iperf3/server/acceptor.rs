//! The acceptor: accepts connections, reads their cookies, and hands each to its session.
//!
//! One thread handles all connections without a session. A silent connection costs a descriptor and expires on its own.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use fathom_engine::StopFlag;
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::threads,
    reactor::epoll_wait::{Epoll, Interest, ReadyList},
    socket::{self, SockAddr, Socket, Type, Wait},
};

use super::{
    Server, session,
    state::{ExpectedStreams, ServerState},
};
use crate::{
    iperf3::{
        Error,
        counts::TestObserver,
        data,
        wire::{COOKIE, Cookie, TestState},
    },
    sockets::{ServerTotals, canonical, open_dual_stack},
};

/// How long a connection may take to send its cookie.
const COOKIE_WAIT_MAX: Nanos = Nanos::from_secs(10);
/// The most connections without a cookie; a further one replaces the oldest.
const PENDING_MAX: usize = 512;
/// How soon the end is noticed.
const POLL_INTERVAL: Nanos = Nanos::from_millis(50);
/// The most stray datagrams to discard before connections are handled again.
const DATAGRAMS_MAX: usize = 64;

const LISTENER: u64 = 0;
/// Tokens of UDP sockets have this bit; other tokens are those of pending connections.
const DATAGRAMS: u64 = 1 << 63;

/// A session as seen by the acceptor.
struct SessionHandle {
    ip: IpAddr,
    expected: Arc<ExpectedStreams>,
    deliver: Sender<Socket>,
    is_over: Arc<AtomicBool>,
    greeted: HashSet<SocketAddr>,
}

/// A connection that has not sent its cookie.
struct PendingConnection {
    socket: Socket,
    from: SocketAddr,
    cookie: [u8; COOKIE],
    n: usize,
    deadline: Nanos,
}

pub(super) struct Acceptor {
    server: Server,
    epoll: Epoll,
    pending: HashMap<u64, PendingConnection>,
    next_token: u64,
    sessions: HashMap<Cookie, SessionHandle>,
    n_tests: u64,
    rejected: u64,
    last_busy: Nanos,
}

impl Acceptor {
    pub(super) fn new(server: Server) -> Result<Self, Error> {
        let epoll = Epoll::new()?;
        epoll.add(&server.listener, LISTENER, Interest::READ)?;
        epoll.add(&server.datagrams, DATAGRAMS, Interest::READ)?;
        Ok(Self {
            server,
            epoll,
            pending: HashMap::new(),
            next_token: 1,
            sessions: HashMap::new(),
            n_tests: 0,
            rejected: 0,
            last_busy: clock::now(),
        })
    }

    /// Accepts until it is over, then ends the running tests.
    pub(super) fn run(
        mut self,
        is_over: &dyn Fn() -> bool,
        watch: &(dyn Fn() -> Box<dyn TestObserver> + Sync),
    ) -> Result<ServerTotals, Error> {
        let house = ServerState {
            options: self.server.options.clone(),
            udp_open_slots: Mutex::default(),
            n_streams: AtomicUsize::new(0),
            stop: StopFlag::default(),
            finished: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        let outcome = thread::scope(|scope| {
            let mut events = ReadyList::with_capacity(64);
            let outcome = loop {
                if is_over() || self.is_complete() {
                    break Ok(());
                }
                if let Err(error) = self.epoll.wait(&mut events, Some(POLL_INTERVAL)) {
                    break Err(Error::from(error));
                }
                let ready: Vec<u64> = events.iter().map(|event| event.token).collect();
                let ready = ready.into_iter().try_for_each(|token| match token {
                    LISTENER => self.accept(),
                    token if token & DATAGRAMS != 0 => self.take_datagrams(),
                    token => {
                        self.read_cookie(token, &house, scope, watch);
                        Ok(())
                    }
                });
                if ready.is_err() {
                    break ready;
                }
                self.remove_finished();
            };
            house.stop.abort();
            outcome
        });
        outcome?;
        Ok(ServerTotals {
            finished: house.finished.load(Ordering::Relaxed),
            failed: house.failed.load(Ordering::Relaxed),
            rejected: self.rejected,
        })
    }

    /// Whether the requested tests are done, or the server has been idle for too long.
    fn is_complete(&self) -> bool {
        let options = &self.server.options;
        let is_idle = || options.idle.is_some_and(|idle| clock::now() - self.last_busy > idle);
        self.sessions.is_empty() && (options.tests.is_some_and(|tests| self.n_tests >= tests) || is_idle())
    }

    /// Removes finished sessions, and pending connections that have expired.
    fn remove_finished(&mut self) {
        self.sessions.retain(|_, slot| !slot.is_over.load(Ordering::Acquire));
        let now = clock::now();
        if !self.sessions.is_empty() {
            self.last_busy = now;
        }
        let before = self.pending.len();
        self.pending.retain(|_, stranger| stranger.deadline > now);
        self.rejected += u64::try_from(before - self.pending.len()).unwrap_or(0);
    }

    fn accept(&mut self) -> Result<(), Error> {
        // A few at a time, so that a flood of connections does not delay the streams of sessions.
        for _ in 0..DATAGRAMS_MAX {
            let Some((socket, from)) = socket::accept(&self.server.listener)? else { break };
            if self.pending.len() >= PENDING_MAX {
                let oldest = self.pending.iter().min_by_key(|(_, stranger)| stranger.deadline).map(|(token, _)| *token);
                oldest.and_then(|token| self.pending.remove(&token));
                self.rejected += 1;
            }
            let token = self.next_token;
            self.next_token += 1;
            self.epoll.add(&socket, token, Interest::READ)?;
            let deadline = clock::now() + COOKIE_WAIT_MAX;
            self.pending.insert(
                token,
                PendingConnection { socket, from: canonical(from), cookie: [0; COOKIE], n: 0, deadline },
            );
        }
        Ok(())
    }

    /// Reads from a pending connection, and routes it once its cookie is complete.
    fn read_cookie<'scope, 'env>(
        &mut self,
        token: u64,
        house: &'env ServerState,
        scope: &'scope thread::Scope<'scope, 'env>,
        watch: &'env (dyn Fn() -> Box<dyn TestObserver> + Sync),
    ) {
        let Some(stranger) = self.pending.get_mut(&token) else { return };
        match socket::recv(&stranger.socket, &mut stranger.cookie[stranger.n..], Wait::Never) {
            Ok(None) => return,
            Ok(Some(count)) if count > 0 => {
                stranger.n += count;
                if stranger.n < COOKIE {
                    return;
                }
            }
            Ok(Some(_)) | Err(_) => {
                self.pending.remove(&token);
                self.rejected += 1;
                return;
            }
        }
        let Some(stranger) = self.pending.remove(&token) else { return };
        if self.epoll.remove(&stranger.socket).is_err() {
            return;
        }
        match Cookie::read(stranger.cookie) {
            Some(cookie) => self.route(stranger, cookie, house, scope, watch),
            None => self.rejected += 1,
        }
    }

    /// Hands a stream to its session, creates a session for a new client, and tells all others that the server is busy.
    fn route<'scope, 'env>(
        &mut self,
        stranger: PendingConnection,
        cookie: Cookie,
        house: &'env ServerState,
        scope: &'scope thread::Scope<'scope, 'env>,
        watch: &'env (dyn Fn() -> Box<dyn TestObserver> + Sync),
    ) {
        self.remove_finished();
        if let Some(slot) = self.sessions.get(&cookie) {
            if ExpectedStreams::take(&slot.expected.connections) && slot.deliver.send(stranger.socket).is_ok() {
                return;
            }
            self.rejected += 1;
            return;
        }
        let options = &self.server.options;
        let is_welcome = options.is_client_allowed.as_ref().is_none_or(|admits| admits(stranger.from.ip()));
        let has_tests_left = options.tests.is_none_or(|tests| self.n_tests < tests);
        if !is_welcome || !has_tests_left || self.sessions.len() >= options.clients {
            // If the client is already gone, this message does not matter.
            let _ = socket::send(&stranger.socket, &[TestState::AccessDenied.byte()], Wait::Never);
            self.rejected += 1;
            return;
        }
        self.n_tests += 1;
        self.last_busy = clock::now();
        let (deliver, streams) = mpsc::channel();
        let slot = SessionHandle {
            ip: stranger.from.ip(),
            expected: Arc::default(),
            deliver,
            is_over: Arc::default(),
            greeted: HashSet::new(),
        };
        let guest = session::ClientInfo { cookie, from: stranger.from, expected: slot.expected.clone() };
        let is_over = slot.is_over.clone();
        self.sessions.insert(cookie, slot);
        let serve = move || serve(house, stranger.socket, &guest, &streams, watch, &is_over);
        if threads::start_within(scope, "connection", serve).is_err() {
            // Its socket is dropped together with the arguments of the thread.
            self.sessions.remove(&cookie);
            self.rejected += 1;
        }
    }

    /// Discards stray datagrams, and opens streams for clients that greet.
    fn take_datagrams(&mut self) -> Result<(), Error> {
        // One byte more than a greeting, to detect longer datagrams.
        let mut greeting = [0; 5];
        for _ in 0..DATAGRAMS_MAX {
            let Some((count, from)) = receive_from(&self.server.datagrams, &mut greeting) else { break };
            if let (4, Some(word)) = (count, greeting.first_chunk()) {
                self.greet(from, *word)?;
            }
        }
        Ok(())
    }

    /// Opens the stream of an expected client that greets.
    ///
    /// The greeting must come from the address of its control connection. Otherwise a server could be made to send to a host that
    /// never asked.
    fn greet(&mut self, from: SocketAddr, word: [u8; 4]) -> Result<(), Error> {
        let ip = canonical(from).ip();
        let expected = self.sessions.values_mut().find(|slot| {
            slot.ip == ip && slot.expected.datagrams.load(Ordering::Acquire) > 0 && !slot.greeted.contains(&from)
        });
        let Some(slot) = expected else { return Ok(()) };
        if !ExpectedStreams::take(&slot.expected.datagrams) {
            return Ok(());
        }
        slot.greeted.insert(from);
        let deliver = slot.deliver.clone();
        // The greeted socket becomes the stream, so that data after the greeting is in its queue. A new socket replaces it
        // before it is connected, so that no greeting of another client is lost in between.
        let next = another(&self.server)?;
        self.epoll.add(&next, DATAGRAMS, Interest::READ)?;
        let stream = std::mem::replace(&mut self.server.datagrams, next);
        self.epoll.remove(&stream)?;
        let connected = stream.connect(&SockAddr::from(from)).and_then(|()| stream.send(&data::answer_to(word)));
        let mut others = Vec::new();
        let mut greeting = [0; 5];
        while let Some((count, other)) = receive_from(&stream, &mut greeting) {
            // Datagrams in the queue after the greeting arrived before the socket was connected.
            if let (true, Some(word)) = (other != from && count == 4, greeting.first_chunk()) {
                others.push((other, *word));
            }
        }
        if connected.is_ok() {
            // A session that is already gone needs no stream.
            let _ = deliver.send(stream);
        }
        others.into_iter().try_for_each(|(other, word)| self.greet(other, word))
    }
}

/// Runs one session from start to end, and frees its place afterwards.
fn serve(
    house: &ServerState,
    socket: Socket,
    guest: &session::ClientInfo,
    streams: &Receiver<Socket>,
    watch: &(dyn Fn() -> Box<dyn TestObserver> + Sync),
    is_over: &AtomicBool,
) {
    let mut watch = watch();
    let outcome = session::serve(house, socket, guest, streams, &mut *watch);
    match &outcome {
        Ok(()) => house.finished.fetch_add(1, Ordering::Relaxed),
        Err(error) => {
            watch.on_failure(error);
            house.failed.fetch_add(1, Ordering::Relaxed)
        }
    };
    drop(watch);
    is_over.store(true, Ordering::Release);
}

fn receive_from(socket: &Socket, bytes: &mut [u8; 5]) -> Option<(usize, SocketAddr)> {
    loop {
        match socket::recv_from(socket, bytes, Wait::Never) {
            Ok(received) => return received.and_then(|(count, sender)| Some((count, sender.address()?))),
            // The receiver refused an earlier answer; that does not affect the next datagram.
            Err(error) if error.source.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return None,
        }
    }
}

/// Creates another UDP socket of the server.
fn another(server: &Server) -> Result<Socket, Error> {
    let listen = |cause| Error::Listen { cause };
    let address = server.address;
    let socket = open_dual_stack(address, Type::DGRAM).map_err(listen)?;
    server.options.guests.guard(&socket)?;
    if let Some(device) = server.datagrams.device().map_err(listen)? {
        socket.bind_device(Some(&device)).map_err(listen)?;
    }
    socket.set_reuse_address(true).map_err(listen)?;
    socket.bind(&address.into()).map_err(listen)?;
    socket.set_nonblocking(true).map_err(listen)?;
    Ok(socket)
}

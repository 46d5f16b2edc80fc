//! The listening side: admits controllers that have the key, and sends no application data to others.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{
    clock,
    reactor::epoll_wait::{Epoll, Interest, ReadyList},
    socket::socket_options,
};
use rustls::{ServerConfig, ServerConnection, Stream, version::TLS13};

use super::{
    handshake::{BUSY, DeadlineStream, UNACKNOWLEDGED_MAX, WELCOME, provider},
    key::{Identity, TOKEN_LEN, Token},
    pump::pump,
    refusals::{RefusalCounts, RefusalLog, RefusalReason},
    unauthenticated::{UnauthenticatedConnections, UnauthenticatedSlot},
};
use crate::{Error, threads};

/// A segment size that every RFC 1122 network supports, so that a path that drops large packets still carries the control connection.
const SEGMENT_MAX: Bytes = Bytes(536);
/// The interval for checking whether the server must stop.
const STOP_CHECK_EVERY: Nanos = Nanos::from_millis(200);
/// The pause after a failed accept, for example if no descriptor is free.
const ACCEPT_RETRY_AFTER: Nanos = Nanos::from_millis(100);

/// The limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLimits {
    /// The maximum number of concurrent controllers.
    pub controllers: usize,
    /// The time limit for sending the token.
    pub handshake: Nanos,
}

impl Default for ServerLimits {
    /// Eight controllers, and five seconds for the token.
    fn default() -> Self {
        Self { controllers: 8, handshake: Nanos::from_secs(5) }
    }
}

/// Handles the connections of a server.
pub trait ControllerHandler: Send + Sync + 'static {
    /// Serves an authenticated controller over its plain stream; returns when that is over.
    fn serve(&self, controller: SocketAddr, stream: UnixStream);

    /// Reports refused connections, at most every ten seconds.
    fn refused(&self, refusals: &RefusalCounts);
}

/// A listener for controllers.
pub struct Server {
    config: Arc<ServerConfig>,
    token: Token,
    limits: ServerLimits,
    unauthenticated: Arc<UnauthenticatedConnections>,
    controllers: Arc<AtomicUsize>,
    refusals: Mutex<RefusalLog>,
}

/// A slot that is released on drop.
struct ControllerSlot(Arc<AtomicUsize>);

impl ControllerSlot {
    fn try_take(slots: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let one_more = |taken| (taken < most).then_some(taken + 1);
        let taken = slots.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Self(Arc::clone(slots)))
    }
}

impl Drop for ControllerSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    /// Creates a server that admits controllers with the identity's key.
    ///
    /// # Errors
    /// If the certificate and its private key do not match.
    pub fn new(identity: &Identity, limits: ServerLimits) -> Result<Self, Error> {
        let wrong =
            |cause: rustls::Error| Error::Certificate { what: "use the server's certificate", cause: cause.into() };
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(wrong)?
            .with_no_client_auth()
            .with_single_cert(vec![identity.certificate.clone()], identity.private_key.clone_key())
            .map_err(wrong)?;
        // No controller resumes a session.
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            token: identity.token,
            limits,
            unauthenticated: Arc::default(),
            controllers: Arc::default(),
            refusals: Mutex::default(),
        })
    }

    /// Admits controllers until `is_over` returns true; each of them has its own thread.
    ///
    /// Controllers that are being served when this returns continue until the process ends.
    ///
    /// # Errors
    /// If waiting on the listener fails.
    pub fn run(
        self,
        listener: &TcpListener,
        is_over: &dyn Fn() -> bool,
        reception: impl ControllerHandler,
    ) -> Result<(), Error> {
        let system = |cause| Error::System { what: "listen for controllers".to_owned(), cause };
        listener.set_nonblocking(true).map_err(system)?;
        socket_options::set_segment_max(listener, SEGMENT_MAX).map_err(|error| system(error.source))?;
        let epoll = Epoll::new().map_err(|error| system(error.source))?;
        epoll.add(listener, 0, Interest::READ).map_err(|error| system(error.source))?;
        let mut events = ReadyList::with_capacity(1);
        let server = Arc::new((self, reception));
        while !is_over() {
            epoll.wait(&mut events, Some(STOP_CHECK_EVERY)).map_err(|error| system(error.source))?;
            match listener.accept() {
                Ok((tcp, from)) => Self::start_handshake(&server, tcp, from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The connection was dropped before it was accepted, or no descriptor is free.
                Err(_) => drop(clock::sleep_until(clock::now() + ACCEPT_RETRY_AFTER)),
            }
            let due = server.0.refusals().take_due(clock::now());
            if let Some(refusals) = due {
                server.1.refused(&refusals);
            }
        }
        let rest = server.0.refusals().take_rest();
        if let Some(refusals) = rest {
            server.1.refused(&refusals);
        }
        Ok(())
    }

    /// Starts a thread for a connection; if that fails, pauses accepting.
    fn start_handshake<R: ControllerHandler>(server: &Arc<(Self, R)>, tcp: TcpStream, from: SocketAddr) {
        let tcp = Arc::new(tcp);
        let (stranger, is_crowded) = server.0.unauthenticated.admit(&tcp, from);
        if is_crowded {
            server.0.refusals().count(RefusalReason::TooManyConnections, from.ip());
        }
        let its_server = Arc::clone(server);
        let started = threads::start("tls-connection", move || {
            let (server, reception) = &*its_server;
            // An unauthenticated peer gets no reply.
            if let Err(refusal) = server.serve_connection(&tcp, stranger, |plain| reception.serve(from, plain)) {
                server.refusals().count(refusal, from.ip());
            }
        });
        if started.is_err() {
            server.0.refusals().count(RefusalReason::Exhausted, from.ip());
            clock::sleep_until(clock::now() + ACCEPT_RETRY_AFTER);
        }
    }

    fn refusals(&self) -> MutexGuard<'_, RefusalLog> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes the handshake with one controller and serves it to the end.
    fn serve_connection(
        &self,
        tcp: &Arc<TcpStream>,
        stranger: UnauthenticatedSlot,
        start_agent: impl FnOnce(UnixStream),
    ) -> Result<(), RefusalReason> {
        let (mut tls, mut io) = self.handshake(tcp).map_err(|_| RefusalReason::NoToken)?;
        let mut stream = Stream::new(&mut tls, &mut io);
        let mut token = [0; TOKEN_LEN];
        stream.read_exact(&mut token).map_err(|_| RefusalReason::NoToken)?;
        if !self.token.is_equal_in_constant_time(&token) {
            return Err(RefusalReason::WrongToken);
        }
        // From here on it is authenticated; its agent notices later failures of the connection.
        drop(stranger);
        let Some(_slot) = ControllerSlot::try_take(&self.controllers, self.limits.controllers) else {
            let _ = stream.write_all(&[BUSY]).and_then(|()| stream.flush());
            return Err(RefusalReason::Busy);
        };
        if stream.write_all(&[WELCOME]).and_then(|()| stream.flush()).is_err() {
            return Ok(());
        }
        let (near, far) = UnixStream::pair().map_err(|_| RefusalReason::Exhausted)?;
        let tcp = Arc::clone(tcp);
        let pumping =
            threads::start("tls", move || pump(tls.into(), &tcp, &far)).map_err(|_| RefusalReason::Exhausted)?;
        start_agent(near);
        // The result is visible at both ends of the pump.
        let _ = pumping.join();
        Ok(())
    }

    fn handshake<'a>(&self, tcp: &'a TcpStream) -> io::Result<(ServerConnection, DeadlineStream<'a>)> {
        tcp.set_nonblocking(false)?;
        tcp.set_nodelay(true)?;
        socket_options::set_unacknowledged_max(tcp, UNACKNOWLEDGED_MAX).map_err(|error| error.source)?;
        let tls = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        Ok((tls, DeadlineStream { tcp, deadline: clock::now() + self.limits.handshake }))
    }
}

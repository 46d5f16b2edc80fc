//! The listening side: lets controllers in that know the key, and says nothing to anyone else.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    epoll::{Epoll, Events, Interest},
};
use rustls::{ServerConfig, ServerConnection, Stream, version::TLS13};

use super::{
    handshake::{BUSY, Bounded, WELCOME, provider},
    key::{Identity, TOKEN_LEN, Token},
    pump::pump,
};
use crate::Error;

/// Connections that have not shown the token yet; beyond it, strangers are turned away at the door.
const STRANGERS_MAX: usize = 32;
/// How often the server looks whether it is told to end.
const TURN: Nanos = Nanos::from_millis(200);
/// How long the server rests when the kernel has no descriptor for one more connection.
const REST: Nanos = Nanos::from_millis(100);

/// What a server grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most controllers at once.
    pub controllers: usize,
    /// How long a connection may take to show the token.
    pub handshake: Nanos,
}

impl Default for Limits {
    /// Eight controllers, and five seconds to show the token.
    fn default() -> Self {
        Self { controllers: 8, handshake: Nanos::from_secs(5) }
    }
}

/// A listener for controllers.
pub struct Server {
    config: Arc<ServerConfig>,
    token: Token,
    limits: Limits,
    strangers: Arc<AtomicUsize>,
    controllers: Arc<AtomicUsize>,
}

/// A place that is given back when dropped.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(seats: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let one_more = |taken| (taken < most).then_some(taken + 1);
        let taken = seats.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Self(Arc::clone(seats)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    /// A server that lets in whoever knows the identity's key.
    ///
    /// # Errors
    /// When the certificate and its private key do not belong together.
    pub fn new(identity: &Identity, limits: Limits) -> Result<Self, Error> {
        let wrong =
            |cause: rustls::Error| Error::Certificate { what: "use the server's certificate", cause: cause.into() };
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(wrong)?
            .with_no_client_auth()
            .with_single_cert(vec![identity.certificate.clone()], identity.private_key.clone_key())
            .map_err(wrong)?;
        // Nobody resumes a session here.
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            token: identity.token,
            limits,
            strangers: Arc::default(),
            controllers: Arc::default(),
        })
    }

    /// Lets controllers in until `is_over` says so; each has a thread in which `start_agent` is called.
    ///
    /// `start_agent` is given the controller's address and the plain stream to it, and returns when the agent has ended.
    /// Controllers that are served when this returns are served on until the process ends.
    ///
    /// # Errors
    /// When the listener cannot be waited for.
    pub fn run(
        self,
        listener: &TcpListener,
        is_over: &dyn Fn() -> bool,
        start_agent: impl Fn(SocketAddr, UnixStream) + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let system = |cause| Error::System { what: "listen for controllers".to_owned(), cause };
        listener.set_nonblocking(true).map_err(system)?;
        let epoll = Epoll::new().map_err(|error| system(error.source))?;
        epoll.add(listener, 0, Interest::READ).map_err(|error| system(error.source))?;
        let mut events = Events::with_capacity(1);
        let server = Arc::new((self, start_agent));
        while !is_over() {
            epoll.wait(&mut events, Some(TURN)).map_err(|error| system(error.source))?;
            match listener.accept() {
                Ok((tcp, address)) => {
                    let Some(seat) = Seat::take(&server.0.strangers, STRANGERS_MAX) else { continue };
                    let server = Arc::clone(&server);
                    thread::spawn(move || {
                        let (server, start_agent) = &*server;
                        // To a stranger nothing is said, and of a stranger there is nothing to say.
                        let _ = server.receive(tcp, seat, |plain| start_agent(address, plain));
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A connection that was given up before it was accepted, or no descriptor left.
                Err(_) => drop(clock::sleep_until(clock::now() + REST)),
            }
        }
        Ok(())
    }

    /// Shakes hands with one controller and serves it to the end.
    fn receive(&self, tcp: TcpStream, stranger: Seat, start_agent: impl FnOnce(UnixStream)) -> io::Result<()> {
        tcp.set_nonblocking(false)?;
        tcp.set_nodelay(true)?;
        let mut tls = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        let mut io = Bounded { tcp: &tcp, deadline: clock::now() + self.limits.handshake };
        let mut stream = Stream::new(&mut tls, &mut io);
        let mut token = [0; TOKEN_LEN];
        stream.read_exact(&mut token)?;
        if !self.token.is_same(&token) {
            return Ok(());
        }
        let Some(_seat) = Seat::take(&self.controllers, self.limits.controllers) else {
            stream.write_all(&[BUSY])?;
            return stream.flush();
        };
        drop(stranger);
        stream.write_all(&[WELCOME])?;
        stream.flush()?;
        let (near, far) = UnixStream::pair()?;
        let pumping = thread::spawn(move || pump(tls.into(), &tcp, &far));
        start_agent(near);
        pumping.join().map_err(|_| io::Error::other("the pump panicked"))?
    }
}

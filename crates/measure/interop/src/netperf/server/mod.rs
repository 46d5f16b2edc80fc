//! The server: a thread per client, which waits for a test, runs it, and waits for the next.

mod options;
mod served_test;
mod session;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread,
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::threads,
    socket::{self, Listener, Socket, Type},
};

pub use self::options::NetserverOptions;
use self::{
    options::SharedSetup,
    session::{Session, Welcome},
};
use super::{Error, control::ControlConnection};
use crate::sockets::{ServerTotals, open_dual_stack};

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    address: SocketAddr,
    setup: SharedSetup,
}

/// The most connections waiting to be accepted (`create_listens` of netserver).
const BACKLOG: i32 = 1024;
/// How soon the end is noticed.
const POLL_INTERVAL: Nanos = Nanos::from_millis(50);
/// The pause when the host has no descriptor for another client.
const SHORTAGE_PAUSE: Nanos = Nanos::from_millis(100);
/// The most clients above the limit that are answered that the server is busy; further ones are disconnected.
const REFUSED_MAX: usize = 32;

/// The counts of all sessions.
#[derive(Debug, Default)]
struct SessionCounts {
    active: AtomicUsize,
    finished: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
}

impl Server {
    /// Listens for clients; `::` accepts IPv4 as well.
    ///
    /// # Errors
    /// If the port is in use, or if this host does not have the address.
    pub fn bind(address: SocketAddr, options: NetserverOptions) -> Result<Self, Error> {
        let open = || -> io::Result<Socket> {
            let socket = open_dual_stack(address, Type::STREAM)?;
            // Without SO_REUSEPORT: a second server on the same port is a mistake that must be reported.
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            Ok(socket)
        };
        let listen = |cause| Error::Listen { cause };
        let listener = open().map_err(listen)?;
        let listener = Listener::new(listener, &options.guests)?;
        listener.start(BACKLOG).map_err(listen)?;
        socket::set_timeout(&listener, POLL_INTERVAL)?;
        let address = socket::local_address(&listener)?;
        Ok(Self { listener, address, setup: SharedSetup::new(options, clock::now().0) })
    }

    /// The address that it listens on, with the actual port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is told to stop; running tests are then aborted.
    ///
    /// # Errors
    /// Only errors that end the whole server.
    pub fn run(self, stop: &StopFlag) -> Result<ServerTotals, Error> {
        let (counts, over) = (SessionCounts::default(), StopFlag::default());
        let outcome = thread::scope(|scope| {
            let outcome = loop {
                if stop.state() != Stop::Continue {
                    break Ok(());
                }
                match socket::accept_blocking(&self.listener) {
                    Ok(Some(socket)) => self.welcome(scope, socket, &counts, &over),
                    Ok(None) => {}
                    // A host that is short of something for now serves on when clients have left.
                    Err(error) if counts.active.load(Ordering::Relaxed) > 0 && !is_fatal(&error) => {
                        clock::sleep_until(clock::now() + SHORTAGE_PAUSE);
                    }
                    Err(error) => break Err(Error::from(error)),
                }
            };
            over.abort();
            outcome
        });
        outcome?;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Ok(ServerTotals {
            finished: read(&counts.finished),
            failed: read(&counts.failed),
            rejected: read(&counts.rejected),
        })
    }

    /// Starts the session of a client, or turns the client away.
    fn welcome<'scope, 'env>(
        &'env self,
        scope: &'scope thread::Scope<'scope, 'env>,
        socket: Socket,
        counts: &'env SessionCounts,
        over: &'env StopFlag,
    ) {
        let is_allowed = |ip: IpAddr| self.setup.options.is_client_allowed.as_ref().is_none_or(|admits| admits(ip));
        let opened = ControlConnection::new(socket, over.clone())
            .and_then(|control| control.addresses().map(|addresses| (control, addresses)));
        let n_active = counts.active.load(Ordering::Relaxed);
        let admitted = opened.ok().filter(|(_, (_, peer))| is_allowed(peer.ip()));
        let Some((control, addresses)) = admitted.filter(|_| n_active < self.setup.options.clients + REFUSED_MAX)
        else {
            counts.rejected.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let welcome = if n_active < self.setup.options.clients { Welcome::Served } else { Welcome::Busy };
        counts.active.fetch_add(1, Ordering::Relaxed);
        let serve = move || {
            Session::new(control, addresses, &self.setup).serve(welcome, counts);
            counts.active.fetch_sub(1, Ordering::Relaxed);
        };
        if threads::start_within(scope, "connection", serve).is_err() {
            counts.active.fetch_sub(1, Ordering::Relaxed);
            counts.rejected.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether accepting cannot work again: the listener itself is unusable.
fn is_fatal(error: &fathom_sys::Error) -> bool {
    matches!(error.source.kind(), io::ErrorKind::InvalidInput)
}

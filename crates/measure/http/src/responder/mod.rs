//! A server that answers every request with a body of one size, at the lowest cost that sockets allow.
//!
//! It is the responder of two-sided tests, the HTTP server of `fathom serve`, and the ideal target for calibration. The delay and
//! status of its answers and its stalls are configurable. It serves no files, and skips request bodies without reading them.

mod date;
mod delay;
mod due_answers;
mod fraction;
mod invalid_text;
mod lateness;
mod options;
mod reply;
mod request;
mod stall;
mod status_mix;
mod stream;
mod tls;
mod unix;
mod worker;

use std::{net::SocketAddr, path::Path, sync::Arc, thread};

pub use delay::Delay;
use fathom_engine::{Error, Stop, StopFlag, WorkerCounters};
use fathom_model::units::Bytes;
use fathom_sys::{
    clock,
    policy::AllowedPeers,
    process::{affinity, threads},
    socket::{self, Listener},
};
pub use invalid_text::InvalidText;
pub use options::{
    Certificate, DELAY, KEEP_ALIVE, KeepAliveLimit, OPTIONS, PORT, ResponderOptions, SCHEME, SIZE, STALL, STATUSES,
    port,
};
pub use request::fuzz_request;
pub use stall::StallPattern;
pub use status_mix::StatusMix;
use worker::ResponderContext;
pub(crate) use worker::{ResponderCounter, ResponderWorker, WorkerControl};

/// The kernel limits it to net.core.somaxconn, whose default is the same.
const BACKLOG: u16 = 4096;

/// The work of a responder until it was stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResponderCounts {
    /// Requests answered with a status of the mix.
    pub requests: u64,
    /// Bytes handed to the kernel.
    pub bytes_sent: Bytes,
    /// Connections accepted.
    pub connections: u64,
    /// Requests refused with an error status.
    pub rejected: u64,
    /// Connections closed because the client was too slow, or idle for too long.
    pub timed_out: u64,
}

/// Listening sockets, ready for the workers.
#[derive(Debug)]
pub struct Responder {
    listeners: Vec<Listener>,
    address: Option<SocketAddr>,
    context: ResponderContext,
}

/// Verifies that nobody listens at an address.
///
/// The responder's own listeners share their port (`SO_REUSEPORT`), and would also share it with another responder.
fn check_unused(address: SocketAddr) -> Result<(), Error> {
    let alone = std::net::TcpListener::bind(address).map(drop);
    alone.map_err(|cause| {
        let cause = fathom_sys::Error::new("bind", cause);
        Error::system(format!("listen on {address}"), "CAP_NET_BIND_SERVICE", cause)
    })
}

impl Responder {
    /// Listens for its guests; port 0 lets the kernel choose one. Connections wait until [`Responder::run`].
    ///
    /// The kernel spreads connections over the workers (`SO_REUSEPORT`).
    ///
    /// # Errors
    /// The address is in use or does not belong to this host, the body is too large, or the certificate cannot be used.
    pub fn bind(address: SocketAddr, guests: &AllowedPeers, options: ResponderOptions) -> Result<Self, Error> {
        options.check()?;
        let listen = |address| {
            socket::listen(address, BACKLOG, guests)
                .map_err(|cause| Error::system(format!("listen on {address}"), "CAP_NET_BIND_SERVICE", cause))
        };
        check_unused(address)?;
        let first = listen(address)?;
        let address = socket::local_address(&first)
            .map_err(|cause| Error::System { what: format!("ask for the port of {address}"), cause })?;
        let others = (1..options.workers).map(|_| listen(address));
        let listeners = [Ok(first)].into_iter().chain(others).collect::<Result<_, _>>()?;
        Ok(Self { listeners, address: Some(address), context: ResponderContext::new(options, Some(address))? })
    }

    /// Listens at a path, which the last worker removes. The workers share one queue of connections.
    ///
    /// # Errors
    /// The path holds something other than a stale socket, or an error of [`Responder::bind`].
    pub fn bind_unix(path: &Path, options: ResponderOptions) -> Result<Self, Error> {
        options.check()?;
        let mut common = ResponderContext::new(options, None)?;
        let (first, name) = unix::listen(path)?;
        common.unix_socket = Some(Arc::new(name));
        let share = |_| {
            let cause = |error| fathom_sys::Error::new("fcntl(F_DUPFD_CLOEXEC)", error);
            let shared = first.try_clone().map_err(cause);
            shared.map_err(|cause| Error::System { what: format!("listen at {}", path.display()), cause })
        };
        let others = (1..common.options.workers).map(share).collect::<Result<Vec<_>, _>>()?;
        let accept = |socket| {
            Listener::new(socket, &AllowedPeers::anybody())
                .map_err(|cause| Error::System { what: format!("listen at {}", path.display()), cause })
        };
        let listeners = [first].into_iter().chain(others).map(accept).collect::<Result<_, _>>()?;
        Ok(Self { listeners, address: None, context: common })
    }

    /// The address that it listens on, with its port.
    ///
    /// # Panics
    /// If it listens at a path.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address.expect("only one that was bound to an address is asked for it")
    }

    /// Returns one worker per listener; the caller provides the threads. Stalls are timed from now.
    pub(crate) fn into_workers(self) -> Result<Vec<ResponderWorker>, Error> {
        let common = ResponderContext { start: clock::now(), ..self.context };
        let attend = |(worker, listener)| ResponderWorker::new(listener, worker, common.clone());
        self.listeners.into_iter().enumerate().map(attend).collect()
    }

    /// Answers requests until it is stopped, which it notices within 50 ms.
    ///
    /// # Errors
    /// A core does not exist, or epoll fails.
    ///
    /// # Panics
    /// If a worker panicked.
    pub fn run(self, stop: &StopFlag) -> Result<ResponderCounts, Error> {
        let cores = self.context.options.cores.clone();
        let attendants = self.into_workers()?;
        let slots: Vec<WorkerCounters> = attendants.iter().map(|_| WorkerCounters::default()).collect();
        thread::scope(|scope| {
            let start = |(idx, attendant): (usize, ResponderWorker)| {
                let post = StandaloneWorker { slot: &slots[idx], stop };
                let core = cores.get(idx % cores.len().max(1)).copied();
                let started = threads::start_within(scope, "worker", move || {
                    // A worker that fails stops the others: half a responder would be slower without notice.
                    pin(core).and_then(|()| attendant.serve(&post)).inspect_err(|_| stop.abort())
                });
                started.map_err(|cause| {
                    stop.abort();
                    Error::System { what: "start a worker of the responder".to_owned(), cause }
                })
            };
            let threads: Vec<_> = attendants.into_iter().enumerate().map(start).collect();
            threads.into_iter().try_for_each(|thread| thread?.join().expect("a worker does not panic"))
        })?;
        let total = |counter: ResponderCounter| slots.iter().map(|slot| slot.read(counter as usize)).sum();
        Ok(ResponderCounts {
            requests: total(ResponderCounter::Requests),
            bytes_sent: Bytes(total(ResponderCounter::BytesSent)),
            connections: total(ResponderCounter::Connections),
            rejected: total(ResponderCounter::Rejected),
            timed_out: total(ResponderCounter::TimedOut),
        })
    }
}

impl ResponderContext {
    fn new(options: ResponderOptions, address: Option<SocketAddr>) -> Result<Self, Error> {
        let tls = options.certificate.as_ref().map(|certificate| tls::config(certificate, address)).transpose()?;
        Ok(Self { options, tls, unix_socket: None, start: clock::now() })
    }
}

fn pin(core: Option<usize>) -> Result<(), Error> {
    let Some(core) = core else { return Ok(()) };
    affinity::pin_thread(core).map_err(|cause| Error::System { what: format!("pin a worker to core {core}"), cause })
}

/// The control of a worker of [`Responder::run`]: its counters and its stop flag.
struct StandaloneWorker<'a> {
    slot: &'a WorkerCounters,
    stop: &'a StopFlag,
}

impl WorkerControl for StandaloneWorker<'_> {
    fn add(&self, counter: ResponderCounter, amount: u64) {
        self.slot.add(counter as usize, amount);
    }

    fn is_over(&self) -> bool {
        self.stop.state() != Stop::Continue
    }
}

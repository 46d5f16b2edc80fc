//! A server that answers every GET and HEAD with a body of one size, as cheaply as sockets allow.
//!
//! It is the other side of two-sided tests, what `fathom serve` answers HTTP with, and the ideal target that calibration
//! measures against. It knows no files, no TLS, and no request bodies: a request that announces one is refused.

mod attendant;
mod date;
mod reply;
mod request;

use std::{net::SocketAddr, thread};

pub(crate) use attendant::{Attendant, Served, Tally};
use fathom_engine::{Error, Slot, Stop, StopFlag};
use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{
    affinity,
    socket::{self, Socket},
};
pub use request::fuzz_request;

/// The kernel bounds it by net.core.somaxconn, whose default is the same.
const BACKLOG: u16 = 4096;
/// Each worker holds the whole answer, so a machine with many cores must still have room.
const SIZE_MAX: Bytes = Bytes(16 << 20);

/// How a responder answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponderOptions {
    /// The size of the body; at most 16 MiB.
    pub size: Bytes,
    /// The number of worker threads, each with a listener of its own; at least one.
    pub workers: usize,
    /// The cores to pin the workers to, in turn; empty for no pinning.
    pub cores: Vec<usize>,
    /// How long a request may take to arrive and an answer to be taken.
    pub patience: Nanos,
    /// How long a connection may be idle between requests.
    pub idle: Nanos,
    /// The most connections per worker; further ones wait in the kernel's queue.
    pub connections_max: usize,
}

impl Default for ResponderOptions {
    fn default() -> Self {
        Self {
            // The welcome page of nginx, against which most figures of this field were made, has this size.
            size: Bytes(612),
            workers: 1,
            cores: Vec::new(),
            patience: Nanos::from_secs(10),
            idle: Nanos::from_secs(60),
            connections_max: 10_000,
        }
    }
}

/// What a responder did until it was stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResponderCounts {
    /// Requests answered with 200.
    pub requests: u64,
    /// Bytes handed to the kernel.
    pub bytes_sent: Bytes,
    /// Connections accepted.
    pub connections: u64,
    /// Requests refused with an error status.
    pub rejected: u64,
    /// Connections closed because the other side was too slow, or idle for too long.
    pub timed_out: u64,
}

/// Listening sockets with the kernel spreading connections over them (`SO_REUSEPORT`).
#[derive(Debug)]
pub struct Responder {
    listeners: Vec<Socket>,
    address: SocketAddr,
    options: ResponderOptions,
}

/// Makes sure that nobody listens at an address.
///
/// The responder's own listeners share their port (`SO_REUSEPORT`), and would share it with another responder's too.
fn claim(address: SocketAddr) -> Result<(), Error> {
    let alone = std::net::TcpListener::bind(address).map(drop);
    alone.map_err(|cause| {
        let cause = fathom_sys::Error::new("bind", cause);
        Error::system(format!("listen on {address}"), "CAP_NET_BIND_SERVICE", cause)
    })
}

impl Responder {
    /// Listens; port 0 lets the kernel choose one. Connections wait until [`Responder::run`].
    ///
    /// # Errors
    /// The address is in use or not of this host, or the body is too large.
    pub fn bind(address: SocketAddr, options: ResponderOptions) -> Result<Self, Error> {
        if options.size > SIZE_MAX {
            return Err(Error::Unsupported {
                what: format!("a body of {} is more than the responder holds", options.size),
                hint: Some(format!("ask for at most {SIZE_MAX}")),
            });
        }
        let listen = |address| {
            socket::listen(address, BACKLOG)
                .map_err(|cause| Error::system(format!("listen on {address}"), "CAP_NET_BIND_SERVICE", cause))
        };
        claim(address)?;
        let first = listen(address)?;
        let address = socket::local_address(&first)
            .map_err(|cause| Error::System { what: format!("ask for the port of {address}"), cause })?;
        let others = (1..options.workers).map(|_| listen(address));
        let listeners = [Ok(first)].into_iter().chain(others).collect::<Result<_, _>>()?;
        Ok(Self { listeners, address, options })
    }

    /// The address that it listens on, with its port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// One attendant per listener, for whoever brings the threads.
    pub(crate) fn attendants(self) -> Result<Vec<Attendant>, Error> {
        let options = self.options;
        self.listeners.into_iter().map(|listener| Attendant::new(listener, &options)).collect()
    }

    /// Answers requests until it is told to stop, which it notices within 50 ms.
    ///
    /// # Errors
    /// A core does not exist, or epoll fails.
    ///
    /// # Panics
    /// If a worker panicked.
    pub fn run(self, stop: &StopFlag) -> Result<ResponderCounts, Error> {
        let cores = self.options.cores.clone();
        let attendants = self.attendants()?;
        let slots: Vec<Slot> = attendants.iter().map(|_| Slot::default()).collect();
        thread::scope(|scope| {
            let start = |(idx, attendant): (usize, Attendant)| {
                let post = Post { slot: &slots[idx], stop };
                let core = cores.get(idx % cores.len().max(1)).copied();
                scope.spawn(move || {
                    // One that fails takes the others with it: half a responder would be a silent loss of speed.
                    pin(core).and_then(|()| attendant.serve(&post)).inspect_err(|_| stop.abort())
                })
            };
            let threads: Vec<_> = attendants.into_iter().enumerate().map(start).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
        })?;
        let total = |counter: Served| slots.iter().map(|slot| slot.read(counter as usize)).sum();
        Ok(ResponderCounts {
            requests: total(Served::Requests),
            bytes_sent: Bytes(total(Served::BytesSent)),
            connections: total(Served::Connections),
            rejected: total(Served::Rejected),
            timed_out: total(Served::TimedOut),
        })
    }
}

fn pin(core: Option<usize>) -> Result<(), Error> {
    let Some(core) = core else { return Ok(()) };
    affinity::pin_thread(core).map_err(|cause| Error::System { what: format!("pin a worker to core {core}"), cause })
}

/// A worker of [`Responder::run`]: its counters, and how it is told to stop.
struct Post<'a> {
    slot: &'a Slot,
    stop: &'a StopFlag,
}

impl Tally for Post<'_> {
    fn add(&self, counter: Served, amount: u64) {
        self.slot.add(counter as usize, amount);
    }

    fn is_over(&self) -> bool {
        self.stop.told() != Stop::GoOn
    }
}

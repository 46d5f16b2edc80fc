//! The state that the workers of both sides share during preparation, and their way of sending.

use std::{
    mem,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use fathom_engine::Error;
use fathom_model::Note;
use fathom_sys::{
    clock,
    process::limits,
    reactor::{Event, FixedBuffer, Reactor, Token, WaitLimit},
    socket::{Socket, descriptor_passing::DescriptorQueue},
};

use super::{RrConfig, sizes::SizeClass};
use crate::flow_layout::{DescriptorTables, WATCHED_MAX};

/// Messages up to this size altogether are sent as one: `io_uring` sends as much without a word of success.
const BATCH_BYTES: usize = 4096;
/// The most messages that are sent as one.
const BATCH_MAX: usize = 64;

/// Shared by the workers of a side during preparation, and read by the conductor thread afterwards.
#[derive(Debug)]
pub(super) struct SetupState {
    /// Flows to sample.
    sampled: Mutex<Vec<Arc<Socket>>>,
    /// The number of flows offered for sampling so far.
    n_sampled: AtomicUsize,
    /// The number of those that could not be passed to the conductor.
    n_missing: AtomicUsize,
    /// Passes those flows to the conductor if workers have their own descriptor tables.
    handover: Option<DescriptorQueue>,
    /// The listening addresses of each worker, by its number.
    listen_addresses: Mutex<Vec<(usize, SocketAddr)>>,
    /// Notes to add to the result.
    pub(super) notes: Mutex<Vec<Note>>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panicked here has at most completed a push.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SetupState {
    pub(super) fn new(tables: DescriptorTables) -> Result<Self, Error> {
        let handover = || {
            let cannot = |cause| Error::System { what: "pass descriptors between workers".to_owned(), cause };
            DescriptorQueue::new().map_err(cannot)
        };
        Ok(Self {
            sampled: Mutex::default(),
            n_sampled: AtomicUsize::new(0),
            n_missing: AtomicUsize::new(0),
            handover: (tables == DescriptorTables::PerWorker).then(handover).transpose()?,
            listen_addresses: Mutex::default(),
            notes: Mutex::default(),
        })
    }

    pub(super) fn add_listen_address(&self, worker: usize, address: SocketAddr) {
        locked(&self.listen_addresses).push((worker, address));
    }

    /// Adds notes, each once for all flows.
    pub(super) fn add_notes(&self, notes: Vec<Note>) {
        let mut known = locked(&self.notes);
        for note in notes {
            if known.iter().all(|one| one.id != note.id) {
                known.push(note);
            }
        }
    }

    /// Offers a flow of the calling worker for sampling; the first ones are taken.
    pub(super) fn sample(&self, socket: Option<&Socket>) {
        let Some(socket) = socket else { return };
        if self.n_sampled.fetch_add(1, Ordering::Relaxed) >= WATCHED_MAX {
            return;
        }
        let is_given = match &self.handover {
            None => socket.try_clone().map(|copy| locked(&self.sampled).push(Arc::new(copy))).is_ok(),
            Some(handover) => handover.give(socket).is_ok(),
        };
        self.n_missing.fetch_add(usize::from(!is_given), Ordering::Relaxed);
    }

    /// Returns the flows to sample that were opened since the last call.
    pub(super) fn take_sampled(&self) -> Vec<Arc<Socket>> {
        let mut watched = mem::take(&mut *locked(&self.sampled));
        if let Some(handover) = &self.handover {
            for _ in 0..WATCHED_MAX {
                match handover.take() {
                    Ok(Some(descriptor)) => watched.push(Arc::new(descriptor.into())),
                    Ok(None) => break,
                    Err(_) => drop(self.n_missing.fetch_add(1, Ordering::Relaxed)),
                }
            }
        }
        watched
    }

    /// Adds a note if some flows could not be passed on to be sampled.
    pub(super) fn note_missing(&self) {
        let n_missing = self.n_missing.load(Ordering::Relaxed);
        if n_missing > 0 {
            let text = format!(
                "TCP_INFO of {n_missing} of the flows that were to be sampled is missing: no descriptor was left for them"
            );
            self.add_notes(vec![Note::new("flows-not-sampled", text)]);
        }
    }

    /// The listening addresses of all workers, in order.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let mut doors = mem::take(&mut *locked(&self.listen_addresses));
        doors.sort_unstable_by_key(|(worker, _)| *worker);
        let mut addresses: Vec<SocketAddr> = doors.into_iter().map(|(_, address)| address).collect();
        addresses.dedup();
        addresses
    }
}

/// Prepares the calling thread for a worker's flows.
pub(super) fn reactor<R: Reactor>(setup: &SetupState, n_sockets: usize) -> Result<R, Error> {
    if let Some(handover) = &setup.handover {
        let cannot = |cause| Error::System { what: "give a worker its own table of descriptors".to_owned(), cause };
        limits::own_descriptors(Some(handover.giving())).map_err(cannot)?;
    }
    let cannot = |cause| Error::System { what: format!("prepare connections over {}", R::NAME), cause };
    R::new(token(n_sockets).0).map_err(cannot)
}

/// Closes all sockets in groups: cancelling the requests of many thousands at once occupies the kernel for seconds.
pub(super) fn close_all(reactor: &mut impl Reactor, n_sockets: usize) {
    const AT_ONCE: usize = 1024;
    for first in (0..n_sockets).step_by(AT_ONCE) {
        (first..n_sockets.min(first + AT_ONCE)).for_each(|idx| reactor.close(token(idx)));
        if reactor.wait(WaitLimit { until: clock::now(), batch: None }).is_err() {
            return;
        }
        while let Some(completion) = reactor.next() {
            if let Event::Received(piece) = completion.event {
                reactor.release(piece);
            }
        }
    }
}

/// The reactor's token of a flow, which is its index among the flows of its worker.
pub(super) fn token(idx: usize) -> Token {
    Token(u32::try_from(idx).expect("there are at most a million flows"))
}

/// The messages of a side, each once, twice and so on, registered with the reactor.
pub(super) struct MessageBatches(Vec<Vec<FixedBuffer>>);

impl MessageBatches {
    pub(super) fn new(reactor: &mut impl Reactor, config: &RrConfig) -> Self {
        let messages = config.sizes.messages(config.role.side, config.role.seed);
        let mut runs = |message: Vec<u8>| {
            let most = (BATCH_BYTES / message.len()).clamp(1, BATCH_MAX.min(config.burst));
            (1..=most).map(|n| reactor.fix(message.repeat(n))).collect()
        };
        Self(messages.into_iter().map(&mut runs).collect())
    }

    /// Sends a message `n` times.
    #[inline]
    pub(super) fn send(&self, reactor: &mut impl Reactor, token: Token, class: SizeClass, n: usize) {
        let runs = &self.0[class.idx()];
        let mut n_left = n;
        while n_left > 0 {
            let length = n_left.min(runs.len());
            reactor.send_fixed(token, runs[length - 1]);
            n_left -= length;
        }
    }
}

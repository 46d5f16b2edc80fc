//! The responder's flows of one worker: every complete request is answered at once.
//!
//! A worker has its own listeners and accepts from preparation on.

use std::{marker::PhantomData, sync::Arc};

use fathom_engine::{Error, StopFlag, WorkerHandle, WorkerTask, load::EVENTS_MAX};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Completion, Event, Reactor, ReceivedBytes, Token, WaitLimit},
    socket::Socket,
};

use super::{
    RrConfig,
    connection::UNEXPECTED_MESSAGE,
    results::{RrResults, counters},
    sizes::{MessageSizes, SizeClass},
    worker_setup::{MessageBatches, SetupState, close_all, reactor, token},
};
use crate::connection_setup::{self, BLOCKING_TIMEOUT, ListenAddresses};
use crate::resource_error::resource_error;

/// The backlog of each listener; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: usize = 4096;
/// The length of one poll for connections before the start.
const ACCEPT_WAIT: Nanos = Nanos::from_millis(2);

/// The task of the responder.
pub(super) struct RrResponder<R> {
    config: Arc<RrConfig>,
    setup: Arc<SetupState>,
    addresses: ListenAddresses,
    reactor: PhantomData<fn() -> R>,
}

impl<R> RrResponder<R> {
    pub(super) fn new(config: Arc<RrConfig>, setup: Arc<SetupState>, doors: ListenAddresses) -> Self {
        Self { config, setup, addresses: doors, reactor: PhantomData }
    }
}

/// The progress of a flow's current request.
#[derive(Debug, Clone, Copy, Default)]
struct PartialRequest {
    /// The missing bytes of the request; zero between requests.
    n_left: u32,
    class: u8,
}

impl PartialRequest {
    /// Parses bytes and appends the answers that are due, grouped by class. Returns whether they are valid requests of this test.
    #[inline]
    fn parse(&mut self, bytes: &[u8], sizes: &MessageSizes, due: &mut Vec<(SizeClass, usize)>) -> bool {
        let mut rest = bytes;
        while let Some(first) = rest.first() {
            if self.n_left == 0 {
                let Some(class) = sizes.class(*first) else { return false };
                self.class = class.0;
                self.n_left = u32::try_from(sizes.request(class)).expect("a request is at most 16 MiB");
            }
            let taken = rest.len().min(self.n_left as usize);
            self.n_left -= u32::try_from(taken).expect("it is bounded by a request");
            rest = &rest[taken..];
            if self.n_left == 0 {
                match due.last_mut() {
                    Some((class, n)) if class.0 == self.class => *n += 1,
                    _ => due.push((SizeClass(self.class), 1)),
                }
            }
        }
        true
    }
}

/// A worker's listeners and flows.
pub(super) struct ResponderLoop<R> {
    reactor: R,
    batches: MessageBatches,
    n_listeners: usize,
    flows: Vec<PartialRequest>,
    /// Slots of flows that have ended.
    free: Vec<u32>,
    /// The answers that are due for one received piece.
    due: Vec<(SizeClass, usize)>,
    n_answered: u64,
    results: RrResults,
}

impl<R: Reactor + 'static> WorkerTask for RrResponder<R> {
    type Input = usize;
    type State = ResponderLoop<R>;
    type Output = RrResults;

    fn set_up(&self, worker: usize) -> Result<ResponderLoop<R>, Error> {
        let n_flows = self.config.spread.flows_of(worker).len();
        let mut reactor = reactor::<R>(&self.setup, n_flows + 1)?;
        let runs = MessageBatches::new(&mut reactor, &self.config);
        let mut n_listeners = 0;
        for at in self.addresses.of_worker(worker) {
            let (listener, notes) = self.config.options.listen(at, BACKLOG)?;
            self.setup.add_listen_address(worker, connection_setup::local_address(&listener)?);
            self.setup.add_notes(notes);
            reactor.listen(token(n_listeners), listener);
            n_listeners += 1;
        }
        Ok(ResponderLoop {
            reactor,
            batches: runs,
            n_listeners,
            // With a shared port the kernel decides which worker gets a flow, so there may be more.
            flows: Vec::with_capacity(n_flows),
            free: Vec::new(),
            due: Vec::with_capacity(self.config.burst.min(64)),
            n_answered: 0,
            results: RrResults::default(),
        })
    }

    fn poll_before_start(&self, pool: &mut ResponderLoop<R>) -> Result<(), Error> {
        pool.poll(ACCEPT_WAIT, &self.config, &self.setup)
    }

    fn work(&self, worker: WorkerHandle<'_>, mut pool: ResponderLoop<R>, _: &StopFlag) -> Result<RrResults, Error> {
        while !worker.is_over() {
            pool.poll(BLOCKING_TIMEOUT, &self.config, &self.setup)?;
            worker.add(counters::TRANSACTIONS, std::mem::take(&mut pool.n_answered));
        }
        close_all(&mut pool.reactor, pool.n_listeners + pool.flows.len());
        Ok(pool.results)
    }
}

impl<R: Reactor> ResponderLoop<R> {
    /// Waits once, and handles the events.
    fn poll(&mut self, longest: Nanos, config: &RrConfig, setup: &SetupState) -> Result<(), Error> {
        let cannot = |cause| Error::System { what: "wait for requests".to_owned(), cause };
        self.reactor.wait(WaitLimit { until: clock::now() + longest, batch: None }).map_err(cannot)?;
        for _ in 0..EVENTS_MAX {
            let Some(Completion { token, event, .. }) = self.reactor.next() else { break };
            match event {
                Event::Received(piece) => self.received(token, piece, &config.sizes),
                Event::Accepted(socket) => self.accepted(socket, setup),
                Event::Ended => self.close_flow(token),
                Event::Failed(error) if (token.0 as usize) < self.n_listeners => {
                    return Err(resource_error("accept connections", error));
                }
                Event::Failed(error) => {
                    // An initiator that leaves before its last answers, as at the end of a trial, counts them itself.
                    if !error.is_abandoned() {
                        self.results.errors.count(&error);
                    }
                    self.close_flow(token);
                }
                Event::Connected | Event::Sent | Event::Discarded(_) => {}
            }
        }
        Ok(())
    }

    fn accepted(&mut self, socket: Socket, setup: &SetupState) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.flows.push(PartialRequest::default());
            token(self.flows.len() - 1).0
        });
        self.flows[place as usize] = PartialRequest::default();
        self.results.n_connections += 1;
        setup.sample(Some(&socket));
        self.reactor.adopt(token(self.n_listeners + place as usize), socket);
    }

    #[inline]
    fn received(&mut self, token: Token, piece: ReceivedBytes, sizes: &MessageSizes) {
        let flow = &mut self.flows[token.0 as usize - self.n_listeners];
        let is_right = flow.parse(self.reactor.bytes(&piece), sizes, &mut self.due);
        self.reactor.release(piece);
        for (class, n) in self.due.drain(..) {
            self.batches.send(&mut self.reactor, token, class, n);
            self.n_answered += n as u64;
        }
        if !is_right {
            self.results.errors.count(UNEXPECTED_MESSAGE);
            self.close_flow(token);
        }
    }

    fn close_flow(&mut self, token: Token) {
        self.reactor.close(token);
        if let Some(place) = (token.0 as usize).checked_sub(self.n_listeners) {
            self.free.push(super::worker_setup::token(place).0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_response::sizes::{SizeBounds, tests::role};

    #[test]
    fn requests_are_counted_however_they_are_cut_into_pieces() {
        let sizes = MessageSizes::of(&role("1,5", "1").settings, 7, SizeBounds::STREAM).unwrap();
        let stream = [0, 1, 9, 9, 9, 9, 0, 0, 1, 7, 7, 7, 7];
        for cut in 1..stream.len() {
            let (mut flow, mut due) = (PartialRequest::default(), Vec::new());
            for piece in stream.chunks(cut) {
                assert!(flow.parse(piece, &sizes, &mut due));
            }
            let expected = [(SizeClass(0), 1), (SizeClass(1), 1), (SizeClass(0), 2), (SizeClass(1), 1)];
            assert_eq!((due.as_slice(), flow.n_left), (&expected[..], 0), "pieces of {cut}");
        }
        assert!(!PartialRequest::default().parse(b"GET", &sizes, &mut Vec::new()));
    }
}

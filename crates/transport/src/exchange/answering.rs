//! The responder's flows of one worker: every request that has come as a whole is answered at once.
//!
//! A worker has listeners of its own and accepts from the moment that the trial is prepared.

use std::{marker::PhantomData, sync::Arc};

use fathom_engine::{Error, Shift, StopFlag, Worker};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Completion, Event, Patience, Piece, Reactor, Token},
    socket::Socket,
};

use super::{
    Terms,
    crowd::{COMPLETIONS_MAX, Lobby, Runs, close_all, reactor, token},
    sizes::{Class, Sizes},
    talk::WRONG,
    tally::{Tally, names},
};
use crate::link::{self, Doors, PATIENCE};

/// Room in each listener's queue; the kernel bounds it by `net.core.somaxconn`.
const BACKLOG: usize = 4096;
/// One look for connections before the start.
const LOOK: Nanos = Nanos::from_millis(2);

/// The work of the responder.
pub(super) struct Answering<R> {
    terms: Arc<Terms>,
    lobby: Arc<Lobby>,
    doors: Doors,
    reactor: PhantomData<fn() -> R>,
}

impl<R> Answering<R> {
    pub(super) fn new(terms: Arc<Terms>, lobby: Arc<Lobby>, doors: Doors) -> Self {
        Self { terms, lobby, doors, reactor: PhantomData }
    }
}

/// How far the request of a flow has come.
#[derive(Debug, Clone, Copy, Default)]
struct Incoming {
    /// What is still missing of it; zero between requests.
    n_left: u32,
    class: u8,
}

impl Incoming {
    /// Takes bytes apart and notes runs of answers that are due; whether they are requests of this test.
    #[inline]
    fn take(&mut self, bytes: &[u8], sizes: &Sizes, due: &mut Vec<(Class, usize)>) -> bool {
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
                    _ => due.push((Class(self.class), 1)),
                }
            }
        }
        true
    }
}

/// A worker's listeners and flows.
pub(super) struct Hall<R> {
    reactor: R,
    runs: Runs,
    n_listeners: usize,
    flows: Vec<Incoming>,
    /// Places of flows that have ended.
    free: Vec<u32>,
    /// What is to be answered of one piece.
    due: Vec<(Class, usize)>,
    n_answered: u64,
    tally: Tally,
}

impl<R: Reactor + 'static> Shift for Answering<R> {
    type Given = usize;
    type Equipment = Hall<R>;
    type Outcome = Tally;

    fn equip(&self, worker: usize) -> Result<Hall<R>, Error> {
        let n_flows = self.terms.spread.flows_of(worker).len();
        let mut reactor = reactor::<R>(&self.lobby, n_flows + 1)?;
        let runs = Runs::new(&mut reactor, &self.terms);
        let mut n_listeners = 0;
        for at in self.doors.of_worker(worker) {
            let (listener, notes) = self.terms.options.listen(at, BACKLOG)?;
            self.lobby.add_door(worker, link::local_address(&listener)?);
            self.lobby.add_notes(notes);
            reactor.listen(token(n_listeners), listener);
            n_listeners += 1;
        }
        Ok(Hall {
            reactor,
            runs,
            n_listeners,
            // Which worker a flow comes to is not known where they share a port, so there may be more.
            flows: Vec::with_capacity(n_flows),
            free: Vec::new(),
            due: Vec::with_capacity(self.terms.burst.min(64)),
            n_answered: 0,
            tally: Tally::default(),
        })
    }

    fn stand_by(&self, hall: &mut Hall<R>) -> Result<(), Error> {
        hall.serve(LOOK, (&self.terms, &self.lobby))
    }

    fn work(&self, worker: Worker<'_>, mut hall: Hall<R>, _: &StopFlag) -> Result<Tally, Error> {
        while !worker.is_over() {
            hall.serve(PATIENCE, (&self.terms, &self.lobby))?;
            worker.add(names::TRANSACTIONS, std::mem::take(&mut hall.n_answered));
        }
        close_all(&mut hall.reactor, hall.n_listeners + hall.flows.len());
        Ok(hall.tally)
    }
}

impl<R: Reactor> Hall<R> {
    /// Waits once, and deals with what has come.
    fn serve(&mut self, longest: Nanos, (terms, lobby): (&Terms, &Lobby)) -> Result<(), Error> {
        let cannot = |cause| Error::System { what: "wait for requests".to_owned(), cause };
        self.reactor.wait(Patience { until: clock::now() + longest, batch: None }).map_err(cannot)?;
        for _ in 0..COMPLETIONS_MAX {
            let Some(Completion { token, event, .. }) = self.reactor.next() else { break };
            match event {
                Event::Received(piece) => self.received(token, piece, &terms.sizes),
                Event::Accepted(socket) => self.accepted(socket, lobby),
                Event::Ended => self.shut(token),
                Event::Failed(error) if (token.0 as usize) < self.n_listeners => {
                    return Err(link::exhausted("accept connections", error));
                }
                Event::Failed(error) => {
                    // An initiator that goes with answers under way, as at the end of a trial, counts them itself.
                    if !error.is_abandoned() {
                        self.tally.causes.count(&error);
                    }
                    self.shut(token);
                }
                Event::Connected | Event::Sent | Event::Discarded(_) => {}
            }
        }
        Ok(())
    }

    fn accepted(&mut self, socket: Socket, lobby: &Lobby) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Incoming::default());
            token(self.flows.len() - 1).0
        });
        self.flows[place as usize] = Incoming::default();
        self.tally.n_connections += 1;
        lobby.watch(Some(&socket));
        self.reactor.adopt(token(self.n_listeners + place as usize), socket);
    }

    #[inline]
    fn received(&mut self, token: Token, piece: Piece, sizes: &Sizes) {
        let flow = &mut self.flows[token.0 as usize - self.n_listeners];
        let is_right = flow.take(self.reactor.bytes(&piece), sizes, &mut self.due);
        self.reactor.release(piece);
        for (class, n) in self.due.drain(..) {
            self.runs.send(&mut self.reactor, token, (class, n));
            self.n_answered += n as u64;
        }
        if !is_right {
            self.tally.causes.note(WRONG);
            self.shut(token);
        }
    }

    fn shut(&mut self, token: Token) {
        self.reactor.close(token);
        if let Some(place) = (token.0 as usize).checked_sub(self.n_listeners) {
            self.free.push(super::crowd::token(place).0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::sizes::{Bounds, tests::role};

    #[test]
    fn requests_are_counted_however_they_are_cut_into_pieces() {
        let sizes = Sizes::of(&role("1,5", "1").settings, 7, Bounds::STREAM).unwrap();
        let stream = [0, 1, 9, 9, 9, 9, 0, 0, 1, 7, 7, 7, 7];
        for cut in 1..stream.len() {
            let (mut flow, mut due) = (Incoming::default(), Vec::new());
            for piece in stream.chunks(cut) {
                assert!(flow.take(piece, &sizes, &mut due));
            }
            let expected = [(Class(0), 1), (Class(1), 1), (Class(0), 2), (Class(1), 1)];
            assert_eq!((due.as_slice(), flow.n_left), (&expected[..], 0), "pieces of {cut}");
        }
        assert!(!Incoming::default().take(b"GET", &sizes, &mut Vec::new()));
    }
}

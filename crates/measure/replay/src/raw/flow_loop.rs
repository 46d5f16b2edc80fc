//! Sends the messages of one worker: each connection or flow in a slot of its own, over epoll.

mod ending;
mod receiving;
mod sending;

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use fathom_engine::{
    Error,
    load::{LoadLoop, OfferedLoad, SendTimes, TICK},
};
use fathom_model::{Failure, units::Nanos};
use fathom_sys::{
    clock,
    policy::Destination,
    reactor::{
        WaitLimit,
        epoll_wait::{Epoll, Interest, Readiness, ReadyList},
    },
    socket::{self, Connect},
};

use super::{
    compare::RawComparer, counters::counter, flow::Flow, recording::RawRecording, results::RawResults,
    target::Transport,
};
use crate::{schedule::RequestNumber, spool::SpoolReader};

/// The longest datagram, and more than a stream brings at once.
const ROOM: usize = 64 << 10;

/// What all workers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) recording: RawRecording,
    pub(super) transport: Transport,
    pub(super) targets: Vec<Destination>,
    pub(super) n_copies: usize,
    pub(super) is_compared: bool,
    /// Whether a message is due as soon as the one before it is answered.
    pub(super) as_answered: bool,
    pub(super) timeout: Nanos,
}

/// The sessions of this worker, among all copies of all sessions.
#[derive(Debug, Clone)]
pub(super) struct DueSessions {
    pub(super) shared: Arc<Shared>,
    pub(super) next: usize,
    pub(super) step: usize,
}

impl DueSessions {
    /// Takes the next session: its place among all, and its first message.
    fn next_session(&mut self) -> Option<(usize, RequestNumber)> {
        let session = *self.shared.recording.schedule.sessions().get(self.next / self.shared.n_copies)?;
        let place = self.next;
        self.next += self.step;
        Some((place, session))
    }
}

impl Iterator for DueSessions {
    /// When a session begins, since the start.
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        let (_, first) = self.next_session()?;
        Some(self.shared.recording.schedule.request(first).due)
    }
}

/// The flows of one worker.
pub(super) struct FlowLoop<'a> {
    load: OfferedLoad<'a, DueSessions>,
    shared: Arc<Shared>,
    sessions: DueSessions,
    reader: SpoolReader,
    epoll: Epoll,
    ready: ReadyList,
    /// The next of the ready sockets.
    next_ready: usize,
    waits_from: Nanos,
    swept_at: Nanos,
    flows: Vec<Flow>,
    /// How often each slot was taken, so that an event of a closed socket is not taken for one of the next.
    generations: Vec<u32>,
    n_open: usize,
    /// When a slot has something to send.
    wakes: BinaryHeap<Reverse<(Nanos, usize)>>,
    room: Vec<u8>,
    comparer: Option<RawComparer>,
    results: RawResults,
}

impl<'a> FlowLoop<'a> {
    pub(super) fn new(
        load: OfferedLoad<'a, DueSessions>,
        sessions: DueSessions,
        n_slots: usize,
    ) -> Result<Self, Error> {
        let cannot = |cause| Error::System { what: "wait for answers".to_owned(), cause };
        let shared = Arc::clone(&sessions.shared);
        Ok(Self {
            load,
            sessions,
            reader: shared.recording.reader(n_slots),
            epoll: Epoll::new().map_err(cannot)?,
            ready: ReadyList::with_capacity(n_slots.min(256)),
            next_ready: 0,
            waits_from: Nanos::ZERO,
            swept_at: Nanos::ZERO,
            flows: (0..n_slots).map(|_| Flow::default()).collect(),
            generations: vec![0; n_slots],
            n_open: 0,
            wakes: BinaryHeap::new(),
            room: vec![0; ROOM],
            comparer: shared.is_compared.then(|| RawComparer::new(shared.transport)),
            results: RawResults::default(),
            shared,
        })
    }

    fn token(&self, slot: usize) -> u64 {
        u64::from(self.generations[slot]) << 32 | slot as u64
    }

    /// Opens the socket of a session, and sends what is due.
    fn begin(&mut self, slot: usize, now: Nanos) {
        let Some((place, first)) = self.sessions.next_session() else { return };
        self.n_open += 1;
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        self.flows[slot] = Flow { next: Some(first), ..Flow::default() };
        match self.open(slot, place, now) {
            Ok(()) => self.send_due(slot),
            Err(error) => self.fail_flow(slot, &Failure::from(&error), now),
        }
    }

    fn open(&mut self, slot: usize, place: usize, now: Nanos) -> fathom_sys::Result<()> {
        let target = &self.shared.targets[place % self.shared.targets.len()];
        let address = target.address().expect("a target is an address of a host");
        let (socket, interest) = match self.shared.transport {
            Transport::Udp => {
                let socket = socket::datagram_unbound(address)?;
                socket::associate(&socket, target)?;
                (socket, Interest::READ)
            }
            Transport::Tcp => {
                let socket = socket::stream_nonblocking(address)?;
                // A turn is sent at its time, whether the one before it is acknowledged or not.
                socket
                    .set_tcp_nodelay(true)
                    .map_err(|error| fathom_sys::Error::new("setsockopt(TCP_NODELAY)", error))?;
                let is_pending = matches!(socket::connect_begin(&socket, target)?, Connect::Pending);
                self.flows[slot].connecting_since = is_pending.then_some(now);
                self.flows[slot].awaits_room = is_pending;
                (socket, if is_pending { Interest::WRITE } else { Interest::READ })
            }
        };
        self.epoll.add(&socket, self.token(slot), interest)?;
        if self.flows[slot].connecting_since.is_none() {
            self.load.worker().add(counter::CONNECTIONS, 1);
        }
        self.flows[slot].socket = Some(socket);
        Ok(())
    }

    fn sessions_start(&self) -> Nanos {
        self.load.worker().start
    }
}

impl<'a> LoadLoop<'a> for FlowLoop<'a> {
    type Arrivals = DueSessions;
    type Event = Readiness;
    type Output = RawResults;

    fn load(&mut self) -> &mut OfferedLoad<'a, DueSessions> {
        &mut self.load
    }

    fn expire(&mut self, now: Nanos) {
        if now.since(self.swept_at) < TICK {
            return;
        }
        self.swept_at = now;
        for slot in 0..self.flows.len() {
            if self.flows[slot].socket.is_some() {
                self.sweep(slot, now);
            }
        }
    }

    fn has_more(&mut self) -> bool {
        self.n_open > 0 || self.load.has_scheduled()
    }

    fn before_wait(&mut self, now: Nanos) -> Result<Nanos, Error> {
        self.waits_from = now;
        Ok(now + TICK)
    }

    fn wait(&mut self, limit: WaitLimit) -> fathom_sys::Result<()> {
        self.next_ready = 0;
        self.epoll.wait(&mut self.ready, Some(limit.until.since(self.waits_from))).map(drop)
    }

    fn next_event(&mut self) -> Option<Readiness> {
        let event = self.ready.get(self.next_ready)?;
        self.next_ready += 1;
        Some(event)
    }

    fn on_event(&mut self, event: Readiness) {
        let slot = usize::try_from(event.token & u64::from(u32::MAX)).expect("32 bits fit");
        if self.token(slot) == event.token && self.flows[slot].socket.is_some() {
            self.on_ready(slot, event);
        }
    }

    fn next_due(&mut self) -> Option<Nanos> {
        let wake = self.wakes.peek().map(|Reverse((at, _))| *at);
        let wake = wake.filter(|_| self.load.may_start());
        [self.load.next_due(), wake].into_iter().flatten().min()
    }

    /// A free slot stays free until a session begins.
    fn is_free(&self, slot: usize) -> bool {
        self.flows[slot].socket.is_none()
    }

    fn start(&mut self, slot: usize, times: SendTimes) {
        self.begin(slot, times.sent_at);
    }

    fn start_due(&mut self, now: Nanos) {
        if self.load.window().is_over() {
            return;
        }
        if self.load.n_targets_to_check(now) > 0 {
            if self.next_due().is_some_and(|due| due <= now) {
                self.load.share_wake_up(now);
            }
            // A flow that has more to send than its turn allows is woken again, in the next round.
            for _ in 0..self.wakes.len() {
                match self.wakes.peek() {
                    Some(Reverse((at, slot))) if *at <= now => {
                        let slot = *slot;
                        self.wakes.pop();
                        self.flows[slot].wakes_at = None;
                        self.send_due(slot);
                    }
                    _ => break,
                }
            }
            self.load.notice(0, clock::now());
        }
        self.start_waiting(0);
    }

    fn finish(mut self, now: Nanos) -> Result<RawResults, Error> {
        for flow in &mut self.flows {
            self.results.account.n_cut_off += flow.in_flight.len() as u64;
            for sent in &flow.in_flight {
                self.load.times.n_unfinished += 1;
                self.load.record_given_up(sent.times.intended, now);
            }
        }
        for slot in 0..self.flows.len() {
            let answered = self.flows[slot].answered.take();
            self.compare(answered);
        }
        self.results.account.compared = self.comparer.map(RawComparer::finish);
        Ok(RawResults { times: self.load.finish(now), ..self.results })
    }
}

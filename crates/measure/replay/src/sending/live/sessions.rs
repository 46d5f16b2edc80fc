//! The users of a live replay: each sends the requests of one connection as they come.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use fathom_http::users::{
    AnswerDetail, MeasurePhase, UserAction, UserAnswer, UserFailure, UserRequest, UserSlot, Users, WorkerShare,
};
use fathom_model::units::Nanos;

use super::queue::{LiveEvent, QueueReceiver, SessionKey};
use crate::{
    RecordedExchange,
    sending::{
        compare::{AnswerComparer, Comparison},
        request,
        results::SentResults,
        spooled_exchange::{SpooledAnswer, recorded},
    },
};

/// The part of the idle connections that is closed at once, because finding the oldest costs a pass over all.
const EVICTED_PART: usize = 16;

/// How long a captured request waits at most until a worker that rests looks for it.
const LOOK_INTERVAL: Nanos = Nanos::from_millis(1);

/// A request that waits, and when it was captured.
type Waiting = (Arc<RecordedExchange>, Nanos);

/// Whose requests a slot sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Binding {
    /// Nobody's.
    #[default]
    Free,
    /// Those of a session.
    Bound(SessionKey),
    /// The last ones of a session that is over.
    Leaving,
}

/// The user in a slot.
#[derive(Debug, Default)]
struct Session {
    binding: Binding,
    waiting: VecDeque<Waiting>,
    sent: Option<Waiting>,
    /// Whether it rests until a request comes.
    is_resting: bool,
    /// Whether its connection has to be closed before the next request.
    closes: bool,
    last_used: Nanos,
}

impl Session {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_none()
    }
}

/// Where the requests of a worker come from, and whether more can come.
pub(super) struct LiveQueue {
    pub(super) events: QueueReceiver,
    pub(super) is_over: Arc<AtomicBool>,
}

/// What a worker of a live replay did, besides the requests that it sent.
#[derive(Debug, Default)]
pub(super) struct LiveResults {
    pub(super) sent: SentResults,
    /// Requests for which no connection was free.
    pub(super) n_without_connection: u64,
}

/// The users of one worker.
pub(super) struct LiveSessions {
    queue: QueueReceiver,
    is_over: Arc<AtomicBool>,
    by_slot: Vec<Session>,
    slot_of: HashMap<SessionKey, u32>,
    free: Vec<u32>,
    /// Slots that have something to do, if they rest.
    to_wake: Vec<u32>,
    comparer: Option<AnswerComparer>,
    timeout: Nanos,
    results: LiveResults,
    now: Nanos,
}

impl LiveSessions {
    pub(super) fn new(queue: LiveQueue, share: &WorkerShare, comparison: Option<Comparison>, timeout: Nanos) -> Self {
        Self {
            queue: queue.events,
            is_over: queue.is_over,
            by_slot: (0..share.n_slots).map(|_| Session::default()).collect(),
            slot_of: HashMap::new(),
            free: (0..share.n_slots).rev().collect(),
            to_wake: Vec::new(),
            comparer: comparison.map(AnswerComparer::new),
            timeout,
            results: LiveResults::default(),
            now: share.start,
        }
    }

    /// Finds the slot of a session, or gives it one. `None` if all are busy.
    fn slot(&mut self, key: SessionKey) -> Option<u32> {
        if let Some(slot) = self.slot_of.get(&key) {
            return Some(*slot);
        }
        if self.free.is_empty() {
            self.evict();
        }
        let slot = self.free.pop()?;
        self.by_slot[slot as usize].binding = Binding::Bound(key);
        self.slot_of.insert(key, slot);
        Some(slot)
    }

    /// Takes the slots of the sessions that were idle for longest.
    fn evict(&mut self) {
        let is_bound = |session: &Session| matches!(session.binding, Binding::Bound(_));
        let idle = self.by_slot.iter().zip(0..).filter(|(session, _)| is_bound(session) && session.is_idle());
        let mut idle: Vec<(Nanos, u32)> = idle.map(|(session, slot)| (session.last_used, slot)).collect();
        idle.sort_unstable();
        let n = idle.len().div_ceil(EVICTED_PART);
        for (_, slot) in idle.into_iter().take(n) {
            self.release(slot);
        }
    }

    /// Makes an idle slot free for another session.
    fn release(&mut self, slot: u32) {
        let session = &mut self.by_slot[slot as usize];
        session.closes = true;
        if let Binding::Bound(key) = std::mem::take(&mut session.binding) {
            self.slot_of.remove(&key);
        }
        self.free.push(slot);
        self.to_wake.push(slot);
    }

    /// Follows an event. Returns the slot that has something to do for it.
    fn follow(&mut self, event: LiveEvent) -> Option<u32> {
        match event {
            LiveEvent::Request(key, exchange, due) => {
                let Some(slot) = self.slot(key) else {
                    self.queue.release(&exchange);
                    self.results.n_without_connection += 1;
                    return None;
                };
                self.by_slot[slot as usize].waiting.push_back((exchange, due));
                Some(slot)
            }
            LiveEvent::Ended(key) => {
                let slot = *self.slot_of.get(&key)?;
                if self.by_slot[slot as usize].is_idle() {
                    self.release(slot);
                } else {
                    self.slot_of.remove(&key);
                    self.by_slot[slot as usize].binding = Binding::Leaving;
                }
                None
            }
        }
    }

    fn compare(&mut self, exchange: &RecordedExchange, answer: &UserAnswer<'_>) {
        let Some(comparer) = &mut self.comparer else { return };
        let Some(recorded) = original(exchange) else { return comparer.skip() };
        self.results.sent.count_recorded(recorded.took);
        comparer.compare(&exchange.request, &recorded, answer);
    }

    /// The request of a user has its answer, or none.
    fn end_request(&mut self, slot: UserSlot) -> Option<Waiting> {
        let session = &mut self.by_slot[slot.0 as usize];
        session.last_used = self.now;
        let sent = session.sent.take()?;
        self.queue.release(&sent.0);
        Some(sent)
    }
}

/// The original answer, if it can be compared.
fn original(exchange: &RecordedExchange) -> Option<SpooledAnswer<'_>> {
    recorded(exchange).filter(SpooledAnswer::is_comparable)
}

impl Users for LiveSessions {
    type Outcome = LiveResults;

    /// Its slot may have requests already.
    fn arrive(&mut self, _: UserSlot, _: Nanos, _: Nanos) {}

    fn next_action(&mut self, slot: UserSlot, now: Nanos) -> UserAction<'_> {
        self.now = now;
        let session = &mut self.by_slot[slot.0 as usize];
        session.is_resting = false;
        if session.waiting.is_empty() && session.binding == Binding::Leaving {
            (session.binding, session.closes) = (Binding::Free, true);
            self.free.push(slot.0);
        }
        if std::mem::take(&mut session.closes) {
            return UserAction::CloseConnection;
        }
        session.sent = session.waiting.pop_front();
        session.is_resting = session.sent.is_none();
        let Some((exchange, _)) = &session.sent else { return UserAction::Wait };
        let is_kept = self.comparer.is_some() && original(exchange).is_some();
        UserAction::Send(UserRequest {
            bytes: &exchange.request,
            n_requests: 1,
            server: 0,
            framing: request::framing(&exchange.request),
            detail: if is_kept { AnswerDetail::Beginning } else { AnswerDetail::Status },
            timeout: self.timeout,
            may_repeat: request::is_idempotent(&exchange.request),
        })
    }

    fn answered(&mut self, slot: UserSlot, answer: &UserAnswer<'_>) {
        self.now = answer.ended_at;
        let Some((exchange, due)) = self.end_request(slot) else { return };
        self.results.sent.count_answer(answer, Some(due));
        self.compare(&exchange, answer);
    }

    fn failed(&mut self, slot: UserSlot, failed: &UserFailure<'_>) {
        self.now = failed.ended_at;
        if self.end_request(slot).is_some() {
            self.results.sent.n_failed += 1;
        }
    }

    fn next_woken(&mut self, now: Nanos) -> Option<UserSlot> {
        self.now = now;
        loop {
            while let Some(slot) = self.to_wake.pop() {
                if std::mem::take(&mut self.by_slot[slot as usize].is_resting) {
                    return Some(UserSlot(slot));
                }
            }
            let event = self.queue.next()?;
            let slot = self.follow(event);
            self.to_wake.extend(slot);
        }
    }

    fn woken_within(&self) -> Nanos {
        LOOK_INTERVAL
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn on_phase(&mut self, _: MeasurePhase, _: Nanos) {}

    fn finish(mut self, _: Nanos) -> LiveResults {
        let n_cut_off = self.by_slot.iter().filter(|session| session.sent.is_some()).count();
        self.results.sent.n_cut_off = n_cut_off as u64;
        self.results.sent.compared = self.comparer.map(AnswerComparer::finish);
        self.results
    }
}

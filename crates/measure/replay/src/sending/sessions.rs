//! The users of a replay: each sends the requests of one recorded connection, then those of the next one.

use std::sync::Arc;

use fathom_http::users::{
    AnswerDetail, MeasurePhase, UserAction, UserAnswer, UserFailure, UserRequest, UserSlot, Users, WorkerShare,
};
use fathom_model::units::Nanos;

use super::{
    compare::{AnswerComparer, Comparison},
    recording::Recording,
    request,
    results::SentResults,
    spooled_exchange::SpooledExchange,
};
use crate::{schedule::RequestNumber, spool::SpoolReader};

/// What all workers of a replay share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) recording: Recording,
    pub(super) n_copies: usize,
    /// Absent unless answers are compared.
    pub(super) comparison: Option<Comparison>,
    /// Whether a user goes on to another connection when its own is over, instead of leaving.
    pub(super) goes_on: bool,
    pub(super) timeout: Nanos,
}

/// A user, and the request that it sends next or waits for.
#[derive(Debug, Clone, Copy, Default)]
struct Session {
    request: Option<RequestNumber>,
    is_sent: bool,
    /// Whether its answer is kept for the comparison.
    is_kept: bool,
}

/// The users of one worker.
pub(super) struct Sessions {
    shared: Arc<Shared>,
    reader: SpoolReader,
    start: Nanos,
    by_slot: Vec<Session>,
    /// The next session of this worker, among all copies of all sessions.
    next: usize,
    step: usize,
    comparer: Option<AnswerComparer>,
    results: SentResults,
}

impl Sessions {
    pub(super) fn new(shared: &Arc<Shared>, share: &WorkerShare) -> Self {
        Self {
            reader: shared.recording.reader(share.n_slots as usize),
            start: share.start,
            by_slot: vec![Session::default(); share.n_slots as usize],
            next: share.idx,
            step: share.n_workers,
            comparer: shared.comparison.clone().map(AnswerComparer::new),
            results: SentResults::default(),
            shared: Arc::clone(shared),
        }
    }

    /// Takes the next session, as long as there is one.
    fn take_session(&mut self) -> Option<RequestNumber> {
        let session = *self.shared.recording.schedule.sessions().get(self.next / self.shared.n_copies)?;
        self.next += self.step;
        Some(session)
    }

    /// Goes on to the request after the one that a user has sent.
    fn advance(&mut self, slot: UserSlot) {
        let session = &mut self.by_slot[slot.0 as usize];
        session.request = session.request.and_then(|number| self.shared.recording.schedule.next(number));
        session.is_sent = false;
    }

    /// The request of a user and when it was due, on the monotonic clock.
    fn due(&self, slot: UserSlot) -> Option<(RequestNumber, Nanos)> {
        let number = self.by_slot[slot.0 as usize].request?;
        Some((number, self.start + self.shared.recording.schedule.request(number).due))
    }

    fn compare(&mut self, number: RequestNumber, is_kept: bool, answer: &UserAnswer<'_>) {
        let Some(comparer) = &mut self.comparer else { return };
        let exchange = match self
            .reader
            .read(self.shared.recording.schedule.request(number).place)
            .and_then(SpooledExchange::of)
        {
            Ok(exchange) => exchange,
            Err(error) => {
                self.results.error.get_or_insert(error);
                return;
            }
        };
        match exchange.answer.filter(|_| is_kept) {
            Some(recorded) => {
                self.results.count_recorded(recorded.took);
                comparer.compare(exchange.request, &recorded, answer);
            }
            None => comparer.skip(),
        }
    }
}

impl Users for Sessions {
    type Outcome = SentResults;

    fn arrive(&mut self, slot: UserSlot, _: Nanos, _: Nanos) {
        self.by_slot[slot.0 as usize] = Session { request: self.take_session(), ..Session::default() };
    }

    fn next_action(&mut self, slot: UserSlot, now: Nanos) -> UserAction<'_> {
        let Some((number, due)) = self.due(slot) else {
            let next = if self.shared.goes_on { self.take_session() } else { None };
            self.by_slot[slot.0 as usize].request = next;
            return if next.is_some() { UserAction::CloseConnection } else { UserAction::Leave };
        };
        if now < due {
            return UserAction::Sleep { until: due };
        }
        let exchange = match self
            .reader
            .read(self.shared.recording.schedule.request(number).place)
            .and_then(SpooledExchange::of)
        {
            Ok(exchange) => exchange,
            Err(error) => {
                self.results.error.get_or_insert(error);
                return UserAction::Leave;
            }
        };
        let session = &mut self.by_slot[slot.0 as usize];
        session.is_sent = true;
        session.is_kept = exchange.answer.is_some_and(|answer| answer.is_comparable());
        UserAction::Send(UserRequest {
            bytes: exchange.request,
            n_requests: 1,
            server: 0,
            framing: request::framing(exchange.request),
            detail: if session.is_kept { AnswerDetail::Beginning } else { AnswerDetail::Status },
            timeout: self.shared.timeout,
            may_repeat: request::is_idempotent(exchange.request),
        })
    }

    fn answered(&mut self, slot: UserSlot, answer: &UserAnswer<'_>) {
        let Some((number, due)) = self.due(slot) else { return };
        self.results.count_answer(answer, (!self.shared.goes_on).then_some(due));
        self.compare(number, self.by_slot[slot.0 as usize].is_kept, answer);
        self.advance(slot);
    }

    fn failed(&mut self, slot: UserSlot, _: &UserFailure<'_>) {
        self.results.n_failed += 1;
        self.advance(slot);
    }

    fn is_over(&self) -> bool {
        self.results.error.is_some()
    }

    fn on_phase(&mut self, _: MeasurePhase, _: Nanos) {}

    fn finish(mut self, _: Nanos) -> SentResults {
        let n_cut_off = self.by_slot.iter().filter(|session| session.request.is_some() && session.is_sent).count();
        self.results.n_cut_off = n_cut_off as u64;
        self.results.compared = self.comparer.map(AnswerComparer::finish);
        self.results
    }
}

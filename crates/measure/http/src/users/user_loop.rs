//! Runs the users of one worker, in its pool.
//!
//! When a user runs, it decides on an action, which is carried out; the outcome is reported before the user runs again. A user
//! runs directly after its last answer. After a failure it runs in the next round, so that failures do not recurse within one
//! call.

use fathom_engine::{
    Error, Stop,
    load::LoadLoop,
    pace::{LateCause, Pacer},
};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Completion, Reactor, WaitLimit},
};

use super::{MeasurePhase, UserAction, UserSlot, Users, user_connection::UserState, user_pool::UserPool};
use crate::{
    conn::{ConnectionHandler, DRAIN, FaultCause, RequestFault, RequestStage, UnansweredCheck, token},
    h1::HeadReader,
    metrics::{LoadCounter, LoadResults},
};

/// Earlier than any current time: an event at this time happens in the next round.
pub(super) const NEXT_ROUND: Nanos = Nanos(1);

/// The users and their pool.
pub(super) struct UserLoop<'a, R, U> {
    pub(super) users: U,
    pub(super) pool: UserPool<'a, R>,
    /// The phase last reported to the users.
    announced: Option<MeasurePhase>,
}

impl<'a, R: Reactor, U: Users> UserLoop<'a, R, U> {
    pub(super) fn new(users: U, pool: UserPool<'a, R>) -> Self {
        Self { users, pool, announced: None }
    }
}

impl<R: Reactor, U: Users> LoadLoop for UserLoop<'_, R, U> {
    type Event = Completion;
    type Output = (LoadResults, U::Outcome);

    fn is_done(&mut self, now: Nanos) -> bool {
        let pool = &mut self.pool;
        pool.window.update(pool.recorder.worker.phase(), now);
        let is_empty = pool.n_users == 0 && !pool.schedule.has_more();
        if is_empty || self.users.is_over() {
            pool.window.end(now);
        }
        let phase = match (pool.window.is_over(), pool.window.is_measuring()) {
            (true, _) => MeasurePhase::Over,
            (false, true) => MeasurePhase::Measured,
            (false, false) => MeasurePhase::WarmUp,
        };
        if self.announced != Some(phase) {
            self.announced = Some(phase);
            self.users.on_phase(phase, now);
        }
        let drain = if pool.stop.state() == Stop::Abort { Nanos::ZERO } else { DRAIN };
        pool.window.is_over() && (pool.n_busy == 0 || pool.window.has_drained(now, drain))
    }

    fn before_wait(&mut self, now: Nanos) -> Result<WaitLimit, Error> {
        self.sweep(now);
        self.begin_due(now);
        self.start_connects();
        let faults = &self.pool.recorder.results.faults;
        self.pool.connector.check_reached(self.pool.connections.len(), faults)?;
        Ok(self.pool.wait_limit(now))
    }

    fn wait(&mut self, limit: WaitLimit) -> fathom_sys::Result<()> {
        self.pool.connector.reactor.wait(limit)
    }

    #[inline]
    fn next_event(&mut self) -> Option<Completion> {
        self.pool.connector.reactor.next()
    }

    #[inline]
    fn on_event(&mut self, completion: Completion) {
        self.on_completion(completion);
    }

    fn pacer(&mut self) -> Option<&mut Pacer> {
        self.pool.waits_for_due.then(|| self.pool.schedule.pacer())
    }

    #[inline]
    fn after_event(&mut self) {
        if let Some(due) = self.pool.next_due() {
            let now = clock::now();
            if due <= now {
                self.begin_due(now);
            }
        }
    }

    /// What is to be told at the end.
    fn finish(self, now: Nanos) -> Result<(LoadResults, U::Outcome), Error> {
        let is_ended = self.pool.window.is_over() && self.pool.stop.state() != Stop::Abort;
        let UserPool { mut recorder, connector, connections, heads, schedule, window, .. } = self.pool;
        let closing = window.from().filter(|_| is_ended).map(|from| UnansweredCheck::of(now, from));
        for connection in &connections {
            let of_connect = closing.and_then(|closing| closing.connect(&connection.conn));
            let sent = connection.unanswered();
            let of_request =
                closing.zip(sent).and_then(|(closing, sent)| closing.request(sent.sent_at, sent.first_byte_at));
            recorder.results.n_unfinished += u64::from(sent.is_some() && of_request.is_none());
            of_connect.or(of_request).into_iter().for_each(|fault| recorder.count_fault(fault));
        }
        recorder.results.n_not_started = schedule.waiting(0);
        let from = window.from().unwrap_or(Nanos::MAX);
        for intended in schedule.rest().filter(|intended| *intended >= from) {
            recorder.results.lag.record((now - intended).0);
        }
        let head = heads.iter().flatten().map(HeadReader::last_head).find(|head| !head.is_empty());
        let outcome = recorder.finish(connector.times, head.unwrap_or_default())?;
        // The next trial needs the ports.
        connector.reactor.abandon();
        Ok((outcome, self.users.finish(now)))
    }
}

impl<R: Reactor, U: Users> UserLoop<'_, R, U> {
    /// Gives those their turn who have rested, or waited, for long enough, and those a seat who are due.
    fn begin_due(&mut self, now: Nanos) {
        if self.pool.window.is_over() {
            return;
        }
        if self.pool.schedule.looks(now) {
            if self.pool.next_due().is_some_and(|due| due <= now) {
                self.pool.schedule.started(now);
            }
            while let Some(slot) = self.pool.next_awake(now) {
                self.run_user(slot, now);
            }
            // Running users takes time.
            self.pool.notice(clock::now());
        }
        while let Some(UserSlot(slot)) = self.users.next_woken(now) {
            let slot = slot as usize;
            if self.pool.connections[slot].state == UserState::Waiting {
                self.run_user(slot, now);
            }
        }
        while self.pool.schedule.waiting(0) > 0 {
            let Some(slot) = self.pool.free.pop() else { return };
            self.admit_user(slot as usize);
        }
    }

    /// Admits the user that has been due for longest to a slot, and runs it.
    fn admit_user(&mut self, slot: usize) {
        let pool = &mut self.pool;
        let now = clock::now();
        let start = pool.schedule.take(0, now).expect("somebody waits");
        pool.recorder.add(LoadCounter::Sent, 1);
        match start.late {
            None => {}
            Some(LateCause::NoConnection) => pool.recorder.add(LoadCounter::LateNoConnection, 1),
            Some(LateCause::OwnProcessor) => pool.recorder.add(LoadCounter::LateOwnCpu, 1),
        }
        if pool.window.from().is_some_and(|from| start.intended >= from) {
            pool.recorder.results.lag.record(start.lag.0);
        }
        pool.take_slot(slot);
        self.users.arrive(UserSlot(token(slot).0), now, start.lag);
        self.run_user(slot, now);
    }

    /// Asks the user in a slot for its next action, and carries it out.
    pub(super) fn run_user(&mut self, slot: usize, now: Nanos) {
        let Self { users, pool, .. } = self;
        pool.connections[slot].state = UserState::Acting;
        if pool.window.is_over() {
            return;
        }
        let name = UserSlot(token(slot).0);
        let asked = match users.next_action(name, now) {
            UserAction::Send(ask) => pool.send_request(slot, &ask),
            UserAction::Sleep { until } => {
                pool.sleep(slot, until.max(now + NEXT_ROUND));
                Ok(())
            }
            UserAction::Wait => {
                pool.connections[slot].state = UserState::Waiting;
                Ok(())
            }
            UserAction::CloseConnection => {
                pool.close(slot);
                pool.sleep(slot, now + NEXT_ROUND);
                Ok(())
            }
            UserAction::Leave => {
                pool.release_slot(slot);
                Ok(())
            }
        };
        if let Err(fault) = asked {
            self.fail(slot, fault, now);
        }
    }

    /// Starts connects for users that wait for a connection, as far as the limit of concurrent connects allows.
    fn start_connects(&mut self) {
        if self.pool.window.is_over() {
            return;
        }
        while let Some(slot) = self.pool.next_to_connect() {
            let now = clock::now();
            let connection = &mut self.pool.connections[slot];
            if let Some(pending) = &mut connection.pending {
                pending.sent_at = now;
            }
            self.connect(slot, now);
        }
    }

    /// Fails operations that have exceeded their timeout.
    fn sweep(&mut self, now: Nanos) {
        for slot in self.pool.sweep.due(now, self.pool.connections.len()) {
            let connection = &self.pool.connections[slot];
            let stage = match (connection.conn.overdue(now, self.pool.config.timeout), connection.unanswered()) {
                (Some(stage), _) => stage,
                (None, Some(pending)) if now.since(pending.sent_at) > pending.timeout => {
                    if self.pool.window.is_measuring() {
                        self.pool.recorder.record_given_up(now - pending.sent_at);
                    }
                    RequestStage::Read
                }
                _ => continue,
            };
            self.fail(slot, RequestFault { stage, cause: FaultCause::Timeout }, now);
        }
    }
}

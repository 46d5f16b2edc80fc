//! Runs the users of one worker, in its pool.
//!
//! When a user runs, it decides on an action, which is carried out; the outcome is reported before the user runs again. A user
//! runs directly after its last answer. After a failure it runs in the next round, so that failures do not recurse within one
//! call.

use fathom_engine::{
    Error,
    load::{LoadLoop, OfferedLoad, SendTimes},
};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Batch, Completion, Reactor, WaitLimit},
};

use super::{
    MeasurePhase, UserAction, UserSlot, Users, user_arrivals::ArrivalTimes, user_connection::UserState,
    user_pool::UserPool,
};
use crate::{
    conn::{ConnectionHandler, FaultCause, RequestFault, RequestStage, UnansweredCheck, token},
    h1::HeadReader,
    metrics::LoadResults,
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

impl<'a, R: Reactor, U: Users> LoadLoop<'a> for UserLoop<'a, R, U> {
    type Arrivals = ArrivalTimes;
    type Event = Completion;
    type Output = (LoadResults, U::Outcome);

    #[inline]
    fn load(&mut self) -> &mut OfferedLoad<'a, ArrivalTimes> {
        &mut self.pool.load
    }

    fn expire(&mut self, now: Nanos) {
        self.announce_phase(now);
        self.sweep(now);
    }

    fn has_more(&mut self) -> bool {
        self.pool.n_users > 0 || self.pool.load.has_scheduled()
    }

    fn before_wait(&mut self, now: Nanos) -> Result<Nanos, Error> {
        self.start_connects();
        let faults = &self.pool.recorder.results.faults;
        self.pool.connector.check_reached(self.pool.connections.len(), faults)?;
        Ok(now + self.users.woken_within())
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

    #[inline]
    fn next_due(&mut self) -> Option<Nanos> {
        self.pool.next_due()
    }

    fn batch(&mut self) -> Option<Batch> {
        self.pool.batch()
    }

    /// A free slot stays free until a user arrives.
    fn is_free(&self, _: usize) -> bool {
        true
    }

    /// A user arrives and takes a slot.
    fn start(&mut self, slot: usize, times: SendTimes) {
        self.pool.take_slot(slot);
        self.users.arrive(UserSlot(token(slot).0), times.sent_at, times.sent_at - times.intended);
        self.run_user(slot, times.sent_at);
    }

    /// Runs users whose rest or wait is over, and admits those that are due.
    fn start_due(&mut self, now: Nanos) {
        if self.pool.load.window().is_over() {
            return;
        }
        if self.pool.load.n_targets_to_check(now) > 0 {
            if self.pool.next_due().is_some_and(|due| due <= now) {
                self.pool.load.share_wake_up(now);
            }
            while let Some(slot) = self.pool.next_awake(now) {
                self.run_user(slot, now);
            }
            // Running users takes time.
            self.pool.load.notice(0, clock::now());
        }
        while let Some(UserSlot(slot)) = self.users.next_woken(now) {
            let slot = slot as usize;
            if self.pool.connections[slot].state == UserState::Waiting {
                self.run_user(slot, now);
            }
        }
        self.start_waiting(0);
    }

    /// Requests without an answer are part of the results, and so are users without a slot.
    fn finish(self, now: Nanos) -> Result<(LoadResults, U::Outcome), Error> {
        let UserPool { mut load, mut recorder, connector, connections, heads, .. } = self.pool;
        let closing = UnansweredCheck::of(now, &load);
        for (slot, connection) in connections.iter().enumerate() {
            let of_connect = closing.and_then(|closing| closing.connect(&connection.conn));
            let sent = connection.unanswered();
            let silent_for = || connector.silent_for(slot);
            let of_request = closing
                .zip(sent)
                .and_then(|(closing, sent)| closing.request(sent.sent_at, sent.first_byte_at, silent_for));
            load.times.n_unfinished += u64::from(sent.is_some() && of_request.is_none());
            of_connect.or(of_request).into_iter().for_each(|fault| recorder.count_fault(fault));
        }
        let head = heads.iter().flatten().map(HeadReader::last_head).find(|head| !head.is_empty());
        let results = recorder.finish(connector.times, head.unwrap_or_default())?;
        // The next trial needs the ports.
        connector.reactor.abandon();
        Ok((LoadResults { times: load.finish(now), ..results }, self.users.finish(now)))
    }
}

impl<R: Reactor, U: Users> UserLoop<'_, R, U> {
    /// Ends the load once all users have left, and informs the users of a new phase.
    fn announce_phase(&mut self, now: Nanos) {
        if !self.has_more() || self.users.is_over() {
            self.pool.load.end(now);
        }
        let window = self.pool.load.window();
        let phase = match (window.is_over(), window.is_measuring()) {
            (true, _) => MeasurePhase::Over,
            (false, true) => MeasurePhase::Measured,
            (false, false) => MeasurePhase::WarmUp,
        };
        if self.announced != Some(phase) {
            self.announced = Some(phase);
            self.users.on_phase(phase, now);
        }
    }

    /// Asks the user in a slot for its next action, and carries it out.
    pub(super) fn run_user(&mut self, slot: usize, now: Nanos) {
        let Self { users, pool, .. } = self;
        pool.connections[slot].state = UserState::Acting;
        if pool.load.window().is_over() {
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
        if self.pool.load.window().is_over() {
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
                    self.pool.load.record_waited(SendTimes::at(pending.sent_at), now);
                    RequestStage::Read
                }
                _ => continue,
            };
            self.fail(slot, RequestFault { stage, cause: FaultCause::Timeout }, now);
        }
    }
}

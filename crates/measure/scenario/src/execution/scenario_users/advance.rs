//! Runs a user through the operations until one takes time.

use std::sync::atomic::Ordering::Relaxed;

use fathom_http::users::{MeasurePhase, UserSlot};
use fathom_model::units::Nanos;

use super::{
    super::scenario_user::NextAction,
    super::{
        data_rows::RowResult,
        meeting_point::JoinResult,
        program::Op,
        scenario_user::{CallFrame, ScriptStage},
        text::TextContext,
    },
    ScenarioUsers, ThinkMode, YIELD_TIME,
};

/// The most operations of a user without a request or a rest, so that a loop without requests does not delay others.
const OPS_MAX: u32 = 10_000;

/// How a data set has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DataEnded {
    Stop,
    Error,
}

impl ScenarioUsers {
    /// Runs operations until one takes time.
    pub(super) fn advance(&mut self, slot: UserSlot, now: Nanos) -> NextAction {
        let at = slot.0 as usize;
        let user = &mut self.users[at];
        user.end_sleep(now);
        if let Some(until) = user.pause.take() {
            return user.sleep(now, until);
        }
        if user.redirect.as_ref().is_some_and(|redirect| redirect.is_pending) {
            return NextAction::Redirect;
        }
        if !user.has_rows && self.take_rows(at).is_err() {
            return self.leave(at);
        }
        for _ in 0..OPS_MAX {
            if let Some(next) = self.step_once(slot, now) {
                return next;
            }
        }
        self.users[at].sleep(now, now + YIELD_TIME)
    }

    /// Runs one operation; returns the action if it takes time.
    fn step_once(&mut self, slot: UserSlot, now: Nanos) -> Option<NextAction> {
        let at = slot.0 as usize;
        let Self { shared, users, ops, rng: chance, spec: place, scratch: desk, value, waiting, .. } = self;
        let user = &mut users[at];
        let pc = user.pc as usize;
        user.pc += 1;
        match &mut ops[pc] {
            Op::Send(step) => {
                // It stays here until the answer has arrived.
                user.pc -= 1;
                return Some(NextAction::Send(*step));
            }
            Op::Sleep(wait) if shared.settings.think_mode == ThinkMode::Timed => {
                let until = now + wait.draw(chance);
                return Some(user.sleep(now, until));
            }
            Op::Meet(meeting) if shared.settings.think_mode == ThinkMode::Timed => {
                if let JoinResult::Waits(round) = shared.program.meeting_points[usize::from(*meeting)].join(now) {
                    waiting.add(*meeting, slot, round);
                    user.sleeping_since = Some(now);
                    return Some(NextAction::Wait);
                }
            }
            Op::Sleep(_) | Op::Meet(_) => {}
            Op::Set { slot, text } => {
                user.moment = user.moment(chance.u64(..), now + place.wall_clock_offset);
                value.clear();
                text.put(&mut user.scope(&shared.program), TextContext::Free, value);
                user.slots[usize::from(*slot)].set(value);
            }
            Op::JumpUnless { condition, to } => {
                user.moment = user.moment(chance.u64(..), now + place.wall_clock_offset);
                if !condition.holds(&mut user.scope(&shared.program), desk) {
                    user.pc = *to;
                }
            }
            Op::JumpByChance { share, to } => {
                if chance.f64() >= *share {
                    user.pc = *to;
                }
            }
            Op::Jump(to) => user.pc = *to,
            Op::Call(to) => {
                user.frames.push(CallFrame::Call(user.pc));
                user.pc = *to;
            }
            Op::Return => {
                if let Some(CallFrame::Call(back)) = user.frames.pop() {
                    user.pc = back;
                }
            }
            Op::BeginTransaction(record) => {
                let (record, thought) = (*record, Nanos::ZERO);
                user.frames.push(CallFrame::Transaction { record, began: now, thought, failed: None });
            }
            Op::EndTransaction => {
                if let Some(frame) = user.frames.pop() {
                    self.end_transaction(&frame, now);
                }
            }
            Op::Leave => return Some(self.leave(at)),
            Op::BeginLoop { .. } | Op::EndRound { .. } | Op::EndLoop => return self.in_loop(at, pc, now),
            Op::BeginIteration | Op::EndIteration { .. } | Op::Teardown => return self.iteration(at, pc, now),
        }
        None
    }

    pub(super) fn leave(&mut self, at: usize) -> NextAction {
        self.n_left += 1;
        self.n_present -= 1;
        self.shared.user_left();
        self.users[at].frames.clear();
        NextAction::Leave
    }

    fn in_loop(&mut self, at: usize, pc: usize, now: Nanos) -> Option<NextAction> {
        let user = &mut self.users[at];
        match &self.ops[pc] {
            Op::BeginLoop { least, most, exit } => {
                let n_rounds = if least < most { self.rng.u64(*least..=*most) } else { *least };
                user.frames.push(CallFrame::Loop { round: 0, n_rounds, began: now });
                if n_rounds == 0 {
                    user.pc = *exit;
                }
            }
            Op::EndRound { begin, pace } => {
                let Some(CallFrame::Loop { round, n_rounds, began }) = user.frames.last_mut() else { return None };
                *round = round.saturating_add(1);
                if u64::from(*round) >= *n_rounds {
                    return None;
                }
                user.pc = *begin;
                let due = pace.map(|pace| *began + pace.draw(&mut self.rng));
                *began = due.map_or(now, |due| due.max(now));
                let due = due.filter(|due| *due > now && self.shared.settings.think_mode == ThinkMode::Timed)?;
                return Some(user.sleep(now, due));
            }
            _ => drop(user.frames.pop()),
        }
        None
    }

    /// A transaction has ended, or was given up.
    pub(super) fn end_transaction(&mut self, frame: &CallFrame, now: Nanos) {
        let CallFrame::Transaction { record, began, thought, failed } = frame else { return };
        if self.phase != MeasurePhase::Measured {
            return;
        }
        let tally = &mut self.step_recorders[usize::from(*record)];
        match failed {
            None => tally.passed(now.since(*began).since(*thought)),
            Some(step) => {
                tally.failed(&self.steps[usize::from(*step)].failure_cause, b"");
            }
        }
    }

    fn iteration(&mut self, at: usize, pc: usize, now: Nanos) -> Option<NextAction> {
        match &self.ops[pc] {
            Op::BeginIteration => {
                let user = &mut self.users[at];
                user.stage = ScriptStage::Body;
                // The rows of the first iteration were taken on arrival.
                if user.iteration > 0
                    && let Err(ended) = self.take_rows(at)
                {
                    let user = &mut self.users[at];
                    user.pc = self.shared.program.user_programs[usize::from(user.kind)].teardown;
                    return (ended == DataEnded::Error).then(|| self.leave(at));
                }
                let user = &mut self.users[at];
                user.iteration = user.iteration.saturating_add(1);
                user.began = user.began.max(now);
                self.count(|visits| visits.n_begun += 1);
                None
            }
            Op::EndIteration { .. } => {
                self.count(|visits| visits.n_finished += 1);
                let due = self.end_iteration(at, now)?;
                Some(self.users[at].sleep(now, due))
            }
            _ => {
                self.users[at].stage = ScriptStage::Teardown;
                None
            }
        }
    }

    /// Ends an iteration, successful or not: the next one begins when it may, or the user proceeds to leave.
    ///
    /// Returns the time of the next start, unless it is at once.
    pub(super) fn end_iteration(&mut self, at: usize, now: Nanos) -> Option<Nanos> {
        let Self { shared, users, ops, rng: chance, .. } = self;
        let user = &mut users[at];
        let kind = &shared.program.user_programs[usize::from(user.kind)];
        if shared.settings.iterations.is_some_and(|most| u64::from(user.iteration) >= most) {
            user.pc = kind.teardown;
            return None;
        }
        user.pc = kind.iterate;
        let Some(Op::EndIteration { pace }) = ops.get((kind.teardown as usize).wrapping_sub(1)) else { return None };
        let due = pace.map(|pace| user.began + pace.draw(chance));
        user.began = due.unwrap_or(now);
        due.filter(|due| *due > now && shared.settings.think_mode == ThinkMode::Timed)
    }

    /// Takes rows for an iteration; the first time also those that a user keeps for life.
    fn take_rows(&mut self, at: usize) -> Result<(), DataEnded> {
        let Self { shared, users, rng: chance, .. } = self;
        let user = &mut users[at];
        let is_first = !user.has_rows;
        user.has_rows = true;
        for set in &shared.program.user_programs[usize::from(user.kind)].sets {
            let place = usize::from(*set);
            let dealer = &shared.program.sets[place].row_source;
            if dealer.is_per_user() && !is_first {
                continue;
            }
            match dealer.next_row(chance) {
                RowResult::Row(row) => user.rows[place] = row,
                RowResult::Stop => {
                    shared.is_exhausted.store(true, Relaxed);
                    return Err(DataEnded::Stop);
                }
                RowResult::Error => {
                    shared.failed_data_set.store(set + 1, Relaxed);
                    return Err(DataEnded::Error);
                }
            }
        }
        Ok(())
    }
}

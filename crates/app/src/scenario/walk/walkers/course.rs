//! A user's course through the operations, until something takes time.

use std::sync::atomic::Ordering::Relaxed;

use fathom_http::users::{Seat, Window};
use fathom_model::units::Nanos;

use super::{
    super::{
        meeting::Joined,
        program::Op,
        rows::Dealt,
        text::Place,
        user::{Frame, Stage},
    },
    BREATH, Haste, Next, Walkers,
};

/// A user goes through so many operations without a request or a rest; a loop that never asks must not hold up the others.
const OPS_MAX: u32 = 10_000;

/// How a data set has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Stop,
    Error,
}

impl Walkers {
    /// Goes on until there is something to be done that takes time.
    pub(super) fn advance(&mut self, seat: Seat, now: Nanos) -> Next {
        let at = seat.0 as usize;
        let user = &mut self.users[at];
        user.end_rest(now);
        if let Some(until) = user.pause.take() {
            return user.rest(now, until);
        }
        if user.redirect.as_ref().is_some_and(|redirect| redirect.is_pending) {
            return Next::Redirect;
        }
        if !user.has_rows && self.take_rows(at).is_err() {
            return self.leave(at);
        }
        for _ in 0..OPS_MAX {
            if let Some(next) = self.one(seat, now) {
                return next;
            }
        }
        self.users[at].rest(now, now + BREATH)
    }

    /// Does one operation; gives what takes time.
    fn one(&mut self, seat: Seat, now: Nanos) -> Option<Next> {
        let at = seat.0 as usize;
        let Self { shared, users, ops, chance, place, desk, value, waiting, .. } = self;
        let user = &mut users[at];
        let pc = user.pc as usize;
        user.pc += 1;
        match &mut ops[pc] {
            Op::Ask(step) => {
                // It stays here until the answer has come.
                user.pc -= 1;
                return Some(Next::Ask(*step));
            }
            Op::Rest(wait) if shared.manner.haste == Haste::No => {
                let until = now + wait.draw(chance);
                return Some(user.rest(now, until));
            }
            Op::Meet(meeting) if shared.manner.haste == Haste::No => {
                if let Joined::Waits(round) = shared.program.meetings[usize::from(*meeting)].join(now) {
                    waiting.add(*meeting, (seat, round));
                    user.rests_since = Some(now);
                    return Some(Next::Wait);
                }
            }
            Op::Rest(_) | Op::Meet(_) => {}
            Op::Set { slot, text } => {
                user.moment = user.moment(chance.u64(..), now + place.wall_ahead);
                value.clear();
                text.put(&mut user.scope(&shared.program), Place::Free, value);
                user.slots[usize::from(*slot)].set(value);
            }
            Op::Unless { condition, to } => {
                user.moment = user.moment(chance.u64(..), now + place.wall_ahead);
                if !condition.holds(&mut user.scope(&shared.program), desk) {
                    user.pc = *to;
                }
            }
            Op::Perhaps { share, to } => {
                if chance.f64() >= *share {
                    user.pc = *to;
                }
            }
            Op::Jump(to) => user.pc = *to,
            Op::Call(to) => {
                user.frames.push(Frame::Call(user.pc));
                user.pc = *to;
            }
            Op::Return => {
                if let Some(Frame::Call(back)) = user.frames.pop() {
                    user.pc = back;
                }
            }
            Op::Begin(record) => {
                let (record, thought) = (*record, Nanos::ZERO);
                user.frames.push(Frame::Transaction { record, began: now, thought, failed: None });
            }
            Op::End => {
                if let Some(frame) = user.frames.pop() {
                    self.end_transaction(&frame, now);
                }
            }
            Op::Leave => return Some(self.leave(at)),
            Op::Enter { .. } | Op::Again { .. } | Op::Exit => return self.in_loop(at, pc, now),
            Op::Iterate | Op::Iterated { .. } | Op::Teardown => return self.iteration(at, pc, now),
        }
        None
    }

    pub(super) fn leave(&mut self, at: usize) -> Next {
        self.n_left += 1;
        self.n_here -= 1;
        self.shared.go();
        self.users[at].frames.clear();
        Next::Leave
    }

    fn in_loop(&mut self, at: usize, pc: usize, now: Nanos) -> Option<Next> {
        let user = &mut self.users[at];
        match &self.ops[pc] {
            Op::Enter { least, most, exit } => {
                let n_rounds = if least < most { self.chance.u64(*least..=*most) } else { *least };
                user.frames.push(Frame::Loop { round: 0, n_rounds, began: now });
                if n_rounds == 0 {
                    user.pc = *exit;
                }
            }
            Op::Again { begin, pace } => {
                let Some(Frame::Loop { round, n_rounds, began }) = user.frames.last_mut() else { return None };
                *round = round.saturating_add(1);
                if u64::from(*round) >= *n_rounds {
                    return None;
                }
                user.pc = *begin;
                let due = pace.map(|pace| *began + pace.draw(&mut self.chance));
                *began = due.map_or(now, |due| due.max(now));
                let due = due.filter(|due| *due > now && self.shared.manner.haste == Haste::No)?;
                return Some(user.rest(now, due));
            }
            _ => drop(user.frames.pop()),
        }
        None
    }

    /// A transaction has come to its end, or was given up.
    pub(super) fn end_transaction(&mut self, frame: &Frame, now: Nanos) {
        let Frame::Transaction { record, began, thought, failed } = frame else { return };
        if self.window != Window::Measured {
            return;
        }
        let tally = &mut self.tallies[usize::from(*record)];
        match failed {
            None => tally.passed(now.since(*began).since(*thought)),
            Some(step) => {
                tally.failed(&self.steps[usize::from(*step)].failed, b"");
            }
        }
    }

    fn iteration(&mut self, at: usize, pc: usize, now: Nanos) -> Option<Next> {
        match &self.ops[pc] {
            Op::Iterate => {
                let user = &mut self.users[at];
                user.stage = Stage::Body;
                // Those of the first iteration were there from the arrival on.
                if user.iteration > 0
                    && let Err(ended) = self.take_rows(at)
                {
                    let user = &mut self.users[at];
                    user.pc = self.shared.program.kinds[usize::from(user.kind)].teardown;
                    return (ended == Ended::Error).then(|| self.leave(at));
                }
                let user = &mut self.users[at];
                user.iteration = user.iteration.saturating_add(1);
                user.began = user.began.max(now);
                self.count(|visits| visits.n_begun += 1);
                None
            }
            Op::Iterated { .. } => {
                self.count(|visits| visits.n_finished += 1);
                let due = self.begin_again(at, now)?;
                Some(self.users[at].rest(now, due))
            }
            _ => {
                self.users[at].stage = Stage::Teardown;
                None
            }
        }
    }

    /// An iteration is over, one way or the other: another one begins when it may, or the user goes on to leave.
    ///
    /// Gives when that is, unless it is at once.
    pub(super) fn begin_again(&mut self, at: usize, now: Nanos) -> Option<Nanos> {
        let Self { shared, users, ops, chance, .. } = self;
        let user = &mut users[at];
        let kind = &shared.program.kinds[usize::from(user.kind)];
        if shared.manner.iterations.is_some_and(|most| u64::from(user.iteration) >= most) {
            user.pc = kind.teardown;
            return None;
        }
        user.pc = kind.iterate;
        let Some(Op::Iterated { pace }) = ops.get((kind.teardown as usize).wrapping_sub(1)) else { return None };
        let due = pace.map(|pace| user.began + pace.draw(chance));
        user.began = due.unwrap_or(now);
        due.filter(|due| *due > now && shared.manner.haste == Haste::No)
    }

    /// Takes rows for an iteration; the first time also those that stay for the life of a user.
    fn take_rows(&mut self, at: usize) -> Result<(), Ended> {
        let Self { shared, users, chance, .. } = self;
        let user = &mut users[at];
        let is_first = !user.has_rows;
        user.has_rows = true;
        for set in &shared.program.kinds[usize::from(user.kind)].sets {
            let place = usize::from(*set);
            let dealer = &shared.program.sets[place].dealer;
            if dealer.is_per_user() && !is_first {
                continue;
            }
            match dealer.deal(chance) {
                Dealt::Row(row) => user.rows[place] = row,
                Dealt::Stop => {
                    shared.is_exhausted.store(true, Relaxed);
                    return Err(Ended::Stop);
                }
                Dealt::Error => {
                    shared.broken.store(set + 1, Relaxed);
                    return Err(Ended::Error);
                }
            }
        }
        Ok(())
    }
}

//! One user: its position in the program, and its state.

use fathom_model::units::Nanos;

use super::{
    cookies::CookieJar,
    message::HttpMessage,
    program::{CompiledStep, Pc, ScenarioProgram},
    redirect,
    request::target_of,
    text::{CounterNumbers, ValueInputs, ValueScope, VariableSlot},
};

/// The section of its script that a user is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ScriptStage {
    #[default]
    Setup,
    Body,
    Teardown,
}

/// A block that encloses a user's position.
#[derive(Debug)]
pub(crate) enum CallFrame {
    Loop {
        round: u32,
        n_rounds: u64,
        began: Nanos,
    },
    Transaction {
        record: u16,
        began: Nanos,
        thought: Nanos,
        /// The step that failed first.
        failed: Option<u16>,
    },
    Call(Pc),
}

/// A request that follows a redirect.
#[derive(Debug)]
pub(crate) struct PendingRedirect {
    pub(crate) server: u16,
    /// Without the user's cookies, which depend on the destination.
    pub(crate) request: Vec<u8>,
    /// Whether it still has to be sent.
    pub(crate) is_pending: bool,
}

/// A user in its slot; the memory is reused for the next one.
#[derive(Debug, Default)]
pub(crate) struct ScenarioUser {
    pub(crate) pc: Pc,
    pub(crate) kind: u16,
    pub(crate) stage: ScriptStage,
    pub(crate) n_redirects: u16,
    pub(crate) iteration: u32,
    pub(crate) number: u64,
    /// When the request of the step was sent, before its redirects.
    pub(crate) sent_at: Nanos,
    /// When the iteration began.
    pub(crate) began: Nanos,
    /// When its current rest began, if it rests.
    pub(crate) sleeping_since: Option<Nanos>,
    /// It rests until this time.
    pub(crate) pause: Option<Nanos>,
    pub(crate) moment: ValueInputs,
    pub(crate) has_rows: bool,
    pub(crate) slots: Vec<VariableSlot>,
    pub(crate) rows: Vec<u32>,
    pub(crate) frames: Vec<CallFrame>,
    /// The numbers of shared counters in its last request.
    pub(crate) drawn: Vec<u64>,
    pub(crate) jar: CookieJar,
    pub(crate) redirect: Option<Box<PendingRedirect>>,
}

/// What a user does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextAction {
    Send(u16),
    Redirect,
    Sleep(Nanos),
    Wait,
    Leave,
}

impl ScenarioUser {
    /// A new user takes the slot.
    pub(crate) fn arrive(&mut self, program: &ScenarioProgram, kind: u16, number: u64) {
        self.pc = program.user_programs[usize::from(kind)].begin;
        self.kind = kind;
        self.number = number;
        self.stage = ScriptStage::Setup;
        (self.n_redirects, self.iteration) = (0, 0);
        (self.sleeping_since, self.pause) = (None, None);
        self.has_rows = false;
        self.slots.resize_with(program.slot_names.len(), VariableSlot::default);
        self.slots.iter_mut().for_each(VariableSlot::clear);
        self.rows.clear();
        self.rows.resize(program.sets.len(), 0);
        self.frames.clear();
        self.drawn.clear();
        self.jar.clear();
        self.redirect = None;
    }

    /// Rests until a given time.
    pub(crate) fn sleep(&mut self, now: Nanos, until: Nanos) -> NextAction {
        self.sleeping_since = Some(now);
        NextAction::Sleep(until)
    }

    /// The last request and its server; only the user's cookies are missing in it.
    fn last_request<'a>(&'a self, program: &ScenarioProgram, step: &'a mut CompiledStep) -> (u16, &'a [u8]) {
        match &self.redirect {
            Some(redirect) => (redirect.server, &redirect.request),
            None => (step.server, step.request.bytes(&mut self.replay_scope(program), |_, _, _| ())),
        }
    }

    /// Stores the cookies of an answer to a step.
    pub(crate) fn keep_cookies(
        &mut self,
        program: &ScenarioProgram,
        step: &mut CompiledStep,
        message: HttpMessage<'_>,
        wall: Nanos,
    ) {
        let mut fields = message.fields("set-cookie").peekable();
        if fields.peek().is_none() {
            return;
        }
        let mut jar = std::mem::take(&mut self.jar);
        let (server, asked) = self.last_request(program, step);
        let from = program.servers[usize::from(server)].cookie_scope(target_of(asked));
        fields.for_each(|field| jar.store(field, &from, wall));
        self.jar = jar;
    }

    /// Builds the request that follows a redirect.
    ///
    /// # Errors
    /// The message if it cannot be followed.
    pub(crate) fn follow(
        &mut self,
        program: &ScenarioProgram,
        step: &mut CompiledStep,
        status: u16,
        location: &[u8],
    ) -> Result<(), &'static str> {
        if self.n_redirects >= step.redirects {
            return Err("more redirects than are followed");
        }
        let (server, asked) = self.last_request(program, step);
        let place = redirect::resolve(location, &program.servers, server, target_of(asked));
        let (server, target) = place.ok_or("a redirect to a server that the scenario does not name")?;
        let request = redirect::request(asked, status, &program.servers[usize::from(server)], &target);
        self.redirect = Some(Box::new(PendingRedirect { server, request, is_pending: true }));
        self.n_redirects += 1;
        Ok(())
    }

    /// The inputs of its values at present.
    pub(crate) fn moment(&self, seed: u64, wall: Nanos) -> ValueInputs {
        ValueInputs { seed, user: self.number, iteration: self.iteration, round: self.round(), wall }
    }

    /// The round of the innermost loop, from 1; outside of loops 1.
    fn round(&self) -> u32 {
        let rounds = self.frames.iter().rev().find_map(|frame| match frame {
            CallFrame::Loop { round, .. } => Some(*round + 1),
            _ => None,
        });
        rounds.unwrap_or(1)
    }

    /// Rests are not part of the time of the enclosing transactions.
    pub(crate) fn end_sleep(&mut self, now: Nanos) {
        let Some(since) = self.sleeping_since.take() else { return };
        let rested = now.since(since);
        for frame in &mut self.frames {
            if let CallFrame::Transaction { thought, .. } = frame {
                *thought += rested;
            }
        }
    }

    /// The scope that values are read from.
    pub(crate) fn scope<'a>(&'a mut self, program: &'a ScenarioProgram) -> ValueScope<'a> {
        ValueScope {
            slots: &self.slots,
            rows: &self.rows,
            sets: &program.rows,
            moment: self.moment,
            numbers: CounterNumbers::Draw(&program.counters, &mut self.drawn),
            rng: fastrand::Rng::with_seed(self.moment.seed),
        }
    }

    /// The scope as it was when the last request was written.
    pub(crate) fn replay_scope<'a>(&'a self, program: &'a ScenarioProgram) -> ValueScope<'a> {
        ValueScope {
            slots: &self.slots,
            rows: &self.rows,
            sets: &program.rows,
            moment: self.moment,
            numbers: CounterNumbers::Replay(self.drawn.iter()),
            rng: fastrand::Rng::with_seed(self.moment.seed),
        }
    }

    /// The secret values.
    pub(crate) fn secrets<'a>(&'a self, program: &'a ScenarioProgram) -> impl Iterator<Item = &'a [u8]> {
        let slots = program.secret_slots.iter().map(|slot| self.slots[*slot].text.as_slice());
        let cells = program.sets.iter().enumerate().flat_map(move |(idx, set)| {
            set.secrets.iter().map(move |column| program.rows[idx].cell(self.rows[idx], *column))
        });
        slots.chain(cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_takes_little_memory() {
        let of_script = 8 * size_of::<VariableSlot>() + 2 * size_of::<u32>() + 4 * size_of::<CallFrame>();
        assert!(size_of::<ScenarioUser>() + of_script <= 1024, "{} + {of_script}", size_of::<ScenarioUser>());
    }
}

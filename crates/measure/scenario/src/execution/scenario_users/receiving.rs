//! Handles answers, and steps that fail.

use fathom_http::users::{AnswerDetail, MeasurePhase, UserAnswer};
use fathom_model::{steps::Example, units::Nanos};
use memchr::memmem;

use super::{
    super::{
        checks::AnswerView,
        message::HttpMessage,
        redact::redacted,
        redirect,
        scenario_user::{CallFrame, ScriptStage},
        step_recorder::CauseNovelty,
    },
    ScenarioUsers,
};
use crate::ast::FailureAction;

/// The outcome of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepOutcome {
    Passed(Nanos),
    /// The cause has been recorded.
    Failed,
    /// Another request follows.
    Redirect,
}

impl ScenarioUsers {
    /// Examines an answer: cookies, redirects, expectations, values to take.
    pub(super) fn check_answer(
        &mut self,
        at: usize,
        step_idx: u16,
        answer: &UserAnswer<'_>,
        message: HttpMessage<'_>,
    ) -> StepOutcome {
        let Self { shared, users, steps, scratch: desk, unpacker, value, cause, spec: place, .. } = self;
        let program = &*shared.program;
        let user = &mut users[at];
        let step = &mut steps[usize::from(step_idx)];
        if program.has_cookies && memmem::find(message.head(), b"ookie").is_some() {
            let wall = answer.ended_at + place.wall_clock_offset;
            user.keep_cookies(program, step, message, wall);
        }
        if step.redirects > 0
            && redirect::is_redirect(answer.status)
            && let Some(location) = message.field("location")
        {
            match user.follow(program, step, answer.status, location) {
                Ok(()) => return StepOutcome::Redirect,
                Err(why) => {
                    cause.clear();
                    cause.push_str(why);
                    return StepOutcome::Failed;
                }
            }
        }
        let body = if step.reads_body { unpacker.body(message) } else { Ok(message.body()) };
        let looked = AnswerView { status: answer.status, message, body, took: answer.ended_at.since(user.sent_at) };
        let mut scope = user.replay_scope(program);
        for expectation in &mut step.expectations {
            if !expectation.is_met(&looked, &mut scope, desk, cause) {
                return StepOutcome::Failed;
            }
        }
        for take in &mut step.takes {
            let mut scope = user.replay_scope(program);
            if let Err(why) = take.take(&looked, &mut scope, value) {
                why.write_cause(&take.cause, cause);
                return StepOutcome::Failed;
            }
            user.slots[usize::from(take.slot)].set(value);
        }
        StepOutcome::Passed(looked.took)
    }

    pub(super) fn pass(&mut self, at: usize, step_idx: u16, took: Nanos) {
        if self.phase == MeasurePhase::Measured {
            self.step_recorders[usize::from(self.steps[usize::from(step_idx)].record)].passed(took);
        }
        let user = &mut self.users[at];
        user.pc += 1;
        user.redirect = None;
    }

    /// A step has failed for the recorded cause.
    pub(super) fn fail(&mut self, at: usize, step_idx: u16, answer: &[u8], now: Nanos) {
        let record = usize::from(self.steps[usize::from(step_idx)].record);
        if self.phase == MeasurePhase::Measured
            && self.step_recorders[record].failed(&self.cause, answer) == CauseNovelty::New
        {
            let example = self.example(at, step_idx, answer, now);
            self.step_recorders[record].keep_example(example);
        }
        // From now on its answers are kept: the next one of its kind may be the example.
        self.steps[usize::from(step_idx)].detail = AnswerDetail::Message;
        let user = &mut self.users[at];
        user.redirect = None;
        for frame in &mut user.frames {
            if let CallFrame::Transaction { failed, .. } = frame {
                failed.get_or_insert(step_idx);
            }
        }
        let kind = &self.shared.program.user_programs[usize::from(user.kind)];
        let way = self.steps[usize::from(step_idx)].on_failure.unwrap_or(kind.on_failure);
        if way == FailureAction::Continue {
            user.pc += 1;
            return;
        }
        let (stage, teardown, leave) = (user.stage, kind.teardown, kind.leave);
        while let Some(frame) = self.users[at].frames.pop() {
            self.end_transaction(&frame, now);
        }
        self.count(|visits| visits.n_gave_up += 1);
        match (stage, way) {
            (ScriptStage::Teardown, _) => self.users[at].pc = leave,
            (ScriptStage::Body, FailureAction::Restart) => self.users[at].pause = self.end_iteration(at, now),
            _ => self.users[at].pc = teardown,
        }
    }

    /// The request and the answer, for people who search for the cause; the only place where a failure allocates.
    fn example(&mut self, at: usize, step_idx: u16, answer: &[u8], now: Nanos) -> Example {
        let Self { shared, users, steps, unpacker, cause, spec: place, .. } = self;
        let (user, program, step) = (&users[at], &shared.program, &mut steps[usize::from(step_idx)]);
        let server = &program.servers[usize::from(step.server)];
        let wall = user.moment.wall;
        let sent = step.request.bytes(&mut user.replay_scope(program), |target, own, pairs| {
            user.jar.append_matching(&server.cookie_scope(target), wall, own, pairs);
        });
        let answer = unpacker.readable(answer, &mut Vec::new());
        Example {
            cause: cause.clone(),
            at_ns: now.since(place.start),
            request: redacted(sent, user.secrets(program)),
            answer: redacted(&answer, user.secrets(program)),
        }
    }

    /// Traces all results of an answer, beyond the first error.
    pub(super) fn trace_answer(
        &mut self,
        at: usize,
        step_idx: u16,
        verdict: StepOutcome,
        answer: &UserAnswer<'_>,
        message: HttpMessage<'_>,
    ) {
        let Self { shared, users, steps, scratch: desk, unpacker, trace, cause, .. } = self;
        let Some(trace) = trace else { return };
        let (user, step) = (&users[at], &mut steps[usize::from(step_idx)]);
        let took = answer.ended_at.since(user.sent_at);
        trace.add_answer(&unpacker.readable(answer.message, &mut Vec::new()), took);
        let is_redirect = step.redirects > 0 && redirect::is_redirect(answer.status);
        match verdict {
            StepOutcome::Redirect => return trace.add_expectation("a redirect, which is followed", None),
            StepOutcome::Failed if is_redirect => return trace.add_expectation("a redirect", Some(cause)),
            StepOutcome::Failed | StepOutcome::Passed(_) => {}
        }
        let body = if step.reads_body { unpacker.body(message) } else { Ok(message.body()) };
        let looked = AnswerView { status: answer.status, message, body, took };
        let mut why = String::new();
        for expectation in &mut step.expectations {
            let mut scope = user.replay_scope(&shared.program);
            let is_met = expectation.is_met(&looked, &mut scope, desk, &mut why);
            trace.add_expectation(&expectation.description(), if is_met { None } else { Some(&why) });
        }
        for take in &mut step.takes {
            let mut value = Vec::new();
            let name = &shared.program.slot_names[usize::from(take.slot)];
            match take.take(&looked, &mut user.replay_scope(&shared.program), &mut value) {
                Ok(()) => trace.add_value(name, &value),
                Err(because) => {
                    because.write_cause(&take.cause, &mut why);
                    let what = format!("take {name}");
                    trace.add_expectation(&what, Some(why.trim_start_matches(&what).trim_start_matches(": ")));
                }
            }
        }
    }
}

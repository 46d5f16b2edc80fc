//! What becomes of answers, and of steps that fail.

use fathom_http::users::{Answered, Wants, Window};
use fathom_model::{steps::Example, units::Nanos};
use memchr::memmem;

use super::{
    super::{
        look::Looked,
        message::Message,
        redact::redacted,
        redirect,
        tally::Novelty,
        user::{Frame, Stage},
    },
    Walkers,
};
use crate::scenario::tree::Way;

/// What becomes of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed(Nanos),
    /// The cause is written down.
    Failed,
    /// Another request follows.
    Elsewhere,
}

impl Walkers {
    /// Looks at an answer: cookies, redirects, what is expected, what is taken.
    pub(super) fn look(
        &mut self,
        at: usize,
        step_idx: u16,
        (answer, message): (&Answered<'_>, Message<'_>),
    ) -> Verdict {
        let Self { shared, users, steps, desk, unpacker, value, cause, place, .. } = self;
        let program = &*shared.program;
        let user = &mut users[at];
        let step = &mut steps[usize::from(step_idx)];
        if program.has_cookies && memmem::find(message.head(), b"ookie").is_some() {
            let wall = answer.ended_at + place.wall_ahead;
            user.keep_cookies(program, step, (message, wall));
        }
        if step.redirects > 0
            && redirect::is_redirect(answer.status)
            && let Some(location) = message.field("location")
        {
            match user.follow(program, step, (answer.status, location)) {
                Ok(()) => return Verdict::Elsewhere,
                Err(why) => {
                    cause.clear();
                    cause.push_str(why);
                    return Verdict::Failed;
                }
            }
        }
        let body = if step.reads_body { unpacker.body(message) } else { Ok(message.body()) };
        let looked = Looked { status: answer.status, message, body, took: answer.ended_at.since(user.sent_at) };
        let mut scope = user.scope_again(program);
        for expectation in &mut step.expectations {
            if !expectation.is_met(&looked, (&mut scope, desk), cause) {
                return Verdict::Failed;
            }
        }
        for take in &mut step.takes {
            let mut scope = user.scope_again(program);
            if let Err(why) = take.take(&looked, &mut scope, value) {
                why.tell(&take.cause, cause);
                return Verdict::Failed;
            }
            user.slots[usize::from(take.slot)].set(value);
        }
        Verdict::Passed(looked.took)
    }

    pub(super) fn pass(&mut self, at: usize, step_idx: u16, took: Nanos) {
        if self.window == Window::Measured {
            self.tallies[usize::from(self.steps[usize::from(step_idx)].record)].passed(took);
        }
        let user = &mut self.users[at];
        user.pc += 1;
        user.redirect = None;
    }

    /// A step has failed, of the cause that was written down.
    pub(super) fn fail(&mut self, at: usize, step_idx: u16, (answer, now): (&[u8], Nanos)) {
        let record = usize::from(self.steps[usize::from(step_idx)].record);
        if self.window == Window::Measured && self.tallies[record].failed(&self.cause, answer) == Novelty::New {
            let example = self.example(at, step_idx, (answer, now));
            self.tallies[record].keep(example);
        }
        // From now on its answers are looked at: the next one of its kind may be the example.
        self.steps[usize::from(step_idx)].wants = Wants::Message;
        let user = &mut self.users[at];
        user.redirect = None;
        for frame in &mut user.frames {
            if let Frame::Transaction { failed, .. } = frame {
                failed.get_or_insert(step_idx);
            }
        }
        let kind = &self.shared.program.kinds[usize::from(user.kind)];
        let way = self.steps[usize::from(step_idx)].on_failure.unwrap_or(kind.on_failure);
        if way == Way::Continue {
            user.pc += 1;
            return;
        }
        let (stage, teardown, leave) = (user.stage, kind.teardown, kind.leave);
        while let Some(frame) = self.users[at].frames.pop() {
            self.end_transaction(&frame, now);
        }
        self.count(|visits| visits.n_gave_up += 1);
        match (stage, way) {
            (Stage::Teardown, _) => self.users[at].pc = leave,
            (Stage::Body, Way::Restart) => self.users[at].pause = self.begin_again(at, now),
            _ => self.users[at].pc = teardown,
        }
    }

    /// What was sent and what came, for those who look for the cause; the only place where a failure allocates.
    fn example(&mut self, at: usize, step_idx: u16, (answer, now): (&[u8], Nanos)) -> Example {
        let Self { shared, users, steps, unpacker, cause, place, .. } = self;
        let (user, program, step) = (&users[at], &shared.program, &mut steps[usize::from(step_idx)]);
        let server = &program.servers[usize::from(step.server)];
        let wall = user.moment.wall;
        let sent = step.request.bytes(&mut user.scope_again(program), |target, own, pairs| {
            user.jar.write(&server.whereto(target), wall, (own, pairs));
        });
        let answer = unpacker.readable(answer, &mut Vec::new());
        Example {
            cause: cause.clone(),
            at_ns: now.since(place.start),
            request: redacted(sent, user.secrets(program)),
            answer: redacted(&answer, user.secrets(program)),
        }
    }

    /// Tells all that is to be said of an answer, beyond the first thing that is wrong.
    pub(super) fn tell(
        &mut self,
        at: usize,
        (step_idx, verdict): (u16, Verdict),
        (answer, message): (&Answered<'_>, Message<'_>),
    ) {
        let Self { shared, users, steps, desk, unpacker, trace, cause, .. } = self;
        let Some(trace) = trace else { return };
        let (user, step) = (&users[at], &mut steps[usize::from(step_idx)]);
        let took = answer.ended_at.since(user.sent_at);
        trace.answered(&unpacker.readable(answer.message, &mut Vec::new()), took);
        let is_redirect = step.redirects > 0 && redirect::is_redirect(answer.status);
        match verdict {
            Verdict::Elsewhere => return trace.said("a redirect, which is followed", None),
            Verdict::Failed if is_redirect => return trace.said("a redirect", Some(cause)),
            Verdict::Failed | Verdict::Passed(_) => {}
        }
        let body = if step.reads_body { unpacker.body(message) } else { Ok(message.body()) };
        let looked = Looked { status: answer.status, message, body, took };
        let mut why = String::new();
        for expectation in &mut step.expectations {
            let mut scope = user.scope_again(&shared.program);
            let is_met = expectation.is_met(&looked, (&mut scope, desk), &mut why);
            trace.said(&expectation.shown(), if is_met { None } else { Some(&why) });
        }
        for take in &mut step.takes {
            let mut value = Vec::new();
            let name = &shared.program.slot_names[usize::from(take.slot)];
            match take.take(&looked, &mut user.scope_again(&shared.program), &mut value) {
                Ok(()) => trace.took(name, &value),
                Err(because) => {
                    because.tell(&take.cause, &mut why);
                    let what = format!("take {name}");
                    trace.said(&what, Some(why.trim_start_matches(&what).trim_start_matches(": ")));
                }
            }
        }
    }
}

//! Builds and sends requests.

use std::fmt::Write as _;

use fathom_http::users::{UserRequest, UserSlot};
use fathom_model::units::Nanos;

use super::{
    super::{
        program::Op,
        request::add_cookies,
        scenario_user::ScenarioUser,
        text::{CounterNumbers, TextContext, ValueScope},
    },
    ScenarioUsers,
};

impl ScenarioUsers {
    /// Whether a step can be sent; otherwise the cause has the reason.
    pub(super) fn can_send(&mut self, slot: UserSlot, step_idx: u16, now: Nanos) -> bool {
        let (user, step) = (&self.users[slot.0 as usize], &self.steps[usize::from(step_idx)]);
        if let Some(slot) = step.needed_slots.iter().find(|slot| !user.slots[usize::from(**slot)].is_set) {
            let name = &self.shared.program.slot_names[usize::from(*slot)];
            self.cause.clear();
            // Writing to memory cannot fail.
            let _ = write!(self.cause, "the variable {name} has no value");
            return false;
        }
        if step.dynamic_start.is_some() && !self.has_path(slot, step_idx, now) {
            self.cause.clear();
            self.cause.push_str("the path that was filled in does not begin with /");
            return false;
        }
        true
    }

    /// Whether the target is a path; only a target taken from an answer can be anything else.
    fn has_path(&mut self, slot: UserSlot, step_idx: u16, now: Nanos) -> bool {
        let moment = self.moment(slot, now);
        let Self { shared, users, steps, value, .. } = self;
        let user = &mut users[slot.0 as usize];
        user.moment = moment;
        let Some(target) = &steps[usize::from(step_idx)].dynamic_start else { return true };
        value.clear();
        target.put(&mut user.replay_scope(&shared.program), TextContext::Target, value);
        value.starts_with(b"/")
    }

    /// The request of a step, for its user.
    pub(super) fn request_of(&mut self, slot: UserSlot, step_idx: u16, now: Nanos) -> UserRequest<'_> {
        let moment = self.moment(slot, now);
        let Self { shared, users, steps, trace, .. } = self;
        let program = &*shared.program;
        let user = &mut users[slot.0 as usize];
        user.moment = moment;
        user.drawn.clear();
        (user.n_redirects, user.redirect) = (0, None);
        let ScenarioUser { slots, rows, drawn, jar, .. } = user;
        let numbers = CounterNumbers::Draw(&program.counters, drawn);
        let chance = fastrand::Rng::with_seed(moment.seed);
        let mut scope = ValueScope { slots, rows, sets: &program.rows, moment, numbers, rng: chance };
        let step = &mut steps[usize::from(step_idx)];
        let server = &program.servers[usize::from(step.server)];
        let bytes = step.request.bytes(&mut scope, |target, own, pairs| {
            if !jar.is_empty() {
                jar.append_matching(&server.cookie_scope(target), moment.wall, own, pairs);
            }
        });
        if let Some(trace) = trace {
            trace.add_request(&program.names[usize::from(step.record)].name, bytes);
        }
        UserRequest {
            bytes,
            n_requests: 1,
            server: step.server,
            framing: step.framing,
            detail: step.detail,
            timeout: step.timeout.unwrap_or(shared.settings.timeout),
            may_repeat: true,
        }
    }

    /// The request that follows a redirect.
    pub(super) fn redirect_request(&mut self, slot: UserSlot, now: Nanos) -> UserRequest<'_> {
        let wall = now + self.spec.wall_clock_offset;
        let Self { shared, users, steps, ops, trace, bytes, .. } = self;
        let user = &mut users[slot.0 as usize];
        let redirect = user.redirect.as_mut().expect("a redirect is followed when there is one");
        redirect.is_pending = false;
        let Op::Send(step) = ops[user.pc as usize] else { unreachable!("a redirect belongs to a step") };
        let step = &steps[usize::from(step)];
        let server = &shared.program.servers[usize::from(redirect.server)];
        bytes.clone_from(&redirect.request);
        add_cookies(bytes, |target, own, pairs| {
            user.jar.append_matching(&server.cookie_scope(target), wall, own, pairs);
        });
        if let Some(trace) = trace {
            trace.add_request(&shared.program.names[usize::from(step.record)].name, bytes);
        }
        UserRequest {
            bytes,
            n_requests: 1,
            server: redirect.server,
            framing: step.framing,
            detail: step.detail,
            timeout: step.timeout.unwrap_or(shared.settings.timeout),
            may_repeat: true,
        }
    }
}

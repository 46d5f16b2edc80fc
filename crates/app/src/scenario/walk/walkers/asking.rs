//! Requests on their way out.

use std::fmt::Write as _;

use fathom_http::users::{Ask, Seat};
use fathom_model::units::Nanos;

use super::{
    super::{
        program::Op,
        request::add_cookies,
        text::{Numbers, Place, Scope},
        user::User,
    },
    Walkers,
};

impl Walkers {
    /// Whether a step can be asked; otherwise the cause says why not.
    pub(super) fn can_ask(&mut self, seat: Seat, step_idx: u16, now: Nanos) -> bool {
        let (user, step) = (&self.users[seat.0 as usize], &self.steps[usize::from(step_idx)]);
        if let Some(slot) = step.needs.iter().find(|slot| !user.slots[usize::from(**slot)].is_set) {
            let name = &self.shared.program.slot_names[usize::from(*slot)];
            self.cause.clear();
            // Writing to memory cannot fail.
            let _ = write!(self.cause, "the variable {name} has no value");
            return false;
        }
        if step.opening.is_some() && !self.has_path(seat, step_idx, now) {
            self.cause.clear();
            self.cause.push_str("the path that was filled in does not begin with /");
            return false;
        }
        true
    }

    /// Whether what is to be asked for is a path; only what an answer named can be anything else.
    fn has_path(&mut self, seat: Seat, step_idx: u16, now: Nanos) -> bool {
        let moment = self.moment(seat, now);
        let Self { shared, users, steps, value, .. } = self;
        let user = &mut users[seat.0 as usize];
        user.moment = moment;
        let Some(target) = &steps[usize::from(step_idx)].opening else { return true };
        value.clear();
        target.put(&mut user.scope_again(&shared.program), Place::Target, value);
        value.starts_with(b"/")
    }

    /// The request of a step, for its user.
    pub(super) fn ask(&mut self, seat: Seat, step_idx: u16, now: Nanos) -> Ask<'_> {
        let moment = self.moment(seat, now);
        let Self { shared, users, steps, trace, .. } = self;
        let program = &*shared.program;
        let user = &mut users[seat.0 as usize];
        user.moment = moment;
        user.drawn.clear();
        (user.n_redirects, user.redirect) = (0, None);
        let User { slots, rows, drawn, jar, .. } = user;
        let numbers = Numbers::Draw(&program.counters, drawn);
        let chance = fastrand::Rng::with_seed(moment.seed);
        let mut scope = Scope { slots, rows, sets: &program.rows, moment, numbers, chance };
        let step = &mut steps[usize::from(step_idx)];
        let server = &program.servers[usize::from(step.server)];
        let bytes = step.request.bytes(&mut scope, |target, own, pairs| {
            if !jar.is_empty() {
                jar.write(&server.whereto(target), moment.wall, (own, pairs));
            }
        });
        if let Some(trace) = trace {
            trace.asked(&program.names[usize::from(step.record)].name, bytes);
        }
        Ask {
            bytes,
            n_requests: 1,
            server: step.server,
            framing: step.framing,
            wants: step.wants,
            timeout: step.timeout.unwrap_or(shared.manner.timeout),
        }
    }

    /// The request that follows a redirect.
    pub(super) fn ask_elsewhere(&mut self, seat: Seat, now: Nanos) -> Ask<'_> {
        let wall = now + self.place.wall_ahead;
        let Self { shared, users, steps, ops, trace, bytes, .. } = self;
        let user = &mut users[seat.0 as usize];
        let redirect = user.redirect.as_mut().expect("a redirect is followed when there is one");
        redirect.is_pending = false;
        let Op::Ask(step) = ops[user.pc as usize] else { unreachable!("a redirect belongs to a step") };
        let step = &steps[usize::from(step)];
        let server = &shared.program.servers[usize::from(redirect.server)];
        bytes.clone_from(&redirect.request);
        add_cookies(bytes, |target, own, pairs| user.jar.write(&server.whereto(target), wall, (own, pairs)));
        if let Some(trace) = trace {
            trace.asked(&shared.program.names[usize::from(step.record)].name, bytes);
        }
        Ask {
            bytes,
            n_requests: 1,
            server: redirect.server,
            framing: step.framing,
            wants: step.wants,
            timeout: step.timeout.unwrap_or(shared.manner.timeout),
        }
    }
}

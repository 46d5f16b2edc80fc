//! The users of one worker as the engine asks them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed},
};

use fathom_http::{
    dial::Rota,
    users::{Answered, Ask, Failed, FailedStage, Seat, Turn, Users, Wants, Window},
};
use fathom_model::{
    steps::{Example, Visits},
    units::Nanos,
};

use memchr::memmem;

use super::{
    look::{Desk, Looked, PACKED, Why},
    meeting::Joined,
    message::Message,
    program::{Op, Program, Step},
    redact::redacted,
    redirect,
    rows::Dealt,
    tally::{Novelty, Tally},
    text::{Moment, Numbers, Place, Scope},
    trace::Trace,
    user::{Frame, Stage, User},
};
use crate::scenario::tree::Way;

/// A user goes through so many operations without a request or a rest; a loop that never asks must not hold up the others.
const OPS_MAX: u32 = 10_000;
/// How long a user then rests.
const BREATH: Nanos = Nanos::from_millis(1);
/// So many steps of a user may fail in a row before they are sent.
const TRIES_MAX: u32 = 100;
/// Who found nobody at home does not knock again at once: a server that is not there must not be asked in a busy loop.
const PAUSE: Nanos = Nanos::from_millis(100);

/// How users of a run come and go, and how fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    /// How often a user goes through its script; for ever unless told.
    pub(crate) iterations: Option<u64>,
    pub(crate) haste: Haste,
    /// How many users come, when no more come after them.
    pub(crate) is_population: bool,
    pub(crate) timeout: Nanos,
}

/// Whether users take their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// They think, keep their pace and wait for others.
    No,
    /// They do none of it.
    Yes,
}

/// What the workers of one trial share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) program: Arc<Program>,
    pub(crate) manner: Manner,
    n_users: AtomicU64,
    /// Whether a data set has ended, and users stop.
    is_exhausted: AtomicBool,
    /// The place of a data set that has ended as an error, and one more.
    broken: AtomicU16,
}

impl Shared {
    pub(crate) fn new(program: Arc<Program>, manner: Manner) -> Self {
        Self {
            program,
            manner,
            n_users: AtomicU64::new(0),
            is_exhausted: AtomicBool::new(false),
            broken: AtomicU16::new(0),
        }
    }

    /// Whether users have left because a data set had no more rows.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Relaxed)
    }

    /// The place of the data set whose end is an error, if it has ended.
    pub(crate) fn broken(&self) -> Option<usize> {
        usize::from(self.broken.load(Relaxed)).checked_sub(1)
    }
}

/// What a worker brings home.
#[derive(Debug)]
pub(crate) struct Walked {
    pub(crate) n_started: u64,
    pub(crate) all: Visits,
    pub(crate) measured: Visits,
    pub(crate) n_most: u64,
    pub(crate) tallies: Vec<Tally>,
    pub(crate) trace: Option<Trace>,
}

/// What is told once, before the start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    pub(crate) idx: usize,
    pub(crate) n_workers: usize,
    pub(crate) n_seats: u32,
    /// On the monotonic clock.
    pub(crate) start: Nanos,
    /// What is to be added to the monotonic clock.
    pub(crate) wall_ahead: Nanos,
    pub(crate) seed: u64,
}

/// The users of one worker.
#[derive(Debug)]
pub(crate) struct Walkers {
    shared: Arc<Shared>,
    place: Standing,
    steps: Vec<Step>,
    ops: Vec<Op>,
    rota: Rota,
    users: Vec<User>,
    /// Those who wait at a meeting, with its place and its round.
    waiting: Vec<(Seat, u16, u64)>,
    chance: fastrand::Rng,
    tallies: Vec<Tally>,
    window: Window,
    all: Visits,
    measured: Visits,
    n_here: u64,
    n_most: u64,
    n_left: u64,
    n_arrived: u64,
    /// Memory that is used again and again.
    desk: Desk,
    unchunked: Vec<u8>,
    value: Vec<u8>,
    cause: String,
    bytes: Vec<u8>,
    trace: Option<Trace>,
}

/// How a data set has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Stop,
    Error,
}

/// What a user comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Ask(u16),
    Redirect,
    Rest(Nanos),
    Wait,
    Leave,
}

impl Walkers {
    pub(crate) fn new(shared: &Arc<Shared>, place: Standing, trace: Option<Trace>) -> Self {
        let program = &shared.program;
        let mut users = Vec::new();
        users.resize_with(place.n_seats as usize, User::default);
        Self {
            steps: program.steps.clone(),
            ops: program.ops.clone(),
            rota: program.rota.from_part(place.idx, place.n_workers),
            users,
            waiting: Vec::new(),
            // The number of a worker lies in bits that a seed from the clock does not use.
            chance: fastrand::Rng::with_seed(place.seed ^ (place.idx as u64) << 48),
            tallies: program.names.iter().map(|_| Tally::new()).collect(),
            window: Window::WarmUp,
            all: Visits::default(),
            measured: Visits::default(),
            n_here: 0,
            n_most: 0,
            n_left: 0,
            n_arrived: 0,
            desk: Desk::default(),
            unchunked: Vec::new(),
            value: Vec::new(),
            cause: String::new(),
            bytes: Vec::new(),
            shared: Arc::clone(shared),
            place,
            trace,
        }
    }

    fn count(&mut self, add: impl Fn(&mut Visits)) {
        add(&mut self.all);
        if self.window == Window::Measured {
            add(&mut self.measured);
        }
    }

    fn moment(&mut self, seat: Seat, now: Nanos) -> Moment {
        let user = &self.users[seat.0 as usize];
        Moment {
            seed: self.chance.u64(..),
            user: user.number,
            iteration: user.iteration,
            round: user.round(),
            wall: now + self.place.wall_ahead,
        }
    }

    /// Goes on until there is something to be done that takes time.
    fn advance(&mut self, seat: Seat, now: Nanos) -> Next {
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
        let Self { shared, users, ops, chance, desk, value, waiting, .. } = self;
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
                    waiting.push((seat, *meeting, round));
                    user.rests_since = Some(now);
                    return Some(Next::Wait);
                }
            }
            Op::Rest(_) | Op::Meet(_) => {}
            Op::Set { slot, text } => {
                user.moment.seed = chance.u64(..);
                value.clear();
                text.put(&mut user.scope(&shared.program), Place::Free, value);
                user.slots[usize::from(*slot)].set(value);
            }
            Op::Unless { condition, to } => {
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

    fn leave(&mut self, at: usize) -> Next {
        self.n_left += 1;
        self.n_here = self.n_here.saturating_sub(1);
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
    fn end_transaction(&mut self, frame: &Frame, now: Nanos) {
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
    fn begin_again(&mut self, at: usize, now: Nanos) -> Option<Nanos> {
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

    /// Whether what is to be asked for is a path; only what an answer named can be anything else.
    fn has_path(&mut self, seat: Seat, step_idx: u16, now: Nanos) -> bool {
        if self.steps[usize::from(step_idx)].opening.is_none() {
            return true;
        }
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
    fn ask(&mut self, seat: Seat, step_idx: u16, now: Nanos) -> Ask<'_> {
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
        let bytes = step.request.bytes(&mut scope, |target, line| {
            if !jar.is_empty() {
                jar.write(&server.whereto(target), moment.wall, line);
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
    fn ask_elsewhere(&mut self, seat: Seat, now: Nanos) -> Ask<'_> {
        let wall = now + self.place.wall_ahead;
        let Self { shared, users, steps, ops, trace, bytes, .. } = self;
        let user = &mut users[seat.0 as usize];
        let redirect = user.redirect.as_mut().expect("a redirect is followed when there is one");
        redirect.is_pending = false;
        let Op::Ask(step) = ops[user.pc as usize] else { unreachable!("a redirect belongs to a step") };
        let step = &steps[usize::from(step)];
        let mut line = Vec::new();
        let server = &shared.program.servers[usize::from(redirect.server)];
        user.jar.write(&server.whereto(&redirect.target), wall, &mut line);
        bytes.clone_from(&redirect.request);
        redirect::with_line(bytes, line);
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

    /// The step whose answer a user waits for.
    fn asked(&self, at: usize) -> Option<u16> {
        match self.ops.get(self.users[at].pc as usize) {
            Some(Op::Ask(step)) => Some(*step),
            _ => None,
        }
    }

    /// Looks at an answer: cookies, redirects, what is expected, what is taken.
    fn look(&mut self, at: usize, step_idx: u16, (answer, message): (&Answered<'_>, Message<'_>)) -> Verdict {
        let Self { shared, users, steps, desk, value, cause, place, .. } = self;
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
        let looked = Looked { status: answer.status, message, took: answer.ended_at.since(user.sent_at) };
        let mut scope = user.scope_again(program);
        for expectation in &mut step.expectations {
            if !expectation.is_met(&looked, (&mut scope, desk), cause) {
                return Verdict::Failed;
            }
        }
        for take in &mut step.takes {
            let mut scope = user.scope_again(program);
            if let Err(why) = take.take(&looked, &mut scope, value) {
                cause.clear();
                cause.push_str(if why == Why::Packed { PACKED } else { &take.cause });
                return Verdict::Failed;
            }
            user.slots[usize::from(take.slot)].set(value);
        }
        Verdict::Passed(looked.took)
    }

    fn pass(&mut self, at: usize, step_idx: u16, took: Nanos) {
        if self.window == Window::Measured {
            self.tallies[usize::from(self.steps[usize::from(step_idx)].record)].passed(took);
        }
        let user = &mut self.users[at];
        user.pc += 1;
        user.redirect = None;
    }

    /// A step has failed, of the cause that was written down.
    fn fail(&mut self, at: usize, step_idx: u16, (answer, now): (&[u8], Nanos)) {
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
        let Self { shared, users, steps, cause, place, .. } = self;
        let (user, program) = (&users[at], &shared.program);
        let mut request = steps[usize::from(step_idx)].request.clone();
        let server = &program.servers[usize::from(steps[usize::from(step_idx)].server)];
        let wall = user.moment.wall;
        let sent = request.bytes(&mut user.scope_again(program), |target, line| {
            user.jar.write(&server.whereto(target), wall, line);
        });
        Example {
            cause: cause.clone(),
            at_ns: now.since(place.start),
            request: redacted(sent, user.secrets(program)),
            answer: redacted(answer, user.secrets(program)),
        }
    }

    /// Tells all that is to be said of an answer, beyond the first thing that is wrong.
    fn tell(
        &mut self,
        at: usize,
        (step_idx, verdict): (u16, Verdict),
        (answer, message): (&Answered<'_>, Message<'_>),
    ) {
        let Self { shared, users, steps, desk, trace, cause, .. } = self;
        let Some(trace) = trace else { return };
        let (user, step) = (&users[at], &mut steps[usize::from(step_idx)]);
        let took = answer.ended_at.since(user.sent_at);
        let looked = Looked { status: answer.status, message, took };
        trace.answered(answer.message, took);
        let is_redirect = step.redirects > 0 && redirect::is_redirect(answer.status);
        match verdict {
            Verdict::Elsewhere => return trace.said("a redirect, which is followed", None),
            Verdict::Failed if is_redirect => return trace.said("a redirect", Some(cause)),
            Verdict::Failed | Verdict::Passed(_) => {}
        }
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
                Err(Why::Packed) => trace.said(&take.cause, Some(PACKED)),
                Err(Why::Said) => {
                    let what = format!("take {name}");
                    let why = take.cause.trim_start_matches(&what).trim_start_matches(": ");
                    trace.said(&what, Some(why));
                }
            }
        }
    }
}

/// What becomes of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed(Nanos),
    /// The cause is written down.
    Failed,
    /// Another request follows.
    Elsewhere,
}

impl Users for Walkers {
    type Outcome = Walked;

    fn arrive(&mut self, seat: Seat, _now: Nanos, _late: Nanos) {
        let number = self.shared.n_users.fetch_add(1, Relaxed) + 1;
        let kind = u16::try_from(self.rota.turn()).expect("kinds of users are few");
        self.users[seat.0 as usize].arrive(&self.shared.program, (kind, number));
        self.n_arrived += 1;
        self.n_here += 1;
        self.n_most = self.n_most.max(self.n_here);
    }

    fn turn(&mut self, seat: Seat, now: Nanos) -> Turn<'_> {
        let mut next = self.advance(seat, now);
        for n_tried in 0.. {
            let Next::Ask(step) = next else { break };
            if self.has_path(seat, step, now) {
                break;
            }
            self.cause.clear();
            self.cause.push_str("the path that was filled in does not begin with /");
            self.fail(seat.0 as usize, step, (b"", now));
            let is_enough = n_tried >= TRIES_MAX;
            next =
                if is_enough { self.users[seat.0 as usize].rest(now, now + BREATH) } else { self.advance(seat, now) };
        }
        match next {
            Next::Ask(step) => Turn::Ask(self.ask(seat, step, now)),
            Next::Redirect => Turn::Ask(self.ask_elsewhere(seat, now)),
            Next::Rest(until) => Turn::Rest { until },
            Next::Wait => Turn::Wait,
            Next::Leave => Turn::Leave,
        }
    }

    fn answered(&mut self, seat: Seat, answer: &Answered<'_>) {
        let at = seat.0 as usize;
        let Some(step) = self.asked(at) else { return };
        let user = &mut self.users[at];
        if user.n_redirects == 0 {
            user.sent_at = answer.sent_at;
        }
        let mut unchunked = std::mem::take(&mut self.unchunked);
        let message = Message::read(answer.message, &mut unchunked);
        let verdict = self.look(at, step, (answer, message));
        if self.trace.is_some() {
            self.tell(at, (step, verdict), (answer, message));
        }
        match verdict {
            Verdict::Passed(took) => self.pass(at, step, took),
            Verdict::Failed => self.fail(at, step, (answer.message, answer.ended_at)),
            Verdict::Elsewhere => {}
        }
        self.unchunked = unchunked;
    }

    fn failed(&mut self, seat: Seat, failed: &Failed<'_>) {
        let at = seat.0 as usize;
        let Some(step) = self.asked(at) else { return };
        self.cause.clear();
        self.cause.push_str(failed.cause);
        if let Some(trace) = &mut self.trace {
            trace.failed(failed.cause);
        }
        self.fail(at, step, (b"", failed.ended_at));
        if failed.stage == FailedStage::Connect {
            let user = &mut self.users[at];
            let until = failed.ended_at + PAUSE;
            user.pause = Some(user.pause.map_or(until, |pause| pause.max(until)));
        }
    }

    fn woken(&mut self, now: Nanos) -> Option<Seat> {
        let meetings = &self.shared.program.meetings;
        let is_over = |(_, meeting, round): &(Seat, u16, u64)| meetings[usize::from(*meeting)].is_over(*round, now);
        let idx = self.waiting.iter().position(is_over)?;
        Some(self.waiting.swap_remove(idx).0)
    }

    fn is_over(&self) -> bool {
        let has_come = self.shared.manner.is_population && self.n_left >= u64::from(self.place.n_seats);
        let is_exhausted = self.n_here == 0 && self.n_left > 0 && self.shared.is_exhausted();
        has_come || is_exhausted || self.shared.broken().is_some()
    }

    fn window(&mut self, window: Window, _now: Nanos) {
        self.window = window;
    }

    fn conclude(self, _now: Nanos) -> Walked {
        Walked {
            n_started: self.n_arrived,
            all: self.all,
            measured: self.measured,
            n_most: self.n_most,
            tallies: self.tallies,
            trace: self.trace,
        }
    }
}

//! The users of one worker as the engine asks them.

mod answers;
mod asking;
mod course;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed},
};

use fathom_http::{
    dial::Rota,
    users::{Answered, Failed, FailedStage, Seat, Turn, Users, Window},
};
use fathom_model::{steps::Visits, units::Nanos};

use self::answers::Verdict;
use super::{
    look::Desk,
    meeting::Waiting,
    message::Message,
    program::{Op, Program, Step},
    tally::Tally,
    text::Moment,
    trace::Trace,
    unpack::Unpacker,
    user::User,
};

/// How long a user rests who has done much, or failed often, without asking anything.
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
    /// How many users are there, and the most who were at once.
    n_here: AtomicU64,
    n_most: AtomicU64,
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
            n_here: AtomicU64::new(0),
            n_most: AtomicU64::new(0),
            is_exhausted: AtomicBool::new(false),
            broken: AtomicU16::new(0),
        }
    }

    fn come(&self) {
        let n_here = self.n_here.fetch_add(1, Relaxed) + 1;
        // Nearly always somebody has been the most before, and then nobody needs to write.
        if n_here > self.n_most.load(Relaxed) {
            self.n_most.fetch_max(n_here, Relaxed);
        }
    }

    fn go(&self) {
        self.n_here.fetch_sub(1, Relaxed);
    }

    /// The most users who were there at once, those of all workers together.
    pub(crate) fn n_most(&self) -> u64 {
        self.n_most.load(Relaxed)
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
    waiting: Waiting,
    chance: fastrand::Rng,
    tallies: Vec<Tally>,
    window: Window,
    all: Visits,
    measured: Visits,
    n_here: u64,
    n_left: u64,
    n_arrived: u64,
    /// Memory that is used again and again.
    desk: Desk,
    unchunked: Vec<u8>,
    unpacker: Unpacker,
    value: Vec<u8>,
    cause: String,
    bytes: Vec<u8>,
    trace: Option<Trace>,
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
            waiting: Waiting::at(program.meetings.len()),
            // The number of a worker lies in bits that a seed from the clock does not use.
            chance: fastrand::Rng::with_seed(place.seed ^ (place.idx as u64) << 48),
            tallies: program.names.iter().map(|_| Tally::new()).collect(),
            window: Window::WarmUp,
            all: Visits::default(),
            measured: Visits::default(),
            n_here: 0,
            n_left: 0,
            n_arrived: 0,
            desk: Desk::default(),
            unchunked: Vec::new(),
            unpacker: Unpacker::default(),
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
        self.users[seat.0 as usize].moment(self.chance.u64(..), now + self.place.wall_ahead)
    }

    /// The step whose answer a user waits for.
    fn asked(&self, at: usize) -> Option<u16> {
        match self.ops.get(self.users[at].pc as usize) {
            Some(Op::Ask(step)) => Some(*step),
            _ => None,
        }
    }
}

impl Users for Walkers {
    type Outcome = Walked;

    fn arrive(&mut self, seat: Seat, _now: Nanos, _late: Nanos) {
        let number = self.shared.n_users.fetch_add(1, Relaxed) + 1;
        let kind = u16::try_from(self.rota.turn()).expect("kinds of users are few");
        self.users[seat.0 as usize].arrive(&self.shared.program, (kind, number));
        self.n_arrived += 1;
        self.n_here += 1;
        self.shared.come();
    }

    fn turn(&mut self, seat: Seat, now: Nanos) -> Turn<'_> {
        let mut next = self.advance(seat, now);
        for n_tried in 0.. {
            let Next::Ask(step) = next else { break };
            if self.can_ask(seat, step, now) {
                break;
            }
            if let Some(trace) = &mut self.trace {
                let record = self.steps[usize::from(step)].record;
                trace.asked(&self.shared.program.names[usize::from(record)].name, b"");
                trace.failed(&self.cause);
            }
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
        self.waiting.next_over(|place, round| meetings[place].is_over(round, now))
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
            tallies: self.tallies,
            trace: self.trace,
        }
    }
}

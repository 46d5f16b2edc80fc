//! The users of one worker, as the engine calls them.

mod advance;
mod receiving;
mod sending;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed},
};

use fathom_http::{
    target::WeightedOrder,
    users::{MeasurePhase, UserAction, UserAnswer, UserFailure, UserFailureStage, UserSlot, Users},
};
use fathom_model::{steps::Visits, units::Nanos};

use self::receiving::StepOutcome;
use super::{
    checks::ScratchBuffers,
    meeting_point::MeetingQueues,
    message::HttpMessage,
    program::{CompiledStep, Op, ScenarioProgram},
    scenario_user::{NextAction, ScenarioUser},
    step_recorder::StepRecorder,
    text::ValueInputs,
    trace::Trace,
    unpack::Unpacker,
};

/// How long a user rests after many operations or failures without a request.
const YIELD_TIME: Nanos = Nanos::from_millis(1);
/// The number of steps of a user that may fail in a row before they are sent.
const FAILED_STEPS_MAX: u32 = 100;
/// A user whose connect failed waits this long, so that a missing server is not tried in a busy loop.
const CONNECT_RETRY_DELAY: Nanos = Nanos::from_millis(100);

/// How the users of a run arrive and leave, and their speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunSettings {
    /// How often a user runs its script; forever by default.
    pub(crate) iterations: Option<u64>,
    pub(crate) think_mode: ThinkMode,
    /// Whether the number of users is fixed, so that no more arrive later.
    pub(crate) is_population: bool,
    pub(crate) timeout: Nanos,
}

/// Whether users take their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThinkMode {
    /// They think, keep their pace and wait for others.
    Timed,
    /// They do none of these.
    Immediate,
}

/// Shared by the workers of one trial.
#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) program: Arc<ScenarioProgram>,
    pub(crate) settings: RunSettings,
    n_users: AtomicU64,
    /// The number of present users, and its maximum.
    n_present: AtomicU64,
    n_present_max: AtomicU64,
    /// Whether a data set has run out, so that users stop.
    is_exhausted: AtomicBool,
    /// The index of a data set whose end is an error, plus one.
    failed_data_set: AtomicU16,
}

impl SharedState {
    pub(crate) fn new(program: Arc<ScenarioProgram>, manner: RunSettings) -> Self {
        Self {
            program,
            settings: manner,
            n_users: AtomicU64::new(0),
            n_present: AtomicU64::new(0),
            n_present_max: AtomicU64::new(0),
            is_exhausted: AtomicBool::new(false),
            failed_data_set: AtomicU16::new(0),
        }
    }

    fn user_arrived(&self) {
        let n_here = self.n_present.fetch_add(1, Relaxed) + 1;
        // Usually the maximum was reached before, and then no write is needed.
        if n_here > self.n_present_max.load(Relaxed) {
            self.n_present_max.fetch_max(n_here, Relaxed);
        }
    }

    fn user_left(&self) {
        self.n_present.fetch_sub(1, Relaxed);
    }

    /// The most concurrent users, all workers together.
    pub(crate) fn n_present_max(&self) -> u64 {
        self.n_present_max.load(Relaxed)
    }

    /// Whether users have left because a data set had no more rows.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted.load(Relaxed)
    }

    /// The index of the data set whose end is an error, if it has ended.
    pub(crate) fn failed_data_set(&self) -> Option<usize> {
        usize::from(self.failed_data_set.load(Relaxed)).checked_sub(1)
    }
}

/// The results of a worker.
#[derive(Debug)]
pub(crate) struct ScenarioResults {
    pub(crate) n_started: u64,
    pub(crate) all: Visits,
    pub(crate) measured: Visits,
    pub(crate) step_recorders: Vec<StepRecorder>,
    pub(crate) trace: Option<Trace>,
}

/// The parameters of a worker, set once before the start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScenarioWorkerSpec {
    pub(crate) idx: usize,
    pub(crate) n_workers: usize,
    pub(crate) n_slots: u32,
    /// On the monotonic clock.
    pub(crate) start: Nanos,
    /// To be added to the monotonic clock.
    pub(crate) wall_clock_offset: Nanos,
    pub(crate) seed: u64,
}

/// The users of one worker.
#[derive(Debug)]
pub(crate) struct ScenarioUsers {
    shared: Arc<SharedState>,
    spec: ScenarioWorkerSpec,
    steps: Vec<CompiledStep>,
    ops: Vec<Op>,
    user_order: WeightedOrder,
    users: Vec<ScenarioUser>,
    waiting: MeetingQueues,
    rng: fastrand::Rng,
    step_recorders: Vec<StepRecorder>,
    phase: MeasurePhase,
    all: Visits,
    measured: Visits,
    n_present: u64,
    n_left: u64,
    n_arrived: u64,
    /// Buffers that are reused.
    scratch: ScratchBuffers,
    unchunked: Vec<u8>,
    unpacker: Unpacker,
    value: Vec<u8>,
    cause: String,
    bytes: Vec<u8>,
    trace: Option<Trace>,
}

impl ScenarioUsers {
    pub(crate) fn new(shared: &Arc<SharedState>, place: ScenarioWorkerSpec, trace: Option<Trace>) -> Self {
        let program = &shared.program;
        let mut users = Vec::new();
        users.resize_with(place.n_slots as usize, ScenarioUser::default);
        Self {
            steps: program.steps.clone(),
            ops: program.ops.clone(),
            user_order: program.user_order.for_worker(place.idx, place.n_workers),
            users,
            waiting: MeetingQueues::at(program.meeting_points.len()),
            // The index of a worker uses bits that a seed from the clock does not use.
            rng: fastrand::Rng::with_seed(place.seed ^ (place.idx as u64) << 48),
            step_recorders: program.names.iter().map(|_| StepRecorder::new()).collect(),
            phase: MeasurePhase::WarmUp,
            all: Visits::default(),
            measured: Visits::default(),
            n_present: 0,
            n_left: 0,
            n_arrived: 0,
            scratch: ScratchBuffers::default(),
            unchunked: Vec::new(),
            unpacker: Unpacker::default(),
            value: Vec::new(),
            cause: String::new(),
            bytes: Vec::new(),
            shared: Arc::clone(shared),
            spec: place,
            trace,
        }
    }

    fn count(&mut self, add: impl Fn(&mut Visits)) {
        add(&mut self.all);
        if self.phase == MeasurePhase::Measured {
            add(&mut self.measured);
        }
    }

    fn moment(&mut self, slot: UserSlot, now: Nanos) -> ValueInputs {
        self.users[slot.0 as usize].moment(self.rng.u64(..), now + self.spec.wall_clock_offset)
    }

    /// The step whose answer a user awaits.
    fn awaited_step(&self, at: usize) -> Option<u16> {
        match self.ops.get(self.users[at].pc as usize) {
            Some(Op::Send(step)) => Some(*step),
            _ => None,
        }
    }
}

impl Users for ScenarioUsers {
    type Outcome = ScenarioResults;

    fn arrive(&mut self, slot: UserSlot, _now: Nanos, _late: Nanos) {
        let number = self.shared.n_users.fetch_add(1, Relaxed) + 1;
        let kind = u16::try_from(self.user_order.next_index()).expect("kinds of users are few");
        self.users[slot.0 as usize].arrive(&self.shared.program, kind, number);
        self.n_arrived += 1;
        self.n_present += 1;
        self.shared.user_arrived();
    }

    fn next_action(&mut self, slot: UserSlot, now: Nanos) -> UserAction<'_> {
        let mut next = self.advance(slot, now);
        for n_tried in 0.. {
            let NextAction::Send(step) = next else { break };
            if self.can_send(slot, step, now) {
                break;
            }
            if let Some(trace) = &mut self.trace {
                let record = self.steps[usize::from(step)].record;
                trace.add_request(&self.shared.program.names[usize::from(record)].name, b"");
                trace.add_failure(&self.cause);
            }
            self.fail(slot.0 as usize, step, b"", now);
            let is_enough = n_tried >= FAILED_STEPS_MAX;
            next = if is_enough {
                self.users[slot.0 as usize].sleep(now, now + YIELD_TIME)
            } else {
                self.advance(slot, now)
            };
        }
        match next {
            NextAction::Send(step) => UserAction::Send(self.request_of(slot, step, now)),
            NextAction::Redirect => UserAction::Send(self.redirect_request(slot, now)),
            NextAction::Sleep(until) => UserAction::Sleep { until },
            NextAction::Wait => UserAction::Wait,
            NextAction::Leave => UserAction::Leave,
        }
    }

    fn answered(&mut self, slot: UserSlot, answer: &UserAnswer<'_>) {
        let at = slot.0 as usize;
        let Some(step) = self.awaited_step(at) else { return };
        let user = &mut self.users[at];
        if user.n_redirects == 0 {
            user.sent_at = answer.sent_at;
        }
        let mut unchunked = std::mem::take(&mut self.unchunked);
        let message = HttpMessage::read(answer.message, &mut unchunked);
        let verdict = self.check_answer(at, step, answer, message);
        if self.trace.is_some() {
            self.trace_answer(at, step, verdict, answer, message);
        }
        match verdict {
            StepOutcome::Passed(took) => self.pass(at, step, took),
            StepOutcome::Failed => self.fail(at, step, answer.message, answer.ended_at),
            StepOutcome::Redirect => {}
        }
        self.unchunked = unchunked;
    }

    fn failed(&mut self, slot: UserSlot, failed: &UserFailure<'_>) {
        let at = slot.0 as usize;
        let Some(step) = self.awaited_step(at) else { return };
        self.cause.clear();
        self.cause.push_str(failed.cause);
        if let Some(trace) = &mut self.trace {
            trace.add_failure(failed.cause);
        }
        self.fail(at, step, b"", failed.ended_at);
        if failed.stage == UserFailureStage::Connect {
            let user = &mut self.users[at];
            let until = failed.ended_at + CONNECT_RETRY_DELAY;
            user.pause = Some(user.pause.map_or(until, |pause| pause.max(until)));
        }
    }

    fn next_woken(&mut self, now: Nanos) -> Option<UserSlot> {
        let meetings = &self.shared.program.meeting_points;
        self.waiting.next_over(|place, round| meetings[place].is_over(round, now))
    }

    fn is_over(&self) -> bool {
        let has_come = self.shared.settings.is_population && self.n_left >= u64::from(self.spec.n_slots);
        let is_exhausted = self.n_present == 0 && self.n_left > 0 && self.shared.is_exhausted();
        has_come || is_exhausted || self.shared.failed_data_set().is_some()
    }

    fn on_phase(&mut self, window: MeasurePhase, _now: Nanos) {
        self.phase = window;
    }

    fn finish(self, _now: Nanos) -> ScenarioResults {
        ScenarioResults {
            n_started: self.n_arrived,
            all: self.all,
            measured: self.measured,
            step_recorders: self.step_recorders,
            trace: self.trace,
        }
    }
}

//! A scenario in executable form: a flat list of operations, the steps, and the state that all workers share.

use std::sync::{Arc, atomic::AtomicU64};

use fathom_http::{
    target::WeightedOrder,
    url::{Scheme, Url},
    users::{AnswerDetail, BodyFraming},
};
use fathom_model::units::Nanos;

use super::{
    checks::{CompiledCondition, CompiledTake, Expectation},
    cookies::CookieScope,
    data_rows::{DataRows, RowSource},
    meeting_point::MeetingPoint,
    request::CompiledRequest,
    step_recorder::StepName,
    text::CompiledText,
};
use crate::ast::FailureAction;

/// An address in the list of operations.
pub(crate) type Pc = u32;

/// One operation of a user. Jump targets are absolute.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Sends the request of a step, and continues when its answer has arrived.
    Send(u16),
    Sleep(WaitTime),
    Meet(u16),
    Set {
        slot: u16,
        text: CompiledText,
    },
    /// Begins a loop with a number of rounds; zero rounds jump to `exit`.
    BeginLoop {
        least: u64,
        most: u64,
        exit: Pc,
    },
    /// Ends a round: jumps back to `begin`, not before its pace allows it, until all rounds are done.
    EndRound {
        begin: Pc,
        pace: Option<WaitTime>,
    },
    EndLoop,
    JumpUnless {
        condition: CompiledCondition,
        to: Pc,
    },
    /// Continues with a probability, otherwise jumps.
    JumpByChance {
        share: f64,
        to: Pc,
    },
    Jump(Pc),
    Call(Pc),
    Return,
    BeginTransaction(u16),
    EndTransaction,
    /// Begins an iteration: new rows, a new number.
    BeginIteration,
    /// Ends the iteration: back to its beginning, or on to the teardown.
    EndIteration {
        pace: Option<WaitTime>,
    },
    /// Begins the teardown.
    Teardown,
    Leave,
}

/// A duration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum WaitTime {
    Fixed(Nanos),
    /// Both ends included.
    Uniform(Nanos, Nanos),
    /// By its mean.
    Exponential(Nanos),
    /// By mean and standard deviation, never below zero.
    Normal(Nanos, Nanos),
}

impl WaitTime {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a random time is rounded, and a float becomes the nearest number there is"
    )]
    pub(crate) fn draw(self, chance: &mut fastrand::Rng) -> Nanos {
        match self {
            Self::Fixed(time) => time,
            Self::Uniform(low, high) => Nanos(chance.u64(low.0.min(high.0)..=high.0.max(low.0))),
            Self::Exponential(mean) => Nanos((-(1.0 - chance.f64()).ln() * mean.0 as f64) as u64),
            // The Box-Muller transform (1958).
            Self::Normal(mean, deviation) => {
                let radius = (-2.0 * (1.0 - chance.f64()).ln()).sqrt();
                let turn = (std::f64::consts::TAU * chance.f64()).cos();
                Nanos((mean.0 as f64 + radius * turn * deviation.0 as f64).max(0.0) as u64)
            }
        }
    }
}

/// A request with the handling of its answer. Each worker has its own clones.
#[derive(Debug, Clone)]
pub(crate) struct CompiledStep {
    pub(crate) request: CompiledRequest,
    pub(crate) server: u16,
    pub(crate) framing: BodyFraming,
    pub(crate) detail: AnswerDetail,
    pub(crate) timeout: Option<Nanos>,
    /// The variables in its request.
    pub(crate) needed_slots: Box<[u16]>,
    /// The target, if its beginning is only known at run time.
    pub(crate) dynamic_start: Option<CompiledText>,
    /// The most redirects that are followed.
    pub(crate) redirects: u16,
    pub(crate) expectations: Vec<Expectation>,
    pub(crate) takes: Vec<CompiledTake>,
    /// Whether any of these reads the body.
    pub(crate) reads_body: bool,
    pub(crate) on_failure: Option<FailureAction>,
    /// Its index among the names of records.
    pub(crate) record: u16,
    /// The cause of failure of a transaction in which it failed.
    pub(crate) failure_cause: String,
}

/// A kind of user.
#[derive(Debug)]
pub(crate) struct UserProgram {
    pub(crate) begin: Pc,
    pub(crate) iterate: Pc,
    pub(crate) teardown: Pc,
    pub(crate) leave: Pc,
    pub(crate) on_failure: FailureAction,
    /// The data sets that it uses.
    pub(crate) sets: Vec<u16>,
}

/// A server, as requests and cookies name it.
#[derive(Debug, Clone)]
pub(crate) struct ScenarioServer {
    pub(crate) url: Url,
    /// In lower case.
    pub(crate) host: String,
}

impl ScenarioServer {
    pub(crate) fn new(url: Url) -> Self {
        Self { host: url.host.to_ascii_lowercase(), url }
    }

    /// Whether a URL leads to it.
    pub(crate) fn serves(&self, url: &Url) -> bool {
        (self.url.scheme, self.url.port) == (url.scheme, url.port) && self.host.eq_ignore_ascii_case(&url.host)
    }

    pub(crate) fn cookie_scope<'a>(&'a self, target: &'a [u8]) -> CookieScope<'a> {
        CookieScope { host: &self.host, target, is_secure: self.url.scheme == Scheme::Https }
    }
}

/// A data set with its assignment of rows.
#[derive(Debug)]
pub(crate) struct DataSetState {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) row_source: RowSource,
    /// Columns with secrets, by their name.
    pub(crate) secrets: Vec<usize>,
}

/// Shared by all workers; only counters change.
#[derive(Debug)]
pub(crate) struct ScenarioProgram {
    pub(crate) ops: Vec<Op>,
    pub(crate) steps: Vec<CompiledStep>,
    pub(crate) names: Vec<StepName>,
    pub(crate) user_programs: Vec<UserProgram>,
    pub(crate) user_order: WeightedOrder,
    pub(crate) servers: Vec<ScenarioServer>,
    pub(crate) rows: Vec<Arc<DataRows>>,
    pub(crate) sets: Vec<DataSetState>,
    pub(crate) counters: Vec<AtomicU64>,
    pub(crate) meeting_points: Vec<MeetingPoint>,
    pub(crate) slot_names: Vec<String>,
    /// Slots with secrets, by the name of the variable.
    pub(crate) secret_slots: Vec<usize>,
    pub(crate) has_cookies: bool,
    pub(crate) promises: Vec<String>,
}

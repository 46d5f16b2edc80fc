//! A plan on its hosts: checked whole before anything is touched, then round by round.

mod benchmark;
mod course;
mod estimate;
mod plan;
mod search;
mod sought;

pub(crate) use benchmark::METHODS;
pub(crate) use course::{execute, reach};
pub(crate) use estimate::about;
pub(crate) use plan::{complete, read_plan, text as plan_text};

use fathom_engine::Live;
use fathom_model::Run;
use fathom_sys::signal::Signal;

use crate::allow::Allowed;

/// What surrounds a run without being part of what is asked.
pub(crate) struct Surroundings {
    /// Where traffic may go.
    pub(crate) allowed: Allowed,
    /// Whether to show no progress.
    pub(crate) is_quiet: bool,
    /// Whether to say first how long it takes: a part of another run does not.
    pub(crate) says_how_long: bool,
    /// Whether to print events as they happen.
    pub(crate) is_live: bool,
    /// The command that repeats the run.
    pub(crate) command: String,
    /// Who hears, twice a second, how far the initiator of a trial is; the faces print their tools' progress from it.
    pub(crate) watcher: Option<Box<dyn Fn(Live)>>,
}

/// A run, and the signal that ended it early.
pub(crate) struct Executed {
    pub(crate) run: Run,
    pub(crate) signal: Option<Signal>,
}

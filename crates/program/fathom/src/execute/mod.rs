//! A plan on its hosts: checked whole before anything is touched, then round by round.

mod benchmark;
mod estimate;
mod plan;
mod rounds;
mod search;
mod search_spec;

pub(crate) use benchmark::METHODS;
pub(crate) use estimate::rounded_text;
pub(crate) use plan::{complete, read_plan, to_toml as plan_text};
pub(crate) use rounds::{check_hosts, execute};

use fathom_engine::LiveProgress;
use fathom_model::Run;
use fathom_sys::process::signal::Signal;

use crate::allow::AllowList;

/// What surrounds a run without being part of what is asked.
pub(crate) struct RunOptions {
    /// Where traffic may go.
    pub(crate) allowed: AllowList,
    /// Whether to show no progress.
    pub(crate) is_quiet: bool,
    /// Whether to say first how long it takes: a part of another run does not.
    pub(crate) shows_estimate: bool,
    /// Whether to print events as they happen.
    pub(crate) is_live: bool,
    /// The command that repeats the run.
    pub(crate) command: String,
    /// Who hears, twice a second, how far the initiator of a trial is; the drop-in tools print their tools' progress from it.
    pub(crate) on_progress: Option<Box<dyn Fn(LiveProgress)>>,
}

/// A run, and the signal that ended it early.
pub(crate) struct FinishedRun {
    pub(crate) run: Run,
    pub(crate) signal: Option<Signal>,
}

//! A plan on its hosts: checked whole before anything is touched, then round by round.

mod benchmark;
mod benchmark_spec;
mod checked_plan;
mod estimate;
mod rounds;
mod search;
mod search_spec;
mod trial_executor;

pub use benchmark_spec::METHODS;
pub use checked_plan::{CheckedPlan, read_plan, to_toml as plan_text};
pub use estimate::rounded_text;
pub use rounds::{check_hosts, execute};

use fathom_engine::LiveProgress;
use fathom_model::Run;
use fathom_sys::process::signal::Signal;

use crate::allow::AllowList;

/// What surrounds a run without being part of what is asked.
pub struct RunOptions {
    /// Where traffic may go.
    pub allowed: AllowList,
    /// Whether to show no progress.
    pub is_quiet: bool,
    /// Whether to say first how long it takes: a part of another run does not.
    pub shows_estimate: bool,
    /// Whether to print events as they happen.
    pub is_live: bool,
    /// The command that repeats the run.
    pub command: String,
    /// Who hears, twice a second, how far the initiator of a trial is; the drop-in tools print their tools' progress from it.
    pub on_progress: Option<Box<dyn Fn(LiveProgress)>>,
}

/// A run, and the signal that ended it early.
pub struct FinishedRun {
    pub run: Run,
    pub signal: Option<Signal>,
}

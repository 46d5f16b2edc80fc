//! Runs a plan on its hosts: checks all of it before anything is touched, then runs it round by round.

mod benchmark;
mod benchmark_spec;
mod checked_plan;
mod comparisons;
mod device_commands;
mod device_maps;
mod estimate;
mod events;
mod held_change;
mod pairs;
mod proof;
mod rounds;
mod search;
mod search_spec;
mod server_host;
mod shell_command;
mod trial_executor;
mod turns;

pub use benchmark_spec::METHODS;
pub use checked_plan::{CheckedPlan, read_plan, to_toml as plan_text};
pub use device_maps::DeviceMap;
pub use estimate::rounded_text;
pub use rounds::{check_hosts, execute};

use fathom_engine::LiveProgress;
use fathom_model::Run;
use fathom_sys::process::signal::Signal;

use crate::allow::AllowList;

/// Options of a run that are not part of its plan.
pub struct RunOptions {
    /// The allow-list.
    pub allowed: AllowList,
    /// True if no progress is shown.
    pub is_quiet: bool,
    /// True if the estimated duration is printed first. False for a part of another run.
    pub shows_estimate: bool,
    /// True if events are printed as they happen.
    pub is_live: bool,
    /// The command that repeats this run.
    pub command: String,
    /// Receives the progress of the initiator of a trial twice a second. The drop-in tools print the progress lines of their tools from it.
    pub on_progress: Option<Box<dyn Fn(LiveProgress)>>,
}

/// A finished run, and the signal that ended it early, if any.
pub struct FinishedRun {
    pub run: Run,
    pub signal: Option<Signal>,
}

//! Scripts of wrk, unchanged: their functions decide what is sent, over connections that the engine of users moves.
//!
//! There is a state for each thread and one for what comes before and after, as in wrk. [`states`] makes them in wrk's order,
//! [`users`] calls into them during the run. Whatever a script prints and gets wrong comes home in the record. Knows no sockets.

mod answer;
mod fault;
mod heartbeat;
mod kind;
mod metrics;
mod output;
mod request_count;
mod script;
mod state;
mod states;
mod statistics;
mod summary;
mod transfer;
mod users;

pub use fault::PREFIX as ERROR_PREFIX;
pub(crate) use kind::AppLua;

/// The option with what a script may connect to beside its target: whoever runs a plan must have allowed it.
pub const ALLOW: &str = "script-allow";

/// Facts of a record: what the script has said.
/// All kinds of this crate.
pub const KINDS: &[&dyn fathom_engine::TestKind] = &[&AppLua];

pub mod facts {
    /// Printed before the first request.
    pub const BEFORE: &str = "script_output_before";
    /// Printed between the first request and the end.
    pub const DURING: &str = "script_output";
    /// Printed by `done`.
    pub const AFTER: &str = "script_output_after";
    /// Written to standard error, at any time.
    pub const ERRORS: &str = "script_errors";
    /// Why the script was not loaded, a line for each state.
    pub const COMPLAINTS: &str = "script_complaints";
    /// The number that it first gave to `os.exit`.
    pub const EXIT_CODE: &str = "script_exit_code";
}

/// The distribution of the time from what was sent together to the last answer to it.
pub const BATCH_TIME: &str = "batch_time_ns";
